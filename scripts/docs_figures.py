"""Draws the figures of the page on region confidence, with the library's own measures.

    python scripts/docs_figures.py

A head with three classes looks at features in the plane. The features vary widely along one axis and little along the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from figure_svg import COLOUR, FAINT, INK, new_figure, save
from matplotlib.patches import Ellipse
from torch import Tensor

from wildtta.core import Neighbourhood, Prediction, entropy, regional_entropy, regional_instability

OUT = Path(__file__).parent.parent / "docs" / "images"
CLASSES = ("teal", "ochre", "violet")

HEAD = torch.tensor([[2.2, 0.0], [-1.1, 1.9], [-1.1, -1.9]], dtype=torch.float64)
VARIANCE = torch.tensor([0.45, 0.06], dtype=torch.float64)
TAU = 1.2
AROUND = Neighbourhood(HEAD, VARIANCE, TAU)


class Values(NamedTuple):
    entropy: Tensor
    regional_entropy: Tensor
    instability: Tensor


def predict(features: Tensor) -> Prediction:
    def again(_: Tensor) -> Prediction:
        raise NotImplementedError

    return Prediction(features @ HEAD.T, features, features, torch.zeros(len(features), dtype=torch.int64), again)


def values(features: Tensor) -> Values:
    prediction = predict(features)
    return Values(entropy()(prediction), regional_entropy(AROUND)(prediction), regional_instability(AROUND)(prediction))


def sampled(features: Tensor, count: int = 4000) -> tuple[Tensor, Tensor]:
    """The mean entropy, and the mean KL(p(z) ‖ p(z̃)), over points drawn from the region of each feature."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64) * (TAU * VARIANCE).sqrt()
    here = predict(features)
    there = ((features[:, None] + noise) @ HEAD.T).log_softmax(-1)
    uncertainty = -(there.exp() * there).sum(-1).mean(1)
    divergence = (here.probabilities[:, None] * (here.log_probabilities[:, None] - there)).sum(-1).mean(1)
    return uncertainty, divergence


def grid(reach: float = 2.4, count: int = 61) -> tuple[np.ndarray, np.ndarray, Tensor]:
    x, y = np.meshgrid(np.linspace(-reach, reach, count), np.linspace(-reach, reach, count))
    return x, y, torch.from_numpy(np.stack([x.ravel(), y.ravel()], -1))


def boundaries(axes: Any, **style: Any) -> None:
    """Where the most probable class changes: three rays from the middle."""
    ends = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        across = HEAD[first] - HEAD[second]
        along = torch.stack([-across[1], across[0]])
        for ray in (along, -along):
            scores = HEAD @ ray
            if scores[first] >= scores.max() - 1e-9:
                ends.append(4 * ray / ray.norm())
    for end in ends:
        axes.plot([0, end[0]], [0, end[1]], **style)


def equally_sure(at: float, start: tuple[float, float], step: tuple[float, float]) -> Tensor:
    """The feature at which the entropy has this value, on the way from a boundary into a class."""
    begin, ray = torch.tensor(start, dtype=torch.float64), torch.tensor(step, dtype=torch.float64)
    low, high = 0.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if values((begin + middle * ray)[None]).entropy > at else (low, middle)
    return begin + low * ray


def plain(axes: Any, reach: float = 2.4) -> None:
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")


def regions() -> None:
    """Two features of equal entropy: the region of one lies within its class, that of the other reaches across."""
    figure = new_figure(7.2, 3.7)
    generator = torch.Generator().manual_seed(3)
    ways = (((-1.3, 0.0), (0.0, 1.0)), ((0.0, 0.0), (1.0, 0.0)))
    for axes, (start, step) in zip(figure.subplots(1, 2), ways, strict=True):
        z = equally_sure(0.25, start, step)
        points = z + torch.randn(350, 2, generator=generator, dtype=torch.float64) * (TAU * VARIANCE).sqrt()
        guesses = (points @ HEAD.T).argmax(-1)
        for place, name in enumerate(CLASSES):
            mine = points[guesses == place]
            axes.scatter(mine[:, 0], mine[:, 1], s=4, color=COLOUR[name], linewidths=0)
        for spread in (1, 2):
            width, height = (2 * spread * (TAU * VARIANCE).sqrt()).tolist()
            axes.add_patch(Ellipse(tuple(z.tolist()), width, height, fill=False, edgecolor=INK, linewidth=0.8))
        boundaries(axes, color=FAINT, linewidth=1.2)
        axes.plot(*z.tolist(), marker="x", color=INK, markersize=7, markeredgewidth=1.8)
        found = values(z[None])
        same = float((guesses == predict(z[None]).logits.argmax()).double().mean())
        axes.set_title(
            f"H = {found.entropy.item():.2f} · L_RE = {found.regional_entropy.item():.2f} · "
            f"L_RI = {found.instability.item():.2f}"
        )
        axes.set_xlabel(f"the same answer in {100 * same:.0f} % of the region")
        plain(axes)
    save(
        figure,
        OUT / "regions.svg",
        "Two features with the same entropy; the region of the first stays within its class, that of the second reaches across "
        "decision boundaries, and has a larger regional entropy and instability",
    )


def planes() -> None:
    """The three measures over the plane."""
    figure = new_figure(8.4, 3.2)
    x, y, features = grid()
    found = values(features)
    titles = ("entropy H", "regional entropy L_RE", "regional instability L_RI")
    for axes, title, value in zip(figure.subplots(1, 3), titles, found, strict=True):
        shown = value.reshape(x.shape).numpy()
        levels = np.linspace(0, float(np.ceil(10 * shown.max()) / 10), 9)
        filled = axes.contourf(x, y, shown, levels, cmap="cividis")
        boundaries(axes, color="white", linewidth=0.8, linestyle=(0, (4, 3)))
        bar = figure.colorbar(filled, ax=axes, shrink=0.75, ticks=levels[::4])
        bar.outline.set_visible(False)  # type: ignore[operator]
        axes.set_title(title)
        plain(axes)
    save(
        figure,
        OUT / "planes.svg",
        "Entropy, regional entropy and regional instability over a plane of features: entropy is high on the decision boundaries "
        "alone, the regional measures in a wide band beside those that the region reaches across",
    )


def bounds() -> None:
    """The closed forms beside what they stand for, along a line across a boundary."""
    figure = new_figure(7.6, 3.0)
    t = torch.linspace(-2.4, 2.4, 121, dtype=torch.float64)
    features = torch.stack([t, torch.full_like(t, 0.35)], -1)
    found, (uncertainty, divergence) = values(features), sampled(features)
    left, right = figure.subplots(1, 2)
    left.plot(t, found.regional_entropy, color=COLOUR["red"], linewidth=2, label="L_RE, closed form")
    left.plot(
        t,
        uncertainty,
        color=COLOUR["blue"],
        linewidth=1.3,
        linestyle=(0, (4, 1.5)),
        label="mean entropy of 4,000 samples",
    )
    left.plot(
        t, found.entropy, color=COLOUR["grey"], linewidth=1.1, linestyle=(0, (1, 1.5)), label="entropy at the feature"
    )
    right.plot(t, found.instability, color=COLOUR["red"], linewidth=2, label="L_RI, closed form")
    right.plot(
        t, divergence, color=COLOUR["blue"], linewidth=1.3, linestyle=(0, (4, 1.5)), label="mean KL of 4,000 samples"
    )
    for axes in (left, right):
        axes.set_xlabel("place of the feature, along the first axis")
        axes.set_ylabel("nats")
        axes.set_ylim(bottom=0)
        axes.set_ylim(top=1.25 * axes.get_ylim()[1])
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    save(
        figure,
        OUT / "bounds.svg",
        "Along a line of features: regional entropy lies above the mean entropy of samples from the region, and regional "
        "instability above their mean divergence",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for draw in (regions, planes, bounds):
        draw()
    for path in sorted(OUT.glob("*.svg")):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
