"""The plain runner: autograd, one step after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wildtta.core.tree import State

__all__ = ["differentiate"]


def differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    """The gradient of a loss at θ, and what else was computed on the way."""
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        loss, rest = loss_of(theta)
        if not loss.requires_grad:
            raise ValueError("no parameter that adapts reaches the logits; name others with layers=…")
        (gradient,) = torch.autograd.grad(loss, theta)
    return gradient, rest
