"""Does the service's memory stay flat? Half an hour of everything that clients do.

nice -n 10 python benchmarks/serve_soak.py --minutes 30 --out docs/data/serve_soak.json

Sixteen streams send arrays, pictures and nonsense, are reset, give and take their states; others are made and deleted; quiet ones
rest on disk and come back. The resident memory is read every ten seconds, and a line is laid through it after the first fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from serving import Connection, Server, corrupted, make_streams, npy, request

_EVERY = 10.0  # seconds between readings


def _form(picture: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    return head + picture + b"\r\n--b--\r\n"


class Soak:
    def __init__(self, port: int, end: float, images: np.ndarray) -> None:
        self.port, self.end, self.images = port, end, images
        self.statuses: Counter[str] = Counter()
        self.choice = random.Random(0)

    async def client(self, made: dict[str, Any], quiet: bool) -> None:
        """One stream's client; a quiet one lets its stream rest on disk between its requests."""
        connection, state = Connection(self.port), b""
        path, token = f"/v1/streams/{made['id']}", made["token"]
        while time.monotonic() < self.end:
            kind = self.choice.random()
            if kind < 0.80:
                count = self.choice.choice((1, 1, 1, 4, 8))
                start = self.choice.randrange(len(self.images) - count)
                body = npy(self.images[start : start + count])
                asked = request("POST", f"{path}/predict", token, body)
            elif kind < 0.90:
                file = io.BytesIO()
                picture = Image.fromarray(self.images[self.choice.randrange(len(self.images))]).resize((96, 80))
                picture.save(file, self.choice.choice(("JPEG", "PNG", "WEBP")))
                asked = request(
                    "POST", f"{path}/predict", token, _form(file.getvalue()), "multipart/form-data; boundary=b"
                )
            elif kind < 0.94:
                asked = request("POST", f"{path}/predict", token, self.choice.randbytes(self.choice.randrange(5000)))
            elif kind < 0.96:
                asked = request("GET", f"{path}/state", token)
            elif kind < 0.98 and state:
                asked = request("PUT", f"{path}/state", token, state, "application/octet-stream")
            else:
                asked = request("POST", f"{path}/reset" if kind > 0.995 else f"{path}/nothing", token)
            status, answer = await connection.send(asked)
            if asked.startswith(b"GET") and status == 200:
                state = answer
            self.statuses[str(status)] += 1
            if quiet:
                connection.close()  # the service ends connections that are idle for so long
            await asyncio.sleep(self.choice.uniform(20, 40) if quiet else self.choice.uniform(0.2, 1.0))
        connection.close()

    async def newcomers(self) -> None:
        """Streams that come, learn a little, and go."""
        while time.monotonic() < self.end:
            connection = Connection(self.port)
            made = (await make_streams(self.port, 1, self.choice.choice(("recap", "tent", "sar", "deyo"))))[0]
            for _ in range(3):
                body = npy(self.images[:4])
                status, _ = await connection.send(
                    request("POST", f"/v1/streams/{made['id']}/predict", made["token"], body)
                )
                self.statuses[str(status)] += 1
            status, _ = await connection.send(request("DELETE", f"/v1/streams/{made['id']}", made["token"]))
            self.statuses[str(status)] += 1
            connection.close()
            await asyncio.sleep(5)

    async def readings(self, memory: Callable[[], float], begun: float) -> list[tuple[float, float]]:
        found = []
        while time.monotonic() < self.end:
            found.append((round(time.monotonic() - begun, 1), round(memory(), 2)))
            await asyncio.sleep(_EVERY)
        return found


async def _soak(server: Server, minutes: float) -> dict[str, Any]:
    made = await make_streams(server.port, 16)
    begun = time.monotonic()
    soak = Soak(server.port, begun + 60 * minutes, corrupted(256))
    work: list[Coroutine[Any, Any, None]] = [soak.client(one, quiet=place % 4 == 3) for place, one in enumerate(made)]
    readings, *_ = await asyncio.gather(soak.readings(server.memory, begun), *work, soak.newcomers())
    _, metrics = await Connection(server.port).ask("GET", "/metrics")
    return {
        "minutes": minutes,
        "statuses": dict(sorted(soak.statuses.items())),
        "images": _metric(metrics, "wildtta_images_total"),
        "snapshots": _metric(metrics, 'wildtta_snapshots_total{result="written"}'),
        "memory_budget_held_at_the_end": _metric(metrics, "wildtta_memory_bytes"),
        **_judged(readings),
        "readings_s_mib": readings,
    }


def _metric(text: bytes, name: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.decode().splitlines() if line.startswith(name + " "))


def _judged(readings: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, mib = np.array(readings).T
    later = seconds >= seconds[-1] / 5
    slope, level = np.polyfit(seconds[later] / 3600, mib[later], 1)
    half = len(mib[later]) // 2
    return {
        "mib_at_first": float(mib[0]),
        "mib_after_a_fifth": float(mib[later][0]),
        "mib_at_the_end": float(mib[-1]),
        "mib_most": float(mib.max()),
        "mib_an_hour": round(float(slope), 2),
        "mean_of_later_half_minus_earlier_mib": round(float(mib[later][half:].mean() - mib[later][:half].mean()), 2),
        "scatter_mib": round(float(np.std(mib[later] - (slope * seconds[later] / 3600 + level))), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--state", folder, "--idle-minutes", "0.2", "--snapshot-images", "64")
        with Server(*flags) as server:
            found = asyncio.run(_soak(server, given.minutes))
    if given.out is not None:
        given.out.write_text(json.dumps(found) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "readings_s_mib"}, indent=1))


if __name__ == "__main__":
    main()
