"""A fleet: each of its streams has the numbers that an adapter of its own would have."""

from __future__ import annotations

import copy
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import STREAMING, settings
from networks import CLASSES, SIDE, images
from networks import make as made
from torch import Tensor, nn

import wildtta
from wildtta.core import Method, below, entropy, go_back_on_collapse, measure, recentre, sgd, tree
from wildtta.runners.eager import Eager
from wildtta.runners.flat import _computes

make = functools.cache(made)  # a network is never changed

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
            leaf,
            others[name],
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def snapshot(fleet: wildtta.Fleet) -> dict[Any, dict[str, Any]]:
    return {name: state_of(fleet, name) for name in fleet.streams}


@functools.cache
def usual(method: str, kind: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return settings(method, make(kind, dtype))


def pair(
    method: str,
    kind: str,
    names: Sequence[Any] = ("a", "b", "c"),
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> tuple[wildtta.Fleet, Alone]:
    network = make(kind, dtype)
    options = usual(method, kind, dtype) | others
    fleet = wildtta.fleet(network, method, streams=names, **options)
    return fleet, Alone(lambda _: wildtta.adapt(network, method, **options), names)


# -- equality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_a_fleet_equals_separate_adapters(method: str, kind: str, dtype: torch.dtype, tolerance: float) -> None:
    fleet, alone = pair(method, kind, dtype=dtype, guard="collapse")
    alone.check(fleet, batches(dtype=dtype), tolerance)
    if method != "source":
        assert fleet.report("a").updates > 0
        assert not torch.equal(state_of(fleet, "a")["stream"]["theta"], state_of(fleet, "b")["stream"]["theta"])


@pytest.mark.parametrize(("method", "kind"), [("recap", "gn"), ("sar", "ln"), ("deyo", "gn")])
def test_single_images_by_the_names_of_their_streams(method: str, kind: str) -> None:
    fleet, alone = pair(method, kind, [0, 1, 2, 3])
    for step, names in enumerate([[3, 1, 0, 2], [2, 0], [1], [0, 2, 0, 3, 2, 0]]):
        batch = images(len(names), step)
        logits = fleet(batch, names)
        for name in set(names):
            mine = [place for place, other in enumerate(names) if other == name]
            close(logits[mine], alone.adapters[name](batch[mine]))
    alone.compare(fleet)
    assert fleet(images(2), torch.tensor([3, 0])).shape == (2, CLASSES)


def test_streams_are_numbered_where_only_their_number_is_given() -> None:
    fleet = wildtta.fleet(make("gn"), "tent", streams=3)
    assert fleet.streams == (0, 1, 2)
    assert wildtta.fleet(make("gn"), "tent").streams == ()
    assert wildtta.fleet(make("gn"), "tent", streams=["x", "y"]).streams == ("x", "y")


def test_seeds_are_those_of_adapters() -> None:
    network, seeds = make("gn"), [4, 7, 4]
    fleet = wildtta.fleet(network, "deyo", streams=3, seed=seeds, **usual("deyo", "gn"))
    alone = Alone(lambda name: wildtta.adapt(network, "deyo", seed=seeds[name], **usual("deyo", "gn")), [0, 1, 2])
    same = {name: images(4, 3) for name in range(3)}
    alone.check(fleet, [same, same])
    first, second, third = (state_of(fleet, name)["stream"]["theta"] for name in range(3))
    assert not torch.equal(first, second)
    close(first, third)


@pytest.mark.parametrize(("method", "kind"), [("recap+sar", "gn"), ("deyo", "ln"), ("eata", "gn")])
def test_chunks_change_no_result(method: str, kind: str) -> None:
    names = list(range(7))
    options = usual(method, kind, torch.float64) | {"guard": go_back_on_collapse(window=2, share=1.1)}
    fleets = [
        wildtta.fleet(make(kind, torch.float64), method, streams=names, chunk=chunk, **options)
        for chunk in (None, 1, 3)
    ]
    for call in batches(
        [dict.fromkeys(names, 2), dict.fromkeys([5, 0, 3, 1], 1), dict.fromkeys(names, 2)], 0, torch.float64
    ):
        whole, *parts = [fleet(call) for fleet in fleets]
        for part in parts:
            for name in call:
                close(part[name], whole[name], 1e-9)
    for name in names:
        for fleet in fleets[1:]:
            same_state(state_of(fleet, name), state_of(fleets[0], name), 1e-9)
    assert sum(fleets[0].report(name).resets for name in names) > 0


def test_the_default_chunk_is_bounded_by_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wildtta.fleets._VALUES", 5 * 3 * SIDE * SIDE)
    fleet = wildtta.fleet(make("gn"), "tent", streams=12)
    sizes: list[int] = []
    step = fleet._cohorts[0].step
    monkeypatch.setattr(
        fleet._cohorts[0],
        "step",
        lambda rows, *given, **options: (sizes.append(len(rows)), step(rows, *given, **options))[1],
    )
    fleet(images(12), range(12))
    fleet({0: images(9), 1: images(9)})
    assert sizes == [5, 5, 2, 1, 1]


def test_patches_of_sizes_that_do_not_divide_the_image() -> None:
    fleet, alone = pair("deyo", "gn", patches=3)
    alone.check(fleet, batches())


# -- streams come and go -----------------------------------------------------------------------------------------------


def test_streams_join_and_leave_and_the_others_go_on() -> None:
    network, options = make("gn"), usual("recap+sar", "gn") | {"guard": "collapse"}
    fleet = wildtta.fleet(network, "recap+sar", streams=["a", "b", "c"], **options)
    alone = Alone(lambda _: wildtta.adapt(network, "recap+sar", **options), ["a", "b", "c"])
    alone.check(fleet, batches())
    fleet.leave("a")
    del alone.adapters["a"]
    fleet.join("d")
    fleet.join("e", seed=3)
    assert fleet.streams == ("b", "c", "d", "e")
    alone.adapters["d"] = wildtta.adapt(network, "recap+sar", **options)
    alone.adapters["e"] = wildtta.adapt(network, "recap+sar", seed=3, **options)
    alone.check(fleet, batches([{"e": 2, "b": 2, "d": 2}, {"c": 1, "d": 1}, {"b": 4, "c": 2, "d": 2, "e": 4}], seed=1))
    for name in ("e", "b", "c", "d"):
        fleet.leave(name)
    assert fleet.streams == ()
    fleet.join("a")
    assert fleet.report("a").seen == 0, "a name that comes back starts anew"


def test_many_come_and_go_in_any_order() -> None:
    """Rows are refilled and moved, and each stream keeps its own."""
    fleet, generator = wildtta.fleet(make("gn"), "tent"), torch.Generator().manual_seed(0)
    expected: dict[int, int] = {}
    for turn in range(200):
        pick = int(torch.randint(1000, (), generator=generator))
        if expected and pick % 5 < (4 if turn > 120 else 2):
            gone = sorted(expected)[pick % len(expected)]
            fleet.leave(gone)
            del expected[gone]
        else:
            fleet.join(turn, seed=turn)
            expected[turn] = turn
        assert set(fleet.streams) == set(expected)
        (cohort,) = fleet._cohorts
        assert len(cohort.streams) == len(expected) <= cohort._room <= max(2 * len(expected), 4)
        assert all(int(state_of(fleet, name)["seed"]) == seed for name, seed in expected.items())


@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_files_pass_between_fleets_and_adapters(method: str, tmp_path: Path) -> None:
    fleet, alone = pair(method, "gn", guard="collapse")
    for call in batches():
        fleet(call)
        for name, batch in call.items():
            alone.adapters[name](batch)
    before = snapshot(fleet)
    fleet.save("b", tmp_path / "fleet")
    other, adapter = pair(method, "gn", ["x", "y"], guard="collapse")
    adapter.adapters["x"].load(tmp_path / "fleet")
    same_state(adapter.adapters["x"].state, before["b"])
    other.load("y", tmp_path / "fleet")
    same_state(state_of(other, "y"), before["b"])
    assert other.report("x").seen == 0
    fleet.load("a", tmp_path / "fleet")
    assert fleet.report("a") == fleet.report("b") or method == "source"
    alone.adapters["c"].save(tmp_path / "adapter")
    fleet.load("c", tmp_path / "adapter")
    same_state(state_of(fleet, "c"), alone.adapters["c"].state)
    same_state(state_of(fleet, "b"), before["b"])
    batch = images(3, 77)
    found = fleet({"a": batch, "b": batch})
    close(found["a"], other({"y": batch})["y"])
    close(found["a"], found["b"])


def test_a_stream_that_was_saved_goes_on_bit_for_bit(tmp_path: Path) -> None:
    fleet, _ = pair("recap", "ln", guard="collapse")
    for call in batches():
        fleet(call)
    for name in fleet.streams:
        fleet.save(name, tmp_path / name)
    again, _ = pair("recap", "ln", guard="collapse")
    for name in fleet.streams:
        again.load(name, tmp_path / name)
    for call in batches(seed=1):
        found, expected = again(call), fleet(call)
        assert all(torch.equal(found[name], expected[name]) for name in call)
    for name in fleet.streams:
        same_state(state_of(again, name), state_of(fleet, name))


def test_reset_report_outcome_frozen_and_export() -> None:
    fleet, alone = pair("recap", "gn")
    fresh = snapshot(fleet)
    assert fleet.outcome("a") is None
    assert isinstance(fleet.report("a"), wildtta.Report)
    alone.check(fleet, batches())
    held = snapshot(fleet)
    with fleet.frozen() as still:
        answers = still({"a": images(2, 50), "c": images(2, 51), "b": images(1, 52)})
    for name, state in held.items():
        same_state(state_of(fleet, name), state)
    plain = fleet.export("a")
    with torch.no_grad():
        close(plain(images(2, 50)), answers["a"])
        assert not torch.equal(plain(images(2, 50)), make("gn")(images(2, 50)))
    fleet.reset("a")
    same_state(state_of(fleet, "a"), fresh["a"])
    assert (fleet.outcome("a"), fleet.report("a").seen) == (None, 0)
    same_state(state_of(fleet, "b"), held["b"])
    close(fleet({"a": images(2, 50)})["a"], wildtta.adapt(make("gn"), "source")(images(2, 50)))


def test_outcomes_of_streams_that_rest_do_not_hold_all_the_others() -> None:
    fleet = wildtta.fleet(make("gn"), "tent", streams=16)
    fleet(images(16), range(16))
    expected = [fleet.outcome(name) for name in range(16)]
    for name in range(4, 16):
        fleet(images(1, name), [name])
    held = {id(last): last for last in fleet._last.values()}.values()
    assert sum(last.outcome.logits.shape[0] for last in held) == 16
    for name in range(4):
        for mine, other in zip(fleet.outcome(name), expected[name], strict=True):
            assert torch.equal(mine, other)


# -- hyper-parameters of one's own -------------------------------------------------------------------------------------

SWEEPS: list[tuple[str, str, dict[str, list[Any]], int]] = [
    ("tent", "gn", {"lr": [1e-3, 5e-3, 2e-2]}, 1),
    ("tent", "ln", {"lr": [1e-3, "x3", lambda images: 1e-3 * images]}, 1),
    ("tent", "gn", {"momentum": [0.9, 0.5, 0.99]}, 1),
    ("tent", "gn", {"momentum": [0.9, 0.0, 0.0], "lr": [1e-3, 2e-3, 4e-3]}, 2),
    ("eta", "gn", {"margin": [0.5, 0.7, 0.9], "redundancy": [0.3, 0.9, 0.6]}, 1),
    ("eata", "ln", {"strength": [10.0, 100.0, 2000.0]}, 1),
    ("sar", "gn", {"rho": [0.02, 0.05, 0.2], "recovery": [0.0, 0.9, 0.5]}, 1),
    ("deyo", "gn", {"plpd": [-0.2, -0.1, -0.4], "threshold": [0.6, 0.8, 1.0]}, 1),
    ("deyo", "gn", {"patches": [2, 4, 2]}, 2),
    ("recap", "gn", {"lr": [1e-3, 2e-3, 8e-3], "lam": [0.1, 0.5, 2.0]}, 1),
    ("recap", "gn", {"tau": [0.2, 0.6, 1.2], "threshold": [1.5, 1.2, 0.9]}, 1),
    ("recap", "ln", {"tau": [0.2, 1e7, 0.4], "pivot": [0.7, 1.0, 1.2]}, 2),
    ("recap", "gn", {"frozen_top": [True, False, True]}, 2),
    ("recap+sar", "gn", {"tau": [0.1, 0.2, 0.4], "rho": [0.05, 0.1, 0.02]}, 1),
    ("recap+deyo", "ln", {"lam": [0.0, 0.5, 5.0], "lr": [None, "x5", 1e-3]}, 1),
]


@pytest.mark.parametrize(("method", "kind", "each", "programs"), SWEEPS)
def test_streams_with_hyperparameters_of_their_own(
    method: str, kind: str, each: dict[str, list[Any]], programs: int
) -> None:
    """As separate adapters, and in as few programs as there are structures."""
    options = {key: value for key, value in usual(method, kind, torch.float64).items() if key not in each}
    options["guard"] = go_back_on_collapse(window=6)
    network = make(kind, torch.float64)
    fleet = wildtta.fleet(network, method, streams=3, each=each, **options)
    alone = Alone(
        lambda name: wildtta.adapt(network, method, **options, **{key: values[name] for key, values in each.items()}),
        [0, 1, 2],
    )
    calls = [{0: 3, 1: 3, 2: 3}, {2: 1, 0: 1}, {0: 3, 1: 3, 2: 3}, {1: 2, 0: 2, 2: 4}, {1: 3, 2: 3}]
    alone.check(fleet, batches(calls, dtype=torch.float64), 1e-9)
    assert len({id(cohort) for cohort, _ in fleet._where.values()}) == programs
    thetas = {tuple(state_of(fleet, name)["stream"]["theta"][:5].tolist()) for name in range(3)}
    assert len(thetas) == 3


def test_a_stream_joins_with_its_own_and_its_variant_goes_with_it(tmp_path: Path) -> None:
    network, options = make("gn"), usual("recap", "gn")
    fleet = wildtta.fleet(network, "recap", streams=["a"], **options)
    for turn in range(5):
        fleet.join("own", lam=0.1 * turn + 3.0, lr=0.01)
        fleet.join("deep", frozen_top=False)
        alone = Alone(
            lambda name, lam=0.1 * turn + 3.0: wildtta.adapt(
                network, "recap", **options | ({"lam": lam, "lr": 0.01} if name == "own" else {"frozen_top": False})
            ),
            ["own", "deep"],
        )
        for call in batches([{"own": 2, "a": 2, "deep": 2}] * 2, seed=turn):
            found = fleet(call)
            for name, adapter in alone.adapters.items():
                close(found[name], adapter(call[name]))
        alone.compare(fleet)
        if turn == 0:
            fleet.save("own", tmp_path / "own")
            with pytest.raises(ValueError, match=r"lam is 3.0, here it is 0.5; lr is 0.01, here it is 0.002"):
                fleet.load("a", tmp_path / "own")
            alone.adapters["own"].load(tmp_path / "own")
        fleet.leave("own")
        fleet.leave("deep")
        assert [len(cohort.variants) for cohort in fleet._cohorts] == [1]


def test_the_first_of_a_kind_leaves_and_the_others_stay() -> None:
    network, rates = make("gn"), {"a": 1e-3, "b": 1e-2, "c": 3e-3}
    fleet = wildtta.fleet(network, "tent")
    for name, rate in rates.items():
        fleet.join(name, lr=rate, momentum=0.0)
    alone = Alone(lambda name: wildtta.adapt(network, "tent", lr=rates[name], momentum=0.0), list(rates))
    alone.check(fleet, batches())
    fleet.leave("a")
    del alone.adapters["a"]
    alone.check(fleet, batches([{"b": 2, "c": 2}, {"c": 1}], seed=1))
    fleet.leave("c")
    fleet.leave("b")
    assert len(fleet._cohorts) == 1
    fleet.join("d")
    assert fleet(images(1), ["d"]).shape == (1, CLASSES)


def test_constants_are_shared_and_large_ones_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {key: value for key, value in usual("recap", "gn").items() if key != "tau"}
    fleet = wildtta.fleet(make("gn"), "recap", streams=3, tau=0.3, each={"lam": [0.1, 0.2, 0.3]}, **options)
    factors = {id(variant.method.objective.left.around.factor) for variant in fleet._cohorts[0].variants}
    assert len(factors) == 1
    monkeypatch.setattr("wildtta.runners.settings._LARGEST", 100)
    fleet = wildtta.fleet(make("gn"), "recap", streams=3, each={"tau": [0.1, 0.2, 0.1]}, **options)
    assert sorted(len(cohort.streams) for cohort in fleet._cohorts if cohort.streams) == [1, 2]


def test_methods_of_ones_own_with_hyperparameters_of_ones_own() -> None:
    """A function closes over a number that cannot be stacked: such streams take their steps one after another."""

    @wildtta.register("gap")
    def gap(network: wildtta.Network, *, lr: float = 1e-3, gap: float = 1.0) -> Method:
        closeness = measure(lambda prediction: gap - prediction.logits.topk(2).values.diff().abs().squeeze(-1))
        return Method(network.norms(), entropy(), sgd(lr), selection=below(closeness, 0.5))

    each = {"lr": [1e-3, 1e-2, 1e-3, 1e-2], "gap": [1.0, 1.0, 2.0, 2.0]}
    fleet = wildtta.fleet(make("gn"), "gap", streams=4, each=each)
    alone = Alone(
        lambda name: wildtta.adapt(make("gn"), "gap", **{key: values[name] for key, values in each.items()}), range(4)
    )
    alone.check(fleet, batches([dict.fromkeys(range(4), 3)] * 3))
    assert sorted(len(cohort.streams) for cohort in fleet._cohorts if cohort.streams) == [2, 2]
    composed = wildtta.fleet(make("gn"), lambda view: gap(view, lr=0.01, gap=1.0), streams=2)
    composed({0: images(3), 1: images(3, 1)})
    assert composed.report(0).updates == 1


# -- one stream never touches another ----------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_images_that_are_not_finite_cost_their_own_stream_alone(method: str, kind: str, poison: float) -> None:
    (clean, _), (spoilt, _) = (pair(method, kind, ["a", "b", "c", "d"], guard="collapse") for _ in range(2))
    start = batches([dict.fromkeys("abcd", 2)])[0]
    clean(start)
    spoilt(start)
    before = state_of(spoilt, "b")
    call = batches([dict.fromkeys("abcd", 2)], seed=1)[0]
    bad = call | {"b": call["b"].clone()}
    bad["b"][1, 1, 3, 3] = poison
    expected, found = clean(call), spoilt(bad)
    for name in "acd":
        assert torch.equal(found[name], expected[name])
        same_state(state_of(spoilt, name), state_of(clean, name))
    after = state_of(spoilt, "b")
    assert int(after["counters"].pop("skipped")) == 1
    assert int(after["counters"].pop("seen")) == 4
    del before["counters"]["skipped"], before["counters"]["seen"]
    same_state(after, before)
    assert not spoilt.outcome("b").finite
    assert not spoilt.outcome("b").mask.any()


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[wildtta.Fleet], object], type[Exception], str]] = [
    (lambda fleet: fleet({}), ValueError, "no images"),
    (
        lambda fleet: fleet({"north": images(1), "nroth": images(1)}),
        ValueError,
        r"no stream 'nroth' \(did you mean 'north'",
    ),
    (lambda fleet: fleet({"x": images(1)}), ValueError, r"no stream 'x' \(there are 2 streams\); let it join first"),
    (lambda fleet: fleet(images(1)), TypeError, "say which streams"),
    (lambda fleet: fleet({"north": images(1)}, ["north"]), TypeError, "leave streams out"),
    (lambda fleet: fleet(images(2), ["north"]), ValueError, "there are 2 images and 1 names of streams"),
    (lambda fleet: fleet(images(2)[0], ["north"]), ValueError, r"add a batch axis with images\[None\]"),
    (lambda fleet: fleet(images(2), ["north", ["south"]]), (TypeError, ValueError), "no stream|unhashable"),
    (
        lambda fleet: fleet({"north": images(1), "south": images(1)[:, :1]}),
        ValueError,
        r"stream 'south': the network cannot take images of shape \(1, 1, 16, 16\)",
    ),
    (
        lambda fleet: fleet({"north": images(1), "south": images(1)[0]}),
        ValueError,
        "stream 'south': images must have shape",
    ),
    (
        lambda fleet: fleet({"north": images(1), "south": images(1)[:0]}),
        ValueError,
        r"stream 'south': .* \(0, 3, 16, 16\)",
    ),
    (
        lambda fleet: fleet({"north": images(1), "south": images(1).byte()}),
        TypeError,
        "stream 'south': .* must be floats",
    ),
    (lambda fleet: fleet({"north": images(1), "south": [1]}), TypeError, "stream 'south': images must be a tensor"),
    (
        lambda fleet: fleet({"north": images(1), "south": images(1).to("meta")}),
        ValueError,
        "stream 'south': images are on meta, the fleet is on cpu; move one of them",
    ),
    (lambda fleet: fleet.join("north"), ValueError, "there is a stream 'north' already"),
    (lambda fleet: fleet.join(1.5), TypeError, "must be a string or a whole number"),
    (lambda fleet: fleet.join("new", roh=3), TypeError, r"no hyper-parameter 'roh' \(did you mean 'rho'"),
    (lambda fleet: fleet.join("new", lr=-1.0), ValueError, "lr must be a number that is not negative"),
    (lambda fleet: fleet.leave("souht"), ValueError, "did you mean 'south'"),
    (lambda fleet: fleet.reset("x"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.report("x"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.outcome("x"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.export("x"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.save("x", "nowhere"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.save("north", "/nowhere/at/all"), FileNotFoundError, "there is no folder"),
    (lambda fleet: fleet.load("x", "nowhere"), ValueError, "no stream 'x'"),
    (lambda fleet: fleet.load("north", "nowhere"), FileNotFoundError, "no such file"),
]


def test_bad_input_is_an_error_and_changes_nothing() -> None:
    fleet, _ = pair("sar", "gn", ["north", "south"])
    fleet({"north": images(2), "south": images(1, 1)})
    before, outcome = snapshot(fleet), fleet.outcome("north").logits
    for bad, kind, message in BAD:
        with pytest.raises(kind, match=message):
            bad(fleet)
        assert fleet.streams == ("north", "south")
        for name, state in before.items():
            same_state(state_of(fleet, name), state)
        assert torch.equal(fleet.outcome("north").logits, outcome)
        assert [len(cohort.variants) for cohort in fleet._cohorts] == [1]


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    fleet, _ = pair("sar", "gn", ["a", "b"])
    fleet({"a": images(2), "b": images(2, 1)})
    before = snapshot(fleet)
    network = make("gn")
    wildtta.adapt(network, "tent").save(tmp_path / "tent")
    wildtta.adapt(made("gn", seed=1), "sar", **usual("sar", "gn")).save(tmp_path / "weights")
    fleet.save("a", tmp_path / "good")
    (tmp_path / "half").write_bytes((tmp_path / "good").read_bytes()[:600])
    for name, message in [
        ("tent", "its method is 'tent', here it is 'sar'"),
        ("weights", "its network is"),
        ("half", "truncated"),
    ]:
        with pytest.raises(ValueError, match=message):
            fleet.load("b", tmp_path / name)
        for stream, state in before.items():
            same_state(state_of(fleet, stream), state)


def test_fleets_that_cannot_be() -> None:
    with pytest.raises(
        ValueError, match=r"BatchNorm layers, which mix .*an adapter for each stream with wildtta.adapt"
    ):
        wildtta.fleet(make("bn"), "tent", streams=2)
    with pytest.raises(ValueError, match="lr has 2 values for 3 streams"):
        wildtta.fleet(make("gn"), "tent", streams=3, each={"lr": [1.0, 2.0]})
    with pytest.raises(ValueError, match="seed has 1 values for 3 streams"):
        wildtta.fleet(make("gn"), "tent", streams=3, seed=[1])
    with pytest.raises(TypeError, match="lr was given both for all streams and for each"):
        wildtta.fleet(make("gn"), "tent", streams=1, lr=1.0, each={"lr": [1.0]})
    with pytest.raises(TypeError, match="is the string 'ab'"):
        wildtta.fleet(make("gn"), "tent", streams="ab")
    with pytest.raises(ValueError, match="there is a stream 'a' already"):
        wildtta.fleet(make("gn"), "tent", streams=["a", "a"])
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        wildtta.fleet(make("gn"), "tent", chunk=0)
    with pytest.raises(ValueError, match="unknown runner 'graph'"):
        wildtta.fleet(make("gn"), "tent", runner="graph")
    for runner in ("sparing", "compiled", "distributed"):
        with pytest.raises(ValueError, match=f'the {runner} runner is for a single stream; .* "eager", or "captured"'):
            wildtta.fleet(make("gn"), "tent", runner=runner)
    with pytest.raises(ValueError, match="unknown method 'tnet'"):
        wildtta.fleet(make("gn"), "tnet")
    with pytest.raises(ValueError, match="give region="):
        wildtta.fleet(make("gn"), "recap")


# -- networks of every kind --------------------------------------------------------------------------------------------


class TokensFirst(nn.Module):
    """Attention over tokens × images: the leading axis inside is not the images'."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, 4)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, 0.1)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, batch: Tensor) -> Tensor:
        tokens = self.layer(self.embed(batch).flatten(2).permute(2, 0, 1))
        return self.head(self.norm(tokens).mean(0))


class Borrower(nn.Module):
    """Uses a layer's parameters without calling it, and another layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.norm, self.twice = nn.GroupNorm(2, 8), nn.GroupNorm(4, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, batch: Tensor) -> Tensor:
        values = nn.functional.group_norm(self.conv(batch), 2, self.norm.weight, self.norm.bias)
        return self.head(self.twice(self.twice(values).relu()).mean((2, 3)))


class ChannelsNorm(nn.LayerNorm):
    """As in ConvNeXt: over the channels of a picture."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mixture(nn.Module):
    """Norms of many kinds, one of them with running statistics, two with parameters in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.InstanceNorm2d(8, affine=True, track_running_stats=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), ChannelsNorm(8), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(1, 8), nn.SiLU())
        self.fourth = nn.LayerNorm(8, bias=False)
        self.fifth, self.sixth = nn.RMSNorm(8), nn.LayerNorm(8)
        self.sixth.weight = self.fifth.weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, batch: Tensor) -> Tensor:
        values = self.third(self.second(self.first(batch))).mean((2, 3))
        return self.head(self.sixth(self.fifth(self.fourth(values)) + values))


def other(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    network = kind().double()
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    network.head.weight.data *= 3
    if kind is Mixture:
        network.train()(images(16, 5, torch.float64))
    return network.eval()


@pytest.mark.parametrize(
    ("kind", "layers", "flat"),
    [
        (TokensFirst, None, False),
        (Borrower, None, False),
        (Mixture, None, True),
        (Mixture, ["second.0", "head", "third.1"], True),
        (TokensFirst, ["embed", "layer.linear1"], False),
    ],
)
def test_what_a_network_does_inside_is_found_out(kind: type[nn.Module], layers: list[str] | None, flat: bool) -> None:
    """One plain batch where that gives the right numbers, the whole network vmapped where it does not: equal either way."""
    network, float64 = other(kind), torch.float64
    for method in ("sar", "deyo"):
        options = {"lr": 0.05, "layers": layers, "frozen_top": False} | (
            {"margin": 1.0} if method == "sar" else {"plpd": -1.0, "threshold": 2.0}
        )
        fleet = wildtta.fleet(network, method, streams=["a", "b", "c"], **options)
        alone = Alone(lambda _, given=(method, options): wildtta.adapt(network, given[0], **given[1]), ["a", "b", "c"])
        alone.check(fleet, batches(dtype=float64), 1e-9)
        assert fleet.report("a").updates > 0
        assert set(fleet._cohorts[0]._together._flat.values()) == {flat}


class Normed(nn.Module):
    """One normalisation layer, over channels of pictures or over tokens."""

    def __init__(self, norm: nn.Module, tokens: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.head, self.tokens = nn.Conv2d(3, 8, 4, 4), norm, nn.Linear(8, CLASSES), tokens

    def forward(self, batch: Tensor) -> Tensor:
        values = self.embed(batch)
        if self.tokens:
            return self.head(self.norm(values.flatten(2).mT).tanh().mean(1))
        return self.head(self.norm(values).tanh().mean((2, 3)))


class Shifted(nn.GroupNorm):
    """Equal to its base class as long as a parameter of its own is zero, as it is at first."""

    def __init__(self) -> None:
        super().__init__(2, 8)
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + self.shift[:, None, None]


@pytest.mark.parametrize(
    ("make_norm", "tokens", "known"),
    [
        (lambda _: nn.GroupNorm(2, 8), False, True),
        (lambda layers: layers.GroupNorm(8, 2), False, True),
        (lambda layers: layers.GroupNorm1(8), False, True),
        (lambda layers: layers.GroupNormAct(8, 2), False, False),
        (lambda layers: layers.GroupNormAct(8, 2, apply_act=False), False, True),
        (lambda _: nn.LayerNorm(8), True, True),
        (lambda layers: layers.LayerNorm(8), True, True),
        (lambda layers: layers.LayerNorm2d(8), False, False),
        (lambda layers: layers.LayerNormAct(8), True, False),
        (lambda _: Shifted(), False, None),
    ],
)
def test_norms_of_other_libraries_are_known_by_what_they_compute(
    make_norm: Callable[[Any], nn.Module], tokens: bool, known: bool | None
) -> None:
    """timm's resnet50_gn and ViTs have norms that are torch's under another name; others of theirs are not."""
    torch.manual_seed(4)
    network = Normed(make_norm(pytest.importorskip("timm.layers")), tokens).double()
    for parameter in network.norm.parameters():
        if not isinstance(network.norm, Shifted):
            parameter.data += 0.3 * torch.randn_like(parameter)
    fleet = wildtta.fleet(network, "tent", streams=["a", "b", "c"], lr=0.05)
    alone = Alone(lambda _: wildtta.adapt(network, "tent", lr=0.05), ["a", "b", "c"])
    alone.check(fleet, batches(dtype=torch.float64), 1e-9)
    assert fleet.report("a").updates > 0
    found = _computes.get(fleet.network.module.norm, {})
    assert set(found.values()) == ({known} if known is not None else set())
    for changed, options in ((fleet.bfloat16(), {}), (fleet.float(), {"dtype": torch.bfloat16})):
        with torch.autocast("cpu", enabled=bool(options), **options):
            changed(images(3, 0, next(changed.network.parameters()).dtype), "abc")
    assert set(found.values()) == ({known} if known is not None else set()), "in other types and under autocast too"


@pytest.mark.parametrize("name", ["resnet50_gn", "vit_tiny_patch16_224"])
def test_a_network_of_timm(name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    sizes = {"img_size": 32} if name.startswith("vit") else {"layers": (1, 1, 1, 1)}
    network = timm.create_model(name, num_classes=CLASSES, **sizes).double().eval()
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    fleet = wildtta.fleet(network, "tent", streams=3, lr=0.01)
    alone = Alone(lambda _: wildtta.adapt(network, "tent", lr=0.01), [0, 1, 2])
    generator = torch.Generator().manual_seed(1)
    for count in (1, 1, 2):
        calls = {stream: torch.randn(count, 3, 32, 32, dtype=torch.float64, generator=generator) for stream in range(3)}
        alone.check(fleet, [calls], 1e-8)
    norms = [layer for layer in fleet.network.module.modules() if isinstance(layer, nn.GroupNorm | nn.LayerNorm)]
    assert len(norms) > 10
    assert all(all(_computes[layer].values()) for layer in norms), "each by the rule of torch's own"


def test_a_network_in_channels_last() -> None:
    network = make("gn").to(memory_format=torch.channels_last)
    fleet = wildtta.fleet(network, "tent", streams=2, lr=0.002)
    alone = Alone(lambda _: wildtta.adapt(make("gn"), "tent", lr=0.002), [0, 1])
    for call in batches([{0: 2, 1: 2}] * 3):
        found = fleet({name: batch.contiguous(memory_format=torch.channels_last) for name, batch in call.items()})
        for name, batch in call.items():
            close(found[name], alone.adapters[name](batch), 1e-4)


def test_methods_that_move_features() -> None:
    def aligned(view: wildtta.Network) -> Method:
        return Method(view.norms(), entropy(), sgd(0.01), alignment=recentre(torch.linspace(-1, 1, 16).double()))

    network = make("gn", torch.float64)
    fleet = wildtta.fleet(network, aligned, streams=["a", "b", "c"])
    alone = Alone(lambda _: wildtta.adapt(network, aligned), ["a", "b", "c"])
    alone.check(fleet, batches(dtype=torch.float64), 1e-9)
    with fleet.frozen():
        assert fleet({"a": images(2, 1, torch.float64), "b": images(2, 2, torch.float64)})["a"].shape == (2, CLASSES)
    with pytest.raises(ValueError, match=r"moves features before the head.*with fleet.frozen\(\)"):
        fleet.export("a")


# -- as a module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("method", "kind"), [("recap+sar", "gn"), ("deyo", "ln"), ("source", "gn")])
def test_it_works_without_gradients(method: str, kind: str, mode: type, tmp_path: Path) -> None:
    plain, _ = pair(method, kind, guard="collapse")
    expected = [plain(call) for call in batches()]
    assert not any(answer.requires_grad for call in expected for answer in call.values())
    with mode():
        fleet, _ = pair(method, kind, guard="collapse")
        for call, answers in zip(batches(), expected, strict=True):
            found = fleet(call)
            assert all(torch.equal(found[name], answers[name]) for name in call)
        fleet.save("a", tmp_path / "a")
        fleet.load("b", tmp_path / "a")
        fleet.join("d")
        fleet.reset("c")
        fleet.leave("a")
        fleet.export("b")
    assert not any(leaf.is_inference() for leaf in tree.flatten(fleet._cohorts[0].state).values())
    fleet({name: images(2) for name in fleet.streams})


@pytest.mark.parametrize(("method", "kind"), [("recap", "gn"), ("sar", "ln")])
def test_under_autocast_and_in_half_precision(method: str, kind: str) -> None:
    (plain, _), (fleet, alone), (half, _) = (pair(method, kind) for _ in range(3))
    half.bfloat16()
    for call in batches():
        expected = plain(call)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fleet(call)
            for name, adapter in alone.adapters.items():
                if name in call:
                    assert (found[name] - adapter(call[name])).abs().mean() < 0.1
        halved = half({name: batch.bfloat16() for name, batch in call.items()})
        for name in call:
            assert found[name].dtype == halved[name].dtype == torch.bfloat16
            assert (found[name] - expected[name]).abs().mean() < 0.2
    assert fleet._cohorts[0]._together._flat.popitem()[1]
    assert half._cohorts[0]._together._flat.popitem()[1]
    for each in (fleet, half):
        assert state_of(each, "a")["stream"]["theta"].dtype == torch.float32
        assert each.report("a").skipped == 0
        assert each.report("a").updates > 0


def test_it_moves_to_another_type_with_hyperparameters_of_each() -> None:
    options = {key: value for key, value in usual("recap", "gn").items() if key not in ("lr", "tau")}
    each = {"lr": [1e-3, 2e-3], "tau": [0.2, 0.4]}
    fleet = wildtta.fleet(make("gn"), "recap", streams=2, each=each, **options).double()
    adapters = [wildtta.adapt(make("gn"), "recap", lr=each["lr"][n], tau=each["tau"][n], **options) for n in (0, 1)]
    alone = Alone(lambda name: adapters[name].double(), [0, 1])
    alone.check(fleet, batches([{0: 2, 1: 2}, {1: 1}, {0: 3, 1: 3}], dtype=torch.float64), 1e-9)


def test_copies_pickles_and_state_dicts(tmp_path: Path) -> None:
    fleet, _ = pair("recap", "gn", guard="collapse")
    calls = batches()
    for call in calls[:3]:
        fleet(call)
    twin = copy.deepcopy(fleet)
    torch.save(fleet, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    torch.save(fleet.state_dict(), tmp_path / "dict.pt")
    again, _ = pair("recap", "gn", guard="collapse")
    again.load_state_dict(torch.load(tmp_path / "dict.pt", weights_only=True))
    for call in calls[3:]:
        expected = fleet(call)
        for one in (twin, whole, again):
            found = one(call)
            assert all(torch.equal(found[name], expected[name]) for name in call)
    less, _ = pair("recap", "gn", ["a", "b"], guard="collapse")
    with pytest.raises(ValueError, match=r"of the streams \['a', 'b', 'c'\], here they are \['a', 'b'\]"):
        less.load_state_dict(fleet.state_dict())
    wrong = fleet.state_dict()
    wrong["_extra_state"]["streams"][2]["state"]["stream/theta"] = torch.full((128,), torch.nan)
    before = snapshot(again)
    again({"a": images(1)})
    before["a"] = state_of(again, "a")
    with pytest.raises(ValueError, match="the state_dict of 'c': stream/theta is not finite"):
        again.load_state_dict(wrong)
    for name, state in before.items():
        same_state(state_of(again, name), state)
    assert repr(fleet).startswith("Fleet(\n  method='recap', streams=3")


def test_threads_wait_for_one_another() -> None:
    fleet, alone = pair("recap", "gn", list(range(4)))
    calls = {name: [images(2, 10 * name + step) for step in range(6)] for name in range(4)}
    answers: dict[int, list[Tensor]] = {name: [] for name in range(4)}

    def serve(name: int) -> None:
        for batch in calls[name]:
            answers[name].append(fleet({name: batch})[name])
            fleet.join(f"{name} too")
            fleet.leave(f"{name} too")

    threads = [threading.Thread(target=serve, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in range(4):
        for batch, answer in zip(calls[name], answers[name], strict=True):
            close(answer, alone.adapters[name](batch))
    alone.compare(fleet)


def test_the_callers_network_stays_as_it_is_and_keeps_no_hooks() -> None:
    network = made("gn")
    bits = copy.deepcopy(network.state_dict())
    fleet = wildtta.fleet(network, "tent", streams=3, lr=0.01)
    fleet(images(3), range(3))
    assert all(torch.equal(value, bits[name]) for name, value in network.state_dict().items())
    assert not any("forward" in vars(layer) for layer in [*network.modules(), *fleet.network.modules()])
    before = snapshot(fleet)
    fleet.network.module.stages.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet(images(3), range(3))
    assert not any("forward" in vars(layer) for layer in fleet.network.modules())
    for name, state in before.items():
        same_state(state_of(fleet, name), state)


def test_the_captured_runner_steps_eagerly_without_cuda() -> None:
    options = usual("recap", "gn")
    eager, captured = (
        wildtta.fleet(make("gn"), "recap", streams=["a", "b", "c"], runner=runner, **options)
        for runner in ("eager", "auto")
    )
    for call in batches():
        one, two = eager(call), captured(call)
        assert all(torch.equal(one[name], two[name]) for name in call)
    reasons = {runner.reason for runner in captured._cohorts[0]._runners.values()} - {None}
    assert all("need a CUDA device" in reason for reason in reasons)


class Reusing(Eager):
    """Keeps its state in the same tensors, as a captured step does."""

    kept: Any = None

    def step(self, state: Any, batch: Tensor) -> Any:
        following, outcome = super().step(state, batch)
        self.kept = tree.map(Tensor.clone, following if self.kept is None else self.kept)
        return tree.map(Tensor.copy_, self.kept, following), outcome


@pytest.mark.parametrize("chunk", [None, 2])
def test_states_outlast_a_runner_that_writes_them_anew(chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"captured": Reusing, "eager": Eager}
    monkeypatch.setattr("wildtta.runners.cohort.make_runner", lambda kind, *given: kinds[kind](*given))
    options, names = usual("recap", "gn") | {"chunk": chunk}, list(range(6))
    reusing, eager = (
        wildtta.fleet(make("gn"), "recap", streams=names, runner=runner, **options) for runner in ("captured", "eager")
    )
    for call in batches([dict.fromkeys(names, 2), dict.fromkeys([5, 0, 3, 1], 1), dict.fromkeys(names, 2)] * 2):
        found, expected = reusing(call), eager(call)
        assert all(torch.equal(found[name], expected[name]) for name in call)
    for name in names:
        same_state(state_of(reusing, name), state_of(eager, name))


def test_numbers_of_streams_do_not_drive_one_another_out() -> None:
    fleet = wildtta.fleet(make("gn"), "tent", streams=20, runner="captured")
    (cohort,) = fleet._cohorts
    first = {count: id(cohort._runner(cohort._together, count)) for count in range(2, 18)}
    assert first == {count: id(cohort._runner(cohort._together, count)) for count in range(2, 18)}
    cohort._runner(cohort._together, 20)
    assert [count for _, count in cohort._runners] == [*range(3, 18), 20], "the one not used for the longest goes"
    runners = [weakref.ref(runner) for runner in cohort._runners.values()]
    assert list(runners[0]().beside()) == list(cohort._runners.values())
    gc.disable()
    try:
        cohort.prepare()
        assert not any(runner() for runner in runners), "and nothing keeps what is not in use"
    finally:
        gc.enable()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", STREAMING)
def test_captured_equals_eager(method: str) -> None:
    eager, captured = (pair(method, "gn", runner=runner)[0].cuda() for runner in ("eager", "captured"))
    for call in batches() * 3:
        moved = {name: batch.cuda() for name, batch in call.items()}
        one, two = eager(moved), captured(moved)
        for name in call:
            close(one[name], two[name], 1e-4)


# -- what it costs -----------------------------------------------------------------------------------------------------


def kept(fleet: wildtta.Fleet) -> int:
    leaves = [leaf for cohort in fleet._cohorts for leaf in tree.flatten(cohort.state).values()]
    return sum(leaf.untyped_storage().nbytes() for leaf in leaves)


@pytest.mark.parametrize(("guard", "most"), [(None, 4.0), ("collapse", 7.0)])
@pytest.mark.parametrize("method", STREAMING)
def test_memory_of_a_stream(method: str, guard: str | None, most: float) -> None:
    """Room for streams to come included; the collapse guard keeps two older copies of the parameters more."""
    torch.manual_seed(0)
    wide = nn.Sequential(
        nn.Conv2d(3, 512, 3, 2), nn.GroupNorm(8, 512), nn.ReLU(),
        nn.Conv2d(512, 512, 1), nn.GroupNorm(8, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip
    options: dict[str, Any] = {"guard": guard, "layers": ["1", "4"]}
    if "recap" in method:
        options["region"] = wildtta.Region(torch.full((512,), 1e-3))
    if method == "eata":
        options["fisher"] = wildtta.Fisher({name: torch.ones_like(value) for name, value in wide.named_parameters()})
    fleet = wildtta.fleet(wide, method, streams=8, **options)
    own = 4 * fleet.method.layout.initial.numel()
    assert 2 * own <= kept(fleet) / 8 <= (2.2 if guard is None else 4.3) * own
    for name in range(8, 60):
        fleet.join(name)
        assert kept(fleet) <= most * own * len(fleet.streams)
    for name in range(50):
        fleet.leave(name)
        assert kept(fleet) <= most * own * len(fleet.streams)


def test_nothing_grows_with_the_steps() -> None:
    fleet, _ = pair("recap", "gn", list(range(6)), guard="collapse")
    sizes = []
    for turn in range(60):
        names = [name for name in range(6) if (turn + name) % 3]
        fleet(images(len(names), turn), names)
        held = {id(last): last for last in fleet._last.values()}.values()
        sizes.append((kept(fleet), sum(len(last.outcome.logits) for last in held)))
        if turn % 10 == 9:
            fleet.leave(turn % 6)
            fleet.join(turn % 6, lr=1e-3 * (1 + turn))
    assert len({size for size, _ in sizes}) == 1
    assert max(count for _, count in sizes) <= 4 * 6


def test_a_thousand_steps_leave_nothing_behind() -> None:
    """Streams come in ever other numbers and orders."""
    torch.manual_seed(0)
    small = nn.Sequential(
        nn.Conv2d(3, 4, 4, 4), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    fleet = wildtta.fleet(small, "tent", streams=5, each={"lr": ["x1", "x2", "x3", "x4", "x5"]})
    batch, generator = torch.randn(5, 3, 4, 4), torch.Generator().manual_seed(0)

    def walk(steps: int) -> int:
        for step in range(steps):
            names = torch.randperm(5, generator=generator).tolist()
            fleet(batch[: 1 + step % 5], names[: 1 + step % 5])
        fleet(batch, range(5))
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    before = walk(200)
    assert walk(1_000) - before < 10, (
        "a choice of streams that had not come before leaves a tensor of places, one in 32"
    )
    assert sum(fleet.report(name).seen for name in range(5)) > 3_000


def test_a_method_that_forgets_needs_no_fleet():
    with pytest.raises(ValueError, match=r"make one adapter with wildtta\.adapt"):
        wildtta.fleet(made("gn"), "memo", streams=2)
