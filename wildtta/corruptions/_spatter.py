"""The relief of the drops in `spatter`: edges, distance from them, equalisation and a lighting filter.

It follows OpenCV's Canny, chamfer distance, histogram equalisation and 8-bit filters in whole numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _filters

__all__ = ["chamfer", "edges", "relief"]

_FAR = 20  # pixels: distances beyond are cut to this


def relief(layer: Tensor) -> Tensor:
    """B x 1 x H x W of whole grey levels (int32) to the relief's (int32)."""
    distance = chamfer(edges(layer, 50, 150))
    distance = (_sum3(distance) // 9) >> 16  # the mean of three by three, its fraction dropped
    distance = _equalised(distance)
    # Light from one corner: OpenCV's filters see the image reflected at the edge.
    near = _filters.pad(distance, 1, "reflect")
    height, width = distance.shape[-2:]
    lit = torch.zeros_like(distance)
    for row, weights in enumerate(((-2, -1, 0), (-1, 1, 1), (0, 1, 2))):
        for column, weight in enumerate(weights):
            lit += weight * near[..., row : row + height, column : column + width]
    return (2 * _sum3(lit.clamp(0, 255)) + 9) // 18  # a rounded mean


def _sum3(plane: Tensor) -> Tensor:
    height, width = plane.shape[-2:]
    plane = _filters.pad(plane, 1, "reflect")
    plane = plane[..., :height, :] + plane[..., 1 : height + 1, :] + plane[..., 2:, :]
    return plane[..., :width] + plane[..., 1 : width + 1] + plane[..., 2:]


def edges(layer: Tensor, low: int, high: int) -> Tensor:
    """Canny's edges: ridges of the gradient above `low` that hang together with one above `high`."""
    height, width = layer.shape[-2:]
    near = _filters.pad(layer, 1, "edge")
    smooth = near[..., :height, :] + 2 * near[..., 1 : height + 1, :] + near[..., 2:, :]
    dx = smooth[..., 2:] - smooth[..., :width]
    smooth = near[..., :width] + 2 * near[..., 1 : width + 1] + near[..., 2:]
    dy = smooth[..., 2:, :] - smooth[..., :height, :]
    size = dx.abs() + dy.abs()
    around = F.pad(size, (1, 1, 1, 1))

    def neighbour(down: int, right: int) -> Tensor:
        return around[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # A ridge is a maximum across itself: beside, above or on a diagonal, by the gradient's angle (of 22.5 degrees).
    x, y = dx.abs().long(), dy.abs().long() << 15
    flat, steep = x * 13573, x * 13573 + (x << 16)
    beside = (size > neighbour(0, -1)) & (size >= neighbour(0, 1))
    above = (size > neighbour(-1, 0)) & (size >= neighbour(1, 0))
    falling = (size > neighbour(-1, -1)) & (size > neighbour(1, 1))
    rising = (size > neighbour(-1, 1)) & (size > neighbour(1, -1))
    diagonal = torch.where((dx ^ dy) < 0, rising, falling)
    ridge = torch.where(y < flat, beside, torch.where(y > steep, above, diagonal)) & (size > low)

    grown = ridge & (size > high)
    while True:  # grow along the ridges, some steps at a time, then see whether anything changed
        before = grown
        for _ in range(8):
            grown = _dilated(grown) & ridge
        if torch.equal(grown, before):
            return grown


def _dilated(mask: Tensor) -> Tensor:
    """Whether a pixel or one of its eight neighbours is set."""
    for axis in (-2, -1):
        size = mask.shape[axis] - 1
        wider = mask.clone()
        wider.narrow(axis, 1, size).logical_or_(mask.narrow(axis, 0, size))
        wider.narrow(axis, 0, size).logical_or_(mask.narrow(axis, 1, size))
        mask = wider
    return mask


def chamfer(edge: Tensor) -> Tensor:
    """Distance to the nearest edge, at most `_FAR`, in units of 2 ** -16 pixels, as OpenCV's 5 x 5 chamfer has it.

    Its path of straight (1), diagonal (1.4) and knight's (2.1969) moves depends on the offset alone. So for each row
    at some offset only the nearest edge pixel to the left or right counts, which a running maximum finds.
    """
    height, width = edge.shape[-2:]
    place = torch.arange(width, device=edge.device, dtype=torch.int32)
    nowhere = torch.full_like(place, -2 * _FAR)
    left = place - torch.where(edge, place, nowhere).cummax(-1).values
    right = place - torch.where(edge.flip(-1), place, nowhere).cummax(-1).values
    across = torch.minimum(left, right.flip(-1)).clamp(max=_FAR)
    across = F.pad(across, (0, 0, _FAR, _FAR), value=_FAR)
    costs = _costs(edge.device)
    distance = torch.full_like(across[..., :height, :], _FAR << 16)
    for down in range(-_FAR, _FAR + 1):
        row = across[..., _FAR + down : _FAR + down + height, :]
        distance = torch.minimum(distance, costs[abs(down)].index_select(0, row.flatten()).reshape(row.shape))
    return distance


def _costs(device: torch.device) -> Tensor:
    """The chamfer length of every offset (rows, columns) up to `_FAR`."""
    straight, diagonal, knight = (round(length * 65536) for length in (1, 1.4, 2.1969))
    first = torch.arange(_FAR + 1, device=device, dtype=torch.int32)
    long, short = torch.maximum(first, first[:, None]), torch.minimum(first, first[:, None])
    slender = short * knight + (long - 2 * short) * straight
    stout = (long - short) * knight + (2 * short - long) * diagonal
    return torch.where(long >= 2 * short, slender, stout)


def _equalised(layer: Tensor) -> Tensor:
    """Histogram equalisation of values up to `_FAR`."""
    flat = layer.flatten(1).long()
    counts = torch.zeros(len(flat), _FAR + 1, dtype=torch.int32, device=layer.device)
    below = counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(1)
    lowest = below.gather(1, flat.amin(1, keepdim=True))
    rest = flat.shape[1] - lowest
    table = ((below - lowest) * (255 / rest.clamp(min=1))).round().int()
    table = torch.where(rest > 0, table, torch.arange(_FAR + 1, device=layer.device, dtype=torch.int32))
    return table.gather(1, flat).reshape(layer.shape)
