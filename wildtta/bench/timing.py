"""Measuring time and memory so that contestants share what the machine does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

__all__ = ["MIB", "Spread", "in_turn", "peak_memory", "ratios", "spread", "synchronise"]

MIB = 2**20


class Spread(NamedTuple):
    """The quartiles of what was measured."""

    low: float
    middle: float
    high: float


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def spread(values: list[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0])
    Spread(low=1.5, middle=2.0, high=2.5)
    """
    low, middle, high = torch.tensor(values, dtype=torch.float64).quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    )
    return Spread(low.item(), middle.item(), high.item())


def in_turn(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    device: str,
    *,
    warm_up: int = 2,
    until: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each function in each round. In a round each is called once, so that all share what the machine does.

    Each round begins with the next one, so that none always comes after the same other and finds the caches as that left them.
    With `until`, rounds end early after so many seconds, but not before the third. Another `clock` (`time.process_time`)
    measures something else than the time that passes.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    begun = time.perf_counter()
    for turn in range(rounds + warm_up):
        for name in order:
            synchronise(device)
            start = clock()
            functions[name]()
            synchronise(device)
            if turn >= warm_up:
                times[name].append(1000 * (clock() - start))
        order = [*order[1:], *order[:1]]
        if until and turn >= warm_up + 2 and time.perf_counter() - begun > until:
            break
    return times


def ratios(times: Mapping[str, list[float]], name: str, other: str) -> Spread:
    """How many times as long as another one takes, round by round: what the machine does in a round slows both.

    >>> ratios({"a": [2.0, 20.0, 4.0], "b": [1.0, 10.0, 1.0]}, "a", "b").middle
    2.0
    """
    return spread([mine / its for mine, its in zip(times[name], times[other], strict=True)])


def peak_memory(function: Callable[[], object], device: str) -> float:
    """MiB at the highest point of a call, over what there was before.

    On CUDA the allocator's; on a CPU, what the allocations that the profiler sees add up to.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages are none of the caller's
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    total = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            highest = max(highest, total)
    return highest / MIB
