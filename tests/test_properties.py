"""Properties that every method must have on every kind of network."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import EVERY, IMPOSSIBLE, KINDS, LEARNING, METHODS, STREAMING, adapter, settings
from networks import images, make
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import wildtta
from wildtta.core import go_back_on_collapse, tree
from wildtta.runners.eager import differentiate

every = pytest.mark.parametrize(("method", "kind"), EVERY)
streaming = pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for method in ("source", *STREAMING) for kind in KINDS]
)
learning = pytest.mark.parametrize(("method", "kind"), [(method, kind) for method in LEARNING for kind in KINDS])
selective = pytest.mark.parametrize(("method", "kind"), [(method, kind) for method in IMPOSSIBLE for kind in KINDS])


def same(first: dict[str, Tensor], second: dict[str, Tensor], *, but: tuple[str, ...] = ()) -> bool:
    """Equality to the bit (a NaN equals itself), leaving out some leaves."""
    one, two = tree.flatten(first), tree.flatten(second)
    return one.keys() == two.keys() and all(
        torch.equal(one[name].nan_to_num(-7.0), two[name].nan_to_num(-7.0)) for name in one if name not in but
    )


def feed(model: wildtta.Adapter, start: int, stop: int) -> list[Tensor]:
    return [model(images(8, step)) for step in range(start, stop)]


@learning
def test_it_learns_and_only_the_chosen_parameters_move(method: str, kind: str) -> None:
    model = adapter(method, kind)
    feed(model, 0, 4)
    assert model.report.updates >= 3
    assert 0 < model.report.selected <= model.report.seen == 32
    assert model.report.loss == model.report.loss  # not NaN
    before, after = dict(make(kind).named_parameters()), dict(model.export().named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert moved <= set(model.method.layout.names)


@every
def test_reset_restores_the_bits(method: str, kind: str) -> None:
    model = adapter(method, kind)
    first = tree.map(Tensor.clone, model.state)
    answers = feed(model, 0, 3)
    model.reset()
    assert same(model.state, first)
    assert all(torch.equal(again, answer) for again, answer in zip(feed(model, 0, 3), answers, strict=True))


@every
def test_save_load_continue_is_the_uninterrupted_run(method: str, kind: str, tmp_path: Path) -> None:
    model = adapter(method, kind)
    feed(model, 0, 3)
    model.save(tmp_path / "state.safetensors")
    expected = feed(model, 3, 6)
    other = adapter(method, kind)
    other.load(tmp_path / "state.safetensors")
    assert all(torch.equal(found, answer) for found, answer in zip(feed(other, 3, 6), expected, strict=True))
    assert same(other.state, model.state)
    assert str(other.report) == str(model.report)


@every
def test_the_state_dict_carries_what_was_learnt(method: str, kind: str) -> None:
    model, other = adapter(method, kind), adapter(method, kind)
    feed(model, 0, 3)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert same(other.state, model.state)
    assert torch.equal(other(images(8, 9)), model(images(8, 9)))


@selective
def test_an_empty_selection_changes_nothing(method: str, kind: str) -> None:
    model = adapter(method, kind)
    feed(model, 0, 2)  # so that momentum and moving averages are not zero
    network = make(kind)
    none = wildtta.adapt(network, method, **settings(method, network, **IMPOSSIBLE[method]))
    none.state = model.state
    before = model.state
    for step in (5, 6):
        assert none(images(8, step)).shape == (8, 10)
    assert same(none.state, before, but=("counters/seen",))
    assert none.report.seen == 32


@streaming
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_changes_nothing_and_is_counted(method: str, kind: str, poison: float) -> None:
    model = adapter(method, kind)
    feed(model, 0, 2)
    before = model.state
    batch = images(8, 5)
    clean = model.method.predict(model.network, before, batch)
    batch[3, 1, 4, 4] = poison
    answer = model(batch)
    assert answer.shape == (8, 10)
    if kind != "bn":  # the others' predictions are as without it
        others = [0, 1, 2, 4, 5, 6, 7]
        torch.testing.assert_close(answer[others], clean[others])
    assert same(model.state, before, but=("counters/seen", "counters/skipped"))
    assert model.report.skipped == 1
    assert not model.outcome.mask.any()
    feed(model, 5, 7)
    assert torch.isfinite(model.state["stream"]["theta"]).all()


@every
def test_the_callers_network_is_never_changed(method: str, kind: str) -> None:
    network = make(kind).train()
    network.stray = nn.Dropout(0.5)
    bits = copy.deepcopy(network.state_dict())
    flags = [(p.requires_grad, p.grad) for p in network.parameters()]
    hooks = [dict(layer._forward_pre_hooks) for layer in network.modules()]
    model = wildtta.adapt(network, method, **settings(method, network))
    feed(model, 0, 2)
    assert network.training
    assert all(torch.equal(value, bits[name]) for name, value in network.state_dict().items())
    assert flags == [(p.requires_grad, p.grad) for p in network.parameters()]
    assert hooks == [dict(layer._forward_pre_hooks) for layer in network.modules()]
    kept = model.state
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert model(images(8, 3)).abs().max() > 0, "the adapter does not share the caller's memory"
    assert model.state is not kept


@every
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_without_gradients(method: str, kind: str, mode: type) -> None:
    plain, model = adapter(method, kind), adapter(method, kind)
    expected = feed(plain, 0, 3)
    with mode():
        found = feed(model, 0, 3)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    assert not any(answer.requires_grad for answer in expected)
    with mode():  # made inside, used outside
        model = adapter(method, kind)
    assert all(torch.equal(one, two) for one, two in zip(feed(model, 0, 3), expected, strict=True))


@every
def test_dropout_stays_off(method: str, kind: str) -> None:
    network = make(kind)
    one = wildtta.adapt(network.train(), method, **settings(method, network))
    one.train()
    two = adapter(method, kind)
    assert not any(layer.training for layer in one.modules())
    assert all(torch.equal(a, b) for a, b in zip(feed(one, 0, 2), feed(two, 0, 2), strict=True))


@streaming
def test_frozen_predicts_only_and_export_predicts_the_same(method: str, kind: str) -> None:
    model = adapter(method, kind)
    feed(model, 0, 3)
    before = model.state
    with model.frozen() as still:
        answer = still(images(8, 7))
    assert model.state is before
    plain = model.export()
    with torch.no_grad():
        assert torch.equal(plain(images(8, 7)), answer)
    assert not any(layer._forward_pre_hooks for layer in plain.modules())
    # with gradients, attention takes another path through torch: equal but for rounding
    torch.testing.assert_close(model(images(8, 7)), answer, rtol=1e-5, atol=1e-5)
    assert model.state is not before


def test_an_export_can_be_trained_where_the_network_could() -> None:
    network = make("gn")
    network.stem.requires_grad_(False)
    model = wildtta.adapt(network, "tent")
    feed(model, 0, 1)
    flags = {name: parameter.requires_grad for name, parameter in network.named_parameters()}
    assert len(set(flags.values())) == 2
    assert {name: parameter.requires_grad for name, parameter in model.export().named_parameters()} == flags
    assert not any(parameter.requires_grad for parameter in model.network.parameters())


@every
def test_under_autocast(method: str, kind: str) -> None:
    """The network runs in bfloat16, the state stays in float32 and follows the float32 run."""
    plain, model = adapter(method, kind), adapter(method, kind)
    expected = feed(plain, 0, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = feed(model, 0, 3)
    assert {leaf.dtype for leaf in tree.flatten(model.state).values()} <= {torch.float32, torch.int64, torch.bool}
    assert found[0].dtype == torch.bfloat16
    assert model.outcome.loss.dtype == torch.float32
    assert (found[-1] - expected[-1]).abs().mean() < 0.15
    assert model.report.skipped == 0


@every
def test_in_half_precision(method: str, kind: str) -> None:
    """A network converted to bfloat16 learns in float32."""
    model = adapter(method, kind).bfloat16()
    for step in range(2):
        answer = model(images(8, step).bfloat16())
    assert answer.dtype == torch.bfloat16
    assert model.state["stream"]["theta"].dtype == model.method.layout.initial.dtype == torch.float32
    assert model.report.skipped == 0
    if method != "source":
        assert model.report.updates == (16 if method == "memo" else 2)
        assert torch.equal(model.state["stream"]["theta"], model.method.layout.initial) == (method == "memo")


@every
def test_channels_last_and_ragged_batches(method: str, kind: str) -> None:
    plain = adapter(method, kind)
    model = adapter(method, kind).to(memory_format=torch.channels_last)
    for step, size in enumerate((8, 8, 3, 1)):
        batch = images(size, step)
        expected = plain(batch)
        found = model(batch.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert model.report.seen == 20


@every
def test_a_copy_goes_its_own_way(method: str, kind: str) -> None:
    model = adapter(method, kind)
    feed(model, 0, 2)
    twin = copy.deepcopy(model)
    expected = twin(images(8, 2))
    assert torch.equal(model(images(8, 2)), expected)
    assert same(model.state, twin.state)


def functional(loss_of, theta):  # type: ignore[no-untyped-def]
    """`differentiate` by `torch.func`."""
    gradient, (_, rest) = torch.func.grad_and_value(loss_of, has_aux=True)(theta)
    return gradient, rest


@every
def test_a_step_never_looks_at_the_data(method: str, kind: str) -> None:
    """No value is read back from a tensor: on a GPU the host would have to wait for it."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            assert "_local_scalar_dense" not in str(function), "a tensor was read"
            assert "nonzero" not in str(function), "a shape depends on the data"
            return function(*arguments, **(keywords or {}))

    model = adapter(method, kind, guard="collapse")
    batch = images(8)
    with Watch():
        model.method.step(model.network, model.state, batch, differentiate)


@pytest.mark.parametrize("method", [*METHODS[:-1], pytest.param("memo", marks=pytest.mark.slow)])
def test_a_step_is_one_graph_to_the_compiler(method: str) -> None:
    torch.compiler.reset()
    model = adapter(method, "gn", guard="collapse")
    model(images(8, 0))
    step, network = model.method.step, model.network
    compiled = torch.compile(
        lambda state, batch: step(network, state, batch, functional), fullgraph=True, backend="eager"
    )
    with torch.no_grad():
        state, outcome = compiled(model.state, images(8, 1))
    torch.testing.assert_close(outcome.logits, model(images(8, 1)))
    torch.testing.assert_close(state["stream"]["theta"], model.state["stream"]["theta"])


@every
def test_functional_transforms_give_the_same(method: str, kind: str) -> None:
    """The pure step runs under `torch.func`, and, where images do not mix, vmapped over streams."""
    streams = [adapter(method, kind, torch.float64, seed=seed) for seed in (0, 1, 2)]
    for offset, model in enumerate(streams):
        for place in (offset, offset + 1):
            model(images(8, place, torch.float64))
    states = [model.state for model in streams]
    batches = [images(8, 10 + offset, torch.float64) for offset in range(3)]
    expected = [model(batch) for model, batch in zip(streams, batches, strict=True)]
    step, network = streams[0].method.step, streams[0].network

    alone, outcome = step(network, states[0], batches[0], functional)
    torch.testing.assert_close(outcome.logits, expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(alone["stream"]["theta"], streams[0].state["stream"]["theta"], rtol=1e-9, atol=1e-9)
    if kind == "bn":
        return
    stacked = tree.map(lambda *leaves: torch.stack(leaves), *states)
    together, outcomes = torch.func.vmap(lambda state, batch: step(network, state, batch, functional))(
        stacked, torch.stack(batches)
    )
    for place, model in enumerate(streams):
        torch.testing.assert_close(outcomes.logits[place], expected[place], rtol=1e-9, atol=1e-9)
        for name, leaf in tree.flatten(model.state).items():
            torch.testing.assert_close(
                tree.flatten(together)[name][place], leaf, rtol=1e-9, atol=1e-9, equal_nan=True, msg=name
            )


def test_a_guarded_adapter_can_be_saved_before_it_has_seen_anything(tmp_path: Path) -> None:
    model = adapter("recap+sar", "gn", guard="collapse", seed=5)
    model.save(tmp_path / "fresh")
    other = adapter("recap+sar", "gn", guard=go_back_on_collapse(), seed=1)
    other.load(tmp_path / "fresh")
    assert same(other.state, model.state)
    other.reset()
    assert same(other.state, model.state), "the seed comes with the state"
    assert (tmp_path / "fresh").stat().st_mode & 0o077 == 0o666 & ~_mask() & 0o077


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_states_of_other_settings_are_refused() -> None:
    model = adapter("sar", "gn")
    feed(model, 0, 2)

    def composed(rate: float) -> wildtta.Adapter:
        return wildtta.adapt(make("gn"), lambda view: wildtta.methods()["tent"].compose(view, lr=rate))

    pairs = [
        (adapter("sar", "gn", lr=9.0), model, "lr is 0.002, here it is 9.0"),
        (wildtta.adapt(make("gn", seed=3), "sar", **settings("sar", make("gn"))), model, "its network is"),
        (composed(5.0), composed(0.1), "its composition is"),
        (wildtta.adapt(make("gn"), "tent", kind="vit"), wildtta.adapt(make("gn"), "tent"), "its composition is"),
    ]
    for mine, other, message in pairs:
        before, weights = mine.state, copy.deepcopy(dict(mine.network.named_parameters()))
        with pytest.raises(ValueError, match=message):
            mine.load_state_dict(other.state_dict())
        assert mine.state is before
        assert all(torch.equal(value, weights[name]) for name, value in mine.network.named_parameters())
    again = composed(0.1)
    again.load_state_dict(composed(0.1).state_dict())


def test_pickles_and_state_dicts_travel(tmp_path: Path) -> None:
    model = adapter("recap", "gn", guard="collapse")
    feed(model, 0, 2)
    torch.save(model, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    torch.save(model.state_dict(), tmp_path / "dict.pt")
    other = adapter("recap", "gn", guard="collapse")
    other.load_state_dict(torch.load(tmp_path / "dict.pt", weights_only=True))
    expected = model(images(8, 5))
    assert torch.equal(whole(images(8, 5)), expected)
    assert torch.equal(other(images(8, 5)), expected)


def test_everything_can_be_done_inside_inference_mode(tmp_path: Path) -> None:
    model = adapter("recap", "gn", guard="collapse")
    feed(model, 0, 2)
    with torch.inference_mode():
        model.save(tmp_path / "state")
        model.load(tmp_path / "state")
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        model.double()
        plain = model.export()
        model.float()
        inside = adapter("recap", "gn", guard="collapse")
    wildtta.adapt(plain, "tent")(images(8, 4).double())
    feed(model, 2, 4)
    feed(inside, 0, 2)
    assert model.report.updates == 4


def test_double_precision_states_can_be_saved(tmp_path: Path) -> None:
    model = adapter("eta", "gn").double()
    model(images(8, 0, torch.float64))
    model.save(tmp_path / "state")
    expected = model(images(8, 1, torch.float64))
    model.reset()
    model.load(tmp_path / "state")
    assert torch.equal(model(images(8, 1, torch.float64)), expected)


def test_threads_do_not_disturb_each_other() -> None:
    model = adapter("tent", "gn")
    with torch.no_grad():
        expected = [make("gn")(images(4, seed)) for seed in range(4)]
    wrong: list[int] = []

    def ask(seed: int) -> None:
        for _ in range(50):
            if not torch.allclose(model(images(4, seed)), expected[seed], atol=1e-5):
                wrong.append(seed)

    with model.frozen():
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


class Held:
    """A runner whose first step stops half way, until it is let go."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.begun, self.go = inner, threading.Event(), threading.Event()

    def step(self, state: dict[str, Any], batch: Tensor) -> Any:
        found = self.inner.step(state, batch)
        self.begun.set()
        assert self.go.wait(20)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def in_the_middle_of_a_step(model: wildtta.Adapter, action: Callable[[], object]) -> None:
    """Have a thread act while another one's step is under way, and wait for both."""
    model.runner = held = Held(model.runner)
    step = threading.Thread(target=model, args=(images(8),))
    step.start()
    assert held.begun.wait(20)
    acting = threading.Thread(target=action)
    acting.start()
    acting.join(0.2)  # it has time to do what it must not do now
    held.go.set()
    step.join()
    acting.join()


def test_a_reset_during_a_step_is_not_lost() -> None:
    model = adapter("tent", "gn")
    fresh = tree.map(Tensor.clone, model.state)
    in_the_middle_of_a_step(model, model.reset)
    assert same(model.state, fresh)
    assert model.outcome is None


def test_what_is_loaded_during_a_step_stays(tmp_path: Path) -> None:
    other = adapter("tent", "gn")
    feed(other, 3, 5)
    other.save(tmp_path / "state")
    extra = other.get_extra_state()
    for action in ("load", "set_extra_state"):
        model = adapter("tent", "gn")
        given = tmp_path / "state" if action == "load" else extra
        in_the_middle_of_a_step(model, functools.partial(getattr(model, action), given))
        assert same(model.state, other.state), action


def test_a_step_is_whole_before_it_is_saved_or_exported(tmp_path: Path) -> None:
    after = adapter("tent", "gn")
    after(images(8))
    model = adapter("tent", "gn")
    in_the_middle_of_a_step(model, lambda: model.save(tmp_path / "state"))
    saved = adapter("tent", "gn")
    saved.load(tmp_path / "state")
    assert same(saved.state, after.state)
    model = adapter("tent", "gn")
    made: list[nn.Module] = []
    in_the_middle_of_a_step(model, lambda: made.append(model.export()))
    assert torch.equal(made[0].stem[1].weight, after.export().stem[1].weight)


def test_the_disk_does_not_hold_up_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapter("tent", "gn")
    before, answered = tree.map(Tensor.clone, model.state), threading.Event()
    write = wildtta.files.write

    def slow(*arguments: Any) -> None:
        threading.Thread(target=lambda: (model(images(8)), answered.set())).start()
        assert answered.wait(20), "a step waits for the disk"
        write(*arguments)

    monkeypatch.setattr("wildtta.files.write", slow)
    model.save(tmp_path / "state")
    assert model.report.seen == 8
    other = adapter("tent", "gn")
    other.load(tmp_path / "state")
    assert same(other.state, before), "what is written is of the moment of the call"


def test_freezing_from_several_threads() -> None:
    """One that leaves does not let the others' adapter learn, nor does the last leave it frozen."""
    model = adapter("tent", "gn")
    first, second = model.frozen(), model.frozen()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    model(images(8))
    assert model.report.seen == 0
    second.__exit__(None, None, None)
    model(images(8))
    assert model.report.seen == 8
