"""What the routes do: the service without its HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wildtta.recipes import methods
from wildtta.serve.access import Access, bearer, digest, new_id, new_token
from wildtta.serve.engine import Engine, Step
from wildtta.serve.health import Health
from wildtta.serve.images import Decoder
from wildtta.serve.intake import Budget
from wildtta.serve.metrics import Metrics
from wildtta.serve.opening import Opened, check_request, open_model
from wildtta.serve.problems import Problem, busy, forbidden, unknown
from wildtta.serve.records import Record
from wildtta.serve.settings import Settings
from wildtta.serve.storage import Storage
from wildtta.serve.worker import Worker

__all__ = ["Service"]

_log = logging.getLogger("wildtta.serve")
_DECODERS = 2


class Service:
    """Streams, and all that is done with them. `start` it before the first request."""

    def __init__(self, settings: Settings, opened: Opened | None = None) -> None:
        self.settings = settings
        self.opened = open_model(settings) if opened is None else opened
        self.operator_key = settings.operator_key or secrets.token_urlsafe(32)
        self.access = Access(self.operator_key)
        self.metrics = Metrics()
        self.storage = Storage(settings.state)
        self.engine = Engine(self.opened)
        self.worker = Worker(self.engine, self.storage, settings, self.metrics)
        self.records = self.worker.records
        self.budget = Budget(settings.max_memory)
        self.decoder = Decoder(
            self.opened.model.preprocessing, max_images=settings.max_images, max_pixels=settings.max_pixels
        )
        self.classes = list(self.opened.model.classes or map(str, range(self.opened.model.outputs)))
        self.ready = False
        self._making = 0
        self._watch()

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("wildtta_queue_requests", "Requests that wait for the model.", lambda: self.worker.waiting)
        watch("wildtta_memory_bytes", "Bodies and decoded images held.", lambda: self.budget.taken)
        watch("wildtta_streams", "Streams.", lambda: len(self.records))
        watch("wildtta_streams_in_memory", "Streams whose weights are in memory.", lambda: len(self.engine))
        watch("wildtta_snapshots_failing", "Whether snapshots fail.", lambda: self.storage.fault is not None)

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.storage.start()
        for record in self.storage.records(self.opened.model.outputs):
            self.records.setdefault(record.id, record)
        self.decoders = ThreadPoolExecutor(_DECODERS, "wildtta-decoder")
        self.worker.start()
        self.ready = True
        _log.info("ready", extra={"streams": len(self.records), "model": self.opened.model.name})

    def stop(self) -> None:
        """Finish what waits, and put every stream on disk."""
        self.ready = False
        self.worker.stop()
        self.storage.stop()
        self.decoders.shutdown()
        unsaved = sum(record.unsaved for record in self.records.values()) if self.storage.enabled else 0
        _log.info("stopped", extra={"streams": len(self.records), "unsaved_images": unsaved})

    # -- who may -------------------------------------------------------------------------------------------------------

    def open(self, id: str, headers: Mapping[str, str]) -> Record:
        """The stream, for its owner or the operator."""
        token, record = bearer(headers), self.records.get(id)
        if not self.access.opens(token, record.token if record is not None else None) or record is None:
            raise forbidden() if token is not None else unknown()
        return record

    def check_operator(self, headers: Mapping[str, str]) -> None:
        token = bearer(headers)
        if not self.access.is_operator(token):
            status, error = (401, "no operator key") if token is None else (403, "not the operator key")
            raise Problem(status, error, "send 'Authorization: Bearer KEY' with the key the service was started with")

    # -- streams -------------------------------------------------------------------------------------------------------

    async def create(
        self, method: str, hyperparameters: dict[str, Any], guard: str, seed: int, name: str
    ) -> dict[str, Any]:
        check_request(self.opened, method, guard, hyperparameters)
        if len(self.records) + self._making >= self.settings.max_streams:
            raise Problem(
                429,
                f"there are {self.settings.max_streams} streams already",
                "delete one, or start the service with more --max-streams",
                retry_after=60,
            )
        token, health = new_token(), Health(self.opened.model.outputs)
        record = Record(new_id(), name, digest(token), method, guard, seed, hyperparameters, health)
        self._making += 1
        try:
            await self.worker.call(record, lambda: None, commit=True)
        except OSError as error:
            await self.worker.call(record, lambda: self._forget(record), wake=False)
            raise Problem(
                503, f"the stream could not be put on disk ({error.strerror})", "free some space", retry_after=5
            ) from error
        finally:
            self._making -= 1
        self.records[record.id] = record
        _log.info("stream created", extra={"stream": record.id, "method": method})
        return {**self.view(record), "token": token}

    def view(self, record: Record) -> dict[str, Any]:
        found = record.view()
        found["health"]["status"] = self.status(record)
        return found

    def status(self, record: Record) -> str:
        """In one word; whoever runs the service, or owns the stream, should look at anything but "ok"."""
        if self.storage.fault is not None and record.unsaved:
            return "unsaved"
        return record.health.condition()

    def health(self, record: Record) -> dict[str, Any]:
        """What comes with each prediction."""
        found = {**record.health.summary(), "status": self.status(record)}
        if self.storage.fault is not None:
            found["notes"] = [*found["notes"], f"snapshots fail ({self.storage.fault}); predictions go on"]
        return found

    async def predict(self, record: Record, body: bytes, kind: str, files: list[bytes], learn: bool, top: int) -> Any:
        """Decode, wait for the model, and say what it said."""
        self.worker.check_room(record.id)
        if kind == "npy":
            images = self.decoder.array(body)
        else:
            loop = asyncio.get_running_loop()
            decode = (lambda: self.decoder.base64(body)) if kind == "json" else (lambda: self.decoder.pictures(files))
            images = await loop.run_in_executor(self.decoders, decode)
        with self.budget.hold(images.numel() * images.element_size()):
            step = await self.worker.predict(record, images, learn=learn, top=top)
        return self._answer(record, step, top)

    def _answer(self, record: Record, step: Step, top: int) -> dict[str, Any]:
        values = step.probabilities.tolist()
        predictions = [
            {
                "classes": [
                    {"class": self.classes[place], "index": place, "probability": round(row[place], 6)}
                    for place in best[:top]
                ],
                "taught": taught,
            }
            for row, best, taught in zip(values, step.best, step.taught, strict=True)
        ]
        return {"stream": record.id, "predictions": predictions, "health": self.health(record)}

    async def reset(self, record: Record) -> dict[str, Any]:
        def work() -> None:
            self.engine.reset(record.id)
            self._restarted(record, "set back by its owner")

        return await self._commit(record, work)

    async def replace(self, record: Record, state: bytes) -> dict[str, Any]:
        """Let a stream go on from an uploaded state."""

        def work() -> None:
            try:
                self.engine.load_bytes(record.id, state)
            except ValueError as error:
                raise Problem(
                    422, f"the state does not fit this stream: {error}"[:2000], "upload what GET …/state gave for a stream "
                    "of this method, guard, hyper-parameters and model"
                ) from error  # fmt: skip
            self._restarted(record, "goes on from an uploaded state")

        return await self._commit(record, work)

    async def state(self, record: Record) -> bytes:
        try:
            data: bytes = await self.worker.call(record, lambda: self.engine.save(record.id))
        except OSError as error:
            raise busy(f"the state could not be written ({error.strerror})") from error
        return data

    @property
    def state_limit(self) -> int:
        """More than any state of this model needs: what a stream may hold is a few copies of what adapts."""
        weights = sum(parameter.numel() for parameter in self.opened.network.parameters())
        return min(64 * weights + 2**20, self.settings.max_memory // 2)

    async def delete(self, record: Record) -> None:
        await self.worker.call(record, lambda: self._forget(record), wake=False)
        self.records.pop(record.id, None)
        loop = asyncio.get_running_loop()
        removed: asyncio.Future[OSError | None] = loop.create_future()

        def done(fault: OSError | None) -> None:
            loop.call_soon_threadsafe(removed.set_result, fault)

        self.storage.remove(record.id, done)
        if (fault := await removed) is not None:
            raise busy(f"the stream is gone, but its files could not be removed ({fault.strerror})")
        _log.info("stream deleted", extra={"stream": record.id})

    def _forget(self, record: Record) -> None:
        record.gone = True
        self.engine.leave(record.id)
        record.live = False

    def _restarted(self, record: Record, note: str) -> None:
        record.health.restart()
        record.health.note(note)
        record.guard_resets = self.engine.resets(record.id)
        record.seen += 1  # something to save, even if nothing was learnt since

    async def _commit(self, record: Record, work: Any) -> dict[str, Any]:
        try:
            await self.worker.call(record, work, commit=True)
        except OSError as error:
            record.health.note(f"could not be put on disk ({error.strerror}); it is tried again")
        return self.view(record)

    def overview(self, since: float) -> dict[str, Any]:
        """For the page: every stream, with the points of its history since then."""
        streams = []
        for record in list(self.records.values()):
            points = [point for point in list(record.health.history) if point["time"] > since]
            streams.append({**self.view(record), "history": points})
        return {
            "time": round(time.time(), 2),
            "model": self.opened.model.name,
            "classes": len(self.classes),
            "methods": [name for name, found in methods().items() if set(found.required) <= set(self.opened.source)],
            "waiting": self.worker.waiting,
            "snapshots": self.snapshots(),
            "streams": streams,
        }

    def snapshots(self) -> str:
        if not self.storage.enabled:
            return "off: nothing outlives the process (start with --state FOLDER)"
        return "ok" if self.storage.fault is None else f"failing: {self.storage.fault}"
