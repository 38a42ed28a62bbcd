"""Images by number, prepared for a model: decoded by a few threads, and kept in memory where the whole set is small."""

from __future__ import annotations

import io
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from wildtta.corruptions import corrupt
from wildtta.data.base import DataError, Domain, Finding, some
from wildtta.data.places import Place
from wildtta.models import Preprocessing

__all__ = ["ImageFiles", "PictureDomain", "Pictures", "spread"]

MEMORY = 1 << 30
"""Bytes of prepared images that a process keeps. A set that does not fit into what is left of them is read anew each time."""

_SAMPLE = 16  # images whose size and readability a check looks at, unless it is a deep one
_BATCH = 256  # images a deep check decodes at a time


class Pictures(ABC):
    """Images of one size as bytes. `unreadable` has those that could not be read, and why."""

    _taken = 0  # of MEMORY, by all sets
    _lock = threading.Lock()

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        self.count, self.size = count, size
        self.unreadable: dict[int, str] = {}
        self._store: Tensor | None = None
        self._stored = torch.zeros(count, dtype=torch.bool)
        needed = count * 3 * size[0] * size[1]
        with Pictures._lock:
            if needed <= MEMORY - Pictures._taken:
                self._store = torch.empty((count, 3, *size), dtype=torch.uint8)  # takes memory as it is filled
                Pictures._taken += needed
                weakref.finalize(self, Pictures._give_back, needed)

    @staticmethod
    def _give_back(taken: int) -> None:
        with Pictures._lock:
            Pictures._taken -= taken

    @abstractmethod
    def load(self, number: int) -> Tensor:
        """One image, 3 × H × W bytes. Any exception means that it cannot be read."""

    def name(self, number: int) -> str:
        """How to name an image in a message."""
        return f"image {number}"

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The images that can be read (k × 3 × H × W bytes), and which of the numbers these are."""
        wanted = numbers.tolist()
        if wanted and (min(wanted) < 0 or max(wanted) >= self.count):
            raise IndexError(f"there are images 0 to {self.count - 1}, asked for were {min(wanted)} to {max(wanted)}")
        missing = [
            number for number in dict.fromkeys(wanted) if not (self._stored[number] or number in self.unreadable)
        ]
        loaded = {
            number: image for number, image in zip(missing, self._load_all(missing), strict=True) if image is not None
        }
        mask = torch.tensor([number not in self.unreadable for number in wanted], dtype=torch.bool)
        if self._store is None:
            images = [loaded[number] for number in wanted if number in loaded]
            return (torch.stack(images) if images else torch.empty((0, 3, *self.size), dtype=torch.uint8)), mask
        for number, image in loaded.items():
            self._store[number] = image
            self._stored[number] = True
        return self._store[numbers[mask]], mask

    def _load_all(self, numbers: Sequence[int]) -> list[Tensor | None]:
        return in_threads(self._load_or_report, numbers)

    def _load_or_report(self, number: int) -> Tensor | None:
        try:
            return self.load(number)
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes Pillow fail in many ways
            self.unreadable[number] = f"{self.name(number)}: {_reason(error)}"
            return None

    def check(self, *, deep: bool = False) -> list[Finding]:
        """Which images cannot be read: of a sample, or of all."""
        numbers = list(range(self.count)) if deep else spread(self.count, _SAMPLE)
        for start in range(0, len(numbers), _BATCH):
            self._load_all(numbers[start : start + _BATCH])
        looked = f"all {self.count:,}" if deep else f"{len(numbers)} sampled"
        reasons = [self.unreadable[number] for number in numbers if number in self.unreadable]
        if not reasons:
            return [Finding("ok", f"{looked} images can be read")] if deep else []
        text = f"of {looked} images {len(reasons):,} cannot be read: {some(reasons, 3)}"
        if len(reasons) == len(numbers):
            return [Finding("error", text)]
        return [Finding("warning", text + "; a run leaves them out")]


class ImageFiles(Pictures):
    """Image files below a folder of a place. With `exact` they are taken for resized already, and only cropped."""

    def __init__(
        self, place: Place, names: Sequence[str], preprocessing: Preprocessing, *, exact: bool = False, at: str = ""
    ) -> None:
        super().__init__(len(names), preprocessing.size)
        self.place, self.names, self.preprocessing, self.exact = place, tuple(names), preprocessing, exact
        self._at = f"{at}/" if at else ""

    def load(self, number: int) -> Tensor:
        with Image.open(io.BytesIO(self.place.read(self.name(number)))) as image:
            return self.preprocessing.picture(image, exact=self.exact)

    def name(self, number: int) -> str:
        return self._at + self.names[number]

    def sizes(self) -> Counter[tuple[int, int]]:
        """Widths and heights, of a sample."""
        found: Counter[tuple[int, int]] = Counter()
        for number in spread(self.count, _SAMPLE):
            try:
                with Image.open(io.BytesIO(self.place.read(self.name(number)))) as image:
                    found[image.size] += 1
            except Exception:  # it is reported as unreadable when it is decoded
                continue
        return found

    def check(self, *, deep: bool = False) -> list[Finding]:
        """Sizes that do not suit the model, and images that cannot be read."""
        sizes, (height, width) = self.sizes(), self.size
        findings = []
        small = sum(count for (w, h), count in sizes.items() if w < width or h < height)
        if small:
            example = next(f"{w} × {h}" for w, h in sizes if w < width or h < height)
            findings.append(
                Finding(
                    "warning",
                    f"{small} of {sizes.total()} sampled images are smaller than the model's {width} × {height} "
                    f"(one is {example}); they are enlarged",
                )
            )
        elif self.exact and any(size != (width, height) for size in sizes):
            example = next(f"{w} × {h}" for w, h in sizes if (w, h) != (width, height))
            findings.append(
                Finding("warning", f"of images such as one of {example} only the middle {width} × {height} is used")
            )
        elif sizes:
            shown = some([f"{w} × {h}" for w, h in sorted(sizes)], 3)
            findings.append(Finding("ok", f"sampled images are {shown}, the model takes {width} × {height}"))
        return findings + super().check(deep=deep)


class PictureDomain(Domain):
    """Some pictures with their labels, as they are or corrupted when they are read."""

    def __init__(
        self, name: str, severity: int, labels: Tensor, pictures: Pictures, corruption: str | None = None
    ) -> None:
        if corruption is not None and min(pictures.size) < 16:
            raise DataError(
                f"images of {pictures.size[1]} × {pictures.size[0]} are too small to corrupt; use a model of at least 16 × 16"
            )
        self.name, self.severity, self.labels, self.pictures = name, severity, labels, pictures
        self.corruption = corruption
        self.unreadable = pictures.unreadable

    def read(self, numbers: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        numbers = torch.as_tensor(numbers, dtype=torch.int64).cpu()
        pictures, mask = self.pictures.read(numbers)
        images = pictures.to(device).float() / 255
        if self.corruption is not None and len(images):
            images = corrupt(images, self.corruption, self.severity, seeds=numbers[mask])
        return images, mask

    def check(self, *, deep: bool = False) -> list[Finding]:
        return self.pictures.check(deep=deep)


def spread(count: int, wanted: int) -> list[int]:
    """Up to so many of `range(count)`, evenly spread."""
    wanted = min(count, wanted)
    return [place * count // wanted for place in range(wanted)]


def in_threads(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`work` on each item, in order. (Pillow decodes outside the interpreter's lock.)"""
    return list(_pool().map(work, items)) if len(items) > 1 else [work(item) for item in items]


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="wildtta-images")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or damaged at its start"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return str(error) or type(error).__name__
