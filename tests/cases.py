"""Every method on every kind of network, with settings that select on random images."""

from __future__ import annotations

from typing import Any

import torch
from networks import NETWORKS, images, make

import wildtta

STREAMING = ("tent", "eta", "eata", "sar", "deyo", "recap", "recap+eta", "recap+sar", "recap+deyo")
"""Those that carry what they learn from batch to batch. MEMO forgets with every image: what is said of a stream's parameters, of
export and of selections does not apply to it, and tests/test_memo.py says what does instead."""

METHODS = ("source", *STREAMING, "memo")
LEARNING = STREAMING
KINDS = tuple(NETWORKS)
EVERY = [(method, kind) for method in ("source", *STREAMING) for kind in KINDS] + [("memo", "ln"), ("memo", "bn")]
"""MEMO takes many passes an image: AdamW and mixed BatchNorm statistics, on one network each, have to do here."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "source": {},
    "tent": {},
    "eta": {"margin": 0.7, "redundancy": 0.9},
    "eata": {"margin": 0.7, "redundancy": 0.9},
    "sar": {"margin": 0.7, "recovery": 0.0},
    "deyo": {"threshold": 0.8, "plpd": -0.2},
    "recap": {"tau": 0.2, "threshold": 1.5},
    "recap+eta": {"tau": 0.2, "margin": 0.7, "redundancy": 0.9},
    "recap+sar": {"tau": 0.2, "margin": 0.7, "recovery": 0.0},
    "recap+deyo": {"tau": 0.2, "threshold": 0.8, "plpd": -0.2},
    "memo": {"views": 3, "lr": 2e-4},
}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "eta": {"margin": -1.0},
    "eata": {"margin": -1.0},
    "sar": {"margin": -1.0},
    "deyo": {"plpd": 2.0},
    "recap": {"threshold": -1.0},
    "recap+eta": {"margin": -1.0},
    "recap+sar": {"margin": -1.0},
    "recap+deyo": {"threshold": -1.0},
}


def settings(method: str, network: torch.nn.Module, **others: Any) -> dict[str, Any]:
    """The arguments of `adapt` for a method: what it needs of the source, a rate that moves, thresholds that select."""
    found = dict(_SETTINGS[method])
    dtype = next(network.parameters()).dtype
    if "recap" in method:
        found["region"] = wildtta.Region.estimate(network, images(60, 90, dtype))
    if method == "eata":
        found["fisher"] = wildtta.Fisher.estimate(network, images(64, 91, dtype))
    if method != "source":
        found.setdefault("lr", 0.002)
    return found | others


def adapter(method: str, kind: str, dtype: torch.dtype = torch.float32, **others: Any) -> wildtta.Adapter:
    network = make(kind, dtype)
    return wildtta.adapt(network, method, **settings(method, network, **others))
