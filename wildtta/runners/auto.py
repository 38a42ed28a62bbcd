"""The runner for those who do not want to choose."""

from __future__ import annotations

from torch import Tensor

from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners.captured import Captured
from wildtta.runners.eager import Eager
from wildtta.runners.sparing import Sparing

__all__ = ["Auto"]


class Auto(Eager):
    """`captured` on CUDA, `sparing` elsewhere: by the device of each batch, as an adapter may be moved."""

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        self.captured, self.sparing = Captured(method, network), Sparing(method, network)

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        return (self.captured if images.is_cuda else self.sparing).step(state, images)

    def forget(self) -> None:
        self.captured.forget()
        self.sparing.forget()
