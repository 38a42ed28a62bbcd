"""Eager steps that spare what does not teach: no backward for nothing, and none over all where it is for a few.

The numbers are those of the plain runner, up to the order in which a kernel adds. What is spared depends on what was selected,
so the host waits for the device once a step, after the first forward; and on how long things take here, which is measured as
it goes: the last digits of two runs may differ.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from wildtta.core.guards import Outcome
from wildtta.core.method import Batch, Loss, LossFunction, Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners.costs import Costs, mark
from wildtta.runners.eager import Eager, differentiate, gradient_of, kind_of
from wildtta.runners.recent import Recent
from wildtta.runners.together import mixes_images

__all__ = ["Sparing"]

_MOST = 64  # kinds of batches of which it is remembered what they cost


class Sparing(Eager):
    """Spares what does not teach, where the network and the method take each image by itself; `reason` says why not.

    - Nothing is selected: no backward.
    - Few are: the first forward keeps nothing, and a second one, with a backward, takes the selected images alone.
    - Many are: forward and backward over all, as in the plain runner.
    - A second evaluation (SAR's) takes the images that the first selected.
    """

    def __init__(self, method: Method, network: Network) -> None:
        super().__init__(method, network)
        self.reason = _obstacle(method, network)
        self.forget()

    def forget(self) -> None:
        self.costs: Recent[Any, Costs] = Recent(_MOST)
        self._compared = False

    def step(self, state: State, images: Tensor) -> tuple[State, Outcome]:
        if self.reason is not None:
            return super().step(state, images)
        return self.method.step(self.network, state, images, _Step(self, self._costs(images)))

    def _costs(self, images: Tensor) -> Costs:
        return self.costs.of(kind_of(images), lambda: Costs(len(images)))

    def compare(self, first: Tensor, second: Tensor) -> bool:
        """Whether the first images that were seen again got the same logits again; else they influence each other."""
        if not self._compared:
            self._compared = True
            scale = first.abs().amax() * (0.1 if first.dtype in (torch.float16, torch.bfloat16) else 1e-3)
            if bool((first - second).abs().amax() > scale):
                self.reason = "the network's answer to an image depends on the others of its batch"
                warnings.warn(f"{self.reason}; nothing can be spared", stacklevel=2)
        return self.reason is None


class _Step:
    """Differentiates the losses of one step."""

    def __init__(self, runner: Sparing, costs: Costs) -> None:
        self.runner, self.costs = runner, costs
        self.mask: Tensor | None = None  # what the first evaluation selected,
        self.places: Tensor | None = None  # where (None: everywhere),
        self.rest: State = {}  # and what else it gave

    def __call__(self, loss: LossFunction, theta: Tensor) -> tuple[Tensor, State]:
        if not isinstance(loss, Loss):
            return differentiate(loss, theta)
        if self.mask is not None and loss.batch.within is self.mask:
            return self._again(loss, theta)
        return self._first(loss, theta)

    def _first(self, loss: Loss, theta: Tensor) -> tuple[Tensor, State]:
        costs, device = self.costs, theta.device
        build = costs.build_first()
        start = mark(device)
        with torch.set_grad_enabled(build):
            theta = theta.detach().requires_grad_(build)
            value, rest = loss(theta)
        looked = mark(device)
        selected, finite = _read(rest)
        costs.settle(selected)
        costs.note("build" if build else "look", start, looked)
        self.mask, self.rest = rest["mask"], rest
        if not finite:  # an infinity may be hidden in the gradient, too: the one over all says what is to be done
            return (gradient_of(value, theta), rest) if build else differentiate(loss, theta)
        if selected == 0:
            self.places = torch.zeros(0, dtype=torch.int64, device=device)
            return torch.zeros_like(theta), rest
        if selected < len(self.mask):
            # the places of the selected images in their order; unlike `nonzero`, nobody has to wait for it
            self.places = self.mask.logical_not().to(torch.uint8).argsort(stable=True)[:selected]
        start = mark(device)
        if build and (self.places is None or costs.whole_is_cheaper(selected)):
            gradient = gradient_of(value, theta)
            costs.note("back", start, mark(device))
            costs.whole += 1
            return gradient, rest
        del value
        gradient, again = differentiate(loss.on(self._chosen(loss.batch, rest["weights"])), theta)
        costs.note("teach", start, mark(device), selected)
        costs.part += 1
        if self.places is not None and not self.runner.compare(self._of(rest["logits"]), again["logits"]):
            self.places = None
            return differentiate(loss, theta)
        return gradient, rest

    def _again(self, loss: Loss, theta: Tensor) -> tuple[Tensor, State]:
        """Another evaluation, which only concerns the images that the first one selected."""
        if self.places is None:
            return differentiate(loss, theta)
        if len(self.places) == 0:
            return torch.zeros_like(theta), self.rest
        gradient, rest = differentiate(loss.on(self._chosen(loss.batch)), theta)
        return gradient, {**rest, **{name: self._spread(rest[name]) for name in _BY_IMAGE}}

    def _chosen(self, batch: Batch, weights: Tensor | None = None) -> Batch:
        return Batch(self._of(batch.images), self._of(batch.keys), None, None if weights is None else self._of(weights))

    def _of(self, values: Tensor) -> Tensor:
        if self.places is None:
            return values
        layout = torch.channels_last if _is_channels_last(values) else torch.contiguous_format
        return values.index_select(0, self.places).contiguous(memory_format=layout)

    def _spread(self, values: Tensor) -> Tensor:
        """What is known of some images, at their places; of the others, nothing is."""
        assert self.mask is not None
        assert self.places is not None
        unknown = False if values.dtype == torch.bool else torch.nan
        every = values.new_full((len(self.mask), *values.shape[1:]), unknown)
        return every.index_copy(0, self.places, values)


_BY_IMAGE = ("mask", "weights", "logits", "probabilities")


def _read(rest: State) -> tuple[int, bool]:
    """How many images are selected, and whether all logits are finite: the one time the host waits."""
    count, finite = torch.stack([rest["mask"].sum(), torch.isfinite(rest["logits"]).all().to(torch.int64)]).tolist()
    return count, bool(finite)


def _is_channels_last(values: Tensor) -> bool:
    return values.ndim == 4 and not values.is_contiguous() and values.is_contiguous(memory_format=torch.channels_last)


def _obstacle(method: Method, network: Network) -> str | None:
    if not isinstance(method, Method):
        return "several streams in one step have one shape, whatever each of them selects"
    if method.update is None:
        return "the method learns nothing"
    if mixes_images(network):
        return "the network has BatchNorm layers, which mix the images of a batch"
    if not method.by_image:
        return "a part of the method does not say that it takes each image by itself (by_image)"
    return None
