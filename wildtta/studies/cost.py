"""What each method costs: passes and time (the paper's running-time table)."""

from __future__ import annotations

from functools import partial
from typing import Any

from wildtta.studies.base import METHODS, Bench, rounded, trial
from wildtta.studies.draw import Ink, Picture, grid_of, legend, panel
from wildtta.studies.grid import Grid, number
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY"]

OTHER = {
    "eta": "weights",
    "eata": "weights, anchor",
    "sar": "a second gradient",
    "deyo": "shuffled images",
    "recap": "eq. 10",
    "recap+sar": "a second gradient",
    "recap+deyo": "shuffled images",
}
PAPER = {"source": 84, "tent": 110, "eata": 118, "sar": 164, "deyo": 144, "recap": 116}
"""Seconds for 50,000 images."""


def run(bench: Bench) -> Summary:
    kind = bench.kinds(("fog",), all_of=("gaussian_noise",))[0]
    small = bench.choice.small
    methods = ("source", "tent", "eta", "sar", "deyo", "recap") if small else METHODS
    batches = (64,) if small else (1, 64)
    rounds = 7 if small else 15
    rows: list[dict[str, Any]] = []
    for model in bench.models:
        for batch in batches:
            settings = {method: bench.settings_of(trial(method, method, "mild"), model) for method in methods}
            about = {"model": model, "kind": kind, "batch": batch, "rounds": rounds, "settings": settings}
            found = bench.part(
                "cost",
                f"{bench.name_of(model)}-{batch}",
                about,
                partial(_measure, bench, model, kind, methods, batch, rounds),
            )
            rows += [{"model": bench.name_of(model), "batch": batch, **row} for row in found["rows"]]
    return {"rows": rows, "kind": kind, "rounds": rounds}


def _measure(bench: Bench, model: str, kind: str, methods: tuple[str, ...], batch: int, rounds: int) -> dict[str, Any]:
    images, _ = bench.probe(model, kind, batch)
    adapters = {method: bench.adapter(trial(method, method, "mild"), model) for method in methods}
    steps = {method: partial(adapter, images) for method, adapter in adapters.items()}
    ms = bench.timed(steps, rounds)
    forward, step = ms["source"], ms["tent"]
    rows = []
    for method, adapter in adapters.items():
        own = adapter.method
        assert adapter.outcome is not None
        expected = own.forwards * forward + own.backwards * (step - forward)
        rows.append(
            {
                "method": method,
                "forwards": own.forwards,
                "backwards": own.backwards,
                "selected": rounded(100 * adapter.report.selected / adapter.report.seen),
                "ms": rounded(ms[method]),
                "images_a_second": rounded(1000 * batch / ms[method], 1),
                "forward_ms": rounded(own.forwards * forward),
                "backward_ms": rounded(own.backwards * (step - forward)),
                "other_ms": rounded(ms[method] - expected),
            }
        )
    return {"rows": rows}


# -- showing it --------------------------------------------------------------------------------------------------------


def pictures(summary: Summary) -> dict[str, Picture]:
    groups = list(dict.fromkeys((row["model"], row["batch"]) for row in summary["rows"]))

    def draw(figure: Any, ink: Ink) -> None:
        plots = [axes for line in grid_of(figure, len(groups), 1) for axes in line]
        for axes, (model, batch) in zip(plots, groups, strict=True):
            rows = [row for row in summary["rows"] if (row["model"], row["batch"]) == (model, batch)]
            panel(
                axes,
                ink,
                title=f"{model}, batch of {batch}",
                x_label="milliseconds a batch" if axes is plots[-1] else "",
                grid="x",
            )
            left = [0.0] * len(rows)
            for name, colour, label in (
                ("forward_ms", 4, "forward"),
                ("backward_ms", 7, "backward"),
                ("other_ms", 9, "other"),
            ):
                values = [max(row[name], 0.0) for row in rows]
                axes.barh(
                    range(len(rows)),
                    values,
                    left=left,
                    height=0.62,
                    linewidth=0,
                    color=ink.line(colour),
                    alpha=0.85,
                    label=label,
                )
                left = [a + b for a, b in zip(left, values, strict=True)]
            tent = next(row["ms"] for row in rows if row["method"] == "tent")
            for place, row in enumerate(rows):
                axes.annotate(
                    f"{row['ms']:.1f} ms, {row['ms'] / tent:.2f} × tent",
                    (left[place], place),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    color=ink.text,
                    fontsize=8.5,
                )
            axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
            axes.invert_yaxis()
            axes.set_xlim(0, 1.3 * max(left))
        legend(
            figure,
            ink,
            columns=3,
            where="outside lower center",
            entries=list(zip(*plots[0].get_legend_handles_labels(), strict=True)),
        )

    count = sum(1 for _ in groups)
    most = max(sum(1 for row in summary["rows"] if (row["model"], row["batch"]) == group) for group in groups)
    return {
        "cost": Picture(
            (7.2, 0.6 + count * (0.55 + 0.27 * most)),
            "Time of a step",
            draw,
            f"Time of a step. Medians of {summary['rounds']} rounds in which the methods take turns (on a CPU, "
            "computing time). Forward is "
            "the source model's "
            "time for each forward pass, backward Tent's beyond that, other the rest of a method's own time.",
        )
    }


def tables(summary: Summary) -> list[Grid]:
    found = []
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in summary["rows"]):
        mine = [row for row in summary["rows"] if (row["model"], row["batch"]) == (model, batch)]
        tent = next(row["ms"] for row in mine if row["method"] == "tent")
        rows = [
            (
                row["method"],
                str(row["forwards"]),
                str(row["backwards"]),
                OTHER.get(row["method"], ""),
                f"{row['selected']:.0f} %",
                number(row["ms"]),
                number(row["other_ms"]),
                number(row["images_a_second"], 0),
                number(row["ms"] / tent, 2),
                number(PAPER[row["method"]] / PAPER["tent"], 2) if row["method"] in PAPER else "—",
            )
            for row in mine
        ]
        found.append(
            Grid(
                f"{model}, batch of {batch}",
                (
                    "",
                    "forwards",
                    "backwards",
                    "other",
                    "selected",
                    "ms a batch",
                    "other, ms",
                    "images/s",
                    "÷ Tent",
                    "paper ÷ Tent",
                ),
                tuple(rows),
                "Passes a batch: every image goes through each of them, so that a step has one shape; the "
                "published code leaves out "
                "images that are not selected. The paper's times: 50,000 images, ResNet50-GN, RTX 4090.",
            )
        )
    return found


def findings(summary: Summary) -> list[str]:
    found = []
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in summary["rows"]):
        mine = {row["method"]: row for row in summary["rows"] if (row["model"], row["batch"]) == (model, batch)}
        tent = mine["tent"]["ms"]
        ranked = ", ".join(
            f"{name} {row['ms'] / tent:.2f}" for name, row in sorted(mine.items(), key=lambda each: each[1]["ms"])
        )
        found.append(f"{model}, batch of {batch}: time in multiples of Tent's: {ranked}.")
        if "recap" in mine:
            found.append(
                f"{model}, batch of {batch}: what ReCAP computes beside its one forward and one backward pass takes "
                f"{number(mine['recap']['other_ms'], 2)} ms, {number(100 * mine['recap']['other_ms'] / tent)} % "
                "of a step of Tent's."
            )
    return found


STUDY = Study(
    "cost",
    "What each method costs",
    "How many passes does a step take, how long, and what is it that takes the time?",
    "for 50,000 images on an RTX 4090: source 84 s, Tent 110, ReCAP 116, EATA 118, DeYO 144, SAR 164.",
    run,
    pictures,
    tables,
    findings,
)
