"""Whether neighbours in feature space are predicted alike, while a method adapts (Fig. 2 and 6)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from wildtta.adapter import Adapter
from wildtta.network import Network
from wildtta.report.figures import Style
from wildtta.source import Region
from wildtta.studies.base import Bench, Trial, average, mean_of, rounded, trial
from wildtta.studies.draw import Ink, Picture, draw_line, grid_of, legend, line_entry, method_style, panel
from wildtta.studies.grid import Grid, number, plus_minus
from wildtta.studies.regions import Draws
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY", "consistency_of"]

METHODS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("entropy", "tent", {"frozen_top": True}),
    ("deyo", "deyo", {}),
    ("recap", "recap", {}),
)
"""Entropy minimisation on the layers that the others adapt, too."""

SCENARIOS = ("mild", "shift")
AREAS = {
    "1": "1: low H, consistent",
    "2": "2: low H, inconsistent",
    "3": "3: high H, consistent",
    "4": "4: high H, inconsistent",
    "12": "1 and 2",
    "1234": "all",
}
TAU, NEIGHBOURS, CLOUD, BINS = 1.2, 256, 128, 10


def run(bench: Bench) -> Summary:
    kind = bench.kinds(("fog",), all_of=("gaussian_noise",))[0]
    images, count = bench.images(2000, 10_000), 256 if bench.choice.small else 512
    points = 8 if bench.choice.small else 10
    seed = bench.seeds()[0]
    rows: list[dict[str, Any]] = []
    clouds: list[dict[str, Any]] = []
    for model in bench.models:
        name = bench.name_of(model)
        threshold, shares = _areas(bench, model, kind, count)
        for scenario in SCENARIOS:
            for label, method, own in METHODS:
                one = trial(label, method, scenario, **own)
                about = {
                    "model": model,
                    "kind": kind,
                    "images": images,
                    "seed": seed,
                    "scenario": scenario,
                    "points": points,
                    "count": count,
                    "method": method,
                    "settings": bench.settings_of(one, model),
                }
                found = bench.part(
                    "consistency",
                    f"{name}-{scenario}-{label}",
                    about,
                    partial(_along, bench, one, model, kind, images, seed, points, count),
                )
                rows += [
                    {
                        "model": name,
                        "scenario": scenario,
                        "method": label,
                        "what": "along",
                        "lr": bench.settings_of(one, model).get("lr"),
                        **point,
                    }
                    for point in found["along"]
                ]
                if scenario == "shift" and label != "entropy":
                    clouds.append({"model": name, "method": label, **found["cloud"]})
            trials = [
                trial(
                    area,
                    "entropy-in-areas",
                    scenario,
                    areas=area,
                    inconsistent_below=threshold,
                    tau=TAU,
                    draws=NEIGHBOURS,
                    **bench.rate(model, scenario, "tent"),
                )
                for area in AREAS
            ]
            trials.append(trial("source", "source", scenario))
            streams = bench.streams(trials, [kind], models=[model], images=images)
            for one in trials:
                mine = [result for other, _, result in streams if other == one]
                if mine:
                    rows.append(
                        {
                            "model": name,
                            "scenario": scenario,
                            "method": one.label,
                            "what": "area",
                            **average(mine),
                            "share": shares.get(one.label),
                            "threshold": threshold,
                            "selected": rounded(mean_of([100 * result["result"]["selected"] for result in mine])),
                        }
                    )
    return {
        "rows": rows,
        "clouds": clouds,
        "kind": kind,
        "images": images,
        "probe": count,
        "seeds": bench.seeds(),
        "neighbours": NEIGHBOURS,
        "tau": TAU,
    }


def consistency_of(logits: Tensor, draws: Draws) -> dict[str, Any]:
    """Means over images of what a region holds, and how the share of other answers is spread over the images."""
    found = draws.measures(logits)
    log_p = logits.log_softmax(-1)
    shares = found["inconsistent"]
    edges = torch.linspace(0, 1, BINS + 1)
    places = (shares.cpu() * BINS).long().clamp(max=BINS - 1)
    return {
        "inconsistent": rounded(100 * shares.mean()),
        "entropy": rounded(-(log_p.exp() * log_p).sum(-1).mean()),
        "neighbours_entropy": rounded(found["entropy"].mean()),
        "divergence": rounded(found["divergence"].mean()),
        "histogram": [int((places == place).sum()) for place in range(len(edges) - 1)],
    }


def _draws(bench: Bench, model: str, network: Network, count: int) -> Draws:
    region = Region.estimate(network.module, bench.source(model, bench.choice.calibration))
    weight = network.head[0]
    return Draws(weight, region.variance.to(weight.device), TAU, count)


def _network(bench: Bench, model: str) -> Network:
    return Network(bench.setting(model).model.network).to(bench.device)


def _areas(bench: Bench, model: str, kind: str, count: int) -> tuple[float, dict[str, float | None]]:
    """What divides consistent from inconsistent images, and the share (percent) of each area, at the source weights.

    It is the median over the images of low entropy, so that areas 1 and 2 are of one size.
    """

    def compute() -> dict[str, Any]:
        network = _network(bench, model)
        images, _ = bench.probe(model, kind, count)
        with torch.no_grad():
            logits = network.run({}, images)[0]
        shares = _draws(bench, model, network, NEIGHBOURS).measures(logits)["inconsistent"]
        log_p = logits.log_softmax(-1)
        low = -(log_p.exp() * log_p).sum(-1) < 0.4 * torch.tensor(float(logits.shape[-1])).log()
        middle = shares[low].median().item() if low.any() else 0.0
        threshold = round(max(middle, 1 / NEIGHBOURS), 6)
        same = shares < threshold
        parts = {"1": low & same, "2": low & ~same, "3": ~low & same, "4": ~low & ~same, "12": low, "1234": low | ~low}
        return {
            "threshold": threshold,
            "shares": {name: rounded(100 * part.float().mean()) for name, part in parts.items()},
        }

    found = bench.part(
        "consistency", f"{bench.name_of(model)}-areas", {"model": model, "kind": kind, "count": count}, compute
    )
    return found["threshold"], found["shares"]


def _along(
    bench: Bench, one: Trial, model: str, kind: str, images: int | None, seed: int, points: int, count: int
) -> dict[str, Any]:
    probe, labels = bench.probe(model, kind, count)
    draws: list[Draws] = []
    along: list[dict[str, Any]] = []
    cloud: dict[str, Any] = {"answers": [], "seen": []}

    def look(adapter: Adapter, seen: int) -> None:
        if not draws:
            draws.append(_draws(bench, model, adapter.network, NEIGHBOURS))
        with adapter.frozen():
            logits = torch.cat([adapter(part) for part in probe.split(64)]).float()
        found = consistency_of(logits, draws[0])
        right = (logits.argmax(-1).cpu() == labels).float().mean()
        along.append({"seen": seen, "accuracy": rounded(100 * right), **found})
        some = draws[0].first(CLOUD)
        if "image" not in cloud:  # one on the border: half of its neighbours get another class
            cloud["image"] = int((draws[0].measures(logits)["inconsistent"] - 0.5).abs().argmin())
            offsets = some.offsets - some.offsets.mean(0)
            places = torch.linalg.svd(offsets, full_matrices=False)
            plane = places.U[:, :2] * places.S[:2]
            cloud["places"] = [[round(value, 2) for value in point] for point in plane.cpu().tolist()]
            cloud["label"] = int(labels[cloud["image"]])
        cloud["answers"].append(some.answers(logits[cloud["image"]][None])[0].cpu().tolist())
        cloud["seen"].append(seen)

    bench.follow(one, model, kind, images=images, seed=seed, points=points, look=look)
    kept = [0, len(cloud["seen"]) // 2, len(cloud["seen"]) - 1]
    cloud["answers"] = [cloud["answers"][place] for place in kept]
    cloud["seen"] = [cloud["seen"][place] for place in kept]
    return {"along": along, "cloud": cloud}


# -- showing it --------------------------------------------------------------------------------------------------------


def _pick(summary: Summary, what: str, **wanted: Any) -> list[dict[str, Any]]:
    return [
        row
        for row in summary["rows"]
        if row["what"] == what and all(row[name] == value for name, value in wanted.items())
    ]


def _models(summary: Summary) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in summary["rows"]))


_STYLES = {"entropy": method_style("tent"), "deyo": method_style("deyo"), "recap": method_style("recap")}


def _style(method: str, scenario: str) -> Style:
    """Dashed where the stream is mild."""
    own = _STYLES[method]
    return Style(own.colour, (3.0, 1.5) if scenario == "mild" else (), 1.3 if scenario == "mild" else 2.0)


def pictures(summary: Summary) -> dict[str, Picture]:
    models = _models(summary)
    found = {
        "along": Picture(
            (9.2, 0.6 + 2.5 * len(models)),
            "Consistency along the adaptation",
            partial(_draw_along, summary, models),
            f"Consistency along the adaptation. {summary['neighbours']} neighbours of each of {summary['probe']} "
            "fixed images of "
            f"{summary['kind']}, drawn from N(z, {summary['tau']} Σ); solid: label shift, dashed: mild.",
        ),
        "spread": Picture(
            (9.2, 0.6 + 2.3 * len(models)),
            "How many of an image's neighbours get another class",
            partial(_draw_spread, summary, models),
            "How many of an image's neighbours get another class. Share of the images in each tenth, before "
            "adapting and after the "
            "stream.",
        ),
        "areas": Picture(
            (8.6, 0.4 + 2.6 * len(models)),
            "Accuracy of adapting on areas of entropy and consistency",
            partial(_draw_areas, summary, models),
            "Adapting on a part of the images only. Entropy is minimised on the images of one area of low or "
            "high entropy (0.4 ln C) "
            "× high or low consistency (split at the median of the images of low entropy).",
        ),
    }
    if summary["clouds"]:
        found["regions"] = Picture(
            (7.0, 1.0 + 1.9 * len(summary["clouds"])),
            "One region's predictions, before, during and after",
            partial(_draw_clouds, summary),
            f"One region's predictions, before, during and after. {CLOUD} neighbours of one image on the border "
            "at first, on the two "
            "directions in which their logits vary most; a colour a predicted class.",
        )
    return found


def _draw_along(summary: Summary, models: list[str], figure: Any, ink: Ink) -> None:
    plots = grid_of(figure, len(models), 4)
    for line, model in zip(plots, models, strict=True):
        for axes, (name, text) in zip(
            line,
            (
                ("inconsistent", "other class, %"),
                ("neighbours_entropy", "neighbours' entropy"),
                ("divergence", "KL to the centre"),
                ("accuracy", "accuracy, %"),
            ),
            strict=True,
        ):
            panel(axes, ink, title=text, x_label="images seen", y_label=model if axes is line[0] else "")
            for scenario in SCENARIOS:
                for method, *_ in METHODS:
                    points = _pick(summary, "along", model=model, scenario=scenario, method=method)
                    draw_line(
                        axes, ink, _style(method, scenario), [p["seen"] for p in points], [p[name] for p in points]
                    )
            axes.locator_params(axis="x", nbins=4)
    entries = [
        line_entry(ink, _style(method, scenario), f"{method}, {'wild' if scenario == 'shift' else 'mild'}")
        for method, *_ in METHODS
        for scenario in SCENARIOS
    ]
    legend(figure, ink, columns=6, where="outside lower center", entries=entries)


def _draw_spread(summary: Summary, models: list[str], figure: Any, ink: Ink) -> None:
    plots = grid_of(figure, len(models), 3, sharey="row")
    x = [(place + 0.5) * 100 / BINS for place in range(BINS)]
    for line, model in zip(plots, models, strict=True):
        for axes, (method, *_) in zip(line, METHODS, strict=True):
            panel(
                axes,
                ink,
                title=f"{method}, {model}",
                x_label="neighbours of another class, %",
                y_label="images, %" if axes is line[0] else "",
            )
            for scenario in SCENARIOS:
                points = _pick(summary, "along", model=model, scenario=scenario, method=method)
                if scenario == SCENARIOS[0]:
                    first = points[0]["histogram"]
                    axes.bar(
                        x,
                        [100 * value / sum(first) for value in first],
                        width=0.92 * 100 / BINS,
                        color=ink.line(0),
                        alpha=0.35,
                        linewidth=0,
                    )
                last = points[-1]["histogram"]
                draw_line(
                    axes, ink, _style(method, scenario), x, [100 * value / sum(last) for value in last], marker="o"
                )
            axes.set_xticks([0, 25, 50, 75, 100])
    from matplotlib.patches import Patch

    entries: list[tuple[Any, str]] = [(Patch(color=ink.line(0), alpha=0.35, linewidth=0), "before")]
    entries += [
        line_entry(ink, Style(9, (3.0, 1.5) if scenario == "mild" else (), 1.6), f"after, {text}", "o")
        for scenario, text in (("mild", "mild"), ("shift", "wild"))
    ]
    legend(figure, ink, columns=3, where="outside lower center", entries=entries)


def _draw_areas(summary: Summary, models: list[str], figure: Any, ink: Ink) -> None:
    plots = grid_of(figure, len(models), 2, sharey=True, sharex="row")
    for line, model in zip(plots, models, strict=True):
        for axes, scenario in zip(line, SCENARIOS, strict=True):
            panel(
                axes,
                ink,
                title=f"{model}, {'label shift' if scenario == 'shift' else 'mild'}",
                x_label="accuracy, %",
                grid="x",
            )
            rows = {row["method"]: row for row in _pick(summary, "area", model=model, scenario=scenario)}
            names = [name for name in AREAS if name in rows]
            colours = {"1": 4, "2": 7, "3": 3, "4": 1, "12": 5, "1234": 9}
            axes.barh(
                range(len(names)),
                [rows[name]["mean"] for name in names],
                height=0.62,
                linewidth=0,
                xerr=[rows[name]["std"] or 0.0 for name in names] if any(rows[n]["std"] for n in names) else None,
                color=[ink.line(colours[name]) for name in names],
            )
            for place, name in enumerate(names):
                axes.text(
                    1.01,
                    place,
                    f"{rows[name]['mean']:.1f}",
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    color=ink.text,
                    fontsize=8.5,
                )
            if "source" in rows:
                axes.axvline(rows["source"]["mean"], color=ink.line(0), linewidth=1.6, linestyle=(0, (4, 2)))
                axes.annotate(
                    "source",
                    (rows["source"]["mean"], -0.62),
                    color=ink.line(0),
                    fontsize=8.5,
                    xytext=(3, 0),
                    textcoords="offset points",
                )
            axes.set_yticks(range(len(names)), [AREAS[name] for name in names])
            axes.set_ylim(len(names) - 0.4, -0.95)
            axes.set_xlim(0, None)
            axes.margins(x=0.12)


def _draw_clouds(summary: Summary, figure: Any, ink: Ink) -> None:
    clouds = summary["clouds"]
    plots = grid_of(figure, len(clouds), 3, sharex="row", sharey="row")
    for line, cloud in zip(plots, clouds, strict=True):
        order = [cloud["label"]]
        for answers in cloud["answers"]:
            order += sorted(set(answers) - set(order), key=answers.count, reverse=True)
        palette = {answer: (6, 4, 7, 3, 8, 2, 1, 10)[place] if place < 8 else 0 for place, answer in enumerate(order)}
        for axes, answers, seen in zip(line, cloud["answers"], cloud["seen"], strict=True):
            title = (
                f"{cloud['method']}, {seen:,} seen"
                if len({c["model"] for c in clouds}) == 1
                else f"{cloud['model']}, {cloud['method']}, {seen:,}"
            )
            panel(axes, ink, title=title, grid=None)
            for number_, answer in enumerate(order):
                mine = [point for point, found in zip(cloud["places"], answers, strict=True) if found == answer]
                if mine:
                    axes.scatter(
                        [x for x, _ in mine],
                        [y for _, y in mine],
                        s=13,
                        linewidths=0,
                        color=ink.line(palette[answer]),
                        marker="os^Dv<>P"[min(number_, 7)],
                    )
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines["bottom"].set_visible(False)
            right = answers.count(cloud["label"])
            axes.set_xlabel(
                f"{len(set(answers))} {'class' if len(set(answers)) == 1 else 'classes'}, "
                f"{100 * right / len(answers):.0f} % right",
                color=ink.text,
                fontsize=8.5,
            )


def tables(summary: Summary) -> list[Grid]:
    rows, areas = [], []
    for model in _models(summary):
        for scenario in SCENARIOS:
            for method, *_ in METHODS:
                points = _pick(summary, "along", model=model, scenario=scenario, method=method)
                first, last = points[0], points[-1]
                rows.append(
                    (
                        model,
                        scenario,
                        method,
                        f"{number(first['inconsistent'])} → {number(last['inconsistent'])}",
                        f"{number(first['neighbours_entropy'], 2)} → {number(last['neighbours_entropy'], 2)}",
                        f"{number(first['divergence'], 3)} → {number(last['divergence'], 3)}",
                        f"{number(first['accuracy'])} → {number(last['accuracy'])}",
                    )
                )
            for row in _pick(summary, "area", model=model, scenario=scenario):
                areas.append(
                    (
                        model,
                        scenario,
                        AREAS.get(row["method"], row["method"]),
                        number(row["share"]),
                        number(row["selected"]),
                        plus_minus(row["mean"], row["std"]),
                    )
                )
    return [
        Grid(
            "Consistency before → after the stream",
            (
                "",
                "stream",
                "method",
                "other class, %",
                "neighbours' entropy",
                "KL to the centre",
                "accuracy of the probe, %",
            ),
            tuple(rows),
        ),
        Grid(
            "Adapting on one area",
            ("", "stream", "area", "images at first, %", "taught along the stream, %", "accuracy, %"),
            tuple(areas),
        ),
    ]


def findings(summary: Summary) -> list[str]:
    found = []
    for model in _models(summary):
        for scenario, text in (("mild", "mild"), ("shift", "wild")):
            ends = {
                method: _pick(summary, "along", model=model, scenario=scenario, method=method)[-1]
                for method, *_ in METHODS
            }
            start = _pick(summary, "along", model=model, scenario=scenario, method="entropy")[0]
            what = ", ".join(
                f"{method} {end['inconsistent']:.1f} % (KL {end['divergence']:.3f})" for method, end in ends.items()
            )
            found.append(
                f"{model}, {text}: neighbours of another class go from {start['inconsistent']:.1f} % "
                f"(KL {start['divergence']:.3f}) to {what}."
            )
        rows = {row["method"]: row["mean"] for row in _pick(summary, "area", model=model, scenario="shift")}
        if {"1", "2", "12", "source"} <= rows.keys():
            found.append(
                f"{model}, wild: entropy on area 1 alone gives {rows['1']:.1f} %, on area 2 alone {rows['2']:.1f} "
                "%, on both "
                f"{rows['12']:.1f} %; source {rows['source']:.1f} %."
            )
    return found


STUDY = Study(
    "consistency",
    "Are neighbours predicted alike?",
    "Entropy minimisation makes single predictions certain. Does it make those around them agree, in mild and in "
    "wild streams, and "
    "does ReCAP? And do images whose neighbours disagree harm?",
    "in the wild, entropy minimisation leaves many neighbours with another class and a larger KL, and ReCAP does "
    "not; low entropy "
    "with low consistency collapses, low entropy with high consistency does as well as both together (Fig. 2 and "
    "6, ResNet50-GN).",
    run,
    pictures,
    tables,
    findings,
)
