"""Several streams as one vmapped step: each gets the numbers that it would get alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from cases import LEARNING, METHODS, adapter
from networks import images, make
from torch import Tensor, nn

import wildtta
from wildtta.core import tree
from wildtta.core.guards import go_back_on_collapse
from wildtta.runners.eager import Eager
from wildtta.runners.together import Together, mixes_images

SEEDS, STEPS = (0, 5, 9), 5


def _streams(batch: int) -> Tensor:
    """streams × steps × batch × image."""
    count = len(SEEDS) * STEPS * batch
    return images(count, 7, torch.float64).unflatten(0, (len(SEEDS), STEPS, batch))


def _start(fleet: Together, network: wildtta.Network, seeds: Sequence[int] = SEEDS) -> tree.State:
    states = [fleet.method.init(network, seed) for seed in seeds]
    return tree.map(lambda *leaves: torch.stack(leaves), *states)


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def _check(method: str, kind: str, batch: int, leaves_after: int = STEPS, **settings: object) -> dict[str, int]:
    """Run three streams side by side and alone, and compare all there is; the middle one may end before the others.

    The counters of the first stream.
    """
    one = adapter(method, kind, torch.float64, **settings)
    fleet, streams = Together(one.method), _streams(batch)
    alone = [one.method.init(one.network, seed) for seed in SEEDS]
    state, going = _start(fleet, one.network), [0, 1, 2]
    for step in range(STEPS):
        if step == leaves_after:
            state, going = tree.map(lambda leaf: leaf[[0, 2]], state), [0, 2]
        state, outcome = Eager(fleet, one.network).step(state, streams[going, step])
        leaves = tree.flatten(state)
        for place, stream in enumerate(going):
            alone[stream], expected = Eager(one.method, one.network).step(alone[stream], streams[stream, step])
            for name, leaf in tree.flatten(alone[stream]).items():
                _close(leaves[name][place], leaf)
            for mine, other in zip(outcome, expected, strict=True):
                _close(mine[place], other)
    return {name: int(value[0]) for name, value in state["counters"].items()}


@pytest.mark.parametrize(("kind", "batch"), [("gn", 1), ("gn", 4), ("ln", 1)])
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_has_the_numbers_that_it_would_have_alone(method, kind, batch):
    counters = _check(method, kind, batch, guard="collapse")
    assert counters["seen"] == STEPS * batch
    if method != "source" and batch == 4:
        assert counters["updates"] > 0


@pytest.mark.parametrize("method", LEARNING)
def test_guards_act_for_each_stream_on_its_own(method):
    counters = _check(method, "gn", 4, guard=go_back_on_collapse(window=4, share=1.1))
    assert counters["resets"] > 0


@pytest.mark.parametrize(("method", "recovery"), [("sar", 1.2), ("recap+sar", 2.3)])
def test_recovery_acts_for_each_stream_on_its_own(method, recovery):
    # the average loss of this stream is below the threshold at some steps, and above it at others
    assert 0 < _check(method, "gn", 4, recovery=recovery)["resets"] < STEPS


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_that_ends_leaves_the_others_as_they_are(method):
    assert _check(method, "gn", 2, leaves_after=2)["seen"] == 2 * STEPS


def test_a_batch_that_is_not_finite_costs_its_own_stream_alone():
    one = adapter("tent", "gn", torch.float64)
    fleet, streams = Together(one.method), _streams(2)[:, 0]
    start = _start(fleet, one.network)
    spoilt = streams.clone()
    spoilt[1, 0, 0, 0, 0] = torch.nan
    expected, _ = fleet.step(one.network, start, streams)
    found, outcome = fleet.step(one.network, start, spoilt)
    assert outcome.finite.tolist() == [True, False, True]
    _close(found["stream"]["theta"][[0, 2]], expected["stream"]["theta"][[0, 2]])
    assert torch.equal(found["stream"]["theta"][1], start["stream"]["theta"][1])
    assert found["counters"]["skipped"].tolist() == [0, 1, 0]


def test_seeds_make_streams_differ():
    one = adapter("deyo", "gn", torch.float64)
    fleet = Together(one.method)
    same = images(4, 3, torch.float64).expand(2, -1, -1, -1, -1)
    state, _ = fleet.step(one.network, _start(fleet, one.network, [1, 2]), same)
    assert not torch.equal(state["stream"]["theta"][0], state["stream"]["theta"][1])
    state, _ = fleet.step(one.network, _start(fleet, one.network, [1, 1]), same)
    assert torch.equal(state["stream"]["theta"][0], state["stream"]["theta"][1])


def test_the_state_of_the_adapter_is_left_as_it_was():
    one = adapter("tent", "gn", torch.float64)
    before = tree.flatten(tree.map(torch.clone, one.state))
    fleet = Together(one.method)
    fleet.step(one.network, _start(fleet, one.network), _streams(2)[:, 0])
    for name, leaf in tree.flatten(one.state).items():
        assert torch.equal(leaf, before[name]) or name == "loss"


@pytest.mark.parametrize(
    ("network", "mixes"),
    [
        (make("gn"), False),
        (make("ln"), False),
        (make("bn"), True),
        (nn.Sequential(nn.BatchNorm1d(3)), True),
        (nn.Sequential(nn.Sequential(nn.SyncBatchNorm(3))), True),
        (nn.InstanceNorm2d(3, affine=True), False),
        (nn.Linear(3, 2), False),
    ],
)
def test_which_networks_mix_images(network, mixes):
    assert mixes_images(network) == mixes
