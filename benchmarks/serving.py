"""For the measurements of the service: a service in a process of its own, and a client that costs little.

All traffic goes to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

KEY = "operator-key-for-measurements-only"
ROOT = Path(__file__).resolve().parent.parent


def npy(images: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, images)
    return file.getvalue()


def corrupted(count: int = 256, kind: str = "gaussian_noise", severity: int = 3) -> np.ndarray:
    """Glyphs as bytes, N × 32 × 32 × 3."""
    import torch  # here: a process of clients does without, and starts at once

    from wildtta.data.glyphs import Glyphs
    from wildtta.models import load_model

    images, _ = Glyphs(load_model("glyph-resnet")).domain(kind, severity).read(torch.arange(count))
    return (images * 255).round().byte().permute(0, 2, 3, 1).numpy()


class Server:
    """`wildtta serve` in a process of its own."""

    def __init__(self, *flags: str, log: Path | None = None) -> None:
        self.port = _free_port()
        command = [sys.executable, "-m", "wildtta.cli", "serve", "--port", str(self.port), *flags]
        environment = os.environ | {"WILDTTA_OPERATOR_KEY": KEY, "PYTHONPATH": str(ROOT)}
        self.log = (log or Path(os.devnull)).open("a")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log, cwd=ROOT)
        self._wait()

    def _wait(self, seconds: float = 900.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended with code {self.process.returncode}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        self.kill()
        raise RuntimeError("the service did not become ready")

    def memory(self) -> float:
        """MiB that it holds now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def seconds(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> dict[int, float]:
        """The same for each of its threads; the first is the one that speaks HTTP."""
        found = {}
        for path in Path(f"/proc/{self.process.pid}/task").iterdir():
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            found[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def kill(self) -> None:
        """As when the machine stops."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def stop(self) -> int:
        """Politely; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.log.close()
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.process.poll() is None:
            self.stop()


class Connection:
    """HTTP/1.1 over one connection that is kept, as plainly as possible."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request as bytes; the status and the body."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            at = lower.find(b"content-length:")
            length = int(lower[at + 15 : lower.index(b"\r", at)]) if at >= 0 else 0
            body = await self._reader.readexactly(length) if length else b""
            if b"connection: close" in lower:
                self.close()
            return int(head[9:12]), body
        except BaseException:
            self.close()
            raise

    async def ask(self, verb: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """Ask as the operator."""
        return await self.send(request(verb, path, KEY, body, kind))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def request(verb: str, path: str, token: str, body: bytes = b"", kind: str = "application/x-npy") -> bytes:
    head = (
        f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def make_streams(port: int, count: int, method: str = "recap", **wanted: Any) -> list[dict[str, Any]]:
    connection, made = Connection(port), []
    for place in range(count):
        body = json.dumps({"method": method, "seed": place, **wanted}).encode()
        status, answer = await connection.ask("POST", "/v1/streams", body)
        if status != 201:
            raise RuntimeError(f"{status}: {answer.decode()}")
        made.append(json.loads(answer))
    connection.close()
    return made


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
