"""How a stream is doing: totals, running means over about the last 256 images, and a short history for the page's charts."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Health"]

WINDOW = 256  # images
POINTS = 120  # of the history
_SECONDS = 1.0  # a point covers at least so many
_SAVED = ("images", "selected", "steps", "resets", "skipped", "latency_ms")

Floats = NDArray[np.floating[Any]]


class Health:
    """Statistics of one stream. Written by the worker alone.

    Attributes:
        images: predicted, whether offered for learning or not. selected: of these, that taught. steps: requests that taught.
        resets: how often a guard or the service set the stream back. skipped: steps that were not finite.
        notes: what the owner should know, newest last.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.images = self.selected = self.steps = self.resets = self.skipped = 0
        self.latency_ms = 0.0
        self.notes: deque[str] = deque(maxlen=5)
        self._share = self._entropy = self._weight = 0.0
        self._mean: Floats = np.zeros(classes)
        self.history: deque[dict[str, float]] = deque(maxlen=POINTS)
        self._opened = 0.0
        self._finite = True
        self._since_reset = WINDOW

    def add(self, probabilities: Floats, entropies: Floats, taught: int, finite: bool, learned: bool) -> None:
        """One step of this stream: B × C probabilities, B entropies in nats, how many images taught."""
        count = len(entropies)
        self.images += count
        self._since_reset += count
        self._finite = finite
        if learned:
            self.steps += 1
            self.selected += taught
            self.skipped += not finite
        if not np.isfinite(entropies).all():
            return
        keep = (1 - 1 / WINDOW) ** count
        self._weight = keep * self._weight + 1 - keep
        self._entropy = keep * self._entropy + (1 - keep) * float(entropies.mean())
        self._share = keep * self._share + (1 - keep) * (taught / count if learned else 0.0)
        self._mean = keep * self._mean + (1 - keep) * probabilities.mean(0)

    def took(self, seconds: float) -> None:
        """How long the last request waited and ran; a point is added to the history where it is time for one."""
        self.latency_ms = round(1000 * seconds, 2)
        now = time.time()
        if now - self._opened >= _SECONDS:
            self._opened = now
            self.history.append(
                {"time": round(now, 2), **self._figures(), "resets": self.resets, "images": self.images}
            )

    def note(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.notes.append(f"{stamp} {text}")

    def restart(self) -> None:
        """The stream begins anew: its running means do, too; totals and history go on."""
        self._share = self._entropy = self._weight = 0.0
        self._mean = np.zeros(self.classes)

    def condition(self) -> str:
        """One of new, ok, recovering (set back within the last window) and skipping (the last step was not finite)."""
        if self.images == 0:
            return "new"
        if not self._finite:
            return "skipping"
        return "recovering" if self._since_reset < WINDOW else "ok"

    def set_back(self, times: int, text: str) -> None:
        """A guard, or the service, has set the stream back."""
        self.resets += times
        self._since_reset = 0
        self.note(text)

    def _figures(self) -> dict[str, float]:
        weight = self._weight or 1.0
        mean = self._mean / weight
        positive = mean[mean > 0]
        balance = -float((positive * np.log(positive)).sum()) / math.log(self.classes)
        return {
            "selected_share": round(self._share / weight, 4),
            "mean_entropy": round(self._entropy / weight, 4),
            "class_balance": round(min(abs(balance), 1.0), 4),
            "latency_ms": self.latency_ms,
        }

    def summary(self) -> dict[str, Any]:
        """As it stands in responses."""
        return {
            "images": self.images,
            "selected": self.selected,
            "steps": self.steps,
            **self._figures(),
            "resets": self.resets,
            "skipped": self.skipped,
            "notes": list(self.notes),
        }

    # -- on disk -------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _SAVED},
            "notes": list(self.notes),
            "means": [self._share, self._entropy, self._weight],
            "mean": [round(value, 8) for value in self._mean.tolist()],
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any], classes: int) -> Health:
        """From a snapshot; what is missing or of another model begins anew: these are only statistics."""
        health = cls(classes)
        for name in _SAVED:
            value = content.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                setattr(health, name, value)
        health.notes.extend(text for text in content.get("notes", []) if isinstance(text, str))
        means, mean = content.get("means"), content.get("mean")
        if isinstance(means, list) and len(means) == 3 and isinstance(mean, list) and len(mean) == classes:
            health._share, health._entropy, health._weight = map(float, means)
            health._mean = np.asarray(mean, np.float64)
        return health
