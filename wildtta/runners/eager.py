"""The plain runner: autograd, one step after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network

__all__ = ["Eager", "differentiate"]


class Eager:
    """Runs a step as it is written.

    Attributes:
        empty_batches: whether a batch may have no image.
    """

    empty_batches = False

    def __init__(self, method: Method, network: Network) -> None:
        self.method, self.network = method, network

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        return self.method.step(self.network, state, images, differentiate)

    def forget(self) -> None:
        """Drop what was prepared for tensors that are no longer in use."""


def differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    """The gradient of a loss at θ, and what else was computed on the way."""
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        loss, rest = loss_of(theta)
        if not loss.requires_grad:
            raise ValueError("no parameter that adapts reaches the logits; name others with layers=…")
        (gradient,) = torch.autograd.grad(loss, theta)
    return gradient, rest
