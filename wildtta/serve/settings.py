"""What can be set about the service. `wildtta serve` has a flag for each."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path

from wildtta.bench.config import ConfigError

__all__ = ["Settings"]

_PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class Settings:
    """The service's settings; each limit bounds something that a client could otherwise make grow.

    Attributes:
        host, port: where it listens.
        model, weights, statistics: as `wildtta.models.load_model` takes them.
        region, fisher: files of what methods need of the source domain; source: images to estimate them on instead.
        device, precision, threads: where and how the model runs.
        max_batch: images in one step over all streams; 1 gives each request a step of its own.
        max_wait_ms: how long a step waits for streams that were there a moment ago.
        state: the folder for snapshots; without one nothing outlives the process.
        snapshot_images: at most so many images of a stream's learning are lost by a crash.
        idle_minutes: a stream that rests so long is put on disk until its next request.
        operator_key: opens everything; one is made and printed where none is given.
        open: whether anybody who reaches the service may create streams (on this machine only).
        max_body_mb: of one request. max_pixels: of one picture. max_images: of one request.
        max_streams: in all. max_waiting: requests at a time. max_stream_waiting: of these, for one stream.
        max_memory_mb: of all request bodies and decoded images together.
        timeout_s: for receiving a body, and for waiting in the queue.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str = "glyph-resnet"
    weights: str | None = None
    statistics: str = "own"
    region: Path | None = None
    fisher: Path | None = None
    source: str | None = None
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    max_batch: int = 64
    max_wait_ms: float = 5.0
    state: Path | None = None
    snapshot_images: int = 256
    idle_minutes: float = 30.0
    operator_key: str | None = None
    open: bool = False
    max_body_mb: float = 16.0
    max_pixels: int = 25_000_000
    max_images: int = 64
    max_streams: int = 256
    max_waiting: int = 256
    max_stream_waiting: int = 16
    max_memory_mb: float = 512.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                least = 0 if entry.name in ("port", "max_wait_ms") else 1 if isinstance(value, int) else 1e-6
                if not least <= value < 1e12:
                    raise ConfigError(f"{_flag(entry.name)} must be {least:g} or more, but is {value}")
        if self.precision not in _PRECISIONS:
            raise ConfigError(f"--precision must be one of {', '.join(_PRECISIONS)}, but is {self.precision!r}")
        if self.max_images > self.snapshot_images:
            raise ConfigError(
                f"a request may bring {self.max_images} images, but a crash may cost only {self.snapshot_images}: give "
                "--max-images at most --snapshot-images"
            )
        if self.open and not self.is_local:
            raise ConfigError(
                f"--open lets anybody create streams, and {self.host} can be reached from elsewhere; leave it out, or listen "
                "on 127.0.0.1"
            )
        if self.operator_key is not None and len(self.operator_key) < 16:
            raise ConfigError("the operator key must have 16 characters or more: it opens every stream")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def max_body(self) -> int:
        return int(self.max_body_mb * 2**20)

    @property
    def max_memory(self) -> int:
        return int(self.max_memory_mb * 2**20)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
