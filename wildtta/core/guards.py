"""Guards: look at what a step just did, and may send the stream back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from wildtta.core import tree
from wildtta.core.tree import State

__all__ = ["Guard", "Outcome", "recover_on_collapse"]


class Outcome(NamedTuple):
    """What a step gives besides the next state."""

    logits: Tensor  # the prediction that counts: the first forward's, before the update
    mask: Tensor  # which images taught: none of them when the step was skipped
    loss: Tensor
    objective: Tensor  # the selected images' mean objective, without weights and regulariser
    probabilities: Tensor  # of the first forward
    learned: Tensor  # the step moved θ
    finite: Tensor  # loss, gradient and new parameters were finite


class Guard(nn.Module):
    """Base class: write `init` and `forward`.

    A stream is the dict of what a guard may set back: "theta", "update", "selection" and "alignment".
    """

    def init(self, fresh: State, classes: int) -> State:
        """The guard's memory at the start of a stream, from the stream's first state."""
        return {}

    def forward(self, memory: State, stream: State, fresh: State, outcome: Outcome) -> tuple[State, State, Tensor]:
        """The next memory, the next stream, and whether the stream was set back."""
        raise NotImplementedError


class recover_on_collapse(Guard):
    """SAR's model recovery: start afresh when the moving average of the loss falls below `threshold`.

    A loss near zero means that every image is given the same answer with certainty. The average is of the unweighted
    objective of the images that taught; it starts anew with the model, as do the optimiser and the selection.
    """

    def __init__(self, threshold: float = 0.2, decay: float = 0.9) -> None:
        super().__init__()
        self.threshold, self.decay = threshold, decay

    def init(self, fresh: State, classes: int) -> State:
        theta = fresh["theta"]
        return {"average": theta.new_zeros(()), "started": torch.zeros((), dtype=torch.bool, device=theta.device)}

    def forward(self, memory: State, stream: State, fresh: State, outcome: Outcome) -> tuple[State, State, Tensor]:
        level = outcome.objective.to(memory["average"].dtype)
        moved = torch.where(memory["started"], self.decay * memory["average"] + (1 - self.decay) * level, level)
        average = torch.where(outcome.learned, moved, memory["average"])
        collapsed = outcome.learned & (average < self.threshold)
        started = (memory["started"] | outcome.learned) & ~collapsed
        memory = {"average": torch.where(collapsed, 0.0, average), "started": started}
        return memory, tree.select(collapsed, fresh, stream), collapsed

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, decay={self.decay}"


def guard_named(name: str) -> Guard:
    raise ValueError(name)
