"""What the service starts with: the model, and what methods need of its source domain."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wildtta.bench.config import ConfigError
from wildtta.bench.engine import check_device
from wildtta.bench.plan import fit
from wildtta.core.guards import named_guard
from wildtta.models import EMBEDDED, Model, load_model
from wildtta.network import Network
from wildtta.recipes import methods, recipe
from wildtta.serve.problems import Problem
from wildtta.serve.settings import Settings
from wildtta.source import Fisher, Region

__all__ = ["GUARDS", "Opened", "check_request", "open_model"]

GUARDS = ("collapse", "recover", "none")
_REGION, _FISHER = 500, 512  # source images that are enough for either

# what a hyper-parameter may be, where its type is not bound enough: a step must not take all memory, nor raise
_BOUNDS = {"patches": (1, 32), "momentum": (0.0, 1.0), "rho": (0.0, 1e3), "tau": (0.0, 1e3)}
_SPELT_RATE = re.compile(r"x\d{1,6}(\.\d{1,6})?")


@dataclass
class Opened:
    """A model on its device, and what was estimated on its source domain."""

    model: Model
    network: nn.Module
    device: torch.device
    source: dict[str, Any]
    fingerprint: str


def open_model(settings: Settings) -> Opened:
    """Load the model and what methods need; an error says what is missing before the service listens."""
    check_device(settings.device)
    device = torch.device(settings.device)
    torch.set_num_threads(settings.threads)
    model = load_model(settings.model, weights=settings.weights, statistics=settings.statistics)
    found: dict[str, Any] = {}
    place = settings.source or ("glyphs" if settings.model in EMBEDDED else None)
    images = None
    if place is not None and (settings.region is None or settings.fisher is None):
        model, data = fit(model, place, settings.source)
        images = data.source(max(_REGION, _FISHER))
        if images is None and settings.source is not None:
            raise ConfigError(f"--source {settings.source} has no uncorrupted source images")
    network = model.network.to(device)
    view = Network(network)
    if images is not None:
        prepared = [model.preprocessing.normalise(part.to(device)) for part in images.split(64)]
        if settings.region is None:
            found["region"] = Region.estimate(network, prepared, limit=_REGION)
        if settings.fisher is None and view.norm_names:
            found["fisher"] = Fisher.estimate(network, prepared, limit=_FISHER)
    try:
        if settings.region is not None:
            found["region"] = Region.load(settings.region)
            found["region"].check(view)
        if settings.fisher is not None:
            found["fisher"] = Fisher.load(settings.fisher)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Opened(model, network, device, found, view.fingerprint())


def check_request(opened: Opened, method: str, guard: str, hyperparameters: dict[str, Any]) -> None:
    """Raise a problem where a stream of this kind cannot be had, or one of its values could make a step fail."""
    if method not in methods():
        raise Problem(422, f"unknown method {method[:60]!r}", f"the methods are {', '.join(methods())}")
    if guard not in GUARDS:
        raise Problem(422, f"unknown guard {guard[:60]!r}", f"the guards are {', '.join(GUARDS)}")
    found = recipe(method)
    if found.costly:
        raise Problem(
            422,
            f"{method!r} takes tens of passes an image, and would keep all other streams waiting",
            f"choose one of {', '.join(name for name, other in methods().items() if not other.costly)}",
        )
    own = [name for name in found.hyperparameters if name not in ("region", "fisher")]
    for needed in found.required:
        if needed not in opened.source:
            raise Problem(
                422,
                f"the method {method!r} needs a {needed} of the source domain, and the service was started without one",
                f"choose another method, or start the service with --{needed} FILE or --source IMAGES",
            )
    annotations = found.compose.__annotations__
    for name, value in hyperparameters.items():
        if name not in own:
            raise Problem(
                422,
                f"{method!r} has no hyper-parameter {name[:60]!r} that a client may set",
                f"it takes {', '.join(own) or 'none'}",
            )
        if fault := _fault(name, value, str(annotations.get(name, "float"))):
            raise Problem(422, f"the hyper-parameter {name!r} {fault}", f"see `wildtta methods {method}`")
    guard == "none" or named_guard(guard)


def _fault(name: str, value: Any, annotation: str) -> str | None:
    if value is None:
        return None if "None" in annotation else "must not be null"
    if "bool" in annotation:
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(value, str):
        rate = "Rate" in annotation or "str" in annotation
        return (
            None
            if rate and _SPELT_RATE.fullmatch(value)
            else 'must be a number, or for a rate a multiple such as "x10"'
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "must be a number"
    least, most = _BOUNDS.get(name, (-1e6, 1e6))
    if not math.isfinite(value) or not least <= value <= most:
        return f"must be from {least:g} to {most:g}"
    if annotation == "int" and value != int(value):
        return "must be a whole number"
    return None
