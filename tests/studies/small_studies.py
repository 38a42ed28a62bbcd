"""Studies that take a moment: a network of a few channels and a folder of little pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from tiny_bench import write_folder, write_models

from wildtta.studies import Choice

KINDS = ["fog", "contrast"]


def place(folder: Path) -> dict[str, Any]:
    """A model and data, as `Choice` takes them."""
    return {
        "models": [f"{write_models(folder)}:small"],
        "data": f"folder:{write_folder(folder / 'pictures', classes=3, each=24, side=24)}",
    }


def choice(where: dict[str, Any], **others: Any) -> Choice:
    usual: dict[str, Any] = {"kinds": KINDS, "images": 70, "scale": "small", "calibration": 32, "lr": "x10"}
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
