"""`fleet`: many streams, each with a network of its own that goes on learning, in one batch."""

from __future__ import annotations

import difflib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from wildtta import files
from wildtta.common import Report, compose, description, exported, identity, report_of, take, usable
from wildtta.core import tree
from wildtta.core.episodic import Episodic
from wildtta.core.guards import Guard, Outcome
from wildtta.core.method import Method
from wildtta.core.restoring import Restoring
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners.cohort import Cohort, Variant
from wildtta.runners.recent import Places, Recent
from wildtta.runners.settings import same
from wildtta.runners.together import mixes_images

__all__ = ["Fleet", "fleet"]

Name: TypeAlias = str | int

_VALUES = 64 * 3 * 224 * 224
"""Values of the images that go through the network at once, by default: 64 images of 224 pixels, or 3,136 of 32."""


def fleet(
    network: nn.Module,
    method: str | Callable[[Network], Method] = "recap",
    *,
    streams: int | Iterable[Name] = (),
    each: Mapping[str, Sequence[Any]] | None = None,
    guard: str | Guard | None = None,
    runner: str = "eager",
    seed: int | Sequence[int] = 0,
    chunk: int | None = None,
    head: str | None = None,
    kind: str | None = None,
    layers: Iterable[str] | None = None,
    **hyperparameters: Any,
) -> Fleet:
    """Make a fleet: independent streams that share a network and adapt it each in its own way, as separate adapters would.

    Args:
        network, method, guard, head, kind, layers, hyperparameters: as for `wildtta.adapt`. The network must not mix the
            images of a batch: no BatchNorm.
        streams: their names, or how many (they are then called 0, 1, …). More can join, and any can leave.
        each: hyper-parameters of which every stream has its own value: `each={"lr": [1e-3, 2e-3]}` for two streams.
        runner: "eager"; "captured": one CUDA graph for each number of streams and images; "auto": that on a GPU.
        seed: of every stream, or one for each of them.
        chunk: how many streams go through the network at once. By default, as many as have together the pixels of 64 images
            of 224 × 224. It changes memory and time, and no result.

    >>> import torch, wildtta
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
    ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10),
    ... )
    >>> cameras = wildtta.fleet(network, "tent", streams=["north", "south", "gate"])
    >>> answers = cameras({"north": torch.randn(1, 3, 16, 16), "gate": torch.randn(4, 3, 16, 16)})
    >>> answers["gate"].shape, cameras.report("gate").seen, cameras.report("south").seen
    (torch.Size([4, 10]), 4, 0)
    """
    names = tuple(range(streams)) if isinstance(streams, int) else tuple(streams)
    if isinstance(streams, str):
        raise TypeError(f"streams must be a list of names or a number, but is the string {streams!r}")
    seeds = [seed] * len(names) if isinstance(seed, int) else list(seed)
    columns = {"seed": seeds} | {key: list(values) for key, values in (each or {}).items()}
    for key, values in columns.items():
        if key in hyperparameters:
            raise TypeError(f"{key} was given both for all streams and for each of them")
        if len(values) != len(names):
            raise ValueError(f"{key} has {len(values)} values for {len(names)} streams; give one for each")
    with torch.inference_mode(False):
        view = Network(network, head=head, kind=kind, layers=layers)
        made = Fleet(
            view, method, guard=guard, runner=runner, seed=seeds[0] if seeds else 0, chunk=chunk, **hyperparameters
        )
        for place, name in enumerate(names):
            made.join(name, **{key: values[place] for key, values in columns.items()})
        made.trim()
    return made


class Fleet(nn.Module):
    """Streams that adapt one network, each for itself. Made by `fleet`.

    `answers = fleet({"a": images, "b": others})` predicts for some of the streams, any number of images each, and then
    takes one step of each of them. `logits = fleet(images, ["a", "b"])` does so for single images. Streams with as many images
    go through the network as one batch; each gets what an adapter of its own would give it. What is wrong with the images of
    one stream is an error before any stream has moved; images that are not finite cost their own stream alone.

    Calls from several threads wait for one another.
    """

    def __init__(
        self,
        network: Network,
        method: str | Callable[[Network], Method],
        *,
        guard: str | Guard | None = None,
        runner: str = "eager",
        seed: int = 0,
        chunk: int | None = None,
        **hyperparameters: Any,
    ) -> None:
        super().__init__()
        if mixes_images(network.module):
            raise ValueError(
                "the network has BatchNorm layers, which mix the images of a batch, so streams in one batch would not be "
                "independent; make an adapter for each stream with wildtta.adapt, or use a network with GroupNorm or LayerNorm"
            )
        if runner in ("sparing", "compiled", "distributed"):
            raise ValueError(
                f'the {runner} runner is for a single stream; a fleet takes the runner "eager", or "captured" on a GPU'
            )
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1 stream, but is {chunk}")
        self.network = network
        self.chunk = chunk
        self._recipe, self._guard, self._seed = method, guard, seed
        self._kind = "captured" if runner == "auto" else runner  # which steps eagerly where there is no CUDA
        self._fingerprint = network.fingerprint()
        self._lock = threading.RLock()
        self._checked: Recent[tuple[Any, ...], None] = Recent(64)
        self._places = Places()
        self._frozen = 0  # how many `frozen` are under way: threads may overlap
        self._hyperparameters = hyperparameters
        self._usual = self._compose(hyperparameters)
        if isinstance(self._usual.method, Episodic | Restoring):
            raise ValueError(
                f"{self._usual.name!r} keeps nothing of the images it has seen, so its streams would all be the same; make one "
                "adapter with wildtta.adapt and give it the images of all"
            )
        self._cohorts = [Cohort(network, self._kind, self._usual)]
        self._where: dict[Name, tuple[Cohort, int]] = {}
        self._last: dict[Name, _Last] = {}
        self.train(False)

    @property
    def streams(self) -> tuple[Name, ...]:
        """The names of the streams, in order of joining."""
        return tuple(self._where)

    @property
    def method(self) -> Method:
        """The method, with the hyper-parameters of a stream that has none of its own."""
        return self._usual.method

    @property
    def settings(self) -> dict[str, Any]:
        """The same hyper-parameters, as they stand in a file."""
        return self._usual.settings

    @property
    def device(self) -> torch.device:
        return self.network.head[0].device

    def __contains__(self, stream: object) -> bool:
        return stream in self._where

    # -- predicting and learning ---------------------------------------------------------------------------------------

    @overload
    def forward(self, images: Mapping[Name, Tensor]) -> dict[Name, Tensor]: ...
    @overload
    def forward(self, images: Tensor, streams: Sequence[Name]) -> Tensor: ...
    def forward(
        self, images: Mapping[Name, Tensor] | Tensor, streams: Sequence[Name] | None = None
    ) -> dict[Name, Tensor] | Tensor:
        """Predict the images of some streams, then learn from them.

        Args:
            images: each stream's batch (number × channels × height × width) by its name; or one batch of which image i
                belongs to stream `streams[i]`. Images of the same stream are one batch of it, in their order.
        """
        with torch.inference_mode(False), self._lock:
            if isinstance(images, Mapping):
                if streams is not None:
                    raise TypeError("the images say by their names which streams they belong to; leave streams out")
                return self._answer_each(images)
            if streams is None:
                raise TypeError(
                    "say which streams the images belong to: fleet(images, names), or fleet({name: images})"
                )
            batch = usable(images, self.device, "fleet")
            names = list(streams.tolist() if hasattr(streams, "tolist") else streams)
            if len(names) != len(batch):
                raise ValueError(f"there are {len(batch)} images and {len(names)} names of streams; give one for each")
            return self._answer_all(batch, names)

    @contextmanager
    def frozen(self) -> Iterator[Fleet]:
        """Inside, the fleet predicts only, whichever thread asks."""
        with self._lock:  # but not inside: the others' questions are to be answered
            self._frozen += 1
        try:
            yield self
        finally:
            with self._lock:
                self._frozen -= 1

    def _answer_each(self, images: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """The answers to a batch of each stream's own."""
        if not images:
            raise ValueError("no images: give those of one stream at least")
        for name in images:
            self._find(name)
        taken = {name: self._accept(name, batch) for name, batch in images.items()}
        parts = self._parts({name: (batch.shape, batch.dtype) for name, batch in taken.items()})
        answers = self._answer(parts, (torch.stack([taken[name] for name in part]) for part in parts))
        logits: dict[Name, Tensor] = {}
        for part, answer in zip(parts, answers, strict=True):
            logits |= zip(part, answer.unbind(0), strict=True)
        return {name: logits[name] for name in images}

    def _answer_all(self, batch: Tensor, names: list[Name]) -> Tensor:
        """The answers to one batch, of streams named image by image: it is put in order once, and not taken apart."""
        mine: dict[Name, list[int]] = {}
        for place, name in enumerate(names):
            mine.setdefault(name, []).append(place)
        counts: dict[int, Name] = {}
        for name, own in mine.items():
            self._find(name)
            counts.setdefault(len(own), name)
        for count, name in counts.items():
            self._accept(name, batch[:count])
        parts = self._parts(
            {name: (torch.Size([len(own), *batch.shape[1:]]), batch.dtype) for name, own in mine.items()}
        )
        order = [place for part in parts for name in part for place in mine[name]]
        straight = order == sorted(order)
        if not straight:
            batch = batch.index_select(0, self._places(order, batch.device))
        pieces = batch.split([len(part) * len(mine[part[0]]) for part in parts])
        answers = self._answer(
            parts, (piece.unflatten(0, (len(part), -1)) for part, piece in zip(parts, pieces, strict=True))
        )
        logits = torch.cat([answer.flatten(0, 1) for answer in answers])
        if straight:
            return logits
        back = sorted(range(len(order)), key=order.__getitem__)
        return logits.index_select(0, self._places(back, logits.device))

    def _parts(self, kinds: Mapping[Name, tuple[torch.Size, torch.dtype]]) -> list[list[Name]]:
        """Which streams go through the network together: of one program, with batches of one kind, as many as fit."""
        groups: dict[Any, list[Name]] = {}
        for name, kind in kinds.items():
            groups.setdefault((id(self._where[name][0]), *kind), []).append(name)
        parts = []
        for (_, shape, _), group in groups.items():
            group.sort(key=lambda name: self._where[name][1])
            size = max(_VALUES // max(shape.numel(), 1), 1) if self.chunk is None else self.chunk
            parts += [group[start : start + size] for start in range(0, len(group), size)]
        return parts

    def _answer(self, parts: list[list[Name]], batches: Iterable[Tensor]) -> list[Tensor]:
        """The logits for a batch (streams × images × …) of each part; and a step, of all streams or none."""
        done, answers = [], []
        for names, images in zip(parts, batches, strict=True):
            cohort = self._where[names[0]][0]
            rows = [self._where[name][1] for name in names]
            place = cohort.place(rows)
            if self._frozen:
                with torch.no_grad():
                    answers.append(cohort.predict(rows, place, images))
            else:
                states, outcome = cohort.step(rows, place, images, others=len(parts) > 1)
                done.append((cohort, place, names, states, outcome))
                answers.append(outcome.logits)
        for cohort, place, names, states, outcome in done:
            cohort.commit(place, states)
            self._remember(names, outcome)
        return answers

    def _accept(self, name: Name, images: Tensor) -> Tensor:
        """Check a stream's batch; the network itself is asked once for each new kind of batch."""
        try:
            images = usable(images, self.device, "fleet")
            autocast = torch.is_autocast_enabled(images.device.type)
            signature = (images.shape[1:], len(images) == 1, images.dtype, images.device, autocast)
            self._checked.of(signature, lambda: self.network.check(images))
        except (TypeError, ValueError) as error:
            raise type(error)(f"stream {name!r}: {error}") from error
        return images

    # -- streams -------------------------------------------------------------------------------------------------------

    def join(self, stream: Name, *, seed: int | None = None, **hyperparameters: Any) -> None:
        """A new stream begins at the network as it was, with hyper-parameters of its own where they are given."""
        with torch.inference_mode(False), self._lock:
            if not isinstance(stream, str | int):
                raise TypeError(f"a stream's name must be a string or a whole number, but is {stream!r}")
            if stream in self._where:
                raise ValueError(f"there is a stream {stream!r} already; it can leave, or be reset")
            variant = self._variant(hyperparameters)
            cohort = next((cohort for cohort in self._cohorts if cohort.admits(variant)), None)
            if cohort is None:
                cohort = Cohort(self.network, self._kind, variant)
                self._cohorts.append(cohort)
            cohort.add(stream, variant, self._seed if seed is None else seed)
            variant.streams += 1
            self._where[stream] = cohort, len(cohort.streams) - 1

    def leave(self, stream: Name) -> None:
        """Forget a stream and all it has learnt; `save` it first to go on with it later."""
        with torch.inference_mode(False), self._lock:
            cohort, row = self._find(stream)
            variant = cohort.follows(row)
            cohort.remove(row)
            self._release(stream)
            del self._where[stream]
            if row < len(cohort.streams):
                self._where[cohort.streams[row]] = cohort, row
            variant.streams -= 1
            if variant.streams == 0 and variant is not self._usual:
                cohort.drop(variant)
                if not cohort.variants:
                    self._cohorts.remove(cohort)

    def reset(self, stream: Name) -> None:
        """A stream forgets everything, and is as it was when it joined."""
        with torch.inference_mode(False), self._lock:
            cohort, row = self._find(stream)
            seed = int(cohort.row(row)["seed"])
            self._put(stream, cohort.follows(row).method.init(self.network, seed))

    def report(self, stream: Name) -> Report:
        """What has happened to a stream so far (reading it waits for the device)."""
        with self._lock:
            return report_of(self._state(stream))

    def outcome(self, stream: Name) -> Outcome | None:
        """What a stream's last step did: which images taught (`mask`), the loss, …; None before the first."""
        with torch.inference_mode(False), self._lock:
            self._find(stream)
            last = self._last.get(stream)
            return None if last is None else last.of(stream)

    def trim(self) -> None:
        """Give back the memory that is kept for streams to come."""
        with torch.inference_mode(False), self._lock:
            for cohort in self._cohorts:
                cohort.trim()

    @torch.inference_mode(False)
    def export(self, stream: Name) -> nn.Module:
        """A plain network with a stream's weights; it predicts what the stream predicts now, and learns no more."""
        with self._lock:
            cohort, row = self._find(stream)
            variant = cohort.follows(row)
            return exported(self.network, variant.method, cohort.row(row), variant.name, "fleet")

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, stream: Name, path: str | Path) -> None:
        """Write a stream's whole state as a safetensors file, which an adapter of the same settings can load too."""
        with self._lock:
            state = tree.map(Tensor.clone, self._state(stream))
        files.write(path, "adapter state", tree.flatten(state), self._identity(stream))

    @torch.inference_mode(False)
    def load(self, stream: Name, path: str | Path) -> None:
        """Let a stream go on where `save` stopped, a fleet's or an adapter's, bit for bit.

        A file that is truncated, or of another method, network or setting, is an error, and the stream stays as it was.
        """
        self._find(stream)
        leaves, header = files.read(path, "adapter state")
        with self._lock:
            self._put(stream, self._taken(stream, leaves, header, str(path)))

    def get_extra_state(self) -> dict[str, Any]:
        """What the streams have learnt, as a part of `state_dict()`."""
        with self._lock:
            return {
                "streams": [
                    {
                        "name": name,
                        "state": tree.flatten(tree.map(Tensor.clone, self._state(name))),
                        "identity": json.dumps(self._identity(name)),
                    }
                    for name in self._where
                ]
            }

    @torch.inference_mode(False)
    def set_extra_state(self, extra: dict[str, Any]) -> None:
        with self._lock:
            found = {entry["name"]: entry for entry in extra["streams"]}
            if found.keys() != self._where.keys():
                raise ValueError(
                    f"the state_dict is of the streams {list(found)}, here they are {list(self._where)}; "
                    "let the same streams join first"
                )
            taken = {
                name: self._taken(name, entry["state"], json.loads(entry["identity"]), f"the state_dict of {name!r}")
                for name, entry in found.items()
            }
            for name, state in taken.items():
                self._put(name, state)

    def _taken(self, stream: Name, leaves: dict[str, Tensor], found: dict[str, Any], origin: str) -> State:
        return take(leaves, found, self._identity(stream), self._state(stream), origin)

    def _put(self, stream: Name, state: State) -> None:
        cohort, row = self._find(stream)
        cohort.put(row, state)
        self._release(stream)

    def _identity(self, stream: Name) -> dict[str, Any]:
        cohort, row = self._find(stream)
        variant = cohort.follows(row)
        return identity(variant.method, variant.name, variant.settings, self._fingerprint)

    # -- what is behind it ---------------------------------------------------------------------------------------------

    def _find(self, stream: Name) -> tuple[Cohort, int]:
        found = self._where.get(stream) if isinstance(stream, str | int) else None
        if found is None:
            near = difflib.get_close_matches(str(stream), map(str, self._where), n=3, cutoff=0.5)
            among = [name for name in self._where if str(name) in near]
            hint = (
                f"did you mean {' or '.join(map(repr, among))}?" if among else f"there are {len(self._where)} streams"
            )
            raise ValueError(f"there is no stream {stream!r} ({hint}); let it join first with join({stream!r})")
        return found

    def _state(self, stream: Name) -> State:
        cohort, row = self._find(stream)
        return cohort.row(row)

    def _variant(self, hyperparameters: dict[str, Any]) -> Variant:
        """The variant of these hyper-parameters, made where no stream follows it yet."""
        given = self._hyperparameters | hyperparameters
        known = (variant for cohort in self._cohorts for variant in cohort.variants)
        return next((variant for variant in known if same(variant.given, given)), None) or self._compose(given)

    def _compose(self, given: dict[str, Any]) -> Variant:
        method, name, settings = compose(self.network, self._recipe, self._guard, given)
        return Variant(method.to(self.device), name, given, description(settings))

    def _remember(self, names: list[Name], outcome: Outcome) -> None:
        last = _Last(names, outcome)
        for name in names:
            self._release(name)
            self._last[name] = last

    def _release(self, stream: Name) -> None:
        """Forget a stream's outcome. Where few of those it came with are still of use, they are kept alone."""
        last = self._last.pop(stream, None)
        if last is not None and last.discard(stream):
            for name in list(last.names):
                self._last[name] = last.alone(name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = threading.RLock()

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fleet:
        with self._lock:
            super()._apply(fn, recurse)
            for cohort in self._cohorts:
                for variant in cohort.variants:
                    variant.method._apply(fn)
                    variant.method.layout.follow(self.network.module)
                cohort.move(fn)
            self._checked.clear()
        return self

    def train(self, mode: bool = True) -> Fleet:
        """No effect: the network always runs as in evaluation, and the streams always learn (see `frozen`)."""
        return super().train(False)

    def extra_repr(self) -> str:
        return f"method={self._usual.name!r}, streams={len(self._where)}"


class _Last:
    """The outcome of a step of some streams, for as long as it is the last one of some of them."""

    def __init__(self, names: Sequence[Name], outcome: Outcome) -> None:
        self.outcome = outcome
        self.names = {name: place for place, name in enumerate(names)}
        self._few = len(names) // 4

    def of(self, name: Name) -> Outcome:
        return Outcome(*(part[self.names[name]] for part in self.outcome))

    def alone(self, name: Name) -> _Last:
        return _Last([name], Outcome(*(part[None].clone() for part in self.of(name))))

    def discard(self, name: Name) -> bool:
        """Whether what is left is so little that it should be kept apart."""
        del self.names[name]
        return 0 < len(self.names) <= self._few
