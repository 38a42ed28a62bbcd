"""Views: altered copies of an image, on which a network's answer should stay the same.

A view is a pure function of an image and a key, so an image has the same views in any batch, order and process. All views of
a batch are made at once, on its device: an operation on colours is a table of 256 levels, one on shapes an affine map, and
which of them a view gets is a choice among tables and maps, not a branch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildtta.core import keys as random

__all__ = ["OPERATIONS", "Views", "augmix"]

OPERATIONS = (
    "autocontrast",
    "equalize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "posterize",
)
"""What AugMix alters, in the order of its reference."""

_LEVELS = 256
_SMALL = 32  # pixels: up to here images are shifted, beyond they are cropped and resized
_PADDING = 4
_TRIES = 10  # boxes drawn for a crop, of which the first that fits is taken

_CROP, _FLIP, _BLEND, _CHAINS, _DEPTHS, _STEPS = range(6)
"""What a view's random numbers are for: each purpose has a key of its own."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of the channels, with which images were normalised."""


class Views(nn.Module):
    """Base class: write `forward(images, keys) -> B × V × channels × height × width`.

    Attributes:
        count: V, how many views an image gets.
    """

    count: int

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        raise NotImplementedError


class augmix(Views):
    """AugMix (Hendrycks et al., ICLR 2020), after a random crop and flip, as in MEMO.

    m · x + (1 − m) · Σ wₖ Tₖ(x): x is the crop, each of three Tₖ a chain of one to three `OPERATIONS`, w ~ Dirichlet(1, 1, 1),
    m ~ Beta(1, 1). The crop is a box of 8 to 100 % of the area, resized; images of up to 32 pixels are shifted by up to 4.
    Operations are those of Pillow, on 8 bits.

    Args:
        count: views an image.
        statistics: mean and deviation of each channel that the images were normalised with: views are made of pixels from 0
            to 1, so the normalisation is undone first (what is beyond 0 and 1 is clipped), and done again after.
        severity: an operation's strength is drawn from U(0.1, `severity`), of 10.
        crop, flip: crop the views, and mirror every other one. Leave out what can make another class of an image: a character's
            mirror image, or what a crop leaves of an object that fills the whole picture.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, count: int, statistics: Statistics, *, severity: float = 1.0, crop: bool = True, flip: bool = True
    ) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"there must be at least 1 view of an image, but views is {count}")
        if not 0.1 <= severity <= 10:
            raise ValueError(f"severity goes from 0.1 to 10, but is {severity}")
        self.count, self.severity, self.crop, self.flip = count, severity, crop, flip
        self.statistics = _checked(statistics)
        for name, values in zip(("mean", "deviation"), self.statistics, strict=True):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        channels = images.shape[1]
        if len(self.mean) not in (1, channels):
            raise ValueError(
                f"the images have {channels} channels, but statistics are for {len(self.mean)}; give "
                "statistics=(mean, deviation) with one number for each channel"
            )
        own = random.fold(keys[:, None], torch.arange(self.count, device=keys.device)).flatten()
        mean, deviation = self.mean.float(), self.deviation.float()
        # what is not finite has no level, and would be an index out of range
        levels = (images.float() * deviation + mean).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).mul(255).round()
        levels = levels[:, None].expand(-1, self.count, -1, -1, -1).flatten(0, 1)
        mixed = self._mix(_cropped(levels, own, crop=self.crop, flip=self.flip), own)
        return ((mixed / 255 - mean) / deviation).to(images.dtype).unflatten(0, (len(images), self.count))

    def _mix(self, clean: Tensor, keys: Tensor) -> Tensor:
        """AugMix itself, on levels from 0 to 255."""
        weights = -random.uniform(random.fold(keys, _CHAINS), (3,)).log()
        weights = weights / weights.sum(-1, keepdim=True)
        depths = _drawn_below(3, random.uniform(random.fold(keys, _DEPTHS), (3,)))
        steps = random.uniform(random.fold(keys, _STEPS), (3, 3, 3))  # chain, step; and which operation, level, sign
        chains = clean.repeat_interleave(3, 0)
        for step in range(3):
            which, level, sign = steps[:, :, step].flatten(0, 1).unbind(-1)
            operation = _drawn_below(len(OPERATIONS), which)
            strength = 0.1 + (self.severity - 0.1) * level
            altered = operate(chains, operation, strength, torch.where(sign < 0.5, -1.0, 1.0))
            chains = torch.where(_each(step <= depths.flatten()), altered, chains)
        mix = (_each(weights.flatten()) * chains).unflatten(0, (-1, 3)).sum(1)
        share = _each(random.uniform(random.fold(keys, _BLEND)))
        return share * clean + (1 - share) * mix

    def extra_repr(self) -> str:
        return f"count={self.count}, statistics={self.statistics}, severity={self.severity}, crop={self.crop}, flip={self.flip}"


def _checked(statistics: Statistics) -> Statistics:
    try:
        mean, deviation = (tuple(map(float, values)) for values in statistics)
    except (TypeError, ValueError):
        mean, deviation = (), ()
    if not mean or len(mean) != len(deviation) or not all(0 < value < math.inf for value in deviation):
        raise ValueError(
            "statistics must be the (mean, deviation) that images are normalised with, a number for each channel and deviations "
            f"above 0, but are {statistics!r}"
        )
    return mean, deviation


def _each(values: Tensor) -> Tensor:
    """A value an image, to go with images."""
    return values[:, None, None, None]


def _drawn_below(count: int, number: Tensor) -> Tensor:
    """A whole number from 0 to count − 1, from one between 0 and 1."""
    return (number * count).long().clamp(max=count - 1)


# -- operations --------------------------------------------------------------------------------------------------------


def operate(levels: Tensor, operation: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """One of `OPERATIONS`, by its place, on each image (N × channels × height × width, whole numbers from 0 to 255).

    Strengths are of 10, as in AugMix: of 30°, 256 levels, 0.3, a third of the side and 4 bits.
    """
    part = strength / 10
    return _moved(_toned(levels, operation, part), operation, part * sign)


def _toned(levels: Tensor, operation: Tensor, part: Tensor) -> Tensor:
    """The operations on colours; images with another one stay as they are."""
    flat = levels.flatten(2).long()
    tone = torch.arange(_LEVELS, device=levels.device)
    counts = torch.zeros((*flat.shape[:2], _LEVELS), dtype=torch.int64, device=levels.device)
    counts = counts.scatter_add(-1, flat, torch.ones((), dtype=torch.int64, device=levels.device).expand_as(flat))

    present = counts > 0
    low = torch.where(present, tone, _LEVELS).amin(-1, keepdim=True)
    high = torch.where(present, tone, -1).amax(-1, keepdim=True)
    stretched = (tone - low) * 255 // (high - low).clamp(min=1)
    stretched = torch.where(high > low, stretched, tone)

    most = counts.gather(-1, high)
    step = (counts.sum(-1, keepdim=True) - most) // 255
    equal = (step // 2 + counts.cumsum(-1) - counts) // step.clamp(min=1)
    equal = torch.where(step > 0, equal, tone)

    threshold = 256 - (256 * part).long()[:, None, None]
    solar = torch.where(tone < threshold, tone, 255 - tone)
    width = 2 ** (8 - (4 - (4 * part).long()))[:, None, None]
    poster = tone // width * width

    table = tone.expand_as(counts)
    for name, own in (("autocontrast", stretched), ("equalize", equal), ("solarize", solar), ("posterize", poster)):
        table = torch.where((operation == OPERATIONS.index(name))[:, None, None], own, table)
    return table.clamp(0, 255).gather(-1, flat).reshape(levels.shape).to(levels.dtype)


def _moved(levels: Tensor, operation: Tensor, part: Tensor) -> Tensor:
    """The operations on shapes: bilinear, with black beyond the image; images with another one stay as they are."""
    height, width = levels.shape[-2:]

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), value, 0.0)

    angle = only("rotate", torch.deg2rad((30 * part).trunc()))
    turned = operation == OPERATIONS.index("rotate")
    middle_x, middle_y = (torch.where(turned, side / 2, 0.0) for side in (width, height))
    shift_x = middle_x + only("translate_x", (width / 3 * part).trunc())
    shift_y = middle_y + only("translate_y", (height / 3 * part).trunc())
    # Pillow's maps go from where a pixel is to where it was
    x = torch.arange(width, device=levels.device) + 0.5 - _plane(middle_x)
    y = torch.arange(height, device=levels.device)[:, None] + 0.5 - _plane(middle_y)
    straight = _plane(angle.cos())
    from_x = straight * x + _plane(only("shear_x", 0.3 * part) - angle.sin()) * y + _plane(shift_x)
    from_y = straight * y + _plane(only("shear_y", 0.3 * part) + angle.sin()) * x + _plane(shift_y)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    # Pillow cuts off what is behind the point; float32 weights add up to one but for the last digit
    found = (_sampled(levels, from_x - 0.5, from_y - 0.5) + 1e-3).floor()
    return torch.where(inside[:, None], found, 0.0)


def _plane(values: Tensor) -> Tensor:
    """A value an image, to go with planes of height × width."""
    return values[:, None, None]


def _sampled(levels: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear values at points, each N × height × width, the edges going on for ever; 0 is the first pixel's centre."""
    height, width = levels.shape[-2:]
    grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1)
    return F.grid_sample(levels, grid, mode="bilinear", padding_mode="border", align_corners=False)


# -- crop and flip -----------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Where a crop lies, in pixels: N numbers each."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor


def _cropped(levels: Tensor, keys: Tensor, *, crop: bool = True, flip: bool = True) -> Tensor:
    """A crop of each image, or all of it, mirrored or not, as large as the image."""
    mirrored = random.uniform(random.fold(keys, _FLIP)) < (0.5 if flip else 0.0)
    keys = random.fold(keys, _CROP)
    height, width = levels.shape[-2:]
    if not crop:
        return torch.where(_each(mirrored), levels.flip(-1), levels)
    if max(height, width) <= _SMALL:
        across, down = (_drawn_below(2 * _PADDING + 1, random.uniform(keys, (2,))) - _PADDING).unbind(-1)
        return shifted(levels, across, down, mirrored)
    return resized(levels, _drawn_box(height, width, keys), mirrored)


def shifted(levels: Tensor, across: Tensor, down: Tensor, flip: Tensor) -> Tensor:
    """The part of each image, with black around it, that begins at (across, down); then flipped."""
    height, width = levels.shape[-2:]
    x, y = torch.arange(width, device=levels.device), torch.arange(height, device=levels.device)
    from_x = torch.where(flip[:, None], width - 1 - x, x) + across[:, None]
    from_y = y + down[:, None]
    inside = ((from_x >= 0) & (from_x < width))[:, None, :] & ((from_y >= 0) & (from_y < height))[:, :, None]
    place = from_y.clamp(0, height - 1)[:, :, None] * width + from_x.clamp(0, width - 1)[:, None, :]
    found = levels.flatten(2).gather(-1, place.flatten(1)[:, None].expand(-1, levels.shape[1], -1))
    return torch.where(inside[:, None], found.reshape(levels.shape), 0.0)


def resized(levels: Tensor, box: Box, flip: Tensor) -> Tensor:
    """Each image's box, enlarged to the size of the image without a look at what lies around it; then flipped."""
    height, width = levels.shape[-2:]
    x, y = torch.arange(width, device=levels.device), torch.arange(height, device=levels.device)
    x = torch.where(flip[:, None], width - 1 - x, x)
    from_x = ((x + 0.5) * (box.width / width)[:, None] - 0.5).clamp(min=0).minimum((box.width - 1)[:, None])
    from_y = ((y + 0.5) * (box.height / height)[:, None] - 0.5).clamp(min=0).minimum((box.height - 1)[:, None])
    from_x, from_y = from_x + box.left[:, None], from_y + box.top[:, None]
    return _sampled(levels, *torch.broadcast_tensors(from_x[:, None, :], from_y[:, :, None])).round()


def _drawn_box(height: int, width: int, keys: Tensor) -> Box:
    """8 to 100 % of the area, with sides as 3:4 to 4:3; where no try fits, the largest box in the middle that is no longer."""
    area, ratio, across, down = random.uniform(keys, (4, _TRIES)).unbind(-2)
    area = (0.08 + 0.92 * area) * (height * width)
    ratio = (math.log(3 / 4) + ratio * 2 * math.log(4 / 3)).exp()
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.int().argmax(-1, keepdim=True)
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))

    def taken(tries: Tensor, otherwise: float) -> Tensor:
        return torch.where(fits.any(-1), tries.gather(-1, first).squeeze(-1), otherwise)

    return Box(
        taken((across * (width - widths + 1)).floor(), (width - wide) // 2),
        taken((down * (height - heights + 1)).floor(), (height - high) // 2),
        taken(widths, wide),
        taken(heights, high),
    )
