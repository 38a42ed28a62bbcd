"""Ways to execute a method's pure step."""

from __future__ import annotations

from wildtta.core.method import Method
from wildtta.network import Network
from wildtta.runners.captured import Captured
from wildtta.runners.eager import Eager
from wildtta.runners.sparing import Sparing

__all__ = ["Captured", "Eager", "Sparing", "make_runner"]

_RUNNERS: dict[str, type[Eager]] = {"eager": Eager, "sparing": Sparing, "captured": Captured}


def make_runner(name: str, method: Method, network: Network) -> Eager:
    """The runner of a name."""
    if name not in _RUNNERS:
        raise ValueError(f"unknown runner {name!r}; the runners are {', '.join(_RUNNERS)}")
    return _RUNNERS[name](method, network)
