"""What the ways of taking a step cost, measured on the steps themselves."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

__all__ = ["Costs", "mark"]

_RECENT = 5  # times of a pass that are kept,
_ENOUGH = 3  # and how many there have to be until they are believed
_FORGET = 128  # steps after which what was not done meanwhile is measured anew
_FOLLOW = 0.3


def mark(device: torch.device) -> Any:
    """A point in time: on CUDA an event in the stream of work, which nobody waits for.

    On a CPU it is a point in the time that this process has worked, which other processes do not stretch.
    """
    if device.type != "cuda":
        return time.process_time()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: Any, stop: Any) -> float:
    return stop - start if isinstance(start, float) else start.elapsed_time(stop) / 1000


class Costs:
    """For one kind of batch: seconds of each pass, how many images are usually selected, and the choices that follow.

    The passes are "look" (forward, nothing kept), "build" (forward, kept for a backward), "back" (backward over all of it) and
    "teach" (forward and backward of some images alone). Of the last few times the shortest counts: what makes a pass longer is
    something else on the machine, or its being the first. A pass of `n` images takes a fixed time and a time an image; what was
    not measured often enough, or not for long, is taken to be as good as it could be, so that it is tried.

    Attributes:
        whole, part: how many steps took a backward over all, and how many a second forward and backward over some.
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.expected = float(images)
        self._steps = 0
        self._latest: dict[str, int] = {}
        self.whole = self.part = 0
        self._seconds: dict[str, deque[float]] = {
            name: deque(maxlen=_RECENT) for name in ("look", "build", "back", "teach")
        }
        self._taught: deque[int] = deque(maxlen=_RECENT)  # of how many images the times of "teach" are
        self._pending: list[tuple[str, Any, Any, int]] = []

    # -- choices -------------------------------------------------------------------------------------------------------

    def build_first(self) -> bool:
        """Whether the first forward should keep what a backward over all needs."""
        if len(self._seconds["build"]) < 2:  # the first of all is never a fair one
            return True
        selected, build = round(self.expected), self._least("build")
        whole = build + min(self._back, self._teaching(selected))
        look = self._least("look") if len(self._seconds["look"]) >= _ENOUGH else build
        return whole < look + self._teaching(selected)

    def whole_is_cheaper(self, selected: int) -> bool:
        """With everything kept: whether a backward over all costs less than both passes over the selected images."""
        return len(self._seconds["back"]) < 2 or self._back <= self._teaching(selected)

    def _least(self, name: str) -> float:
        return min(self._seconds[name])

    @property
    def _back(self) -> float:
        return self._least("back" if self._seconds["back"] else "build")

    def _teaching(self, selected: int) -> float:
        """Forward and backward of so many images: on the line through what they take for all, and for the few of late."""
        if selected == 0:
            return 0.0
        every = self._least("build") + self._back
        few = sum(self._taught) / len(self._taught) if len(self._taught) >= _ENOUGH else 0.0
        if few in (0, self.images):
            return every * selected / self.images
        slope = max(every - self._least("teach"), 0.0) / (self.images - few)
        return max(self._least("teach") + slope * (selected - few), every * selected / self.images)

    # -- what happened -------------------------------------------------------------------------------------------------

    def note(self, name: str, start: Any, stop: Any, selected: int = 0) -> None:
        """A pass of this name took from one mark to another; "teach" says of how many images."""
        self._pending.append((name, start, stop, selected))

    def settle(self, selected: int) -> None:
        """Called where the host has waited for the device anyway: all earlier marks are in the past."""
        for name, start, stop, taught in self._pending:
            if not isinstance(stop, float) and not stop.query():
                continue  # it ran in another stream, and nobody waited for that
            self._seconds[name].append(_between(start, stop))
            if taught:
                self._taught.append(taught)
            self._latest[name] = self._steps
        self._pending.clear()
        self._steps += 1
        for first, second in (("build", "back"), ("look", "teach")):
            if self._steps - self._latest.get(second, self._steps) > _FORGET:
                del self._latest[second]
                self._seconds[first].clear()
                self._seconds[second].clear()
                self._taught.clear()
        self.expected += _FOLLOW * (selected - self.expected)

    def summary(self) -> dict[str, Any]:
        """What was measured and chosen, for tables."""
        times = {name: min(seconds) for name, seconds in self._seconds.items() if seconds}
        return {"seconds": times, "whole": self.whole, "part": self.part, "expected": self.expected / self.images}
