"""The plan: which cells a benchmark is made of. A cell is one stream of images through one adapter."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from wildtta.bench.config import Config, ConfigError
from wildtta.data import Data, DataError, open_data
from wildtta.models import Model, load_model
from wildtta.recipes import recipe
from wildtta.runners.together import mixes_images
from wildtta.streams import SCENARIOS

__all__ = ["UNGUARDED", "Cell", "Setting", "families", "fit", "open_settings", "plan"]

UNGUARDED = ("source", "memo", "dda")
"""What learns nothing that lasts: a guard around these changes no number, so they are run without."""

_MOST = 64  # streams in a fleet


@dataclass(frozen=True)
class Cell:
    """One stream of images through one adapter: all that its result depends on.

    Attributes:
        domains: the (kind, severity) of each domain of the stream.
        kind: of a stream of one kind; "all" where there are several.
        options: of the scenario. settings: hyper-parameters that are not the method's defaults.
    """

    model: str
    data: str
    scenario: str
    reset: bool
    domains: tuple[tuple[str, int], ...]
    kind: str
    severity: int
    method: str
    guard: str | None
    seed: int
    batch: int
    images: int | None
    options: tuple[tuple[str, Any], ...]
    settings: tuple[tuple[str, Any], ...]
    calibration: int
    weights: str | None
    statistics: str
    source: str | None
    device: str
    precision: str
    threads: int

    @property
    def name(self) -> str:
        """A file name: what a person looks for, and a hash of all the rest."""
        parts = (self.model, self.data, self.scenario, f"{self.kind}-{self.severity}", self.method, self.guard or "")
        readable = "__".join(
            re.sub(r"[^A-Za-z0-9.+-]+", "_", part.rstrip("/").split("/")[-1])[:60] for part in parts if part
        )
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]
        return f"{readable}__{self.seed}__{digest}"

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a result file."""
        return {
            **asdict(self),
            "domains": [list(domain) for domain in self.domains],
            "options": dict(self.options),
            "settings": dict(self.settings),
        }


class _Setting(NamedTuple):
    model: Model
    data: Data


class Setting(_Setting):
    """A model with data that fit it; where the data have only some of its classes, its head is cut down to them."""

    @cached_property
    def digests(self) -> tuple[str, str]:
        """Of the weights and of the images, computed once: of large sets that takes a while."""
        return self.model.digest(), self.data.digest()


def open_settings(config: Config) -> dict[tuple[str, str], Setting]:
    """Every model × data of a benchmark, opened and checked against one another."""
    settings = {}
    for spec in config.models:
        model = load_model(spec, weights=config.weights, statistics=config.statistics)
        for place in config.data:
            settings[spec, place] = fit(model, place, config.source)
    return settings


def fit(model: Model, place: str, source: str | None) -> Setting:
    data = open_data(place, model, source=source)
    return Setting(model if data.outputs is None else model.restricted(data.outputs), data)


def plan(config: Config, settings: Mapping[tuple[str, str], Setting]) -> list[Cell]:
    """All cells, in an order in which neighbours share their images."""
    cells = []
    for place, spec, severity, scenario in itertools.product(
        config.data, config.models, config.severities, config.scenarios
    ):
        found, data = SCENARIOS[scenario], settings[spec, place].data
        severity = 0 if data.severities == (0,) else severity
        try:
            streams = found.streams(config.kinds_of(data.kinds), severity, config.reset)
            options = found.settings(**config.options_of(scenario))
        except DataError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"scenario {scenario!r}: {error}") from error
        for stream, seed, (method, images), guard in itertools.product(
            streams, config.seeds, _with_limits(config), config.guards
        ):
            kinds_here = tuple(dict.fromkeys(kind for kind, _ in stream))
            cells.append(
                Cell(
                    model=spec,
                    data=place,
                    scenario=scenario,
                    reset=found.reset if config.reset is None else config.reset,
                    domains=stream,
                    kind=kinds_here[0] if len(kinds_here) == 1 else "all",
                    severity=severity,
                    method=method,
                    guard=None if guard == "none" or method in UNGUARDED else guard,
                    seed=seed,
                    batch=config.batch or found.batch,
                    images=images,
                    options=tuple(options.items()),
                    settings=tuple(config.settings_of(method).items()),
                    calibration=config.calibration,
                    weights=config.weights,
                    statistics=config.statistics,
                    source=config.source,
                    device=config.device,
                    precision=config.precision,
                    threads=config.threads,
                )
            )
    cells = list(dict.fromkeys(cells))  # without severities, or with guards that change nothing, some are the same
    order = {kind: place for place, kind in enumerate(dict.fromkeys(cell.domains for cell in cells))}
    return sorted(cells, key=lambda cell: (config.data.index(cell.data), order[cell.domains]))


def _with_limits(config: Config) -> list[tuple[str, int | None]]:
    """The methods, and how many images of each corruption they get."""
    few = [count for count in (config.images, config.sample) if count is not None]
    costly = [method for method in config.methods if config.sample is not None and recipe(method).costly]
    found = [(method, min(few) if method in costly else config.images) for method in config.methods]
    return [*found, ("source", min(few))] if costly and "source" in config.methods else found


def families(cells: Sequence[Cell], settings: Mapping[tuple[str, str], Setting]) -> list[tuple[Cell, ...]]:
    """Which cells run together, as one fleet: those of single images that differ in their images or their seed alone.

    A costly method's go alone: an image of theirs is work enough for the device.
    They depend on the plan and not on what is done already, so that a run which was stopped ends with the same numbers. Of a
    family that has some results already only the rest is run: a stream's numbers depend on its company by rounding alone.
    """
    found: dict[Cell, list[Cell]] = {}
    mixing = {key: mixes_images(setting.model.network) for key, setting in settings.items()}
    for cell in cells:
        alone = cell.batch > 1 or mixing[cell.model, cell.data] or recipe(cell.method).costly
        found.setdefault(cell if alone else replace(cell, domains=(), kind="", seed=0), []).append(cell)
    return [tuple(group[start : start + _MOST]) for group in found.values() for start in range(0, len(group), _MOST)]
