"""Studies that take a moment: a network of a few channels and a folder of little pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from tiny_bench import write_folder

from wildtta.studies import Choice

KINDS = ["fog"]

MODELS = """
import torch
from torch import nn
from wildtta.models import Model, Preprocessing


def small():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )
    # so that predictions differ in their answers and in how certain they are
    with torch.no_grad():
        logits = network(torch.rand(64, 3, 24, 24))
        network[-1].weight.mul_(0.5 / logits.std(0).mean())
        network[-1].bias.sub_(network(torch.rand(64, 3, 24, 24)).mean(0))
    return Model("small", network, Preprocessing((24, 24), resize=24), ("class0", "class1", "class2"))
"""


def place(folder: Path) -> dict[str, Any]:
    """A model and data, as `Choice` takes them."""
    (folder / "models.py").write_text(MODELS)
    return {
        "models": [f"{folder / 'models.py'}:small"],
        "data": f"folder:{write_folder(folder / 'pictures', classes=3, each=24, side=24)}",
    }


def choice(where: dict[str, Any], **others: Any) -> Choice:
    usual: dict[str, Any] = {"kinds": KINDS, "images": 70, "scale": "small", "calibration": 32, "lr": "x300"}
    return Choice(**(where | usual | others))


_MEASURED = ("seconds", "ms", "forward_ms", "backward_ms", "other_ms", "images_a_second", "command")


def numbers(content: Any) -> Any:
    """A summary without what differs from run to run: how long things took, and where."""
    if isinstance(content, dict):
        return {name: numbers(value) for name, value in content.items() if name not in _MEASURED}
    if isinstance(content, list):
        return [numbers(value) for value in content]
    return content


def summary(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name / "summary.json").read_text())
