"""Blurs: defocus, glass, motion, zoom and Gaussian.

Every function here takes a batch of whole grey levels (float32, 0 to 255), a key for each image and the parameters
of a severity, and returns grey levels, neither clipped nor rounded: `corrupt` does that.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import keys
from . import _filters

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def gaussian_blur(levels: Tensor, key: Tensor, sigma: float) -> Tensor:
    return _filters.gaussian(levels, sigma)


def defocus_blur(levels: Tensor, key: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Convolve with a disk, itself smoothed by a Gaussian of 3 or 5 taps against aliasing.

    A disk is a stack of horizontal runs, and a run is a difference of two prefix sums, so the cost grows with the
    radius and not with the area.
    """
    radius, sigma = parameters
    reach, fringe = int(radius), 1 if radius <= 8 else 2
    runs = _runs(radius)
    height, width = levels.shape[-2:]
    padded = _filters.pad(levels, reach + fringe, "reflect")
    prefix = F.pad(padded.int().cumsum(-1, dtype=torch.int32), (1, 0))
    blurred = torch.zeros_like(prefix[..., : height + 2 * fringe, : width + 2 * fringe])
    for row, run in enumerate(runs):
        rows = prefix[..., row : row + blurred.shape[-2], :]
        blurred += rows[..., reach + run + 1 : reach + run + 1 + blurred.shape[-1]]
        blurred -= rows[..., reach - run : reach - run + blurred.shape[-1]]
    blurred, weights = blurred.float(), _filters.gaussian_weights(sigma, fringe).tolist()
    for axis, size in ((-2, height), (-1, width)):
        total = torch.zeros((), device=levels.device)
        for tap, weight in enumerate(weights):
            total = total + blurred.narrow(axis, tap, size) * weight
        blurred = total
    for row, column, weight in _tips(radius, sigma):
        blurred += padded[..., row : row + height, column : column + width] * weight
    return blurred / sum(2 * run + 1 for run in runs)


def _runs(radius: float) -> list[int]:
    """How far each row of the disk goes to either side."""
    reach = int(radius)
    return [math.isqrt(int(radius * radius) - row * row) for row in range(-reach, reach + 1)]


@lru_cache(maxsize=16)
def _tips(radius: float, sigma: float) -> list[tuple[int, int, float]]:
    """What a disk smoothed as a whole lacks of the original's kernel: (row, column, weight).

    The original smooths the disk as an image of 17 by 17 pixels, or of the disk's own size beyond that. Where the
    disk touches the border of that image its smoothing sees a reflection, which makes the blurred image brighter (by
    one per cent at a radius of 8).
    """
    reach, fringe = int(radius), 1 if radius <= 8 else 2
    border = max(8, reach) - reach
    disk = [[abs(column) <= run for column in range(-reach, reach + 1)] for run in _runs(radius)]
    box = np.pad(np.array(disk, dtype=np.float64), border)
    side = len(box)
    mirrored, spilt = np.zeros((side, side)), np.zeros((side + 2 * fringe, side))
    for tap, weight in enumerate(_filters.gaussian_weights(sigma, fringe)):
        mirrored += weight * np.eye(side)[np.pad(np.arange(side), fringe, mode="reflect")[tap : tap + side]]
        spilt += weight * np.eye(side + 2 * fringe, side, k=-tap)
    lacking = np.pad(mirrored @ box @ mirrored.T, fringe) - spilt @ box @ spilt.T
    places = np.argwhere(abs(lacking) > 1e-3)  # of a pixel; the disk has hundreds
    return [(int(row) - border, int(column) - border, float(lacking[row, column])) for row, column in places]


def glass_blur(levels: Tensor, key: Tensor, parameters: tuple[float, int, int]) -> Tensor:
    """Blur, move pixels about locally, and blur again.

    The original walks over the pixels from the last to the first and means to swap each with a random neighbour. But
    what it swaps are numpy views, so the neighbour's value is copied over the pixel and the neighbour stays as it
    was. A pixel thus ends up with its neighbour's value: the final one if the walk has passed the neighbour already,
    else the one from before the walk. That is a forest of pointers, and rather than walk it we let every pointer
    jump to where its target points. Each jump doubles the steps taken, so six cover chains of 64 (a chain goes on
    with a probability below a half at each step), and the result is exactly the sequential one.
    """
    sigma, reach, rounds = parameters
    height, width = levels.shape[-2:]
    pixels = height * width
    here = torch.arange(pixels, device=levels.device)
    row, column = here // width, here % width
    offset = torch.arange(-reach, reach, device=levels.device)  # it never moves a pixel by the full reach down or right
    steps = (offset[:, None] * width + offset).flatten()
    walked = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    values = _filters.truncate(_filters.gaussian(levels, sigma)).flatten(-2)
    for turn in range(rounds):
        choice = (keys.uniform(keys.fold(key, turn), (pixels,)) * len(steps)).int()
        there = here + steps.index_select(0, choice.flatten()).reshape(choice.shape) * walked
        if reach > 1:  # else no neighbour comes earlier in the walk
            # Pointers below `pixels` are to a pixel's final value, those above to its value from before the walk.
            pointer = torch.where(there > here, there, there + pixels)
            settled = (here + pixels).expand_as(pointer)
            for _ in range(6):
                pointer = torch.cat([pointer, settled], -1).gather(-1, pointer)
            there = torch.where(pointer < pixels, pointer, pointer - pixels)
        values = values.gather(-1, there[:, None].expand_as(values))
    return _filters.gaussian(values.reshape(levels.shape), sigma)


def motion_blur(levels: Tensor, key: Tensor, parameters: tuple[int, float]) -> Tensor:
    return _filters.motion(levels, *parameters, degrees=keys.uniform(key, dtype=torch.float64) * 90 - 45)


def zoom_blur(levels: Tensor, key: Tensor, factors: tuple[float, ...]) -> Tensor:
    """The mean of the image and of ever larger zooms into its middle."""
    total = levels.clone()
    for factor in factors:
        total += _filters.clipped_zoom(levels, factor)
    return total / (len(factors) + 1)
