"""The compiled runner against the eager one. Compiling takes long: a few small cases by default, all of them as slow tests."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from cases import METHODS, adapter, settings
from networks import CLASSES, images, make
from torch import Tensor, nn

import wildtta
from wildtta.runners import Compiled

STEPS = 20
compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


class Small(nn.Module):
    """The least that a method needs, with one normalisation layer of a kind."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Conv2d(3, 8, 4, 4), norm, nn.Linear(8, CLASSES)

    def forward(self, batch: Tensor) -> Tensor:
        tokens = self.embed(batch)
        if isinstance(self.norm, nn.LayerNorm):
            return self.head(4 * self.norm(tokens.flatten(2).mT).tanh().mean(1))
        return self.head(4 * self.norm(tokens).tanh().mean((2, 3)))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch.compiler.reset()


def compare(eager: wildtta.Adapter, compiled: wildtta.Adapter) -> None:
    """Twenty steps with ragged batches among them, a reset in the midst, and one compilation for each shape."""
    selected = 0
    for step in range(STEPS):
        batch = images(5 if step == 7 else 8, step)  # a shape that comes once is not compiled
        if step == 10:
            eager.reset()
            compiled.reset()
        with torch._dynamo.config.patch(error_on_recompile=True):
            torch.testing.assert_close(compiled(batch), eager(batch), rtol=0, atol=1e-4)
        assert torch.equal(compiled.outcome.mask, eager.outcome.mask)
        selected += int(eager.outcome.mask.sum())
    assert isinstance(compiled.runner, Compiled)
    assert compiled.runner.reason is None
    assert compiled.runner.compiled == 1
    assert compiled.report.selected == eager.report.selected
    assert selected > 0 or eager.name == "source"


@compiler
@pytest.mark.parametrize(
    ("method", "norm"),
    [("recap", nn.GroupNorm(2, 8)), pytest.param("deyo", nn.LayerNorm(8), marks=pytest.mark.slow)],
)
def test_compiled_equals_eager_on_the_smallest_networks(method: str, norm: nn.Module) -> None:
    torch.manual_seed(0)
    network = Small(norm)
    sure = {"threshold": 1.0, "plpd": -1.0} if method == "deyo" else {}
    options = settings(method, network, frozen_top=False, **sure)
    compare(*(wildtta.adapt(network, method, runner=runner, **options) for runner in ("eager", "compiled")))


@compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gn", "ln", "bn"])
@pytest.mark.parametrize("method", METHODS)
def test_compiled_equals_eager(method: str, kind: str) -> None:
    compare(*(adapter(method, kind, runner=runner, guard="collapse") for runner in ("eager", "compiled")))


@compiler
@pytest.mark.slow
def test_autocast_is_another_kind_and_a_copy_compiles_anew() -> None:
    eager, compiled = (adapter("recap", "gn", runner=runner) for runner in ("eager", "compiled"))
    for _ in range(2):
        for step in range(3):
            torch.testing.assert_close(compiled(images(8, step)), eager(images(8, step)), rtol=0, atol=1e-4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for step in range(3):
                torch.testing.assert_close(compiled(images(8, step)), eager(images(8, step)), rtol=0, atol=0.1)
        assert compiled.runner.compiled == 2
        compiled = copy.deepcopy(compiled)
        assert compiled.runner.compiled == 0


def test_without_a_compiler_steps_run_eagerly_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    eager, compiled = (adapter("recap", "gn", runner=runner) for runner in ("eager", "compiled"))
    batch = images(8)
    assert torch.equal(compiled(batch), eager(batch))
    with pytest.warns(
        UserWarning, match=r"cannot be compiled: RuntimeError: no C\+\+ compiler found; steps run eagerly"
    ):
        answer = compiled(batch)
    assert torch.equal(answer, eager(batch))
    for step in range(3):
        assert torch.equal(compiled(images(8, step)), eager(images(8, step)))
    assert "no C++ compiler" in compiled.runner.reason


def test_the_kinds_that_are_compiled_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    eager, compiled = (adapter("tent", "gn", runner=runner) for runner in ("eager", "compiled"))
    for size in (1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 6):
        torch.testing.assert_close(compiled(images(size, size)), eager(images(size, size)), rtol=0, atol=1e-4)
    assert compiled.runner.compiled == 4
    assert "more than 4 shapes" in compiled.runner.reason


def test_what_does_not_fit_is_an_error_as_ever() -> None:
    network = make("gn")
    network.aside = nn.GroupNorm(1, 4)
    model = wildtta.adapt(network, "tent", layers=["aside"], head="head", runner="compiled")
    with pytest.raises(ValueError, match="no parameter that adapts reaches the logits"):
        model(images(8))
