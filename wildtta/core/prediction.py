"""What a network says of one batch of images: the value that every part of a method reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Prediction"]


class Prediction:
    """Logits, feature and images of one batch, and the means to ask the network again.

    Attributes:
        logits: B × C, in float32 or wider, whatever precision the network ran in.
        log_probabilities, probabilities: of the logits, B × C.
        feature: B × d, what entered the head.
        images: the batch itself.
        keys: B int64 keys, one an image, for parts that draw random numbers (see `wildtta.core.keys`).
        again: asks the same network, at the same parameters and without gradient, about other images.
    """

    def __init__(
        self, logits: Tensor, feature: Tensor, images: Tensor, keys: Tensor, again: Callable[[Tensor], Prediction]
    ) -> None:
        self.logits = logits
        self.feature = feature
        self.images = images
        self.keys = keys
        self.again = again
        self.log_probabilities = logits.log_softmax(-1)
        self.probabilities = self.log_probabilities.exp()
        self._remembered: dict[nn.Module, Tensor] = {}

    @property
    def classes(self) -> int:
        return self.logits.shape[-1]

    def remember(self, part: nn.Module, compute: Callable[[Prediction], Tensor]) -> Tensor:
        """`compute(self)`, once: a measure that selects, weights and is minimised is computed a single time."""
        if part not in self._remembered:
            self._remembered[part] = compute(self)
        return self._remembered[part]

    def __repr__(self) -> str:
        return f"Prediction({self.logits.shape[0]} images, {self.classes} classes, feature of {self.feature.shape[-1]})"


def widened(tensor: Tensor) -> Tensor:
    """Half precision → float32; anything wider stays: losses are never computed in half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
