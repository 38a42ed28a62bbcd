"""A run folder: the plan, one file a cell, and nothing half written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wildtta.files import PARTIAL, put

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
        self.adapted = self.folder / "adapted"

    def prepare(self) -> None:
        """Make the folders; a folder that holds other things is left alone."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; name a folder for the results with --out")
        try:
            if self.folder.is_dir() and not self._is_run():
                raise RunError(f"{self.folder} is not empty and holds no run; name another folder with --out")
            for folder in (self.cells, self.gallery, self.sources):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _is_run(self) -> bool:
        """Whether a run has begun here. One that was stopped before it had a plan has left only empty folders."""
        plan = self.folder / "plan.json"
        if plan.exists():
            try:
                content = json.loads(plan.read_text())
            except (json.JSONDecodeError, UnicodeDecodeError):
                return False
            return isinstance(content, dict) and {"format", "cells"} <= content.keys()
        own = {self.cells, self.gallery, self.sources}
        return all(
            entry.name == ".lock" or entry.match(PARTIAL) or (entry in own and not any(entry.iterdir()))
            for entry in self.folder.iterdir()
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time works on a folder. The lock goes with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        try:
            file = (self.folder / ".lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"another run is at work on {self.folder}; wait for it, or stop it") from error
            deep = [self.folder.glob(f"{'*/' * depth}{PARTIAL}") for depth in range(3)]
            for left in itertools.chain(*deep):  # by a run that was killed
                left.unlink(missing_ok=True)
            yield

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(
            f"cannot write to {self.folder}: {error.strerror or error}; make room there, or name another --out"
        )

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
        try:
            write_json(self.folder / "plan.json", {"format": FORMAT, **content})
        except OSError as error:
            raise self._unwritable(error) from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    put(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
