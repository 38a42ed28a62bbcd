"""Methods that learn from one image, predict it, and forget.

    views of an image → objective → one update → prediction of the image → back to the source

Every image starts from the parameters that the stream has, with a fresh optimiser, so it is answered as if it had come
alone. Since a step is pure, nothing has to be put back: what an image taught is dropped with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.core import keys as random
from wildtta.core.guards import Outcome
from wildtta.core.measures import Measure
from wildtta.core.method import Differentiate, Method
from wildtta.core.prediction import Prediction, widened
from wildtta.core.tree import State
from wildtta.core.updates import Evaluation, Update
from wildtta.core.views import Views
from wildtta.core.vmapping import functional_differentiate, vmapped

if TYPE_CHECKING:
    from wildtta.network import Layout, Network

__all__ = ["Episodic"]


class Episodic(Method):
    """A composition whose every image is an episode of its own.

    Args:
        layout: what may change: `network.everything()`, `network.norms()`, ….
        views: what altered copies of an image are made.
        objective: what is minimised over an image's views; its mean, where it gives a value a view.
        update: how the gradient becomes the parameters that the image is predicted with.
        prior: BatchNorm layers normalise with this share of the source's statistics, and the rest of those of what passes
            through: an image's views while learning, the image alone when it is predicted. (No gradient goes through them.)
        at_once: so many images side by side, vmapped; each then has parameters of its own in memory.
        chunk: so many views in a pass (0: all of them), for less memory, at the price of a second forward pass. The gradient
            is that of all views, as long as the objective reads no more than the logits, and no BatchNorm mixes the views.

    An image that is not finite, or whose loss, gradient or new parameters are not, is answered by the network as it was, and
    counted as skipped. The stream's state is left as it is, but for its counters; guards have nothing to watch over.
    """

    capturable = False

    def __init__(
        self,
        layout: Layout,
        views: Views,
        objective: Measure,
        update: Update,
        *,
        prior: float = 16 / 17,
        at_once: int = 1,
        chunk: int = 0,
    ) -> None:
        super().__init__(layout, objective, update)
        if not 0 <= prior <= 1:
            raise ValueError(f"prior is a share from 0 to 1, but is {prior}")
        for name, value, least in (("at_once", at_once, 1), ("chunk", chunk, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, but is {value}")
        self.views, self.prior, self.at_once, self.chunk = views, prior, at_once, chunk

    @property
    def backwards(self) -> int:
        """How many backward passes over a batch a step comes to: one for each view of its images."""
        return self.views.count * super().backwards

    @property
    def forwards(self) -> int:
        """How many forward passes over a batch a step comes to: one for each view of its images, and the prediction."""
        learning = super().backwards if self.chunk == 0 else 2 * super().backwards
        return self.views.count * learning + 1

    def init(self, network: Network, seed: int = 0) -> State:
        if self.chunk and network.mixes_images:
            raise ValueError(
                "chunk cannot be used with BatchNorm statistics of the views: a part of the views has others; leave chunk out, or "
                "give prior=1.0 for the source's statistics alone"
            )
        return super().init(network, seed)

    def _fresh(self, network: Network) -> State:
        return {"theta": self.layout.initial, "update": {}, "selection": {}, "alignment": {}}

    def step(
        self, network: Network, state: State, images: Tensor, differentiate: Differentiate
    ) -> tuple[State, Outcome]:
        """Learn from each image's views and predict it: the state with its counters moved on, and what happened."""
        counters, theta = state["counters"], state["stream"]["theta"]
        keys = random.of_content(images, state["seed"])  # not by its place: nothing but the image decides

        def episode(image: Tensor, key: Tensor, differentiate: Differentiate) -> tuple[Tensor, ...]:
            return self._episode(network, theta, image[None], key[None], differentiate)

        if self.at_once == 1:
            parts = [
                episode(image, key, differentiate) for image, key in zip(images.unbind(), keys.unbind(), strict=True)
            ]
            logits, loss, finite = (torch.stack(column) for column in zip(*parts, strict=True))
        else:
            with vmapped():
                logits, loss, finite = torch.func.vmap(
                    lambda image, key: episode(image, key, functional_differentiate), chunk_size=self.at_once
                )(images, keys)

        taught, learned = finite.sum(), finite.any()
        loss = torch.where(finite, loss, 0.0).sum() / taught.clamp(min=1)
        outcome = Outcome(logits, finite, loss, loss, widened(logits).softmax(-1), learned, finite.all())
        return {
            **state,
            "counters": {
                **counters,
                "seen": counters["seen"] + images.shape[0],
                "selected": counters["selected"] + taught,
                "updates": counters["updates"] + taught,
                "skipped": counters["skipped"] + (~finite).sum(),
            },
            "loss": torch.where(learned, loss.to(state["loss"].dtype), state["loss"]),
        }, outcome

    def predict(self, network: Network, state: State, images: Tensor) -> Tensor:
        """Logits at the stream's parameters; nothing is learned. With BatchNorm each image is normalised on its own."""
        parameters = self.layout.unpack(state["stream"]["theta"])
        if not network.mixes_images:
            return network.run(parameters, images)[0]
        return torch.cat([network.run(parameters, image)[0] for image in images.split(1)])

    # -- one image -----------------------------------------------------------------------------------------------------

    def _episode(
        self, network: Network, theta: Tensor, image: Tensor, key: Tensor, differentiate: Differentiate
    ) -> tuple[Tensor, Tensor, Tensor]:
        """An image's logits after it was learnt from, its loss before, and whether it could be learnt from."""
        assert self.update is not None
        with torch.no_grad(), torch.autocast(image.device.type, enabled=False):
            views = self.views(image, key)[0]
        names = random.fold(key, torch.arange(len(views), device=key.device))  # the views' own keys

        def evaluate(theta: Tensor, within: Tensor | None = None) -> Evaluation:
            if self.chunk == 0:
                return self._whole(network, views, names, theta, differentiate)
            return self._in_chunks(network, views, names, theta, differentiate)

        first = evaluate(theta)
        moved, _, used = self.update(first, evaluate, theta, self.update.init(theta))
        finite = torch.isfinite(image).all() & torch.isfinite(moved).all()
        for result in (used.loss, first.gradient, used.gradient):
            finite = finite & torch.isfinite(result).all()
        with torch.no_grad():
            logits, _ = network.run(self.layout.unpack(torch.where(finite, moved, theta)), image)
        return logits[0], used.loss, finite

    def _whole(
        self, network: Network, views: Tensor, keys: Tensor, theta: Tensor, differentiate: Differentiate
    ) -> Evaluation:
        """All views in one pass."""

        def loss(theta: Tensor) -> tuple[Tensor, State]:
            prediction, logits = network.predict(self.layout.unpack(theta), views, keys)
            return self._judged(prediction, logits)

        gradient, rest = differentiate(loss, theta)
        return Evaluation(gradient, **rest)

    def _in_chunks(
        self, network: Network, views: Tensor, keys: Tensor, theta: Tensor, differentiate: Differentiate
    ) -> Evaluation:
        """The same in several passes: first all logits and the loss's slope at them, then the network's gradient part by part.

        The gradient by θ of the sum of (slope · logits), the slope held fixed, is that of the loss.
        """
        parts = views.split(self.chunk)
        with torch.no_grad():
            found = [network.predict(self.layout.unpack(theta), part, key) for part, key in _with_keys(parts, keys)]
        features, raw = (
            torch.cat([prediction.feature for prediction, _ in found]),
            torch.cat([part for _, part in found]),
        )

        def loss(logits: Tensor) -> tuple[Tensor, State]:
            return self._judged(Prediction(logits, features, views, keys, found[0][0].again), raw)

        slope, rest = differentiate(loss, widened(raw))

        def along(part: Tensor, slope: Tensor) -> Callable[[Tensor], tuple[Tensor, State]]:
            return lambda theta: ((widened(network.run(self.layout.unpack(theta), part)[0]) * slope).sum(), {})

        gradient = torch.zeros_like(theta)
        for part, own in zip(parts, slope.split(self.chunk), strict=True):
            gradient = gradient + differentiate(along(part, own), theta)[0]
        return Evaluation(gradient, **rest)

    def _judged(self, prediction: Prediction, logits: Tensor) -> tuple[Tensor, State]:
        assert self.objective is not None
        with torch.autocast(logits.device.type, enabled=False):
            loss = self.objective(prediction).mean()
        mask = torch.ones_like(logits[:, 0], dtype=torch.bool)
        return loss, {
            "logits": logits.detach(),
            "mask": mask,
            "weights": mask.to(loss.dtype),
            "loss": loss.detach(),
            "objective": loss.detach(),
            "probabilities": prediction.probabilities.detach(),
            "selection": {},
            "alignment": {},
        }

    def extra_repr(self) -> str:
        return f"prior={self.prior}"


def _with_keys(parts: tuple[Tensor, ...], keys: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(parts, keys.split(len(parts[0])), strict=True))
