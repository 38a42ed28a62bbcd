"""Scenarios: in which order, and in what company, an adapter meets its images.

    shift = scenario("shift")
    for domains in shift.streams(["fog", "snow"], severity=5):      # one stream, and one fresh adapter, for each
        stream = shift.order(labels, seed=0, domains=domains, ratio="inf")
        for domain, index in stream.batches():
            ...

A *domain* is one kind of images at one severity. With `reset=True` each kind is a stream of its own, for a fresh adapter;
with `reset=False` one stream, and one adapter, goes through all kinds in the order given:

| scenario | order within a kind | reset=False | by default |
| --- | --- | --- | --- |
| `mild` | shuffled | kinds one after another | reset |
| `limited` | as `mild`, in batches of 1 | kinds one after another | reset |
| `mixed` | – | all kinds shuffled together | no reset |
| `shift` | one class after another is the likely one | kinds one after another | reset |
| `continual` | shuffled | kinds one after another | no reset |
| `gradual` | shuffled; severity 1, 2, …, 5, …, 2, 1 | kinds one after another | no reset |
| `correlated` | a class's images cluster | kinds one after another | reset |

Some of these are the same: `continual` is `mild` without a reset (and `continual` with one is `mild`), bit for bit; they are two
names because papers use both. `mixed` is one stream by its nature: with several kinds, `reset=True` is an error.

Every image comes exactly once, in `gradual` at one of its severities, unless a `length` asks for fewer; only `shift` draws
with replacement, as published (`repeats=False` does not).

The same seed gives the same order in every process. Each kind of one stream has an order unrelated to the others'; the
single-kind streams of a reset all have the same, as in the published benchmark. A batch may hold images from both sides of
a change of kind, since a stream does not announce it; only the last batch of a stream can be smaller than the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import options as known
from . import orders
from .options import Option

__all__ = ["SCENARIOS", "Option", "Scenario", "Stream", "scenario"]


@dataclass(frozen=True, eq=False)
class Stream:
    """An order of images.

    Attributes:
        domain: for each moment, the place of the image's domain in the list of domains given; int64, on the CPU.
        index: for each moment, the number of the image in its domain; int64, on the CPU.
        batch: how many moments a batch has.
    """

    domain: Tensor
    index: Tensor
    batch: int

    def __len__(self) -> int:
        return len(self.index)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The domains and the numbers of the images of one batch after another."""
        yield from zip(self.domain.split(self.batch), self.index.split(self.batch), strict=True)


@dataclass(frozen=True)
class Scenario:
    """A way in which images arrive.

    Attributes:
        name: by which `scenario` finds it.
        summary: one line for a help text.
        batch: how many images arrive at a time, unless `order` is told otherwise.
        wild: whether it is one of the three scenarios of the wild benchmark.
        reset: whether each kind gets a fresh adapter, unless `streams` is told otherwise.
        options: what `order` takes by name.
        arrange: makes the order.
    """

    name: str
    summary: str
    batch: int
    wild: bool
    reset: bool
    options: tuple[Option, ...]
    arrange: orders.Arrangement

    def streams(
        self, kinds: Sequence[str], severity: int = 5, reset: bool | None = None
    ) -> list[tuple[tuple[str, int], ...]]:
        """The streams to run: for each, the (kind, severity) of its domains.

        Args:
            kinds: of images, such as "fog"; streams without a reset go through them in this order.
            severity: 1 to 5, or 0 for kinds that have none ("clean" always has none); of `gradual`, the highest.
            reset: a fresh adapter, so a stream of its own, for each kind; the scenario's own choice where left out.

        >>> scenario("mild").streams(["fog", "snow"], 5)
        [(('fog', 5),), (('snow', 5),)]
        >>> scenario("mixed").streams(["fog", "snow"], 5)
        [(('fog', 5), ('snow', 5))]
        >>> scenario("gradual").streams(["fog"], 3)
        [(('fog', 1), ('fog', 2), ('fog', 3))]
        """
        _check_kinds(kinds)
        severity = known.whole("severity", severity, 0, 5)
        reset = self._check_reset(reset, kinds)
        parts = [self._domains(kind, severity) for kind in kinds]
        return parts if reset else [tuple(domain for part in parts for domain in part)]

    def settings(self, **options: Any) -> dict[str, Any]:
        """All options as they will be used, ready for a JSON file: those given, checked, and the defaults.

        >>> scenario("shift").settings(ratio="inf")
        {'ratio': 500000.0, 'repeats': True, 'length': None}
        """
        return known.complete(self.name, self.options, options)

    def order(
        self,
        labels: Sequence[Tensor],
        seed: int,
        *,
        domains: Sequence[tuple[str, int]] | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> Stream:
        """The order of one stream.

        Args:
            labels: the labels of each domain of the stream, in the order of its domains: int64, one for each image, in
                whatever order the images have.
            seed: 0 to 2³² − 1.
            domains: the (kind, severity) of each domain, as `streams` lists them. Only `gradual` needs it.
            batch: how many images arrive at a time; the scenario's own number where left out.
            options: of the scenario; `options` lists them.

        >>> labels = torch.tensor([0, 1, 2]).repeat(2)
        >>> stream = scenario("shift").order([labels], seed=0, repeats=False)
        >>> labels[stream.index]
        tensor([1, 1, 0, 0, 2, 2])
        """
        arrays = _check_labels(labels)
        seed = known.whole("seed", seed, 0, 2**32 - 1)
        batch = self.batch if batch is None else known.whole("batch", batch, 1)
        if domains is not None and len(domains) != len(arrays):
            raise ValueError(
                f"{len(domains)} domains were given with the labels of {len(arrays)}; give one tensor of labels for each"
            )
        domain, index = self.arrange(arrays, domains, seed, self.settings(**options))
        return Stream(torch.from_numpy(domain), torch.from_numpy(index), batch)

    def _domains(self, kind: str, severity: int) -> tuple[tuple[str, int], ...]:
        severity = 0 if kind == "clean" else severity
        if self.arrange is not orders.gradual:
            return ((kind, severity),)
        if severity == 0:
            raise ValueError(f"a gradual stream needs severities to go through, but {kind!r} has none; leave it out")
        return tuple((kind, step) for step in range(1, severity + 1))

    def _check_reset(self, reset: bool | None, kinds: Sequence[str]) -> bool:
        if reset is None:
            return self.reset
        if not isinstance(reset, bool):
            raise TypeError(f"reset must be True, False or None (the scenario's own choice), not {reset!r}")
        if reset and self.arrange is orders.mixed and len(kinds) > 1:
            raise ValueError(
                f"'mixed' shuffles its {len(kinds)} kinds into one stream, so there is no moment between them for a reset; "
                "leave reset out, or take 'mild' for a fresh adapter on each kind"
            )
        return reset


def _check_kinds(kinds: Sequence[str]) -> None:
    if isinstance(kinds, str):
        raise TypeError(f"kinds must be a sequence of names, not the string {kinds!r}; write [{kinds!r}]")
    if not kinds:
        raise ValueError("kinds is empty; name at least one kind of images")
    twice = sorted({kind for kind in kinds if list(kinds).count(kind) > 1})
    if twice:
        raise ValueError(f"kinds holds {', '.join(map(repr, twice))} more than once; name each kind once")


def _check_labels(labels: Sequence[Tensor]) -> list[orders.Numbers]:
    if isinstance(labels, Tensor):
        raise TypeError("labels must be a sequence with one tensor for each domain, not one tensor; write [labels]")
    if len(labels) == 0:
        raise ValueError("labels is empty; give one tensor for each domain of the stream")
    return [_as_array(place, mine) for place, mine in enumerate(labels)]


def _as_array(place: int, labels: Tensor) -> orders.Numbers:
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels[{place}] must be an int64 tensor, not {found}; use torch.as_tensor(labels, dtype=torch.int64)"
        )
    if labels.ndim != 1:
        raise ValueError(
            f"labels[{place}] must have one axis, one label for each image, not shape {tuple(labels.shape)}"
        )
    if len(labels) == 0:
        raise ValueError(f"labels[{place}] is empty; a domain needs at least one image")
    return np.asarray(labels.cpu().numpy(), dtype=np.int64)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="mild",
            summary="shuffled, each kind on its own",
            batch=64,
            wild=False,
            reset=True,
            options=(known.LENGTH,),
            arrange=orders.one_after_another,
        ),
        Scenario(
            name="limited",
            summary="shuffled, one image at a time",
            batch=1,
            wild=True,
            reset=True,
            options=(known.LENGTH,),
            arrange=orders.one_after_another,
        ),
        Scenario(
            name="mixed",
            summary="all kinds shuffled together",
            batch=64,
            wild=True,
            reset=False,
            options=(known.LENGTH,),
            arrange=orders.mixed,
        ),
        Scenario(
            name="shift",
            summary="imbalanced label shift: one class after another is the likely one",
            batch=64,
            wild=True,
            reset=True,
            options=(known.RATIO, known.REPEATS, known.SHIFT_LENGTH),
            arrange=orders.label_shift,
        ),
        Scenario(
            name="continual",
            summary="one kind after another, shuffled, without a reset",
            batch=64,
            wild=False,
            reset=False,
            options=(known.LENGTH,),
            arrange=orders.one_after_another,
        ),
        Scenario(
            name="gradual",
            summary="the severity of each kind rises step by step and falls again",
            batch=64,
            wild=False,
            reset=False,
            options=(known.LENGTH,),
            arrange=orders.gradual,
        ),
        Scenario(
            name="correlated",
            summary="images of a class cluster in time, by a Dirichlet distribution",
            batch=64,
            wild=False,
            reset=True,
            options=(known.CONCENTRATION, known.SLOTS, known.LENGTH),
            arrange=orders.correlated,
        ),
    )
}
"""The scenarios by name."""


def scenario(name: str) -> Scenario:
    """The scenario of this name.

    >>> scenario("limited").batch
    1
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}; {known.suggest(name, SCENARIOS)}")
    return SCENARIOS[name]
