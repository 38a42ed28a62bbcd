"""Guards: look at what a step just did, and may send the stream back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wildtta.core import tree
from wildtta.core.tree import State

__all__ = ["Guard", "Outcome", "go_back_on_collapse", "named_guard", "recover_on_collapse"]


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

    def forward(
        self, memory: State, before: State, stream: State, fresh: State, outcome: Outcome
    ) -> tuple[State, State, Tensor]:
        """The next memory, the next stream, and whether the stream was set back.

        `before` is the stream as the step found it, `stream` as it left it, `fresh` as it was at the very start.
        """
        raise NotImplementedError

    def restart(self, memory: State, fresh: State, classes: int) -> State:
        """The memory after another guard has set the stream back, from the one before."""
        return self.init(fresh, classes)


class recover_on_collapse(Guard):
    """SAR's model recovery: start afresh when the moving average of the loss falls below `threshold`.

    A loss near zero means that every image is given the same answer with certainty. The average is of the unweighted
    objective of the images that taught; it starts anew with the model, as do the optimiser and the selection.
    """

    def __init__(self, threshold: float = 0.2, decay: float = 0.9) -> None:
        super().__init__()
        if not 0 <= decay <= 1:
            raise ValueError(f"decay is the share of the average that is kept, from 0 to 1, but is {decay}")
        self.threshold, self.decay = threshold, decay

    def init(self, fresh: State, classes: int) -> State:
        theta = fresh["theta"]
        return {"average": theta.new_zeros(()), "started": torch.zeros((), dtype=torch.bool, device=theta.device)}

    def forward(
        self, memory: State, before: State, stream: State, fresh: State, outcome: Outcome
    ) -> tuple[State, State, Tensor]:
        level = outcome.objective.to(memory["average"].dtype)
        moved = torch.where(memory["started"], self.decay * memory["average"] + (1 - self.decay) * level, level)
        average = torch.where(outcome.learned, moved, memory["average"])
        collapsed = outcome.learned & (average < self.threshold)
        started = (memory["started"] | outcome.learned) & ~collapsed
        memory = {"average": torch.where(collapsed, 0.0, average), "started": started}
        return memory, tree.select(collapsed, fresh, stream), collapsed

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, decay={self.decay}"


class go_back_on_collapse(Guard):
    """Go back to the last good parameters when predictions collapse, and learn more slowly from then on.

    Collapse has two signs. The entropy of the mean prediction over the last `window` images, which says how many classes
    the stream is being sorted into, falls below `share` of its usual level; or a single step is more than `spike` times as
    long as usual. Usual is what this stream itself has shown since it began or was last set back: it follows a rise within
    a few windows and a fall only within fifty, so that a slow collapse does not become usual. A stream that does narrow to
    few classes is set back once, and measured anew.

    Good parameters are a copy at least two windows old, taken while the level was as usual. If the stream collapses again before
    such a copy could be taken, they were not good: it starts afresh. Each time the steps shrink by `slower`, until the stream
    survives. A guard that never has to act does not change a bit.
    """

    def __init__(self, window: int = 256, share: float = 0.85, spike: float = 10.0, slower: float = 0.25) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window must be at least 1 image, but is {window}")
        self.window, self.share, self.spike, self.slower = window, share, spike, slower

    def init(self, fresh: State, classes: int) -> State:
        theta = fresh["theta"]
        number, no = theta.new_zeros(()), torch.zeros((), dtype=torch.bool, device=theta.device)
        return {
            "average": theta.new_zeros(classes),  # mean prediction of the window, and its share of a full one
            "filled": number,
            "level": number,  # usual entropy of it
            "step": number,  # usual length of a step, how well it is known, and the usual size of a batch
            "known": number,
            "count": number,
            "good": theta,
            "candidate": theta,
            "age": number,  # of the candidate, in images
            "proven": no,  # whether a copy was taken since the stream was last set back
            "pace": theta.new_ones(()),
        }

    def forward(
        self, memory: State, before: State, stream: State, fresh: State, outcome: Outcome
    ) -> tuple[State, State, Tensor]:
        count = outcome.probabilities.shape[0]
        forget = (1 - 1 / self.window) ** count
        average = forget * memory["average"] + (1 - forget) * outcome.probabilities.mean(0).to(memory["average"].dtype)
        filled = forget * memory["filled"] + (1 - forget)
        warm = memory["filled"] > 0.6  # about one window seen
        mean = average / filled
        level = -torch.special.xlogy(mean, mean).sum()
        change = stream["theta"] - before["theta"]
        length = change.norm()

        collapsed = warm & (level < self.share * memory["level"])
        # a larger batch may step further: the usual rates grow with it
        usual_step = memory["step"] * torch.clamp(count / memory["count"].clamp(min=1), min=1)
        settled = memory["known"] > 0.6
        jumped = warm & settled & (length > self.spike * usual_step)
        back = outcome.finite & (collapsed | jumped)

        follow = (1 - forget) * torch.where(level > memory["level"], 0.25, 0.02)
        usual = torch.where(warm, memory["level"] + follow * (level - memory["level"]), level)
        quick = outcome.learned * torch.where(settled, 0.1 * (1 - forget), 0.5)
        healthy = warm & (level > 0.5 * (1 + self.share) * memory["level"])
        ripe = healthy & (memory["age"] >= 2 * self.window)
        calm = {
            "average": average,
            "filled": filled,
            "level": usual,
            "step": memory["step"] + quick * (length - memory["step"]),
            "known": memory["known"] + outcome.learned * (1 - forget) * (1 - memory["known"]),
            "count": memory["count"] + quick * (count - memory["count"]),
            "good": torch.where(ripe, memory["candidate"], memory["good"]),
            "candidate": torch.where(ripe, stream["theta"], memory["candidate"]),
            "age": torch.where(ripe, 0.0, memory["age"] + count),
            "proven": memory["proven"] | ripe,
            "pace": memory["pace"],
        }
        good = torch.where(memory["proven"], memory["good"], fresh["theta"])
        restarted = {
            **self.init(fresh, average.shape[0]),
            "good": good,
            "candidate": good,
            "pace": self.slower * memory["pace"],
        }
        slowed = torch.where(memory["pace"] < 1, before["theta"] + memory["pace"] * change, stream["theta"])

        memory = tree.select(outcome.finite, tree.select(back, restarted, calm), memory)
        stream = tree.select(back, {**fresh, "theta": good}, {**stream, "theta": slowed})
        return memory, stream, back

    def restart(self, memory: State, fresh: State, classes: int) -> State:
        return {**self.init(fresh, classes), "pace": memory["pace"]}

    def extra_repr(self) -> str:
        return f"window={self.window}, share={self.share}, spike={self.spike}, slower={self.slower}"


_NAMED: dict[str, Callable[[], Guard]] = {"collapse": go_back_on_collapse, "recover": recover_on_collapse}


def named_guard(name: str) -> Guard:
    """The guard of a name, with its defaults."""
    if name not in _NAMED:
        raise ValueError(f"unknown guard {name!r}; the guards are {', '.join(_NAMED)}")
    return _NAMED[name]()
