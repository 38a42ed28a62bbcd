"""The one thread that has the models: takes requests in order, several streams at a step, and keeps snapshots going."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from wildtta.bench.work import precision
from wildtta.serve.engine import Engine, Step
from wildtta.serve.metrics import Metrics
from wildtta.serve.problems import Problem, busy, forbidden
from wildtta.serve.records import Record
from wildtta.serve.settings import Settings
from wildtta.serve.storage import Storage

__all__ = ["Worker"]

_TICK = 1.0  # seconds between looks at idle streams
_QUIET = 5.0  # seconds after which a stream with unsaved learning is saved, however little
_log = logging.getLogger("wildtta.serve")


@dataclass(eq=False)
class Job:
    """Something to do for one stream: predict images, or else `work`. The future belongs to an event loop."""

    record: Record
    future: asyncio.Future[Any]
    images: Tensor | None = None
    learn: bool = True
    top: int = 1
    work: Callable[[], Any] | None = None
    commit: bool = False  # the answer waits until the stream is on disk
    wake: bool = True  # the stream has to be in memory
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def size(self) -> int:
        return 0 if self.images is None else len(self.images)


class Worker:
    """Requests of one stream are done in order, each in a step of its own, since each teaches the next."""

    def __init__(self, engine: Engine, storage: Storage, settings: Settings, metrics: Metrics) -> None:
        self.engine, self.storage, self.settings, self.metrics = engine, storage, settings, metrics
        self.records: dict[str, Record] = {}
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._count = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._recent: deque[set[str]] = deque([set(), set()], maxlen=2)
        self._ticked = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="wildtta-worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, and order a snapshot of every stream that has learnt since its last."""
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._thread = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return self._count

    # -- for the event loop --------------------------------------------------------------------------------------------

    async def predict(self, record: Record, images: Tensor, *, learn: bool, top: int) -> Step:
        answer: Step = await self._submit(Job(record, _future(), images, learn, top))
        return answer

    async def call(self, record: Record, work: Callable[[], Any], *, commit: bool = False, wake: bool = True) -> Any:
        """Do something with the models in the stream's turn; with `commit`, answer once its result is on disk."""
        return await self._submit(Job(record, _future(), work=work, commit=commit, wake=wake))

    def check_room(self, id: str) -> None:
        """Raise a problem if there is none for another request of this stream."""
        if self._count >= self.settings.max_waiting or self._stopping:
            raise busy()
        if len(self._waiting.get(id, ())) >= self.settings.max_stream_waiting:
            raise Problem(
                429,
                f"{self.settings.max_stream_waiting} requests of this stream wait already",
                "wait for answers before you send more; they are worked on one after another",
                retry_after=1,
            )

    async def _submit(self, job: Job) -> Any:
        with self._changed:
            self.check_room(job.record.id)
            self._waiting.setdefault(job.record.id, deque()).append(job)
            self._count += 1
            self._changed.notify()
        return await job.future

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with precision(self.settings.precision, self.engine.opened.device):
            while True:
                jobs = self._next()
                if jobs is None:
                    break
                if jobs:
                    self._carry_out(jobs)
                if time.monotonic() - self._ticked > _TICK:
                    self._tick()
            for record in self.records.values():
                if record.live and record.unsaved:
                    self._capture(record)

    def _next(self) -> list[Job] | None:
        """The jobs of the next step; none after a while without any, so that other things get done; None at the end."""
        until = time.monotonic() + _TICK
        with self._changed:
            while True:
                jobs, full = self._choose()
                if jobs:
                    deadline = jobs[0].arrived + self.settings.max_wait_ms / 1000
                    left = deadline - time.perf_counter()
                    if full or left <= 0 or self._stopping:
                        return self._take(jobs)
                    self._changed.wait(left)
                    continue
                if self._stopping and not self._waiting:
                    return None
                if (left := until - time.monotonic()) <= 0:
                    return []
                self._changed.wait(left)

    def _choose(self) -> tuple[list[Job], bool]:
        """What could be done now, in order of arrival, and whether there is a reason to wait for more."""
        chosen: list[Job] = []
        size = 0
        for jobs in self._waiting.values():
            job = jobs[0]
            if job.images is None:
                if not chosen:
                    return [job], True
                continue
            if chosen and (size + job.size > self.settings.max_batch or job.learn != chosen[0].learn):
                continue
            if job.learn and self._must_save(job):
                continue
            chosen.append(job)
            size += job.size
            if size >= self.settings.max_batch:
                return chosen, True
        expected = self._recent[0] | self._recent[1]
        return chosen, expected <= {job.record.id for job in chosen}

    def _take(self, jobs: list[Job]) -> list[Job]:
        for job in jobs:
            queue = self._waiting[job.record.id]
            queue.popleft()
            if queue:
                self._waiting.move_to_end(job.record.id)
            else:
                del self._waiting[job.record.id]
        self._count -= len(jobs)
        if jobs[0].images is not None:
            self._recent.append({job.record.id for job in jobs})
        return jobs

    def _carry_out(self, jobs: list[Job]) -> None:
        late = [job for job in jobs if time.perf_counter() - job.arrived > self.settings.timeout_s]
        _fail(late, busy("the request waited too long"))
        jobs = [job for job in jobs if job not in late and not job.future.cancelled()]
        ready = []
        for job in jobs:
            try:
                if job.wake:
                    self._bring_back(job.record)
                ready.append(job)
            except Exception as error:
                _fail([job], error)
        if not ready:
            return
        if ready[0].work is not None:
            self._work(ready[0])
        else:
            self._step(ready)

    def _work(self, job: Job) -> None:
        assert job.work is not None
        try:
            result = job.work()
        except Exception as error:
            _fail([job], error)
            return
        if job.commit and self.storage.enabled and job.record.id in self.engine:
            self._capture(job.record, lambda fault: _settle([(job, fault if fault is not None else result)]))
        else:
            _settle([(job, result)])

    def _step(self, jobs: list[Job]) -> None:
        begun = time.perf_counter()
        images = {job.record.id: job.images for job in jobs if job.images is not None}
        learn = jobs[0].learn
        try:
            found = self.engine.step(images, learn=learn, top=max(job.top for job in jobs))
        except Exception as error:
            _log.exception("a step failed")
            _fail(jobs, error)
            return
        now = time.perf_counter()
        for job in jobs:
            step = found[job.record.id]
            if isinstance(step, Step):
                self._note(job, step, now)
        self.metrics.step(len(jobs), sum(job.size for job in jobs), now - begun)
        for job in jobs:
            self._save_when_due(job.record)
        _settle([(job, found[job.record.id]) for job in jobs])

    def _note(self, job: Job, step: Step, now: float) -> None:
        record, health = job.record, job.record.health
        health.add(step.probabilities, step.entropies, sum(step.taught), step.finite, job.learn)
        if job.learn:
            record.seen += job.size
        if step.healed:
            health.restart()
            health.set_back(1, "its predictions were not finite, so it began anew")
        elif job.learn:
            if step.resets > record.guard_resets:
                health.set_back(
                    step.resets - record.guard_resets, "its predictions collapsed, so its guard set it back"
                )
            record.guard_resets = step.resets
        record.used = time.time()
        health.took(now - job.arrived)
        self.metrics.predicted(job.size, sum(step.taught), step.healed)

    # -- on disk and back ----------------------------------------------------------------------------------------------

    def _bring_back(self, record: Record) -> None:
        """Let a stream that rests on disk, or is new, into the fleet."""
        if record.gone:
            raise forbidden()
        if record.live:
            return
        self.engine.join(record)
        record.live = True
        path = self.storage.state(record.id) if record.kept else None
        if path is not None:
            try:
                self.engine.load(record.id, path)
            except (ValueError, OSError) as error:
                _log.error("a stream's state cannot be used", extra={"stream": record.id, "reason": str(error)})
                self.storage.set_aside(record.id)
                record.health.note("its state on disk could not be used, so it began anew")
                record.health.restart()
        elif record.kept:
            record.health.note("its state was not on disk, so it began anew")
            record.health.restart()
        record.guard_resets = self.engine.resets(record.id)

    def _must_save(self, job: Job) -> bool:
        """Whether this job has to wait for a snapshot, so that a crash never costs more than was promised."""
        record = job.record
        if not self.storage.may_try or record.unsaved + job.size <= self.settings.snapshot_images:
            return False
        if record.writing == 0 and record.live:
            self._capture(record)
        return record.writing > 0

    def _save_when_due(self, record: Record) -> None:
        due = record.seen - record.captured >= max(self.settings.snapshot_images // 2, 1)
        if due and record.writing == 0 and self.storage.may_try:
            self._capture(record)

    def _capture(self, record: Record, then: Callable[[OSError | None], None] | None = None) -> None:
        """Order a snapshot of a stream as it is now."""
        if not self.storage.enabled:
            if then is not None:
                then(None)
            return
        seen = record.seen

        def done(fault: OSError | None) -> None:
            with self._changed:
                record.writing -= 1
                if fault is None:
                    record.durable, record.kept = max(record.durable, seen), True
                else:
                    record.captured = record.durable
                self._changed.notify()
            self.metrics.snapshot(fault is None)
            if then is not None:
                then(fault)

        try:
            state = self.engine.save(record.id)
        except OSError as error:
            record.writing += 1
            self.storage.fail(error)
            done(error)
            return
        record.writing += 1
        record.captured = seen
        self.storage.write(record.id, state, record.encode(), done)

    def _tick(self) -> None:
        """Save streams that have become quiet; let those go that rest."""
        self._ticked = time.monotonic()
        if not self.storage.may_try:
            return
        now = time.time()
        for record in list(self.records.values()):
            if not record.live or record.writing or record.id in self._waiting:
                continue
            if record.unsaved and now - record.used > _QUIET:
                self._capture(record)
            elif record.kept and not record.unsaved and now - record.used > 60 * self.settings.idle_minutes:
                self.engine.leave(record.id)
                record.live = False


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _fail(jobs: Iterable[Job], error: Exception) -> None:
    _settle([(job, error) for job in jobs])


def _settle(answers: list[tuple[Job, Any]]) -> None:
    """Hand answers to the event loops that wait for them, those of one loop at once."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Job, Any]]] = {}
    for job, answer in answers:
        loops.setdefault(job.future.get_loop(), []).append((job, answer))
    for loop, mine in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(answers: list[tuple[Job, Any]]) -> None:
    for job, answer in answers:
        if job.future.done():
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
