"""The models of all streams. The worker alone uses it."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wildtta import files
from wildtta.fleets import Fleet, fleet
from wildtta.recipes import recipe
from wildtta.runners.together import mixes_images
from wildtta.serve.alone import Alone
from wildtta.serve.opening import Opened
from wildtta.serve.problems import Problem
from wildtta.serve.records import Record

__all__ = ["Engine", "Step"]

_log = logging.getLogger("wildtta.serve")
_MEMORY = Path("/dev/shm")


@dataclass
class Step:
    """What one step gave for one stream.

    Attributes:
        probabilities: B × C. entropies: B, in nats. best: the `top` classes of each image, most probable first.
        taught: which images taught. finite: whether the step was. resets: how often it has been set back so far.
        healed: its predictions were not finite, so it began anew, and these are of the network as it was.
    """

    probabilities: NDArray[np.float32]
    entropies: NDArray[np.float32]
    best: list[list[int]]
    taught: list[bool]
    finite: bool
    resets: int
    healed: bool = False


class Engine:
    """Streams of one method and guard are one fleet, which takes a step for many of them at once."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._fleets: dict[tuple[str, str], Fleet | Alone] = {}
        self._of: dict[str, Fleet | Alone] = {}

    # -- who is there --------------------------------------------------------------------------------------------------

    def __contains__(self, id: str) -> bool:
        return id in self._of

    def __len__(self) -> int:
        return len(self._of)

    def join(self, record: Record) -> None:
        """Begin a stream afresh. Raises a problem where its hyper-parameters cannot be had."""
        try:
            group = self._fleet(record.method, record.guard)
            group.join(record.id, seed=record.seed, **record.hyperparameters)
        except (ValueError, TypeError) as error:
            raise Problem(
                422, f"such a stream cannot be had: {error}", f"see `wildtta methods {record.method}`"
            ) from error
        self._of[record.id] = group

    def leave(self, id: str) -> None:
        if id in self._of:
            self._of.pop(id).leave(id)

    def reset(self, id: str) -> None:
        self._of[id].reset(id)

    def _fleet(self, method: str, guard: str) -> Fleet | Alone:
        if (method, guard) not in self._fleets:
            needed = {name: self.opened.source[name] for name in recipe(method).required}
            make = Alone if mixes_images(self.opened.network) else fleet
            named = None if guard == "none" else guard
            self._fleets[method, guard] = make(self.opened.network, method, guard=named, **needed)
        return self._fleets[method, guard]

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, images: dict[str, Tensor], *, learn: bool, top: int) -> dict[str, Step | Exception]:
        """Predict for some streams, and let them learn. Images are as the decoder gives them.

        What goes wrong with one stream is its own result; the others have taken their step.
        """
        prepared = self._prepared(images)
        found: dict[str, Step | Exception] = {}
        for group in self._fleets.values():
            here = {id: batch for id, batch in prepared.items() if self._of[id] is group}
            for part in [here] if isinstance(group, Fleet) else [{id: batch} for id, batch in here.items()]:
                if part:
                    found |= self._attempt(group, part, learn, top)
        return found

    def _attempt(
        self, group: Fleet | Alone, images: dict[str, Tensor], learn: bool, top: int
    ) -> dict[str, Step | Exception]:
        try:
            steps: dict[str, Step | Exception] = {**self._step(group, images, learn, top)}
        except Exception as error:
            _log.exception("a step failed", extra={"streams": len(images)})
            if len(images) == 1:
                return dict.fromkeys(images, error)
            steps = {}
            for id, batch in images.items():  # a fleet moves all of its streams or none: they can be tried one by one
                steps |= self._attempt(group, {id: batch}, learn, top)
        for id, step in steps.items():
            # its weights are beyond use: nothing else makes that of images
            if isinstance(step, Step) and not step.healed and not np.isfinite(step.probabilities).all():
                self.reset(id)
                steps[id] = again = self._step(group, {id: images[id]}, False, top)[id]
                again.healed, again.finite = True, False
        return steps

    def _prepared(self, images: dict[str, Tensor]) -> dict[str, Tensor]:
        """As the network takes them; those of one kind are prepared together."""
        prepared: dict[str, Tensor] = {}
        for dtype in {batch.dtype for batch in images.values()}:
            here = {id: batch for id, batch in images.items() if batch.dtype == dtype}
            joined = torch.cat(list(here.values())).to(self.opened.device)
            joined = joined.float() / 255 if dtype == torch.uint8 else joined
            joined = self.opened.model.preprocessing.normalise(joined)
            prepared |= dict(zip(here, joined.split([len(batch) for batch in here.values()]), strict=True))
        return prepared

    def _step(self, group: Fleet | Alone, images: dict[str, Tensor], learn: bool, top: int) -> dict[str, Step]:
        if learn:
            answers = group(images)
            outcomes = [outcome for id in images if (outcome := group.outcome(id)) is not None]
            masks = torch.cat([outcome.mask for outcome in outcomes]).tolist()
            finite = torch.stack([outcome.finite for outcome in outcomes]).tolist()
        else:
            with group.frozen():
                answers = group(images)
            masks, finite = [False] * sum(map(len, images.values())), [True] * len(images)
        logs = torch.cat([answers[id] for id in images]).float().log_softmax(-1)
        probabilities = logs.exp()
        entropies = -torch.special.xlogy(probabilities, probabilities).sum(-1).cpu().numpy()
        best = probabilities.topk(min(top, probabilities.shape[-1])).indices.tolist()
        values = probabilities.cpu().numpy()
        steps, start = {}, 0
        for place, (id, batch) in enumerate(images.items()):
            here = slice(start, start := start + len(batch))
            resets = self.resets(id)
            steps[id] = Step(values[here], entropies[here], best[here], masks[here], finite[place], resets)
        return steps

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self, id: str) -> bytes:
        """What a stream has learnt, as a safetensors file."""
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
            path = Path(folder) / "state"
            self._of[id].save(id, path)
            return path.read_bytes()

    def load(self, id: str, path: Path) -> None:
        """Go on with what such a file has. Raises ValueError where it does not fit the stream, which stays as it was."""
        leaves, _ = files.read(path, "adapter state")
        for name, leaf in leaves.items():
            # all that a guard remembers may become a parameter one day; only the last loss is NaN at the beginning
            if name != "loss" and leaf.is_floating_point() and not torch.isfinite(leaf).all():
                raise ValueError(f"{name} is not finite; the file is damaged")
        self._of[id].load(id, path)

    def load_bytes(self, id: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
            path = Path(folder) / "uploaded"
            path.write_bytes(data)
            try:
                self.load(id, path)
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # a header can be wrong in all ways
                raise ValueError(str(error).replace(str(path), "the state")) from error

    def resets(self, id: str) -> int:
        """How often its guards have set a stream back."""
        return int(self._of[id].report(id).resets)
