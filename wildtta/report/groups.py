"""Cells that belong in one comparison, and what is computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, NamedTuple

from wildtta.bench.plan import UNGUARDED
from wildtta.recipes import methods
from wildtta.report import names
from wildtta.report.run import Cell, Run, overrides, plain
from wildtta.streams import SCENARIOS

__all__ = ["Comparison", "Label", "Samples", "comparisons", "rows", "statistic"]

Samples = Mapping[str, Mapping[int, float]]
"""Numbers by column and by seed."""


@dataclass(frozen=True)
class Label:
    """A row: a method with what was changed about it."""

    method: str
    guard: str | None = None
    overrides: str = ""

    def __str__(self) -> str:
        changes = [*([f"{self.guard} guard"] if self.guard else []), *([self.overrides] if self.overrides else [])]
        return names.method_name(self.method) + (f" ({', '.join(changes)})" if changes else "")


@dataclass(frozen=True)
class Comparison:
    """The cells of one model on one data set in one scenario at one severity: methods × corruptions × seeds.

    Attributes:
        model_name: the model as a heading.
        setting: the heading: scenario, data, batch, and what else tells these cells from the run's others or from the usual,
            but for the model and the severity.
        labels: all rows of the run, whether they have cells here already or not; but for those that were run on another
            number of images alone.
        kinds: all columns, in the paper's order.
        seeds: how many the plan has.
        common: hyper-parameters that every method of the run was given alike; the heading names them, not each row.
    """

    model: str
    model_name: str
    scenario: str
    setting: str
    severity: int
    cells: tuple[Cell, ...]
    labels: tuple[Label, ...]
    kinds: tuple[str, ...]
    seeds: int
    common: frozenset[str] = frozenset()

    @property
    def at_severity(self) -> str:
        return f", severity {self.severity}" if self.severity else ""

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The columns that an average is over: all but clean images, if there are others."""
        return tuple(kind for kind in self.kinds if kind != names.CLEAN) or self.kinds

    @property
    def stand_in(self) -> bool:
        return any(cell.stand_in for cell in self.cells)

    @cached_property
    def by_label(self) -> dict[Label, list[Cell]]:
        found: dict[Label, list[Cell]] = {label: [] for label in self.labels}
        for cell in self.cells:
            found[_label(cell, self.common)].append(cell)
        return found

    def cells_of(self, label: Label) -> list[Cell]:
        """None for a row that has no place here."""
        return self.by_label.get(label, [])

    def accuracy(self, label: Label) -> Samples:
        """Accuracy by corruption and seed. A stream of several corruptions gives the accuracy on each of them."""
        found: dict[str, dict[int, float]] = {}
        for cell in self.cells_of(label):
            for kind, top1 in _accuracies(cell).items():
                found.setdefault(kind, {})[cell.seed] = top1
        return found

    def overall(self, label: Label) -> dict[int, float]:
        """Accuracy over the whole stream by seed, for streams of several corruptions."""
        return {cell.seed: cell.top1 for cell in self.cells_of(label)}

    @property
    def source(self) -> Label | None:
        """The row of the model that does not adapt; a guard around it changes nothing."""
        return next((label for label in self.labels if label.method == "source"), None)


class _Key(NamedTuple):
    """What the cells of a comparison share."""

    data: str
    scenario: str
    reset: bool
    batch: int
    conditions: tuple[tuple[str, str], ...]
    severity: int
    model: str


def comparisons(run: Run) -> list[Comparison]:
    """The run's cells by data, scenario, severity and model, in the plan's order."""
    common = _common(run)
    labels = _labels(run, common)
    groups: dict[_Key, list[Cell]] = {}
    limits: dict[Label, set[str]] = {}
    for cell in run.cells:
        place = (cell.data, cell.scenario, cell.reset, cell.batch, cell.conditions, cell.severity, cell.model)
        groups.setdefault(_Key(*place), []).append(cell)
        limits.setdefault(_label(cell, common), set()).add(dict(cell.conditions)["images"])
    data, scenarios, models = (_planned(run, what) for what in ("data", "scenarios", "models"))

    def order(key: _Key) -> tuple[object, ...]:
        first = (_place(key.data, data), _place(key.scenario, scenarios), not key.reset, key.batch, key.conditions)
        return (*first, -key.severity, _place(key.model, models))

    settings, model_names = _settings(groups), names.model_names(cell.model for cell in run.cells)
    return [
        Comparison(
            model=key.model,
            model_name=model_names[key.model],
            scenario=key.scenario,
            setting=", ".join([settings[key], *sorted(common)]),
            severity=key.severity,
            cells=tuple(groups[key]),
            labels=tuple(label for label in labels if _belongs(limits.get(label), key)),
            kinds=_kinds(run, key.data),
            seeds=_seeds(run),
            common=common,
        )
        for key in sorted(groups, key=order)
    ]


def _belongs(limits: set[str] | None, key: _Key) -> bool:
    """Whether a row that has cells with these limits of images may have some in this comparison."""
    return limits is None or dict(key.conditions)["images"] in limits


def _settings(keys: Iterable[_Key]) -> dict[_Key, str]:
    """The headings. A data set's path, and a condition, is named where it tells two apart or is not the usual one."""
    specs = {key.data for key in keys}
    layouts = [spec.partition(":")[0] for spec in specs]
    found = {}
    for key in keys:
        alike = [dict(other.conditions) for other in keys if other.scenario == key.scenario]
        usual = _usual(key.scenario)
        remarks = [
            f"{name} {value}"
            for name, value in key.conditions
            if usual.get(name, value) != value or any(other.get(name) != value for other in alike)
        ]
        layout = key.data.partition(":")[0]
        where = [layout if layouts.count(layout) == 1 else key.data, f"batch {key.batch}", *remarks]
        own = SCENARIOS[key.scenario].reset if key.scenario in SCENARIOS else True
        reset = "" if key.reset == own else ", with a reset" if key.reset else ", no reset"
        found[key] = f"{names.scenario_name(key.scenario)}{reset} — {', '.join(where)}"
    return found


def _usual(scenario: str) -> dict[str, str]:
    options = SCENARIOS[scenario].settings() if scenario in SCENARIOS else {}
    values = {**options, "weights": None, "statistics": "own", "precision": "float32"}
    return {name: plain(value) for name, value in values.items()}


def rows(together: Iterable[Comparison]) -> tuple[Label, ...]:
    """All rows of some comparisons."""
    found = dict.fromkeys(label for comparison in together for label in comparison.labels)
    return tuple(sorted(found, key=lambda label: names.method_order(label.method)))


def statistic(columns: Sequence[Mapping[int, float]]) -> tuple[float | None, float | None, int]:
    """Mean over seeds, standard deviation over seeds (n − 1) and number of seeds, of the average of some columns.

    There is no average where a column has nothing, and no deviation with fewer than two seeds that have every column.
    """
    if not columns or not all(columns):
        return None, None, 0
    seeds = set.intersection(*(set(column) for column in columns))
    averages = [fmean(column[seed] for column in columns) for seed in sorted(seeds)]
    mean = fmean(fmean(column.values()) for column in columns)
    return mean, stdev(averages) if len(averages) > 1 else None, len(averages)


def _common(run: Run) -> frozenset[str]:
    """The changes that all cells share whose method has any of the hyper-parameters that were changed.

    A costly method is asked only about those that it has and that nothing is said of for it: others would fill all rows
    with what is common to the rest.
    """
    names = {name for cell in run.cells for name in cell.settings}
    asked = [cell for cell in run.cells if cell.settings or _takes(cell.method, names)]
    usual = [set(overrides(cell.settings)) for cell in asked if not _costly(cell.method)]
    if not usual or len({cell.method for cell in run.cells}) <= 2:
        return frozenset()
    found = set.intersection(*usual)
    for cell in asked:
        if _costly(cell.method):
            found = {change for change in found if not _silent(cell, change.partition("=")[0])}
    return frozenset(found)


def _silent(cell: Cell, name: str) -> bool:
    """Whether a cell's method has a hyper-parameter and the cell leaves it at its default."""
    return name not in cell.settings and _takes(cell.method, {name})


def _costly(method: str) -> bool:
    return method in methods() and methods()[method].costly


def _takes(method: str, names: set[str]) -> bool:
    """Whether a method has one of these hyper-parameters; what is not known here may have any."""
    return method not in methods() or not names.isdisjoint(methods()[method].hyperparameters)


def _label(cell: Cell, common: frozenset[str]) -> Label:
    return Label(cell.method, cell.guard, _without(overrides(cell.settings), common))


def _without(changes: Iterable[str], common: frozenset[str]) -> str:
    return ", ".join(change for change in changes if change not in common)


def _accuracies(cell: Cell) -> Mapping[str, float]:
    return {cell.kind: cell.top1} if len(cell.domains) == 1 else cell.by_domain


def _planned(run: Run, what: str) -> list[str]:
    """A list of the plan's configuration, as far as it is one of names."""
    value = run.config.get(what)
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _place(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _labels(run: Run, common: frozenset[str]) -> tuple[Label, ...]:
    """Every row that some cell has, and the plan's that have no cell yet."""
    found = {_label(cell, common) for cell in run.cells}
    there = {(label.method, None if label.method in UNGUARDED else label.guard) for label in found}
    planned = _planned(run, "methods")
    for method in planned:
        for guard in _planned(run, "guards") or ["none"]:
            own = None if guard == "none" or method in UNGUARDED else guard
            row = Label(method, own, _without(_planned_overrides(run, method), common))
            found |= {row} if (row.method, row.guard) not in there else set()

    def order(label: Label) -> tuple[object, ...]:
        return (names.method_order(label.method), _place(label.method, planned), label.guard or "", label.overrides)

    return tuple(sorted(found, key=order))


def _planned_overrides(run: Run, method: str) -> list[str]:
    """The hyper-parameters that the plan gives to a method, for it alone ("recap.tau") or for all that have them ("lr")."""
    given = run.config.get("settings")
    takes = methods()[method].hyperparameters if method in methods() else {}
    own: dict[str, Any] = {}
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]) if isinstance(given, dict) else []:
        owner, _, name = str(key).rpartition(".")
        if owner == method or (not owner and name in takes):
            own[name] = value
    return overrides(own)


def _kinds(run: Run, data: str) -> tuple[str, ...]:
    """The columns: every kind that some cell on these data has, and the plan's where it names any of them."""
    found = {kind for cell in run.cells if cell.data == data for kind in _accuracies(cell)}
    planned = _planned(run, "kinds")
    return tuple(names.in_order([*planned, *sorted(found)] if found & set(planned) else sorted(found)))


def _seeds(run: Run) -> int:
    planned = run.config.get("seeds")
    return len(set(planned)) if isinstance(planned, list) else len({cell.seed for cell in run.cells})
