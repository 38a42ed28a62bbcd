"""Run folders as `wildtta bench` writes them, with numbers that a test chooses."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wildtta.corruptions import CORRUPTIONS
from wildtta.report import published
from wildtta.streams import SCENARIOS

METHODS = ("source", "tent", "eta", "eata", "sar", "deyo", "recap", "recap+sar", "recap+deyo")
RESNET, VIT, IMAGENET_C = (
    "timm:resnet50_gn.a1h_in1k",
    "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
    "imagenet-c:/in-c",
)


def cell(
    method: str = "source",
    kind: str = "fog",
    top1: float = 50.0,
    *,
    scenario: str = "limited",
    severity: int = 5,
    domains: dict[str, float] | None = None,
    result: dict[str, Any] | None = None,
    along: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """The content of a cell's file. `domains`: for a stream of several kinds, the accuracy on each."""
    found = SCENARIOS[scenario]
    several = domains or {kind: top1}
    of_cell = {
        "model": "glyph-resnet",
        "data": "glyphs",
        "scenario": scenario,
        "reset": found.reset,
        "domains": [[name, severity] for name in several],
        "kind": "all" if len(several) > 1 else next(iter(several)),
        "severity": severity,
        "method": method,
        "guard": None,
        "seed": 0,
        "batch": found.batch,
        "images": None,
        "options": found.settings(),
        "settings": {},
        "calibration": 500,
        "weights": None,
        "statistics": "own",
        "source": None,
        "device": "cpu",
        "precision": "float32",
        "threads": 1,
    }
    assert set(changed) <= set(of_cell), changed
    of_cell |= changed
    images = (result or {}).get("images", 1000)
    return {
        "format": 1,
        "cell": of_cell,
        "result": {
            "images": images,
            "unreadable": 0,
            "top1": top1,
            "top5": min(100.0, top1 + 20),
            "nll": 2.0,
            "ece": 5.0,
            "selected": 0.0 if method == "source" else 0.25,
            "forwards": 16,
            "backwards": 0 if method == "source" else 16,
            "updates": 0 if method == "source" else 16,
            "resets": 0,
            "skipped": 0,
            "along": along or {"seen": [images // 2, images], "top1": [top1, top1], "selected": [0.25, 0.25]},
            "domains": {name: {"images": images // len(several), "top1": share} for name, share in several.items()},
            **(result or {}),
        },
        "measured": {"seconds": 1.5, "peak_memory_mib": 100.0, "started": "2026-01-01T00:00:00+00:00"},
        "provenance": {
            "wildtta": "0.1.0",
            "torch": "2.6.0",
            "python": "3.12.1",
            "device": "cpu (x86_64)",
            "precision": of_cell["precision"],
            "threads": 1,
            "model_digest": "m" * 16,
            "data_digest": "d" * 16,
            "settings": {} if method == "source" else {"lr": 0.001},
            "stand_in": False,
            **(provenance or {}),
        },
    }


def write_run(
    folder: Path,
    cells: Iterable[dict[str, Any]],
    *,
    missing: Iterable[str] = (),
    stand_in: bool = False,
    command: str = "wildtta bench --out runs/first",
    gallery: Iterable[str] = (),
    config: dict[str, Any] | None = None,
) -> Path:
    """A run folder of these cells. `missing`: names of further cells of the plan that have no file."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    documents, names = list(cells), []
    for number, document in enumerate(documents):
        document["provenance"]["stand_in"] |= stand_in
        names.append(f"{number:04}")
        (folder / "cells" / f"{names[-1]}.json").write_text(json.dumps(document))
    inner = [document["cell"] for document in documents]
    guards = dict.fromkeys("none" if found["guard"] is None else found["guard"] for found in inner)
    plan = {
        "format": 1,
        "command": command,
        "config": {
            "models": _unique(inner, "model"),
            "data": _unique(inner, "data"),
            "kinds": [],
            "severities": _unique(inner, "severity"),
            "scenarios": _unique(inner, "scenario"),
            "methods": _unique(inner, "method"),
            "guards": list(guards),
            "seeds": _unique(inner, "seed"),
            "settings": {},
            **(config or {}),
        },
        "cells": [*names, *missing],
        "stand_in": stand_in,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    for number, kind in enumerate(gallery):
        _strip(folder / "gallery" / f"{kind}.png", number)
    return folder


def _unique(cells: list[dict[str, Any]], what: str) -> list[Any]:
    return list(dict.fromkeys(found[what] for found in cells))


def _strip(path: Path, number: int) -> None:
    """A few coloured squares with something in them, as samples."""
    from PIL import Image, ImageDraw

    path.parent.mkdir(exist_ok=True)
    picture = Image.new("RGB", (6 * 32, 32))
    draw, numbers = ImageDraw.Draw(picture), random.Random(number)
    for place in range(6):
        colour = tuple(numbers.randrange(60, 220) for _ in range(3))
        draw.rectangle((32 * place, 0, 32 * place + 31, 31), fill=colour)
        draw.ellipse((32 * place + 8, 6, 32 * place + 24, 26), fill=tuple(255 - level for level in colour))
    picture.save(path)


def paper_run(folder: Path, *, seeds: int = 3, stand_in: bool = False, **options: Any) -> Path:
    """A whole run of the wild benchmark on two models, with the paper's figures and some noise for results."""
    numbers = random.Random(0)
    cells = []
    for model, network in ((RESNET, "resnet"), (VIT, "vit")):
        place = {"model": model, "data": IMAGENET_C, "statistics": "imagenet"}
        for method in METHODS:
            row = method if method != "eta" else "eata"
            for seed in range(2023, 2023 + seeds):
                for scenario, table in (("limited", published.LIMITED), ("shift", published.SHIFT)):
                    for kind, figure in zip(CORRUPTIONS, table[network][row], strict=False):
                        start = table[network]["source"][CORRUPTIONS.index(kind)]
                        size = 50_000 if scenario == "limited" else 100_000
                        cells.append(_drawn(numbers, method, kind, figure, start, size, scenario, seed=seed, **place))
                figures = dict(zip(CORRUPTIONS, published.LIMITED[network][row], strict=False))
                top1, start = published.MIXED[network][row][0], published.MIXED[network]["source"][0]
                more = {"domains": figures, **place}
                cells.append(_drawn(numbers, method, "", top1, start, 750_000, "mixed", seed=seed, **more))
    return write_run(folder, cells, stand_in=stand_in, gallery=["clean", *CORRUPTIONS], **options)


def _drawn(
    numbers: random.Random, method: str, kind: str, figure: float, start: float, size: int, scenario: str, **more: Any
) -> dict[str, Any]:
    """A cell whose curve goes from the source model's accuracy to one that gives the figure on average."""
    adapts = method != "source"
    figure = min(99.0, max(0.1, figure + (numbers.gauss(0, 0.4) if adapts else 0)))
    seen = [size * point // 50 for point in range(1, 51)]
    shares = [1 - math.exp(-point / 8) for point in range(50)]
    mean = sum(shares) / 50
    top1 = [min(99.0, max(0.1, start + (figure - start) * share / mean + numbers.gauss(0, 0.7))) for share in shares]
    level = 0.25 + 0.06 * METHODS.index(method)
    selected = [0.1 + level * share + numbers.gauss(0, 0.01) if adapts else 0.0 for share in shares]
    if method == "tent":
        selected = [1.0] * 50
    along = {"seen": seen, "top1": top1, "selected": selected}
    result = {"images": size, "selected": sum(selected) / 50}
    return cell(method, kind, round(figure, 6), scenario=scenario, result=result, along=along, **more)
