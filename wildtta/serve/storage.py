"""Snapshots on disk: two files a stream, each written whole or not at all, by a thread of its own.

`ID.safetensors` has what the stream has learnt, `ID.json` who it is and how it was doing. A write that fails is told to whoever
asked for it; the service goes on, and tries again later.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from wildtta.bench.config import ConfigError
from wildtta.files import PARTIAL, put
from wildtta.serve.records import Record

__all__ = ["Storage"]

_RETRY = 5.0  # seconds after a failure
_NAME = re.compile(r"[0-9a-f]{16}")
_log = logging.getLogger("wildtta.serve")

Done: TypeAlias = Callable[[OSError | None], None]


class Storage:
    """The folder of snapshots. Without a folder there is nothing to keep, and everything says so.

    Attributes:
        fault: why the last write failed; None while all is well. written, failures: how many snapshots were, and were not.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.fault: str | None = None
        self.written = self.failures = 0
        self._retry_at = 0.0
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock: Any = None

    @property
    def enabled(self) -> bool:
        return self.folder is not None

    @property
    def may_try(self) -> bool:
        """Whether a snapshot is worth taking: there is a folder, and it did not fail a moment ago."""
        return self.enabled and (self.fault is None or time.monotonic() >= self._retry_at)

    def start(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(self.folder)
            for left in self.folder.glob(PARTIAL):
                left.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._run, name="wildtta-storage", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return once everything that was ordered is on disk, or has failed."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, id: str, state: bytes, record: bytes, done: Done) -> None:
        """Order a snapshot; `done` is called on the writer's thread."""
        assert self.folder is not None
        folder = self.folder

        def order() -> None:
            put(folder / f"{id}.safetensors", state)
            put(folder / f"{id}.json", record)

        self._orders.put(lambda: self._carry_out(order, done, snapshot=True))

    def remove(self, id: str, done: Done) -> None:
        """Order that nothing of a stream be left. The record goes first: without it the rest counts for nothing."""
        if self.folder is None:
            done(None)
            return
        folder = self.folder

        def order() -> None:
            (folder / f"{id}.json").unlink(missing_ok=True)
            (folder / f"{id}.safetensors").unlink(missing_ok=True)

        self._orders.put(lambda: self._carry_out(order, done, snapshot=False))

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()

    def _carry_out(self, order: Callable[[], None], done: Done, *, snapshot: bool) -> None:
        try:
            order()
        except OSError as error:
            self.fail(error)
            done(error)
            return
        if snapshot:
            self.written += 1
            if self.fault is not None:
                _log.warning("snapshots work again")
            self.fault = None
        done(None)

    def fail(self, error: OSError) -> None:
        """Say so, once, and leave the disk alone for a moment."""
        if self.fault is None:
            _log.error("snapshots fail; predictions go on", extra={"reason": str(error)})
        self.fault, self._retry_at = f"{type(error).__name__}: {error.strerror or error}", time.monotonic() + _RETRY
        self.failures += 1

    # -- reading -------------------------------------------------------------------------------------------------------

    def records(self, classes: int) -> list[Record]:
        """The streams that are on disk. A record that cannot be read is set aside, and named in the log."""
        found = []
        for path in sorted(self.folder.glob("*.json")) if self.folder is not None else []:
            if not _NAME.fullmatch(path.stem):
                continue
            try:
                record = Record.decode(path.read_bytes(), classes)
                if record.id != path.stem:
                    raise ValueError(f"it is the record of {record.id}")
            except (ValueError, KeyError, TypeError, OSError) as error:
                _log.error("a stream's record cannot be read", extra={"file": path.name, "reason": str(error)})
                _set_aside(path)
                _set_aside(path.with_suffix(".safetensors"))
                continue
            found.append(record)
        known = {record.id for record in found}
        for path in self.folder.glob("*.safetensors") if self.folder is not None else []:
            if path.stem not in known:  # of a stream that was being made or removed: nobody has its token
                path.unlink(missing_ok=True)
        return found

    def state(self, id: str) -> Path | None:
        """Where what a stream has learnt is, if it is there."""
        path = self.folder / f"{id}.safetensors" if self.folder is not None else None
        return path if path is not None and path.is_file() else None

    def set_aside(self, id: str) -> None:
        """Keep a state that cannot be used for somebody to look at, out of the way."""
        if (path := self.state(id)) is not None:
            _set_aside(path)


def _set_aside(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rename(path.with_name(path.name + ".damaged"))


def _locked(folder: Path) -> Any:
    """Two services on one folder would undo each other's snapshots."""
    file = (folder / ".lock").open("w")
    try:
        import fcntl
    except ImportError:  # Windows
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"another service keeps its snapshots in {folder}; give --state a folder of its own"
        ) from error
    return file
