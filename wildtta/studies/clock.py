"""Measuring steps that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["in_turn"]


def in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, device: torch.device, warm_up: int = 2
) -> dict[str, float]:
    """Seconds a call of each: the median over rounds in which every one is called once, after some to warm up.

    On a CPU it is the process's own computing time, of all its threads together: what else the machine does then costs
    little. On a GPU it is the time that passes until the device is done.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    found: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + warm_up):
        for name, function in functions.items():
            _wait(device)
            begun = clock()
            function()
            _wait(device)
            if turn >= warm_up:
                found[name].append(clock() - begun)
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
