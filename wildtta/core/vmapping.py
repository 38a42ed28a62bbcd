"""What `torch.func.vmap` needs of the network's layers, and differentiating by its means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from wildtta.core.tree import State

__all__ = ["functional_differentiate", "vmapped"]


@contextmanager
def vmapped(*, fused: bool = False) -> Iterator[None]:
    """Inside, attention takes paths that can be vmapped.

    nn.MultiheadAttention's fast path has no rule for vmap at all, nor have the fused attention kernels one for a vmapped backward
    pass: `fused` leaves these alone, where what is vmapped calls them on plain tensors.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def functional_differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    """The gradient of a loss at θ, and what else was computed on the way, by `torch.func`."""
    gradient, rest = torch.func.grad(loss_of, has_aux=True)(theta)
    return gradient, rest
