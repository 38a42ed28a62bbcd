"""The queue: order, batches, limits, time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from serve_helpers import KEY, NPY, bearer, glyphs, npy, opened, service

from wildtta.serve import Settings, create_app


@asynccontextmanager
async def _running(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any, Any]]:
    app = create_app(Settings(operator_key=KEY, **settings), opened())
    app.state.service.start()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http:

            async def make() -> Any:
                made = (await http.post("/v1/streams", json={"method": "tent"}, headers=bearer(KEY))).json()
                url, headers = f"/v1/streams/{made['id']}/predict", bearer(made["token"]) | NPY

                def ask(image: int = 0, count: int = 1, query: str = "") -> Any:
                    body = npy(glyphs()[image : image + count])
                    return http.post(url + query, content=body, headers=headers)

                return ask

            yield http, make, app.state.service
    finally:
        app.state.service.stop()


class _Held:
    """Keeps the worker busy until it is released."""

    def __init__(self, service: Any) -> None:
        self.service, self.gate = service, threading.Event()
        self.entered = threading.Event()
        step = service.engine.step

        def slow(*given: Any, **named: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(20)
            return step(*given, **named)

        service.engine.step = slow


def test_requests_of_one_stream_are_done_in_order_and_each_teaches_the_next() -> None:
    async def main(together: bool) -> list[Any]:
        async with _running() as (_, make, service):
            ask = await make()
            if together:
                held = _Held(service)
                first = asyncio.create_task(ask(0))
                await asyncio.to_thread(held.entered.wait)
                tasks = [first]
                for image in range(1, 6):
                    tasks.append(asyncio.create_task(ask(image)))
                    await asyncio.sleep(0.02)
                held.gate.set()
                answers = await asyncio.gather(*tasks)
            else:
                answers = [await ask(image) for image in range(6)]
            return [answer.json()["predictions"] for answer in answers]

    assert asyncio.run(main(True)) == asyncio.run(main(False))


def test_streams_that_wait_are_stepped_together_up_to_the_batch() -> None:
    async def main() -> None:
        async with _running(max_batch=4) as (_, make, service):
            asks = [await make() for _ in range(9)]
            held = _Held(service)
            tasks = [asyncio.create_task(asks[0](0))]
            await asyncio.to_thread(held.entered.wait)
            tasks += [asyncio.create_task(ask(0)) for ask in asks[1:]]
            await asyncio.sleep(0.2)
            held.gate.set()
            assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 9
            value = service.metrics.registry.get_sample_value
            assert value("wildtta_step_seconds_count") == 3  # 1, then 4 and 4
            assert value("wildtta_step_images_sum") == 9

    asyncio.run(main())


def test_too_many_requests_are_turned_away_at_once() -> None:
    async def main() -> None:
        async with _running(max_waiting=8, max_stream_waiting=3) as (http, make, service):
            one, other = await make(), await make()
            held = _Held(service)
            tasks = [asyncio.create_task(one(0))]
            await asyncio.to_thread(held.entered.wait)
            tasks += [asyncio.create_task(one(0)) for _ in range(3)]
            await asyncio.sleep(0.1)
            too_many = await one(0)
            assert too_many.status_code == 429
            tasks += [asyncio.create_task(other(0)) for _ in range(3)]
            await asyncio.sleep(0.1)
            tasks.append(asyncio.create_task(make()))  # the eighth inside
            await asyncio.sleep(0.1)
            full = await other(0)
            assert full.status_code == 503
            for answer in (too_many, full):
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json().keys() == {"error", "detail"}
            assert (await http.get("/readyz")).status_code == 200  # who watches is answered
            held.gate.set()
            answers = await asyncio.gather(*tasks)
            assert [answer.status_code for answer in answers[:-1]] == [200] * 7
            assert (await other(0)).status_code == 200
            assert service.budget.taken == 0

    asyncio.run(main())


def test_what_waited_too_long_is_told_so() -> None:
    async def main() -> None:
        async with _running(timeout_s=0.3) as (_, make, service):
            one, other = await make(), await make()
            held = _Held(service)
            first = asyncio.create_task(one(0))
            await asyncio.to_thread(held.entered.wait)
            late = asyncio.create_task(other(0))
            await asyncio.sleep(0.5)
            held.gate.set()
            assert (await first).status_code == 200
            assert (await late).status_code == 503

    asyncio.run(main())


def test_memory_for_bodies_is_bounded() -> None:
    async def main() -> None:
        async with _running(max_memory_mb=0.02) as (_, make, service):
            ask = await make()
            assert (await ask(0)).status_code == 200
            assert (await ask(0, 8)).status_code == 503
            assert service.budget.taken == 0

    asyncio.run(main())


def test_a_body_that_does_not_come_ends() -> None:
    async def main() -> None:
        async with _running(timeout_s=0.2) as (http, _make, service):
            made = (await http.post("/v1/streams", json={"method": "tent"}, headers=bearer(KEY))).json()

            async def slowly() -> AsyncIterator[bytes]:
                yield b"0"
                await asyncio.sleep(1)
                yield b"0"

            headers = bearer(made["token"]) | NPY
            answer = await http.post(f"/v1/streams/{made['id']}/predict", content=slowly(), headers=headers)
            assert answer.status_code == 408
            assert service.budget.taken == 0

    asyncio.run(main())


def test_a_step_that_fails_costs_only_its_own_stream() -> None:
    async def main() -> None:
        async with _running() as (_, make, service):
            asks = [await make() for _ in range(3)]
            bad = list(service.records)[1]
            held = _Held(service)
            take = service.engine._step

            def failing(group: Any, images: Any, *given: Any) -> Any:
                if bad in images:
                    raise RuntimeError("out of memory")
                return take(group, images, *given)

            service.engine._step = failing
            tasks = [asyncio.create_task(asks[0](0))]
            await asyncio.to_thread(held.entered.wait)
            tasks += [asyncio.create_task(ask(0)) for ask in asks]
            await asyncio.sleep(0.1)
            held.gate.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert [getattr(answer, "status_code", str(answer)) for answer in answers] == [
                200,
                200,
                "out of memory",
                200,
            ]
            assert [record.seen for record in service.records.values()] == [2, 0, 1]

    asyncio.run(main())


def test_stopping_finishes_what_waits() -> None:
    async def main() -> None:
        async with _running() as (_, make, service):
            asks = [await make() for _ in range(4)]
            held = _Held(service)
            tasks = [asyncio.create_task(ask(0)) for ask in asks]
            await asyncio.to_thread(held.entered.wait)
            await asyncio.sleep(0.1)
            stopping = asyncio.create_task(asyncio.to_thread(service.worker.stop))
            await asyncio.sleep(0.1)
            assert (await asks[0](0)).status_code == 503
            held.gate.set()
            await stopping
            assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 4

    asyncio.run(main())


@pytest.mark.parametrize("most", [1, 64])
def test_batching_does_not_change_what_is_answered(most: int) -> None:
    with service(max_batch=most) as client:
        stream = client.make("tent")
        found = [stream.predict(glyphs()[start : start + 4])["predictions"] for start in (0, 4, 8)]
    with service() as client:
        stream = client.make("tent")
        assert found == [stream.predict(glyphs()[start : start + 4])["predictions"] for start in (0, 4, 8)]
