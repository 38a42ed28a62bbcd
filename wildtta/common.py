"""What an adapter and a fleet share: composing a method, looking at images, reporting, and knowing their own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wildtta.core import tree
from wildtta.core.episodic import Episodic
from wildtta.core.guards import Guard, named_guard
from wildtta.core.method import Method
from wildtta.core.restoring import Restoring
from wildtta.core.tree import State
from wildtta.diffusion import Diffusion
from wildtta.network import Network
from wildtta.recipes import build, recipe
from wildtta.source import Fisher, Region

__all__ = ["Composed", "Report", "compose", "description", "exported", "identity", "report_of", "take", "usable"]


@dataclass(frozen=True)
class Report:
    """What an adapter, or one stream of a fleet, has done since it was made or reset.

    Attributes:
        seen: images predicted and offered for learning.
        selected: images that taught.
        updates: steps that moved the parameters.
        resets: how often a guard set the stream back.
        skipped: batches whose loss, gradient or prediction was not finite; they were predicted and changed nothing. (Images,
            where every image is an episode of its own.)
        loss: of the last step that taught; NaN before the first.
    """

    seen: int
    selected: int
    updates: int
    resets: int
    skipped: int
    loss: float


def report_of(state: State) -> Report:
    """The report that a stream's state holds (reading it waits for the device)."""
    counters = {name: int(value) for name, value in state["counters"].items()}
    return Report(**counters, loss=float(state["loss"]))


# -- methods -----------------------------------------------------------------------------------------------------------


class Composed(NamedTuple):
    """A method for a network, its name, and the hyper-parameters it was made with, defaults among them."""

    method: Method
    name: str
    settings: dict[str, Any]


def compose(
    network: Network,
    method: str | Callable[[Network], Method],
    guard: str | Guard | None,
    hyperparameters: dict[str, Any],
) -> Composed:
    """The method of a name, or of a function that composes one, under a guard."""
    if callable(method):
        if hyperparameters:
            raise TypeError(
                f"hyper-parameters {list(hyperparameters)} were given beside a composed method; compose it with them"
            )
        composed, name, settings = method(network), getattr(method, "__name__", "custom"), {}
    else:
        composed, name = build(network, method, hyperparameters), method
        settings = recipe(method).hyperparameters | hyperparameters
    if not isinstance(composed, Method):
        raise TypeError(
            f"{name!r} must return a wildtta.Method, but returned an object of type {type(composed).__name__}"
        )
    if guard is not None:
        composed.guards.append(named_guard(guard) if isinstance(guard, str) else guard)
    return Composed(composed, name, settings)


def description(settings: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters as they can stand in a file."""
    return {key: _described(value) for key, value in settings.items() if value is not None}


def _described(value: Any) -> Any:
    if isinstance(value, Region | Fisher):
        return value.digest()
    if isinstance(value, Diffusion):
        return value.digest
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return getattr(value, "__qualname__", type(value).__qualname__)


def exported(network: Network, method: Method, state: State, name: str, holder: str) -> nn.Module:
    """A plain network with the weights that a stream has learnt."""
    if isinstance(method, Episodic):
        raise ValueError(
            f"{name!r} forgets what it learnt with every image, so there are no adapted weights to export; the network "
            "that you gave is what is left"
        )
    if isinstance(method, Restoring):
        raise ValueError(
            f"{name!r} changes the images and not the network, so there are no adapted weights to export; the network "
            "that you gave is what is left"
        )
    if method.alignment is not None:
        raise ValueError(
            f"{name!r} moves features before the head, which a plain network does not do; keep the {holder} and use "
            f"`with {holder}.frozen()`"
        )
    return network.export(method.layout.unpack(state["stream"]["theta"]))


# -- images ------------------------------------------------------------------------------------------------------------


def usable(images: Any, device: torch.device, whose: str, *, empty: bool = False) -> Tensor:
    """The batch, if it has the form of one (which may be `empty`) and lies where `whose` parameters do."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, but are {type(images).__name__}")
    if not images.is_floating_point():
        raise TypeError(
            f"images must be floats, preprocessed as the network expects, but are {images.dtype}; "
            "convert them, e.g. images.float() / 255, and normalise"
        )
    if images.ndim != 4 or (len(images) == 0 and not empty):
        hint = "; add a batch axis with images[None]" if images.ndim == 3 else ""
        raise ValueError(
            f"images must have shape batch × channels × height × width, but have {tuple(images.shape)}{hint}"
        )
    if images.device != device:
        raise ValueError(f"images are on {images.device}, the {whose} is on {device}; move one of them with .to(…)")
    return images.clone() if images.is_inference() else images


# -- files -------------------------------------------------------------------------------------------------------------


def identity(method: Method, name: str, settings: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """What a saved state must agree with to be this stream's. `settings` as described, `fingerprint` the network's."""
    return {"method": name, "settings": settings, "composition": repr(method), "network": fingerprint}


def take(leaves: dict[str, Tensor], found: dict[str, Any], mine: dict[str, Any], own: State, origin: str) -> State:
    """A saved state, on the device of this stream's `own`, if it is of the same identity and fits; else an error."""
    for what, expected in mine.items():
        if found.get(what) != expected:
            raise ValueError(
                f"{origin} is the state of another adapter: {_difference(what, found.get(what), expected)}"
            )
    return tree.unflatten(_fitting(leaves, tree.flatten(own), origin), own)


def _fitting(leaves: dict[str, Tensor], own: dict[str, Tensor], origin: str) -> dict[str, Tensor]:
    if leaves.keys() != own.keys():
        raise ValueError(
            f"{origin} does not hold the state of this method: {sorted(leaves.keys() ^ own.keys())} differ"
        )
    for name, leaf in leaves.items():
        if leaf.shape != own[name].shape or leaf.dtype != own[name].dtype:
            raise ValueError(
                f"{origin}: {name} is {leaf.dtype} of shape {tuple(leaf.shape)}, "
                f"where {own[name].dtype} of shape {tuple(own[name].shape)} was expected"
            )
        if name.startswith("stream") and not torch.isfinite(leaf).all():
            raise ValueError(f"{origin}: {name} is not finite; it is damaged")
    return {name: leaf.to(own[name].device).clone() for name, leaf in leaves.items()}


def _said(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "the default"


def _difference(what: str, found: Any, mine: Any) -> str:
    if isinstance(found, dict) and isinstance(mine, dict):
        keys = [key for key in {**found, **mine} if found.get(key) != mine.get(key)]
        return "; ".join(f"{key} is {_said(found, key)}, here it is {_said(mine, key)}" for key in keys)
    return f"its {what} is {found!r}, here it is {mine!r}"
