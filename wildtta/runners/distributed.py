"""One stream over several processes: each gives its part of every batch, and all of them learn the same.

What a method decides and averages is a matter of the whole batch: which images teach, how many they are, the moving averages,
the guards. So the processes exchange logits and features (a few thousand numbers an image), each reads every part of the method
off the joined batch, and differentiates it through its own images alone; the sum of these gradients is the joined batch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wildtta.core.episodic import Episodic
from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.prediction import Prediction
from wildtta.core.restoring import Restoring
from wildtta.core.tree import State
from wildtta.network import Align, Network
from wildtta.runners.eager import Eager, differentiate
from wildtta.runners.together import mixes_images

__all__ = ["Distributed"]


class Distributed(Eager):
    """Takes a step together with the other processes of the default process group; all have to call it.

    Attributes:
        whole: the outcome of the last step for the joined batch, in the order of the ranks; the one that `step` returns is
            cut down to the images of this process.
    """

    empty_batches = True  # of the last images of a stream there may be none for some processes

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "the distributed runner needs a process group: start the program with torchrun, and call "
                "torch.distributed.init_process_group() first"
            )
        if mixes_images(network.module):
            raise ValueError(
                "the network has BatchNorm layers, whose statistics are those of the images in one process; a stream "
                "cannot be spread over several, run it in one"
            )
        if isinstance(method, Episodic | Restoring):
            raise ValueError(
                "a method that keeps nothing of the images it has seen gains nothing from other processes; give each its own "
                "adapter, and its share of the images"
            )
        if method.alignment is not None:
            raise ValueError(
                "a method that moves features before the head cannot be spread over processes; run it in one"
            )
        self.whole: Outcome | None = None
        self._agree((repr(method), network.fingerprint()))

    def _agree(self, identity: Any) -> None:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, identity)
        if any(other != found[0] for other in found):
            raise ValueError("the processes have different methods or networks; give all of them the same")

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        joined = _Joined(self.network, images)
        state, self.whole = self.method.step(joined, state, images if len(images) else joined.stand_in, _differentiate)  # type: ignore[arg-type]
        mine = joined.mine
        return state, self.whole._replace(
            logits=self.whole.logits[mine], mask=self.whole.mask[mine], probabilities=self.whole.probabilities[mine]
        )

    def join(self, values: Tensor) -> Tensor:
        """The values of all processes, one an image, in the order of the ranks."""
        return torch.cat(_gather(values, _sizes(values)))


class _Joined:
    """A `Network` for the parts of a method: asked about this process's images, it answers for those of all."""

    def __init__(self, network: Network, images: Tensor) -> None:
        self.network = network
        self.sizes = _sizes(images)
        rank = dist.get_rank()
        start = sum(self.sizes[:rank])
        self.mine = slice(start, start + self.sizes[rank])
        # a process without images asks about one of zeros, and leaves out the answer
        self.stand_in = images.new_zeros(1, *images.shape[1:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def places(self, images: Tensor) -> tuple[Tensor, int]:
        places = torch.arange(self.mine.start, self.mine.start + len(images), device=images.device)
        return places, sum(self.sizes)

    def predict(
        self, parameters: dict[str, Tensor], images: Tensor, keys: Tensor, align: Align | None = None
    ) -> tuple[Prediction, Tensor]:
        own, logits = self.network.predict(parameters, images, keys, align)
        asked = own.again

        def again(others: Tensor) -> Prediction:
            return self._joined(asked(others), again)

        return self._joined(own, again), torch.cat(_gather(logits.detach()[: self._count], self.sizes))

    @property
    def _count(self) -> int:
        return self.mine.stop - self.mine.start

    def _joined(self, own: Prediction, again: Callable[[Tensor], Prediction]) -> Prediction:
        logits, feature = (self._whole(values[: self._count]) for values in (own.logits, own.feature))
        return Prediction(logits, feature, own.images, own.keys, again)

    def _whole(self, own: Tensor) -> Tensor:
        parts = _gather(own.detach(), self.sizes)
        parts[dist.get_rank()] = _Louder.apply(own)
        return torch.cat(parts)


class _Louder(torch.autograd.Function):
    """The same values, with their gradient times the number of processes: the mean over these is then the joined batch's.

    (The mean and not the sum, because what a loss has besides its images, a regulariser, is in the gradient of each.)
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return dist.get_world_size() * gradient


def _differentiate(loss_of: Callable[[Tensor], tuple[Tensor, State]], theta: Tensor) -> tuple[Tensor, State]:
    gradient, rest = differentiate(loss_of, theta)
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size(), rest


def _sizes(values: Tensor) -> list[int]:
    """How many images each process has."""
    own = torch.tensor([len(values)], device=values.device)
    sizes = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, own)
    if not any(sizes):
        raise ValueError("no process has an image; give at least one of them some")
    return [int(size) for size in sizes]


def _gather(values: Tensor, sizes: list[int]) -> list[Tensor]:
    """What each process has, in the order of the ranks; the parts may differ in length."""
    padded = values.new_zeros(max(sizes), *values.shape[1:])
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
