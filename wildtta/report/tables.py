"""From a run to its tables: the paper's, and a smaller one of the other measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from wildtta.corruptions import CORRUPTIONS
from wildtta.report import names, published
from wildtta.report.groups import Comparison, Label, comparisons, statistic
from wildtta.report.groups import rows as rows_of
from wildtta.report.run import Cell, Run
from wildtta.report.table import Column, Row, Table, Value, ranked

__all__ = ["STAND_IN", "tables"]

STAND_IN = "Stand-in: the embedded glyphs are for trying the tool. These numbers say nothing about photographs."


def tables(run: Run) -> list[Table]:
    """An overview; then for each setting the tables of accuracy, one a model and severity, and those of the other measures.

    >>> for table in tables(load_run("runs/demo")):  # doctest: +SKIP
    ...     rich.print(table)
    """
    found = comparisons(run)
    result = [_overview(found)] if len(found) > 1 else []
    for _, group in groupby(found, key=lambda comparison: comparison.setting):
        together = list(group)
        if together[0].scenario == "mixed":
            result.append(_mixed(together))
        else:
            result += [_accuracy(comparison) for comparison in together]
        result += [_measures(comparison) for comparison in together]
    return result


Numbers = Callable[[Label], Value]
"""A column of a table: the value of each row."""


def _overview(found: list[Comparison]) -> Table:
    """Methods × comparisons: what the other tables have in their last column, side by side."""
    scenarios = [scenario for _, scenario in {(comparison.setting, comparison.scenario) for comparison in found}]
    several = len({comparison.severity for comparison in found}) > 1
    columns: list[tuple[Column, Numbers]] = []
    for comparison in found:
        short = names.scenario_in_short(comparison.scenario)
        group = short if scenarios.count(comparison.scenario) == 1 else comparison.setting
        name = comparison.model_name + (f", {comparison.severity}" if several and comparison.severity else "")
        full = f"{comparison.setting}: {comparison.model_name}{comparison.at_severity}"
        columns.append((Column(name, group, full=full), _average_of(comparison)))
    table = _table("Overview. Accuracy (%), averaged over the corruptions", found, columns)
    return replace(table, kind="overview", section="Overview")


def _average_of(comparison: Comparison) -> Numbers:
    mixed = comparison.scenario == "mixed"
    return _overall([comparison]) if mixed else _of_kinds(comparison, list(comparison.corruptions))


def _accuracy(comparison: Comparison) -> Table:
    """Methods × corruptions, and their average over all corruptions but clean images."""
    columns: list[tuple[Column, Numbers]] = [
        (Column(names.short(kind), names.family(kind), full=names.title(kind)), _of_kinds(comparison, [kind]))
        for kind in comparison.kinds
    ]
    if len(comparison.corruptions) > 1:
        columns.append((Column("Average", full="average over the corruptions"), _average_of(comparison)))
    return _table(
        f"{comparison.setting}: {comparison.model_name}{comparison.at_severity}. Accuracy (%)", [comparison], columns
    )


def _of_kinds(comparison: Comparison, kinds: list[str]) -> Numbers:
    def value(label: Label) -> Value:
        samples = comparison.accuracy(label)
        mean, std, seeds = statistic([samples.get(kind, {}) for kind in kinds])
        return Value(mean, std, seeds, seeds < comparison.seeds, _paper(comparison, label, kinds))

    return value


def _mixed(together: list[Comparison]) -> Table:
    """Methods × (model, severity); with several severities also each model's average over them."""
    columns: list[tuple[Column, Numbers]] = []
    models = list(dict.fromkeys(comparison.model_name for comparison in together))
    for model in models:
        own = [comparison for comparison in together if comparison.model_name == model]
        for comparison in own:
            name = f"Severity {comparison.severity}" if comparison.severity else "Accuracy"
            columns.append((Column(name, model), _overall([comparison])))
        if len(own) > 1:
            columns.append((Column("Average", model, full="average over the severities"), _overall(own)))
    return _table(f"{together[0].setting}. Accuracy (%)", together, columns)


def _overall(together: list[Comparison]) -> Numbers:
    first = together[0]

    def value(label: Label) -> Value:
        mean, std, seeds = statistic([comparison.overall(label) for comparison in together])
        if len(together) == 1:
            paper = _paper(first, label, [])
        else:
            cells = [cell for comparison in together for cell in comparison.cells_of(label)]
            paper = _paper_average(cells) if {cell.severity for cell in cells} == {4, 5} else None
        return Value(mean, std, seeds, seeds < first.seeds, paper)

    return value


def _paper(comparison: Comparison, label: Label, kinds: list[str]) -> float | None:
    """The paper's figure for some kinds (none: for streams of all of them), if the cells are the paper's."""
    cells = [cell for cell in comparison.cells_of(label) if not kinds or cell.kind in kinds]
    if len(kinds) > 1:
        return _paper_average(cells) if kinds == list(CORRUPTIONS) else None
    found = {published.figure(cell) for cell in cells}
    return found.pop() if len(found) == 1 else None


def _paper_average(cells: list[Cell]) -> float | None:
    found = {published.average(cell) for cell in cells}
    return found.pop() if len(found) == 1 else None


def _table(title: str, together: list[Comparison], columns: list[tuple[Column, Numbers]]) -> Table:
    first = together[0]
    labels = rows_of(together)
    plain = next((label for label in labels if label.method == "source"), None)
    grid = []
    for column, numbers in columns:
        values = [numbers(label) for label in labels]
        source = values[labels.index(plain)].mean if plain else None
        grid.append(ranked([_against(value, source) for value in values], column.digits))
    rows = tuple(
        Row(str(label), label.method, tuple(column[place] for column in grid)) for place, label in enumerate(labels)
    )
    return Table(
        title=title,
        kind="accuracy",
        section=first.setting,
        columns=tuple(column for column, _ in columns),
        rows=rows,
        notes=(*_notes(together), *_seed_notes(rows), *_paper_notes(rows, together)),
        stand_in=any(comparison.stand_in for comparison in together),
    )


def _against(value: Value, source: float | None) -> Value:
    if value.mean is None:
        return Value()
    return value if source is None else replace(value, gain=value.mean - source)


def _notes(together: list[Comparison]) -> list[str]:
    return [STAND_IN] if any(comparison.stand_in for comparison in together) else []


def _seed_notes(rows: Sequence[Row]) -> list[str]:
    partial = any(value.partial and value.mean is not None for row in rows for value in row.values)
    return ["† of fewer seeds than the plan has, so far."] if partial else []


def _paper_notes(rows: Sequence[Row], together: list[Comparison]) -> list[str]:
    """What must be known to read the paper's figures beside one's own; or why they are not there."""
    cells = [cell for comparison in together for cell in comparison.cells]
    why = dict.fromkeys(reason for cell in cells for reason in published.differences(cell))
    notes = [f"The paper's figures for this setting are not shown: {'; '.join(why)}."] if why else []
    if not any(value.paper is not None for row in rows for value in row.values):
        return notes
    notes.insert(0, "In brackets: the paper's own figure.")
    models = dict.fromkeys(cell.model for cell in cells if published.figure(cell) is not None)
    for model in models:
        if (full := published.weights(model)) not in (None, model):
            notes.append(f"The paper's weights are {full}; {model} may load others.")
    if any(published.architecture(model) == "vit" for model in models):
        notes.append(
            "As in the paper, images are normalised with ImageNet's mean and deviation for ViT too, which are not that "
            "model's own; with its own the source model is about 20 points better."
        )
    return notes


def _average(pick: Callable[[Cell], float | None]) -> Callable[[list[Cell]], float | None]:
    def over(cells: list[Cell]) -> float | None:
        found = [number for cell in cells if (number := pick(cell)) is not None]
        return fmean(found) if len(found) == len(cells) > 0 else None

    return over


def _measure(name: str, scale: float = 1.0) -> Callable[[list[Cell]], float | None]:
    def pick(cell: Cell) -> float | None:
        number = cell.measures[name]
        return None if number is None else scale * number

    return _average(pick)


_DIFFUSION = Column("Diff.", digits=0, full="diffusion steps, with their gradient, over the images of one stream")
_ADAPTING = Column(
    "Diff. s", full="seconds of the diffusion, before the stream; images that another cell has made take none"
)
_MEASURES: list[tuple[Column, Callable[[list[Cell]], float | None]]] = [
    (Column("Cells", digits=0, full="cells that the averages are over"), lambda cells: float(len(cells))),
    (Column("Top-1 %"), _average(lambda cell: cell.top1)),
    (Column("Top-5 %"), _measure("top5")),
    (Column("NLL", digits=2, full="negative log-likelihood"), _measure("nll")),
    (Column("ECE %", full="expected calibration error"), _measure("ece")),
    (Column("Selected %", full="share of the images that taught"), _measure("selected", 100)),
    (Column("Forw.", digits=0, full="forward passes over one stream"), _measure("forwards")),
    (Column("Backw.", digits=0, full="backward passes over one stream"), _measure("backwards")),
    (_DIFFUSION, _measure("diffusion_steps")),
    (Column("Resets", full="how often a guard set the stream back"), _measure("resets")),
    (Column("Seconds", full="for one stream, without diffusion"), _average(lambda cell: cell.seconds)),
    (_ADAPTING, _average(lambda cell: cell.adapting)),
    (Column("MiB", digits=0, full="most memory in use"), _average(lambda cell: cell.memory)),
]


def _measures(comparison: Comparison) -> Table:
    """The other measures, averaged over all cells of a method (corruptions and seeds)."""
    diffusing = any(cell.measures["diffusion_steps"] for cell in comparison.cells)
    measures = [(column, over) for column, over in _MEASURES if diffusing or column not in (_DIFFUSION, _ADAPTING)]
    rows = [
        Row(str(label), label.method, tuple(Value(mean=over(cells), seeds=len(cells)) for _, over in measures))
        for label, cells in comparison.by_label.items()
    ]
    return Table(
        title=f"{comparison.setting}: {comparison.model_name}{comparison.at_severity}. Other measures, averaged over cells",
        kind="measures",
        section=comparison.setting,
        columns=tuple(column for column, _ in measures),
        rows=tuple(rows),
        notes=tuple(_notes([comparison])),
        stand_in=comparison.stand_in,
    )
