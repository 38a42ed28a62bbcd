"""What each method costs: passes and time (the paper's running-time table)."""

from __future__ import annotations

from functools import partial
from typing import Any

from wildtta.adapter import Adapter
from wildtta.core.restoring import Restoring
from wildtta.diffusion import DiffusionError, OnDisk
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
    "recap+eta": "eq. 10, weights",
    "recap+sar": "a second gradient",
    "recap+deyo": "shuffled images",
    "memo": "views",
    "dda": "the diffusion model",
}
COSTLY = ("memo", "dda")
"""Methods of which a step takes so much longer that a few images are timed."""

FEW_IMAGES = 2

PAPER = {"source": 84, "dda": 13277, "tent": 110, "eata": 118, "sar": 164, "deyo": 144, "recap": 116}
"""Seconds for 50,000 images."""


def run(bench: Bench) -> Summary:
    kind = bench.kinds(("fog",), all_of=("gaussian_noise",))[0]
    small = bench.choice.small
    methods = ("source", "tent", "eta", "sar", "deyo", "recap") if small else METHODS
    batches = (64,) if small else (1, 64)
    rounds = 15
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
            mine = found["rows"]
            if bench.choice.costly or not small:
                mine = mine + _costly(bench, model, kind, batch, mine)
            rows += [{"model": bench.name_of(model), "batch": batch, **row} for row in mine]
    return {"rows": rows, "kind": kind, "rounds": rounds}


def _costly(bench: Bench, model: str, kind: str, batch: int, others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of those there can be: dda needs a diffusion model of such images."""
    rows = []
    for method in COSTLY:
        if method == "dda" and bench.setting(model).data.diffusion is None:
            continue
        settings = bench.settings_of(trial(method, method, "mild"), model)
        about = {"model": model, "kind": kind, "batch": batch, "settings": settings, "images": FEW_IMAGES}
        compute = partial(_measure_costly, bench, model, kind, method, batch, others)
        try:
            rows.append(bench.part("cost", f"{bench.name_of(model)}-{batch}-{method}", about, compute))
        except DiffusionError as error:
            bench.failures[method] = str(error)
    return rows


def _measure(bench: Bench, model: str, kind: str, methods: tuple[str, ...], batch: int, rounds: int) -> dict[str, Any]:
    images, _ = bench.probe(model, kind, batch)
    adapters = {method: bench.adapter(trial(method, method, "mild"), model) for method in methods}
    ms = bench.timed({method: partial(adapter, images) for method, adapter in adapters.items()}, rounds)
    return {
        "rows": [
            _row(method, adapter, batch, ms[method], ms["source"], ms["tent"]) for method, adapter in adapters.items()
        ]
    }


def _measure_costly(
    bench: Bench, model: str, kind: str, method: str, batch: int, others: list[dict[str, Any]]
) -> dict[str, Any]:
    """A few images, and as many times as long for a whole batch: these take image after image."""
    images, _ = bench.probe(model, kind, min(batch, FEW_IMAGES))
    adapter = bench.adapter(trial(method, method, "mild"), model)
    if isinstance(adapter.method, Restoring) and isinstance(adapter.method.restoration, OnDisk):
        adapter.method.restoration = adapter.method.restoration.inner  # what is on disk already would take no time
    ms = bench.timed({method: partial(adapter, images)}, 3)[method] * batch / len(images)
    forward, step = (next(row["ms"] for row in others if row["method"] == name) for name in ("source", "tent"))
    return _row(method, adapter, batch, ms, forward, step)


def _row(method: str, adapter: Adapter, batch: int, ms: float, forward: float, step: float) -> dict[str, Any]:
    """`forward` is what a pass of the source model takes, `step` one of Tent's: a pass forward, and one backward."""
    own = adapter.method
    expected = own.forwards * forward + own.backwards * (step - forward)
    return {
        "method": method,
        "forwards": own.forwards,
        "backwards": own.backwards,
        "diffusion_steps": own.diffusion_steps,
        "selected": rounded(100 * adapter.report.selected / adapter.report.seen),
        "ms": rounded(ms),
        "images_a_second": rounded(1000 * batch / ms, 1),
        "forward_ms": rounded(own.forwards * forward),
        "backward_ms": rounded(own.backwards * (step - forward)),
        "other_ms": rounded(ms - expected),
    }


# -- showing it --------------------------------------------------------------------------------------------------------


def pictures(summary: Summary) -> dict[str, Picture]:
    groups = list(dict.fromkeys((row["model"], row["batch"]) for row in summary["rows"]))

    def draw(figure: Any, ink: Ink) -> None:
        plots = [axes for line in grid_of(figure, len(groups), 1) for axes in line]
        for axes, (model, batch) in zip(plots, groups, strict=True):
            rows = _bars(summary, model, batch)
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

    count = len(groups)
    left_out = [method for method in COSTLY if any(row["method"] == method for row in summary["rows"])]
    most = max(len(_bars(summary, *group)) for group in groups)
    return {
        "cost": Picture(
            (7.2, 0.6 + count * (0.55 + 0.27 * most)),
            "Time of a step",
            draw,
            f"Time of a step. Medians of {summary['rounds']} rounds in which the methods take turns (on a CPU, "
            "computing time). Forward is "
            "the source model's "
            "time for each forward pass, backward Tent's beyond that, other the rest of a method's own time."
            + (
                f" {' and '.join(left_out)} would be many times as long as the rest, and are in the table."
                if left_out
                else ""
            ),
        )
    }


def _bars(summary: Summary, model: str, batch: int) -> list[dict[str, Any]]:
    """What a figure can show side by side."""
    mine = [row for row in summary["rows"] if (row["model"], row["batch"]) == (model, batch)]
    return [row for row in mine if row["method"] not in COSTLY]


def tables(summary: Summary) -> list[Grid]:
    found = []
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in summary["rows"]):
        mine = [row for row in summary["rows"] if (row["model"], row["batch"]) == (model, batch)]
        tent = next(row["ms"] for row in mine if row["method"] == "tent")
        diffusing = any(row.get("diffusion_steps") for row in mine)
        rows = [
            (
                row["method"],
                str(row["forwards"]),
                str(row["backwards"]),
                *([str(row["diffusion_steps"])] if diffusing else []),
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
                    *(["diffusion steps"] if diffusing else []),
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
                "images that are not selected. The paper's times: 50,000 images, ResNet50-GN, RTX 4090."
                + (
                    f" memo and dda: timed on {min(batch, FEW_IMAGES)} images; diffusion steps are an image's."
                    if any(row["method"] in COSTLY for row in mine)
                    else ""
                ),
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
