"""One step of several streams at once: the pure step, vmapped over a leading axis of state and images.

The backbone is shared, and only what a stream owns has the axis: its parameters θ and its state. Since the networks that are
let in do not mix images, each stream gets the numbers it would get alone, up to the order in which a kernel adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from wildtta.core import tree
from wildtta.core.guards import Outcome
from wildtta.core.method import Differentiate, Method
from wildtta.core.tree import State
from wildtta.core.vmapping import functional_differentiate, vmapped
from wildtta.network import Network

__all__ = ["Together", "mixes_images"]


class Together:
    """Has the `step` of a `Method`, for states, images and outcomes with a leading axis of streams."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def init(self, network: Network, seeds: Sequence[int]) -> State:
        """The first state of each stream."""
        return stack([self.method.init(network, seed) for seed in seeds])

    def step(
        self, network: Network, state: State, images: Tensor, differentiate: Differentiate | None = None
    ) -> tuple[State, Outcome]:
        """One step of every stream (streams × batch × channels × height × width); differentiating is done by vmap's own means."""

        def one(state: State, images: Tensor) -> tuple[State, Outcome]:
            return self.method.step(network, state, images, functional_differentiate)

        with vmapped():
            return torch.func.vmap(one)(state, images)


def mixes_images(module: torch.nn.Module) -> bool:
    """Whether an image's prediction depends on the others of its batch: BatchNorm, which adapts with the batch's statistics."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def stack(states: Sequence[State]) -> State:
    """States with a leading axis, from one state a stream."""
    return tree.map(lambda *leaves: torch.stack(leaves), states[0], *states[1:])


def pick(state: State, places: Tensor) -> State:
    """Some of the streams."""
    return tree.map(lambda leaf: leaf[places], state)
