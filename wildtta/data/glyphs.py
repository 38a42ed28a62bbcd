"""The embedded set: characters in many fonts, colours and grounds, drawn when they are wanted; nothing is downloaded.

It stands in for photographs, so that everything in the library can be tried at once, and quickly on a CPU. Its numbers say
that a thing works, not which method is best.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import as_file, files
from itertools import count

import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt
from wildtta.data._glyph_atlas import CHARACTERS
from wildtta.data._glyph_drawing import SIZE, draw
from wildtta.data._glyph_networks import GlyphResNet, GlyphViT
from wildtta.data.base import Data, DataError, Domain
from wildtta.files import fingerprint, read
from wildtta.models import Model, Preprocessing

__all__ = ["KIND", "NETWORKS", "PREPROCESSING", "TEST_IMAGES", "Glyphs", "glyph_batches", "load_network"]

TEST_IMAGES = 2_000
"""In each domain, as many of each class."""

NETWORKS = {"glyph-resnet": GlyphResNet, "glyph-vit": GlyphViT}
"""The networks whose weights come with the package, by the name of their model."""

PREPROCESSING = Preprocessing((SIZE, SIZE), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
"""Theirs."""

KIND = "glyph network"
"""What the files of their weights say that they are."""

_TEST, _SOURCE, _TRAINING = (place << 56 for place in range(3))
"""Where the keys for each purpose begin, so that no image serves two."""

_STREAM = 1 << 32  # keys of a training stream
_AT_ONCE = 256  # images drawn at a time, which bounds the memory


class Glyphs(Data):
    """Glyphs and their corruptions. Every domain has the same glyphs."""

    name = "glyphs"
    stand_in = True
    classes = tuple(CHARACTERS)
    kinds = ("clean", *CORRUPTIONS, *EXTRA)
    severities = (1, 2, 3, 4, 5)
    diffusion = "glyphs"
    on_the_fly = True

    def __init__(self, model: Model) -> None:
        height, width = model.preprocessing.size
        if (height, width) != (SIZE, SIZE) or model.outputs != len(CHARACTERS):
            raise DataError(
                f"the embedded glyphs are images of {SIZE} × {SIZE} in {len(CHARACTERS)} classes, but {model.name} takes "
                f"{width} × {height} and has {model.outputs} outputs; use {' or '.join(NETWORKS)}, or data made for your model"
            )

    def domain(self, kind: str, severity: int) -> Domain:
        if kind not in self.kinds:
            raise self._no_such_kind(kind, "the embedded set of glyphs")
        if kind != "clean" and severity not in self.severities:
            raise DataError(f"the embedded glyphs have severities 1 to 5, not {severity}")
        return _GlyphDomain(kind, 0 if kind == "clean" else severity)

    def source(self, count: int) -> Tensor:
        return _drawn(_SOURCE, count).float() / 255

    def digest(self) -> str:
        return fingerprint({"images": _test_images()})


class _GlyphDomain(Domain):
    """The test images, as they are or corrupted when they are read."""

    def __init__(self, name: str, severity: int) -> None:
        self.name, self.severity = name, severity
        self.labels = _labels(torch.arange(TEST_IMAGES))
        self.unreadable = {}

    def read(self, numbers: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        numbers = torch.as_tensor(numbers, dtype=torch.int64).cpu()
        if ((numbers < 0) | (numbers >= TEST_IMAGES)).any():
            raise IndexError(
                f"there are images 0 to {TEST_IMAGES - 1}, asked for were {int(numbers.min())} to {int(numbers.max())}"
            )
        images = _test_images()[numbers].to(device).float() / 255
        if self.severity and len(images):
            images = corrupt(images, self.name, self.severity, seeds=numbers)
        return images, torch.ones(len(numbers), dtype=torch.bool)


def glyph_batches(seed: int, size: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels to train on, without end, and unlike those of any domain, of `source` or another seed."""
    if not 0 <= seed < 1 << 24:
        raise DataError(f"the seed of a stream of glyphs must be from 0 to {(1 << 24) - 1}, not {seed}")
    start = _TRAINING + seed * _STREAM
    for batch in count():
        numbers = torch.arange(batch * size, (batch + 1) * size, device=device) % _STREAM
        labels = _labels(numbers)
        yield draw(start + numbers, labels), labels


def load_network(name: str) -> Model:
    """One of the two networks with the weights that come with the package."""
    network = NETWORKS[name](len(CHARACTERS))
    with as_file(files("wildtta.data") / f"{name.replace('-', '_')}.safetensors") as path:
        weights, _ = read(path, KIND)
    network.load_state_dict({key: value.float() for key, value in weights.items()})
    return Model(name, network.eval(), PREPROCESSING, tuple(CHARACTERS), stand_in=True)


def _labels(numbers: Tensor) -> Tensor:
    """The classes take turns."""
    return numbers % len(CHARACTERS)


def _drawn(start: int, count: int) -> Tensor:
    """So many images as bytes; on the CPU, so that they are the same on every device."""
    parts = [torch.empty((0, 3, SIZE, SIZE), dtype=torch.uint8)]
    for numbers in torch.arange(count).split(_AT_ONCE):
        parts.append((draw(start + numbers, _labels(numbers)) * 255).round().to(torch.uint8))
    return torch.cat(parts)


@cache
def _test_images() -> Tensor:
    return _drawn(_TEST, TEST_IMAGES)
