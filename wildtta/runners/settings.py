"""Hyper-parameters of each stream's own: where two compositions of one method differ only in numbers, one step serves both.

The numbers (learning rates, thresholds, λ, …, and constants made from them, such as the factors that τ scales) are then stacked
and put in the place of the method's own inside the vmapped step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.core.updates import Update
from wildtta.runners.recent import Places, Recent

__all__ = ["Table", "alike", "same", "share", "swapped"]

_LARGEST = 1 << 20  # bytes of a constant that is stacked; larger ones are read faster by one stream after another

Slot = tuple[str, str]  # a part's name in the method, and an attribute or buffer of it


def alike(first: Method, second: Method) -> bool:
    """Whether two methods differ in nothing but numbers that can be stacked."""
    return _slots(first, second) is not None


def share(first: Method, second: Method) -> None:
    """Let two methods that are alike share the constants in which they do not differ."""
    slots = _slots(first, second)
    others = dict(second.named_modules())
    for name, part in first.named_modules():
        for key, buffer in part._buffers.items():
            if slots is not None and (name, key) not in slots:
                others[name]._buffers[key] = buffer


class Table:
    """The numbers in which some alike methods differ, for any selection of streams."""

    def __init__(self, methods: Sequence[Method]) -> None:
        slots = {slot for other in methods[1:] for slot in _slots(methods[0], other) or ()}
        self._like = methods[0].layout.initial
        self._numbers: dict[Slot, Tensor] = {}
        self._rates: dict[Slot, list[Any]] = {}
        self._by_batch: Recent[int, dict[Slot, Tensor]] = Recent(64)
        self._places = Places()
        for slot in sorted(slots):
            values = [getattr(method.get_submodule(slot[0]), slot[1]) for method in methods]
            if isinstance(values[0], Tensor):
                self._numbers[slot] = torch.stack(values)
            elif any(map(callable, values)):
                self._rates[slot] = values
            else:
                self._numbers[slot] = self._column(values)

    def rows(self, which: Sequence[int], batch: int) -> State:
        """The numbers of streams that follow these methods, by their places, for `batch` images each."""
        numbers = self._by_batch.of(batch, lambda: self._numbers | self._rates_at(batch))
        if not numbers:
            return {}
        places = self._places(which, self._like.device)
        found: State = {}
        for (part, key), values in numbers.items():
            found.setdefault(part, {})[key] = values[places]
        return found

    def _rates_at(self, batch: int) -> dict[Slot, Tensor]:
        return {
            slot: self._column([rate(batch) if callable(rate) else rate for rate in rates])
            for slot, rates in self._rates.items()
        }

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self._like.dtype, device=self._like.device)


@contextmanager
def swapped(method: Method, numbers: State) -> Iterator[None]:
    """Inside, these numbers stand in the place of the method's."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, values in numbers.items():
            part = method.get_submodule(name)
            for key, value in values.items():
                home: dict[str, Any] = part._buffers if key in part._buffers else part.__dict__
                before.append((home, key, home[key]))
                home[key] = value
        yield
    finally:
        for home, key, value in before:
            home[key] = value


def _slots(first: Method, second: Method) -> set[Slot] | None:
    """The numbers in which two methods differ; None where they differ in more.

    Only the library's own parts are known to take a tensor for a number; a part of someone else's must agree in all.
    """
    ones, others = dict(first.named_modules()), dict(second.named_modules())
    if ones.keys() != others.keys():
        return None
    slots: set[Slot] = set()
    for name, one in ones.items():
        other = others[name]
        if type(one) is not type(other) or one._buffers.keys() != other._buffers.keys():
            return None
        ours = type(one).__module__.startswith("wildtta.core.")
        mine, theirs = _attributes(one), _attributes(other)
        if mine.keys() != theirs.keys():
            return None
        for key, value in mine.items():
            if same(value, theirs[key]):
                continue
            if not (ours and (_numbers(value, theirs[key]) or (isinstance(one, Update) and key == "lr"))):
                return None
            slots.add((name, key))
        for key, buffer in one._buffers.items():
            twin = other._buffers[key]
            if buffer is None or twin is None or buffer.shape != twin.shape or buffer.dtype != twin.dtype:
                if buffer is not twin:
                    return None
            elif buffer is not twin and not torch.equal(buffer, twin):
                if not ours or buffer.numel() * buffer.element_size() > _LARGEST:
                    return None
                slots.add((name, key))
    return slots


_INTERNAL = frozenset(vars(nn.Module()))


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in _INTERNAL}


def _numbers(one: Any, other: Any) -> bool:
    """Two quantities: counts and flags decide what a step does, and are none."""
    return {type(one), type(other)} <= {int, float} and float in (type(one), type(other))


def same(one: Any, other: Any) -> bool:
    """Whether two settings are the same, as far as can be known: functions by their code and what they refer to."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, FunctionType):
        return (
            one.__code__ is other.__code__
            and same(one.__defaults__, other.__defaults__)
            and same(one.__kwdefaults__, other.__kwdefaults__)
            and same(_cells(one), _cells(other))
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Tensor | nn.Module):
        return False
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # arrays
        return False


def _cells(function: Callable[..., Any]) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
