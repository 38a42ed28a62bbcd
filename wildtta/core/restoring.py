"""Methods that change the image instead of the network.

    image → restoration → the same network → the mean of both answers

Nothing is learned, so the stream's state is its counters alone, and an image is answered as if it had come alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wildtta.core.guards import Outcome
from wildtta.core.method import Differentiate, Method
from wildtta.core.prediction import widened
from wildtta.core.tree import State

if TYPE_CHECKING:
    from wildtta.network import Network

__all__ = ["Restoration", "Restoring"]


class Restoration(nn.Module):
    """Base class: write `forward(images, seed) -> images`, of the same shape and normalised as they came.

    What an image becomes depends on itself and the seed alone: not on its neighbours, nor on what came before.

    Attributes:
        steps: passes of a diffusion model that an image takes.
    """

    steps: int = 0

    def forward(self, images: Tensor, seed: Tensor) -> Tensor:
        raise NotImplementedError


class Restoring(Method):
    """Answers with the mean of two probabilities: of the images as they are, and as a restoration gives them back.

    The logits are the logarithms of these means. An image whose restoration is not finite is answered as it is.
    """

    capturable = False

    def __init__(self, network: Network, restoration: Restoration) -> None:
        super().__init__(network.nothing(), batch_statistics=False)
        self.restoration = restoration

    @property
    def forwards(self) -> int:
        """How many forward passes over a batch a step takes: of the images, and of the restored ones."""
        return 2

    @property
    def diffusion_steps(self) -> int:  # type: ignore[override]
        """How many passes of the diffusion model an image takes, each with its gradient."""
        return self.restoration.steps

    def step(
        self, network: Network, state: State, images: Tensor, differentiate: Differentiate
    ) -> tuple[State, Outcome]:
        """Answer a batch: the state with its counters moved on, and what happened."""
        state, outcome = super().step(network, state, images, differentiate)
        logits = self._with_restored(network, state, images, outcome.logits)
        return state, outcome._replace(logits=logits, probabilities=widened(logits).softmax(-1))

    def predict(self, network: Network, state: State, images: Tensor) -> Tensor:
        """Logits of the two answers' mean."""
        return self._with_restored(network, state, images, super().predict(network, state, images))

    @torch.no_grad()
    def _with_restored(self, network: Network, state: State, images: Tensor, logits: Tensor) -> Tensor:
        keys = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        _, restored = network.predict({}, self.restoration(images, state["seed"]), keys)
        with torch.autocast(images.device.type, enabled=False):
            plain = widened(logits).log_softmax(-1)
            both = torch.logaddexp(plain, widened(restored).log_softmax(-1)) - math.log(2)
            usable = torch.isfinite(restored).all(-1, keepdim=True)
            return torch.where(usable, both, plain).to(logits.dtype)
