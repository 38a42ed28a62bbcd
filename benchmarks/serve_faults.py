"""Does the service keep its word when it is killed, and when the disk is full?

python benchmarks/serve_faults.py --kills 20          # about five minutes; --out writes the figures
python benchmarks/serve_faults.py --kills 0 --disk    # needs the right to mount a small tmpfs

Each round: streams learn from 16 connections at once, some are made, some deleted; at a random moment the process gets SIGKILL;
it is started again on the same folder. Checked: every stream whose creation was answered is there, every deleted one is not;
every state can be downloaded and read; no stream began anew; and of what was answered at most N images are missing from it. At
the end the service gets SIGTERM, and nothing may be missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load
from serving import Connection, Server, corrupted, make_streams, npy, request

from wildtta.serve import Settings
from wildtta.serve.opening import open_model


class Stream:
    """What its client knows of a stream."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.id, self.token = made["id"], made["token"]
        self.answered = self.sent = 0  # images that it has certainly learnt from, and may have


async def _learn(server: Server, stream: Stream, bodies: Sequence[bytes], choice: random.Random) -> None:
    connection = Connection(server.port)
    while True:
        count = choice.randrange(len(bodies)) + 1
        stream.sent += count
        path = f"/v1/streams/{stream.id}/predict?top=1"
        try:
            status, answer = await connection.send(request("POST", path, stream.token, bodies[count - 1]))
        except (OSError, asyncio.IncompleteReadError):
            return
        if status == 200:
            stream.answered += count
        elif status not in (403, 429, 503):  # 403: deleted meanwhile
            raise AssertionError(f"{status}: {answer.decode()}")


async def _come_and_go(server: Server, streams: dict[str, Stream], gone: set[str], choice: random.Random) -> None:
    connection = Connection(server.port)
    while True:
        try:
            made = (await make_streams(server.port, 1))[0]
            streams[made["id"]] = Stream(made)
            if len(streams) > 24:
                id = choice.choice(list(streams))
                found = streams.pop(id)
                status, _ = await connection.send(request("DELETE", f"/v1/streams/{id}", found.token))
                if status == 204:
                    gone.add(id)
        except (OSError, asyncio.IncompleteReadError):
            return
        await asyncio.sleep(0.1)


async def _once_more(server: Server, streams: dict[str, Stream], body: bytes) -> None:
    """One image for each stream: too few for a snapshot."""
    connection = Connection(server.port)
    for id, stream in streams.items():
        status, _ = await connection.send(request("POST", f"/v1/streams/{id}/predict", stream.token, body))
        assert status == 200
        stream.sent += 1
        stream.answered += 1


async def _check(server: Server, streams: dict[str, Stream], gone: set[str]) -> list[int]:
    """How many answered images each stream has lost."""
    connection, lost = Connection(server.port), []
    _, listed = await connection.ask("GET", "/v1/streams")
    there = {found["id"]: found for found in json.loads(listed)["streams"]}
    assert not gone & there.keys(), "a deleted stream is back"
    for id, stream in streams.items():
        assert id in there, f"stream {id} is lost"
        status, state = await connection.send(request("GET", f"/v1/streams/{id}/state", stream.token))
        assert status == 200, f"{status}: {state.decode()}"
        seen = int(load(state)["counters/seen"])
        assert seen <= stream.sent, f"stream {id} has learnt from {seen} images, but was sent {stream.sent}"
        lost.append(max(stream.answered - seen, 0))
        stream.answered = stream.sent = seen
        status, view = await connection.send(request("GET", f"/v1/streams/{id}", stream.token))
        notes = json.loads(view)["health"]["notes"]
        assert not any("anew" in note for note in notes), notes
    connection.close()
    return lost


def _source(folder: Path) -> tuple[str, ...]:
    """What the service would otherwise estimate at each of its many starts."""
    opened = open_model(Settings())
    flags: tuple[str, ...] = ()
    for name, found in opened.source.items():
        path = folder / f"{name}.safetensors"
        found.save(path)
        flags += (f"--{name}", str(path))
    return flags


def kills(rounds: int, *, streams: int = 16, images: int = 64, seed: int = 0, longest: float = 2.5) -> dict[str, Any]:
    """Kill a service under load so often; raises where it breaks its word."""
    choice, most = random.Random(seed), 8
    pictures = corrupted(most)
    bodies = [npy(pictures[:count]) for count in range(1, most + 1)]
    known: dict[str, Stream] = {}
    gone: set[str] = set()
    lost: list[int] = []
    answered = 0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as source:
        flags = ("--state", folder, "--snapshot-images", str(images), "--max-images", str(most), *_source(Path(source)))

        async def live(server: Server) -> None:
            nonlocal answered
            if not known:
                known.update({made["id"]: Stream(made) for made in await make_streams(server.port, streams)})
            before = sum(stream.answered for stream in known.values())
            tasks = [asyncio.create_task(_learn(server, known[id], bodies, choice)) for id in list(known)[:streams]]
            tasks.append(asyncio.create_task(_come_and_go(server, known, gone, choice)))
            await asyncio.sleep(choice.uniform(0.3, longest))
            server.kill()
            await asyncio.gather(*tasks)
            answered += sum(stream.answered for stream in known.values()) - before

        for _ in range(rounds):
            server = Server(*flags)
            try:
                if known:
                    lost += asyncio.run(_check(server, known, gone))
                asyncio.run(live(server))
            finally:
                if server.process.poll() is None:
                    server.kill()
        with Server(*flags) as server:
            lost += asyncio.run(_check(server, known, gone))
            asyncio.run(_once_more(server, known, bodies[0]))
        with Server(*flags) as server:  # it was told to stop, not killed: nothing at all may be missing
            assert sum(asyncio.run(_check(server, known, gone))) == 0, "images were lost though it stopped politely"
        damaged = [path.name for path in Path(folder).glob("*.damaged")]
    assert not damaged, damaged
    assert max(lost) <= images, f"{max(lost)} images were lost, promised were {images}"
    return {
        "kills": rounds,
        "streams_made": len(known) + len(gone),
        "streams_deleted": len(gone),
        "images_answered": answered,
        "states_read": len(lost),
        "unreadable": len(damaged),
        "promised_images": images,
        "most_images_lost": max(lost),
        "mean_images_lost": round(sum(lost) / len(lost), 2),
    }


def full_disk(images: int = 64) -> dict[str, Any]:
    """Fill the disk under a service, and make room again."""
    body = npy(corrupted(8))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
        try:
            with Server("--state", f"{folder}/streams", "--snapshot-images", str(images)) as server:
                return asyncio.run(_fill(server, Path(folder), body))
        finally:
            subprocess.run(["umount", folder], check=True)


async def _fill(server: Server, folder: Path, body: bytes) -> dict[str, Any]:
    streams = [Stream(made) for made in await make_streams(server.port, 8)]
    connection = Connection(server.port)

    async def learn(rounds: int) -> list[dict[str, Any]]:
        answers = []
        for _ in range(rounds):
            for stream in streams:
                path = f"/v1/streams/{stream.id}/predict"
                status, answer = await connection.send(request("POST", path, stream.token, body))
                assert status == 200, answer
                answers.append(json.loads(answer)["health"])
        return answers

    before = await learn(8)
    assert all(health["status"] == "ok" for health in before), before
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError as error:
            reason = error.strerror
    during = await learn(30)
    told = [place for place, health in enumerate(during) if health["status"] == "unsaved"]
    _, metrics = await connection.ask("GET", "/metrics")
    failing = b"wildtta_snapshots_failing 1.0" in metrics
    status, _ = await connection.ask("POST", "/v1/streams", b"{}")
    filler.unlink()
    await asyncio.sleep(6)
    await learn(10)
    await asyncio.sleep(6)
    after = (await learn(1))[-1]
    _, ready = await connection.ask("GET", "/readyz")
    assert told, "nobody was told"
    assert failing, "the metrics do not say it"
    assert after["status"] == "ok", after
    assert json.loads(ready)["snapshots"] == "ok"
    return {
        "reason": reason,
        "answered_while_full": len(during),
        "told_from_answer": told[0],
        "told": len(told),
        "metrics_say_so": failing,
        "new_stream_while_full": status,
        "after": after["status"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--disk", action="store_true", help="fill a small tmpfs, too")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if given.kills:
        found["kills"] = kills(given.kills)
    if given.disk:
        found["disk"] = full_disk()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
