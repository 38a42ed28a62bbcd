"""Which learning rate and threshold suit each method, chosen on corruptions that are not reported."""

from __future__ import annotations

import json
from typing import Any

from wildtta.bench.config import WILD
from wildtta.corruptions import EXTRA
from wildtta.files import put
from wildtta.studies.base import METHODS, Bench, Trial, average, multiple, rounded, times, trial
from wildtta.studies.draw import Ink, Picture, draw_line, grid_of, legend, line_entry, method_style, panel
from wildtta.studies.grid import Grid, number
from wildtta.studies.study import Study, Summary

__all__ = ["RATES", "STUDY"]

RATES = "rates.json"
"""The file, beside the summary, that other studies take with --rates."""

FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FEW = ("tent", "eta", "sar", "deyo", "recap")

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "tent": ({"frozen_top": True}, {"momentum": 0.0}),
    "eta": ({"margin": 0.3}, {"margin": 0.5}),
    "eata": ({"margin": 0.3}, {"margin": 0.5}),
    "sar": ({"margin": 0.3}, {"margin": 0.5}),
    "deyo": ({"threshold": 0.4, "margin": 0.3}, {"threshold": 0.6, "margin": 0.5}),
    "recap": ({"threshold": 0.4, "pivot": 0.4}, {"threshold": 0.6, "pivot": 0.5}),
    "recap+eta": ({"margin": 0.3}, {"margin": 0.5}),
    "recap+sar": ({"margin": 0.3}, {"margin": 0.5}),
    "recap+deyo": ({"threshold": 0.4, "margin": 0.3}, {"threshold": 0.6, "margin": 0.5}),
}
"""Two others for each method beside its published thresholds; Tent has none, and gets two other settings."""

AROUND = (1 / 3, 1.0, 3.0)
"""The learning rates at which the variants are tried, in multiples of the one that was best without them."""


def run(bench: Bench) -> Summary:
    small = bench.choice.small
    kinds = bench.kinds(("speckle_noise", "spatter"), all_of=EXTRA)
    methods = FEW if small else METHODS[1:]
    factors = (0.3, 1.0, 3.0, 10.0) if small else FACTORS
    seeds = bench.choice.seeds or [2023]
    rows: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    # single images are slow on a CPU; a mixed stream has all corruptions in one
    images = {name: bench.images(few, 1000) for name, few in (("limited", 96), ("mixed", 384), ("shift", 768))}
    for scenario in WILD:
        first = [_trial(bench, scenario, method, {}, factor) for method in methods for factor in factors]
        found = _measure(bench, [trial("source", "source", scenario), *first], kinds, images[scenario], seeds)
        rows += found
        if not small:
            second = []
            for model in bench.models:
                for method in methods:
                    best = _best(found, model, method)
                    if best is not None:
                        second += [
                            (
                                model,
                                Trial(
                                    f"{method}|{json.dumps(variant, sort_keys=True)}",
                                    method,
                                    scenario,
                                    tuple({**variant, "lr": times(best["lr"], factor)}.items()),
                                    tuned=False,
                                ),
                            )
                            for variant in VARIANTS[method]
                            for factor in AROUND
                        ]
            for model in bench.models:
                own = [one for place, one in second if place == model]
                rows += (further := _measure(bench, own, kinds, images[scenario], seeds, [model]))
                found = found + further
        for model in bench.models:
            for method in methods:
                best = _best(found, model, method)
                if best is None:
                    continue
                tried = sorted(
                    {
                        multiple(row["lr"])
                        for row in found
                        if row["spec"] == model and row["method"] == method and row["settings"] == best["settings"]
                    }
                )
                settings = {**best["settings"], "lr": best["lr"]}
                at = multiple(best["lr"])
                edge = "lowest" if at == tried[0] else "highest" if at == tried[-1] else None
                chosen.append(
                    {
                        "model": model,
                        "name": bench.name_of(model),
                        "scenario": scenario,
                        "method": method,
                        "settings": settings,
                        "mean": best["mean"],
                        "edge": edge,
                    }
                )
    content = {"rows": rows, "chosen": chosen, "kinds": kinds, "images": images, "seeds": seeds}
    (bench.folder / "tune").mkdir(parents=True, exist_ok=True)
    put(bench.folder / "tune" / RATES, (json.dumps({"chosen": chosen}, indent=1) + "\n").encode())
    return content


def _trial(bench: Bench, scenario: str, method: str, variant: dict[str, Any], factor: float) -> Trial:
    lr = times(bench.choice.lr or "x1", factor)
    return Trial(
        f"{method}|{json.dumps(variant, sort_keys=True)}",
        method,
        scenario,
        tuple({**variant, "lr": lr}.items()),
        tuned=False,
    )


def _measure(
    bench: Bench,
    trials: list[Trial],
    kinds: list[str],
    images: int | None,
    seeds: list[int],
    models: list[str] | None = None,
) -> list[dict[str, Any]]:
    rows = []
    found = bench.streams(trials, kinds, images=images, seeds=seeds, models=models)
    for model in models or bench.models:
        for one in trials:
            mine = [result for other, place, result in found if other == one and place == model]
            if mine:
                settings = dict(one.settings)
                lr = settings.pop("lr", None)
                selected = sum(result["result"]["selected"] for result in mine) / len(mine)
                rows.append(
                    {
                        "spec": model,
                        "model": bench.name_of(model),
                        "scenario": one.scenario,
                        "method": one.method,
                        "settings": settings,
                        "lr": lr,
                        **average(mine),
                        "selected": rounded(100 * selected),
                    }
                )
    return rows


def _best(rows: list[dict[str, Any]], model: str, method: str) -> dict[str, Any] | None:
    """The highest accuracy; of equal ones the smallest step."""
    mine = [row for row in rows if row["spec"] == model and row["method"] == method and row["mean"] is not None]
    return max(mine, key=lambda row: (row["mean"], -multiple(row["lr"])), default=None)


def pictures(summary: Summary) -> dict[str, Picture]:
    rows = summary["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "source"))

    def draw(figure: Any, ink: Ink) -> None:
        plots = grid_of(figure, len(models), len(scenarios), sharey="row")
        for line, model in zip(plots, models, strict=True):
            for axes, scenario in zip(line, scenarios, strict=True):
                mine = [row for row in rows if (row["model"], row["scenario"]) == (model, scenario)]
                panel(
                    axes,
                    ink,
                    title=f"{model}, {scenario}",
                    x_label="learning rate, × published",
                    y_label="accuracy, %" if axes is line[0] else "",
                )
                axes.set_xscale("log")
                for row in mine:
                    if row["method"] == "source":
                        axes.axhline(row["mean"], color=ink.line(0), linewidth=1.6, linestyle=(0, (4, 2)))
                for method in methods:
                    points = sorted(
                        (multiple(row["lr"]), row["mean"])
                        for row in mine
                        if row["method"] == method and not row["settings"]
                    )
                    draw_line(
                        axes, ink, method_style(method), [x for x, _ in points], [y for _, y in points], marker="o"
                    )
                ticks = sorted({multiple(row["lr"]) for row in mine if row["lr"] and not row["settings"]})
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                axes.minorticks_off()
        entries = [line_entry(ink, method_style("source"), "source")]
        entries += [line_entry(ink, method_style(method), method) for method in methods]
        legend(figure, ink, columns=min(len(entries), 9), where="outside lower center", entries=entries)

    return {
        "tune": Picture(
            (2.8 * len(scenarios), 0.6 + 2.5 * len(models)),
            "Accuracy on the held-out corruptions against the learning rate",
            draw,
            "Accuracy on the held-out corruptions against the learning rate. Each method at its published thresholds.",
        )
    }


def tables(summary: Summary) -> list[Grid]:
    found = []
    for name in dict.fromkeys(row["name"] for row in summary["chosen"]):
        mine = [row for row in summary["chosen"] if row["name"] == name]
        scenarios = list(dict.fromkeys(row["scenario"] for row in mine))
        rows = []
        for method in dict.fromkeys(row["method"] for row in mine):
            cells = [method]
            for scenario in scenarios:
                (row,) = [row for row in mine if (row["method"], row["scenario"]) == (method, scenario)]
                others = ", ".join(f"{key} {value}" for key, value in row["settings"].items() if key != "lr")
                settings = row["settings"]["lr"] + ("*" if row["edge"] else "") + (f", {others}" if others else "")
                cells += [settings, number(row["mean"])]
            rows.append(tuple(cells))
        heading = ["", *(f"{scenario}: {what}" for scenario in scenarios for what in ("lr", "accuracy"))]
        found.append(
            Grid(
                f"What was chosen, {name}",
                tuple(heading),
                tuple(rows),
                f"On {', '.join(summary['kinds'])}, none of which is reported. Every method had as many runs. * "
                "At an edge of the grid.",
            )
        )
    return found


def findings(summary: Summary) -> list[str]:
    found = []
    for name, scenario in dict.fromkeys((row["name"], row["scenario"]) for row in summary["chosen"]):
        mine = [row for row in summary["chosen"] if (row["name"], row["scenario"]) == (name, scenario)]
        ranked = sorted(mine, key=lambda row: -row["mean"])
        source = next(
            (
                row["mean"]
                for row in summary["rows"]
                if row["method"] == "source" and (row["model"], row["scenario"]) == (name, scenario)
            ),
            None,
        )
        order = ", ".join(f"{row['method']} {row['mean']:.1f} (lr {row['settings']['lr']})" for row in ranked[:3])
        found.append(f"{name}, {scenario}: {order}; source {number(source)}.")
    edges = [row for row in summary["chosen"] if row["edge"]]
    if edges:
        found.append(
            f"{len(edges)} of {len(summary['chosen'])} choices lie at an edge of the grid, so a better rate may "
            "lie beyond it."
        )
    return found


STUDY = Study(
    "tune",
    "Which learning rate suits each method",
    "At one learning rate for all, the methods' steps differ several times in length. So each gets its own, and "
    "its own thresholds, "
    "chosen with the same number of runs on corruptions that no other study reports.",
    "one learning rate for all methods, 2.5e-4 (ResNet) and 1e-3 (ViT); it does not say how they or the "
    "thresholds were chosen.",
    run,
    pictures,
    tables,
    findings,
)
