"""Digital changes: brightness, contrast, saturation, elastic deformation, pixelation and JPEG.

Every function here takes a batch of whole grey levels (float32, 0 to 255), a key for each image and the parameters
of a severity, and returns grey levels, neither clipped nor rounded: `corrupt` does that.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import keys
from . import _filters, _jpeg

__all__ = ["brightness", "contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"]


_HALF = 0.5 + 2.0**-10  # rounds a mean that ends in a half up, whatever the rounding of the mean itself


def contrast(levels: Tensor, key: Tensor, factor: float) -> Tensor:
    mean = levels.double().mean((-2, -1), keepdim=True).float()  # a float64 sum of whole numbers is exact
    return (levels - mean) * factor + mean


def brightness(levels: Tensor, key: Tensor, shift: float) -> Tensor:
    """Add to the value of HSV. Hue and saturation are ratios, so this scales the pixel; black turns grey."""
    value = levels.amax(1, keepdim=True)
    raised = (value + 255 * shift).clamp(max=255)
    return torch.where(value > 0, levels * (raised / value.clamp(min=1)), raised)


def saturate(levels: Tensor, key: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Scale and shift the saturation of HSV. A grey pixel counts as a red of saturation 0, as in scikit-image."""
    factor, shift = parameters
    value, least = levels.amax(1, keepdim=True), levels.amin(1, keepdim=True)
    spread = value - least
    saturation = (spread / value.clamp(min=1) * factor + shift).clamp(0, 1)
    depth = (value - levels) / spread.clamp(min=1)  # 0 for the strongest channel, 1 for the weakest
    red = _filters.constant((0.0, 1.0, 1.0), levels.device)[:, None, None]
    return value - value * saturation * torch.where(spread > 0, depth, red)


def elastic_transform(levels: Tensor, key: Tensor, parameters: tuple[float, float, float]) -> Tensor:
    """A random affine map, then a smooth random displacement of every pixel."""
    strength, sigma, affine = parameters
    height, width = levels.shape[-2:]
    device = levels.device
    across, down = torch.arange(width, device=device), torch.arange(height, device=device)[:, None]

    # The affine map takes three corners of a square to jittered places; pixels are fetched through its inverse.
    reach = min(height, width) // 3
    jitter = (keys.uniform(keys.fold(key, 0), (3, 2), torch.float64) * 2 - 1) * affine
    corners = jitter + 2 * reach * _filters.constant((1, 1, 1, 0, 0, 0), device).reshape(3, 2)
    (ax, ay), (bx, by) = ((corners[:, index] - corners[:, 2]).unbind(-1) for index in (0, 1))
    scale = 2 * reach / (ax * by - ay * bx)
    # The rows of the inverse: [2r, 2r; 2r, 0] (the corners' differences before) times [ax, bx; ay, by] inverted.
    inverse = [[(by - ay) * scale, (ax - bx) * scale], [by * scale, -bx * scale]]
    places = []
    for (along_x, along_y), origin in zip(inverse, (width // 2 - reach, height // 2 - reach), strict=True):
        start = origin - along_x * (width // 2 - reach + corners[:, 2, 0])
        start = start - along_y * (height // 2 - reach + corners[:, 2, 1])
        along_x, along_y, start = (part[:, None, None] for part in (along_x, along_y, start))
        places.append(_on_a_grid(along_x * across, along_y * down + start))
    x, y = places
    levels = _sample(levels, x, y, "reflect")

    if strength:
        rows, columns = (_filters.matrix(side, sigma, device) for side in (height, width))
        noise = keys.uniform(keys.fold(key, 1), (2, height, width)) * 2 - 1
        noise = (noise * 2**11).round().double() / 2**11  # few enough digits for exact products
        dx, dy = (rows @ noise @ columns.T * strength).unbind(1)
        levels = _sample(levels, across + dx, down + dy, "symmetric")
    return levels


def _on_a_grid(across: Tensor, rest: Tensor) -> Tensor:
    """The sum of two parts of a position, in steps of 1/32 of a pixel.

    This is how OpenCV warped images when the data sets were made, and until its version 5.
    """
    steps = (across * 1024).round() + (rest * 1024).round()
    return ((steps + 16) / 32).floor() / 32


def _sample(images: Tensor, x: Tensor, y: Tensor, mode: str) -> Tensor:
    """Bilinear interpolation at pixel positions, reflected at the edge as `_filters.pad` does."""
    height, width = images.shape[-2:]
    corners = mode == "reflect"
    if corners:
        grid = torch.stack([x * (2 / (width - 1)) - 1, y * (2 / (height - 1)) - 1], -1)
    else:
        grid = torch.stack([(x + 0.5) * (2 / width) - 1, (y + 0.5) * (2 / height) - 1], -1)
    return F.grid_sample(images, grid.float(), padding_mode="reflection", align_corners=corners)


def pixelate(levels: Tensor, key: Tensor, share: float) -> Tensor:
    """Shrink and enlarge with a box filter, rounding after each axis, as Pillow does."""
    height, width = levels.shape[-2:]
    for axis, side in ((-1, int(width * share)), (-2, int(height * share))):
        first, last, weight = _boxes(levels.shape[axis], side, levels.device)
        prefix = F.pad(levels.cumsum(axis), (1, 0) if axis == -1 else (0, 0, 1, 0))  # whole numbers: exact
        total = _filters.select(prefix, axis, last).sub_(_filters.select(prefix, axis, first))
        levels = total.mul_(weight if axis == -1 else weight[:, None]).add_(_HALF).floor_()
    for axis, side in ((-1, width), (-2, height)):
        levels = _filters.select(levels, axis, _boxes(levels.shape[axis], side, levels.device)[0])
    return levels


@lru_cache(maxsize=64)
def _boxes(side: int, resized: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The range of pixels whose mean each pixel of a resized axis is (one where it grows), and the weight of each."""
    scale = side / resized
    middle = (np.arange(resized) + 0.5) * scale
    reach = max(scale, 1) / 2
    first = np.floor(middle - reach + 0.5).astype(np.int64)
    last = np.minimum(np.floor(middle + reach + 0.5).astype(np.int64), side)
    # Pillow weighs the pixels at either end once more; where they lie on the box's edge its rounding decides.
    first += (first - middle + 0.5) * (1 / (2 * reach)) <= -0.5
    last -= (last - 1 - middle + 0.5) * (1 / (2 * reach)) > 0.5
    weight = (1 / (last - first)).astype(np.float32)
    parts = (torch.from_numpy(part).to(device) for part in (first, last, weight))
    return tuple(parts)  # type: ignore[return-value]


def jpeg_compression(levels: Tensor, key: Tensor, quality: int) -> Tensor:
    return _jpeg.round_trip(levels, quality)
