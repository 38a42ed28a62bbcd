"""Cells that belong in one comparison, and what is computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from wildtta.report import names
from wildtta.report.run import Cell, Run

__all__ = ["Comparison", "Label", "Samples", "comparisons", "statistic"]

Samples = Mapping[str, Mapping[int, float]]
"""Numbers by column and by seed."""

_ONE_STREAM = ("mixed", "continual", "gradual")  # scenarios whose corruptions meet in one stream


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
        data_name: the data set as a heading: without its path where that is not needed to tell two apart.
        labels: all rows of the run, whether they have cells here already or not.
        kinds: all columns, in the paper's order.
        seeds: how many the plan has.
    """

    model: str
    data: str
    data_name: str
    scenario: str
    reset: bool
    batch: int
    severity: int
    cells: tuple[Cell, ...]
    labels: tuple[Label, ...]
    kinds: tuple[str, ...]
    seeds: int

    @property
    def setting(self) -> str:
        """The scenario and what else tells this comparison from the run's others, but for the model and the severity."""
        reset = "" if self.reset or self.scenario in _ONE_STREAM else ", no reset"
        return f"{names.scenario_name(self.scenario)}{reset} — {self.data_name}, batch {self.batch}"

    @property
    def at_severity(self) -> str:
        return f", severity {self.severity}" if self.severity else ""

    @property
    def stand_in(self) -> bool:
        return any(cell.stand_in for cell in self.cells)

    @cached_property
    def by_label(self) -> dict[Label, list[Cell]]:
        found: dict[Label, list[Cell]] = {label: [] for label in self.labels}
        for cell in self.cells:
            found[_label(cell)].append(cell)
        return found

    def accuracy(self, label: Label) -> Samples:
        """Accuracy by corruption and seed. A stream of several corruptions gives the accuracy on each of them."""
        found: dict[str, dict[int, float]] = {}
        for cell in self.by_label[label]:
            for kind, top1 in _accuracies(cell).items():
                found.setdefault(kind, {})[cell.seed] = top1
        return found

    def overall(self, label: Label) -> dict[int, float]:
        """Accuracy over the whole stream by seed, for streams of several corruptions."""
        return {cell.seed: cell.top1 for cell in self.by_label[label]}

    @property
    def source(self) -> Label | None:
        """The row of the model that does not adapt."""
        plain = Label("source")
        return plain if plain in self.labels else None


def comparisons(run: Run) -> list[Comparison]:
    """The run's cells by data, scenario, severity and model, in the plan's order."""
    labels = _labels(run)
    data_names = _data_names({cell.data for cell in run.cells})
    groups: dict[tuple[str, str, bool, int, int, str], list[Cell]] = {}
    for cell in run.cells:
        key = (cell.data, cell.scenario, cell.reset, cell.batch, cell.severity, cell.model)
        groups.setdefault(key, []).append(cell)
    data, scenarios, models = (_planned(run, what) for what in ("data", "scenarios", "models"))

    def order(key: tuple[str, str, bool, int, int, str]) -> tuple[object, ...]:
        return (_place(key[0], data), _place(key[1], scenarios), not key[2], key[3], -key[4], _place(key[5], models))

    return [
        Comparison(
            model=key[5],
            data=key[0],
            data_name=data_names[key[0]],
            scenario=key[1],
            reset=key[2],
            batch=key[3],
            severity=key[4],
            cells=tuple(groups[key]),
            labels=labels,
            kinds=_kinds(run, groups[key]),
            seeds=_seeds(run),
        )
        for key in sorted(groups, key=order)
    ]


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


def _label(cell: Cell) -> Label:
    return Label(cell.method, cell.guard, cell.overrides)


def _accuracies(cell: Cell) -> Mapping[str, float]:
    return {cell.kind: cell.top1} if len(cell.domains) == 1 else cell.by_domain


def _planned(run: Run, what: str) -> list[str]:
    """A list of the plan's configuration, as far as it is one of names."""
    value = run.config.get(what)
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _place(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _labels(run: Run) -> tuple[Label, ...]:
    """Every row that some cell has, and the plan's methods that have no cell yet."""
    found = set(map(_label, run.cells))
    planned = _planned(run, "methods")
    found |= {Label(method) for method in planned if method not in {label.method for label in found}}

    def order(label: Label) -> tuple[object, ...]:
        return (names.method_order(label.method), _place(label.method, planned), label.guard or "", label.overrides)

    return tuple(sorted(found, key=order))


def _kinds(run: Run, cells: Iterable[Cell]) -> tuple[str, ...]:
    """The columns of these cells, and the plan's where it is its corruptions that they are of."""
    found = [kind for cell in cells for kind in _accuracies(cell)]
    planned = _planned(run, "kinds")
    return tuple(names.in_order([*planned, *found] if set(planned) & set(found) else found))


def _seeds(run: Run) -> int:
    planned = run.config.get("seeds")
    return len(set(planned)) if isinstance(planned, list) else len({cell.seed for cell in run.cells})


def _data_names(specs: set[str]) -> dict[str, str]:
    """Headings for data sets: the layout, or layout and path where two are of the same layout."""
    layouts = [spec.partition(":")[0] for spec in specs]
    return {spec: layout if layouts.count(layout) == 1 else spec for spec, layout in zip(specs, layouts, strict=True)}
