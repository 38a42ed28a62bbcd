"""One step of several streams at once: the pure step, vmapped over a leading axis of state and images.

The backbone is shared, and only what a stream owns has the axis: its parameters θ, its state and, where streams differ in them,
its hyper-parameters. Since the networks that are let in do not mix images, each stream gets the numbers it would get alone, up
to the order in which a kernel adds.

Losses, selections, updates and guards are vmapped as they are; the network runs as one plain batch where that gives the same
(see `wildtta.runners.flat`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from wildtta.core.guards import Outcome
from wildtta.core.method import Differentiate, Method
from wildtta.core.tree import State
from wildtta.core.vmapping import vmapped
from wildtta.network import Network
from wildtta.runners.flat import Flat, beneath, fits
from wildtta.runners.recent import Recent
from wildtta.runners.settings import swapped

__all__ = ["Together", "mixes_images"]

_Result = TypeVar("_Result")
SETTINGS = "settings"
"""Where a state keeps hyper-parameters of the streams' own, if they have any."""


class Together:
    """Has the `step` of a `Method`, for states, images and outcomes with a leading axis of streams."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self._flat: Recent[Any, bool] = Recent(64)

    def step(
        self, network: Network, state: State, images: Tensor, differentiate: Differentiate | None = None
    ) -> tuple[State, Outcome]:
        """One step of every stream (streams × batch × channels × height × width); gradients are taken beneath vmap."""

        def one(network: Network, state: State, images: Tensor) -> tuple[State, Outcome]:
            return self.method.step(network, state, images, _differentiate)

        following, outcome = self._vmapped(one, network, state, images)
        return following | {name: state[name] for name in (SETTINGS,) if name in state}, outcome

    def predict(self, network: Network, state: State, images: Tensor) -> Tensor:
        """The logits of every stream; nothing is learned."""
        return self._vmapped(self.method.predict, network, state, images)

    def _vmapped(
        self, one: Callable[[Network, State, Tensor], _Result], network: Network, state: State, images: Tensor
    ) -> _Result:
        flat = self._is_flat(network, images)
        view = Flat(network) if flat else network

        def with_settings(state: State, images: Tensor) -> _Result:
            with swapped(self.method, state.get(SETTINGS, {})):
                return one(view, {name: part for name, part in state.items() if name != SETTINGS}, images)

        with vmapped(fused=flat):
            return vmap(with_settings)(state, images)

    def _is_flat(self, network: Network, images: Tensor) -> bool:
        if self.method.alignment is not None:
            return False
        shape, dtype = images.shape[2:], images.dtype

        def tried() -> bool:
            with vmapped(fused=True):
                return fits(network, self.method.layout, shape, dtype)

        return self._flat.of((shape, dtype, images.device), tried)


def _differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    """The gradients of all streams' losses by one plain backward pass: a loss depends on its own stream's θ alone."""

    def leaf(_: int, theta: Tensor) -> tuple[Tensor]:
        return (theta.detach().requires_grad_(),)

    def gradient(_: int, loss: Tensor, theta: Tensor) -> tuple[Tensor, ...]:
        if not loss.requires_grad:
            raise ValueError("no parameter that adapts reaches the logits; name others with layers=…")
        return torch.autograd.grad(loss.sum(), theta)

    with torch.enable_grad():
        (theta,) = beneath(leaf, theta)
        loss, rest = loss_of(theta)
        return beneath(gradient, loss, theta)[0], rest


def mixes_images(module: torch.nn.Module) -> bool:
    """Whether an image's prediction depends on the others of its batch: BatchNorm, which adapts with the batch's statistics."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())
