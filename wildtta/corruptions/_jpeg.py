"""A JPEG round trip on tensors, in the integer arithmetic of libjpeg (baseline, 4:2:0, the "islow" transforms).

Every step is a rounded or shifted whole number, held in float64 where a matrix product does it and otherwise in
int32, so the result does not depend on the device and is what Pillow's encoder and decoder make of the image.
Entropy coding loses nothing and is left out.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["round_trip"]

# The tables of the standard's annex K, for quality 50.
_LUMA = """
16 11 10 16 24 40 51 61  12 12 14 19 26 58 60 55  14 13 16 24 40 57 69 56  14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77  24 35 55 64 81 104 113 92  49 64 78 87 103 121 120 101  72 92 95 98 112 100 103 99
"""
_CHROMA = """
17 18 24 47 99 99 99 99  18 21 26 66 99 99 99 99  24 26 56 99 99 99 99 99  47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99  99 99 99 99 99 99 99 99
"""

# The cosine transform, times sqrt(8) * 2 ** 13. libjpeg adds up constants that were rounded one by one, hence the
# coefficients that differ by one between rows.
_DCT = (
    (8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260, -2260, -6437, -9633, -11363),
    (10703, 4433, -4433, -10703, -10703, -4433, 4433, 10703),
    (9633, -2259, -11362, -6436, 6436, 11362, 2259, -9633),
    (8192, -8192, -8192, 8192, 8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633, -9633, -2261, 11362, -6437),
    (4433, -10704, 10704, -4433, -4433, 10704, -10704, 4433),
    (2260, -6436, 9633, -11363, 11363, -9633, 6436, -2260),
)


def round_trip(levels: Tensor, quality: int) -> Tensor:
    """Compress and decompress whole grey levels, B x 3 x H x W."""
    height, width = levels.shape[-2:]
    luma, blue, red = _to_ycc(levels.int())
    luma = _recode(_extend(luma, -height % 8, -width % 8), quality, False)[..., :height, :width]
    chroma = _halve(_extend(torch.stack([blue, red], 1), height % 2, -width % 16))
    chroma = _recode(_extend(chroma, -chroma.shape[-2] % 8, 0), quality, True)
    chroma = _double(chroma[..., : (height + 1) // 2, : (width + 1) // 2])[..., :height, :width]
    return _to_rgb(luma, *chroma.unbind(1)).float()


def _to_ycc(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In 16-bit fixed point; chroma is centred at 128 and, unlike luma, rounds a half down."""
    red, green, blue = rgb.unbind(1)
    centre = (128 << 16) + (1 << 15) - 1
    return (
        (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16,
        (-11059 * red - 21709 * green + 32768 * blue + centre) >> 16,
        (32768 * red - 27439 * green - 5329 * blue + centre) >> 16,
    )


def _to_rgb(luma: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    blue, red, half = blue - 128, red - 128, 1 << 15
    shifts = (91881 * red, -22554 * blue - 46802 * red, 116130 * blue)
    return torch.stack([luma + ((shift + half) >> 16) for shift in shifts], 1).clamp(0, 255)


def _extend(plane: Tensor, down: int, right: int) -> Tensor:
    """Repeat the last row and column."""
    if down:
        plane = torch.cat([plane, plane[..., -1:, :].expand(*plane.shape[:-2], down, -1)], -2)
    if right:
        plane = torch.cat([plane, plane[..., -1:].expand(*plane.shape[:-1], right)], -1)
    return plane


def _halve(plane: Tensor) -> Tensor:
    """The mean of two by two, rounding a half down and up in turn along a row."""
    total = plane[..., ::2, ::2] + plane[..., ::2, 1::2] + plane[..., 1::2, ::2] + plane[..., 1::2, 1::2]
    return (total + 1 + torch.arange(total.shape[-1], device=plane.device, dtype=plane.dtype) % 2) >> 2


def _double(plane: Tensor) -> Tensor:
    """Interpolate: each new pixel is 3/4 of the nearer and 1/4 of the further neighbour, in either direction."""
    taller = _interleave(plane, -2)
    wider = _interleave(taller, -1)
    return (wider + torch.arange(8, 6, -1, device=plane.device, dtype=plane.dtype).repeat(plane.shape[-1])) >> 4


def _interleave(plane: Tensor, axis: int) -> Tensor:
    size = plane.shape[axis]
    before = torch.cat([plane.narrow(axis, 0, 1), plane.narrow(axis, 0, size - 1)], axis)
    after = torch.cat([plane.narrow(axis, 1, size - 1), plane.narrow(axis, size - 1, 1)], axis)
    plane = 3 * plane
    shape = list(plane.shape)
    shape[axis] *= 2
    return torch.stack([plane + before, plane + after], plane.ndim + axis + 1).reshape(shape)


def _recode(plane: Tensor, quality: int, chroma: bool) -> Tensor:
    """Transform, quantise and transform back blocks of eight by eight."""
    transform, divisor = _tables(quality, chroma, plane.device)
    height, width = plane.shape[-2:]
    blocks = plane.double().sub(128)
    blocks = _shifted(_along_rows(blocks, transform), 11)
    blocks = _shifted(_along_columns(blocks, transform), 15)
    divisor = divisor.repeat(height // 8, width // 8)
    blocks = ((blocks.abs() + 4 * divisor) / (8 * divisor)).floor() * blocks.sign() * divisor
    blocks = _shifted(_along_columns(blocks, transform.T), 11)
    blocks = _shifted(_along_rows(blocks, transform.T), 18)
    return blocks.add(128).clamp(0, 255).int()


def _along_rows(plane: Tensor, transform: Tensor) -> Tensor:
    return (plane.unflatten(-1, (-1, 8)) @ transform.T).flatten(-2)


def _along_columns(plane: Tensor, transform: Tensor) -> Tensor:
    return (transform @ plane.unflatten(-2, (-1, 8))).flatten(-3, -2)


def _shifted(values: Tensor, digits: int) -> Tensor:
    """Divide by a power of two and round, a half up."""
    return (values * 2.0**-digits + 0.5).floor()


@lru_cache(maxsize=32)
def _tables(quality: int, chroma: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = [min(max((int(entry) * scale + 50) // 100, 1), 255) for entry in (_CHROMA if chroma else _LUMA).split()]
    transform = torch.tensor(_DCT, dtype=torch.float64, device=device)
    return transform, torch.tensor(table, dtype=torch.float64, device=device).reshape(8, 8)
