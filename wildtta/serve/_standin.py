"""A dict of adapters behind the fleet's interface, until the fleet is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

import wildtta


class Fleet:
    def __init__(
        self, network: Any, method: str, *, streams: Any = (), guard: Any = None, seed: int = 0, **hyper: Any
    ) -> None:
        self.network, self.method, self.guard, self.hyper = network, method, guard, hyper
        self.adapters: dict[str, Any] = {}
        self._cold = False

    def join(self, name: str, seed: int = 0, **hyper: Any) -> None:
        self.adapters[name] = wildtta.adapt(
            self.network, self.method, guard=self.guard, seed=seed, **(self.hyper | hyper)
        )

    def leave(self, name: str) -> None:
        del self.adapters[name]

    def reset(self, name: str) -> None:
        self.adapters[name].reset()

    def report(self, name: str) -> Any:
        return self.adapters[name].report

    def outcome(self, name: str) -> Any:
        return self.adapters[name].outcome

    def save(self, name: str, path: Any) -> None:
        self.adapters[name].save(path)

    def load(self, name: str, path: Any) -> None:
        self.adapters[name].load(path)

    @contextmanager
    def frozen(self) -> Iterator[Any]:
        self._cold = True
        try:
            yield self
        finally:
            self._cold = False

    def __call__(self, images: dict[str, Tensor]) -> dict[str, Tensor]:
        out = {}
        for name, batch in images.items():
            a = self.adapters[name]
            if self._cold:
                with a.frozen():
                    out[name] = a(batch)
            else:
                out[name] = a(batch)
        return out


def fleet(*a: Any, **k: Any) -> Fleet:
    return Fleet(*a, **k)
