"""A JPEG round trip on tensors, in the integer arithmetic of libjpeg (baseline, 4:2:0, the "islow" transforms).

Every step is a rounded or shifted whole number, or a fraction by a small power of two. float64 holds them all without
rounding, so neither the device nor the order of a sum matters, and the result is what Pillow's encoder and decoder make of
the image. Entropy coding loses nothing and is left out.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
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


# Colours to luma and the two chromas, and what these add to luma for each colour, in 16 binary digits.
_TO_YCC = ((19595, 38470, 7471), (-11059, -21709, 32768), (32768, -27439, -5329))
_TO_RGB = ((0, 91881), (-22554, -46802), (116130, 0))
# The coefficients of a block are in eighths. Just over 1 makes halves round away from zero, as libjpeg has it; the next
# fractions are too far away to notice.
_EIGHTH = 0.125 * (1 + 2.0**-30)


def round_trip(levels: Tensor, quality: int) -> Tensor:
    """Compress and decompress whole grey levels, B x 3 x H x W."""
    height, width = levels.shape[-2:]
    to_ycc, offset, to_rgb = _colours(levels.device)
    planes = (to_ycc @ levels.double().flatten(2)).add_(offset).floor_().unflatten(-1, (height, width))
    luma, chroma = planes[:, :1], planes[:, 1:]
    luma = _recode(_extend(luma, -height % 8, -width % 8), quality, False)[..., :height, :width]
    chroma = _halve(_extend(chroma, height % 2, -width % 16))
    chroma = _recode(_extend(chroma, -chroma.shape[-2] % 8, 0), quality, True)
    chroma = _double(chroma[..., : (height + 1) // 2, : (width + 1) // 2])[..., :height, :width]
    colours = (to_rgb @ chroma.flatten(2)).add_(0.5).floor_().unflatten(-1, (height, width))
    return colours.add_(luma).add_(128).clamp_(0, 255).float()


def _extend(planes: Tensor, down: int, right: int) -> Tensor:
    """Repeat the last row and column."""
    return F.pad(planes, (0, right, 0, down), mode="replicate") if down or right else planes


def _halve(planes: Tensor) -> Tensor:
    """The mean of two by two, rounding a half down and up in turn along a row."""
    pairs = planes[..., ::2, :] + planes[..., 1::2, :]
    means = (pairs[..., ::2] + pairs[..., 1::2]).mul_(0.25)
    return means.add_(_in_turn(0.25, 0.5, means)).floor_()


def _double(planes: Tensor) -> Tensor:
    """Interpolate: each new pixel is 3/4 of the nearer and 1/4 of the further neighbour, in either direction."""
    wide = F.interpolate(planes, scale_factor=2, mode="bilinear", align_corners=False)
    return wide.add_(_in_turn(8 / 16, 7 / 16, wide)).floor_()


def _in_turn(even: float, odd: float, planes: Tensor) -> Tensor:
    """What to add before the fraction is dropped, column by column."""
    columns = torch.full(planes.shape[-1:], even, dtype=planes.dtype, device=planes.device)
    columns[1::2] = odd
    return columns


def _recode(planes: Tensor, quality: int, chroma: bool) -> Tensor:
    """Transform, quantise and transform back blocks of eight by eight. Takes and returns planes about zero."""
    transform, divisor, factor = _tables(quality, chroma, planes.shape[-1], planes.device)
    blocks = _rounded(_along_rows(planes, transform * 2.0**-11))
    blocks = _rounded(_along_columns(blocks, transform * 2.0**-15)).unflatten(-2, (-1, 8))
    blocks = blocks.mul_(factor).round_().mul_(divisor).flatten(-3, -2)
    blocks = _rounded(_along_columns(blocks, transform.T * 2.0**-11))
    return _rounded(_along_rows(blocks, transform.T * 2.0**-18)).clamp_(-128, 127)


def _along_rows(planes: Tensor, transform: Tensor) -> Tensor:
    return (planes.unflatten(-1, (-1, 8)) @ transform.T).flatten(-2)


def _along_columns(planes: Tensor, transform: Tensor) -> Tensor:
    return (transform @ planes.unflatten(-2, (-1, 8))).flatten(-3, -2)


def _rounded(values: Tensor) -> Tensor:
    """To whole numbers, a half up."""
    return values.add_(0.5).floor_()


@lru_cache(maxsize=8)
def _colours(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices, and what to add before the fraction is dropped: chroma, unlike luma, rounds a half down.

    Luma and chroma are about zero, where the standard has them about 128.
    """
    to_ycc, to_rgb = (torch.tensor(rows, dtype=torch.float64, device=device) * 2.0**-16 for rows in (_TO_YCC, _TO_RGB))
    below = 0.5 - 2.0**-16
    offset = torch.tensor([[0.5 - 128], [below], [below]], dtype=torch.float64, device=device)
    return to_ycc, offset, to_rgb


@lru_cache(maxsize=64)
def _tables(quality: int, chroma: bool, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The transform; and for eight rows of this width, the quantiser's divisors and what to multiply by instead."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = [min(max((int(entry) * scale + 50) // 100, 1), 255) for entry in (_CHROMA if chroma else _LUMA).split()]
    transform = torch.tensor(_DCT, dtype=torch.float64, device=device)
    divisor = torch.tensor(table, dtype=torch.float64, device=device).reshape(8, 8).repeat(1, width // 8)
    return transform, divisor, _EIGHTH / divisor
