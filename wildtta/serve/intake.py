"""What comes in, and how much of it: bodies are read within limits, and never more of them than the memory budget has room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from wildtta.serve.problems import Problem, busy

__all__ = ["Budget", "parts", "read_body"]


class Budget:
    """Bytes held for clients, all together. Used on the event loop alone."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def take(self, size: int) -> None:
        if self.taken + size > self.most:
            raise busy("the service holds as much as its memory budget allows")
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        self.take(size)
        try:
            yield
        finally:
            self.give(size)


class Intake:
    """A body while it is held; leaving the context gives its room back."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.held = budget, 0

    def grow(self, size: int) -> None:
        self.budget.take(size)
        self.held += size


@contextmanager
def _intake(budget: Budget) -> Iterator[Intake]:
    intake = Intake(budget)
    try:
        yield intake
    finally:
        budget.give(intake.held)


class read_body:
    """The body of a request, for as long as the context lasts."""

    def __init__(self, request: Request, budget: Budget, limit: int, seconds: float) -> None:
        self.request, self.limit, self.seconds = request, limit, seconds
        self._context = _intake(budget)

    async def __aenter__(self) -> bytes:
        intake = self._context.__enter__()
        try:
            return await self._read(intake)
        except BaseException:
            self._context.__exit__(None, None, None)
            raise

    async def __aexit__(self, *problem: object) -> None:
        self._context.__exit__(None, None, None)

    async def _read(self, intake: Intake) -> bytes:
        said = self.request.headers.get("content-length", "")
        if said.isdigit() and len(said) < 16:
            if int(said) > self.limit:
                raise self._too_long()
            intake.grow(int(said))
        try:
            return await asyncio.wait_for(self._chunks(intake), self.seconds)
        except asyncio.TimeoutError as error:
            advice = f"send it within {self.seconds:g} seconds"
            raise Problem(408, "the body did not arrive in time", advice) from error
        except ClientDisconnect as error:
            raise Problem(400, "the connection ended before the body did", "send it again") from error

    async def _chunks(self, intake: Intake) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > self.limit:
                raise self._too_long()
            if size > intake.held:
                intake.grow(size - intake.held)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_long(self) -> Problem:
        return Problem(413, f"the body is longer than {self.limit:,} bytes", "send fewer or smaller images at a time")


class _InMemory(MultiPartParser):
    """Keeps files in memory: the body is there already, and the disk may be full."""

    spool_max_size = 1 << 40


async def parts(request: Request, body: bytes, most: int) -> list[bytes]:
    """The files of a form, under whatever name."""
    advice = "send a form with one or more files, named images, as `curl -F images=@photo.jpg` does"

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await _InMemory(request.headers, stream(), max_files=most, max_fields=8).parse()
    except MultiPartException as error:
        many = "Too many" in error.message
        raise Problem(413 if many else 422, f"the form cannot be read: {error.message}"[:200], advice) from error
    except (KeyError, ValueError, UnicodeError, AttributeError) as error:  # a boundary or a header that is none
        raise Problem(422, "the form cannot be read", advice) from error
    files = [await item.read() for _, item in form.multi_items() if isinstance(item, UploadFile)]
    await form.close()
    return files
