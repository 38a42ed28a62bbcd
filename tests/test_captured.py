"""The captured runner against the eager one. What needs a CUDA device is skipped elsewhere."""

import copy
from types import SimpleNamespace

import pytest
import torch
from cases import METHODS, settings
from networks import CLASSES, images, make

import wildtta
from wildtta.runners import Captured
from wildtta.runners.eager import kind_of

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def pair(method, kind, **others):
    network = make(kind)
    options = settings(method, network, **others)
    return [wildtta.adapt(network, method, runner=runner, **options) for runner in ("eager", "captured")]


def test_without_cuda_steps_run_eagerly_and_say_why():
    eager, captured = pair("recap", "gn")
    for seed in range(3):
        batch = images(8, seed)
        assert torch.equal(eager(batch), captured(batch))
    assert "need a CUDA device" in captured.runner.reason
    again = copy.deepcopy(captured)
    assert torch.equal(again(batch), captured(batch))
    assert again.runner.network is again.network


def test_shapes_met_first_stay_captured_when_there_are_too_many():
    runner = Captured(*(getattr(pair("tent", "gn")[0], name) for name in ("method", "network")))
    batch = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    for kind in range(8):
        assert runner._possible(kind, batch)
        runner._graphs[kind] = None
    assert not runner._possible(8, batch)
    assert "more than 8 shapes" in runner.reason
    assert all(runner._possible(kind, batch) for kind in range(8))
    runner.forget()
    assert runner._possible(8, batch)


class AsOnCuda(Captured):
    """Comes as far as capturing without a CUDA device, and there runs out of memory, or whatever `problem` says."""

    problem: Exception = torch.OutOfMemoryError("tried to allocate 2 GiB")

    def _possible(self, kind, images):
        return self.reason is None

    def _capture(self, state, images):
        self._graphs["of another shape"] = None
        raise self.problem


def ended(problem):
    """The error of ending a capture in which another one came up."""
    try:
        try:
            raise problem
        finally:
            raise RuntimeError("the capture was invalidated")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("problem", "message", "kept"),
    [
        (torch.OutOfMemoryError("tried to allocate 2 GiB"), "too little memory: tried to allocate", False),
        (ended(torch.OutOfMemoryError("2 GiB")), "too little memory: the capture was invalidated", False),
        (RuntimeError("not permitted"), "cannot be captured: not permitted", True),
    ],
)
def test_what_cannot_be_captured_runs_eagerly_and_says_why(problem, message, kept):
    eager, captured = pair("recap", "gn", guard="collapse")
    captured.runner = AsOnCuda(captured.method, captured.network)
    captured.runner.problem = problem
    for seed in range(4):
        batch = images(8, seed)
        if seed == 1:
            with pytest.warns(UserWarning, match=f"{message}.*; steps run eagerly"):
                assert torch.equal(eager(batch), captured(batch))
        else:
            assert torch.equal(eager(batch), captured(batch))
    assert message in captured.runner.reason
    assert bool(captured.runner._graphs) == kept, "graphs of other shapes stay, unless their memory is needed"
    assert (captured.runner._state is None) == (not kept)
    assert captured.report == eager.report


def test_only_so_many_kinds_of_batches_are_remembered():
    _, captured = pair("tent", "gn")
    runner = captured.runner
    for size in range(1, 101):
        runner._met.of(size, bool)
    captured(images(8))
    assert len(runner._met) == 64
    assert {*range(38, 101)} < set(runner._met)


def test_graphs_of_runners_that_never_run_at_the_same_time_share_their_memory():
    method, network = (getattr(pair("tent", "gn")[0], name) for name in ("method", "network"))
    runners = {}
    for name in "abc":
        runners[name] = Captured(method, network)
        runners[name].beside = runners.values
    assert runners["a"]._live_pool() is None
    runners["a"]._graphs[0], runners["a"]._pool = None, "pool"
    assert [runner._live_pool() for runner in runners.values()] == ["pool"] * 3
    runners["b"]._pool = "pool"
    del runners["a"]
    assert runners["b"]._live_pool() is None, "a pool goes with its last graph"
    assert copy.deepcopy(runners["b"]).beside() == ()


@pytest.mark.parametrize("way", ["before torch 2.9", "since"])
def test_rounding_is_a_part_of_the_kind_of_a_batch(way):
    backends = torch.backends
    if way == "since" and not hasattr(backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch is older")
    batch, before = images(2), (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)
    kinds = set()
    try:
        for matmul in (False, True):
            for convolution in (False, True):
                if way == "since":
                    backends.cuda.matmul.fp32_precision = "tf32" if matmul else "ieee"
                    backends.cudnn.conv.fp32_precision = "tf32" if convolution else "ieee"
                else:
                    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = matmul, convolution
                kinds.add(kind_of(batch))
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before
    assert len(kinds) == 4


def test_an_unknown_runner_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown runner 'graph'; the runners are eager, sparing, .*captured"):
        wildtta.adapt(make("gn"), "tent", runner="graph")


@cuda
@pytest.mark.parametrize("guard", [None, "collapse"])
@pytest.mark.parametrize("kind", ["gn", "ln", "bn"])
@pytest.mark.parametrize("method", METHODS)
def test_captured_equals_eager(method, kind, guard):
    eager, captured = (adapter.cuda() for adapter in pair(method, kind, guard=guard))
    for seed in range(20):
        batch = images(5 if seed % 7 == 6 else 16, seed).cuda()
        torch.testing.assert_close(eager(batch), captured(batch), rtol=0, atol=1e-4)
        assert torch.equal(eager.outcome.mask, captured.outcome.mask)
    assert captured.runner.reason is None
    assert len(captured.runner._graphs) == 2
    ours, theirs = captured.report, eager.report
    assert (ours.seen, ours.selected, ours.updates, ours.resets) == (
        theirs.seen,
        theirs.selected,
        theirs.updates,
        theirs.resets,
    )


@cuda
def test_reset_load_and_other_precision_go_on_captured(tmp_path):
    _, adapter = (adapter.cuda() for adapter in pair("recap+sar", "gn"))
    batches = [images(16, seed).cuda() for seed in range(6)]
    first = [adapter(batch).clone() for batch in batches]
    adapter.save(tmp_path / "state.safetensors")
    after = adapter(batches[0])
    adapter.reset()
    assert adapter.report.seen == 0
    torch.testing.assert_close([adapter(batch) for batch in batches], first, rtol=0, atol=1e-5)
    adapter.reset()
    adapter.load(tmp_path / "state.safetensors")
    torch.testing.assert_close(adapter(batches[0]), after, rtol=0, atol=1e-5)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for batch in batches:
            logits = adapter(batch)
    assert logits.shape == (16, CLASSES)
    assert logits.dtype == torch.bfloat16
    assert adapter.runner.reason is None


@cuda
def test_a_batch_that_is_not_finite_changes_nothing():
    _, adapter = (adapter.cuda() for adapter in pair("recap", "gn"))
    for seed in range(4):
        adapter(images(16, seed).cuda())
    before = adapter.state["stream"]["theta"].clone()
    adapter(torch.full_like(images(16, 0), torch.nan).cuda())
    assert torch.equal(adapter.state["stream"]["theta"], before)
    assert adapter.report.skipped == 1
