"""The guards by themselves, and around a method that does collapse."""

from __future__ import annotations

import pytest
import torch
from cases import KINDS, LEARNING, adapter, settings
from networks import images, make
from torch import Tensor

import wildtta
from wildtta.core import Outcome, go_back_on_collapse, recover_on_collapse, tree

CLASSES = 10


def outcome(probabilities: Tensor, objective: float = 1.0, learned: bool = True, finite: bool = True) -> Outcome:
    value = torch.tensor(objective)
    mask = torch.full((len(probabilities),), learned)
    return Outcome(probabilities.log(), mask, value, value, probabilities, torch.tensor(learned), torch.tensor(finite))


def stream(value: float) -> dict:
    return {
        "theta": torch.full((5,), value),
        "update": {"velocity": torch.full((5,), value)},
        "selection": {},
        "alignment": {},
    }


def spread(count: int = 32, seed: int = 0) -> Tensor:
    """Predictions over all classes."""
    return (3 * torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def one_class(count: int = 32) -> Tensor:
    return torch.nn.functional.one_hot(torch.zeros(count, dtype=torch.long), CLASSES) * 0.9 + 0.01


class Watched:
    """A guard over a stream whose θ counts the steps."""

    def __init__(self, guard: object) -> None:
        self.guard, self.fresh = guard, stream(0.0)
        self.memory, self.now, self.resets = guard.init(self.fresh, CLASSES), self.fresh, 0

    def step(self, probabilities: Tensor, size: float = 1.0, **what: object) -> float:
        before = self.now
        after = stream(before["theta"][0].item() + size)
        self.memory, self.now, reset = self.guard(
            self.memory, before, after, self.fresh, outcome(probabilities, **what)
        )
        self.resets += int(reset)
        return self.now["theta"][0].item()


def test_collapse_goes_back_to_parameters_from_before() -> None:
    watched = Watched(go_back_on_collapse(window=64, share=0.8))
    for step in range(20):
        reached = watched.step(spread(seed=step))
    assert watched.resets == 0
    assert reached == 20.0
    collapsing = 0
    while watched.resets == 0:
        reached = watched.step(one_class())
        collapsing += 1
        assert collapsing < 6, "a collapse is noticed within a few windows"
    assert 10 <= reached <= 18, "a copy at least a window old, from before the collapse"
    assert watched.now["update"]["velocity"].abs().max() == 0
    assert watched.memory["pace"] == 0.25
    assert watched.step(spread()) == reached + 0.25, "smaller steps from then on"


def test_a_second_collapse_without_a_good_copy_starts_afresh() -> None:
    watched = Watched(go_back_on_collapse(window=64, share=0.8))
    for _ in range(2):
        for step in range(4):  # warm, but no copy has aged
            watched.step(spread(seed=step))
        while watched.step(one_class()) != 0.0:
            assert watched.resets < 3
    assert watched.resets == 2
    assert watched.memory["pace"] == 0.0625


def test_a_jump_is_taken_back() -> None:
    watched = Watched(go_back_on_collapse(window=64, spike=10))
    for step in range(20):
        watched.step(spread(seed=step))
    assert watched.step(spread(), size=1000.0) < 20
    assert watched.resets == 1


def test_classes_that_change_slowly_are_no_collapse() -> None:
    """A stream ordered by class: every window has a few classes, but not the same ones."""
    watched = Watched(go_back_on_collapse())
    for step in range(200):
        base = torch.zeros(32, CLASSES)
        base[:, (step // 4) % CLASSES] = 1.5  # 128 images of a class, answered right in part
        watched.step((base + 1.5 * torch.randn(32, CLASSES, generator=torch.Generator().manual_seed(step))).softmax(-1))
    assert watched.resets == 0


def test_nothing_that_is_not_finite_enters_a_guards_memory() -> None:
    for guard in (go_back_on_collapse(), recover_on_collapse()):
        watched = Watched(guard)
        for step in range(10):
            watched.step(spread(seed=step))
        before = watched.memory
        watched.step(spread() * torch.nan, size=0.0, objective=float("nan"), learned=False, finite=False)
        after = tree.flatten(watched.memory)
        assert all(torch.equal(after[name], leaf) for name, leaf in tree.flatten(before).items())


def test_recovery_starts_everything_afresh() -> None:
    watched = Watched(recover_on_collapse(0.2))
    for level, expected in ((1.0, 1.0), (0.5, 2.0), (0.0, 3.0)):
        assert watched.step(spread(), objective=level) == expected
    torch.testing.assert_close(watched.memory["average"], torch.tensor(0.9 * (0.9 + 0.05)))
    assert watched.step(spread(), objective=0.0, learned=False) == 4.0
    torch.testing.assert_close(watched.memory["average"], torch.tensor(0.9 * (0.9 + 0.05)))
    while watched.step(spread(), objective=0.0) != 0.0:
        assert watched.memory["average"] >= 0.2
    assert watched.now["update"]["velocity"].abs().max() == 0
    assert not watched.memory["started"]
    watched.step(spread(), objective=1.0)
    assert watched.memory["average"] == 1.0, "the average starts anew"


@pytest.mark.parametrize("method", ["sar", "recap+sar"])
def test_the_guards_do_not_undo_each_other(method: str) -> None:
    """SAR's recovery is no jump to the collapse guard, which starts to watch anew."""
    model = adapter(method, "gn", guard="collapse", lr=1e-5)
    for step in range(40):
        model(images(16, step))
    assert model.report.resets == 0
    model.method.guards[0].threshold = 100.0
    model(images(16, 50))
    model.method.guards[0].threshold = 0.0
    assert model.report.resets == 1
    assert torch.equal(model.state["stream"]["theta"], model.method.layout.initial)
    assert model.state["guards"]["1"]["filled"] == 0
    assert model.state["guards"]["1"]["pace"] == 1
    for step in range(40):
        model(images(16, step))
    model.method.guards[1].share = 100.0
    model(images(16, 50))
    assert model.report.resets == 2
    assert not model.state["guards"]["0"]["started"], (
        "and the recovery's average begins anew when the collapse guard acts"
    )


@pytest.mark.parametrize("size", [1, 8, 64])
def test_learning_that_begins_late_is_no_jump(size: int) -> None:
    """A long time with nothing selected, then steps; and single images, then a batch of 64."""
    watched = Watched(go_back_on_collapse())
    for step in range(640 // size):
        watched.step(spread(size, step), size=0.0, learned=False)
    for step in range(640 // size):
        watched.step(spread(size, step), size=0.001)
    assert watched.resets == 0
    watched.step(spread(64), size=0.001 * 5 * 64 / size)
    assert watched.resets == 0


def test_nothing_is_guarded_where_nothing_is_learnt() -> None:
    model = adapter("source", "gn", guard="collapse")
    for step in range(30):
        model(images(32, step))
    for _ in range(10):
        model(images(1, 0).expand(32, -1, -1, -1))
    assert model.report.resets == 0


@pytest.mark.parametrize(("method", "kind"), [(method, kind) for method in LEARNING for kind in KINDS])
def test_a_guard_that_never_acts_changes_no_bit(method: str, kind: str) -> None:
    plain, guarded = adapter(method, kind), adapter(method, kind, guard="collapse")
    for step in range(4):
        assert torch.equal(plain(images(8, step)), guarded(images(8, step)))
    assert guarded.report.resets == 0
    for name, leaf in tree.flatten(plain.state["stream"]).items():
        assert torch.equal(leaf, tree.flatten(guarded.state["stream"])[name])


@pytest.mark.parametrize("method", ["tent", "recap"])
def test_it_saves_a_stream_that_collapses(method: str) -> None:
    """With a learning rate far too large the network ends in one class; with the guard it does not."""
    network = make("gn")
    options = settings(method, network, lr=0.5)
    plain = wildtta.adapt(network, method, **options)
    guarded = wildtta.adapt(network, method, guard="collapse", **options)
    answers: dict[str, list[Tensor]] = {"plain": [], "guarded": []}
    for step in range(60):
        batch = images(32, step)
        answers["plain"].append(plain(batch).argmax(-1))
        answers["guarded"].append(guarded(batch).argmax(-1))
    classes = {name: torch.cat(found[-10:]).unique().numel() for name, found in answers.items()}
    assert classes["plain"] <= 3
    assert classes["guarded"] >= 6
    assert guarded.report.resets >= 1


def test_a_guard_of_ones_own() -> None:
    model = adapter("tent", "gn", guard=go_back_on_collapse(window=32, share=0.5))
    model(images(8, 0))
    assert "window=32" in repr(model)
    with pytest.raises(ValueError, match="unknown guard 'colapse'; the guards are collapse, recover"):
        adapter("tent", "gn", guard="colapse")
