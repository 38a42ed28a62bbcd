"""The models of all streams. The worker alone uses it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wildtta import files
from wildtta.recipes import recipe
from wildtta.serve._standin import Fleet
from wildtta.serve._standin import fleet as make_fleet
from wildtta.serve.opening import Opened
from wildtta.serve.problems import Problem
from wildtta.serve.records import Record

__all__ = ["Engine", "Step"]

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
        self._fleets: dict[tuple[str, str], Fleet] = {}
        self._of: dict[str, Fleet] = {}

    # -- who is there --------------------------------------------------------------------------------------------------

    def __contains__(self, id: str) -> bool:
        return id in self._of

    def __len__(self) -> int:
        return len(self._of)

    def join(self, record: Record) -> None:
        """Begin a stream afresh. Raises a problem where its hyper-parameters cannot be had."""
        try:
            fleet = self._fleet(record.method, record.guard)
            fleet.join(record.id, seed=record.seed, **record.hyperparameters)
        except (ValueError, TypeError) as error:
            raise Problem(
                422, f"such a stream cannot be had: {error}", f"see `wildtta methods {record.method}`"
            ) from error
        self._of[record.id] = fleet

    def leave(self, id: str) -> None:
        if id in self._of:
            self._of.pop(id).leave(id)

    def reset(self, id: str) -> None:
        self._of[id].reset(id)

    def _fleet(self, method: str, guard: str) -> Fleet:
        if (method, guard) not in self._fleets:
            needed = {name: self.opened.source[name] for name in recipe(method).required}
            named = None if guard == "none" else guard
            self._fleets[method, guard] = make_fleet(self.opened.network, method, streams=[], guard=named, **needed)
        return self._fleets[method, guard]

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, images: dict[str, Tensor], *, learn: bool, top: int) -> dict[str, Step]:
        """Predict for some streams, and let them learn. Images are as the decoder gives them."""
        prepared = self._prepared(images)
        found: dict[str, Step] = {}
        for fleet in self._fleets.values():
            here = {id: batch for id, batch in prepared.items() if self._of[id] is fleet}
            if not here:
                continue
            found |= self._step(fleet, here, learn, top)
        for id, step in found.items():
            if not np.isfinite(
                step.probabilities
            ).all():  # its weights are beyond use: nothing else makes that of images
                self.reset(id)
                again = self._step(self._of[id], {id: prepared[id]}, False, top)[id]
                found[id] = again
                again.healed, again.finite = True, False
        return found

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

    def _step(self, fleet: Fleet, images: dict[str, Tensor], learn: bool, top: int) -> dict[str, Step]:
        if learn:
            answers = fleet(images)
            outcomes = {id: fleet.outcome(id) for id in images}
            masks = torch.cat([outcomes[id].mask for id in images]).tolist()
            finite = torch.stack([outcomes[id].finite for id in images]).tolist()
        else:
            with fleet.frozen():
                answers = fleet(images)
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
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), "the state")) from error

    def resets(self, id: str) -> int:
        """How often its guards have set a stream back."""
        return int(self._of[id].report(id).resets)
