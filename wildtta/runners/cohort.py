"""Streams whose steps are one program: the rows of one stacked state."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from wildtta.core import tree
from wildtta.core.guards import Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners import Captured, make_runner
from wildtta.runners.eager import Eager
from wildtta.runners.recent import Places, Recent
from wildtta.runners.settings import Table, alike, share
from wildtta.runners.together import SETTINGS, Together

__all__ = ["Cohort", "Variant"]

_MOST = 16
"""Runners kept, one for each number of streams: with fewer, arrivals of more numbers would drive out one another's graphs."""

Place: TypeAlias = slice | Tensor


@dataclass(eq=False)
class Variant:
    """A method with its hyper-parameters, as some streams of a fleet follow it.

    Attributes:
        given: what the user gave, to know the variant again.
        settings: the same with defaults, as they stand in a file.
        streams: how many follow it.
    """

    method: Method
    name: str
    given: dict[str, Any]
    settings: dict[str, Any]
    streams: int = 0


class Cohort:
    """Some streams, one a row, and the variants of a method that they follow.

    A row that leaves is filled with the last one, so that the rows in use are the first ones. Room for rows grows by a half
    when it is used up and is given back when two fifths are empty: joining and leaving cost few copies, and a stream less than
    twice its state.
    """

    def __init__(self, network: Network, runner: str, variant: Variant) -> None:
        self.network, self.kind = network, runner
        self.variants = [variant]
        self.streams: list[Any] = []
        self._follows: list[Variant] = []
        self.state = tree.map(lambda leaf: leaf[None][:0], variant.method.init(network))
        self.prepare()
        self._runner(variant.method, 1)

    def prepare(self) -> None:
        """Anything that depends on the variants, or on where the tensors are, is made anew."""
        first = self.variants[0].method
        for variant in self.variants[1:]:
            share(first, variant.method)
        self._table = Table([variant.method for variant in self.variants])
        self._numbers = {variant: number for number, variant in enumerate(self.variants)}
        self._together = Together(first)
        self._places = Places()
        self._runners: Recent[Any, Eager] = Recent(_MOST)

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes runners of its own."""
        return self.__dict__ | {"_runners": Recent(_MOST)}

    # -- rows ----------------------------------------------------------------------------------------------------------

    def admits(self, variant: Variant) -> bool:
        return variant in self.variants or alike(self.variants[0].method, variant.method)

    def add(self, stream: Any, variant: Variant, seed: int) -> None:
        """A stream at its start."""
        if variant not in self.variants:
            self.variants.append(variant)
            self.prepare()
        state = variant.method.init(self.network, seed)
        count = len(self.streams)
        if count == self._room:
            self._resize(count + count // 2 + 1)
        self.put(count, state)
        self.streams.append(stream)
        self._follows.append(variant)

    def remove(self, row: int) -> None:
        last = len(self.streams) - 1
        if row != last:
            self.put(row, self.row(last))
            self.streams[row], self._follows[row] = self.streams[last], self._follows[last]
        self.streams.pop()
        self._follows.pop()
        if last < 0.6 * self._room:
            self._resize(last + last // 4)

    def drop(self, variant: Variant) -> None:
        """Forget a variant that no stream follows any more."""
        self.variants.remove(variant)
        if self.variants:
            self.prepare()

    def trim(self) -> None:
        """Give back the room that is not in use."""
        if self._room > len(self.streams):
            self._resize(len(self.streams))

    def row(self, place: int) -> State:
        """The state of one stream."""
        return tree.map(lambda leaf: leaf[place], self.state)

    def put(self, place: int, state: State) -> None:
        tree.map(lambda leaf, new: leaf[place].copy_(new), self.state, state)

    def follows(self, row: int) -> Variant:
        return self._follows[row]

    def move(self, change: Callable[[Tensor], Tensor]) -> None:
        """To another device or type; the methods have moved already."""
        self.state = tree.map(tree.keep_wide(change), self.state)
        self.prepare()

    @property
    def _room(self) -> int:
        return len(self.state["seed"])

    def _resize(self, room: int) -> None:
        kept = min(room, self._room)

        def resized(leaf: Tensor) -> Tensor:
            larger = leaf.new_zeros(room, *leaf.shape[1:])
            larger[:kept] = leaf[:kept]
            return larger

        self.state = tree.map(resized, self.state)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def place(self, rows: Sequence[int]) -> Place:
        """Where some rows are. Rows in a run are a slice, which copies nothing."""
        if list(rows) == list(range(rows[0], rows[0] + len(rows))):
            return slice(rows[0], rows[0] + len(rows))
        return self._places(rows, self.state["seed"].device)

    def step(self, rows: Sequence[int], place: Place, images: Tensor, *, others: bool = True) -> tuple[State, Outcome]:
        """A step of some streams (streams × batch × …): their next states and what happened; `commit` puts them down.

        `others`: whether there may be another step before that.
        """
        method, state, images = self._question(rows, place, images)
        state, outcome = self._runner(method, len(rows)).step(state, images)
        state = {name: part for name, part in state.items() if name != SETTINGS}
        if others and self.kind != "eager":  # a graph's tensors are written anew by the next step
            state = tree.map(Tensor.clone, state)
        if isinstance(method, Together):
            return state, outcome
        return tree.map(lambda leaf: leaf[None], state), Outcome(*(part[None] for part in outcome))

    def predict(self, rows: Sequence[int], place: Place, images: Tensor) -> Tensor:
        method, state, images = self._question(rows, place, images)
        logits = method.predict(self.network, state, images)
        return logits if isinstance(method, Together) else logits[None]

    def commit(self, place: Place, states: State) -> None:
        """Put the next states of some streams in the place of theirs."""
        tree.map(lambda leaf, new: leaf.__setitem__(place, new) or leaf, self.state, states)

    def _question(self, rows: Sequence[int], place: Place, images: Tensor) -> tuple[Method | Together, State, Tensor]:
        """The method, states and images of a step. A single stream follows its own method, without vmap."""
        if len(rows) == 1:
            return self._follows[rows[0]].method, self.row(rows[0]), images[0]
        state: State = tree.map(lambda leaf: leaf[place], self.state)
        if numbers := self._table.rows([self._numbers[self._follows[row]] for row in rows], images.shape[1]):
            state[SETTINGS] = numbers
        return self._together, state, images

    def _runner(self, method: Method | Together, count: int) -> Eager:
        return self._runners.of((id(method), 0 if self.kind == "eager" else count), lambda: self._made(method))

    def _made(self, method: Method | Together) -> Eager:
        made = make_runner(self.kind, method, self.network)  # type: ignore[arg-type]
        if isinstance(made, Captured):
            known = weakref.ref(
                self._runners
            )  # nothing holds itself: graphs give back their memory when the last user goes
            made.beside = lambda: (known() or {}).values()  # the steps of a cohort are taken one after another
        return made
