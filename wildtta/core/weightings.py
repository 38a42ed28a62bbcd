"""Weightings: how much each selected image teaches. They are never differentiated."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from wildtta.core.measures import Measure
from wildtta.core.prediction import Prediction

__all__ = ["Weighting", "decaying", "growing", "uniform"]


class Weighting(nn.Module):
    """Base class: write `forward(prediction) -> B weights`. Weightings add up.

    Attributes:
        by_image: whether the weight of an image depends on that image alone (see `Measure`).
    """

    by_image = False

    def forward(self, prediction: Prediction) -> Tensor:
        raise NotImplementedError

    def __add__(self, other: Weighting) -> Weighting:
        return _Sum(self, other)


class _Sum(Weighting):
    by_image = True

    def __init__(self, first: Weighting, second: Weighting) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, prediction: Prediction) -> Tensor:
        first: Tensor = self.first(prediction)
        return first + self.second(prediction)


class uniform(Weighting):
    """Every selected image weighs 1."""

    by_image = True

    def forward(self, prediction: Prediction) -> Tensor:
        return torch.ones_like(prediction.logits[:, 0])


class decaying(Weighting):
    """exp(`pivot` · ln C − measure): 1 at the pivot, more for images below it (EATA eq. 4, DeYO eq. 8, ReCAP eq. 10)."""

    by_image = True

    def __init__(self, criterion: Measure, pivot: float) -> None:
        super().__init__()
        self.criterion, self.pivot = criterion, pivot

    def forward(self, prediction: Prediction) -> Tensor:
        return (self.pivot * math.log(prediction.classes) - self.criterion(prediction)).exp()

    def extra_repr(self) -> str:
        return f"pivot={self.pivot} ln C"


class growing(Weighting):
    """exp(measure): more for images where it is large (the PLPD term of DeYO eq. 8)."""

    by_image = True

    def __init__(self, criterion: Measure) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, prediction: Prediction) -> Tensor:
        value: Tensor = self.criterion(prediction)
        return value.exp()
