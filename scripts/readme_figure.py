"""The picture at the top of the README: accuracy along a stream where adapting helps, and along one where it does not.

python scripts/readme_figure.py --measure    # runs the stream of the embedded set (minutes), and keeps the figures
python scripts/readme_figure.py              # draws from docs/data/readme_stream.json and docs/data/tiny_imagenet.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figure_svg import COLOUR, FAINT, INK, new_figure, save

import wildtta
from wildtta.bench import Config, run

DOCS = Path(__file__).parent.parent / "docs"
KEPT, REAL, PICTURE = (
    DOCS / "data" / "readme_stream.json",
    DOCS / "data" / "tiny_imagenet.json",
    DOCS / "images" / "stream.svg",
)

KINDS = ("fog", "impulse_noise", "glass_blur", "gaussian_noise")
METHODS = {"source": "grey", "tent": "ochre", "sar": "blue", "deyo": "violet", "recap": "red"}
NAMES = {"source": "not adapting", "tent": "Tent", "sar": "SAR", "deyo": "DeYO", "recap": "ReCAP", "eta": "ETA",
         "recap+eta": "ReCAP+ETA"}  # fmt: skip
DASHES = {"source": (0, (4, 2)), "tent": (0, (1, 1.2)), "sar": (0, (3, 1.2))}
REACH = 2  # points to each side of a running mean


def settings() -> Config:
    return Config(
        models=["glyph-resnet"],
        kinds=list(KINDS),
        scenarios=["continual"],
        methods=list(METHODS),
        settings={"lr": "x30"},
    )


def measure(folder: Path) -> dict[str, Any]:
    """What the picture shows, from a run in this folder (what is in it already is kept)."""
    config = settings()
    run(config, folder)
    found: dict[str, Any] = {"command": config.command("runs/readme"), "wildtta": wildtta.__version__, "methods": {}}
    for path in sorted((folder / "cells").glob("*.json")):
        cell = json.loads(path.read_text())
        if cell["cell"]["method"] in METHODS:
            result = cell["result"]
            found["methods"][cell["cell"]["method"]] = {
                "top1": result["top1"],
                "images": result["images"],
                "domains": {kind: entry["top1"] for kind, entry in result["domains"].items()},
                "along": {"seen": result["along"]["seen"], "top1": result["along"]["top1"]},
            }
            found |= {"torch": cell["provenance"]["torch"], "seed": cell["cell"]["seed"]}
    return found


def running_mean(seen: list[int], values: list[float]) -> tuple[list[float], list[float]]:
    """The middles of the pieces, and their means within each corruption: a change of conditions is not smoothed away."""
    middles = np.array([(start + end) / 2 for start, end in zip([0, *seen], seen, strict=False)])
    kinds = (middles * len(KINDS) / seen[-1]).astype(int)
    accuracy = np.array(values)
    near = np.abs(np.arange(len(values))[:, None] - np.arange(len(values))) <= REACH
    share = near & (kinds[:, None] == kinds)
    return middles.tolist(), ((share * accuracy).sum(1) / share.sum(1)).tolist()


def draw(kept: dict[str, Any], real: dict[str, Any]) -> None:
    figure = new_figure(8.6, 3.3)
    grid = figure.add_gridspec(1, 2, width_ratios=[2.3, 1])
    left, right = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    for method, colour in METHODS.items():
        entry = kept["methods"][method]
        width = 2.0 if method == "recap" else 1.3
        style = {"color": COLOUR[colour], "linewidth": width, "linestyle": DASHES.get(method, "-")}
        x, y = running_mean(entry["along"]["seen"], entry["along"]["top1"])
        left.plot(x, y, label=f"{NAMES[method]} {entry['top1']:.1f} %", **style)
    total = kept["methods"]["source"]["images"]
    for place, kind in enumerate(KINDS):
        if place:
            left.axvline(place * total / len(KINDS), color=FAINT, linewidth=0.8)
        left.text((place + 0.5) * total / len(KINDS), 28.5, kind.replace("_", " "), ha="center", color=INK, fontsize=8)
    left.set(ylim=(27, 100), ylabel="accuracy (%)", xlabel="images seen, in batches of 64")
    left.set_title("one stream, never reset: the embedded glyphs")
    left.legend(frameon=False, fontsize=7.5, loc="upper left", ncols=2)

    shown = {"source|plain": "grey", "recap+eta|plain": "blue", "eta|plain": "teal"}
    shown |= {"recap|plain": "red", "recap|guard": "red"}
    for key, colour in shown.items():
        method, guard = key.split("|")
        quarters = real[f"resnet50_gn_64|gaussian_noise|shuffled|{method}|x1|10000|{guard}"]["quarters"]
        label = NAMES[method] + (", guarded" if guard == "guard" else "")
        dashes = (0, (2, 1)) if guard == "guard" else DASHES.get(method, "-")
        right.plot(
            [1250, 3750, 6250, 8750], quarters, color=COLOUR[colour], linewidth=1.6, linestyle=dashes, label=label
        )
    right.set(ylim=(0, 32), xlabel="images seen")
    right.set_title("a network that is mostly wrong")
    right.legend(frameon=False, fontsize=7.5, loc="upper left")
    for axes in (left, right):
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=4)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    save(
        figure,
        PICTURE,
        "Left: accuracy along a stream of glyphs under four corruptions; adapting methods lie above the network that does not "
        "adapt. Right: Tiny-ImageNet and a weak source network: ReCAP+ETA and ETA rise, ReCAP without a guard falls below it",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--measure" in sys.argv:
        KEPT.write_text(json.dumps(measure(Path("runs/readme")), indent=1) + "\n")
    draw(json.loads(KEPT.read_text()), json.loads(REAL.read_text()))
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")
