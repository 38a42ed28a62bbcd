"""What `torch.func.vmap` needs of the network's layers, and differentiating by its means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from wildtta.core.tree import State

__all__ = ["functional_differentiate", "vmapped"]


@contextmanager
def vmapped() -> Iterator[None]:
    """Inside, attention takes paths that can be vmapped.

    The fused attention kernels have no rule for a vmapped backward pass, nor nn.MultiheadAttention's fast path any rule at all.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def functional_differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    """The gradient of a loss at θ, and what else was computed on the way, by `torch.func`."""
    gradient, rest = torch.func.grad(loss_of, has_aux=True)(theta)
    return gradient, rest
