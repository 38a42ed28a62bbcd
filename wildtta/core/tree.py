"""State is a nested dict of tensors; these are the few things done with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["State", "flatten", "keep_wide", "map", "select", "unflatten"]

State: TypeAlias = dict[str, Any]  # nested: every leaf is a Tensor
SEPARATOR = "/"


def map(function: Callable[..., Tensor], tree: State, *others: State) -> State:
    """Apply `function` to every leaf, or to the leaves at the same place of several trees."""
    return {
        name: map(function, leaf, *(other[name] for other in others))
        if isinstance(leaf, dict)
        else function(leaf, *(other[name] for other in others))
        for name, leaf in tree.items()
    }


def select(condition: Tensor, then: State, otherwise: State) -> State:
    """`then` where the (0-dim, boolean) condition holds, else `otherwise`, leaf by leaf."""
    return map(lambda new, old: new if new is old else torch.where(condition, new, old), then, otherwise)


def flatten(tree: State, prefix: str = "") -> dict[str, Tensor]:
    """
    >>> flatten({"theta": torch.zeros(2), "update": {"momentum": torch.ones(2)}}).keys()
    dict_keys(['theta', 'update/momentum'])
    """
    leaves: dict[str, Tensor] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            leaves |= flatten(leaf, prefix + name + SEPARATOR)
        else:
            leaves[prefix + name] = leaf
    return leaves


def unflatten(leaves: dict[str, Tensor], like: State, prefix: str = "") -> State:
    """The tree of the shape of `like` whose leaves are `leaves` (all of them present)."""
    return {
        name: unflatten(leaves, leaf, prefix + name + SEPARATOR) if isinstance(leaf, dict) else leaves[prefix + name]
        for name, leaf in like.items()
    }


def keep_wide(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of device or type that leaves out narrowing to half precision: what is learnt needs more digits."""

    def moved(tensor: Tensor) -> Tensor:
        result = function(tensor)
        return tensor.to(result.device) if result.dtype in (torch.float16, torch.bfloat16) else result

    return moved
