"""Alignments: move the feature before the head sees it. They need no gradient."""

from __future__ import annotations

from torch import Tensor, nn

from wildtta.core.tree import State

__all__ = ["Alignment", "recentre"]


class Alignment(nn.Module):
    """Base class: write `forward(feature, state) -> feature` and, with a state, `init` and `advance`.

    Attributes:
        by_image: whether where a feature is moved depends on it and the state alone (see `Measure`).
    """

    by_image = False

    def init(self, theta: Tensor, features: int) -> State:
        return {}

    def forward(self, feature: Tensor, state: State) -> Tensor:
        raise NotImplementedError

    def advance(self, feature: Tensor, state: State) -> State:
        """The state after a batch, from the feature as it came."""
        return state


class recentre(Alignment):
    """Give the stream's features the mean they had on source images: z ← z − (mean of the stream) + (mean of the source).

    The stream's mean starts at the source's and moves by `rate` an image, so that no single batch moves it far.
    """

    by_image = True
    centre: Tensor

    def __init__(self, centre: Tensor, rate: float = 0.005) -> None:
        super().__init__()
        self.register_buffer("centre", centre, persistent=False)
        self.rate = rate

    def init(self, theta: Tensor, features: int) -> State:
        return {"mean": self.centre.to(theta)}

    def forward(self, feature: Tensor, state: State) -> Tensor:
        return feature + (self.centre - state["mean"]).to(feature.dtype)

    def advance(self, feature: Tensor, state: State) -> State:
        keep = (1 - self.rate) ** feature.shape[0]
        return {"mean": keep * state["mean"] + (1 - keep) * feature.to(state["mean"].dtype).mean(0)}

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
