"""Measures: a number for each image, from a prediction.

A measure is an objective when it is minimised, a criterion when a selection compares it with a threshold, and the basis
of a weight. Measures add up and scale: `regional_entropy(around) + 0.5 * regional_instability(around)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from wildtta.core import keys
from wildtta.core.prediction import Prediction, widened

__all__ = ["Measure", "entropy", "marginal_entropy", "measure", "shape_dependence"]


class Measure(nn.Module):
    """Base class: write `compute(prediction) -> B values`; constants are buffers, there is no other state.

    Attributes:
        forwards: how often it asks the network about other images.
        by_image: whether an image's value depends on that image alone, so that a runner may leave out the others. To be said
            by the part: False until it does.
    """

    forwards = 0
    by_image = False

    def compute(self, prediction: Prediction) -> Tensor:
        raise NotImplementedError

    def forward(self, prediction: Prediction) -> Tensor:
        return prediction.remember(self, self.compute)

    def __add__(self, other: Measure) -> Measure:
        return _Sum(self, other)

    def __mul__(self, factor: float) -> Measure:
        return _Scaled(self, factor)

    __rmul__ = __mul__


class _Sum(Measure):
    by_image = True  # as far as it goes: its terms are asked, too

    def __init__(self, left: Measure, right: Measure) -> None:
        super().__init__()
        self.left, self.right = left, right

    def compute(self, prediction: Prediction) -> Tensor:
        return self.left(prediction) + self.right(prediction)


class _Scaled(Measure):
    by_image = True

    def __init__(self, inner: Measure, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def compute(self, prediction: Prediction) -> Tensor:
        return self.inner(prediction) * self.factor

    def extra_repr(self) -> str:
        return f"factor={self.factor}"


class measure(Measure):
    """A measure from a plain function; `by_image` says that it takes each image by itself.

    >>> margin = measure(lambda prediction: prediction.logits.topk(2).values.diff().neg().squeeze(-1))
    """

    def __init__(self, function: Callable[[Prediction], Tensor], *, by_image: bool = False) -> None:
        super().__init__()
        self.function, self.by_image = function, by_image

    def compute(self, prediction: Prediction) -> Tensor:
        value = self.function(prediction)
        if not isinstance(value, Tensor) or value.ndim != 1:
            found = (
                f"shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else f"an object of type {type(value).__name__}"
            )
            raise ValueError(
                f"the function of a measure gave {found} for {len(prediction.logits)} images; it has to give one number for each "
                "image, a tensor with one axis"
            )
        return value


class entropy(Measure):
    """H(p) = −Σ pᵢ log pᵢ, in nats."""

    by_image = True

    def compute(self, prediction: Prediction) -> Tensor:
        return -(prediction.probabilities * prediction.log_probabilities).sum(-1)


class marginal_entropy(Measure):
    """The entropy of the mean prediction, H(p̄) with p̄ = Σ p / V: one value for the views of an image, in nats.

    It is small when all views are given the same answer with confidence (Zhang et al., NeurIPS 2022, eq. 2).
    """

    def compute(self, prediction: Prediction) -> Tensor:
        mean = prediction.log_probabilities.logsumexp(0) - math.log(len(prediction.logits))
        return -(mean.exp() * mean).sum(-1, keepdim=True)


class shape_dependence(Measure):
    """DeYO's PLPD: how much probability the predicted class loses when the object's shape is destroyed.

    PLPD = p_ŷ(x) − p_ŷ(x'), where x' is x cut into `patches` × `patches` tiles that are permuted, for each image on its
    own (Lee et al., ICLR 2024, eq. 5). Sides that `patches` does not divide are resized and resized back. No gradient.
    """

    forwards = 1
    by_image = True

    def __init__(self, patches: int = 4) -> None:
        super().__init__()
        if patches < 1:
            raise ValueError(f"patches must be at least 1, but is {patches}")
        self.patches = patches

    def compute(self, prediction: Prediction) -> Tensor:
        destroyed = prediction.again(shuffle_patches(prediction.images, prediction.keys, self.patches))
        guess = prediction.logits.argmax(-1, keepdim=True)
        before = prediction.probabilities.detach().gather(-1, guess)
        return (before - destroyed.probabilities.gather(-1, guess)).squeeze(-1)

    def extra_repr(self) -> str:
        return f"patches={self.patches}"


def shuffle_patches(images: Tensor, key: Tensor, patches: int) -> Tensor:
    """Cut each image into `patches` × `patches` tiles and permute them, as its key says."""
    batch, channels, height, width = images.shape
    tile_height, tile_width = max(height // patches, 1), max(width // patches, 1)
    size = (tile_height * patches, tile_width * patches)
    fitted = images if size == (height, width) else _resize(images, size)
    tiles = fitted.reshape(batch, channels, patches, tile_height, patches, tile_width)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # B × patches² × channels × tile
    order = keys.permutation(key, patches * patches)[:, :, None, None, None]
    tiles = tiles.gather(1, order.expand_as(tiles)).unflatten(1, (patches, patches))
    shuffled = tiles.permute(0, 3, 1, 4, 2, 5).reshape(fitted.shape)
    return shuffled if size == (height, width) else _resize(shuffled, (height, width))


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(widened(images), size, mode="bilinear", antialias=True).to(images.dtype)
