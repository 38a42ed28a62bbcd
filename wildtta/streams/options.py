"""The options of the scenarios: each has a name, a default, a meaning and a check."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CONCENTRATION",
    "INFINITE_RATIO",
    "LENGTH",
    "RATIO",
    "REPEATS",
    "SHIFT_LENGTH",
    "SLOTS",
    "Option",
    "complete",
    "suggest",
    "whole",
]

INFINITE_RATIO = 500_000.0
"""The ratio that stands for infinity in the published streams: next to no image of another class."""

_SMALLEST_CONCENTRATION = 1e-6  # every class is in one slot long before this; below it the logarithms overflow


@dataclass(frozen=True)
class Option:
    """One option of a scenario.

    Attributes:
        name: what `Scenario.order` calls it.
        default: its value where it is left out.
        meaning: one line for a help text.
        check: from (name, value) to the value as used, which a JSON file can hold; raises what is wrong with it.
    """

    name: str
    default: Any
    meaning: str
    check: Callable[[str, Any], Any]


def whole(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """A whole number from `least` to `most`."""
    bounds = f"at least {least}" if most == math.inf else f"from {least} to {most:.0f}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number {bounds}, not {_found(value)}")
    if not least <= int(value) <= most:
        raise ValueError(f"{name} must be {bounds}, not {value}")
    return int(value)


def suggest(name: object, known: Iterable[str]) -> str:
    """What to write instead of a name that is unknown."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(known)}"


def complete(scenario: str, known: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a scenario: those given, checked, and the defaults of the others."""
    options = {option.name: option for option in known}
    for name in given:
        if name not in options:
            raise TypeError(f"the scenario {scenario!r} has no option {name!r}; {suggest(name, options)}")
    return {
        name: option.check(name, given[name]) if name in given else option.default for name, option in options.items()
    }


def _found(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"


def _length(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value, 1)


def _ratio(name: str, value: Any) -> float:
    bounds = f'from 1 (balanced) to {INFINITE_RATIO:.0f}, or "inf"'
    if isinstance(value, str) and value.lower() in ("inf", "infinity", "∞"):
        return INFINITE_RATIO
    _check_real(name, value, bounds)
    if value == math.inf:
        return INFINITE_RATIO
    if not 1 <= value <= INFINITE_RATIO:  # also where it is NaN
        raise ValueError(f"{name} must be {bounds}, not {value}")
    return float(value)


def _repeats(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be True (drawn with replacement, as published) or False (no image twice), not {_found(value)}"
        )
    return value


def _concentration(name: str, value: Any) -> float:
    bounds = f"from {_SMALLEST_CONCENTRATION:g} (each class in one piece) upwards (the larger, the more even)"
    _check_real(name, value, bounds)
    if not _SMALLEST_CONCENTRATION <= value < math.inf:
        raise ValueError(f"{name} must be finite and {bounds}, not {value}")
    return float(value)


def _check_real(name: str, value: Any, bounds: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number {bounds}, not {_found(value)}")


def _slots(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value, 1)


LENGTH = Option("length", None, "show this many images of each kind, picked by the seed; all where left out", _length)
SHIFT_LENGTH = Option(
    "length", None, "the moments a kind lasts; where left out, twice its images, or once without repeats", _length
)
RATIO = Option("ratio", INFINITE_RATIO, 'how much likelier the current class is than any other: 1 to "inf"', _ratio)
REPEATS = Option("repeats", True, "draw images with replacement, as published; False shows no image twice", _repeats)
CONCENTRATION = Option(
    "concentration",
    0.1,
    "of the Dirichlet distribution; the smaller, the more a class's images cluster",
    _concentration,
)
SLOTS = Option("slots", None, "the stretches of time that a class's images go to; one a class, at most 100", _slots)
