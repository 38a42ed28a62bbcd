"""Read a run folder. What is damaged or foreign is left out and named; it never costs the rest of the report."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

__all__ = ["Along", "Cell", "Run", "RunError", "load_run"]

_FORMAT = 1
MEASURES = (
    "top5",
    "nll",
    "ece",
    "selected",
    "forwards",
    "backwards",
    "diffusion_steps",
    "updates",
    "resets",
    "skipped",
)
"""What a result may hold beside images, unreadable and top1; a number or nothing each."""


class RunError(ValueError):
    """A folder or a file that is not what it should be; the message names it."""


@dataclass(frozen=True)
class Along:
    """What happened along a stream: for each point the images seen so far, and two shares (percent) since the last point."""

    seen: tuple[float, ...] = ()
    top1: tuple[float, ...] = ()
    selected: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One cell of the plan and its result. Numbers that a result does not have are None.

    Attributes:
        settings: hyper-parameters that are not the method's defaults. options: of the scenario, all of them.
        conditions: what else a number depends on, as text by name: the options, the model's weights and statistics, how many
            images there were at most, where and how it was computed. Cells are compared only where these are the same.
        seconds: that the stream took. adapting: that a diffusion model took for its images before, where no other cell had
            made them.
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
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    limit: int | None
    calibration: int | None
    weights: str | None
    statistics: str
    precision: str
    conditions: tuple[tuple[str, str], ...]
    images: int
    unreadable: int
    top1: float
    measures: Mapping[str, float | None]
    by_domain: Mapping[str, float]
    along: Along
    seconds: float | None
    adapting: float | None
    memory: float | None
    provenance: Mapping[str, Any]
    stand_in: bool

    @property
    def overrides(self) -> str:
        """The hyper-parameters that differ from the method's own, as one line."""
        return ", ".join(overrides(self.settings))

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two files of the same identity are the same cell."""
        place = (self.model, self.data, self.scenario, self.reset, self.domains, self.kind, self.severity)
        return (*place, self.method, self.guard, self.overrides, self.seed, self.batch, self.conditions)


@dataclass(frozen=True)
class Run:
    """A run folder as read.

    Attributes:
        command: what was typed.
        config: the plan's, as it stands there.
        planned: the names of the plan's cells; None where it does not say.
        missing: those of them that have no result yet, or none that can be read.
        problems: what was left out or is odd, one sentence each, naming the file.
        gallery: the sample strips by kind of corruption.
        adapted: strips of images as they were, as they came and as a diffusion model gave them back, by kind and severity.
    """

    path: Path
    command: str
    config: Mapping[str, Any]
    planned: tuple[str, ...] | None
    cells: tuple[Cell, ...]
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    gallery: Mapping[str, Path] = field(default_factory=dict)
    adapted: Mapping[str, Path] = field(default_factory=dict)
    stand_in: bool = False


def load_run(path: str | Path) -> Run:
    """Read a run folder, whole or still growing.

    Raises:
        RunError: where the folder is missing or holds neither a plan nor cells.
    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}; give the folder that `wildtta bench` wrote")
    problems: list[str] = []
    plan: dict[str, Any] = {}
    if (path / "plan.json").is_file():
        try:
            plan = _document(path / "plan.json")
        except RunError as error:
            problems.append(f"{error}; the command and the number of planned cells are not known")
    files = sorted(file for file in (path / "cells").glob("*.json") if not file.name.startswith("."))
    if not plan and not files:
        reason = f": {problems[0]}" if problems else "; give the folder that `wildtta bench` wrote"
        raise RunError(f"{path} is not a run folder: it has neither a plan.json nor cells/*.json{reason}")
    stand_in = plan.get("stand_in") is True
    cells: dict[tuple[Any, ...], Cell] = {}
    read: set[str] = set()
    for file in files:
        try:
            cell = _cell(file, stand_in)
        except RunError as error:
            problems.append(f"{error}; it is left out")
            continue
        if cell.identity in cells:
            problems.append(f"{file} repeats a cell that another file has; it is left out")
            continue
        cells[cell.identity] = cell
        read.add(file.stem)
    config = plan.get("config")
    planned = _names(plan.get("cells"))
    return Run(
        path=path,
        command=str(plan.get("command", "")),
        config=config if isinstance(config, dict) else {},
        planned=planned,
        cells=tuple(cells.values()),
        missing=tuple(name for name in planned or () if name not in read),
        problems=tuple(
            problem.replace(f"{path}{os.sep}", "") for problem in [*problems, *_disagreements(cells.values())]
        ),
        gallery=_strips(path / "gallery"),
        adapted=_strips(path / "gallery" / "adapted"),
        stand_in=stand_in or any(cell.stand_in for cell in cells.values()),
    )


def _strips(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in sorted(folder.glob("*.png")) if not file.name.startswith(".")}


def _names(value: Any) -> tuple[str, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else None


def _document(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RunError(f"{file} is not a text file") from error
    except json.JSONDecodeError as error:
        raise RunError(f"{file} is not complete JSON ({error.msg}, line {error.lineno})") from error
    except (OSError, RecursionError) as error:
        raise RunError(f"{file} cannot be read ({error})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise RunError(f'{file} was not written by wildtta: it has no "format"')
    if content["format"] != _FORMAT:
        raise RunError(f"{file} has format {content['format']!r}, this version of wildtta reads format {_FORMAT}")
    return content


def _cell(file: Path, stand_in: bool) -> Cell:
    """A cell, with every value of the type that it should have."""
    content = _document(file)
    cell, result = _Reader(file, content, "cell"), _Reader(file, content, "result")
    measured, provenance = _Reader(file, content, "measured", {}), _Reader(file, content, "provenance", {})
    domains = cell.take("domains", list)
    if not domains or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _is_count(pair[1])
        for pair in domains
    ):
        raise RunError(f"{file}: cell.domains must be pairs of a name and a severity, but is {_short(domains)}")
    top1 = result.number("top1")
    if top1 is None or not 0 <= top1 <= 100:
        raise RunError(f"{file}: result.top1 must be a percentage, but is {_short(result.content.get('top1'))}")
    by_domain = result.take("domains", dict, {})
    return Cell(
        model=cell.take("model", str),
        data=cell.take("data", str),
        scenario=cell.take("scenario", str),
        reset=cell.take("reset", bool, True),
        domains=tuple((name, severity) for name, severity in domains),
        kind=cell.take("kind", str),
        severity=cell.count("severity"),
        method=cell.take("method", str),
        guard=cell.take("guard", str, None),
        seed=cell.count("seed"),
        batch=cell.count("batch"),
        settings=cell.take("settings", dict, {}),
        options=cell.take("options", dict, {}),
        limit=cell.count("images", None),
        calibration=cell.count("calibration", None),
        weights=cell.take("weights", str, None),
        statistics=cell.take("statistics", str, "own"),
        precision=cell.take("precision", str, "float32"),
        conditions=_conditions(cell),
        images=result.count("images"),
        unreadable=result.count("unreadable", 0),
        top1=top1,
        measures={name: result.number(name) for name in MEASURES},
        by_domain={
            name: float(entry["top1"])
            for name, entry in by_domain.items()
            if isinstance(entry, dict) and _is_number(entry.get("top1"))
        },
        along=_along(result.take("along", dict, {})),
        seconds=measured.number("seconds"),
        adapting=_Reader(file, measured.content, "adapted", {}).number("seconds"),
        memory=measured.number("peak_memory_mib"),
        provenance=provenance.content,
        stand_in=provenance.take("stand_in", bool, stand_in),
    )


_CONDITIONS = ("weights", "statistics", "images", "calibration", "source", "device", "precision", "threads")


def _conditions(cell: _Reader) -> tuple[tuple[str, str], ...]:
    values = {**cell.take("options", dict, {}), **{name: cell.content.get(name) for name in _CONDITIONS}}
    return tuple((name, plain(value)) for name, value in values.items())


_NO_DEFAULT: Any = object()


class _Reader:
    """One object of a cell's file; what it does not have, or has wrong, is an error that names file and value."""

    def __init__(self, file: Path, document: dict[str, Any], name: str, default: Any = None) -> None:
        content = document.get(name, default)
        if not isinstance(content, dict):
            raise RunError(f"{file} has no object {name!r}, so it is not a cell of a run")
        self.file, self.name, self.content = file, name, content

    def take(self, key: str, kind: type, default: Any = _NO_DEFAULT) -> Any:
        value = self.content.get(key)
        if value is None and default is not _NO_DEFAULT:
            return default
        if not isinstance(value, kind):
            raise RunError(f"{self.file}: {self.name}.{key} must be a {kind.__name__}, but is {_short(value)}")
        return value

    def count(self, key: str, default: Any = _NO_DEFAULT) -> Any:
        value = self.take(key, int, default)
        if value is not default and not _is_count(value):
            raise RunError(f"{self.file}: {self.name}.{key} must be a whole number from 0 on, but is {_short(value)}")
        return value

    def number(self, key: str) -> float | None:
        """A finite number; None where there is none (NaN, say, of a stream that collapsed)."""
        value = self.content.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RunError(f"{self.file}: {self.name}.{key} must be a number, but is {_short(value)}")
        return float(value) if _is_number(value) else None


def _along(content: dict[str, Any]) -> Along:
    """The points along the stream; none where they do not fit together."""
    columns = [content.get(name) for name in ("seen", "top1", "selected")]
    lists = [column if isinstance(column, list) else [] for column in columns]
    numbers = [tuple(float(value) if _is_number(value) else math.nan for value in column) for column in lists]
    seen, top1, selected = numbers
    if len(seen) != len(top1) or any(not later > earlier for earlier, later in pairwise(seen)):
        return Along()
    return Along(seen, top1, tuple(100 * share for share in selected) if len(selected) == len(seen) else ())


def _disagreements(cells: Any) -> list[str]:
    """Cells of one run that were made with different things, so that they should not be compared."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for what in ("wildtta", "torch", "device", "precision"):
            found.setdefault((what, ""), set()).add(str(cell.provenance.get(what)))
        model = cell.model if cell.weights is None else f"{cell.model} with {cell.weights}"
        found.setdefault(("weights", f" of {model}"), set()).add(str(cell.provenance.get("model_digest")))
        place = f" of {cell.data} (for {cell.model})"
        found.setdefault(("images", place), set()).add(str(cell.provenance.get("data_digest")))
    return [
        f"the cells were not all made with the same {what}{whose}: {', '.join(sorted(values))}"
        for (what, whose), values in found.items()
        if len(values) > 1
    ]


def _is_number(value: Any) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Hyper-parameters as they are written."""
    return [f"{name}={plain(value)}" for name, value in sorted(settings.items())]


def plain(value: Any) -> str:
    """A value of a file as people write it."""
    if value is None:
        return "default"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True).removesuffix(".0")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
