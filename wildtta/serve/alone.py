"""Adapters behind a fleet's interface, for networks that mix the images of a batch (BatchNorm) and so cannot be batched.

They share one network, of which an adapter changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from wildtta.adapter import Adapter
from wildtta.common import Report, compose
from wildtta.core.guards import Outcome
from wildtta.network import Network

__all__ = ["Alone"]


class Alone:
    """Each stream takes its steps by itself."""

    def __init__(self, network: nn.Module, method: str, *, guard: str | None, **hyperparameters: Any) -> None:
        self.network, self.method, self.guard, self.given = Network(network), method, guard, hyperparameters
        self.adapters: dict[str, Adapter] = {}

    def __call__(self, images: dict[str, Tensor]) -> dict[str, Tensor]:
        return {stream: self.adapters[stream](batch) for stream, batch in images.items()}

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with ExitStack() as stack:
            for adapter in self.adapters.values():
                stack.enter_context(adapter.frozen())
            yield

    def join(self, stream: str, *, seed: int, **hyperparameters: Any) -> None:
        method, name, settings = compose(self.network, self.method, self.guard, self.given | hyperparameters)
        self.adapters[stream] = Adapter(self.network, method, name=name, seed=seed, settings=settings)

    def leave(self, stream: str) -> None:
        del self.adapters[stream]

    def reset(self, stream: str) -> None:
        self.adapters[stream].reset()

    def report(self, stream: str) -> Report:
        return self.adapters[stream].report

    def outcome(self, stream: str) -> Outcome | None:
        return self.adapters[stream].outcome

    def save(self, stream: str, path: str | Path) -> None:
        self.adapters[stream].save(path)

    def load(self, stream: str, path: str | Path) -> None:
        self.adapters[stream].load(path)
