"""Draws glyphs as colour images, many at a time, on any device.

Every image is a pure function of a key (`wildtta.core.keys`): it has the same bits alone and in any batch. To that end the
work on pixels is addition, multiplication, comparison and rounding, one operation at a time; what a vector unit rounds
differently at the end of a tensor (sine, cosine) is computed for each image in float64 first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, max_pool2d

from wildtta.core import keys
from wildtta.data import _glyph_atlas as shapes

__all__ = ["SIZE", "draw"]

SIZE = 32
_FINER = 2  # the glyph's edge is drawn on a grid this much finer, and averaged
_LATTICE = 10  # nodes a side of the blotches' noise
_STYLES = (0.55, 0.78)  # a plain glyph below the first, one with a shadow up to the second, else one with an outline


class _Numbers:
    """One random number after the other for each image, from its key."""

    def __init__(self, key: Tensor, count: int) -> None:
        self._values = keys.uniform(key, (count,), dtype=torch.float64)
        self._next = 0

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """B x shape, float64."""
        count = math.prod(shape)
        values = self._values[:, self._next : self._next + count]
        assert values.shape[1] == count, "ask for more numbers"
        self._next += count
        return low + (high - low) * values.reshape(-1, *shape)


@torch.no_grad()
def draw(key: Tensor, labels: Tensor) -> Tensor:
    """Images of the glyphs with these labels, B x 3 x 32 x 32 in [0, 1], in grey levels of 8 bits."""
    numbers = _Numbers(keys.fold(key, 0), 64)
    glyph, trim, kind = _glyph(numbers, key, labels)
    below, ink, edge = _colours(numbers)
    ground = _ground(numbers, keys.fold(key, 1), below)
    ink = ink + _ramp(numbers, 0.12) * numbers.between(0.3, 1, 3, 1, 1).float()
    shadow = (kind >= _STYLES[0]) & (kind < _STYLES[1])
    edge = torch.where(shadow, 0.4 * ground, edge)
    image = ground + trim * (edge - ground)
    image = image + glyph * (ink - image)
    image = image * (1 + _ramp(numbers, 0.2))
    return (image.clamp(0, 1) * 255).round() / 255


def _pixel_axis(key: Tensor, finer: int = 1) -> Tensor:
    """The middles of the pixels, from the middle of the image, in pixels."""
    return (torch.arange(SIZE * finer, device=key.device) + 0.5) / finer - SIZE / 2


def _glyph(numbers: _Numbers, key: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How much of each pixel the glyph covers, and its shadow or outline (B x 1 x 32 x 32); and which of the two."""
    atlas = _on(key.device)
    font = numbers.between(0, len(shapes.FONTS), 1)[:, 0].long()
    mask = atlas[font, labels].unsqueeze(1).float() / 255

    turn = numbers.between(-0.3, 0.3, 1, 1)
    height = numbers.between(12, 16, 1, 1)
    stretch = numbers.between(0.85, 1.18, 1, 1)
    shear = numbers.between(-0.25, 0.25, 1, 1)
    right, down = numbers.between(-3.5, 3.5, 2, 1, 1).unbind(1)
    # from a place in the image (pixels) to one in the mask (−1 to 1): undo the shift, the turn, the shear and the size
    size = 2 * shapes.CAPITAL / shapes.SIDE / height
    cos, sin = turn.cos() * size, turn.sin() * size
    to_x = ((cos - shear * sin) / stretch).float(), ((sin + shear * cos) / stretch).float()
    to_y = (-sin).float(), cos.float()
    right, down = right.float(), down.float()
    axis = _pixel_axis(key, _FINER)

    def cover(right: Tensor, down: Tensor) -> Tensor:
        x, y = axis[None, None, :] - right, axis[None, :, None] - down
        grid = torch.stack([x * to_x[0] + y * to_x[1], x * to_y[0] + y * to_y[1]], -1)
        return grid_sample(mask, grid, align_corners=False)

    glyph = cover(right, down)
    kind = numbers.between(0, 1, 1, 1, 1)
    reach = numbers.between(-1.8, 1.8, 2, 1, 1).float()
    shadow = cover(right + reach[:, 0], down + reach[:, 1])
    outline = max_pool2d(glyph, 3, 1, 1)
    trim = torch.where(kind < _STYLES[1], shadow, outline) * (kind >= _STYLES[0])
    return _average(glyph), _average(trim), kind


def _average(fine: Tensor) -> Tensor:
    """To the image's pixels; spelled out, for a sum's order may depend on the batch."""
    a, b, c, d = (fine[..., i::_FINER, j::_FINER] for i in range(_FINER) for j in range(_FINER))
    return ((a + b) + (c + d)) * 0.25


def _colours(numbers: _Numbers) -> tuple[list[Tensor], Tensor, Tensor]:
    """Two colours for the ground that are near each other, one for the ink that differs in brightness, and a trim's."""
    first = numbers.between(0.08, 0.92, 1, 1, 1)
    second = (first + numbers.between(-0.1, 0.1, 1, 1, 1)).clamp(0.05, 0.95)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    contrast = numbers.between(0.22, 0.32, 1, 1, 1)
    darker, lighter = low - contrast, high + contrast
    fits = (lighter <= 0.98) & ((darker < 0.02) | (numbers.between(0, 1, 1, 1, 1) < 0.5))
    ink = torch.where(fits, lighter, darker.clamp(min=0.02))
    edge = torch.where(ink < 0.5, 0.95, 0.05)
    strength = numbers.between(0, 0.75, 3, 1, 1).unsqueeze(1)
    hue = numbers.between(0, 1, 3, 3, 1, 1)
    red, green, blue = (hue[:, :, i : i + 1] for i in range(3))
    hue = (hue - (0.299 * red + 0.587 * green + 0.114 * blue)) * strength  # of no brightness of its own
    return (
        [
            (first + hue[:, 0]).clamp(0, 1).float(),
            (second + hue[:, 0] + 0.4 * hue[:, 1]).clamp(0, 1).float(),
        ],
        (ink + hue[:, 2]).clamp(0, 1).float(),
        edge.float(),
    )


def _ramp(numbers: _Numbers, strength: float) -> Tensor:
    """A plane through zero over the image, B x 1 x 32 x 32."""
    slope = (numbers.between(-strength, strength, 2, 1, 1, 1) / (SIZE / 2)).float()
    axis = _pixel_axis(numbers._values)
    return axis[None, None, None, :] * slope[:, 0] + axis[None, None, :, None] * slope[:, 1]


def _ground(numbers: _Numbers, key: Tensor, colours: list[Tensor]) -> Tensor:
    """The background: a gradient, blotches or stripes between two colours, and a little of the blotches everywhere."""
    kind = numbers.between(0, 1, 1, 1, 1)
    blotches = _blotches(numbers, key)
    gradient = (_ramp(numbers, 0.7) + 0.5).clamp(0, 1)
    turn, width = numbers.between(0, math.pi, 1, 1, 1), numbers.between(3, 11, 1, 1, 1)
    axis, start = _pixel_axis(key), numbers.between(0, 1, 1, 1, 1).float()
    along_x, along_y = (turn.cos() / width).float(), (turn.sin() / width).float()
    phase = axis[None, None, None, :] * along_x + axis[None, None, :, None] * along_y
    phase = phase + start
    stripes = (((phase - phase.floor() - 0.5).abs() - 0.25) * 4 + 0.5).clamp(0, 1)
    mixture = torch.where(kind < 0.35, blotches, torch.where(kind < 0.65, stripes, gradient))
    ground = colours[0] + mixture * (colours[1] - colours[0])
    return ground + (blotches - 0.5) * numbers.between(0, 0.1, 1, 1, 1).float()


def _blotches(numbers: _Numbers, key: Tensor) -> Tensor:
    """Noise on a lattice, smooth between its nodes (value noise)."""
    nodes = keys.uniform(key, (_LATTICE * _LATTICE,))
    axis = _pixel_axis(key) + SIZE / 2
    grain = numbers.between(4, 14, 1, 1).float()  # pixels between nodes
    place = axis[None, None, :] / grain + numbers.between(0, 1, 2, 1).float()  # B x 2 x 32
    low = place.floor()
    part = place - low
    part = part * part * (3 - 2 * part)
    x, y = low.long().unbind(1)
    right, down = part.unbind(1)
    at = (y[:, :, None] * _LATTICE + x[:, None, :]).flatten(1)

    def node(step: int) -> Tensor:
        return nodes.gather(1, at + step).view(-1, SIZE, SIZE)

    right, down = right[:, None, :], down[:, :, None]
    above = node(0) + right * (node(1) - node(0))
    below = node(_LATTICE) + right * (node(_LATTICE + 1) - node(_LATTICE))
    return (above + down * (below - above)).unsqueeze(1)


_ATLASES: dict[torch.device, Tensor] = {}


def _on(device: torch.device) -> Tensor:
    if device not in _ATLASES:
        _ATLASES[device] = shapes.atlas().to(device)
    return _ATLASES[device]
