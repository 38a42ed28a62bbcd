"""Memory does not grow along a stream."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from networks import CLASSES
from torch import Tensor, nn

import wildtta

MIB = 2**20


def resident() -> float:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def walk(runner: str, warm_up: int, steps: int) -> tuple[int, float]:
    """How many tensors there are more after so many steps, and how many MiB."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4),
        nn.GroupNorm(2, 8),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    batches = torch.randn(50, 4, 3, 8, 8)
    region = wildtta.Region.estimate(network, batches[:8].flatten(0, 1))
    model = wildtta.adapt(
        network, "recap+sar", region=region, margin=0.985, guard="collapse", frozen_top=False, runner=runner
    )
    for step in range(warm_up):
        model(batches[step % 50][: 4 - step % 3])
    before = tensors(), resident()
    for step in range(steps):
        model(batches[step % 50][: 4 - step % 3])
    assert 0 < model.report.selected < model.report.seen
    return tensors() - before[0], resident() - before[1]


@pytest.mark.parametrize("runner", ["eager", "sparing"])
def test_no_tensor_is_left_behind(runner: str) -> None:
    assert walk(runner, 30, 60)[0] == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize("runner", ["eager", "sparing"])
def test_twenty_thousand_steps_leave_nothing_behind(runner: str, record_property) -> None:
    more, grown = walk(runner, 1_000, 20_000)
    print(f"{runner}: {more} tensors and {grown:.2f} MiB more after 20,000 steps")
    record_property("MiB", grown)
    assert more == 0
    assert grown < 4, "4 MiB are 200 bytes a step: less than one state of the smallest network"
