"""The captured runner against the eager one. What needs a CUDA device is skipped elsewhere."""

import copy
from types import SimpleNamespace

import pytest
import torch
from cases import METHODS, settings
from networks import CLASSES, images, make

import wildtta
from wildtta.runners import Captured

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
