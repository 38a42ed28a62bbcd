"""What was used last is kept, so much at most: batches may come in any number of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Places", "Recent"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(dict[_Key, _Value]):
    """Entries that are made when they are first asked for; of more than `most`, the one not asked for the longest goes.

    >>> known = Recent(2)
    >>> [known.of(key, list) for key in "abac"], list(known)
    ([[], [], [], []], ['a', 'c'])
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def of(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        if key in self:
            self[key] = self.pop(key)  # the last one asked for is the last of the dict
            return self[key]
        while len(self) >= self.most:  # first, as what is made may need the room
            del self[next(iter(self))]
        self[key] = make()
        return self[key]


class Places:
    """Places as tensors to index with. One that comes again is there already; a GPU's host waits for neither."""

    def __init__(self) -> None:
        self._known: Recent[tuple[tuple[int, ...], torch.device], Tensor] = Recent(64)

    def __call__(self, places: Sequence[int], device: torch.device) -> Tensor:
        return self._known.of((tuple(places), device), lambda: _sent(places, device))

    def __getstate__(self) -> dict[str, Recent[tuple[tuple[int, ...], torch.device], Tensor]]:
        """A copy makes its own."""
        return Places().__dict__


def _sent(places: Sequence[int], device: torch.device) -> Tensor:
    here = torch.tensor(places, dtype=torch.int64)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)
