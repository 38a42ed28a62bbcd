"""Where images lie: a folder, or an uncompressed tar that is read as if it were one, by offset and without unpacking."""

from __future__ import annotations

import os
import tarfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path, PurePosixPath

from wildtta.data.base import DataError, some

__all__ = ["Archive", "Folder", "Place", "is_image", "open_place"]

_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"))


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return PurePosixPath(name).suffix.lower() in _SUFFIXES


class Place(ABC):
    """Folders and files below a root, by relative names with slashes. Hidden ones (`.DS_Store`, `._x.jpg`) are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def at(self, name: str) -> str:
        """How to name a folder or file of it in a message."""
        return f"{self.path}/{name}" if name else str(self.path)

    @abstractmethod
    def entries(self, at: str = "") -> tuple[list[str], list[str]]:
        """The names of the folders and of the files in a folder, both sorted."""

    def folders(self, at: str = "") -> list[str]:
        return self.entries(at)[0]

    def files(self, at: str = "") -> list[str]:
        return self.entries(at)[1]

    def images(self, at: str = "") -> list[str]:
        """The files in a folder that are images by their names."""
        return [name for name in self.files(at) if is_image(name)]

    @abstractmethod
    def size(self, name: str) -> int:
        """The bytes of a file; -1 where it is not there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file. An `OSError` where it is not there or cannot be read."""

    def text(self, name: str) -> str:
        """A text file."""
        try:
            return self.read(name).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.at(name)} cannot be read as text: {error}") from error


class Folder(Place):
    """A folder on disk. Links are followed."""

    def entries(self, at: str = "") -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(self.path / at) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        (folders if entry.is_dir() else files).append(entry.name)
        except OSError as error:
            raise DataError(f"the folder {self.at(at)} cannot be read: {error.strerror or error}") from error
        return sorted(folders), sorted(files)

    def size(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_size
        except OSError:
            return -1

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Archive(Place):
    """An uncompressed tar. Only its index is read when it is opened; nothing in it is ever written to disk."""

    @cached_property
    def _index(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[set[str], set[str]]]]:
        """Where each file lies (offset, bytes), and the folders and files in each folder."""
        where: dict[str, tuple[int, int]] = {}
        inside: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
        try:
            with tarfile.open(self.path, "r:") as archive:
                for member in archive:
                    parts = [part for part in member.name.split("/") if part not in ("", ".")]
                    if not member.isreg() or member.sparse is not None or any(part[0] == "." for part in parts):
                        continue
                    where["/".join(parts)] = (member.offset_data, member.size)
                    for depth in range(1, len(parts)):
                        inside.setdefault("/".join(parts[:depth]), (set(), set()))
                        inside["/".join(parts[: depth - 1])][0].add(parts[depth - 1])
                    inside["/".join(parts[:-1])][1].add(parts[-1])
                end = archive.offset
            with self.path.open("rb") as file:  # tarfile is content with one that was cut between two members
                file.seek(end)
                if file.read(512) != bytes(512):
                    raise tarfile.ReadError("its end is missing")
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise DataError(
                f"{self.path} is not a whole, uncompressed tar ({error}); decompress it (gunzip, …), or unpack it and give the "
                "folder"
            ) from error
        return where, inside

    def entries(self, at: str = "") -> tuple[list[str], list[str]]:
        if at not in self._index[1]:
            raise DataError(f"{self.path} has no folder {at}")
        folders, files = self._index[1][at]
        return sorted(folders), sorted(files)

    def size(self, name: str) -> int:
        return self._index[0].get(name, (0, -1))[1]

    def read(self, name: str) -> bytes:
        if name not in self._index[0]:
            raise FileNotFoundError(f"{self.path} has no {name}")
        offset, size = self._index[0][name]
        with self.path.open("rb") as file:  # a handle of its own for each thread
            file.seek(offset)
            return file.read(size)


def _beside(path: Path) -> str:
    try:
        return some(sorted(os.listdir(path.parent))) or "nothing"
    except OSError:
        return "nothing that can be read"


def open_place(path: Path) -> Place:
    """A folder or a tar; anything else is an error."""
    if path.is_dir():
        place: Place = Folder(path)
        if not any(place.entries()):
            raise DataError(f"the folder {path} is empty; give the one that the images were unpacked to")
        return place
    if not path.exists():
        beside = f"; {path.parent} has {_beside(path)}" if path.parent.is_dir() else ""
        raise DataError(f"there is no folder or tar {path}{beside}")
    if not path.is_file():
        raise DataError(f"{path} is neither a folder nor a file")
    archive = Archive(path)
    if not any(archive.entries()):
        raise DataError(f"{path} is an empty tar")
    return archive
