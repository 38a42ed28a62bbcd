"""The plain runner: autograd, one step after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wildtta.core.guards import Outcome
from wildtta.core.method import LossFunction, Method
from wildtta.core.tree import State
from wildtta.network import Network

__all__ = ["Eager", "differentiate", "gradient_of", "kind_of"]


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


def kind_of(images: Tensor) -> Any:
    """What batches have in common for which a step is prepared: shape, layout, type, autocast and rounding."""
    device = images.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return tuple(images.shape), images.stride(), images.dtype, autocast, _rounding()


def _rounding() -> Any:
    """How a GPU may round float32: a step that was prepared goes on as it was then."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9; where it was set, reading the older flags is an error
        return matmul.fp32_precision, cudnn.conv.fp32_precision
    return matmul.allow_tf32, cudnn.allow_tf32


def differentiate(loss: LossFunction, theta: Tensor) -> tuple[Tensor, State]:
    """The gradient of a loss at θ, and what else was computed on the way."""
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        value, rest = loss(theta)
        return gradient_of(value, theta), rest


def gradient_of(value: Tensor, theta: Tensor) -> Tensor:
    """The gradient of what was computed from θ."""
    if not value.requires_grad:
        raise ValueError("no parameter that adapts reaches the logits; name others with layers=…")
    (gradient,) = torch.autograd.grad(value, theta)
    return gradient
