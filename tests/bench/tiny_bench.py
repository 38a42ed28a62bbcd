"""Benchmarks that take a moment, and what they leave on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from wildtta import cli
from wildtta.bench import Config

KINDS = ["fog", "contrast"]


def config(**others: Any) -> Config:
    usual: dict[str, Any] = {
        "models": ["glyph-resnet"],
        "kinds": KINDS,
        "scenarios": ["limited", "mild"],
        "methods": ["source", "tent"],
        "images": 8,
        "calibration": 32,
    }
    return Config(**(usual | others))


def results(folder: Path) -> dict[str, Any]:
    """Every result by its file name, without what differs from run to run: how long it took, and when."""
    found = {file.name: json.loads(file.read_text()) for file in (folder / "cells").glob("*.json")}
    assert all(set(content.pop("measured")) >= {"seconds", "started"} for content in found.values())
    return found


def of(folder: Path, **wanted: Any) -> dict[str, Any]:
    """The one cell that is such."""
    fits = [c for c in results(folder).values() if all(c["cell"][name] == value for name, value in wanted.items())]
    assert len(fits) == 1, f"{len(fits)} cells are {wanted}"
    return fits[0]


def asked(monkeypatch: Any, *arguments: str) -> tuple[Config, Path]:
    """What `wildtta` would run, given these arguments."""
    calls: list[tuple[Config, Path]] = []
    with monkeypatch.context() as patch:
        patch.setattr(cli, "_run", lambda config, out, **others: calls.append((config, out)))
        result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return calls[0]


def refused(*arguments: str) -> str:
    """The one sentence with which `wildtta` says no."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("error:") == 1
    return " ".join(result.stderr.split()).removeprefix("error: ")


def write_image(path: Path, seed: int, side: int = 32) -> None:
    """A smooth picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.RandomState(seed).randint(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(path, format="JPEG", quality=90)


def write_folder(path: Path, classes: int = 3, each: int = 4, side: int = 32) -> Path:
    """Uncorrupted images in class folders."""
    for group in range(classes):
        for number in range(each):
            write_image(path / f"class{group}" / f"{number}.jpg", 100 * group + number, side)
    return path


MODELS = '''
import torch
from torch import nn
from wildtta.models import Model, Preprocessing


def _network(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )


def tiny():
    return Model("tiny", _network(), Preprocessing((24, 24)), ("class0", "class1", "class2"))


def small():
    """Sees the whole of the picture, where `tiny` sees the middle."""
    return Model("small", _network(), Preprocessing((24, 24), resize=24), ("class0", "class1", "class2"))


def turned():
    """Has its classes in another order."""
    return Model("turned", _network(), Preprocessing((24, 24)), ("class2", "class0", "class1"))
'''


def write_models(folder: Path) -> str:
    """A file of models for the folders above; add ":tiny", …"""
    path = folder / "models.py"
    path.write_text(MODELS)
    return str(path)
