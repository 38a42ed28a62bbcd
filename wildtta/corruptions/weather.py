"""Weather: snow, frost, fog and spatter (of water or mud).

Every function here takes a batch of whole grey levels (float32, 0 to 255), a key for each image and the parameters
of a severity, and returns grey levels, neither clipped nor rounded: `corrupt` does that.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import keys
from . import _filters, _spatter

__all__ = ["fog", "frost", "frost_source", "snow", "spatter"]

# There is a sixth, which the original never draws.
_PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


def fog(levels: Tensor, key: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Add a fractal cloud, and scale back to the image's own maximum."""
    strength, decay = parameters
    height, width = levels.shape[-2:]
    cloud = _plasma(key, 1 << (max(height, width) - 1).bit_length(), decay)[:, None, :height, :width]
    most = levels.amax((1, 2, 3), keepdim=True)
    return (levels + 255 * strength * cloud) * (most / (most + 255 * strength))


def _plasma(key: Tensor, size: int, decay: float) -> Tensor:
    """A height map in [0, 1] for each key, by the diamond-square algorithm on a torus.

    Each level sets the middles of the squares, then the middles of the edges, to the mean of their four neighbours
    and a random number, whose range shrinks from level to level: by `decay` squared, as the original multiplies a
    number of a range by that range. (More decay is smoother.)
    """
    grid = torch.zeros(len(key), size, size, device=key.device)
    step, range_ = size, 1.0
    while step >= 2:
        half, count = step // 2, size // step
        number = (keys.uniform(keys.fold(key, step), (3, count, count)) * 2 - 1) * range_
        corner = grid[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        middle = (pair + pair.roll(-1, 2)) / 4 + number[:, 0]
        grid[:, half::step, half::step] = middle
        # An edge's middle lies between two corners one way and two squares' middles the other.
        above, left = middle + middle.roll(1, 1), middle + middle.roll(1, 2)
        grid[:, ::step, half::step] = (above + (corner + corner.roll(-1, 2))) / 4 + number[:, 1]
        grid[:, half::step, ::step] = (left + pair) / 4 + number[:, 2]
        step, range_ = half, range_ / decay**2
    grid -= grid.amin((1, 2), keepdim=True)
    return grid / grid.amax((1, 2), keepdim=True)


def snow(levels: Tensor, key: Tensor, parameters: tuple[float, float, float, float, int, float, float]) -> Tensor:
    """Flakes of enlarged noise above a threshold, smeared by the wind, over a paler image."""
    mean, deviation, zoom, threshold, length, sigma, kept = parameters
    layer = keys.normal(keys.fold(key, 0), (1, *levels.shape[-2:])) * deviation + mean
    layer = _filters.clipped_zoom(layer, zoom)
    layer = _filters.truncate(255 * layer).masked_fill_(layer < threshold, 0)
    degrees = keys.uniform(keys.fold(key, 1), dtype=torch.float64) * 90 - 135
    layer = _filters.motion(layer, length, sigma, degrees)
    red, green, blue = levels.unbind(1)
    grey = (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]
    paler = torch.maximum(levels, grey * 1.5 + 127.5)
    return kept * levels + (1 - kept) * paler + layer + layer.rot90(2, (-2, -1))


def frost(levels: Tensor, key: Tensor, parameters: tuple[float, float, float]) -> Tensor:
    """Lay a random crop of a random photograph of frost over the image."""
    kept, strength, scale = parameters
    height, width = levels.shape[-2:]
    photographs, sizes = _photographs(scale, height, width, levels.device)
    numbers = keys.uniform(key, (3,))
    which = (numbers[:, 0] * len(photographs)).long()
    room = sizes[which] - _filters.constant((height, width), levels.device)
    top, left = (numbers[:, 1:] * room).long().unbind(-1)
    rows = top[:, None, None] + torch.arange(height, device=levels.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=levels.device)
    crop = photographs[which[:, None, None], rows, columns].permute(0, 3, 1, 2)
    return kept * levels + strength * crop


def frost_source() -> str:
    """Where `frost` gets its photographs: "imagecorruptions" where that package is installed, else "procedural"."""
    return "imagecorruptions" if _folder() is not None else "procedural"


@lru_cache(maxsize=1)
def _folder() -> Path | None:
    """The original's photographs, as the package `imagecorruptions` ships them. (It is found, but not imported.)"""
    if importlib.util.find_spec("PIL") is None:
        return None
    package = importlib.util.find_spec("imagecorruptions")
    for place in (package.submodule_search_locations or ()) if package else ():
        folder = Path(place) / "frost"
        if all((folder / name).is_file() for name in _PHOTOGRAPHS):
            return folder
    return None


@lru_cache(maxsize=8)
def _photographs(scale: float, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All photographs in one array (number, row, column, colour) padded to one size, and their sizes."""
    with torch.device("cpu"):  # whatever the default device is
        pictures = [_resized(picture, scale, height, width) for picture in _originals()]
    sizes = [picture.shape[:2] for picture in pictures]
    rows, columns = (max(side) for side in zip(*sizes, strict=True))
    padded = [F.pad(picture, (0, 0, 0, columns - picture.shape[1], 0, rows - len(picture))) for picture in pictures]
    return torch.stack(padded).to(device), torch.tensor(sizes, device=device)


@lru_cache(maxsize=1)
def _originals() -> list[Tensor]:
    folder = _folder()
    if folder is None:
        return [_procedural(number) for number in range(len(_PHOTOGRAPHS))]
    from PIL import Image

    return [torch.from_numpy(np.array(Image.open(folder / name).convert("RGB"))).float() for name in _PHOTOGRAPHS]


def _procedural(number: int) -> Tensor:
    """A frosted pane: bluish white crystals along the ridges of a fractal, denser towards the rim."""
    size = 512
    key = keys.fold(torch.tensor([number]), 0)
    coarse, fine = (_plasma(keys.fold(key, layer), size, decay)[0] for layer, decay in ((1, 1.3), (2, 1.12)))
    ridges = (1 - (2 * coarse - 1).abs()) ** 3
    across = torch.linspace(-1, 1, size)
    rim = torch.maximum(across.abs(), across.abs()[:, None]) ** 2
    density = (0.2 + 0.5 * ridges + 0.5 * (fine - 0.5) + 0.4 * rim).clamp(0, 1)
    dark, bright = torch.tensor([18.0, 38.0, 62.0]), torch.tensor([232.0, 244.0, 252.0])
    return (dark + density[..., None] * (bright - dark)).round()


def _resized(picture: Tensor, scale: float, height: int, width: int) -> Tensor:
    """Bilinear without antialiasing, as OpenCV's default; larger than the original's scale if the image is."""
    rows, columns = picture.shape[:2]
    need = max((height + 1) / rows, (width + 1) / columns)
    if scale < need:
        scale = 1.1 * need
    if scale == 1:
        return picture
    for axis, size in ((0, rows), (1, columns)):
        position = ((torch.arange(round(size * scale)) + 0.5) / scale - 0.5).clamp(0, size - 1)
        lower = position.long().clamp(max=size - 2)
        share = (position - lower).reshape([-1 if axis == other else 1 for other in range(3)])
        near, far = picture.index_select(axis, lower), picture.index_select(axis, lower + 1)
        picture = near + (far - near) * share
    return picture.round()


def spatter(levels: Tensor, key: Tensor, parameters: tuple[float, float, float, float, float, int]) -> Tensor:
    """Drops of water, or at the highest severities splashes of mud, where smoothed noise passes a threshold."""
    mean, deviation, sigma, threshold, strength, muddy = parameters
    height, width = levels.shape[-2:]
    liquid = _filters.gaussian(keys.normal(key, (1, height, width)), sigma) * deviation + mean
    if muddy:
        cover = _filters.gaussian((liquid > threshold).float(), strength)
        cover = cover.masked_fill(cover < 0.8, 0)
        mud = _filters.constant((63.0, 42.0, 20.0), levels.device)[:, None, None]
        return levels * (1 - cover) + mud * cover
    dry = liquid < threshold
    liquid = (255 * liquid).floor().remainder(256).masked_fill_(dry, 0)  # np.uint8 wraps around
    glint = liquid * _spatter.relief(liquid.int()).float()
    glint = glint * (strength / glint.amax((1, 2, 3), keepdim=True).clamp(min=1))
    water = _filters.constant((175.0, 238.0, 238.0), levels.device)[:, None, None]
    return levels + water * glint
