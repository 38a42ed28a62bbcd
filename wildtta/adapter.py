"""`adapt`: a network that goes on learning from the images it is asked to classify."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wildtta import files
from wildtta.common import Report, compose, description, exported, identity, report_of, take, usable
from wildtta.core import tree
from wildtta.core.guards import Guard, Outcome
from wildtta.core.method import Method
from wildtta.core.tree import State
from wildtta.network import Network
from wildtta.runners import make_runner

__all__ = ["Adapter", "Report", "adapt"]


def adapt(
    network: nn.Module,
    method: str | Callable[[Network], Method] = "recap",
    *,
    guard: str | Guard | None = None,
    runner: str = "eager",
    seed: int = 0,
    head: str | None = None,
    kind: str | None = None,
    layers: Iterable[str] | None = None,
    **hyperparameters: Any,
) -> Adapter:
    """Make a network that adapts itself to the images it predicts.

    Args:
        network: any classifier whose last layer is affine. It is copied; the original is never changed.
        method: the name of a method (`wildtta.methods()` lists them), or a function that composes one from a `Network`.
        guard: "collapse" lets the collapse guard watch over the stream; or a guard of your own.
        runner: how a step is executed: "eager", "sparing", "captured", "compiled" or "auto" (see `wildtta.runners`), or
            "distributed": one stream over the processes of `torchrun`, each of which gives its part of every batch. The numbers
            are the same up to rounding; to the bit in every run with "eager".
        seed: of the method's random numbers (DeYO's patches).
        head: the name of the last affine layer, where it is not found by itself.
        kind: "resnet" or "vit": whose published defaults apply, where the guess is wrong.
        layers: the names of the layers that adapt, instead of those that the method chooses.
        hyperparameters: of the method, by name; its docstring lists them. ReCAP needs `region`, EATA needs `fisher`.

    >>> import torch, wildtta
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
    ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10),
    ... )
    >>> region = wildtta.Region.estimate(network, torch.randn(64, 3, 16, 16))
    >>> adapter = wildtta.adapt(network, "recap", region=region)
    >>> logits = adapter(torch.randn(8, 3, 16, 16))
    >>> adapter.report.seen
    8
    """
    with torch.inference_mode(False):
        view = Network(network, head=head, kind=kind, layers=layers)
        composed, name, settings = compose(view, method, guard, hyperparameters)
        return Adapter(view, composed, name=name, runner=runner, seed=seed, settings=settings)


class Adapter(nn.Module):
    """A classifier that learns while it predicts. Made by `adapt`.

    `logits = adapter(images)` predicts a batch with the parameters as they are, then takes one step. It works inside
    `torch.no_grad()`, `torch.inference_mode()` and autocast; dropout and stochastic depth stay off. Calls from several threads
    wait for one another: a step is whole before what it does is reset, saved or exported.

    Attributes:
        state: all that the stream has learnt, as one nested dict of tensors. The eager runner replaces it with every step,
            the captured one writes into the same tensors.
        outcome: what the last step did: which images taught (`outcome.mask`), the loss, ….
    """

    def __init__(
        self,
        network: Network,
        method: Method,
        *,
        name: str = "custom",
        runner: str = "eager",
        seed: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if method.batch_statistics:
            network.use_batch_statistics(method.prior)
        self.network = network
        self.method = method.to(network.head[0].device)
        self.runner = make_runner(runner, self.method, network)
        self.name = name
        self.settings = description(settings or {})
        self.seed = seed
        self.outcome: Outcome | None = None
        self._fingerprint = network.fingerprint()
        self._lock = threading.RLock()
        self._checked: set[tuple[Any, ...]] = set()
        self._frozen = 0  # how many are inside `frozen` now
        self.state: State
        self.reset()
        self.train(False)

    # -- predicting and learning ---------------------------------------------------------------------------------------

    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch (B × channels × height × width), then learn from it."""
        with torch.inference_mode(False), self._lock:
            images = self._accept(images)
            if self._frozen:
                with torch.no_grad():
                    return self.method.predict(self.network, self.state, images)
            self.state, self.outcome = self.runner.step(self.state, images)
            return self.outcome.logits

    @contextmanager
    def frozen(self) -> Iterator[Adapter]:
        """Inside, the adapter predicts only, whichever thread asks.

        >>> with adapter.frozen():  # doctest: +SKIP
        ...     logits = adapter(images)
        """
        with self._lock:  # but not inside: the others' questions are to be answered
            self._frozen += 1
        try:
            yield self
        finally:
            with self._lock:
                self._frozen -= 1

    def _accept(self, images: Tensor) -> Tensor:
        """Check a batch; the network itself is asked once for each new kind of batch."""
        images = usable(images, self.state["stream"]["theta"].device, "adapter", empty=self.runner.empty_batches)
        autocast = torch.is_autocast_enabled(images.device.type)
        signature = (images.shape[1:], len(images) == 1, images.dtype, images.device, autocast)
        if signature not in self._checked and len(images):
            self.network.check(images)
            self._checked.add(signature)
        return images

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """What has happened so far (reading it waits for the device)."""
        with self._lock:
            return report_of(self.state)

    def reset(self) -> None:
        """Forget everything: parameters, optimiser, selection, guards and counters are as they were at the start."""
        with torch.inference_mode(False), self._lock:
            self.state, self.outcome = self.method.init(self.network, self.seed), None

    def save(self, path: str | Path) -> None:
        """Write the whole state as a safetensors file; an existing file is replaced only by a complete one."""
        with self._lock:  # the disk is waited for outside
            leaves = {name: leaf.detach().to("cpu", copy=True) for name, leaf in tree.flatten(self.state).items()}
        files.write(path, "adapter state", leaves, self._identity())

    @torch.inference_mode(False)
    def load(self, path: str | Path) -> None:
        """Go on where `save` stopped, bit for bit.

        A file that is truncated, or of another method, network or setting, is an error, and the adapter stays as it was.
        """
        leaves, header = files.read(path, "adapter state")
        self._take(leaves, header, str(path))

    def get_extra_state(self) -> dict[str, Any]:
        """What has been learnt, as a part of `state_dict()`."""
        return {"state": tree.flatten(self.state), "identity": json.dumps(self._identity())}

    @torch.inference_mode(False)
    def set_extra_state(self, extra: dict[str, Any]) -> None:
        self._take(extra["state"], json.loads(extra["identity"]), "the state_dict")

    def _take(self, leaves: dict[str, Tensor], found: dict[str, Any], origin: str) -> None:
        with self._lock:
            self.state = take(leaves, found, self._identity(), self.state, origin)
            self.seed, self.outcome = int(self.state["seed"]), None

    def _identity(self) -> dict[str, Any]:
        return identity(self.method, self.name, self.settings, self._fingerprint)

    @torch.inference_mode(False)
    def export(self) -> nn.Module:
        """A plain network with the adapted weights; it predicts what the adapter predicts now, and learns no more.

        Its BatchNorm layers go on normalising with the statistics of each batch, as they did while it learnt.
        """
        with self._lock:
            return exported(self.network, self.method, self.state, self.name, "adapter")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = threading.RLock()

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapter:
        with self._lock:
            super()._apply(fn, recurse)
            self.method.layout.follow(self.network.module)
            self.runner.forget()
            self.state = tree.map(tree.keep_wide(fn), self.state)
            self._checked.clear()
        return self

    def train(self, mode: bool = True) -> Adapter:
        """No effect: the network always runs as in evaluation, and the adapter always learns (see `frozen`)."""
        return super().train(False)

    def extra_repr(self) -> str:
        return f"method={self.name!r}"
