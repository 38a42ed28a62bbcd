"""Ways to execute a method's pure step.

| runner | what it does | use it |
| --- | --- | --- |
| `eager` | the step as it is written | for numbers that are the same to the bit in every run |
| `sparing` | no backward for what does not teach | on a CPU, and for large batches of which little is selected |
| `captured` | one CUDA graph a step | on a GPU, most of all at small batches |
| `compiled` | the step as one compiled graph | for long streams of one shape |
| `distributed` | one stream over several processes | under `torchrun`, for batches too large for one device |
| `auto` | `captured` on CUDA, `sparing` elsewhere | when in doubt |
"""

from __future__ import annotations

from wildtta.core.method import Method
from wildtta.network import Network
from wildtta.runners.auto import Auto
from wildtta.runners.captured import Captured
from wildtta.runners.compiled import Compiled
from wildtta.runners.distributed import Distributed
from wildtta.runners.eager import Eager
from wildtta.runners.sparing import Sparing

__all__ = ["Auto", "Captured", "Compiled", "Distributed", "Eager", "Sparing", "make_runner"]

_RUNNERS: dict[str, type[Eager]] = {
    "eager": Eager,
    "sparing": Sparing,
    "captured": Captured,
    "compiled": Compiled,
    "auto": Auto,
    "distributed": Distributed,
}


def make_runner(name: str, method: Method, network: Network) -> Eager:
    """The runner of a name."""
    if name not in _RUNNERS:
        raise ValueError(f"unknown runner {name!r}; the runners are {', '.join(_RUNNERS)}")
    return _RUNNERS[name](method, network)
