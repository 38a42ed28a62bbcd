"""One CUDA graph a step: the host launches a step as a whole, and never waits for it.

A method's step is pure and has one shape, so it can be recorded once and replayed on other numbers. The state then lives in
fixed tensors which the graph reads at its beginning and overwrites at its end.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wildtta.core import tree
from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners.eager import Eager, differentiate, kind_of

__all__ = ["Captured"]

_MOST = 8  # graphs kept: each has tensors of its own for every activation
_WARM_UP = 2


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    images: Tensor
    outcome: Outcome


class Captured(Eager):
    """Replays a step as a CUDA graph; what cannot be captured runs eagerly, and `reason` says why.

    The first batch of a kind (shape, type, layout, autocast) runs eagerly, the second is captured: so a ragged last batch
    costs no capture. The numbers are those of the eager runner, up to the order in which CUDA kernels add.
    """

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        self.forget()

    def forget(self) -> None:
        self.reason: str | None = None
        self._graphs: dict[Any, _Graph] = {}
        self._met: Counter[Any] = Counter()
        self._state: State | None = None
        self._pool: Any = None

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        kind = kind_of(images)
        self._met[kind] += 1
        if self._met[kind] == 1 or not self._possible(kind, images):
            return super().step(state, images)
        state = self._adopt(state)
        if kind not in self._graphs:
            try:
                self._graphs[kind] = self._capture(state, images)
            except (RuntimeError, NotImplementedError) as error:
                self.reason = f"the step cannot be captured: {error}"
                warnings.warn(f"{self.reason}; steps run eagerly", stacklevel=2)
                return super().step(state, images)
        found = self._graphs[kind]
        found.images.copy_(images)
        found.graph.replay()
        return state, Outcome(*(part.clone() for part in found.outcome))

    def _possible(self, kind: Any, images: Tensor) -> bool:
        if not getattr(self.method, "capturable", True):
            self.reason = "the step is a loop over images, each with passes of its own, and would be a graph for each"
        elif images.device.type != "cuda":
            self.reason = f"CUDA graphs need a CUDA device, and the images are on {images.device}"
        elif len(self._graphs) >= _MOST and kind not in self._graphs:
            self.reason = f"batches come in more than {_MOST} shapes; those met first are captured"
        return self.reason is None or kind in self._graphs

    def _adopt(self, state: State) -> State:
        """The state in the fixed tensors that the graphs work on."""
        if self._state is None:
            self._state = tree.map(torch.Tensor.clone, state)
        elif state is not self._state:
            tree.map(torch.Tensor.copy_, self._state, state)
        return self._state

    def _capture(self, state: State, images: Tensor) -> _Graph:
        static = images.clone(memory_format=torch.preserve_format)
        kind = images.device.type
        # cached casts would be made outside the graph and freed before it runs again
        with (
            torch.cuda.device(images.device),
            torch.autocast(
                kind,
                dtype=torch.get_autocast_dtype(kind),
                enabled=torch.is_autocast_enabled(kind),
                cache_enabled=False,
            ),
        ):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self.method.step(self.network, state, static, differentiate)
            torch.cuda.current_stream().wait_stream(side)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                following, outcome = self.method.step(self.network, state, static, differentiate)
                _overwrite(state, following)
        return _Graph(graph, static, outcome)

    def __getstate__(self) -> dict[str, Any]:
        """A copy captures anew: a graph belongs to the tensors it was recorded on."""
        return {"method": self.method, "network": self.network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["method"], state["network"])  # type: ignore[misc]


def _overwrite(state: State, following: State) -> None:
    """Put the next state into the tensors of this one; a leaf that is part of another one is read before it is written."""
    old, new = tree.flatten(state), tree.flatten(following)
    storages = {leaf.untyped_storage().data_ptr() for leaf in old.values()}
    changed = {name: leaf for name, leaf in new.items() if leaf is not old[name]}
    ready = {
        name: leaf.clone() if leaf.untyped_storage().data_ptr() in storages else leaf for name, leaf in changed.items()
    }
    for name, leaf in ready.items():
        old[name].copy_(leaf)
