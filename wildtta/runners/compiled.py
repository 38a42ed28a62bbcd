"""The step as one graph to `torch.compile`: fused kernels, for streams long enough to pay for the compilation."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wildtta.core import tree
from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.core.vmapping import functional_differentiate
from wildtta.network import Network
from wildtta.runners.eager import Eager, kind_of
from wildtta.runners.recent import Recent

__all__ = ["Compiled"]

_MOST = 4  # graphs: each takes up to minutes to compile
_MET = 64  # kinds of batches that are remembered to have come

_Step: TypeAlias = Callable[[State, Tensor], tuple[State, Outcome]]


class Compiled(Eager):
    """Runs the compiled step; what cannot be compiled runs eagerly, and `reason` says why.

    The first batch of a kind (shape, type, layout, autocast, rounding) runs eagerly, the second is compiled: so a ragged last
    batch costs no compilation. `compiled` counts the kinds that were.
    """

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        self.forget()

    def forget(self) -> None:
        self.reason: str | None = None
        self._steps: dict[Any, _Step] = {}
        self._met: Recent[Any, bool] = Recent(_MET)
        self._following: State | None = None

    @property
    def compiled(self) -> int:
        return len(self._steps)

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        kind = kind_of(images)
        met = kind in self._steps or kind in self._met
        self._met.of(kind, bool)
        if not met or not self._possible(kind):
            return super().step(state, images)
        if kind not in self._steps:
            self._steps[kind] = self._compile()
        if state is not self._following:
            # a first state has leaves that are one tensor; later ones have not, and would be compiled for anew
            state = tree.map(torch.Tensor.clone, state)
        try:
            with torch.no_grad():
                self._following, outcome = self._steps[kind](state, images)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways: without a C++ compiler, for one
            self.reason = f"the step cannot be compiled: {_summary(error)}"
            warnings.warn(f"{self.reason}; steps run eagerly", stacklevel=2)
            self._steps.clear()
            return super().step(state, images)
        return self._following, outcome

    def _possible(self, kind: Any) -> bool:
        if self.reason is None and len(self._steps) >= _MOST and kind not in self._steps:
            self.reason = f"batches come in more than {_MOST} shapes; those met first are compiled"
        return self.reason is None or kind in self._steps

    def _compile(self) -> _Step:
        method, network = self.method, self.network

        def step(state: State, images: Tensor) -> tuple[State, Outcome]:
            return method.step(network, state, images, functional_differentiate)

        return torch.compile(_alone(step), fullgraph=True, dynamic=False)

    def __getstate__(self) -> dict[str, Any]:
        """A copy compiles anew."""
        return {"method": self.method, "network": self.network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["method"], state["network"])  # type: ignore[misc]


def _alone(step: _Step) -> _Step:
    """The same function with a code object of its own: the compiler counts and limits its graphs by code object."""
    assert isinstance(step, types.FunctionType)
    return types.FunctionType(step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__)


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {next((line for line in str(error).splitlines() if line.strip()), '')}"
