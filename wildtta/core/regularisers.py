"""Regularisers: a scalar of the parameters θ, added to the loss."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Regulariser", "fisher_anchor"]


class Regulariser(nn.Module):
    """Base class: write `forward(theta) -> scalar`."""

    def forward(self, theta: Tensor) -> Tensor:
        raise NotImplementedError


class fisher_anchor(Regulariser):
    """strength · Σ F (θ − θ₀)²: weights that the source task relies on stay where they were (EATA eq. 8)."""

    importance: Tensor
    anchor: Tensor

    def __init__(self, importance: Tensor, anchor: Tensor, strength: float = 2000.0) -> None:
        super().__init__()
        self.register_buffer("importance", importance, persistent=False)
        self.register_buffer("anchor", anchor, persistent=False)
        self.strength = strength

    def forward(self, theta: Tensor) -> Tensor:
        return self.strength * (self.importance * (theta - self.anchor).square()).sum()

    def extra_repr(self) -> str:
        return f"strength={self.strength}"
