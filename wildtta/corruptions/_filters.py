"""Filters, zoom and motion that several corruptions share.

An image must come out with the same bits in any batch, but a matrix product or a convolution may add its terms in
another order for another batch size. So everything here is either elementwise, with multiplications and additions
kept apart (a fused one rounds otherwise, and the tail of a vector is not always fused), or exact: the weights of
`matrix` have 20 binary digits, which with numbers of at most 13 digits makes sums that 53 digits hold.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["clipped_zoom", "constant", "gaussian", "gaussian_weights", "matrix", "motion", "pad", "select", "truncate"]

_DIGITS = 20
_WHOLE = 2.0**-10  # grey levels: what is this near below a whole number is that number but for rounding


def truncate(levels: Tensor) -> Tensor:
    """To whole grey levels as `np.uint8` does, by dropping the fraction, with a guard for rounding."""
    return levels.clamp(0, 255).add_(_WHOLE).floor_()


@lru_cache(maxsize=64)
def constant(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on the device. Copying them there makes the host wait for the device, so it is done once."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def _source(length: int, margin: int, mode: str) -> NDArray[np.int64]:
    """Where each position of a padded axis comes from; the margin may be wider than the axis."""
    return np.pad(np.arange(length), margin, mode=mode)  # type: ignore[call-overload]


def pad(images: Tensor, margin: int, mode: str) -> Tensor:
    """Pad the last two axes in one of numpy's modes.

    That is "edge" (scipy's "nearest"), "reflect" (OpenCV's 101) or "symmetric" (scipy's "reflect").
    """
    for axis in (-2, -1):
        images = select(images, axis, _index(images.shape[axis], margin, mode, images.device))
    return images


def select(images: Tensor, axis: int, index: Tensor) -> Tensor:
    """Rows (axis -2) or columns (axis -1). On a CPU `index_select` is fast for rows alone."""
    if axis == -1:
        return images.gather(-1, index.expand(*images.shape[:-1], -1))
    return images.index_select(axis, index)


@lru_cache(maxsize=256)
def _index(length: int, margin: int, mode: str, device: torch.device) -> Tensor:
    return torch.from_numpy(_source(length, margin, mode)).to(device)


def gaussian_weights(sigma: float, radius: int) -> NDArray[np.float64]:
    """A sampled Gaussian of 2 * radius + 1 taps that sums to one."""
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2) if radius else np.ones(1)
    return weights / weights.sum()


def gaussian(images: Tensor, sigma: float) -> Tensor:
    """Blur as scikit-image's Gaussian filter does by default: four sigma wide, the edge repeated."""
    radius = int(4 * sigma + 0.5)
    weights = gaussian_weights(sigma, radius)[radius:].tolist()
    images = pad(images, radius, "edge")
    for axis in (-2, -1):
        size = images.shape[axis] - 2 * radius
        blurred = images.narrow(axis, radius, size) * weights[0]
        for tap, weight in enumerate(weights[1:], 1):
            pair = images.narrow(axis, radius - tap, size) + images.narrow(axis, radius + tap, size)
            blurred += pair.mul_(weight)
        images = blurred
    return images


@lru_cache(maxsize=64)
def matrix(side: int, sigma: float, device: torch.device) -> Tensor:
    """A Gaussian filter of any width as a matrix on an axis: three sigma wide, mirrored at the edge (float64)."""
    radius = int(3 * sigma + 0.5)
    source = _source(side, radius, "symmetric")
    weights = np.zeros((side, side))
    for tap, weight in enumerate(gaussian_weights(sigma, radius)):
        np.add.at(weights, (np.arange(side), source[tap : tap + side]), weight)
    return torch.from_numpy(np.ldexp(np.rint(np.ldexp(weights, _DIGITS)), -_DIGITS)).to(device)


@lru_cache(maxsize=256)
def _zoom_axis(side: int, factor: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Two neighbours and the share of the second, for each position of an axis zoomed about its middle.

    As the original does it: crop, scipy's linear zoom (the corners stay corners), crop what is over.
    """
    crop = math.ceil(side / factor)
    zoomed = round(crop * factor)
    position = (np.arange(side) + (zoomed - side) // 2) * ((crop - 1) / (zoomed - 1))
    first = np.minimum(np.floor(position), crop - 2).astype(np.int64)
    start = (side - crop) // 2
    lower = torch.from_numpy(first + start).to(device)
    return lower, lower + 1, torch.from_numpy((position - first).astype(np.float32)).to(device)


def clipped_zoom(images: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of the images to their full size, bilinearly."""
    if factor == 1:
        return images
    lower, upper, share = _zoom_axis(images.shape[-2], factor, images.device)
    first = select(images, -2, lower)
    images = first + (select(images, -2, upper) - first) * share[:, None]
    lower, upper, share = _zoom_axis(images.shape[-1], factor, images.device)
    first = select(images, -1, lower)
    return first + (select(images, -1, upper) - first) * share


def motion(images: Tensor, length: int, sigma: float, degrees: Tensor) -> Tensor:
    """Smear each image along a direction of its own, as ImageMagick's motion blur does.

    Half a Gaussian of 2 * length + 1 taps lies along a ray from the pixel; each tap reads the pixel nearest to it,
    or the edge's beyond the edge. The result is rounded to whole grey levels, as ImageMagick's is.
    """
    weights = np.exp(-0.5 * (np.arange(2 * length + 1) / sigma) ** 2)
    weights = weights[weights > 1e-7]  # the rest add up to less than a thousandth of a grey level
    weights = weights / weights.sum()
    margin, (count, channels, height, width) = len(weights), images.shape
    padded = pad(images, margin, "edge").flatten(-2)
    steps = torch.arange(len(weights), device=images.device)
    radians = degrees.double()[:, None] * (math.pi / 180)
    down, right = ((steps * part - 0.5).ceil().long() + margin for part in (radians.sin(), radians.cos()))
    start = down * (width + 2 * margin) + right
    offset = torch.arange(height, device=images.device)[:, None] * (width + 2 * margin)
    offset = (offset + torch.arange(width, device=images.device)).flatten()
    blurred = torch.zeros_like(images).flatten(-2)
    for tap, weight in enumerate(weights.tolist()):
        index = (offset + start[:, tap, None])[:, None].expand(-1, channels, -1)
        blurred += padded.gather(-1, index).mul_(weight)
    return blurred.reshape(count, channels, height, width).round()
