"""Which images there are, and of which class: from folders named after classes, or from a list in a file.

A listing is (class, file) pairs in sorted order: classes sorted, and files sorted within a class. So a number means the same
picture in every copy of a set, and at every severity of a corruption.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from wildtta.data.base import DataError, some
from wildtta.data.pictures import spread
from wildtta.data.places import Place, is_image

__all__ = [
    "ANNOTATIONS",
    "Listing",
    "annotated",
    "class_folders",
    "hash_of",
    "joined",
    "listed",
    "part_folder",
    "top_folder",
]

Listing = tuple[tuple[str, str], ...]

ANNOTATIONS = "val_annotations.txt"
"""Where the original Tiny-ImageNet says which class its validation images are."""

_SIZED = 4096  # files whose size enters a hash


def joined(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def top_folder(place: Place, at: str = "") -> str:
    """Where the class folders lie: here, or below folders that stand alone (`val/` in a tar, say)."""
    while not place.images(at) and len(folders := place.folders(at)) == 1 and place.folders(joined(at, folders[0])):
        at = joined(at, folders[0])
    return at


def part_folder(place: Place, part: str) -> str:
    """Where the class folders of one part of a set lie ("train", "val"); the top where there are no such parts."""
    at = top_folder(place)
    parts = set(place.folders(at))
    return top_folder(place, joined(at, part)) if part in parts and parts <= {"train", "val", "test"} else at


def class_folders(place: Place, at: str = "") -> Listing:
    """One folder a class, as torchvision's `ImageFolder` reads them; files are named from `at`."""
    folders = place.folders(at)
    if not folders:
        content = some(place.files(at)) or "nothing"
        raise DataError(f"{place.at(at)} has no folders, where one for each class is needed; it has {content}")
    pairs = [(folder, file) for folder in folders for file in _below(place, at, folder)]
    if empty := sorted(set(folders) - {folder for folder, _ in pairs}):
        raise DataError(
            f"{place.at(at)} has no images in {len(empty):,} of its {len(folders):,} class folders: {some(empty)}; unpack "
            "it again, or take them out"
        )
    return tuple(pairs)


def _below(place: Place, at: str, folder: str) -> list[str]:
    """The images in a folder and in folders within it."""
    folders, files = place.entries(joined(at, folder))
    deeper = [file for inner in folders for file in _below(place, at, joined(folder, inner))]
    return sorted([joined(folder, file) for file in files if is_image(file)] + deeper)


def annotated(place: Place, at: str) -> Listing:
    """Tiny-ImageNet's validation images as published: `images/` and a file that says which class each is."""
    pairs = []
    for number, line in _lines(place, joined(at, ANNOTATIONS)):
        parts = line.split("\t")
        if len(parts) < 2 or not all(parts[:2]):
            raise _not_a_line(place, joined(at, ANNOTATIONS), number, line, "FILE<tab>CLASS…")
        pairs.append((parts[1], f"images/{parts[0]}"))
    _check_files(place, at, [file for _, file in pairs], joined(at, ANNOTATIONS))
    return tuple(sorted(pairs))


def listed(place: Place, name: str) -> list[tuple[int, str]]:
    """The lines of a list file: "path label" each, the label a number."""
    pairs = []
    for number, line in _lines(place, name):
        parts = line.rsplit(maxsplit=1)
        if len(parts) < 2 or not re.fullmatch(r"-?\d+", parts[1]):
            raise _not_a_line(place, name, number, line, "PATH LABEL, the label a number")
        pairs.append((int(parts[1]), str(PurePosixPath(parts[0].strip()))))
    _check_files(place, "", [file for _, file in pairs], name)
    return pairs


def _lines(place: Place, name: str) -> list[tuple[int, str]]:
    lines = [(number, line) for number, line in enumerate(place.text(name).splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError(f"{place.at(name)} is empty, where a line for each image is needed")
    return lines


def _not_a_line(place: Place, name: str, number: int, line: str, form: str) -> DataError:
    return DataError(f"{place.at(name)}, line {number}: {line[:80]!r} is not of the form {form}")


def _check_files(place: Place, at: str, files: Sequence[str], source: str) -> None:
    """A file that is not there, or is named twice, is an error."""
    there: dict[str, set[str]] = {}
    missing = []
    for file in files:
        folder, _, name = file.rpartition("/")
        if folder not in there:
            try:
                there[folder] = set() if _escapes(file) else set(place.files(joined(at, folder)))
            except DataError:
                there[folder] = set()
        if name not in there[folder]:
            missing.append(file)
    if missing:
        raise DataError(
            f"{place.at(source)} names {len(files):,} images, of which {len(missing):,} are not in {place.at(at)}: "
            f"{some(missing, 3)}"
        )
    if twice := [file for file, times in Counter(files).items() if times > 1]:
        raise DataError(f"{place.at(source)} names {len(twice):,} images more than once: {some(twice, 3)}")


def _escapes(file: str) -> bool:
    return file.startswith("/") or ".." in file.split("/")


def hash_of(place: Place, files: Iterable[str]) -> str:
    """A cheap hash: of all the names, and of the sizes (of a few thousand spread over them, where there are more)."""
    names = list(files)
    digest = hashlib.sha256("\n".join(names).encode())
    for number in spread(len(names), _SIZED):
        digest.update(f"{place.size(names[number])};".encode())
    return digest.hexdigest()[:32]
