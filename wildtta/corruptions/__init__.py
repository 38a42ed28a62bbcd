"""ImageNet-C's corruptions on batches of tensors, on any device, seeded per image.

    corrupted = corrupt(images, "gaussian_noise", severity=3, seeds=indices)

The corruptions are those of Hendrycks & Dietterich (2019), with the parameters of ImageNet-C, Tiny-ImageNet-C or
CIFAR-10-C by the size of the images. As in the original scripts, an image is first an 8-bit one, and the result is
truncated to 8 bits again. (The files of ImageNet-C and Tiny-ImageNet-C were then also stored as JPEGs of quality 85;
that last step is not part of a corruption, and not done here.)

Where the original draws random numbers, so does this, but from a key made of the image's seed, the corruption and the
severity (`wildtta.core.keys`): an image gets the same bits alone, in any batch and in any order.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core import keys
from . import _filters, blur, digital, noise, weather
from .parameters import PARAMETERS, reference_for
from .weather import frost_source

__all__ = ["CORRUPTIONS", "EXTRA", "FAMILIES", "corrupt", "frost_source"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The fifteen corruptions of the benchmark by kind."""

CORRUPTIONS: tuple[str, ...] = tuple(name for family in FAMILIES.values() for name in family)
"""The fifteen corruptions of the benchmark, in the paper's order."""

EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four further ones that the authors set aside for tuning."""

_FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    name: getattr(module, name)
    for module in (noise, blur, weather, digital)
    for name in (*CORRUPTIONS, *EXTRA)
    if hasattr(module, name)
}

_SMALLEST = 16  # pixels a side: below this the widest kernels see little but the image's own reflection
_SLICE = 1 << 18  # values a thread works on at a time on a CPU, so that intermediate results stay in its cache


@torch.no_grad()
def corrupt(
    images: Tensor,
    name: str,
    severity: int = 5,
    *,
    seeds: Tensor | None = None,
    reference: int | None = None,
) -> Tensor:
    """Corrupt a batch of images.

    Args:
        images: B x 3 x H x W, floating point, in [0, 1]. They are rounded to 8 bits first.
        name: one of `CORRUPTIONS` or `EXTRA`.
        severity: 1 to 5.
        seeds: int64 of shape (B,), one for each image; 0, 1, 2, ... where left out.
        reference: the data set whose parameters to use, by its side: 224 (ImageNet-C), 64 (Tiny-ImageNet-C) or
            32 (CIFAR-10-C). Where left out: 32 for sides up to 40, 64 for sides up to 96, else 224.

    Returns:
        float32 of the images' shape and device: the grey levels of an 8-bit image, divided by 255.
    """
    _check_images(images)
    function, parameters = _look_up(name, severity, reference, images)
    seeds = _check_seeds(seeds, images)
    key = keys.fold(keys.fold(seeds, zlib.crc32(name.encode())), severity)
    result = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    count = max(1, len(images))
    if images.device.type == "cpu":
        count = max(1, _SLICE * torch.get_num_threads() // max(1, images[:1].numel()))
    for part in zip(images.split(count), key.split(count), result.split(count), strict=True):
        _corrupt(*part, function, parameters)
    return result


def _corrupt(
    images: Tensor, key: Tensor, result: Tensor, function: Callable[[Tensor, Tensor, Any], Tensor], parameters: Any
) -> None:
    """8 bits in, 8 bits out. The original truncates (`np.uint8`) and so does this, with a guard for rounding."""
    levels = (images.float() * 255).round_()
    torch.div(_filters.truncate(function(levels, key, parameters).float()), 255, out=result)


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch tensor, not {type(images).__name__}; use torch.as_tensor(images)")
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point in [0, 1], not {images.dtype}; divide 8-bit images by 255")
    if images.ndim != 4 or images.shape[1] != 3:
        shape = tuple(images.shape)
        hint = "; add a batch axis with images[None]" if images.ndim == 3 else ""
        hint = "; move the channels with images.permute(0, 3, 1, 2)" if images.ndim == 4 and shape[3] == 3 else hint
        raise ValueError(f"images must be B x 3 x H x W (RGB), not of shape {shape}{hint}")
    if min(images.shape[2:]) < _SMALLEST:
        raise ValueError(
            f"images must be at least {_SMALLEST} pixels a side, not {images.shape[2]} x {images.shape[3]}; enlarge them"
        )
    if images.numel():
        low, high = torch.stack(images.aminmax()).tolist()  # one wait for the device, for both
        if not (low >= -1e-5 and high <= 1 + 1e-5):
            raise ValueError(
                f"images must lie in [0, 1], but range from {low:.4g} to {high:.4g}; "
                + ("replace the NaN values" if low != low or high != high else "undo their normalisation or clamp them")
            )


def _look_up(
    name: str, severity: int, reference: int | None, images: Tensor
) -> tuple[Callable[[Tensor, Tensor, Any], Tensor], Any]:
    if name not in _FUNCTIONS:
        near = difflib.get_close_matches(str(name), _FUNCTIONS, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(_FUNCTIONS)}"
        raise ValueError(f"unknown corruption {name!r}; {hint}")
    if isinstance(severity, bool) or not isinstance(severity, int):
        raise TypeError(f"severity must be an int from 1 to 5, not {type(severity).__name__}")
    if not 1 <= severity <= 5:
        raise ValueError(f"severity must be from 1 to 5, not {severity}")
    if reference is None:
        reference = reference_for(max(images.shape[2:]))
    if reference not in PARAMETERS:
        raise ValueError(f"reference must be one of {', '.join(map(str, PARAMETERS))} (or None), not {reference!r}")
    return _FUNCTIONS[name], PARAMETERS[reference][name][severity - 1]


def _check_seeds(seeds: Tensor | None, images: Tensor) -> Tensor:
    count = len(images)
    if seeds is None:
        return torch.arange(count, device=images.device)
    if not isinstance(seeds, Tensor) or seeds.dtype != torch.int64:
        found = seeds.dtype if isinstance(seeds, Tensor) else type(seeds).__name__
        raise TypeError(f"seeds must be an int64 tensor, not {found}; use torch.as_tensor(seeds, dtype=torch.int64)")
    if seeds.shape != (count,):
        raise ValueError(f"seeds must be of shape ({count},), one for each image, not {tuple(seeds.shape)}")
    return seeds.to(images.device)
