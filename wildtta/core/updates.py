"""Updates: from a gradient to the next parameters θ.

θ is one flat vector, so an optimiser is a few lines and a norm over "all parameters" is a norm. An update gets the
evaluation at θ, and `evaluate(theta, within=mask)`, which evaluates the same images at other parameters, with the selection
made anew among those of `within` (what it says of each of the others may be NaN); it returns the next θ, its next state and the
evaluation that the step was based on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from wildtta.core.tree import State

__all__ = ["Evaluation", "Rate", "Update", "adamw", "sgd", "sharpness_aware"]

Rate = float | Callable[[int], float]
"""A learning rate, or a rule that gives it for the number of images in a batch."""


class Evaluation(NamedTuple):
    """One evaluation of a method on a batch: all of it detached."""

    gradient: Tensor
    logits: Tensor  # as the network gave them
    mask: Tensor  # the images that were selected
    weights: Tensor  # how much each image weighs, selected or not
    loss: Tensor  # what was differentiated
    objective: Tensor  # the mean objective of the selected images, without weights and regulariser
    probabilities: Tensor
    selection: State  # the selection's next state
    alignment: State  # the alignment's next state


class Evaluate(Protocol):
    def __call__(self, theta: Tensor, within: Tensor | None = None) -> Evaluation: ...


class Update(nn.Module):
    """Base class: write `init` and `forward`.

    Attributes:
        evaluations: how many gradients it takes a step.
    """

    evaluations = 1

    def init(self, theta: Tensor) -> State:
        return {}

    def forward(
        self, first: Evaluation, evaluate: Evaluate, theta: Tensor, state: State
    ) -> tuple[Tensor, State, Evaluation]:
        raise NotImplementedError


class sgd(Update):
    """Gradient descent with momentum: v ← μv + g, θ ← θ − ηv (as in torch: no dampening, no Nesterov)."""

    def __init__(self, lr: Rate, momentum: float = 0.9) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum is the share of the velocity that is kept, from 0 to 1, but is {momentum}")
        self.lr, self.momentum = _checked(lr), momentum
        self._coasts = momentum != 0  # a flag of its own: a momentum for each stream can decide nothing

    def init(self, theta: Tensor) -> State:
        return {"velocity": torch.zeros_like(theta)} if self._coasts else {}

    def forward(
        self, first: Evaluation, evaluate: Evaluate, theta: Tensor, state: State
    ) -> tuple[Tensor, State, Evaluation]:
        rate = _rate(self.lr, first)
        if not self._coasts:
            return theta - rate * first.gradient, state, first
        velocity = self.momentum * state["velocity"] + first.gradient
        return theta - rate * velocity, {"velocity": velocity}, first

    def extra_repr(self) -> str:
        return f"lr={_shown(self.lr)}, momentum={self.momentum}"


class adamw(Update):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019), as in torch."""

    def __init__(
        self, lr: Rate, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01
    ) -> None:
        super().__init__()
        self.lr, self.betas, self.eps, self.decay = _checked(lr), betas, eps, decay

    def init(self, theta: Tensor) -> State:
        return {"mean": torch.zeros_like(theta), "square": torch.zeros_like(theta), "steps": theta.new_zeros(())}

    def forward(
        self, first: Evaluation, evaluate: Evaluate, theta: Tensor, state: State
    ) -> tuple[Tensor, State, Evaluation]:
        rate, gradient = _rate(self.lr, first), first.gradient
        (beta1, beta2), steps = self.betas, state["steps"] + 1
        mean = beta1 * state["mean"] + (1 - beta1) * gradient
        square = beta2 * state["square"] + (1 - beta2) * gradient.square()
        spread = (square / (1 - beta2**steps)).sqrt() + self.eps
        theta = theta * (1 - rate * self.decay) - rate * (mean / (1 - beta1**steps)) / spread
        return theta, {"mean": mean, "square": square, "steps": steps}, first

    def extra_repr(self) -> str:
        return f"lr={_shown(self.lr)}, betas={self.betas}, eps={self.eps}, decay={self.decay}"


class sharpness_aware(Update):
    """Take the gradient where the loss is worst nearby: at θ + ρ g/‖g‖ (Foret et al., 2021; SAR eq. 4).

    The selection is made again there, among the images selected first (SAR's second filter); `base` then steps from θ.
    """

    evaluations = 2

    def __init__(self, base: Update, rho: float = 0.05, eps: float = 1e-12) -> None:
        super().__init__()
        self.base, self.rho, self.eps = base, rho, eps

    def init(self, theta: Tensor) -> State:
        return self.base.init(theta)

    def forward(
        self, first: Evaluation, evaluate: Evaluate, theta: Tensor, state: State
    ) -> tuple[Tensor, State, Evaluation]:
        climb = self.rho / (first.gradient.norm() + self.eps)
        second = evaluate(theta + climb * first.gradient, within=first.mask)
        theta, state, _ = self.base(second, evaluate, theta, state)
        return theta, state, second

    def extra_repr(self) -> str:
        return f"rho={self.rho}, eps={self.eps}"


def _checked(lr: Rate) -> Rate:
    if not callable(lr) and not (isinstance(lr, int | float) and lr >= 0):
        raise ValueError(f"lr must be a number that is not negative, or a function of the batch size, but is {lr!r}")
    return lr


def _shown(lr: Rate) -> str:
    """The same in every process: a plain function by its name."""
    return str(getattr(lr, "__qualname__", lr))


def _rate(lr: Rate, evaluation: Evaluation) -> float:
    return lr(evaluation.mask.shape[0]) if callable(lr) else lr
