"""How tight the closed forms are, against drawing from the region, and what drawing would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wildtta.core.prediction import Prediction
from wildtta.core.regional import Neighbourhood, regional_entropy, regional_instability
from wildtta.network import Network
from wildtta.source import Region
from wildtta.studies.base import Bench, rounded
from wildtta.studies.draw import Ink, Picture, grid_of, legend, panel
from wildtta.studies.grid import Grid, number
from wildtta.studies.regions import Draws
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY", "chain"]

TAUS = (0.3, 0.6, 1.2, 2.5)
DRAWS, LAM, BATCH, SHOWN = 4096, 0.5, 64, 150
SIZES = (1, 4, 16, 64, 256, 1024)
PATIENCE = 120.0
"""Seconds after which no further round of timing begins, beyond the third."""

Objective: TypeAlias = Callable[[Tensor], Iterator[Tensor]]
"""Of features; in parts that add up to it."""

_ROOM = {"cpu": 1 << 26, "cuda": 1 << 30}  # numbers in what is drawn at a time

CERTAIN = 4.0
"""A bound counts as violated where the estimate is above it by so many standard errors."""


def run(bench: Bench) -> Summary:
    kinds = bench.kinds(("clean", "fog", "glass_blur"), all_of=("clean", "gaussian_noise", "defocus_blur", "contrast"))
    count = bench.choice.images or 500
    rounds = 7 if bench.choice.small else 15
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for model in bench.models:
        name = bench.name_of(model)
        for kind in kinds:
            for tau in TAUS:
                about = {"model": model, "kind": kind, "tau": tau, "count": count, "draws": DRAWS}
                found = bench.part(
                    "bounds",
                    f"{name}-{kind}-{tau:g}",
                    about,
                    partial(_tightness, bench, model, kind, tau, count),
                )
                rows.append({"what": "tightness", "model": name, "kind": kind, "tau": tau, **found["means"]})
                if tau == 1.2:
                    points.append({"model": name, "kind": kind, **found["points"]})
        found = bench.part(
            "bounds",
            f"{name}-cost",
            {"model": model, "kind": kinds[-1], "rounds": rounds},
            partial(_cost, bench, model, kinds[-1], rounds),
        )
        rows += [{"what": "cost", "model": name, **row} for row in found["rows"]]
    return {"rows": rows, "points": points, "kinds": kinds, "images": count, "draws": DRAWS}


def chain(logits: Tensor, weight: Tensor, variance: Tensor, tau: float, draws: Draws) -> dict[str, Tensor]:
    """For each image: E[H] and E[KL] by drawing, the steps from E[H] to L_RE, and both closed forms.

    E[H] ≤ `lemma` = −Σ E[p_i] E[log p_i] (Lemma 4.1) ≤ `with_mean` = Σ E[p_j] (S_j − u_j) (Lemma 4.2): both hold. L_RE has p̄_j,
    the ratio of expectations, in the place of E[p_j]: that step is an approximation and may go either way.
    """
    around = Neighbourhood(weight, variance, tau)
    prediction = _prediction(logits)
    sums = around(prediction)
    found: dict[str, list[Tensor]] = {}
    for at, part in enumerate(logits.split(16)):
        log_p = draws.log_probabilities(part)
        mean, mean_log = log_p.exp().mean(1), log_p.mean(1)
        here = slice(16 * at, 16 * at + len(part))
        found.setdefault("lemma", []).append(-(mean * mean_log).sum(-1))
        found.setdefault("with_mean", []).append((mean * (sums[here] - part.log_softmax(-1))).sum(-1))
    measured = draws.measures(logits)
    root = len(draws.offsets) ** 0.5
    return {
        "entropy": measured["entropy"],
        "entropy_error": measured["entropy_deviation"] / root,
        "divergence": measured["divergence"],
        "divergence_error": measured["divergence_deviation"] / root,
        **{name: torch.cat(parts) for name, parts in found.items()},
        "regional_entropy": regional_entropy(around)(prediction),
        "regional_instability": regional_instability(around)(prediction),
        "centre": -(prediction.probabilities * prediction.log_probabilities).sum(-1),
    }


def _prediction(logits: Tensor) -> Prediction:
    def again(images: Tensor) -> Prediction:
        raise NotImplementedError

    keys = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return Prediction(logits, logits, logits, keys, again)


def _features(bench: Bench, model: str, kind: str, count: int) -> tuple[Network, Region, Tensor]:
    network = Network(bench.setting(model).model.network).to(bench.device)
    region = Region.estimate(network.module, bench.source(model, bench.choice.calibration))
    images, _ = bench.probe(model, kind, count)
    with torch.no_grad():
        logits = torch.cat([network.run({}, part)[0] for part in images.split(64)]).float()
    return network, region, logits


def _tightness(bench: Bench, model: str, kind: str, tau: float, count: int) -> dict[str, Any]:
    network, region, logits = _features(bench, model, kind, count)
    weight = network.head[0].float()
    variance = region.variance.to(weight.device)
    found = chain(logits, weight, variance, tau, Draws(weight, variance, tau, DRAWS))
    violated = {
        "L_RE": found["entropy"] - CERTAIN * found["entropy_error"] > found["regional_entropy"],
        "L_RI": found["divergence"] - CERTAIN * found["divergence_error"] > found["regional_instability"],
        "lemma": found["entropy"] - CERTAIN * found["entropy_error"] > found["lemma"],
        "with_mean": found["entropy"] - CERTAIN * found["entropy_error"] > found["with_mean"],
    }
    excess = (found["entropy"] - found["regional_entropy"])[violated["L_RE"]]
    ranks = {}
    for left, right in (("entropy", "regional_entropy"), ("divergence", "regional_instability")):
        ranks[f"rank_{left}"] = rounded(_rank_correlation(found[left], found[right]))
    means = {name: rounded(value.mean()) for name, value in found.items()}
    means |= {f"violated_{name}": rounded(100 * value.float().mean()) for name, value in violated.items()}
    means |= ranks | {"largest_excess": rounded(excess.max() if len(excess) else 0.0), "images": len(logits)}
    names = ("entropy", "regional_entropy", "divergence", "regional_instability")
    return {
        "means": means,
        "points": {name: [rounded(v, 3) for v in found[name][:SHOWN].cpu().tolist()] for name in names},
    }


def _rank_correlation(left: Tensor, right: Tensor) -> Tensor:
    """Spearman's."""
    ranks = torch.stack([left.argsort().argsort().double(), right.argsort().argsort().double()])
    return torch.corrcoef(ranks)[0, 1]


# -- cost --------------------------------------------------------------------------------------------------------------


def _cost(bench: Bench, model: str, kind: str, rounds: int) -> dict[str, Any]:
    """Time of objective and gradient for a batch of features, and how near the gradient is to that of many draws."""
    network, region, logits = _features(bench, model, kind, BATCH)
    weight, bias = (part.float() for part in network.head)
    variance = region.variance.to(weight.device)
    around = Neighbourhood(weight, variance, 1.2)
    # features with these logits: those of the network itself are not kept, and any will do
    feature = (logits - bias) @ torch.linalg.pinv(weight).T
    spread = (1.2 * variance).sqrt()

    def closed(z: Tensor) -> Iterator[Tensor]:
        prediction = _prediction(z @ weight.T + bias)
        yield (regional_entropy(around)(prediction) + LAM * regional_instability(around)(prediction)).mean()

    def plain(z: Tensor) -> Iterator[Tensor]:
        prediction = _prediction(z @ weight.T + bias)
        yield -(prediction.probabilities * prediction.log_probabilities).sum(-1).mean()

    def drawn(count: int) -> Objective:
        return partial(_drawn, weight=weight, bias=bias, spread=spread, count=count, at_once=_ROOM[bench.device.type])

    objectives = {"entropy": plain, "closed form": closed} | {f"{size}": drawn(size) for size in SIZES}
    many = Draws(weight, variance, 1.2, DRAWS, seed=1)
    truth = _gradient(logits, many)
    similar = {"closed form": _closed_similarity(logits, around, truth)}
    similar |= {f"{size}": _mean_similarity(logits, weight, variance, size, truth) for size in SIZES}
    times = bench.timed(
        {name: partial(_differentiated, each, feature) for name, each in objectives.items()}, rounds, PATIENCE
    )
    return {
        "rows": [
            {
                "objective": name,
                "draws": int(name) if name.isdigit() else None,
                "ms": rounded(ms),
                "similarity": similar.get(name),
            }
            for name, ms in times.items()
        ]
    }


def _sampled(logits: Tensor, draws: Draws) -> Tensor:
    log_p, centre = draws.log_probabilities(logits), logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean(-1)
    return entropy + LAM * (centre.exp()[:, None] * (centre[:, None] - log_p)).sum(-1).mean(-1)


def _gradient(logits: Tensor, draws: Draws) -> Tensor:
    """Of the sampled region confidence, with respect to the logits."""
    found = []
    for part in logits.split(8):
        own = part.detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(_sampled(own, draws).sum(), own)
        found.append(gradient)
    return torch.cat(found)


def _closed_similarity(logits: Tensor, around: Neighbourhood, truth: Tensor) -> float | None:
    own = logits.detach().clone().requires_grad_()
    with torch.enable_grad():
        prediction = _prediction(own)
        value = regional_entropy(around)(prediction) + LAM * regional_instability(around)(prediction)
        (gradient,) = torch.autograd.grad(value.sum(), own)
    return rounded(torch.nn.functional.cosine_similarity(gradient, truth, dim=-1).mean())


def _mean_similarity(logits: Tensor, weight: Tensor, variance: Tensor, size: int, truth: Tensor) -> float | None:
    """Over several samples."""
    found = [
        torch.nn.functional.cosine_similarity(
            _gradient(logits, Draws(weight, variance, 1.2, size, seed=seed)), truth, dim=-1
        )
        for seed in range(2, 6)
    ]
    return rounded(torch.stack(found).mean())


def _drawn(z: Tensor, *, weight: Tensor, bias: Tensor, spread: Tensor, count: int, at_once: int) -> Iterator[Tensor]:
    """The objective by drawing, in parts of as many draws as the memory has room for."""
    most = max(1, at_once // (len(z) * (z.shape[-1] + 3 * len(weight))))
    for start in range(0, count, most):
        draws = min(most, count - start)
        near = z[:, None] + spread * torch.randn(len(z), draws, z.shape[-1], device=z.device)
        log_p = (near @ weight.T + bias).log_softmax(-1)
        centre = (z @ weight.T + bias).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        divergence = (centre.exp()[:, None] * (centre[:, None] - log_p)).sum(-1).mean()
        yield (entropy + LAM * divergence) * (draws / count)


def _differentiated(objective: Objective, feature: Tensor) -> Tensor:
    """The gradient at some features. What comes in parts is differentiated part by part, so that one at a time is held."""
    z, gradient = feature.detach().clone().requires_grad_(), torch.zeros_like(feature)
    with torch.enable_grad():
        for part in objective(z):
            gradient += torch.autograd.grad(part, z)[0]
    return gradient


# -- showing it --------------------------------------------------------------------------------------------------------

_COLOURS = (4, 7, 3, 8, 6, 1)


def pictures(summary: Summary) -> dict[str, Picture]:
    models = list(dict.fromkeys(point["model"] for point in summary["points"]))
    return {
        "tightness": Picture(
            (7.6, 0.5 + 3.1 * len(models)),
            "Closed forms against drawing",
            partial(_draw_points, summary, models),
            "Closed forms against drawing. Each image's L_RE and L_RI (τ = 1.2) against the mean entropy and KL "
            f"of {summary['draws']:,} "
            "neighbours; on the line they would be equal, below it a bound is broken.",
        ),
        "price": Picture(
            (7.6, 0.5 + 2.6 * len(models)),
            "What drawing costs",
            partial(_draw_price, summary, models),
            f"What drawing costs. Time of objective and gradient at the features of {BATCH} images (median), and "
            "how near the "
            f"gradient comes to that of {summary['draws']:,} draws.",
        ),
    }


def _draw_points(summary: Summary, models: list[str], figure: Any, ink: Ink) -> None:
    plots = grid_of(figure, len(models), 2)
    for line, model in zip(plots, models, strict=True):
        for axes, (drawn, closed, x, y) in zip(
            line,
            (
                ("entropy", "regional_entropy", "E[H], drawn", "L_RE"),
                ("divergence", "regional_instability", "E[KL], drawn", "L_RI"),
            ),
            strict=True,
        ):
            panel(axes, ink, title=model if drawn == "entropy" else "", x_label=x, y_label=y, grid="both")
            top = 0.0
            for place, point in enumerate(each for each in summary["points"] if each["model"] == model):
                axes.scatter(
                    point[drawn],
                    point[closed],
                    s=9,
                    linewidths=0,
                    alpha=0.75,
                    color=ink.line(_COLOURS[place % 6]),
                    marker="o^sD"[place % 4],
                    label=point["kind"].replace("_", " "),
                )
                top = max(top, *point[drawn])
            axes.plot([0, top], [0, top], color=ink.text, linewidth=1, linestyle=(0, (4, 2)))
        legend(line[0], ink, where="lower right")


def _draw_price(summary: Summary, models: list[str], figure: Any, ink: Ink) -> None:
    plots = grid_of(figure, len(models), 2)
    for line, model in zip(plots, models, strict=True):
        rows = [row for row in summary["rows"] if row["what"] == "cost" and row["model"] == model]
        drawn = [row for row in rows if row["draws"]]
        for axes, name, text in zip(
            line, ("ms", "similarity"), ("milliseconds", "cosine of the gradient"), strict=True
        ):
            panel(axes, ink, title=model if name == "ms" else "", x_label="draws an image", y_label=text)
            axes.set_xscale("log", base=2)
            axes.plot(
                [row["draws"] for row in drawn],
                [row[name] for row in drawn],
                color=ink.line(4),
                marker="o",
                markersize=4,
                linewidth=1.5,
                label="drawing",
            )
            for place, (label, colour) in enumerate((("closed form", 6), ("entropy", 0))):
                found = [row[name] for row in rows if row["objective"] == label]
                if found and found[0] is not None:
                    axes.axhline(
                        found[0],
                        color=ink.line(colour),
                        linewidth=2.0 - 0.6 * place,
                        linestyle="-" if place == 0 else (0, (4, 2)),
                        label=label if place == 0 else "entropy alone",
                    )
            axes.set_xticks([row["draws"] for row in drawn], [str(row["draws"]) for row in drawn])
            axes.minorticks_off()
            if name == "ms":
                axes.set_yscale("log")
                from matplotlib.ticker import FuncFormatter, NullFormatter

                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axes.yaxis.set_minor_formatter(NullFormatter())
        legend(line[0], ink, where="upper left")


def tables(summary: Summary) -> list[Grid]:
    tight = [row for row in summary["rows"] if row["what"] == "tightness"]
    rows = [
        (
            row["model"],
            row["kind"].replace("_", " "),
            f"{row['tau']:g}",
            number(row["entropy"], 3),
            number(row["lemma"], 3),
            number(row["with_mean"], 3),
            number(row["regional_entropy"], 3),
            f"{row['violated_L_RE']:.1f} %",
            number(row["rank_entropy"], 2),
            number(row["divergence"], 3),
            number(row["regional_instability"], 3),
            f"{row['violated_L_RI']:.1f} %",
            number(row["rank_divergence"], 2),
        )
        for row in tight
    ]
    cost = [
        (
            row["model"],
            f"{row['draws']:,} draws" if row["draws"] else row["objective"],
            number(row["ms"], 2),
            number(row["similarity"], 3),
        )
        for row in summary["rows"]
        if row["what"] == "cost"
    ]
    return [
        Grid(
            "Means over images, in nats",
            (
                "",
                "images",
                "τ",
                "E[H]",
                "Lemma 4.1",
                "Lemma 4.2, E[p]",
                "L_RE",
                "E[H] > L_RE",
                "rank",
                "E[KL]",
                "L_RI",
                "E[KL] > L_RI",
                "rank",
            ),
            tuple(rows),
            f"Drawn: {summary['draws']:,} neighbours an image. A bound counts as broken where the drawn mean is "
            "above it by "
            f"{CERTAIN:g} standard errors. Rank: Spearman's correlation over images.",
        ),
        Grid(
            f"Objective and gradient, batch of {BATCH}",
            ("", "objective", "ms", "cosine to the drawn gradient"),
            tuple(cost),
        ),
    ]


def findings(summary: Summary) -> list[str]:
    found = []
    tight = [row for row in summary["rows"] if row["what"] == "tightness"]
    for model in dict.fromkeys(row["model"] for row in tight):
        usual = [row for row in tight if row["model"] == model and row["tau"] == 1.2]
        broken = ", ".join(f"{row['kind'].replace('_', ' ')} {row['violated_L_RE']:.1f} %" for row in usual)
        largest = max(row["largest_excess"] for row in tight if row["model"] == model)
        found.append(
            f"{model}: E[H] ≤ L_RE, which the paper states as a bound, is broken for {broken} of the images at τ = 1.2 "
            f"(at most by {largest:.3f} nats at any τ). The two lemmas behind it hold: broken for "
            f"{max(max(row['violated_lemma'], row['violated_with_mean']) for row in tight if row['model'] == model):.1f} %."
        )
        found.append(
            f"{model}: E[KL] ≤ L_RI is broken for at most "
            f"{max(row['violated_L_RI'] for row in tight if row['model'] == model):.1f} % of the images."
        )
        ratio = [
            f"{row['tau']:g}: {row['regional_entropy'] / max(row['entropy'], 1e-9):.2f} and "
            f"{row['regional_instability'] / max(row['divergence'], 1e-9):.2f}"
            for row in tight
            if row["model"] == model and row["kind"] == tight[-1]["kind"]
        ]
        found.append(
            f"{model}: L_RE ÷ E[H] and L_RI ÷ E[KL] ({tight[-1]['kind'].replace('_', ' ')}) by τ, {'; '.join(ratio)}."
        )
        cost = {row["objective"]: row for row in summary["rows"] if row["what"] == "cost" and row["model"] == model}
        near = [row for row in cost.values() if row["draws"] and row["similarity"] >= cost["closed form"]["similarity"]]
        enough = f"{near[0]['draws']} draws" if near else "more draws than were tried"
        last = [row for row in cost.values() if row["draws"]][-1]
        found.append(
            f"{model}: the closed form takes {cost['closed form']['ms']:.2f} ms a batch, {last['draws']:,} draws take "
            f"{last['ms']:.1f} ms; its gradient is as near to the true one (cosine "
            f"{cost['closed form']['similarity']:.3f}) "
            f"as that of {enough}."
        )
    return found


STUDY = Study(
    "bounds",
    "How tight the closed forms are",
    "ReCAP minimises closed forms in the place of expectations over a region. How near are they, are they "
    "bounds, and what would "
    "drawing cost?",
    "L_RE and L_RI are called upper bounds (Prop. 4.3 and 4.4); sampling is called impractical. No figure is given.",
    run,
    pictures,
    tables,
    findings,
)
