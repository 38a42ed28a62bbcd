"""CIFAR-10-C and CIFAR-100-C: one array of images for each corruption, all five severities one after another in it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, EXTRA
from wildtta.data.base import DataError, Finding, some
from wildtta.data.classes import Matching
from wildtta.data.layouts import PictureData, Source
from wildtta.data.pictures import PictureDomain, Pictures, spread
from wildtta.models import Model, Preprocessing

__all__ = ["CorruptionArrays"]

_SEVERITIES = (1, 2, 3, 4, 5)
_LABELS = "labels"
_BLOCK = 4096  # bytes of a file that enter a digest, at a time


class _ArrayImages(Pictures):
    """Some rows of an array of images; resized where the model takes another size."""

    def __init__(self, path: Path, rows: Any, first: int, preprocessing: Preprocessing) -> None:
        super().__init__(len(rows), preprocessing.size)
        self._path, self._rows, self._first = path, rows, first
        self._preprocessing = replace(preprocessing, resize=max(preprocessing.size), squash=True)

    def load(self, number: int) -> Tensor:
        return self._preprocessing.picture(Image.fromarray(self._rows[number]))

    def name(self, number: int) -> str:
        return f"row {self._first + number} of {self._path.name}"


class CorruptionArrays(PictureData):
    """CORRUPTION.npy for each corruption, and labels.npy: five times the same labels, one part a severity."""

    severities = _SEVERITIES

    def __init__(self, name: str, path: Path, model: Model, source: str | None, *, classes: int) -> None:
        where = f"{name}:{path}"
        if not path.is_dir():
            found = "it is a file" if path.exists() else "there is none"
            raise DataError(f"{where} must be a folder of .npy files, but {found}; unpack the set, and give its folder")
        self._files = {file.stem: file for file in sorted(path.glob("*.npy")) if not file.name.startswith(".")}
        if _LABELS not in self._files or len(self._files) < 2:
            lacking = "labels.npy" if _LABELS not in self._files else "arrays of images (fog.npy, …)"
            raise DataError(
                f"{where} has no {lacking}; it has {some(sorted(entry.name for entry in path.iterdir())) or 'nothing'}"
            )
        if model.outputs != classes:
            raise DataError(
                f"{where} has {classes} classes and {model.name} has {model.outputs:,} outputs; give a model of {classes}"
            )
        notes, numbers = [], tuple(map(str, range(classes)))
        names = model.classes or numbers
        if names != numbers and list(names) != sorted(names, key=str.lower):
            notes.append(
                Finding(
                    "warning",
                    f"{where} numbers its classes in alphabetical order, but the classes of {model.name} are in another "
                    f"({some(names, 3)}); its labels are taken for numbers of outputs nevertheless",
                )
            )
        matching = Matching(names, None, {})
        given = None if source is None else Source.open(source, model, names, exact=True)
        super().__init__(name, where, matching, notes, given)
        known = (*CORRUPTIONS, *EXTRA)
        others = sorted(set(self._files) - set(known) - {_LABELS})
        self.kinds = (*(kind for kind in known if kind in self._files), *others)
        self._preprocessing = model.preprocessing
        self._labels = self._read_labels(self._files[_LABELS], classes)

    def _read_labels(self, path: Path, classes: int) -> Tensor:
        labels = _array(path)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0 or len(labels) % len(_SEVERITIES):
            raise DataError(
                f"{path} must hold whole numbers along one axis, as many for each of the five severities; it holds {_shape(labels)}"
            )
        if labels.min() < 0 or labels.max() >= classes:
            raise DataError(
                f"{path} must hold labels from 0 to {classes - 1}, but they range from {labels.min()} to {labels.max()}"
            )
        parts = labels.astype(np.int64).reshape(len(_SEVERITIES), -1)
        if (parts != parts[0]).any():
            raise DataError(
                f"{path} must hold the same labels five times over, once for each severity, but its five parts differ; is it "
                "of a single severity?"
            )
        return torch.from_numpy(parts[0].copy())

    def domain(self, kind: str, severity: int) -> PictureDomain:
        if kind not in self.kinds:
            raise self._no_such_kind(kind, self.where, f"; put {kind}.npy there")
        if severity not in _SEVERITIES:
            raise DataError(f"{self.where} has {kind} at severities 1 to 5, not at {severity}")
        path, count = self._files[kind], len(self._labels)
        images = _array(path)
        if images.shape[1:] != (32, 32, 3) or images.dtype != np.uint8:
            raise DataError(f"{path} must hold images of 32 × 32 × 3 bytes, but it holds {_shape(images)}")
        if len(images) != count * len(_SEVERITIES):
            raise DataError(
                f"{path} has {len(images):,} images where labels.npy has {count * len(_SEVERITIES):,} labels; give both complete"
            )
        first = (severity - 1) * count
        rows = images[first : first + count]
        return PictureDomain(kind, severity, self._labels, _ArrayImages(path, rows, first, self._preprocessing))

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in self._files.values():
            size = path.stat().st_size
            digest.update(f"{path.name}:{size};".encode())
            with path.open("rb") as file:  # such arrays are all of one size, so a look into them
                for start in spread(size, 16):
                    file.seek(start)
                    digest.update(file.read(_BLOCK))
        return digest.hexdigest()[:32]


def _array(path: Path) -> Any:
    """A .npy file, not read into memory; no pickle in it is loaded."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a whole .npy file ({error}); download it again") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an archive of arrays, where a single one is needed")
    return array


def _shape(array: Any) -> str:
    return f"{' × '.join(map(str, array.shape)) or 'one number'} of {array.dtype}"
