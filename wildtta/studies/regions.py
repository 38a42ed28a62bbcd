"""What a region holds, by drawing from it: the studies compare the methods' closed forms with this.

A neighbour of a feature z is z + √(τΣ) ε. The head is affine, so its logits are those of z plus A √(τΣ) ε: one fixed sample of
that serves all images, at any parameters of the network below the head.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from wildtta.core.keys import normal
from wildtta.core.measures import Measure
from wildtta.core.prediction import Prediction
from wildtta.core.selections import Selection
from wildtta.core.tree import State

__all__ = ["Draws", "inconsistency", "opposite"]

_AT_ONCE = 1 << 24  # numbers drawn, or logits compared, at a time


class Draws(nn.Module):
    """A sample of a region, as what it adds to the logits (N × C)."""

    offsets: Tensor

    def __init__(self, weight: Tensor, variance: Tensor, tau: float, count: int, seed: int = 0) -> None:
        super().__init__()
        spread = (tau * variance.to(weight)).sqrt()
        keys = torch.arange(count, device=weight.device) + (seed << 32)
        parts = keys.split(max(1, _AT_ONCE // len(variance)))
        self.register_buffer(
            "offsets", torch.cat([(normal(part, (len(variance),)).to(weight) * spread) @ weight.T for part in parts])
        )

    def first(self, count: int) -> Draws:
        """A sample of the first so many."""
        found = copy.copy(self)
        found._buffers = {"offsets": self.offsets[:count]}
        return found

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Of all neighbours of all images: B × N × C."""
        return (logits[:, None] + self.offsets).log_softmax(-1)

    def answers(self, logits: Tensor) -> Tensor:
        """Their predicted classes: B × N."""
        return (logits[:, None] + self.offsets).argmax(-1)

    def measures(self, logits: Tensor) -> dict[str, Tensor]:
        """For each image: the share of neighbours that another class is predicted for, and means over the neighbours.

        `entropy` and `divergence` (KL of a neighbour's prediction from the centre's) come with the deviation of a single
        draw, so that they can be given with a standard error.
        """
        found: dict[str, list[Tensor]] = {}
        for part in logits.split(max(1, _AT_ONCE // self.offsets.numel())):
            log_p, centre = self.log_probabilities(part), part.log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1)
            divergence = (centre.exp()[:, None] * (centre[:, None] - log_p)).sum(-1)
            for name, value in {
                "inconsistent": (log_p.argmax(-1) != part.argmax(-1)[:, None]).to(part.dtype).mean(-1),
                "entropy": entropy.mean(-1),
                "entropy_deviation": entropy.std(-1),
                "divergence": divergence.mean(-1),
                "divergence_deviation": divergence.std(-1),
            }.items():
                found.setdefault(name, []).append(value)
        return {name: torch.cat(values) for name, values in found.items()}


class inconsistency(Measure):
    """The share of an image's neighbours that another class is predicted for."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def compute(self, prediction: Prediction) -> Tensor:
        logits = prediction.logits.detach()
        other = self.draws.answers(logits) != logits.argmax(-1, keepdim=True)
        return other.to(logits.dtype).mean(-1)


class opposite(Selection):
    """Keep what another selection would not."""

    def __init__(self, selection: Selection) -> None:
        super().__init__()
        self.selection = selection

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        return ~self.selection(prediction, state)
