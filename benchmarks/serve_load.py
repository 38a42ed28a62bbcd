"""How much the service carries: images a second and latencies, with batching and without, and what it does with ten times that.

python benchmarks/serve_load.py                       # 1, 16 and 64 streams, batching on and off; about five minutes
python benchmarks/serve_load.py --overload            # ten times the capacity for 60 s
python benchmarks/serve_load.py --out docs/data/serve_load.json --overload

The service is a process of its own, and so are the clients; each of them sends one image a request over a connection that it keeps,
and its next when it has the answer. Processor time is counted by thread, too: on a machine that others use, it says more than the
clock. `possible_images_per_second` is what the busiest thread could do with a core of its own, and one left for the other threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Connection, Server, corrupted, make_streams, npy, request

_WARM = 4.0  # seconds before it counts


async def _client(port: int, requests: Sequence[bytes], begin: float, end: float, found: list[float]) -> None:
    connection, turn = Connection(port), 0
    while (now := time.monotonic()) < end:
        status, answer = await connection.send(requests[turn % len(requests)])
        if status != 200:
            raise RuntimeError(f"{status}: {answer.decode()}")
        if now >= begin:
            found.append(time.monotonic() - now)
        turn += 1


def _clients(port: int, streams: list[dict[str, Any]], images: list[bytes], seconds: float, out: Any) -> None:
    """A process of clients, one a stream."""
    begin = time.monotonic() + _WARM
    end = begin + seconds
    out.send((begin, end))

    async def main() -> list[float]:
        found: list[float] = []
        tasks = []
        for place, made in enumerate(streams):
            path = f"/v1/streams/{made['id']}/predict?top=1"
            own = [request("POST", path, made["token"], images[(place * 7 + turn) % len(images)]) for turn in range(32)]
            tasks.append(_client(port, own, begin, end, found))
        await asyncio.gather(*tasks)
        return found

    used = time.process_time()
    latencies = asyncio.run(main())
    out.send((latencies, time.process_time() - used))


def closed_loop(streams: int, batching: bool, seconds: float, *flags: str) -> dict[str, Any]:
    """Every stream asks for its next image as soon as it has an answer."""
    images = [npy(image[None]) for image in corrupted(64)]
    with Server("--max-batch", "64" if batching else "1", *flags) as server:
        made = asyncio.run(make_streams(server.port, streams))
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_clients, args=(server.port, made, images, seconds, theirs)
        )
        process.start()
        begin, end = ours.recv()
        time.sleep(max(begin - time.monotonic(), 0))
        used, before, load = server.seconds(), server.threads(), os.getloadavg()[0]
        time.sleep(max(end - time.monotonic(), 0))
        used = server.seconds() - used
        each = {thread: spent - before.get(thread, 0.0) for thread, spent in server.threads().items()}
        http, busiest = each[server.process.pid], max(each.values())
        latencies, client = ours.recv()
        process.join()
        memory = server.memory()
    ordered = sorted(1000 * one for one in latencies)
    return {
        "streams": streams,
        "batching": batching,
        "images_per_second": round(len(ordered) / seconds, 1),
        "p50_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))], 1),
        "server_cpu_ms_per_image": round(1000 * used / len(ordered), 2),
        "http_cpu_ms_per_image": round(1000 * http / len(ordered), 2),
        "busiest_thread_cpu_ms_per_image": round(1000 * busiest / len(ordered), 2),
        "possible_images_per_second": round(len(ordered) / busiest),
        "server_cpu_share": round(used / seconds, 2),
        "client_cpu_ms_per_image": round(1000 * client / len(ordered), 3),
        "memory_mib": round(memory),
        "machine_load": round(load, 1),
    }


# -- overload ----------------------------------------------------------------------------------------------------------


async def _flood(port: int, requests: Sequence[bytes], each: int, rate: float, seconds: float) -> dict[str, Any]:
    """Requests of `each` images at a fixed rate, whether answers come or not, over a bounded number of connections."""
    idle = [Connection(port) for _ in range(400)]
    statuses: Counter[str] = Counter()
    tasks: set[asyncio.Task[None]] = set()
    latencies: list[float] = []

    async def one(connection: Connection, body: bytes) -> None:
        begun = time.monotonic()
        try:
            status, _ = await connection.send(body)
            statuses[str(status)] += 1
            if status == 200:
                latencies.append(time.monotonic() - begun)
        except (OSError, asyncio.IncompleteReadError) as error:
            statuses[type(error).__name__] += 1
        idle.append(connection)

    begun, sent, skipped = time.monotonic(), 0, 0
    while (passed := time.monotonic() - begun) < seconds:
        for _ in range(int(rate * passed) - sent - skipped):
            if not idle:
                skipped += 1  # every connection waits for an answer: as many as are allowed are open
                continue
            task = asyncio.create_task(one(idle.pop(), requests[sent % len(requests)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return {
        "sent": sent,
        "not_sent_for_want_of_connections": skipped,
        "offered_images_per_second": round(sent * each / seconds, 1),
        "answers": dict(statuses),
        "p50_ms_of_answered": round(1000 * statistics.median(latencies), 1) if latencies else None,
        "answered_images_per_second": round(statuses["200"] * each / seconds, 1),
    }


def _flooding(port: int, requests: list[bytes], each: int, rate: float, seconds: float, out: Any) -> None:
    out.send(asyncio.run(_flood(port, requests, each, rate, seconds)))


def _capacity(server: Server, made: list[dict[str, Any]], images: list[bytes], seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_clients, args=(server.port, made, images, seconds, theirs))
    process.start()
    ours.recv()
    latencies, _ = ours.recv()
    process.join()
    return len(latencies) / seconds


def overload(seconds: float, times: float = 10.0, each: int = 8) -> dict[str, Any]:
    """Offer ten times what it can do, in requests of eight images, so that the client is not what gives way."""
    pictures = corrupted(64)
    batches = [npy(pictures[start : start + each]) for start in range(0, 64, each)]
    with Server() as server:
        made = asyncio.run(make_streams(server.port, 64))
        capacity = each * _capacity(server, made, batches, 10)
        requests = [
            request("POST", f"/v1/streams/{one['id']}/predict?top=1", one["token"], batches[place % len(batches)])
            for place, one in enumerate(made)
        ]
        before = server.memory()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (server.port, requests, each, times * capacity / each, seconds, theirs)
        process = context.Process(target=_flooding, args=arguments)
        process.start()
        memory = []
        while not ours.poll(0.5):
            memory.append(server.memory())
        found = ours.recv()
        process.join()
        recovery = asyncio.run(_recovery(server.port, requests[0]))
        after = each * _capacity(server, made, batches, 10)
    return {
        "capacity_images_per_second": round(capacity, 1),
        "offered_times": round(found["offered_images_per_second"] / capacity, 1),
        "seconds": seconds,
        **found,
        "memory_mib_before": round(before),
        "memory_mib_most": round(max(memory)),
        "first_answer_after_ms": recovery,
        "capacity_after": round(after, 1),
        "machine_load": round(os.getloadavg()[0], 1),
    }


async def _recovery(port: int, body: bytes) -> float:
    """How long the first request takes, right after the flood."""
    begun = time.monotonic()
    status, answer = await Connection(port).send(body)
    assert status == 200, answer
    return round(1000 * (time.monotonic() - begun), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--overload", action="store_true")
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--flags", nargs="*", default=[], help="further flags of the service, such as max-wait-ms=20")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    flags = [part for text in given.flags for part in ("--" + text.partition("=")[0], text.partition("=")[2])]
    found: dict[str, Any] = {"load": [], "overload": None}
    for streams in given.streams:
        for batching in (True, False):
            found["load"].append(closed_loop(streams, batching, given.seconds, *flags))
            print(json.dumps(found["load"][-1]), flush=True)
    if given.overload:
        found["overload"] = overload(given.overload_seconds)
        print(json.dumps(found["overload"]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
