"""What the studies share: what one is run on, streams and parts that are kept on disk, and numbers put together.

A study asks for *streams* (cells of the benchmark, one file each, shared by all studies of a folder) and for *parts* (small
JSON files of its own). What is there is read, what is missing is run: so the same call goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import wildtta
from wildtta.adapter import Adapter
from wildtta.bench import Cell, Config, Listener, plan, preflight
from wildtta.bench.config import WILD, ConfigError
from wildtta.bench.engine import Account, Summary, check_device, work
from wildtta.bench.images import Kept
from wildtta.bench.plan import Setting, open_settings
from wildtta.bench.store import FORMAT, Store, write_json
from wildtta.bench.timing import in_turn, spread
from wildtta.bench.work import Workshop, precision, prepare_source
from wildtta.corruptions import CORRUPTIONS
from wildtta.data import DataError
from wildtta.recipes import methods, recipe
from wildtta.report.groups import statistic
from wildtta.runners.together import mixes_images
from wildtta.studies.methods import registered

__all__ = [
    "METHODS",
    "Bench",
    "Choice",
    "Result",
    "Teller",
    "TimeOverError",
    "Trial",
    "average",
    "mean_of",
    "rates_from",
    "rounded",
]

Result = dict[str, Any]
"""The content of a stream's file: cell, result, measured, provenance."""


METHODS = ("source", "tent", "eta", "eata", "sar", "deyo", "recap", "recap+eta", "recap+sar", "recap+deyo")
"""Those that are compared; on the embedded set fewer of them."""


class TimeOverError(Exception):
    """The time given is over; what is done is kept."""


class Teller(Listener):
    """Is told what a study does, as the benchmark's listener is of streams; this one does nothing."""

    def part(self, name: str) -> None:
        """A sub-run of a study's own begins, that is no stream."""


@dataclass
class Choice:
    """What a study is run on. None: what the study itself takes, which is less for the embedded set.

    Attributes:
        models, data: as `wildtta.models.load_model` and `wildtta.data.open_data` take them.
        kinds: corruptions. severity: theirs.
        images: at most so many of each corruption.
        seeds: of the order of images, and of the methods' random numbers.
        lr: the learning rate of all methods, as a multiple of the published one.
        rates: a file that `wildtta study tune` wrote: settings by model, scenario and method, which go before `lr`.
        scale: "small" or "full".
        scenarios: of `results`; the paper's three wild ones if nothing else is said.
        costly: whether `cost` times the costly methods at the small scale, too.
        calibration: how many source images Σ is estimated on.
        together: streams that go side by side in one batch, on a GPU.
    """

    models: list[str] | None = None
    data: str = "glyphs"
    kinds: list[str] | None = None
    severity: int = 5
    images: int | None = None
    seeds: list[int] | None = None
    lr: str | None = None
    rates: str | None = None
    scale: str | None = None
    scenarios: list[str] = field(default_factory=lambda: list(WILD))
    costly: bool = False
    calibration: int = 500
    weights: str | None = None
    statistics: str = "own"
    source: str | None = None
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    together: int = 16

    def __post_init__(self) -> None:
        if self.models is None:
            if self.data != "glyphs":
                raise ConfigError("say which models: --models timm:NAME, file.py:function, …")
            self.models = ["glyph-resnet"]
        if self.scale is None:
            self.scale = "small" if self.data == "glyphs" else "full"
        if self.scale not in ("small", "full"):
            raise ConfigError(f"scale is small or full, but {self.scale!r} was given")
        if self.lr is None:
            self.lr = "x150" if self.data == "glyphs" else "x1"
        multiple(self.lr)
        for name in ("images", "calibration", "threads", "together"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, but is {value}")

    @property
    def small(self) -> bool:
        return self.scale == "small"

    def command(self, study: str, out: Path | str) -> str:
        """The command line that runs this."""
        words = ["wildtta", "study", study, "--out", str(out)]
        usual = Choice() if self.data == "glyphs" else Choice(data=self.data, models=[])
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if value == getattr(usual, entry.name) and entry.name != "data":
                continue
            if entry.name == "data" and value == "glyphs":
                continue
            words.append(f"--{entry.name}")
            if value is not True:
                words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
        return shlex.join(words)


def multiple(lr: str) -> float:
    """The factor of a learning rate that is written as a multiple, such as "x3"."""
    try:
        factor = float(lr.removeprefix("x"))
    except ValueError:
        factor = math.nan
    if not lr.startswith("x") or not 0 < factor < math.inf:
        raise ConfigError(f'lr must be a multiple of the published learning rate, such as "x3", but is {lr!r}')
    return factor


def times(lr: str, factor: float) -> str:
    """
    >>> times("x30", 0.1)
    'x3'
    """
    return f"x{multiple(lr) * factor:.6g}"


@dataclass(frozen=True)
class Trial:
    """One way to adapt, to be tried on every model, corruption and seed of a study.

    Attributes:
        label: what it is called in tables and figures.
        settings: hyper-parameters, over those that the study's choice gives.
        tuned: whether the learning rate (and what else was tuned) is the choice's own where `settings` gives none.
    """

    label: str
    method: str
    scenario: str = "shift"
    settings: tuple[tuple[str, Any], ...] = ()
    guard: str | None = None
    batch: int | None = None
    tuned: bool = True


def trial(
    label: str,
    method: str,
    scenario: str = "shift",
    *,
    guard: str | None = None,
    batch: int | None = None,
    tuned: bool = True,
    **settings: Any,
) -> Trial:
    """A trial whose hyper-parameters are given by name."""
    return Trial(label, method, scenario, tuple(settings.items()), guard, batch, tuned=tuned)


class Bench:
    """Runs what studies ask for, and keeps it: streams in FOLDER/streams, parts in FOLDER/STUDY/parts.

    Args:
        choice: what it is run on.
        folder: for the results of all studies.
        until: the moment (of `time.monotonic`) after which nothing more is begun.
    """

    def __init__(
        self, choice: Choice, folder: Path | str, teller: Teller | None = None, until: float = math.inf
    ) -> None:
        self.choice, self.folder, self.until = choice, Path(folder), until
        self.teller = teller or Teller()
        check_device(choice.device)
        self.store = Store(self.folder / "streams")
        self.failures: dict[str, str] = {}
        self._rates = rates_from(Path(choice.rates)) if choice.rates else {}
        tuned = {model for model, _, _ in self._rates}
        if choice.rates and (untuned := [model for model in self.models if model not in tuned]):
            raise ConfigError(
                f"{choice.rates} has no settings for {', '.join(untuned)}, but for {', '.join(sorted(tuned))}; name the "
                "models as they were when `wildtta study tune` wrote it, or run it for these"
            )
        self._settings: dict[str, Setting] = {}
        self._kept: dict[tuple[str, str], Kept] = {}
        self._workshop = _Workshop(self)

    # -- what it is run on ---------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return torch.device(self.choice.device)

    @property
    def models(self) -> list[str]:
        assert self.choice.models is not None
        return self.choice.models

    def setting(self, model: str) -> Setting:
        if model not in self._settings:
            found = open_settings(self._config([model]))
            self._settings[model] = found[model, self.choice.data]
        return self._settings[model]

    @property
    def stand_in(self) -> bool:
        found = self.setting(self.models[0])
        return found.model.stand_in or found.data.stand_in

    def kinds(self, few: Sequence[str], *, all_of: Sequence[str] = CORRUPTIONS) -> list[str]:
        """The corruptions that were asked for; else a few where the scale is small, and all otherwise."""
        if self.choice.kinds is not None:
            return self.choice.kinds
        offered = self.setting(self.models[0]).data.kinds
        found = [kind for kind in (few if self.choice.small else all_of) if kind in offered]
        return found or list(offered)

    def images(self, small: int, full: int | None = None) -> int | None:
        return self.choice.images or (small if self.choice.small else full)

    def seeds(self, small: int = 1, full: int = 3) -> list[int]:
        if self.choice.seeds is not None:
            return self.choice.seeds
        return list(range(2023, 2023 + (small if self.choice.small else full)))

    def name_of(self, model: str) -> str:
        return self.setting(model).model.name

    # -- streams -------------------------------------------------------------------------------------------------------

    def streams(
        self,
        trials: Iterable[Trial],
        kinds: Sequence[str],
        *,
        models: Sequence[str] | None = None,
        images: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[tuple[Trial, str, Result]]:
        """(trial, model, result) for every trial, model, corruption and seed that has one; what is missing is run first."""
        asked: list[tuple[Trial, str, Cell]] = []
        settings = {(model, self.choice.data): self.setting(model) for model in models or self.models}
        for one in trials:
            for model in models or self.models:
                config = self._config([model], one, kinds, images, seeds or self.seeds())
                asked += [(one, model, cell) for cell in plan(config, settings)]
        cells = list(dict.fromkeys(cell for _, _, cell in asked))
        families = self._families(cells, settings)
        absent = [tuple(cell for cell in family if self._read(cell) is None) for family in families]
        if missing := [family for family in absent if family]:
            prepare_source(self.store, [cell for family in missing for cell in family], settings)
            self._run(missing, len(cells))
        found = [(one, model, self._read(cell)) for one, model, cell in asked]
        return [(one, model, result) for one, model, result in found if result is not None]

    def _families(self, cells: list[Cell], settings: dict[tuple[str, str], Setting]) -> list[tuple[Cell, ...]]:
        """Which cells run together: streams of single images as a fleet, and on a GPU those of whole batches, too.

        More than in a benchmark: they may differ in the values of hyper-parameters, too, so that a sweep is a fleet.
        """
        mixing = {key: mixes_images(setting.model.network) for key, setting in settings.items()}
        found: dict[Any, list[Cell]] = {}
        for cell in cells:
            alone = (
                mixing[cell.model, cell.data]
                or recipe(cell.method).costly
                or (cell.batch > 1 and self.device.type != "cuda")
            )
            names = tuple((name, None) for name, _ in cell.settings)
            alike = replace(cell, domains=(), kind="", seed=0, settings=names)
            found.setdefault(cell if alone else alike, []).append(cell)
        parts = []
        for group in found.values():
            most = self.choice.together * (4 if group[0].batch == 1 else 1)
            parts += [tuple(group[at : at + most]) for at in range(0, len(group), most)]
        return parts

    def _run(self, missing: list[tuple[Cell, ...]], cells: int) -> None:
        """Families of streams, as the benchmark runs them; what is wrong with one costs no other."""
        summary = Summary(cells, cells - sum(map(len, missing)))
        account = Account(self.store, missing, summary, self.teller)
        self.teller.begin(summary.cells, summary.kept)
        while account.waiting:
            self._hurry()
            family = account.waiting.pop()
            name, content = work(self._workshop, family, partial(account.progress, family))
            getattr(account, name)(family, *content)
        self.failures |= summary.failed

    def _read(self, cell: Cell) -> Result | None:
        return self.store.read(cell.name)

    def _config(
        self,
        models: list[str],
        one: Trial | None = None,
        kinds: Sequence[str] = (),
        images: int | None = None,
        seeds: Sequence[int] = (0,),
    ) -> Config:
        choice, one = self.choice, one or Trial("", "source")
        return Config(
            models=models,
            data=[choice.data],
            kinds=list(kinds),
            severities=[choice.severity],
            scenarios=[one.scenario],
            methods=[one.method],
            guards=[one.guard or "none"],
            seeds=list(seeds),
            images=images,
            batch=one.batch,
            options={"shift.repeats": False} if one.scenario == "shift" else {},
            settings=self.settings_of(one, models[0]),
            calibration=choice.calibration,
            weights=choice.weights,
            statistics=choice.statistics,
            source=choice.source,
            device=choice.device,
            precision=choice.precision,
            threads=choice.threads,
        )

    def settings_of(self, one: Trial, model: str) -> dict[str, Any]:
        """The hyper-parameters of a trial: its own, then what was tuned, then the choice's learning rate."""
        takes = methods()[one.method].hyperparameters
        own = dict(one.settings)
        found = self.rate(model, one.scenario, one.method) if one.tuned else {}
        return {name: value for name, value in (found | own).items() if name in takes}

    def rate(self, model: str, scenario: str, method: str) -> dict[str, Any]:
        """What was tuned for a method; for a scenario that was not, the mixed stream's; else the choice's learning rate."""
        for place in (scenario, "mixed"):
            if (found := self._rates.get((model, place, method))) is not None:
                return dict(found)
        return {"lr": self.choice.lr}

    # -- looking closer than a stream's result does --------------------------------------------------------------------

    def follow(
        self,
        one: Trial,
        model: str,
        kind: str,
        *,
        images: int | None,
        seed: int,
        points: int,
        look: Callable[[Adapter, int], None],
    ) -> None:
        """Run one stream and call `look(adapter, images seen)` before it, at `points` even moments, and at its end."""
        self._hurry()
        config = self._config([model], one, [kind], images, [seed])
        (cell,) = plan(config, {(model, self.choice.data): self.setting(model)})
        prepare_source(self.store, [cell], {(model, self.choice.data): self.setting(model)})
        torch.set_num_threads(self.choice.threads)
        with precision(self.choice.precision, self.device):
            setting, adapter, batches, length = self._workshop.open(cell)
            moments = [round(length * point / points) for point in range(points + 1)]
            seen = 0
            look(adapter, seen)
            due = 1
            for images_, _, _ in batches:
                adapter(setting.model.preprocessing.normalise(images_))
                seen += len(images_)
                if due <= points and seen >= moments[due]:
                    while due <= points and seen >= moments[due]:
                        due += 1
                    look(adapter, seen)

    def adapter(self, one: Trial, model: str) -> Adapter:
        """A fresh adapter."""
        config = self._config([model], one, self.kinds(CORRUPTIONS[:1])[:1], 1, [0])
        key = {(model, self.choice.data): self.setting(model)}
        cell = plan(config, key)[0]
        prepare_source(self.store, [cell], key)
        return self._workshop.open(cell)[1]

    def probe(self, model: str, kind: str, count: int, classes: int | None = None) -> tuple[Tensor, Tensor]:
        """A fixed random part of a domain, normalised and on the device, and its labels; of the first so many classes."""
        setting = self.setting(model)
        domain = setting.data.domain(kind, 0 if setting.data.severities == (0,) else self.choice.severity)
        order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(1))
        if classes is not None:
            order = order[domain.labels[order] < classes]
        numbers = order[:count]
        images, readable = domain.read(numbers, self.device)
        return setting.model.preprocessing.normalise(images), domain.labels[numbers[readable.cpu()]]

    def kept(self, model: str, kind: str) -> Kept:
        """A whole domain, read and corrupted once; the last one that was asked for is at hand."""
        if (model, kind) not in self._kept:
            setting = self.setting(model)
            domain = setting.data.domain(kind, 0 if setting.data.severities == (0,) else self.choice.severity)
            self._kept = {(model, kind): Kept(domain, None, self.device, 4 << 30)}
        return self._kept[model, kind]

    def source(self, model: str, count: int) -> Tensor:
        """Source images, normalised and on the device."""
        setting = self.setting(model)
        images = setting.data.source(count)
        if images is None:
            raise ConfigError(f"{self.choice.data} has no uncorrupted source images; say where they lie with --source")
        return setting.model.preprocessing.normalise(images.to(self.device))

    def timed(self, functions: Mapping[str, Callable[[], object]], rounds: int, until: float = 0.0) -> dict[str, float]:
        """Milliseconds a call of each: medians over rounds in which they take turns; `until` so many seconds, after the third.

        On a CPU it is the process's own computing time, since other work on the machine would else be measured with it.
        """
        clock = time.perf_counter if self.device.type == "cuda" else time.process_time
        found = in_turn(functions, rounds, self.choice.device, until=until, clock=clock)
        return {name: spread(values).middle for name, values in found.items()}

    # -- parts ---------------------------------------------------------------------------------------------------------

    def part(
        self, study: str, name: str, about: dict[str, Any], compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A study's own sub-run: read where it is done, else computed and written whole. `about`: what it depends on."""
        choice = {key: value for key, value in dataclasses.asdict(self.choice).items() if key not in _ELSEWHERE}
        digest = hashlib.sha256(json.dumps([choice, about], sort_keys=True).encode()).hexdigest()[:10]
        path = self.folder / study / "parts" / f"{name.replace('/', '_').replace(' ', '_')}__{digest}.json"
        try:
            found = json.loads(path.read_text())
            if isinstance(found, dict) and found.get("format") == FORMAT:
                return dict(found["content"])
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, KeyError):
            pass
        self._hurry()
        self.teller.part(f"{study} {name}")
        torch.set_num_threads(self.choice.threads)
        with precision(self.choice.precision, self.device):
            content = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"format": FORMAT, "about": about, "content": content})
        # as it will be read
        return dict(json.loads(path.read_text())["content"])

    def _hurry(self) -> None:
        if time.monotonic() > self.until:
            raise TimeOverError

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One process at a time works on a folder. What would stop streams is found before anything is run or written."""
        self._check()
        self.store.prepare()
        with self.store.locked(), registered():
            self._write_plan()
            yield
            self._write_plan()

    def _check(self) -> None:
        """The benchmark's own preflight of models, data and methods: an error for all that would stop a run."""
        config = replace(
            self._config(self.models, kinds=self.choice.kinds or (), images=self.choice.images),
            methods=list(METHODS),
            scenarios=list(dict.fromkeys([*WILD, "mild", *self.choice.scenarios])),
            settings={"lr": self.choice.lr},
        )
        settings, _, findings, _ = preflight(config)
        for finding in findings:
            if finding.level == "warning":
                self.teller.note(finding.text)
        if errors := [finding.text for finding in findings if finding.level == "error"]:
            raise DataError("\n".join(errors))
        self._settings |= {model: setting for (model, _), setting in settings.items()}

    def _write_plan(self) -> None:
        """What makes the folder of streams one that `wildtta report` reads."""
        self.store.write_plan(
            {
                "command": self.choice.command("all", self.folder),
                "config": dataclasses.asdict(self.choice),
                "cells": self.store.finished(),
                "stand_in": self.stand_in,
            }
        )

    def made(self, study: str) -> dict[str, Any]:
        """How the numbers came to be, for a summary."""
        device = self.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else (platform.machine() or "cpu")
        return {
            "command": self.choice.command(study, self.folder),
            "wildtta": wildtta.__version__,
            "torch": torch.__version__,
            "device": f"{device.type} ({name})",
            "precision": self.choice.precision,
            "threads": self.choice.threads,
            "models": {self.name_of(model): self.setting(model).model.digest() for model in self.models},
            "data": self.choice.data.partition(":")[0],
            "severity": self.choice.severity,
            "lr": self.choice.lr,
            "rates": Path(self.choice.rates).name if self.choice.rates else None,
            "stand_in": self.stand_in,
            "failures": self.failures,
        }


class _Workshop(Workshop):
    """One for the models and data that a bench has opened."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.store)
        self._bench = bench

    def _setting(self, cell: Cell) -> Setting:
        return self._bench.setting(cell.model)


_ELSEWHERE = ("models", "kinds", "seeds", "images", "together", "lr", "rates", "scenarios", "costly")
"""Entries of a choice that a part names in `about`, if it depends on them."""


def rates_from(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What `wildtta study tune` chose, by model, scenario and method."""
    try:
        content = json.loads(path.read_text())
        return {(row["model"], row["scenario"], row["method"]): dict(row["settings"]) for row in content["chosen"]}
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file of learning rates {path}; `wildtta study tune` writes one") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a file that `wildtta study tune` wrote: {error!r}") from error


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def average(results: Iterable[Result]) -> dict[str, Any]:
    """The mean accuracy over corruptions and seeds, with the deviation over seeds (n − 1; None for one seed)."""
    columns: dict[str, dict[int, float]] = {}
    for result in results:
        columns.setdefault(result["cell"]["kind"], {})[result["cell"]["seed"]] = float(result["result"]["top1"])
    mean, deviation, seeds = statistic(list(columns.values()))
    return {
        "mean": None if mean is None else rounded(mean),
        "std": None if deviation is None else rounded(deviation),
        "seeds": seeds,
        "streams": sum(map(len, columns.values())),
        "even": len({frozenset(column) for column in columns.values()}) <= 1,
    }


def rounded(value: float | Tensor, digits: int = 4) -> float | None:
    """For a file: a few digits, and None for what is no number."""
    value = float(value)
    return round(value, digits) if math.isfinite(value) else None
