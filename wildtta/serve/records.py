"""What the service knows of each stream besides its weights."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from wildtta.recipes import methods
from wildtta.serve.health import Health

__all__ = ["Record"]

_TEXTS = ("id", "name", "token", "method", "guard")


@dataclass(eq=False)
class Record:
    """A stream.

    Attributes:
        token: the digest of its token, never the token itself.
        live: whether its weights are in memory; else they are on disk, and come back with its next request.
        kept: whether there is anything of it on disk.
        seen: images that it has learnt from, or passed over, since it began: the adapter's own count.
        captured, durable: how many of those the last snapshot that was taken has, and the last that is on disk.
        writing: how many snapshots of it are under way.
        guard_resets: how often its guards had set it back when that was last looked at.
        gone: it has been deleted.
    """

    id: str
    name: str
    token: str
    method: str
    guard: str
    seed: int
    hyperparameters: dict[str, Any]
    health: Health
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)
    live: bool = False
    kept: bool = False
    seen: int = 0
    captured: int = 0
    durable: int = 0
    writing: int = 0
    guard_resets: int = 0
    gone: bool = False

    @property
    def unsaved(self) -> int:
        """Images whose learning a crash would cost now."""
        return max(self.seen - self.durable, 0)

    def view(self) -> dict[str, Any]:
        """As it stands in responses."""
        return {
            "id": self.id,
            "name": self.name,
            "method": self.method,
            "hyperparameters": self.hyperparameters,
            "guard": self.guard,
            "seed": self.seed,
            "created": _stamp(self.created),
            "used": _stamp(self.used),
            "in_memory": self.live,
            "unsaved_images": self.unsaved,
            "health": self.health.summary(),
        }

    # -- on disk -------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        content = {name: getattr(self, name) for name in (*_TEXTS, "seed", "hyperparameters", "created", "used")}
        return json.dumps(content | {"version": 1, "health": self.health.as_dict()}).encode()

    @classmethod
    def decode(cls, data: bytes, classes: int) -> Record:
        """Raises ValueError where this is no record of a stream."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("version") != 1:
            raise ValueError("not a stream's record of version 1")
        texts: dict[str, Any] = {name: content.get(name) for name in _TEXTS}
        if not all(isinstance(value, str) for value in texts.values()) or not isinstance(content.get("seed"), int):
            raise ValueError("a field is missing or of another type")
        if texts["method"] not in methods():
            raise ValueError(f"its method {texts['method']!r} is not registered here")
        return cls(
            **texts,
            seed=content["seed"],
            hyperparameters=dict(content["hyperparameters"]),
            created=float(content["created"]),
            used=float(content["used"]),
            health=Health.from_dict(content["health"], classes),
            kept=True,
        )


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
