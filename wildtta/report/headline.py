"""What came out of a run, in words computed from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from wildtta.report import names
from wildtta.report.groups import Comparison, Label, comparisons
from wildtta.report.run import Run
from wildtta.report.table import Table, signed

__all__ = ["Standing", "Verdict", "against_paper", "headline", "verdicts"]


@dataclass(frozen=True)
class Standing:
    """How the methods of one comparison stand, over the cells that all of them have.

    Attributes:
        best: the methods that are best when printed with one decimal (several where they tie).
        gain: of the best over source, in points; None where source was not run.
        gains: of every method over source; empty where source was not run.
        below: the methods below source, and by how much, the worst first.
        dips: the corruptions on which the best is below source all the same, and by how much, the worst first.
        used: corruptions and seeds that every method has; `all` of those that some method has.
    """

    model: str
    severity: int
    best: tuple[str, ...]
    accuracy: float
    gain: float | None
    gains: Mapping[str, float]
    dips: tuple[tuple[str, float], ...]
    used: int
    all: int

    @property
    def below(self) -> tuple[tuple[str, float], ...]:
        losses = [(name, gain) for name, gain in self.gains.items() if _falls(gain)]
        return tuple(sorted(losses, key=lambda item: item[1]))

    @property
    def source_is_best(self) -> bool:
        """Whether no method is better than the model that does not adapt."""
        return self.gain is not None and not self.gain > 0.05

    def sentence(self, *, name_model: bool = True) -> str:
        where = f"On {self.model}{f' at severity {self.severity}' if self.severity else ''}"
        so_far = (
            f" over the {self.used} of {self.all} streams that every method has finished"
            if self.used < self.all
            else ""
        )
        verb = "is" if len(self.best) == 1 else "are"
        text = f"{names_in_words(self.best)} {verb} best with {self.accuracy:.1f} %"
        if self.source_is_best:
            text = f"no method is better than the source model, which has {self.accuracy:.1f} %"
        elif self.gain is not None:
            text += f", {signed(self.gain)} points over the source model"
        text = f"{where}{so_far}, {text}." if name_model else f"{text[0].upper()}{text[1:]}{so_far}."
        if self.dips:
            kind, loss = self.dips[0]
            others = f" and {len(self.dips) - 1} more" if len(self.dips) > 1 else ""
            text += f" Even so it loses on {names.title(kind)} ({signed(loss)}){others}."
        if self.below:
            which = _first_in_words([f"{name} ({signed(gain)})" for name, gain in self.below])
            text += f" Below source: {which}."
        elif self.gain is not None and not self.source_is_best:
            text += " No method falls below source."
        return text


@dataclass(frozen=True)
class Verdict:
    """A scenario and how the methods stand in it, one standing a model and severity."""

    setting: str
    standings: tuple[Standing, ...]
    stand_in: bool


def verdicts(run: Run) -> list[Verdict]:
    """One for each data set and scenario that has enough cells to compare."""
    found = []
    for setting, group in groupby(comparisons(run), key=lambda comparison: comparison.setting):
        together = list(group)
        standings = tuple(standing for comparison in together if (standing := _standing(comparison)))
        if standings:
            found.append(Verdict(setting, standings, together[0].stand_in))
    return found


def headline(run: Run) -> str:
    """A few sentences over everything: who is best how often and by how much, and who is not safe."""
    standings = [standing for verdict in verdicts(run) for standing in verdict.standings]
    if not standings:
        return "There are too few results yet to compare the methods."
    if len(standings) == 1:
        return standings[0].sentence()
    wins = [name for standing in standings for name in ([] if standing.source_is_best else standing.best)]
    lost = sum(standing.source_is_best for standing in standings)
    severities = " × severity" if len({standing.severity for standing in standings}) > 1 else ""
    settings = f"{len(standings)} settings (scenario × model{severities})"
    if not wins:
        return f"In none of {settings} is a method better than the source model. {_safety(standings)}".strip()
    most = max(map(wins.count, wins))
    leaders = [name for name in dict.fromkeys(wins) if wins.count(name) == most]
    text = f"{names_in_words(leaders)} {'is' if len(leaders) == 1 else 'are each'} best in {most} of {settings}"
    if len(leaders) == 1 and all(leaders[0] in standing.gains for standing in standings):
        gain = fmean(standing.gains[leaders[0]] for standing in standings)
        text += f", and {signed(gain)} points over the source model on average over all of them"
    text += "."
    if lost:
        text += f" In {lost} no method is better than the source model."
    return f"{text} {_safety(standings)}".strip()


def _safety(standings: Sequence[Standing]) -> str:
    """Who falls below the source model in how many settings, and by how much at most."""
    if not all(standing.gains for standing in standings):
        return ""
    losses: dict[str, list[float]] = {}
    for standing in standings:
        for name, loss in standing.below:
            losses.setdefault(name, []).append(loss)
    if not losses:
        return "No method falls below the source model anywhere."
    order = sorted(losses, key=lambda name: (-len(losses[name]), min(losses[name])))
    which = [f"{name} (in {len(losses[name])}, by up to {-min(losses[name]):.1f} points)" for name in order]
    return f"Below the source model somewhere: {_first_in_words(which)}."


def against_paper(tables: Sequence[Table]) -> str | None:
    """How far the run's averages are from the paper's, where they stand beside each other."""
    overview = [table for table in tables if table.kind == "overview"]
    values = [
        (row.label, value)
        for table in overview or [table for table in tables if table.kind == "accuracy"]
        for row in table.rows
        for value in (row.values if overview else row.values[-1:])
    ]
    pairs = [(name, value.mean, value.paper) for name, value in values if value.mean is not None and value.paper]
    if not pairs:
        return None
    name, mean, paper = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    usual = fmean(abs(mean - paper) for _, mean, paper in pairs)
    return (
        f"Where the settings are the paper's, the averages differ from its own by {usual:.1f} points in the mean "
        f"and by {abs(mean - paper):.1f} at most ({name}: {mean:.1f} here, {paper:.1f} there)."
    )


def _first_in_words(items: Sequence[str], most: int = 4) -> str:
    """All of them, or where they are many, the first and how many more."""
    if len(items) <= most:
        return names_in_words(items)
    return names_in_words([*items[: most - 1], f"{len(items) - most + 1} more"])


def names_in_words(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _falls(gain: float) -> bool:
    """Whether a difference is a loss when printed with one decimal."""
    return gain < -0.05


def _standing(comparison: Comparison) -> Standing | None:
    """None where no cell is common to two methods."""
    samples = {label: _samples(comparison, label) for label in comparison.labels}
    samples = {label: numbers for label, numbers in samples.items() if numbers}
    if len(samples) < 2:
        return None
    common = set.intersection(*(set(numbers) for numbers in samples.values()))
    if not common:
        return None
    means = {label: _mean(numbers, common) for label, numbers in samples.items()}
    top = max(means.values())
    source = next((label for label in means if label == comparison.source), None)
    best = [label for label, mean in means.items() if mean == top]
    dips = {}
    if source is not None and len(best) == 1:
        for kind in {kind for kind, _ in common}:
            own = {place for place in common if place[0] == kind}
            dips[kind] = _mean(samples[best[0]], own) - _mean(samples[source], own)
    return Standing(
        model=comparison.model_name,
        severity=comparison.severity,
        best=tuple(map(str, best)),
        accuracy=top,
        gain=None if source is None else top - means[source],
        gains={} if source is None else {str(label): mean - means[source] for label, mean in means.items()},
        dips=tuple(sorted(((kind, gain) for kind, gain in dips.items() if _falls(gain)), key=lambda dip: dip[::-1])),
        used=len(common),
        all=len(set.union(*(set(numbers) for numbers in samples.values()))),
    )


def _mean(numbers: Mapping[tuple[str, int], float], places: set[tuple[str, int]]) -> float:
    """As printed, so that words and tables agree."""
    return round(fmean(numbers[place] for place in places), 1)


def _samples(comparison: Comparison, label: Label) -> dict[tuple[str, int], float]:
    """Accuracy by corruption and seed; clean images do not count beside corrupted ones."""
    if comparison.scenario == "mixed":
        return {("", seed): top1 for seed, top1 in comparison.overall(label).items()}
    columns = comparison.accuracy(label)
    return {(kind, seed): top1 for kind in comparison.corruptions for seed, top1 in columns.get(kind, {}).items()}
