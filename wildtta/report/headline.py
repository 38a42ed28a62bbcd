"""What came out of a run, in words computed from its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from wildtta.report import names
from wildtta.report.groups import Comparison, Label, comparisons
from wildtta.report.run import Run
from wildtta.report.table import signed

__all__ = ["Standing", "Verdict", "headline", "verdicts"]


@dataclass(frozen=True)
class Standing:
    """How the methods of one comparison stand, over the cells that all of them have.

    Attributes:
        best: the methods that are best when printed with one decimal (several where they tie).
        gain: of the best over source, in points; None where source was not run.
        below: the methods below source, and by how much, the worst first.
        used: corruptions and seeds that every method has; `all` of those that some method has.
    """

    model: str
    severity: int
    best: tuple[str, ...]
    accuracy: float
    gain: float | None
    below: tuple[tuple[str, float], ...]
    used: int
    all: int

    def sentence(self, *, name_model: bool = True) -> str:
        where = f"On {self.model}{f' at severity {self.severity}' if self.severity else ''}"
        so_far = f" over the {self.used} of {self.all} streams that every method has finished" if self.used < self.all else ""
        verb = "is" if len(self.best) == 1 else "are"
        text = f"{names_in_words(self.best)} {verb} best with {self.accuracy:.1f} %"
        if self.gain is not None and self.best != ("Source",):
            text += f", {signed(self.gain)} points over the source model"
        elif self.gain is not None:
            text = f"no method is better than the source model, which has {self.accuracy:.1f} %"
        text = f"{where}{so_far}, {text}." if name_model else f"{text[0].upper()}{text[1:]}{so_far}."
        if self.below:
            which = names_in_words([f"{name} ({signed(gain)})" for name, gain in self.below])
            text += f" Below source: {which}."
        elif self.gain is not None and self.best != ("Source",):
            text += " No method falls below source."
        return text


@dataclass(frozen=True)
class Verdict:
    """A scenario and how the methods stand in it, one standing a model and severity."""

    setting: str
    scenario: str
    standings: tuple[Standing, ...]
    stand_in: bool


def verdicts(run: Run) -> list[Verdict]:
    """One for each data set and scenario that has enough cells to compare."""
    found = []
    for setting, group in groupby(comparisons(run), key=lambda comparison: comparison.setting):
        together = list(group)
        standings = tuple(standing for comparison in together if (standing := _standing(comparison)))
        if standings:
            found.append(Verdict(setting, together[0].scenario, standings, together[0].stand_in))
    return found


def headline(run: Run) -> str:
    """One or two sentences over everything: who is best how often, and who is not safe."""
    standings = [standing for verdict in verdicts(run) for standing in verdict.standings]
    if not standings:
        return "There are too few results yet to compare the methods."
    if len(standings) == 1:
        return standings[0].sentence()
    wins: dict[str, int] = {}
    falls: dict[str, int] = {}
    for standing in standings:
        for name in standing.best:
            wins[name] = wins.get(name, 0) + 1
        for name, _ in standing.below:
            falls[name] = falls.get(name, 0) + 1
    order = sorted(wins, key=lambda name: -wins[name])
    leaders = [name for name in order if wins[name] == wins[order[0]]]
    verb = "is" if len(leaders) == 1 else "are each"
    text = f"{names_in_words(leaders)} {verb} best in {wins[order[0]]} of {len(standings)} settings (model × scenario)."
    if falls:
        which = [f"{name} (in {falls[name]})" for name in sorted(falls, key=lambda name: -falls[name])]
        text += f" Below the source model somewhere: {names_in_words(which)}."
    elif all(standing.gain is not None for standing in standings):
        text += " No method falls below the source model anywhere."
    return text


def names_in_words(items: list[str] | tuple[str, ...]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _standing(comparison: Comparison) -> Standing | None:
    """None where no cell is common to two methods."""
    samples = {label: _samples(comparison, label) for label in comparison.labels}
    samples = {label: numbers for label, numbers in samples.items() if numbers}
    if len(samples) < 2:
        return None
    common = set.intersection(*(set(numbers) for numbers in samples.values()))
    if not common:
        return None
    means = {label: fmean(numbers[place] for place in common) for label, numbers in samples.items()}
    top = max(round(mean, 1) for mean in means.values())
    source = means.get(comparison.source) if comparison.source else None
    gains = {str(label): round(mean, 1) - round(source, 1) for label, mean in means.items() if source is not None}
    return Standing(
        model=comparison.model,
        severity=comparison.severity,
        best=tuple(str(label) for label, mean in means.items() if round(mean, 1) == top),
        accuracy=top,
        gain=None if source is None else top - round(source, 1),
        below=tuple(sorted(((name, gain) for name, gain in gains.items() if gain < -0.05), key=lambda item: item[1])),
        used=len(common),
        all=len(set.union(*(set(numbers) for numbers in samples.values()))),
    )


def _samples(comparison: Comparison, label: Label) -> dict[tuple[str, int], float]:
    """Accuracy by corruption and seed; clean images do not count beside corrupted ones."""
    if comparison.scenario == "mixed":
        return {("", seed): top1 for seed, top1 in comparison.overall(label).items()}
    columns = comparison.accuracy(label)
    wanted = [kind for kind in columns if kind != names.CLEAN] or list(columns)
    return {(kind, seed): top1 for kind in wanted for seed, top1 in columns[kind].items()}
