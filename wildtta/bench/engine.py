"""Running a plan: what is missing is run, in this process or in several, and nothing that is done is lost.

Every result is one file, written whole once its cell is over; those of cells that run side by side come together. So a run
that was stopped in any way goes on with the same call, and ends with the same files as one that was not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from wildtta.bench.checks import check_device, preflight
from wildtta.bench.config import Config
from wildtta.bench.crew import Crew, muster
from wildtta.bench.gallery import write_gallery
from wildtta.bench.on_ray import on_ray
from wildtta.bench.origin import check_origins
from wildtta.bench.plan import Cell, Setting, families
from wildtta.bench.store import Store
from wildtta.bench.work import Workshop, prepare_source
from wildtta.data import DataError
from wildtta.recipes import recipe
from wildtta.runners.together import mixes_images

__all__ = ["Account", "Event", "Family", "Listener", "Summary", "check_device", "preflight", "run", "work"]

Family = tuple[Cell, ...]


class Listener:
    """Is told what a run does; this one does nothing. `wildtta bench` draws progress bars with one."""

    def note(self, text: str) -> None:
        """Something worth saying before the run begins."""

    def begin(self, cells: int, kept: int) -> None:
        """How many cells the plan has, and how many of them have results already."""

    def progress(self, family: Family, seen: int, images: int, accuracy: float) -> None:
        """How far the stream of a family of cells is, and its accuracy so far in percent."""

    def finished(self, family: Family) -> None:
        """The results of these cells are on disk."""

    def failed(self, family: Family, reason: str) -> None:
        """These cells have no result; the others go on."""


@dataclass
class Summary:
    """How a run ended.

    Attributes:
        cells: that the plan has. kept: that had results before.
        finished: that got one now. failed: why others did not, by name.
        tracebacks: of these, for a bug report.
    """

    cells: int
    kept: int
    finished: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    tracebacks: dict[str, str] = field(default_factory=dict)


def run(config: Config, out: Path | str, listener: Listener | None = None) -> Summary:
    """Run all cells of a benchmark that have no result in the folder yet.

    A cell that fails is reported in the summary, and costs no other. Ctrl-C stops at once; the same call goes on later.
    Under `torchrun`, every process makes the same call, and they share the work (`wildtta.bench.crew`).

    Raises:
        ConfigError, DataError, ModelError, RunError: before anything runs.
    """
    listener = listener or Listener()
    settings, cells, findings, diffusions = preflight(config)
    for finding in findings:
        if finding.level == "warning":
            listener.note(finding.text)
    if errors := [finding.text for finding in findings if finding.level == "error"]:
        raise DataError("\n".join(errors))
    store, crew = Store(out), muster(config.device)
    if not crew.leads:
        missing = crew.hear()
        summary = Summary(len(cells), 0)
        _in_step(Account(store, missing, summary, Listener()), crew, settings)
        return summary
    store.prepare()
    with store.locked():
        check_origins(store, cells, settings, diffusions)
        names = [cell.name for cell in cells]
        store.write_plan(
            {
                "command": config.command(out),
                "config": config.as_dict(),
                "cells": names + [name for name in store.finished() if name not in set(names)],
                "stand_in": any(setting.model.stand_in or setting.data.stand_in for setting in settings.values()),
            }
        )
        absent = {cell for cell in cells if store.read(cell.name) is None}
        groups = [tuple(cell for cell in family if cell in absent) for family in families(cells, settings)]
        missing = [family for family in groups if family]
        summary = Summary(len(cells), len(cells) - sum(map(len, missing)))
        listener.begin(summary.cells, summary.kept)
        write_gallery(store, config, settings)
        prepare_source(store, [cell for family in missing for cell in family], settings)
        account = Account(store, missing, summary, listener)
        if crew.size > 1:
            crew.hear(missing)
            _in_step(account, crew, settings)
        elif config.engine == "ray" and missing:
            on_ray(account, config)
        elif config.jobs == 1 or len(missing) < 2:
            _here(account)
        else:
            _side_by_side(account, config.jobs)
    return summary


# -- in this process, and in several -----------------------------------------------------------------------------------


class Account:
    """Knows what is still to be run, keeps the summary, and passes on what happens."""

    def __init__(self, store: Store, missing: Sequence[Family], summary: Summary, listener: Listener) -> None:
        self.store, self.summary, self.listener = store, summary, listener
        self.waiting = list(reversed(missing))

    def progress(self, family: Family, seen: int, images: int, accuracy: float) -> None:
        self.listener.progress(family, seen, images, accuracy)

    def finished(self, family: Family) -> None:
        self.summary.finished += len(family)
        self.listener.finished(family)

    def failed(self, family: Family, reason: str, trace: str = "") -> None:
        """The cells of a fleet that failed are tried one by one: what is wrong with one must not cost the others."""
        if len(family) > 1:
            self.listener.note(f"{len(family)} streams side by side failed, and are tried one by one ({reason})")
            for cell in family:
                if self.store.read(cell.name) is None:
                    self.waiting.append((cell,))
                else:
                    self.finished((cell,))
            return
        self.summary.failed |= {cell.name: reason for cell in family}
        self.summary.tracebacks |= {cell.name: trace for cell in family}
        self.listener.failed(family, reason)


Event = tuple[str, tuple[Any, ...]]
"""A method of `Account`, and what to call it with besides the family."""


def work(workshop: Workshop, family: Family, progress: Callable[[int, int, float], None]) -> Event:
    """Run a family; how it ended."""
    try:
        workshop.run(family, progress)
    except Exception as error:  # one cell's trouble, whatever it is, must not cost the others
        return "failed", (f"{type(error).__name__}: {error}", traceback.format_exc())
    return "finished", ()


def _here(account: Account) -> None:
    workshop = Workshop(account.store)
    while account.waiting:
        family = account.waiting.pop()
        name, content = work(workshop, family, partial(account.progress, family))
        getattr(account, name)(family, *content)


def _in_step(account: Account, crew: Crew, settings: Mapping[tuple[str, str], Setting]) -> None:
    """With the other processes of `torchrun`: first streams that each runs alone, then those that they run together."""
    every = list(account.waiting)
    shared = [family for family in every if _is_shared(family, settings)]
    account.waiting = [family for family in every if not _is_shared(family, settings)][crew.rank :: crew.size]
    _here(account)
    for rank, summary in enumerate(crew.gather(account.summary)):
        if rank != crew.rank and crew.leads:
            account.summary.finished += summary.finished
            account.summary.failed |= summary.failed
            account.summary.tracebacks |= summary.tracebacks
    account.listener.begin(account.summary.cells, account.summary.cells - len(shared))
    workshop = Workshop(account.store, crew)
    for family in reversed(shared):
        workshop.run(family, partial(account.progress, family))  # what one cannot do ends all: they would wait for it
        account.finished(family)


def _is_shared(family: Family, settings: Mapping[tuple[str, str], Setting]) -> bool:
    cell = family[0]
    return (
        cell.batch > 1
        and not recipe(cell.method).costly
        and not mixes_images(settings[cell.model, cell.data].model.network)
    )


def _side_by_side(account: Account, jobs: int) -> None:
    """Each worker process gets one family after another. One that dies costs what it was at, and is replaced."""
    workers: dict[Connection, _Worker] = {}

    def start() -> None:
        worker = _Worker(account.store)
        workers[worker.connection] = worker
        worker.give(account.waiting.pop())

    try:
        for _ in range(min(jobs, len(account.waiting))):
            start()
        while workers:
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                worker = workers[connection]
                try:
                    name, content = connection.recv()
                except (EOFError, ConnectionError):
                    worker.process.join()
                    name, content = "failed", (_death(worker.process.exitcode),)
                getattr(account, name)(worker.family, *content)
                if name == "progress":
                    continue
                if worker.process.is_alive() and account.waiting:
                    worker.give(account.waiting.pop())
                    continue
                del workers[connection]
                worker.stop()
                if account.waiting:
                    start()
    finally:
        for worker in workers.values():
            worker.process.kill()


class _Worker:
    def __init__(self, store: Store) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(str(store.folder), theirs), daemon=True)
        with _deaf():
            self.process.start()
        theirs.close()
        self.family: Family = ()

    def give(self, family: Family) -> None:
        self.family = family
        with contextlib.suppress(ConnectionError):  # it has just died: the next look at its connection says so
            self.connection.send(family)

    def stop(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.connection.send(None)
        self.process.join()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started in here never hears Ctrl-C; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # where it has to be started, it would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(folder: str, connection: Connection) -> None:
    """A worker process: family after family, until there is none or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    workshop = Workshop(Store(folder))
    with contextlib.suppress(EOFError, ConnectionError):
        while (family := connection.recv()) is not None:
            connection.send(work(workshop, family, lambda *done: connection.send(("progress", done))))


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = "; was there too little memory? Try fewer --jobs" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code}"
