"""Noise: Gaussian, shot, impulse and speckle.

Every function here takes a batch of whole grey levels (float32, 0 to 255), a key for each image and the parameters
of a severity, and returns grey levels, neither clipped nor rounded: `corrupt` does that.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..core import keys

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(levels: Tensor, key: Tensor, deviation: float) -> Tensor:
    return levels + keys.normal(key, tuple(levels.shape[1:])) * (255 * deviation)


def speckle_noise(levels: Tensor, key: Tensor, deviation: float) -> Tensor:
    """Gaussian noise in proportion to the brightness."""
    return levels + levels * keys.normal(key, tuple(levels.shape[1:])) * deviation


def impulse_noise(levels: Tensor, key: Tensor, share: float) -> Tensor:
    """Salt and pepper: a share of the values (not of the pixels) turns black or white."""
    number = keys.uniform(key, tuple(levels.shape[1:]))
    return torch.where(number < share, 255 * (number < share / 2), levels)


def shot_noise(levels: Tensor, key: Tensor, photons: float) -> Tensor:
    """Poisson counts of mean `photons` at white, by Walker's alias method.

    There are but 256 means, and for each a row of slots of equal probability, each shared by two counts. One uniform
    number chooses the slot (its leading digits) and the count in the slot (the rest).
    """
    shares, counts = _poisson(photons, levels.device)
    slots = len(shares) // 256
    number = keys.uniform(key, tuple(levels.shape[1:])) * slots
    slot = number.floor()
    place = (levels * slots + slot).int().flatten()
    counted = counts.index_select(0, place)
    first = (number - slot).flatten() < shares.index_select(0, place)
    return (torch.where(first, counted >> 16, counted & 0xFFFF) * (255 / photons)).reshape(levels.shape)


@lru_cache(maxsize=16)
def _poisson(photons: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each grey level and slot, the share of the slot's first count, and both counts (in 16 bits each).

    A row holds the counts between quantiles of 2 ** -25, as the uniform numbers are odd multiples of 2 ** -24. The
    table fills slot by slot: the least likely count left gets a slot to itself, filled up by the most likely one.
    """
    level, most = np.arange(256)[:, None], int(photons + 8 * photons**0.5 + 16)
    mean = level * (photons / 255)
    terms = np.concatenate([np.exp(-mean), mean / np.arange(1, most + 1)], axis=1)
    weights = terms.cumprod(axis=1)
    below = weights.cumsum(axis=1)
    weights[(below < 2.0**-25) | (below - weights > 1 - 2.0**-25)] = 0
    low = (weights > 0).argmax(axis=1)[:, None]
    slots = 1 << int((weights > 0).sum(axis=1).max() - 1).bit_length()
    weights = np.pad(weights, ((0, 0), (0, slots)))
    weights = np.take_along_axis(weights, low + np.arange(slots), axis=1)
    weights *= slots / weights.sum(axis=1, keepdims=True)

    rows, shares, other = np.arange(256), np.ones(weights.shape), np.tile(np.arange(slots), (256, 1))
    left = weights.copy()  # of the counts that have no slot yet; infinite once they have
    for _ in range(slots - 1):
        least, greatest = left.argmin(axis=1), np.where(np.isinf(left), -1, left).argmax(axis=1)
        share = left[rows, least]
        shares[rows, least], other[rows, least] = share, greatest
        left[rows, greatest] -= 1 - share
        left[rows, least] = np.inf
    packed = (low + np.arange(slots) << 16) | low + other
    return (
        torch.from_numpy(shares.astype(np.float32)).flatten().to(device),
        torch.from_numpy(packed.astype(np.int32)).flatten().to(device),
    )
