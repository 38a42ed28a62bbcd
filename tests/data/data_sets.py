"""Writes tiny data sets in every layout, and the tiny models they are for."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from wildtta.data import Data, DataError, open_data
from wildtta.data.classes import subset
from wildtta.models import Model, Preprocessing, imagenet_classes

SIDE = 32
EACH = 4  # images of a class


@cache
def wnids() -> tuple[str, ...]:
    """Three classes of ImageNet that ImageNet-R and ImageNet-A have too."""
    return tuple(sorted(set(subset("imagenet-r")) & set(subset("imagenet-a")))[:3])


@cache
def stranger() -> str:
    """A class of ImageNet that ImageNet-R and ImageNet-A do not have."""
    return next(name for name in imagenet_classes() if name not in (*subset("imagenet-r"), *subset("imagenet-a")))


@cache
def number_of(wnid: str) -> int:
    return imagenet_classes().index(wnid)


def model(classes: Iterable[str] | int, side: int = SIDE) -> Model:
    names = None if isinstance(classes, int) else tuple(classes)
    count = classes if isinstance(classes, int) else len(names)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, count)).eval()
    return Model("tiny", network, Preprocessing((side, side)), names)


def pixels(seed: int, side: int = SIDE) -> np.ndarray:
    """A smooth picture, so that JPEG files of it differ and are not mere noise."""
    coarse = np.random.RandomState(seed).randint(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def write_image(path: Path, seed: int, side: int = SIDE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, side)).save(path, format="JPEG", quality=90)


def decoded(path: Path) -> Tensor:
    """A file's pixels as the library should give them: 3 × H × W in [0, 1]."""
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).float() / 255


Pairs = list[tuple[str, Path]]
"""(class, file) of each image, in the order that is expected."""


def write_classes(root: Path, folders: dict[str, str], seed: int = 0, each: int = EACH, side: int = SIDE) -> Pairs:
    """One folder a class, written back to front, with things in them that are no images."""
    pairs = []
    for place, (name, folder) in enumerate(sorted(folders.items(), reverse=True)):
        for number in reversed(range(each)):
            path = root / folder / f"picture_{number:02}.JPEG"
            write_image(path, seed + 100 * place + number, side)
            pairs.append((name, path))
        (root / folder / "notes.txt").write_text("no image")
        (root / folder / "._picture_00.JPEG").write_text("no image either")
    return pairs[::-1]


@dataclass
class Written:
    """A set on disk: its spec's path, and what each domain should read, by kind and severity."""

    path: Path
    pairs: dict[tuple[str, int], Pairs]


def _named(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def write_corruptions(root: Path, top: str = "") -> Written:
    pairs = {
        (kind, severity): write_classes(
            root / top / kind / str(severity), _named(wnids()), seed=10_000 * place + 1_000 * severity
        )
        for place, kind in enumerate(("fog", "snow"))
        for severity in (1, 3, 5)
    }
    return Written(root, pairs)


def write_one(layout: str) -> Callable[[Path], Written]:
    def write(root: Path) -> Written:
        return Written(root, {(layout, 0): write_classes(root, _named(wnids()))})

    return write


def write_clean(root: Path) -> Written:
    return Written(root, {("clean", 0): write_classes(root, _named(wnids()))})


def write_numbered(root: Path) -> Written:
    folders = {name: str(number_of(name)) for name in wnids()}
    return Written(root, {("imagenet-v2", 0): write_classes(root, folders)})


def write_listed(root: Path) -> Written:
    pairs = write_classes(root / "images", _named(wnids()))
    lines = [f"{path.relative_to(root)} {number_of(name)}" for name, path in reversed(pairs)]
    write_image(root / "images" / "unknown 1.JPEG", 7)
    lines.insert(1, "images/unknown 1.JPEG 1000")
    lines[3] = "./" + lines[3].replace(" ", "\t")
    (root / "list.txt").write_text("\n".join(lines) + "\n")
    (root / "README.txt").write_text("about it")
    return Written(root, {("visda-2021", 0): pairs})


def write_arrays(root: Path, classes: int, count: int = 12) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for place, kind in enumerate(("fog", "snow")):
        images = np.stack([pixels(1000 * place + number) for number in range(5 * count)])
        np.save(root / f"{kind}.npy", images)
    np.save(root / "labels.npy", np.tile(array_labels(classes, count), 5))


def array_labels(classes: int, count: int = 12) -> np.ndarray:
    return np.random.RandomState(0).randint(0, classes, count).astype(np.uint8)


FOLDERS: dict[str, Callable[[Path], Written]] = {
    "imagenet-c": write_corruptions,
    "tiny-imagenet-c": write_corruptions,
    "imagenet": write_clean,
    "tiny-imagenet": write_clean,
    "folder": write_clean,
    "imagenet-r": write_one("imagenet-r"),
    "imagenet-a": write_one("imagenet-a"),
    "imagenet-v2": write_numbered,
    "imagenet-sketch": write_one("imagenet-sketch"),
    "visda-2021": write_listed,
}
"""The layouts of image files."""

ARRAYS = {"cifar10-c": 10, "cifar100-c": 100}
"""The layouts of arrays, and their classes."""


def write(layout: str, root: Path) -> Model:
    """A good set of a layout, and a model for it."""
    if layout in ARRAYS:
        write_arrays(root, ARRAYS[layout])
        return model(ARRAYS[layout])
    FOLDERS[layout](root)
    return model(wnids())


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 9 // 10])


def tarred(root: Path, tar: Path, top: str) -> Path:
    with tarfile.open(tar, "w") as archive:
        archive.add(root, top)
    return tar


def read(data: Data, kind: str, severity: int) -> Tensor:
    """All images of a domain, every one of which must be readable."""
    domain = data.domain(kind, severity)
    images, readable = domain.read(torch.arange(len(domain)))
    assert readable.all()
    return images


def preflight(spec: str, model: Model, kinds: Iterable[str] = (), deep: bool = False) -> list[tuple[str, str]]:
    """What opening and checking say, but for what is in order: (level, text)."""
    try:
        data = open_data(spec, model)
    except DataError as error:
        return [("error", str(error))]
    findings = data.check(kinds or data.kinds[:1], data.severities, deep=deep)
    return [(finding.level, finding.text) for finding in findings if finding.level != "ok"]
