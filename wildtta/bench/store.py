"""A run folder: the plan, one file a cell, and nothing half written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "RunError", "Store"]

FORMAT = 1


class RunError(ValueError):
    """A run folder that cannot be used."""


class Store:
    """The files of one run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        self.gallery = self.folder / "gallery"
        self.sources = self.folder / "source"

    def prepare(self) -> None:
        """Make the folders; a folder that holds other things is left alone."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; name a folder for the results with --out")
        own = {self.cells.name, self.gallery.name, self.sources.name, ".lock"}  # a run may have been stopped right here
        found = {entry.name for entry in self.folder.iterdir()} if self.folder.is_dir() else set()
        if found - own and "plan.json" not in found:
            raise RunError(f"{self.folder} is not empty and holds no run; name another folder with --out")
        try:
            for folder in (self.cells, self.gallery, self.sources):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time works on a folder. The lock goes with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"another run is at work on {self.folder}; wait for it, or stop it") from error
            yield

    def read(self, name: str) -> dict[str, Any] | None:
        """The result of a cell; None where there is none, or none that is whole."""
        try:
            content = json.loads((self.cells / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return content if isinstance(content, dict) and content.get("format") == FORMAT else None

    def finished(self) -> list[str]:
        """The names of all results."""
        return sorted(file.stem for file in self.cells.glob("*.json") if not file.name.startswith("."))

    def write(self, name: str, content: dict[str, Any]) -> None:
        write_json(self.cells / f"{name}.json", {"format": FORMAT, **content})

    def write_plan(self, content: dict[str, Any]) -> None:
        write_json(self.folder / "plan.json", {"format": FORMAT, **content})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, even if the machine stops."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1, sort_keys=True, allow_nan=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
