"""What a benchmark is to run: the flags of `wildtta bench`, or the same names in a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wildtta.corruptions import CORRUPTIONS
from wildtta.recipes import methods

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigError", "read_toml"]

WILD = ("limited", "mixed", "shift")

_ESTIMATED = ("region", "fisher", "statistics")  # hyper-parameters that a run finds out by itself


class ConfigError(ValueError):
    """A setting that cannot be."""


@dataclass
class Config:
    """A benchmark: every combination of models × data × scenarios × corruptions × methods × guards × seeds.

    Attributes:
        models, data: as `wildtta.models.load_model` and `wildtta.data.open_data` take them.
        kinds: corruptions, or what the data have instead (empty: all of the benchmark's fifteen, or the data's own).
        severities: 1 to 5.
        scenarios: names from `wildtta.streams.SCENARIOS`.
        reset: a fresh adapter for each corruption, or one that goes on through all of them; None: the scenario's own choice.
        methods: names from `wildtta.methods()`; "all" stands for all of them; empty: all but the costly ones.
        guards: "none" and names that `wildtta.adapt` takes.
        seeds: of the order of images, and of the methods' random numbers.
        images: at most so many images of each corruption (a fixed random part; empty: all).
        sample: at most so many for the costly methods; the source is then run on these images too, to compare with.
        batch: instead of the scenario's own.
        options: of the scenarios, by name ("shift.ratio = 1000", "correlated.concentration = 0.1").
        settings: hyper-parameters, by name ("lr = 1e-4" for all methods that have it, "recap.tau = 1.0" for one).
        calibration: how many source images Σ is estimated on (the Fisher matrix: four times as many).
        weights, statistics: of the models. source: where uncorrupted source images lie, if not among the data.
        device, precision, threads: where and how it is computed. jobs: cells side by side.
        engine: "local", or "ray": cells as tasks of Ray, on this machine or on the cluster at `address` (which has to see the
            results' folder under the same path); gpus: the share of a GPU that a cell takes there.
    """

    models: list[str] = field(default_factory=lambda: ["glyph-resnet", "glyph-vit"])
    data: list[str] = field(default_factory=lambda: ["glyphs"])
    kinds: list[str] = field(default_factory=list)
    severities: list[int] = field(default_factory=lambda: [5])
    scenarios: list[str] = field(default_factory=lambda: list(WILD))
    reset: bool | None = None
    methods: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=lambda: ["none"])
    seeds: list[int] = field(default_factory=lambda: [2023])
    images: int | None = None
    sample: int | None = None
    batch: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    calibration: int = 500
    weights: str | None = None
    statistics: str = "own"
    source: str | None = None
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    jobs: int = 1
    engine: str = "local"
    address: str | None = None
    gpus: float = 1.0

    def __post_init__(self) -> None:
        self.methods = list(self.methods) or [name for name, recipe in methods().items() if not recipe.costly]
        if self.methods == ["all"]:
            self.methods = list(methods())
        for name in ("models", "data", "severities", "scenarios", "guards", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; give at least one")
        for name in ("models", "data", "kinds", "severities", "scenarios", "methods", "guards", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} names something twice: {', '.join(map(str, values))}")
        for method in self.methods:
            _known(method, list(methods()), "method")
        _check_scenarios(self.scenarios)
        for guard in self.guards:
            _known(guard, ["none", "collapse", "recover"], "guard")
        _known(self.precision, ["float32", "tf32", "bf16"], "precision")
        _known(self.engine, ["local", "ray"], "engine")
        if self.address is not None and self.engine != "ray":
            raise ConfigError(f"the address {self.address!r} is for the engine ray; add --engine ray")
        if self.gpus != 1 and self.engine != "ray":
            raise ConfigError(f"gpus, a share of {self.gpus:g}, is for the engine ray; add --engine ray")
        if self.gpus <= 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ConfigError(f"gpus must be a share of one, or a whole number, but is {self.gpus}")
        for severity in self.severities:
            if not 1 <= severity <= 5:
                raise ConfigError(f"severities go from 1 to 5, but {severity} was given")
        for name in ("images", "sample", "batch", "calibration", "threads", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, but is {value}")
        for seed in self.seeds:
            if not 0 <= seed < 1 << 32:
                raise ConfigError(f"seeds go from 0 to {(1 << 32) - 1}, but {seed} was given")
        for key, value in (self.options | self.settings).items():
            if not isinstance(value, bool | int | float | str):
                raise ConfigError(f"{key} must be a number, a word, true or false, but is {value!r}")
        self._check_names(self.options, list(self.scenarios), "scenario", needs_owner=True)
        self._check_names(self.settings, self.methods, "method", needs_owner=False)

    def _check_names(self, given: dict[str, Any], owners: list[str], what: str, *, needs_owner: bool) -> None:
        for key in given:
            owner, dot, name = key.rpartition(".")
            if needs_owner and not dot:
                raise ConfigError(f"the option {key!r} does not say of which {what}; write {owners[0]}.{key}")
            if dot and owner not in owners:
                raise ConfigError(f"{key!r} is for the {what} {owner!r}, which is not among {', '.join(owners)}")
            if what == "method":
                takers = [owner] if dot else owners
                names = sorted({each for taker in takers for each in methods()[taker].hyperparameters} - {*_ESTIMATED})
                if name not in names:
                    near = difflib.get_close_matches(name, names, n=2)
                    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"
                    raise ConfigError(f"no hyper-parameter {name!r} in {', '.join(takers)}; {hint}")

    def settings_of(self, method: str) -> dict[str, Any]:
        """The overridden hyper-parameters of one method; what is given for it alone goes before what is given for all."""
        takes = methods()[method].hyperparameters
        shared = {key: value for key, value in self.settings.items() if "." not in key and key in takes}
        return shared | _own(self.settings, method)

    def options_of(self, scenario: str) -> dict[str, Any]:
        return _own(self.options, scenario)

    def kinds_of(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        """The corruptions to run on data that offer these."""
        if self.kinds:
            return tuple(self.kinds)
        corruptions = tuple(kind for kind in CORRUPTIONS if kind in offered)
        return corruptions or offered

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def command(self, out: Path | str) -> str:
        """The command line that runs this."""
        words, usual = ["wildtta", "bench", "--out", str(out)], Config()
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if value == getattr(usual, entry.name):
                continue
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{entry.name}")
            elif isinstance(value, dict):
                flag = {"options": "option", "settings": "set"}[entry.name]
                for key, item in value.items():
                    words += [f"--{flag}", f"{key}={item}"]
            elif isinstance(value, list):
                words += [f"--{entry.name}", ",".join(map(str, value))]
            else:
                words += [f"--{entry.name}", str(value)]
        return shlex.join(words)


def read_toml(path: Path) -> dict[str, Any]:
    """A config file as keyword arguments of `Config`; a key that it does not have is an error with the near ones."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no config file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not readable TOML: {error}") from error
    known = {"out": "str"} | {entry.name: str(entry.type) for entry in dataclasses.fields(Config)}
    for key, value in content.items():
        _known(key, list(known), f"key in {path},")
        wanted, fits = _KINDS[known[key].removesuffix(" | None")]
        if not fits(value):
            raise ConfigError(f"{path}: {key} must be {wanted}, but is {value!r}")
        if isinstance(value, dict):
            content[key] = _flat(value)
    return content


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "list[str]": (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    ),
    "list[int]": ("a list of whole numbers", lambda value: isinstance(value, list) and all(map(_is_whole, value))),
    "dict[str, Any]": ("a table", lambda value: isinstance(value, dict)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", _is_whole),
    "float": ("a number", lambda value: isinstance(value, float) or _is_whole(value)),
    "str": ("a string", lambda value: isinstance(value, str)),
}
"""By the type of a setting: what it must be in a TOML file, in words and as a check."""


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """`[settings.recap] tau = 1` and `"recap.tau" = 1` mean the same."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            flat[key] = value
    return flat


def _own(given: dict[str, Any], owner: str) -> dict[str, Any]:
    return {key.rpartition(".")[2]: value for key, value in given.items() if key.rpartition(".")[0] == owner}


def _check_scenarios(names: list[str]) -> None:
    from wildtta.streams import SCENARIOS

    for name in names:
        _known(name, list(SCENARIOS), "scenario")


def _known(name: str, known: list[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
        raise ConfigError(f"unknown {what} {name!r}; {hint}")
