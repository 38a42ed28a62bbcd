"""Corrupted copies on disk, in ImageNet-C's layout, for other programs (and to spare the work another time)."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_source
from wildtta.data.base import DataError, some
from wildtta.data.listing import ANNOTATIONS, Listing, annotated, class_folders, part_folder
from wildtta.data.pictures import ImageFiles
from wildtta.data.places import open_place
from wildtta.models import Preprocessing

__all__ = ["Copied", "corrupted_copy"]

RECORD = "corrupted.json"
"""The file in a copy that says how it was made, so that another run goes on with the same or not at all."""

_BATCH = 64  # images that are read at a time, once for all their corruptions
_UNFINISHED = ".unfinished-"
_ENDS = {".JPEG": b"\xff\xd9", ".png": b"IEND\xaeB`\x82"}  # what a whole file ends with


@dataclass(frozen=True)
class Copied:
    """What a copy came to: files written now, files kept from an earlier run, and which images could not be read, and why."""

    written: int
    kept: int
    unreadable: tuple[str, ...]


def corrupted_copy(
    source: Path | str,
    target: Path | str,
    *,
    kinds: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    size: int = 224,
    resize: int | None = None,
    quality: int | None = 85,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Write the images of class folders as target/<corruption>/<severity>/<class>/<name>.JPEG.

    By default this is what the authors of ImageNet-C did with ImageNet's validation images: the shorter side to 256, the
    middle 224 × 224, the corruption, and a JPEG of quality 85. An image's random numbers come from its place among all
    images (classes and names sorted), so every run makes the same files, and but for the JPEG the same images as the layouts
    "imagenet" and "folder" make when they are read. A run that was stopped is gone on with by the same call: each file is
    written whole or not at all, and the whole ones are kept.

    Args:
        source: a folder (or an uncompressed tar) of class folders of images, or what has it as "val".
        target: a folder, new or of an earlier run with the same options. More kinds and severities may be added to it.
        kinds: from `CORRUPTIONS` and `EXTRA`.
        severities: from 1 to 5.
        size: the side of the copies; it also decides whose parameters the corruptions have (see `corrupt`).
        resize: the shorter side before the middle is cut out; 256 for a size of 224, else the size, where left out.
        quality: of the JPEGs, 1 to 100; None writes PNGs, which lose nothing.
        device: where the images are corrupted.
        workers: threads that encode and write; as many as there are processors, up to 16, where left out.
        progress: is told how many of how many files are done, now and then.
    """
    source, target = Path(source), Path(target)
    if resize is None:
        resize = 256 if size == 224 else size
    workers = min(16, os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise DataError(f"workers must be at least 1, not {workers}")
    cells = _cells(kinds, severities, size, resize, quality)
    place = open_place(source)
    _check_apart(source, target, kinds)
    at = part_folder(place, "val")
    listing = annotated(place, at) if ANNOTATIONS in place.files(at) else class_folders(place, at)
    names = [name for _, name in listing]
    files = _file_names(listing, ".JPEG" if quality is not None else ".png")
    _claim(target, kinds, {"size": size, "resize": resize, "quality": quality}, names)
    preprocessing = Preprocessing((size, size), resize, "bilinear")
    total, done, written, kept = len(names) * len(cells), 0, 0, 0
    unreadable: list[str] = []
    with _scratch(target) as scratch, ThreadPoolExecutor(workers) as pool:
        writing: list[Future[None]] = []
        for start in range(0, len(names), _BATCH):
            numbers = range(start, min(start + _BATCH, len(names)))
            missing = {
                cell: [number for number in numbers if not _whole(target.joinpath(*cell, files[number]))]
                for cell in cells
            }
            wanted = sorted(set().union(*missing.values()))
            pictures = ImageFiles(place, [names[number] for number in wanted], preprocessing, at=at)
            loaded, readable = pictures.read(torch.arange(len(wanted)))
            unreadable += [pictures.unreadable[index] for index in sorted(pictures.unreadable)]
            images = loaded.to(device).float() / 255
            row = {wanted[index]: row for row, index in enumerate(readable.nonzero().flatten().tolist())}
            for (kind, severity), lacking in missing.items():
                kept += len(numbers) - len(lacking)
                lacking = [number for number in lacking if number in row]
                if lacking:
                    rows = torch.tensor([row[number] for number in lacking], device=images.device)
                    results = corrupt(images[rows], kind, int(severity), seeds=torch.tensor(lacking))
                    _wait(writing, target)  # for those of the cell before, so that they are written meanwhile
                    writing = [
                        pool.submit(_write, picture, target.joinpath(kind, severity, files[number]), scratch, quality)
                        for number, picture in zip(lacking, _bytes(results), strict=True)
                    ]
                    written += len(lacking)
                done += len(numbers)
                if progress is not None:
                    progress(done, total)
        _wait(writing, target)
    if len(unreadable) == len(names):
        raise DataError(f"none of the {len(names):,} images of {source} can be read: {some(unreadable, 3)}")
    return Copied(written, kept, tuple(unreadable))


# -- what is asked for -------------------------------------------------------------------------------------------------


def _cells(
    kinds: Sequence[str], severities: Sequence[int], size: int, resize: int, quality: int | None
) -> list[tuple[str, str]]:
    """The folders of the copy: corruption and severity."""
    known = CORRUPTIONS + EXTRA
    for kind in kinds:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(known)}"
            raise DataError(f"unknown corruption {kind!r}; {hint}")
    if wrong := [severity for severity in severities if severity not in range(1, 6)]:
        raise DataError(f"severities are from 1 to 5, not {some(wrong)}")
    if not kinds or not severities:
        raise DataError(f"no {'severity' if kinds else 'corruption'} was asked for; name at least one")
    if size < 16:
        raise DataError(f"images of {size} × {size} are too small to corrupt; ask for at least 16")
    if resize < size:
        raise DataError(
            f"a middle of {size} × {size} cannot be cut out of images whose shorter side is {resize}; resize to more"
        )
    if quality is not None and not 1 <= quality <= 100:
        raise DataError(f"the quality of a JPEG is from 1 to 100, not {quality}; write PNGs to lose nothing")
    return [(kind, str(int(severity))) for kind in dict.fromkeys(kinds) for severity in dict.fromkeys(severities)]


def _file_names(listing: Listing, suffix: str) -> list[str]:
    """Class and name of each copy."""
    files = [f"{group}/{PurePosixPath(name).stem}{suffix}" for group, name in listing]
    first: dict[str, str] = {}
    for file, (_, name) in zip(files, listing, strict=True):
        if file in first:
            raise DataError(f"the copies of {first[file]} and {name} would have the same name; rename one of them")
        first[file] = name
    return files


def _check_apart(source: Path, target: Path, kinds: Sequence[str]) -> None:
    here, there = source.resolve(), target.resolve()
    if there.is_relative_to(here):
        raise DataError(
            f"{target} lies in {source}, where the copies would count as images of it; choose a folder beside it"
        )
    if any(here.is_relative_to(there / kind) for kind in kinds):
        raise DataError(f"{source} lies where its copies would be written, in {target}; choose another folder for them")
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file; choose a folder for the copies")


def _claim(target: Path, kinds: Sequence[str], options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Note in the target how its files are made, or check that an earlier run made them alike."""
    record = {
        **options,
        "images": len(names),
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest()[:32],
        **({"frost": frost_source()} if "frost" in kinds else {}),
    }
    path = target / RECORD
    if not path.exists() and (others := [kind for kind in kinds if (target / kind).exists()]):
        raise DataError(
            f"{target} has {some(others)} already, of which nothing says how it was made; choose another folder"
        )
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
        if not isinstance(found, dict):
            raise ValueError("not a record")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}, the record of an earlier run, cannot be read ({error}); choose another folder"
        ) from error
    for key, value in record.items():
        if key in found and found[key] != value:
            raise DataError(f"{target} has copies made {_difference(key, found[key], value)}; choose another folder")
    if found | record != found:
        try:
            target.mkdir(parents=True, exist_ok=True)
            with _scratch(target) as scratch:
                _put(json.dumps(found | record, indent=1, sort_keys=True).encode() + b"\n", path, scratch)
        except OSError as error:
            raise DataError(f"{target} cannot be written to: {error.strerror or error}") from error


def _difference(key: str, found: Any, wanted: Any) -> str:
    if key == "names":
        return "of other images than these, whose random numbers would differ"
    if key == "images":
        return f"of {found:,} images, where there are {wanted:,} now, whose random numbers would differ"
    if key == "frost":
        return f"with {found} frost, and here it would be {wanted}"
    return f"with {key} {found}, not {wanted}"


# -- files -------------------------------------------------------------------------------------------------------------


def _whole(path: Path) -> bool:
    """Whether a file is there with its end. (Not all of it need have reached the disk when a machine went down.)"""
    end = _ENDS[path.suffix]
    try:
        with path.open("rb") as file:
            file.seek(-len(end), os.SEEK_END)
            return file.read() == end
    except OSError:
        return False


def _bytes(images: Tensor) -> Any:
    return (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def _write(picture: Any, path: Path, scratch: Path, quality: int | None) -> None:
    content = io.BytesIO()
    if quality is None:
        Image.fromarray(picture).save(content, "PNG")
    else:
        # The authors' files are optimised, too; at higher qualities Pillow's buffer for that is too small for much noise.
        Image.fromarray(picture).save(content, "JPEG", quality=quality, optimize=quality <= 85)
    path.parent.mkdir(parents=True, exist_ok=True)
    _put(content.getvalue(), path, scratch)


def _put(content: bytes, path: Path, scratch: Path) -> None:
    """Write a file aside and move it to its place, where it so is whole or not at all."""
    aside = scratch / str(threading.get_ident())
    aside.write_bytes(content)
    os.replace(aside, path)


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A hidden folder for files that are not whole yet. One of a run that was killed is removed some time later."""
    for old in target.glob(f"{_UNFINISHED}*"):
        if time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=_UNFINISHED, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _wait(writing: Sequence[Future[None]], target: Path) -> None:
    try:
        for future in writing:
            future.result()
    except OSError as error:
        raise DataError(
            f"a file could not be written to {target}: {error.strerror or error}; once there is room the same call goes on"
        ) from error
