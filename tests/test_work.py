"""What a step does not do: work that nothing needs."""

from __future__ import annotations

from typing import Any

import pytest
from cases import adapter
from networks import images
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Keeps which gradients each backward of a convolution computes: of its input, weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions: list[list[bool]] = []
        self.forwards = 0
        self.products = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(function)
        if "convolution_backward" in name:
            self.convolutions.append(list(arguments[-1]))
        elif "convolution" in name:
            self.forwards += 1
        elif "addmm" in name or name.startswith("aten.mm"):
            self.products += 1
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("runner", ["eager", "sparing"])
@pytest.mark.parametrize(("method", "passes"), [("tent", 1), ("recap", 1), ("sar", 2)])
def test_no_gradient_of_what_does_not_adapt(method: str, passes: int, runner: str) -> None:
    """Convolutions pass gradients on, and compute none of their weights; the first, below all that adapts, has no backward."""
    model = adapter(method, "gn", runner=runner)
    model(images(8, 0))
    with Watch() as watch:
        model(images(8, 1))
    assert model.outcome.mask.any()
    assert watch.convolutions == [[True, False, False]] * passes * 6  # of 7 convolutions
    assert watch.forwards >= passes * 7


def test_the_head_is_differentiated_for_its_input_alone() -> None:
    model = adapter("tent", "gn")
    model(images(8, 0))
    with Watch() as watch:
        model(images(8, 1))
    assert watch.products == 2  # forward, and the gradient of the feature
