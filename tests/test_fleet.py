"""A fleet: each of its streams has the numbers that an adapter of its own would have."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import LEARNING, METHODS, settings
from networks import CLASSES, SIDE, images, make
from torch import Tensor, nn

import wildtta
from wildtta.core import Method, entropy, go_back_on_collapse, measure, recentre, reliable, sgd, tree
from wildtta.runners.together import Together

ARRIVALS: list[dict[Any, int]] = [
    {"a": 2, "b": 2, "c": 2},
    {"c": 1},
    {"b": 3, "a": 1, "c": 1},
    {"c": 3, "a": 3},
    {"b": 1, "a": 5, "c": 5},
]
"""How many images each stream gets in some calls."""


def batches(
    arrivals: Sequence[dict[Any, int]] = ARRIVALS, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[dict[Any, Tensor]]:
    return [
        {
            name: images(count, 1000 * seed + 10 * step + place, dtype)
            for place, (name, count) in enumerate(call.items())
        }
        for step, call in enumerate(arrivals)
    ]


class Alone:
    """The yardstick: an adapter for each stream."""

    def __init__(self, make_adapter: Callable[[Any], wildtta.Adapter], names: Sequence[Any]) -> None:
        self.adapters = {name: make_adapter(name) for name in names}

    def check(self, fleet: wildtta.Fleet, calls: Sequence[dict[Any, Tensor]], tolerance: float = 1e-5) -> None:
        for call in calls:
            found = fleet(call)
            assert list(found) == list(call)
            for name, batch in call.items():
                close(found[name], self.adapters[name](batch), tolerance)
        self.compare(fleet, tolerance)

    def compare(self, fleet: wildtta.Fleet, tolerance: float = 1e-5) -> None:
        """All there is: state, report and last outcome."""
        for name, adapter in self.adapters.items():
            mine, other = state_of(fleet, name), adapter.state
            close(mine["stream"]["theta"], other["stream"]["theta"], tolerance)
            if tolerance < 1e-8:  # in float32 a momentum, a sum of gradients, differs by more than what it moves
                same_state(mine, other, tolerance)
            report, expected = fleet.report(name), adapter.report
            assert (report.seen, report.selected, report.updates, report.resets, report.skipped) == (
                expected.seen,
                expected.selected,
                expected.updates,
                expected.resets,
                expected.skipped,
            )
            outcome = fleet.outcome(name)
            assert (outcome is None) == (adapter.outcome is None)
            for mine, other in zip(outcome or (), adapter.outcome or (), strict=True):
                close(mine, other, tolerance)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def state_of(fleet: wildtta.Fleet, name: Any) -> dict[str, Any]:
    cohort, row = fleet._where[name]
    return tree.map(Tensor.clone, cohort.row(row))


def same_state(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    leaves, others = tree.flatten(one), tree.flatten(other)
    assert leaves.keys() == others.keys()
    for name, leaf in leaves.items():
        torch.testing.assert_close(
            leaf, others[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )


def snapshot(fleet: wildtta.Fleet) -> dict[Any, dict[str, Any]]:
    return {name: state_of(fleet, name) for name in fleet.streams}


def pair(
    method: str,
    kind: str,
    names: Sequence[Any] = ("a", "b", "c"),
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> tuple[wildtta.Fleet, Alone]:
    network = make(kind, dtype)
    options = settings(method, network, **others)
    fleet = wildtta.fleet(network, method, streams=names, **options)
    return fleet, Alone(lambda _: wildtta.adapt(network, method, **options), names)


# -- equality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", METHODS)
def test_a_fleet_equals_separate_adapters(method: str, kind: str, dtype: torch.dtype, tolerance: float) -> None:
    fleet, alone = pair(method, kind, dtype=dtype, guard="collapse")
    alone.check(fleet, batches(dtype=dtype), tolerance)
    if method != "source":
        assert fleet.report("a").updates > 0
        assert not torch.equal(state_of(fleet, "a")["stream"]["theta"], state_of(fleet, "b")["stream"]["theta"])
