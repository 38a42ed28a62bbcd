"""One CUDA graph a step: the host launches a step as a whole, and never waits for it.

A method's step is pure and has one shape, so it can be recorded once and replayed on other numbers. The state then lives in
fixed tensors which the graph reads at its beginning and overwrites at its end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wildtta.core import tree
from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners.eager import Eager, differentiate, kind_of
from wildtta.runners.recent import Recent

__all__ = ["Captured"]

_MOST = 8  # graphs kept: each takes long to record, and has its images and results for itself
_MET = 64  # kinds of batches that are remembered to have come
_WARM_UP = 2


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    images: Tensor
    outcome: Outcome


class Captured(Eager):
    """Replays a step as a CUDA graph; what cannot be captured runs eagerly, and `reason` says why.

    The first batch of a kind (shape, type, layout, autocast, rounding) runs eagerly, the second is captured: so a ragged last
    batch costs no capture. The numbers are those of the eager runner, up to the order in which CUDA kernels add.

    Attributes:
        beside: gives the runners that never run at the same time as this one; their graphs share the memory in which they run.
    """

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        self.beside: Callable[[], Iterable[Eager]] = tuple
        self.forget()

    def forget(self) -> None:
        self.reason: str | None = None
        self._graphs: dict[Any, _Graph] = {}
        self._met: Recent[Any, bool] = Recent(_MET)
        self._state: State | None = None
        self._pool: Any = None

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        kind = kind_of(images)
        met = kind in self._graphs or kind in self._met
        self._met.of(kind, bool)
        if not met or not self._possible(kind, images):
            return super().step(state, images)
        state = self._adopt(state)
        if kind not in self._graphs and not self._try(kind, state, images):
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

    def _try(self, kind: Any, state: State, images: Tensor) -> bool:
        """Capture a step, or say why that cannot be."""
        short = False
        try:
            self._graphs[kind] = self._capture(state, images)
        except (RuntimeError, NotImplementedError) as error:
            # ending a capture that went wrong may be an error of its own, which follows the first
            short = any(isinstance(one, torch.OutOfMemoryError) for one in (error, error.__context__))
            self.reason = f"the step cannot be captured: {'there is too little memory: ' if short else ''}{error}"
        if short:  # a step as it is written needs less; only here, as the error held what was made so far
            self._graphs.clear()
            self._state = self._pool = None
            torch.cuda.empty_cache()
        if kind not in self._graphs:
            warnings.warn(f"{self.reason}; steps run eagerly", stacklevel=3)
        return kind in self._graphs

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
            self._pool = self._live_pool() or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # other threads, one that reads images ahead for instance, may allocate meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                following, outcome = self.method.step(self.network, state, static, differentiate)
                _overwrite(state, following)
        return _Graph(graph, static, outcome)

    def _live_pool(self) -> Any:
        """The memory pool of graphs that there are; one whose graphs have gone cannot be used again."""
        runners = (one for one in (self, *self.beside()) if isinstance(one, Captured))
        return next((one._pool for one in runners if one._graphs), None)

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
