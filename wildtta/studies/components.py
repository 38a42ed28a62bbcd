"""Which part of ReCAP does what (the paper's table of components)."""

from __future__ import annotations

from typing import Any

from wildtta.corruptions import FAMILIES
from wildtta.network import Network
from wildtta.report.table import signed
from wildtta.studies.base import Bench, Result, average, mean_of, rounded, times, trial
from wildtta.studies.draw import Ink, Picture, grid_of, legend, method_style, panel
from wildtta.studies.grid import Grid, number, plus_minus
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY"]

_WHOLE = "L_RE + λ L_RI (ReCAP)"
_SAME = "entropy, ReCAP's thresholds"
ROWS = {
    "entropy": "component:entropy",
    _SAME: "component:entropy",
    "entropy + λ L_RI": "component:entropy+instability",
    "L_RI": "component:instability",
    "L_RE": "recap",
    _WHOLE: "recap",
}
"""By what a row is called, the method it is."""

_THRESHOLDS = {"resnet": {"threshold": 0.8, "pivot": 0.7}, "vit": {"threshold": 1.0, "pivot": 1.0}}
"""ReCAP's, by kind of network."""

FACTORS = (0.1, 0.3, 1.0, 3.0)
"""Of the learning rate: the parts differ in the size of their gradients, so one rate for all compares rates, too."""

PAPER = {"entropy": 31.4, "entropy + λ L_RI": 42.7, "L_RE": 43.3, _WHOLE: 45.8}


def run(bench: Bench) -> Summary:
    kinds = bench.kinds(("impulse_noise", "glass_blur", "fog"))
    factors = (0.3, 1.0, 3.0) if bench.choice.small else FACTORS
    rows = []
    for model in bench.models:
        kind = Network(bench.setting(model).model.network).kind
        base = str(bench.rate(model, "shift", "recap").get("lr", bench.choice.lr))
        trials = [trial("source", "source")]
        for label, method in ROWS.items():
            own: dict[str, Any] = {"lam": 0.0} if label == "L_RE" else _THRESHOLDS[kind] if label == _SAME else {}
            # what was tuned for ReCAP as a whole is not given to one row alone
            trials += [
                trial(f"{label}|{factor:g}", method, lr=times(base, factor), tuned=False, **own) for factor in factors
            ]
        found = bench.streams(trials, kinds, models=[model], images=bench.images(1000, 2500))
        for one in trials:
            mine = [result for other, _, result in found if other == one]
            if not mine:
                continue
            label, _, factor = one.label.partition("|")
            row = {
                "model": bench.name_of(model),
                "row": label,
                "lr": times(base, float(factor)) if factor else None,
                **average(mine),
                "selected": rounded(mean_of([100 * result["result"]["selected"] for result in mine])),
                **{family: _family(mine, members) for family, members in FAMILIES.items()},
            }
            rows.append(row)
    return {"rows": rows, "kinds": kinds, "images": bench.images(1000, 2500), "seeds": bench.seeds()}


def _family(results: list[Result], kinds: tuple[str, ...]) -> float | None:
    values = [result["result"]["top1"] for result in results if result["cell"]["kind"] in kinds]
    return rounded(mean_of(values)) if values else None


def _best(summary: Summary, model: str) -> dict[str, dict[str, Any]]:
    """Of each row, that at its best rate."""
    found: dict[str, dict[str, Any]] = {}
    for row in summary["rows"]:
        if row["model"] == model and (row["row"] not in found or row["mean"] > found[row["row"]]["mean"]):
            found[row["row"]] = row
    return found


def _models(summary: Summary) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in summary["rows"]))


def pictures(summary: Summary) -> dict[str, Picture]:
    models = _models(summary)
    rates = list(dict.fromkeys(row["lr"] for row in summary["rows"] if row["lr"]))

    def draw(figure: Any, ink: Ink) -> None:
        plots = grid_of(figure, 1, len(models), sharey=True)[0]
        for axes, model in zip(plots, models, strict=True):
            mine = [row for row in summary["rows"] if row["model"] == model]
            labels = [label for label in ROWS if any(row["row"] == label for row in mine)]
            own = [rate for rate in rates if any(row["lr"] == rate for row in mine)]
            panel(axes, ink, title=model, x_label="accuracy, %", grid="x")
            for place, rate in enumerate(own):
                points = [
                    (at, row)
                    for at, label in enumerate(labels)
                    for row in mine
                    if row["row"] == label and row["lr"] == rate
                ]
                shift = 0.13 * (place - (len(own) - 1) / 2)
                axes.errorbar(
                    [row["mean"] for _, row in points],
                    [at + shift for at, _ in points],
                    xerr=[row["std"] or 0.0 for _, row in points],
                    fmt="osD^v"[place % 5],
                    markersize=5,
                    color=ink.line((1, 4, 6, 8, 3)[place % 5]),
                    label=f"learning rate {rate}",
                    linewidth=1,
                )
            for row in mine:
                if row["row"] == "source":
                    style = method_style("source")
                    axes.axvline(row["mean"], color=ink.line(0), linewidth=style.width, linestyle=(0, style.dashes))
                    axes.annotate(
                        "source",
                        (row["mean"], -0.42),
                        color=ink.line(0),
                        fontsize=8.5,
                        ha="right",
                        xytext=(-3, 0),
                        textcoords="offset points",
                    )
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.4, -0.6)
        legend(
            figure,
            ink,
            columns=len(rates),
            where="outside lower center",
            entries=list(zip(*plots[0].get_legend_handles_labels(), strict=True)) if len(models) == 1 else None,
        )

    return {
        "components": Picture(
            (4.6 + 2.6 * len(models), 3.2),
            "Accuracy with parts of ReCAP alone and together",
            draw,
            "What each part gives. Accuracy under the label shift, with parts of ReCAP alone and together, at "
            "several learning "
            "rates; bars: deviation over seeds.",
        )
    }


def tables(summary: Summary) -> list[Grid]:
    found = []
    families = [family for family in FAMILIES if any(row[family] is not None for row in summary["rows"])]
    for model in _models(summary):
        rows = []
        for label, row in _best(summary, model).items():
            paper = PAPER.get(label)
            rows.append(
                (
                    label,
                    row["lr"] or "",
                    *(number(row[family]) for family in families),
                    plus_minus(row["mean"], row["std"]),
                    f"{row['selected']:.0f} %",
                    "" if paper is None else number(paper),
                )
            )
        columns = ("", "at its best rate", *(name.capitalize() for name in families), "Average", "Selected", "Paper*")
        found.append(
            Grid(
                f"Components of ReCAP, {model}",
                columns,
                tuple(rows),
                "Best of the learning rates in the figure, for each row. *The paper's average: ResNet50-GN, "
                "ImageNet-C.",
                best=tuple(range(2, 3 + len(families))),
            )
        )
    return found


def findings(summary: Summary) -> list[str]:
    found = []
    for model in _models(summary):
        best = _best(summary, model)
        whole = best.get(_WHOLE)
        if whole is None:
            continue
        others = {label: row for label, row in best.items() if label not in (whole["row"], "source")}
        ahead = [f"{label} ({signed(whole['mean'] - row['mean'])})" for label, row in others.items()]
        found.append(
            f"{model}: both terms together reach {whole['mean']:.1f} % at their best learning rate; the difference to "
            f"{', '.join(ahead)}."
        )
        source = best.get("source")
        if source is not None:
            below = [label for label, row in best.items() if row["mean"] < source["mean"] - 0.05]
            if below:
                found.append(f"{model}: below the source model ({source['mean']:.1f} %) even so: {', '.join(below)}.")
    return found


STUDY = Study(
    "components",
    "What each part of ReCAP gives",
    "Vanilla entropy, L_RE alone, L_RI alone, and both: which of them adapts, and is it the objective or the "
    "thresholds?",
    "entropy 31.4, L_RE 43.3, entropy + L_RI 42.7, both 45.8 % (average, ResNet50-GN, label shift, ImageNet-C).",
    run,
    pictures,
    tables,
    findings,
)
