"""How much ReCAP's hyper-parameters matter (Fig. 4 and 8)."""

from __future__ import annotations

from typing import Any

from wildtta.network import Network
from wildtta.studies.base import Bench, Trial, average, mean_of, rounded, trial
from wildtta.studies.draw import Ink, Picture, draw_line, grid_of, legend, line_entry, method_style, panel
from wildtta.studies.grid import Grid, number, plus_minus
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY"]

SWEEPS: dict[str, tuple[float, ...]] = {
    "lam": (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    "tau": (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 2.0, 2.5),
    "threshold": (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
}
FEW: dict[str, tuple[float, ...]] = {
    "lam": (0.0, 0.5, 1.0, 4.0),
    "tau": (0.0, 0.6, 1.2, 2.5),
    "threshold": (0.2, 0.4, 0.8, 1.2),
}
NAMES = {"lam": "λ", "tau": "τ", "threshold": "τ_RE, in ln C"}
LINES = ("source", "tent", "eta", "sar", "deyo")


def run(bench: Bench) -> Summary:
    kinds = bench.kinds(("impulse_noise", "glass_blur", "fog"))
    images = bench.images(1000, 2500)
    sweeps = FEW if bench.choice.small else SWEEPS
    values = [(name, value) for name in sweeps for value in sweeps[name]]
    trials = [Trial(f"{name}|{value:g}", "recap", settings=((name, value),)) for name, value in values]
    trials += [trial(f"|{method}", method) for method in LINES]
    found = bench.streams(trials, kinds, images=images)
    rows = []
    for model in bench.models:
        for one in trials:
            mine = [result for other, place, result in found if other == one and place == model]
            if not mine:
                continue
            name, _, value = one.label.partition("|")
            rows.append(
                {
                    "model": bench.name_of(model),
                    "method": one.method,
                    "parameter": name or None,
                    "value": float(value) if name else None,
                    "lr": bench.settings_of(one, model).get("lr"),
                    **average(mine),
                    "selected": rounded(mean_of([100 * result["result"]["selected"] for result in mine])),
                }
            )
    usual = {}
    for model in bench.models:
        kind = Network(bench.setting(model).model.network).kind
        tuned = bench.rate(model, "shift", "recap")
        usual[bench.name_of(model)] = {
            "lam": tuned.get("lam", 0.5),
            "tau": tuned.get("tau", 1.2),
            "threshold": tuned.get("threshold") or (1.0 if kind == "vit" else 0.8),
        }
    return {"rows": rows, "usual": usual, "kinds": kinds, "images": images, "seeds": bench.seeds()}


def _models(summary: Summary) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in summary["rows"]))


def _sweep(summary: Summary, model: str, name: str) -> list[dict[str, Any]]:
    return [row for row in summary["rows"] if row["model"] == model and row["parameter"] == name]


def _others(summary: Summary, model: str) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in summary["rows"] if row["model"] == model and row["parameter"] is None}


def pictures(summary: Summary) -> dict[str, Picture]:
    models = _models(summary)

    def draw(figure: Any, ink: Ink) -> None:
        plots = grid_of(figure, len(models), len(NAMES), sharey="row")
        for row, model in zip(plots, models, strict=True):
            others = _others(summary, model)
            for axes, name in zip(row, NAMES, strict=True):
                panel(
                    axes,
                    ink,
                    title=model if name == "lam" else "",
                    x_label=NAMES[name],
                    y_label="accuracy, %" if name == "lam" else "",
                )
                for method, other in others.items():
                    style = method_style(method)
                    axes.axhline(
                        other["mean"],
                        color=ink.line(style.colour),
                        linewidth=style.width,
                        linestyle=(0, style.dashes) if style.dashes else "-",
                    )
                points = _sweep(summary, model, name)
                draw_line(
                    axes,
                    ink,
                    method_style("recap"),
                    [point["value"] for point in points],
                    [point["mean"] for point in points],
                    spread=[point["std"] for point in points],
                    marker="o",
                )
                axes.axvline(summary["usual"][model][name], color=ink.rule, linewidth=5, zorder=0, alpha=0.6)
        entries = [line_entry(ink, method_style("recap"), "recap", "o")]
        entries += [line_entry(ink, method_style(method), method) for method in LINES if method in others]
        legend(figure, ink, columns=len(entries), where="outside lower center", entries=entries)

    return {
        "sensitivity": Picture(
            (8.4, 0.5 + 2.5 * len(models)),
            "Accuracy of ReCAP against λ, τ and its threshold",
            draw,
            "ReCAP's accuracy against its hyper-parameters. Each moves alone; the grey stripe is its usual "
            "value, the other "
            "lines are other methods at their own defaults, the band is the deviation over seeds.",
        )
    }


def tables(summary: Summary) -> list[Grid]:
    found = []
    for model in _models(summary):
        rows = [
            (
                "others",
                "",
                f"{method} {row['lr'] or ''}".strip(),
                plus_minus(row["mean"], row["std"]),
                f"{row['selected']:.0f} %",
            )
            for method, row in _others(summary, model).items()
        ]
        for name in NAMES:
            rows += [
                (
                    "recap",
                    NAMES[name],
                    number(point["value"], 2),
                    plus_minus(point["mean"], point["std"]),
                    f"{point['selected']:.0f} %",
                )
                for point in _sweep(summary, model, name)
            ]
        found.append(
            Grid(f"Sensitivity, {model}", ("", "hyper-parameter", "value", "Accuracy", "Selected"), tuple(rows))
        )
    return found


def findings(summary: Summary) -> list[str]:
    found = []
    for model in _models(summary):
        others = _others(summary, model)
        rivals = {name: row["mean"] for name, row in others.items() if name != "source"}
        for name in NAMES:
            points = _sweep(summary, model, name)
            if not points:
                continue
            best = max(points, key=lambda point: point["mean"])
            worst = min(points, key=lambda point: point["mean"])
            text = (
                f"{model}, {NAMES[name].partition(',')[0]}: best at {best['value']:g} ({best['mean']:.1f} %), worst at "
                f"{worst['value']:g} ({worst['mean']:.1f} %)"
            )
            if rivals:
                rival = max(rivals, key=lambda each: rivals[each])
                above = [f"{point['value']:g}" for point in points if point["mean"] > rivals[rival]]
                text += f"; above the best other method ({rival}, {rivals[rival]:.1f} %) at {', '.join(above) or 'no value'}"
            found.append(text + ".")
    return found


STUDY = Study(
    "sensitivity",
    "How much ReCAP's hyper-parameters matter",
    "λ weighs instability against entropy, τ says how far the region reaches, τ_RE which images teach. How far "
    "can each be off?",
    "best at λ = 0.5 and τ = 1.2, ahead of the others for τ from 0.5 to 1.5; τ_RE best at 0.8 (ResNet) and 1.0 "
    "ln C (ViT) "
    "(Fig. 4 and 8, label shift, ImageNet-C).",
    run,
    pictures,
    tables,
    findings,
)
