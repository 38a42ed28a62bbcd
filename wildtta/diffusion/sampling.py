"""Back along a diffusion, led by what is left of an image when its detail is taken away.

    x_N = √ᾱ_N x + √(1 − ᾱ_N) ε,    x_{i−1} ~ p(x_{i−1} | x_i) − scale · ∇_{x_i} ‖φ(x) − φ(x̂₀(x_i))‖₂

φ makes an image smaller by D and large again. The norm is each image's own, so an image's result does not depend on its
neighbours. x̂₀ is clipped to [−1, 1], and the gradient goes through the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wildtta.core import keys as random

__all__ = ["Level", "Noise", "back", "guided_step", "low_pass", "respaced"]

Noise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x, steps of the diffusion) → (the noise in x; where the variance is between the smallest, −1, and the largest, 1)."""


@dataclass(frozen=True)
class Level:
    """A step of a respaced diffusion: its place in the whole one, ᾱ there and one step before, the variances' logarithms."""

    time: int
    kept: float
    kept_before: float
    smallest: float
    largest: float

    @property
    def clean(self) -> tuple[float, float]:
        """x̂₀ from x and the noise in it."""
        return 1 / math.sqrt(self.kept), -math.sqrt(1 / self.kept - 1)

    @property
    def mean(self) -> tuple[float, float]:
        """The mean of the step before, from x̂₀ and x."""
        grown = 1 - self.kept / self.kept_before
        return (
            grown * math.sqrt(self.kept_before) / (1 - self.kept),
            (1 - self.kept_before) * math.sqrt(1 - grown) / (1 - self.kept),
        )


def respaced(betas: Sequence[float], steps: int) -> list[Level]:
    """A diffusion in fewer steps, evenly spread over the whole one, the first and the last among them."""
    if not 2 <= steps <= len(betas):
        raise ValueError(
            f"steps must be from 2 to {len(betas)}, which the diffusion model was trained with, not {steps}"
        )
    kept, product = [], 1.0
    for beta in betas:
        product *= 1 - beta
        kept.append(product)
    times = [round(place * (len(betas) - 1) / (steps - 1)) for place in range(steps)]
    levels: list[Level] = []
    before = 1.0
    for time in times:
        grown = 1 - kept[time] / before
        variance = grown * (1 - before) / (1 - kept[time])
        levels.append(Level(time, kept[time], before, math.log(variance) if variance else -math.inf, math.log(grown)))
        before = kept[time]
    return levels


def low_pass(images: Tensor, down: int) -> Tensor:
    """φ: smaller by `down`, and large again, both by cubic interpolation with antialiasing.

    As `torch.nn.functional.interpolate(mode="bicubic", antialias=True)` and Pillow do it (Keys' kernel, a = −1/2, weights that
    sum to 1 at the border). Written as two matrix products, so that it is exactly linear and batches in any transform.
    """
    rows, columns = (_low_pass_matrix(side, down, images) for side in images.shape[-2:])
    return rows @ images @ columns.mT


def _low_pass_matrix(side: int, down: int, like: Tensor) -> Tensor:
    if down < 1 or side % down:
        raise ValueError(f"down must divide the images' sides, but {down} does not divide {side}")
    small = side // down
    return (_resizing(small, side, like) @ _resizing(side, small, like)).to(like.dtype)


def _resizing(before: int, after: int, like: Tensor) -> Tensor:
    """After × before: a side's new pixels as weighted means of the old ones, in float64."""
    factor = before / after
    wide = max(factor, 1.0)  # where pixels get fewer, the kernel grows: that is the antialiasing
    new = (torch.arange(after, device=like.device, dtype=torch.float64) + 0.5) * factor
    old = torch.arange(before, device=like.device, dtype=torch.float64) + 0.5
    away = (old - new[:, None]).abs() / wide
    near = 1.5 * away**3 - 2.5 * away**2 + 1
    far = -0.5 * away**3 + 2.5 * away**2 - 4 * away + 2
    weights = torch.where(away < 1, near, torch.where(away < 2, far, 0.0))
    return weights / weights.sum(1, keepdim=True)


class Guided(NamedTuple):
    """What a step gives: the step before, and what the image is thought to be."""

    before: Tensor
    clean: Tensor


def guided_step(
    noise_in: Noise, x: Tensor, reference: Tensor, level: Level, fresh: Tensor | None, scale: float, down: int
) -> Guided:
    """One step back, led towards the reference. `fresh` is its noise; None: there is none, as in the last step."""
    times = torch.full((len(x),), level.time, device=x.device)

    def distance(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        noise, share = noise_in(x, times)
        of_x, of_noise = level.clean
        clean = (of_x * x + of_noise * noise).clamp(-1, 1)
        apart = low_pass(reference - clean, down)
        return torch.linalg.vector_norm(apart.flatten(1), dim=1).sum(), (clean, share)

    gradient, (clean, share) = torch.func.grad(distance, has_aux=True)(x)
    of_clean, of_x = level.mean
    before = of_clean * clean + of_x * x
    if fresh is not None:
        logarithm = level.smallest + (share + 1) / 2 * (level.largest - level.smallest)
        before = before + (0.5 * logarithm).exp() * fresh
    return Guided(before - scale * gradient, clean)


def back(
    noise_in: Noise,
    reference: Tensor,
    keys: Tensor,
    levels: Sequence[Level],
    *,
    start: int,
    scale: float,
    down: int,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Images in [−1, 1] to where the diffusion model knows them.

    Args:
        keys: one an image; all its noise is drawn from it.
        levels: as `respaced` gives them. start: the one where the noised images set out; the steps below it are gone back.
        progress: is told of every step that is done.
    """
    if not 1 <= start < len(levels):
        raise ValueError(f"start must be from 1 to {len(levels) - 1}, for {len(levels)} steps, but is {start}")

    def drawn(step: int) -> Tensor:
        return random.normal(random.fold(keys, step), tuple(reference.shape[1:]), reference.dtype)

    kept = levels[start].kept
    x = math.sqrt(kept) * reference + math.sqrt(1 - kept) * drawn(start)
    for step in reversed(range(start)):
        x = guided_step(noise_in, x, reference, levels[step], drawn(step) if step else None, scale, down).before
        if progress is not None:
            progress(step)
    return x
