"""The shapes of the glyphs: one small mask for each font and character, drawn once in a process.

The fonts are those that come with matplotlib, so nothing is downloaded and no font file is copied.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["CAPITAL", "CHARACTERS", "FONTS", "SIDE", "atlas"]

CHARACTERS = "0123456789ABCDEFGHIJKLMNPQRSTUVWXYZ&?@#%"
"""One class each. There is no letter O: in some of the fonts nobody can tell it from the zero."""

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
"""matplotlib's fonts that have all the characters."""

SIDE = 64  # of a mask, in its own pixels
CAPITAL = 40  # height of a capital H in it
_WIDEST = 58  # wider glyphs (W, @, %) are drawn smaller
_FINER = 2  # masks are drawn this much larger and averaged, so that they are centred to a fraction of a pixel


@cache
def atlas() -> Tensor:
    """Coverage of every glyph, in 0 to 255: uint8 of shape fonts x characters x SIDE x SIDE."""
    folder = _font_folder()
    missing = [name for name in FONTS if not (folder / f"{name}.ttf").is_file()]
    if missing:
        raise FileNotFoundError(
            f"the glyphs are drawn with matplotlib's fonts, but {folder} lacks {', '.join(missing[:3])}"
            f"{' and others' if len(missing) > 3 else ''}; reinstall matplotlib with pip"
        )
    return torch.stack([torch.stack(_masks(folder / f"{name}.ttf")) for name in FONTS])


def _font_folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _masks(path: Path) -> list[Tensor]:
    from PIL import ImageFont

    # the sizes of fonts say little about those of their letters, so all are drawn to the same height of capitals
    layout = ImageFont.Layout.BASIC
    _, top, _, bottom = ImageFont.truetype(path, 200, layout_engine=layout).getbbox("H", anchor="ls")
    size = 200 * CAPITAL * _FINER / (bottom - top)
    return [_mask(path, size, character) for character in CHARACTERS]


def _mask(path: Path, size: float, character: str) -> Tensor:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(character, anchor="ls")
    longest = max(right - left, bottom - top)
    if longest > _WIDEST * _FINER:
        return _mask(path, size * (_WIDEST * _FINER - 2) / longest, character)
    side = SIDE * _FINER
    image = Image.new("L", (side, side))
    corner = ((side - right - left) // 2, (side - bottom - top) // 2)
    ImageDraw.Draw(image).text(corner, character, fill=255, font=font, anchor="ls")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(SIDE, _FINER, SIDE, _FINER)
    return pixels.to(torch.int32).sum((1, 3)).div(_FINER**2, rounding_mode="floor").to(torch.uint8)
