"""A method: one composition of parts, and the pure step that it makes.

    state, outcome = method.step(network, state, images, differentiate)

The state is a nested dict of tensors and holds all there is: parameters, optimiser, selection, guards, counters. Nothing
is mutated, nothing looks at the data, so a step can be run eagerly, captured, compiled or vmapped; a runner does that, and
supplies `differentiate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from wildtta.core import keys as random
from wildtta.core import tree
from wildtta.core.alignments import Alignment
from wildtta.core.guards import Guard, Outcome
from wildtta.core.measures import Measure
from wildtta.core.regularisers import Regulariser
from wildtta.core.selections import Selection, everything
from wildtta.core.tree import State
from wildtta.core.updates import Evaluation, Update
from wildtta.core.weightings import Weighting, uniform

if TYPE_CHECKING:
    from wildtta.network import Layout, Network

__all__ = ["Batch", "Differentiate", "Loss", "LossFunction", "Method"]


class Batch(NamedTuple):
    """What a loss is taken of."""

    images: Tensor
    keys: Tensor  # one an image, for parts that draw random numbers
    within: Tensor | None = None  # the images that may be selected; None: all
    weights: Tensor | None = None  # given where the selection is made already: all of these images teach, with these


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of one batch, as a function of θ: `loss(theta)` gives it, and all else that was computed on the way.

    Calling it is all a runner must do. A runner that wants to spare work may look at its `batch` and ask for the loss `on` a part.
    """

    method: Method
    network: Network
    stream: State
    batch: Batch

    def __call__(self, theta: Tensor) -> tuple[Tensor, State]:
        return self.method._loss(self.network, self.stream, self.batch, theta)

    def on(self, batch: Batch) -> Loss:
        return replace(self, batch=batch)


LossFunction: TypeAlias = Callable[[Tensor], tuple[Tensor, State]]
"""θ → (loss, what else was computed): a `Loss`, or what a composition of another kind makes."""

Differentiate: TypeAlias = Callable[[LossFunction, Tensor], tuple[Tensor, State]]
"""(loss, θ) → (gradient of the loss at θ, what else it gave)."""


class Method(nn.Module):
    """A composition of parts.

    Args:
        layout: what may change: `network.norms()`, `network.norms(frozen_top=True)`, ….
        objective: what is minimised, a value an image. None: nothing is learned by gradient.
        selection: which images teach.
        weighting: how much each of them teaches.
        regulariser: a scalar of the parameters, added to the loss.
        update: how a gradient becomes the next parameters.
        guards: what watches over the stream, in order.
        alignment: what moves the feature before the head.
        batch_statistics: BatchNorm layers normalise with the batch's own statistics instead of the source's.

    The loss of a batch is the mean over the selected images of weight × objective, plus the regulariser. A step with nothing
    selected, or with a loss, gradient or result that is not finite, changes neither parameters nor optimiser nor selection.
    """

    prior = 0.0
    """With `batch_statistics`, the share that the source's BatchNorm statistics keep."""

    capturable = True
    """Whether a step is one piece of work for the device, so that recording it as a graph is worth while."""

    diffusion_steps = 0
    """How many passes of a diffusion model an image takes, each with its gradient."""

    def __init__(
        self,
        layout: Layout,
        objective: Measure | None = None,
        update: Update | None = None,
        *,
        selection: Selection | None = None,
        weighting: Weighting | None = None,
        regulariser: Regulariser | None = None,
        guards: Iterable[Guard] = (),
        alignment: Alignment | None = None,
        batch_statistics: bool = True,
    ) -> None:
        super().__init__()
        if (objective is None) != (update is None):
            raise ValueError(
                "a method that learns by gradient needs both an objective and an update; give both, or neither"
            )
        if not hasattr(layout, "initial"):
            raise TypeError(
                f"a method begins with what may change, network.norms() for one, but got an object of type {type(layout).__name__}"
            )
        _are_parts(
            objective=(objective, Measure),
            update=(update, Update),
            selection=(selection, Selection),
            weighting=(weighting, Weighting),
            regulariser=(regulariser, Regulariser),
            alignment=(alignment, Alignment),
        )
        self.layout = layout
        self.objective = objective
        self.update = update
        self.selection = everything() if selection is None else selection
        self.weighting = uniform() if weighting is None else weighting
        self.regulariser = regulariser
        self.guards = nn.ModuleList(guards)
        self.alignment = alignment
        self.batch_statistics = batch_statistics

    @property
    def by_image(self) -> bool:
        """Whether every part says that what it makes of an image depends on this image alone."""
        parts = [part for part in self.modules() if isinstance(part, Measure | Selection | Weighting | Alignment)]
        return all(part.by_image for part in parts)

    @property
    def backwards(self) -> int:
        """How many backward passes a step takes."""
        return 0 if self.update is None else self.update.evaluations

    @property
    def forwards(self) -> int:
        """How many forward passes a step takes: one for each evaluation, and what measures ask of the network besides."""
        asked = sum(part.forwards for part in self.modules() if isinstance(part, Measure))
        return max(self.backwards, 1) * (1 + asked)

    # -- state ---------------------------------------------------------------------------------------------------------

    def init(self, network: Network, seed: int = 0) -> State:
        """The state at the start of a stream."""
        fresh = self._fresh(network)
        device = fresh["theta"].device
        guards = {str(place): guard.init(fresh, network.classes) for place, guard in enumerate(self._guards())}
        counters = {
            name: torch.zeros((), dtype=torch.int64, device=device)
            for name in ("seen", "selected", "updates", "resets", "skipped")
        }
        loss = torch.full((), torch.nan, dtype=fresh["theta"].dtype, device=device)
        return {
            "stream": fresh,
            "guards": guards,
            "counters": counters,
            "loss": loss,
            "seed": torch.tensor(seed, dtype=torch.int64, device=device),
        }

    def _fresh(self, network: Network) -> State:
        theta = self.layout.initial
        return {
            "theta": theta,
            "update": self.update.init(theta) if self.update is not None else {},
            "selection": self.selection.init(theta, network.classes),
            "alignment": self.alignment.init(theta, network.features) if self.alignment is not None else {},
        }

    # -- step ----------------------------------------------------------------------------------------------------------

    def step(
        self, network: Network, state: State, images: Tensor, differentiate: Differentiate
    ) -> tuple[State, Outcome]:
        """Predict a batch and learn from it: the next state, and what happened."""
        stream, counters = state["stream"], state["counters"]
        theta = stream["theta"]
        places, count = network.places(images)
        keys = random.fold(state["seed"], counters["seen"] + places)

        def evaluate(theta: Tensor, within: Tensor | None = None) -> Evaluation:
            gradient, rest = differentiate(Loss(self, network, stream, Batch(images, keys, within)), theta)
            return Evaluation(gradient, **rest)

        if self.update is None:
            with torch.no_grad():
                _, rest = self._loss(network, stream, Batch(images, keys), theta)
            first = used = Evaluation(torch.zeros_like(theta), **rest)
            moved = {**stream, "alignment": first.alignment}
        else:
            first = evaluate(theta)
            new_theta, new_update, used = self.update(first, evaluate, theta, stream["update"])
            moved = {
                "theta": new_theta,
                "update": new_update,
                "selection": first.selection,
                "alignment": first.alignment,
            }

        finite = _all_finite(used.loss, first.gradient, used.gradient, moved["theta"], first.probabilities)
        learned = finite & used.mask.any()
        outcome = Outcome(
            first.logits, used.mask & learned, used.loss, used.objective, first.probabilities, learned, finite
        )
        kept = tree.select(learned, moved, stream)
        kept["alignment"] = tree.select(finite, moved["alignment"], stream["alignment"])
        guards, kept, resets = self._guard(network, state["guards"], stream, kept, outcome)
        return {
            "stream": kept,
            "guards": guards,
            "counters": {
                "seen": counters["seen"] + count,
                "selected": counters["selected"] + outcome.mask.sum(),
                "updates": counters["updates"] + learned,
                "resets": counters["resets"] + resets,
                "skipped": counters["skipped"] + ~finite,
            },
            "loss": torch.where(learned, used.loss.to(state["loss"].dtype), state["loss"]),
            "seed": state["seed"],
        }, outcome

    def predict(self, network: Network, state: State, images: Tensor) -> Tensor:
        """Logits at the stream's parameters; nothing is learned."""
        align = self._align(state["stream"])
        return network.run(self.layout.unpack(state["stream"]["theta"]), images, align)[0]

    def _loss(self, network: Network, stream: State, batch: Batch, theta: Tensor) -> tuple[Tensor, State]:
        raw: list[Tensor] = []

        def align(feature: Tensor) -> Tensor:
            assert self.alignment is not None
            raw.append(feature)
            return self.alignment(feature, stream["alignment"])

        prediction, logits = network.predict(
            self.layout.unpack(theta), batch.images, batch.keys, align if self.alignment is not None else None
        )
        with torch.autocast(batch.images.device.type, enabled=False):
            if self.objective is None:
                mask, loss = torch.zeros_like(logits[:, 0], dtype=torch.bool), prediction.logits.new_zeros(())
                objective, weights = loss, torch.zeros_like(prediction.logits[:, 0])
            else:
                if batch.weights is None:
                    mask = self.selection(prediction, stream["selection"])
                    weights = self.weighting(prediction).detach()
                else:
                    mask, weights = torch.ones_like(logits[:, 0], dtype=torch.bool), batch.weights
                if batch.within is not None:
                    mask = mask & batch.within
                value = self.objective(prediction)
                loss = masked_mean(weights * value, mask)
                objective = masked_mean(value.detach(), mask)
                if self.regulariser is not None:
                    loss = loss + self.regulariser(theta).to(loss.dtype)
            with torch.no_grad():
                next_selection = self.selection.advance(prediction, mask, stream["selection"])
                next_alignment = stream["alignment"]
                if self.alignment is not None:
                    next_alignment = self.alignment.advance(raw[0], next_alignment)
        return loss, {
            "logits": logits.detach(),
            "mask": mask,
            "weights": weights,
            "loss": loss.detach(),
            "objective": objective,
            "probabilities": prediction.probabilities.detach(),
            "selection": tree.map(torch.Tensor.detach, next_selection),
            "alignment": tree.map(torch.Tensor.detach, next_alignment),
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Method:
        super()._apply(tree.keep_wide(fn), recurse)
        return self

    def _align(self, stream: State) -> Callable[[Tensor], Tensor] | None:
        alignment = self.alignment
        return None if alignment is None else lambda feature: alignment(feature, stream["alignment"])

    def _guards(self) -> list[Guard]:
        return [guard for guard in self.guards if isinstance(guard, Guard)]

    def _guard(
        self, network: Network, memories: State, before: State, stream: State, outcome: Outcome
    ) -> tuple[State, State, Tensor]:
        """The first guard that sets the stream back has done so; the others start anew with it."""
        back = torch.zeros_like(outcome.learned)
        if self.update is None or len(self.guards) == 0:
            return memories, stream, back
        fresh, found = self._fresh(network), []
        for place, guard in enumerate(self._guards()):
            memory, after, reset = guard(memories[str(place)], before, stream, fresh, outcome)
            stream = tree.select(back, stream, after)
            found.append((guard, memory, reset & ~back))
            back = back | reset
        moved: State = {}
        for place, (guard, memory, mine) in enumerate(found):
            restarted = guard.restart(memories[str(place)], fresh, network.classes)
            moved[str(place)] = tree.select(back & ~mine, restarted, memory)
        return moved, stream, back


def _are_parts(**given: tuple[Any, type]) -> None:
    for name, (part, kind) in given.items():
        if part is None or isinstance(part, kind):
            continue
        found = f"the class {part.__name__}" if isinstance(part, type) else f"of type {type(part).__name__}"
        hint = ""
        if isinstance(part, type) and issubclass(part, kind):
            hint = f"; make one of it: {part.__name__}(…)"
        elif kind is Measure and callable(part):
            hint = "; wrap it: measure(function)"
        raise TypeError(f"{name} must be a part of the kind {kind.__name__} (see wildtta.core), but is {found}{hint}")


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values whose mask is set; 0 when none is."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def _all_finite(*tensors: Tensor) -> Tensor:
    finite = torch.isfinite(tensors[0]).all()
    for tensor in tensors[1:]:
        finite = finite & torch.isfinite(tensor).all()
    return finite
