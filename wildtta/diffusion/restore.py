"""DDA's restoration: a classifier's images through a diffusion model, and the adapted images on disk."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from wildtta.core import keys as random
from wildtta.core.restoring import Restoration
from wildtta.core.views import Statistics
from wildtta.diffusion.model import PRECISIONS, Diffusion, DiffusionError
from wildtta.diffusion.sampling import back, respaced
from wildtta.files import put

__all__ = ["OnDisk", "Progress", "diffuse_back"]

Progress = Callable[[int, int], None]
"""(passes of the diffusion model done, passes in all), each counted for every image that it is about."""


class diffuse_back(Restoration):
    """Images noised, and brought back by a diffusion model that is led by what they look like from afar.

    An image is taken at 8 bits a channel, as image files have it, and its noise is drawn from a key made of the seed and of its
    levels: so it becomes the same in any batch and at any place of a stream, and can be kept for another time.

    Args:
        diffusion: the model. Images of another size or number of channels are an error, unless they may be resized.
        statistics: mean and deviation of each channel that the images were normalised with.
        steps, start, scale, down: N, where on the way to noise it begins, the strength of the guidance, and D, for which see
            `wildtta.diffusion.sampling`; None: what suits the model.
        chunk: images side by side; a large model's memory is the limit.
        resize: bring images to the model's size and what becomes of them back to their own.
        precision: of the diffusion model: "float32", "bf16" or "fp16"; None: as autocast is set.

    Attributes:
        progress: is told how far it is, where there is one.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        diffusion: Diffusion,
        statistics: Statistics,
        *,
        steps: int | None = None,
        start: int | None = None,
        scale: float | None = None,
        down: int | None = None,
        chunk: int = 16,
        resize: bool = False,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        usual = diffusion.settings
        self.diffusion = diffusion
        self.respacing = usual.steps if steps is None else steps
        self.start = usual.start if start is None else start
        self.scale = usual.scale if scale is None else scale
        self.down = usual.down if down is None else down
        self.chunk, self.resize, self.precision = chunk, resize, precision
        self.levels = respaced(diffusion.betas, self.respacing)
        if not 1 <= self.start < self.respacing:
            raise ValueError(
                f"start is a step of the {self.respacing}, from 1 to {self.respacing - 1}, but is {self.start}"
            )
        if not 0 <= self.scale < float("inf"):
            raise ValueError(f"scale must be 0 or more, but is {self.scale}")
        if self.down < 1 or any(side % self.down for side in diffusion.size):
            raise ValueError(f"down must divide the model's sides {diffusion.size}, but is {self.down}")
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, but is {chunk}")
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, but is {precision!r}")
        for name, values in zip(("mean", "deviation"), _checked(statistics, diffusion.channels), strict=True):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).view(-1, 1, 1), persistent=False)
        self.steps = self.start
        self.progress: Progress | None = None

    def forward(self, images: Tensor, seed: Tensor) -> Tensor:
        return self.normalise(self.restore(self.pixels(images), seed), images)

    def pixels(self, images: Tensor) -> Tensor:
        """Normalised images at 8 bits: whole numbers from 0 to 255. (What is not finite has no level, and is black.)"""
        self._check(images)
        with torch.autocast(images.device.type, enabled=False):
            levels = images * self.deviation.to(images.dtype) + self.mean.to(images.dtype)
            return levels.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).mul(255).round()

    def normalise(self, levels: Tensor, like: Tensor) -> Tensor:
        """Levels from 0 to 255 as the classifier takes images."""
        return ((levels / 255 - self.mean.to(levels.dtype)) / self.deviation.to(levels.dtype)).to(like.dtype)

    @torch.no_grad()
    def restore(self, levels: Tensor, seed: Tensor) -> Tensor:
        """Images of 8 bits to adapted ones, from 0 to 255 and not rounded."""
        kind = levels.device.type
        ambient = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        half = ambient if self.precision is None else PRECISIONS[self.precision]
        levels = levels.to(next(self.diffusion.parameters()).dtype)
        parts: list[Tensor] = []
        with torch.autocast(kind, enabled=False):
            keys = random.of_content(levels, seed)
            for place in range(0, len(levels), self.chunk):
                part, own = levels[place : place + self.chunk], keys[place : place + self.chunk]
                parts.append(self._back(part, own, half, self._teller(place, len(part), len(levels))))
        return torch.cat(parts)

    def _back(self, levels: Tensor, keys: Tensor, half: torch.dtype | None, tell: Callable[[int], None]) -> Tensor:
        own_size, size = tuple(levels.shape[-2:]), self.diffusion.size
        reference = levels / 127.5 - 1
        if own_size != size:
            reference = _resized(reference, size)
        found = back(
            partial(self.diffusion.noise_in, half=half),
            reference,
            keys,
            self.levels,
            start=self.start,
            scale=self.scale,
            down=self.down,
            progress=tell,
        )
        if own_size != size:
            found = _resized(found, own_size)
        return ((found + 1) * 127.5).clamp(0, 255)

    def _teller(self, before: int, count: int, images: int) -> Callable[[int], None]:
        """Turns the step that a chunk is at into passes done and passes in all."""

        def tell(step: int) -> None:
            if self.progress is not None:
                self.progress(before * self.start + count * (self.start - step), images * self.start)

        return tell

    def _check(self, images: Tensor) -> None:
        height, width = self.diffusion.size
        if images.shape[1] != self.diffusion.channels:
            raise DiffusionError(
                f"the diffusion model is of images of {self.diffusion.channels} channels, these have {images.shape[1]}; give one "
                "that was trained on images like yours"
            )
        if tuple(images.shape[-2:]) != (height, width) and not self.resize:
            raise DiffusionError(
                f"the diffusion model is of images of {width} × {height} pixels, these have {images.shape[3]} × {images.shape[2]}; "
                "give one of their size, or resize=True to bring them to its size and back"
            )

    def extra_repr(self) -> str:
        own = f"steps={self.respacing}, start={self.start}, scale={self.scale}, down={self.down}"
        return f"{own}, resize={self.resize}, precision={self.precision}"


class OnDisk(Restoration):
    """A restoration whose results are kept in a folder, one PNG an image, and found there again.

    A file's name is a hash of the image, its folder's one of the seed, the diffusion model and all settings. What is kept has
    8 bits a channel, and so has what is given back, whether it was there or not. Files are written whole or not at all, so
    several processes may share a folder; one that cannot be read is made again. It looks at the images, so it is not for
    compiled or vmapped steps.

    Attributes:
        found, made: how many images were there, and how many were not.
    """

    def __init__(self, inner: diffuse_back, folder: Path | str) -> None:
        super().__init__()
        self.inner, self.folder, self.steps = inner, Path(folder), inner.steps
        self.found = self.made = 0

    def forward(self, images: Tensor, seed: Tensor) -> Tensor:
        levels = self.inner.pixels(images)
        folder = self._place(levels, seed)
        paths = [folder / f"{hashlib.sha256(_bytes(image)).hexdigest()[:32]}.png" for image in levels.byte().cpu()]
        kept = {path: _read(path, levels.shape[1:]) for path in set(paths)}
        absent = {path: place for place, path in enumerate(paths) if kept[path] is None}  # one of equal images
        if absent:
            folder.mkdir(parents=True, exist_ok=True)
            made = self.inner.restore(levels[list(absent.values())], seed).round().byte().cpu()
            for path, image in zip(absent, made, strict=True):
                _write(path, image)
                kept[path] = image
        self.made += len(absent)
        self.found += len(paths) - len(absent)
        whole = torch.stack([image for path in paths if (image := kept[path]) is not None])
        return self.inner.normalise(whole.to(images.device, next(self.inner.diffusion.parameters()).dtype), images)

    def _place(self, levels: Tensor, seed: Tensor) -> Path:
        kind = levels.device.type
        ambient = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else "float32"
        about = [self.inner.diffusion.digest, self.inner.extra_repr(), ambient, int(seed), list(levels.shape[1:])]
        return self.folder / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _resized(images: Tensor, size: tuple[int, ...]) -> Tensor:
    return interpolate(images, size=list(size), mode="bicubic", antialias=True).clamp(-1, 1)


def _checked(statistics: Statistics, channels: int) -> tuple[list[float], list[float]]:
    try:
        mean, deviation = ([float(value) for value in values] for values in statistics)
    except (TypeError, ValueError):
        raise ValueError(
            f"statistics are (mean, deviation), each with a number a channel, but are {statistics!r}"
        ) from None
    if len(mean) != len(deviation) or len(mean) not in (1, channels) or not all(value > 0 for value in deviation):
        raise ValueError(
            f"statistics are (mean, deviation), each with {channels} numbers and the deviations above 0, but are {statistics!r}"
        )
    return mean, deviation


# -- pictures ----------------------------------------------------------------------------------------------------------


def _bytes(image: Tensor) -> bytes:
    return image.contiguous().numpy().tobytes()


def _write(path: Path, image: Tensor) -> None:
    """RGB; other numbers of channels as grey pictures one below the other."""
    from PIL import Image

    pixels = image.permute(1, 2, 0) if len(image) == 3 else image.flatten(0, 1)
    content = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(content, "PNG")
    put(path, content.getvalue())


def _read(path: Path, shape: torch.Size) -> Tensor | None:
    """None where there is none, or none that is whole."""
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as picture:
            pixels = torch.from_numpy(np.array(picture))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    if pixels.dtype != torch.uint8:
        return None
    image = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels.unflatten(0, (shape[0], -1))
    return image.contiguous() if image.shape == shape else None
