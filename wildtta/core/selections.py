"""Selections: which images of a batch may teach. A selection is a mask; masks combine with `&`.

A selection may keep a state (a dict of tensors). It reads it in `forward` and, once the final mask of the whole method
is known, returns the next one from `advance`: so `reliable(…) & non_redundant(…)` averages over the images that both kept.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wildtta.core.measures import Measure, entropy, shape_dependence
from wildtta.core.prediction import Prediction
from wildtta.core.tree import State

__all__ = [
    "Selection",
    "above",
    "below",
    "confident_region",
    "everything",
    "non_redundant",
    "reliable",
    "shape_sensitive",
]


class Selection(nn.Module):
    """Base class: write `forward(prediction, state) -> B booleans`; with a state also `init` and `advance`.

    Attributes:
        by_image: whether the choice of an image depends on it and the state alone (see `Measure`).
    """

    by_image = False

    def init(self, theta: Tensor, classes: int) -> State:
        """The state at the start of a stream, on the device and in the precision of the parameters θ."""
        return {}

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        raise NotImplementedError

    def advance(self, prediction: Prediction, mask: Tensor, state: State) -> State:
        """The state after a batch of which `mask` was kept."""
        return state

    def __and__(self, other: Selection) -> Selection:
        return _Both(self, other)


class _Both(Selection):
    by_image = True

    def __init__(self, first: Selection, second: Selection) -> None:
        super().__init__()
        self.first, self.second = first, second

    def init(self, theta: Tensor, classes: int) -> State:
        return {"first": self.first.init(theta, classes), "second": self.second.init(theta, classes)}

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        first: Tensor = self.first(prediction, state["first"])
        return first & self.second(prediction, state["second"])

    def advance(self, prediction: Prediction, mask: Tensor, state: State) -> State:
        return {
            "first": self.first.advance(prediction, mask, state["first"]),
            "second": self.second.advance(prediction, mask, state["second"]),
        }


class everything(Selection):
    """Every image teaches."""

    by_image = True

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        return torch.ones_like(prediction.logits[:, 0], dtype=torch.bool)


class below(Selection):
    """Keep the images whose measure is below a threshold. The threshold is in nats, or in units of ln C."""

    by_image = True

    def __init__(self, criterion: Measure, threshold: float, *, of_log_classes: bool = False) -> None:
        super().__init__()
        self.criterion, self.threshold, self.of_log_classes = criterion, _checked(threshold), of_log_classes

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        unit = math.log(prediction.classes) if self.of_log_classes else 1.0
        return self.criterion(prediction) < self.threshold * unit

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}{' ln C' if self.of_log_classes else ''}"


class above(Selection):
    """Keep the images whose measure is above a threshold."""

    by_image = True

    def __init__(self, criterion: Measure, threshold: float) -> None:
        super().__init__()
        self.criterion, self.threshold = criterion, _checked(threshold)

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        return self.criterion(prediction) > self.threshold

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}"


def reliable(threshold: float = 0.4) -> Selection:
    """Entropy below `threshold` · ln C (EATA eq. 3, SAR eq. 2)."""
    return below(entropy(), threshold, of_log_classes=True)


def confident_region(regional: Measure, threshold: float) -> Selection:
    """Regional entropy below `threshold` · ln C (ReCAP eq. 10)."""
    return below(regional, threshold, of_log_classes=True)


def shape_sensitive(threshold: float = 0.2, dependence: Measure | None = None) -> Selection:
    """PLPD above `threshold` (DeYO eq. 6)."""
    return above(shape_dependence() if dependence is None else dependence, threshold)


class non_redundant(Selection):
    """Keep the images whose prediction is not the one the stream has been giving (EATA eq. 5).

    |cos(p, m)| < `threshold`, with m the moving average of the kept images' mean p. No test before the first kept image.
    """

    by_image = True

    def __init__(self, threshold: float = 0.05, decay: float = 0.9) -> None:
        super().__init__()
        if not 0 <= decay <= 1:
            raise ValueError(f"decay is the share of the average that is kept, from 0 to 1, but is {decay}")
        self.threshold, self.decay = _checked(threshold), decay

    def init(self, theta: Tensor, classes: int) -> State:
        return {
            "average": theta.new_zeros(classes),
            "started": torch.zeros((), dtype=torch.bool, device=theta.device),
        }

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        average = state["average"].to(prediction.logits.dtype)
        similarity = F.cosine_similarity(prediction.probabilities, average[None], dim=-1)
        return (similarity.abs() < self.threshold) | ~state["started"]

    def advance(self, prediction: Prediction, mask: Tensor, state: State) -> State:
        kept = torch.where(mask[:, None], prediction.probabilities, 0.0).sum(0) / mask.sum().clamp(min=1)
        kept = kept.to(state["average"].dtype)
        moved = torch.where(state["started"], self.decay * state["average"] + (1 - self.decay) * kept, kept)
        any_kept = mask.any()
        return {
            "average": torch.where(any_kept, moved, state["average"]),
            "started": state["started"] | any_kept,
        }

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, decay={self.decay}"


def _checked(threshold: float) -> float:
    """NaN would select nothing, and nothing would tell."""
    try:
        senseless = math.isnan(threshold)
    except TypeError:
        senseless = True
    if senseless:
        raise ValueError(f"threshold must be a number that a measure can be compared with, but is {threshold!r}")
    return threshold
