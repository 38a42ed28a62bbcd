"""Where each method collapses: long streams, ordered classes, learning rates that are too large, small batches; and the guard."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wildtta.bench.meter import Meter
from wildtta.corruptions import corrupt
from wildtta.data.glyphs import Glyphs, glyph_batches
from wildtta.report.figures import _smoothed
from wildtta.report.table import signed
from wildtta.studies.base import Bench, Result, Trial, mean_of, rounded, times, trial
from wildtta.studies.draw import Ink, Picture, draw_line, grid_of, legend, line_entry, method_style, panel, shaded
from wildtta.studies.grid import Grid, number
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY", "collapse", "endless"]

METHODS = ("tent", "eta", "sar", "deyo", "recap")
GUARDS = (None, "collapse")
SHARE = 0.5
"""A stream has collapsed where its accuracy stays below this share of the source model's until the end."""

CONDITIONS: dict[str, dict[str, Any]] = {
    "shuffled": {"scenario": "mild"},
    "ordered": {"scenario": "shift"},
    "lr × 3": {"scenario": "mild", "factor": 3.0},
    "lr × 10": {"scenario": "mild", "factor": 10.0},
    "ordered, lr × 3": {"scenario": "shift", "factor": 3.0},
    "ordered, lr × 10": {"scenario": "shift", "factor": 10.0},
    "batch 1": {"scenario": "mild", "batch": 1},
    "batch 4": {"scenario": "mild", "batch": 4},
    "batch 16": {"scenario": "mild", "batch": 16},
}
FEW = ("shuffled", "ordered", "lr × 10", "ordered, lr × 10", "batch 4")


def run(bench: Bench) -> Summary:
    small = bench.choice.small
    kinds = bench.kinds(("fog",), all_of=("gaussian_noise", "defocus_blur", "contrast"))
    images = bench.images(1000, 2500)
    length, seed = (6144, 1) if small else (100_000, 3)
    methods = ("tent", "deyo", "recap") if small else METHODS
    rows: list[dict[str, Any]] = []
    for model in bench.models:
        name = bench.name_of(model)
        for label in FEW if small else CONDITIONS:
            how = CONDITIONS[label]
            trials = [trial("source", "source", how["scenario"], batch=how.get("batch"))]
            for method in methods:
                own = bench.rate(model, how["scenario"], method)
                own["lr"] = times(str(own["lr"]), how.get("factor", 1.0))
                trials += [
                    trial(method, method, how["scenario"], guard=guard, batch=how.get("batch"), tuned=False, **own)
                    for guard in GUARDS
                ]
            found = bench.streams(trials, kinds, models=[model], images=images)
            rows += _compare(found, trials, {"what": "condition", "model": name, "condition": label})
        # long streams are slow: one corruption, one seed, and on a CPU fewer images
        rows += _long(bench, model, kinds[0], length, methods)
    return {
        "rows": rows,
        "kinds": kinds,
        "images": images,
        "length": length,
        "seeds": bench.seeds(1, seed),
        "share": SHARE,
    }


def _compare(
    found: list[tuple[Trial, str, Result]], trials: list[Trial], where: dict[str, Any]
) -> list[dict[str, Any]]:
    """For each method and guard: means over corruptions and seeds, beside the source model on the same streams."""
    base = {(r["cell"]["kind"], r["cell"]["seed"]): r["result"] for one, _, r in found if one.method == "source"}
    rows = []
    for one in trials:
        mine = [r for other, _, r in found if other == one and (r["cell"]["kind"], r["cell"]["seed"]) in base]
        if not mine:
            continue
        last, gain, at = [], [], []
        for result in mine:
            source = base[result["cell"]["kind"], result["cell"]["seed"]]
            quarter = len(source["along"]["top1"]) - max(len(source["along"]["top1"]) // 4, 1)
            last.append(mean_of(result["result"]["along"]["top1"][quarter:]))
            gain.append(last[-1] - mean_of(source["along"]["top1"][quarter:]))
            at.append(
                collapse(result["result"]["along"]["seen"], result["result"]["along"]["top1"], source["along"]["top1"])
            )
        fallen = [point for point in at if point is not None]
        rows.append(
            {
                **where,
                "method": one.method,
                "guard": one.guard,
                "lr": dict(one.settings).get("lr"),
                "mean": rounded(mean_of([result["result"]["top1"] for result in mine])),
                "last_quarter": rounded(mean_of(last)),
                "gain": rounded(mean_of(gain)),
                "collapsed": len(fallen),
                "streams": len(mine),
                "collapsed_at": rounded(mean_of([float(point) for point in fallen])) if fallen else None,
                "resets": sum(result["result"]["resets"] for result in mine),
            }
        )
    return rows


def collapse(seen: list[int], accuracy: list[float], source: list[float], share: float = SHARE) -> int | None:
    """After how many images a stream's accuracy fell below a share of the source model's and stayed there; None: never.

    Of the last points alone nothing can be said: it must have stayed below for a tenth of the stream.

    >>> collapse([10, 20, 30, 40], [50.0, 60.0, 10.0, 10.0], [50.0, 50.0, 50.0, 50.0])
    20
    >>> collapse([10, 20, 30, 40], [50.0, 10.0, 10.0, 40.0], [50.0, 50.0, 50.0, 50.0])
    """
    reach = max(1, len(seen) // 10)
    first = len(seen)
    while first > 0 and _smooth(accuracy, first - 1, reach) < share * _smooth(source, first - 1, reach):
        first -= 1
    if len(seen) - first < reach:
        return None
    return seen[first - 1] if first > 0 else 0


def _smooth(values: list[float], place: int, reach: int) -> float:
    """A mean of points around one, since a point may hold few images."""
    half = reach // 2
    return mean_of(values[max(0, place - half) : place + half + 1])


# -- long streams ------------------------------------------------------------------------------------------------------


def _long(bench: Bench, model: str, kind: str, length: int, methods: tuple[str, ...]) -> list[dict[str, Any]]:
    name = bench.name_of(model)
    curves: dict[tuple[str, str | None], dict[str, Any]] = {}
    for method in ("source", *methods):
        for guard in GUARDS if method != "source" else (None,):
            one = trial(method, method, "mixed", guard=guard)
            about = {
                "model": model,
                "kind": kind,
                "length": length,
                "method": method,
                "guard": guard,
                "settings": bench.settings_of(one, model),
            }
            curves[method, guard] = bench.part(
                "stability",
                f"long-{name}-{method}-{guard or 'none'}",
                about,
                partial(_run_long, bench, one, model, kind, length),
            )
    base = curves["source", None]
    rows = []
    for (method, guard), found in curves.items():
        quarter = len(found["top1"]) - max(len(found["top1"]) // 4, 1)
        last = mean_of(found["top1"][quarter:])
        at = collapse(found["seen"], found["top1"], base["top1"])
        rows.append(
            {
                "what": "long",
                "model": name,
                "condition": f"{length:,} images of {kind}",
                "method": method,
                "guard": guard,
                "lr": found["lr"],
                "mean": found["mean"],
                "last_quarter": rounded(last),
                "gain": rounded(last - mean_of(base["top1"][quarter:])),
                "collapsed": int(at is not None),
                "streams": 1,
                "collapsed_at": at,
                "resets": found["resets"],
                "seen": found["seen"],
                "top1": found["top1"],
            }
        )
    return rows


def _run_long(bench: Bench, one: Trial, model: str, kind: str, length: int) -> dict[str, Any]:
    adapter = bench.adapter(one, model)
    normalise = bench.setting(model).model.preprocessing.normalise
    meter = Meter()
    for images, labels in endless(bench, model, kind, length):
        logits = adapter(normalise(images))
        assert adapter.outcome is not None
        meter.add(logits, labels.to(logits.device), adapter.outcome.mask, torch.zeros(len(labels), dtype=torch.int64))
    found = meter.result([kind])
    return {
        "mean": found["top1"],
        "seen": found["along"]["seen"],
        "top1": found["along"]["top1"],
        "resets": adapter.report.resets,
        "updates": adapter.report.updates,
        "lr": bench.settings_of(one, model).get("lr"),
    }


def endless(bench: Bench, model: str, kind: str, length: int, batch: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """So many images of one corruption, in [0, 1], batch by batch: glyphs that never come twice; of other data, again and again."""
    setting = bench.setting(model)
    severity = bench.choice.severity
    if isinstance(setting.data, Glyphs):
        seen = 0
        for images, labels in glyph_batches(seed=77, size=16 * batch):
            # the classes take turns in these: shuffled, so that a batch has more of some than of others
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seen))[: length - seen]
            for numbers in order.split(batch):
                part = images[numbers].to(bench.device)
                if kind != "clean":
                    part = corrupt(part, kind, severity, seeds=seen + numbers)
                yield part, labels[numbers]
            seen += len(order)
            if seen >= length:
                return
    kept = bench.kept(model, kind)
    seen, turn = 0, 0
    while seen < length:
        order = torch.randperm(len(kept.labels), generator=torch.Generator().manual_seed(turn))[: length - seen]
        for numbers in order.split(batch):
            images, readable = kept.read(numbers)
            if len(images):
                yield images, kept.labels[numbers[readable]]
        seen, turn = seen + len(order), turn + 1


# -- showing it --------------------------------------------------------------------------------------------------------


def _guarded(guard: str | None) -> str:
    return "with guard" if guard else "no guard"


def pictures(summary: Summary) -> dict[str, Picture]:
    models = list(dict.fromkeys(row["model"] for row in summary["rows"]))
    conditions = [row for row in summary["rows"] if row["what"] == "condition" and row["method"] != "source"]
    labels = list(dict.fromkeys((row["method"], row["guard"]) for row in conditions))
    columns = list(dict.fromkeys(row["condition"] for row in conditions))

    def shade(figure: Any, ink: Ink) -> None:
        plots = grid_of(figure, len(models), 1)
        for (axes,), model in zip(plots, models, strict=True):
            cells = {
                (row["method"], row["guard"], row["condition"]): row for row in conditions if row["model"] == model
            }
            found = [[cells.get((*label, column)) for column in columns] for label in labels]
            values = [[None if cell is None else cell["gain"] for cell in line] for line in found]
            texts = [["" if cell is None else signed(cell["gain"]) + _fate(cell) for cell in line] for line in found]
            names = [f"{method}{', guard' if guard else ''}" for method, guard in labels]
            shaded(
                axes, ink, values, names, [column.replace(", ", ",\n") for column in columns], texts=texts, full=30.0
            )
            axes.set_title(model, color=ink.text, fontsize=9.5, loc="left", pad=8)

    def curves(figure: Any, ink: Ink) -> None:
        plots = grid_of(figure, len(models), 2, sharey="row")
        for line, model in zip(plots, models, strict=True):
            for axes, guard in zip(line, GUARDS, strict=True):
                panel(
                    axes,
                    ink,
                    title=f"{model}, {_guarded(guard)}",
                    x_label="images seen",
                    y_label="accuracy, %" if guard is None else "",
                )
                for row in summary["rows"]:
                    if (
                        row["what"] == "long"
                        and row["model"] == model
                        and (row["guard"] == guard or row["method"] == "source")
                    ):
                        smooth = _smoothed(np.array(row["top1"]), _reach(summary["length"]))
                        draw_line(axes, ink, method_style(row["method"]), row["seen"], smooth.tolist())
                axes.locator_params(axis="x", nbins=4)
                from matplotlib.ticker import StrMethodFormatter

                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
                axes.set_ylim(0, None)
        shown = list(dict.fromkeys(row["method"] for row in summary["rows"] if row["what"] == "long"))
        entries = [line_entry(ink, method_style(method), method) for method in shown]
        legend(figure, ink, columns=len(entries), where="outside lower center", entries=entries)

    return {
        "conditions": Picture(
            (1.9 + 0.95 * len(columns), 0.9 + len(models) * (0.6 + 0.27 * len(labels))),
            "Where methods collapse, and whether the guard helps",
            shade,
            "Where methods collapse, and whether the guard helps. Accuracy over the last quarter of the stream, "
            "less the source model's on "
            "the same images (points); ✗ the share of streams that ended below half of the source model, ↺ how "
            "often a guard acted.",
        ),
        "long": Picture(
            (8.2, 0.6 + 2.6 * len(models)),
            "Accuracy along a long stream",
            curves,
            f"Accuracy along a long stream. {summary['length']:,} images of {summary['kinds'][0]}, shuffled, at "
            "the usual learning rate.",
        ),
    }


def _reach(length: int) -> int:
    """So many points to each side are averaged that chance moves a point of a curve by a percent or two, but not more than 5."""
    return min(5, round(2000 / (length / 50) / 2))


def _fate(cell: dict[str, Any]) -> str:
    mark = f" ✗{cell['collapsed']}/{cell['streams']}" if cell["collapsed"] else ""
    return mark + (f" ↺{cell['resets']}" if cell["resets"] else "")


def tables(summary: Summary) -> list[Grid]:
    rows = []
    for row in summary["rows"]:
        fate = (
            "—" if not row["collapsed"] else f"{row['collapsed']} of {row['streams']}, after {row['collapsed_at']:,.0f}"
        )
        rows.append(
            (
                row["model"],
                row["condition"].replace("_", " "),
                row["method"],
                "yes" if row["guard"] else "",
                row["lr"] or "",
                number(row["mean"]),
                number(row["last_quarter"]),
                number(row["gain"]),
                fate,
                str(row["resets"]),
            )
        )
    return [
        Grid(
            "Every condition",
            (
                "",
                "condition",
                "method",
                "guard",
                "lr",
                "accuracy",
                "last quarter",
                "less the source",
                "collapsed",
                "set back",
            ),
            tuple(rows),
            f"Collapsed: below {summary['share']:g} of the source model's accuracy from then on. Set back: by any "
            "guard, SAR's own too.",
        )
    ]


def findings(summary: Summary) -> list[str]:
    found = []
    for model in dict.fromkeys(row["model"] for row in summary["rows"]):
        mine = [row for row in summary["rows"] if row["model"] == model and row["method"] != "source"]
        for guard in GUARDS:
            own = [row for row in mine if row["guard"] == guard]
            fallen = [f"{row['method']} ({row['condition'].replace('_', ' ')})" for row in own if row["collapsed"]]
            below = sum(row["gain"] < -1 for row in own)
            found.append(
                f"{model}, {_guarded(guard)}: {len(fallen)} of {len(own)} cases collapse{': ' if fallen else ''}"
                f"{', '.join(fallen)}; {below} end more than a point below the source model."
            )
        pairs = {(row["method"], row["condition"]): row for row in mine if row["guard"]}
        saved = [
            (row, pairs[row["method"], row["condition"]]) for row in mine if row["guard"] is None and row["collapsed"]
        ]
        if saved:
            gains = mean_of([after["gain"] - before["gain"] for before, after in saved])
            kept = sum(not after["collapsed"] for _, after in saved)
            found.append(
                f"{model}: where a method collapses, the guard saves {kept} of {len(saved)} cases, and gives "
                f"{signed(gains)} points "
                "over the last quarter on average."
            )
    return found


STUDY = Study(
    "stability",
    "Where each method collapses",
    "Long streams, ordered classes, learning rates that are too large, small batches: which method stands what, "
    "and does the collapse "
    "guard save it?",
    "ReCAP is the only method that stays above the source model on all corruptions at batch size 1; longer "
    "streams and wrong learning "
    "rates are not shown.",
    run,
    pictures,
    tables,
    findings,
)
