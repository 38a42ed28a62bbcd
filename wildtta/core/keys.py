"""Randomness without a generator: every random number is a pure function of a key.

A key is an int64. Numbers drawn from it depend on the key alone, so an image gets the same ones in any batch,
order, process and on any device, a checkpoint needs no generator state, and `vmap` and CUDA graphs just work.
The mixing function is SplitMix64 (Steele, Lea & Flood, 2014).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["fold", "normal", "of_content", "permutation", "uniform"]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's own copies the sign)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _FIRST
    value = (value ^ _shift(value, 27)) * _SECOND
    return value ^ _shift(value, 31)


def fold(key: Tensor, data: Tensor | int) -> Tensor:
    """A new key from a key and a number; different numbers give unrelated keys."""
    return _mix((key + _GOLDEN) ^ _mix(torch.as_tensor(data, dtype=torch.int64, device=key.device) + _GOLDEN))


def of_content(images: Tensor, key: Tensor) -> Tensor:
    """A key for each image, from a key and all of the image's numbers: the same wherever and with whatever it comes."""
    numbers = images.float().contiguous().view(torch.int32).flatten(1)
    places = torch.arange(numbers.shape[1], device=images.device)
    return fold(key, fold(places, numbers).sum(1))


def _bits(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Random 64-bit integers of shape `key.shape + shape`."""
    counter = torch.arange(1, math.prod(shape) + 1, device=key.device).reshape(shape) * _GOLDEN
    return _mix(key.reshape(key.shape + (1,) * len(shape)) + counter)


def uniform(key: Tensor, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in the open interval (0, 1), of shape `key.shape + shape`."""
    digits = 52 if dtype == torch.float64 else 23
    return (_shift(_bits(key, shape), 64 - digits).to(dtype) + 0.5) * 2.0**-digits


def normal(key: Tensor, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, of shape `key.shape + shape`."""
    return torch.special.ndtri(uniform(key, shape, dtype))


def permutation(key: Tensor, length: int) -> Tensor:
    """A random permutation of `range(length)` for each key, of shape `key.shape + (length,)`."""
    return _bits(key, (length,)).argsort(dim=-1, stable=True)
