"""MEMO against the network that does not adapt, on the same images: glyphs, and Tiny-ImageNet's photographs.

    python benchmarks/memo.py --out docs/data/memo_glyphs_vit.json --models glyph-vit --views 16 --lr x3 --images 150
    python benchmarks/memo.py --out docs/data/memo_glyphs_resnet.json --models glyph-resnet --views 16 --lr x10 --images 150
    python benchmarks/memo.py --tiny DATA --out docs/data/memo_tiny.json --views 16 --lr x3 --no-crop       # photographs
    python benchmarks/memo.py --out docs/data/memo_tiny.json --table                        # prints what is there, runs nothing

DATA is as for tiny_imagenet.py. docs/memo.md says how the glyphs' rates were chosen.

It goes through the images in a fixed random order, a few of each corruption in turn, and writes after each few: stop it whenever
you like, the same command goes on. What is written is, for each cell, which images each of the two had right ("1") or not ("0").
The table compares them pair by pair: only images that one had right and the other wrong say anything, and the chance is the exact
two-sided one that as uneven a split of these would come from a fair coin.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from tiny_imagenet import MODELS, load_images, load_model, normalise, save
from torch import Tensor

import wildtta
from wildtta.corruptions import corrupt

SEVERITY, PART = 5, 10
GLYPH_MODELS = ("glyph-resnet", "glyph-vit")
GLYPH_KINDS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
)
TINY_KINDS = ("gaussian_noise", "defocus_blur", "contrast")


class Cell:
    """One model on one corruption: the network, its adapter, and the images in their order."""

    def __init__(self, name: str, kind: str, pixels: Tensor, labels: Tensor, places: Tensor, options: dict[str, Any]):
        self.name, self.kind, self.pixels, self.labels, self.places = name, kind, pixels, labels, places
        if name in MODELS:
            self.network, self.statistics = load_model(options["tiny"], name), MODELS[name]
        else:
            from wildtta.models import load_model as by_name

            model = by_name(name)
            self.network = model.network
            self.statistics = (model.preprocessing.mean, model.preprocessing.std)
        given = {"views": options["views"], "at_once": options["at_once"], "statistics": self.statistics}
        if options["lr"] is not None:
            given["lr"] = options["lr"]
        if name not in MODELS:  # a character fills its picture: a crop or a mirror makes another of it
            given |= {"crop": False, "flip": False}
        elif not options["crop"]:
            given["crop"] = False
        self.layout = torch.contiguous_format if "cuda" in options["device"] else torch.channels_last
        self.adapter = wildtta.adapt(self.network, "memo", **given)
        for module in (self.adapter, self.network):
            module.to(options["device"], memory_format=self.layout)
        lr = "" if options["lr"] is None else f"|{options['lr']}"
        if not options["crop"]:
            lr = (lr or "|x1") + ", no crops"
        self.key = f"{name}|{kind}|{SEVERITY}|{options['views']} views{lr}"

    def images(self, places: Tensor) -> Tensor:
        """These, corrupted; an image's noise is its own, whatever it is asked with."""
        corrupted = corrupt(self.pixels[places].float() / 255, self.kind, SEVERITY, seeds=places)
        # as a file would hold them
        levels = (corrupted * 255).round() / 255
        if self.name in MODELS:
            return normalise(levels, self.name)
        mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in self.statistics)
        return (levels - mean) / deviation

    def go_on(self, result: dict[str, Any], count: int) -> None:
        """Some more images."""
        begun, start = time.perf_counter(), len(result["memo"])
        places = self.places[start : start + count]
        images, labels = self.images(places).to(self.adapter.state["loss"].device), self.labels[places]
        images = images.contiguous(memory_format=self.layout)
        self.adapter.reset()
        with torch.no_grad():
            plain = self.network(images).argmax(-1).cpu() == labels
        adapted = self.adapter(images).argmax(-1).cpu() == labels
        result["source"] += "".join(str(int(right)) for right in plain)
        result["memo"] += "".join(str(int(right)) for right in adapted)
        result["skipped"] += self.adapter.report.skipped
        result["seconds"] = round(result["seconds"] + time.perf_counter() - begun, 1)
        result["device"], result["torch"] = str(images.device), torch.__version__


def glyph_cells(options: dict[str, Any]) -> list[Cell]:
    from wildtta.data.glyphs import TEST_IMAGES, _GlyphDomain

    domain = _GlyphDomain("clean", 0)
    pixels = (domain.read(torch.arange(TEST_IMAGES))[0] * 255).round().byte()
    places = torch.randperm(TEST_IMAGES, generator=torch.Generator().manual_seed(0))
    kinds, models = options["kinds"] or GLYPH_KINDS, options["models"] or GLYPH_MODELS
    return [Cell(name, kind, pixels, domain.labels, places, options) for name in models for kind in kinds]


def tiny_cells(options: dict[str, Any]) -> list[Cell]:
    pixels, labels = load_images(options["tiny"] / "val.tar")
    places = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    kinds, models = options["kinds"] or TINY_KINDS, options["models"] or ("resnet50_gn_64",)
    return [Cell(name, kind, pixels, labels, places, options) for name in models for kind in kinds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", type=Path, help="the folder of Tiny-ImageNet and its models; without it: glyphs")
    parser.add_argument("--images", type=int, default=500, help="of each corruption")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--lr", help='instead of the default: a number, or a multiple of the default such as "x10"')
    parser.add_argument("--no-crop", dest="crop", action="store_false", help="of photographs: views are AugMix alone")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--at-once", type=int, default=1, help="images side by side")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--until", type=float, default=math.inf, help="begin nothing more after so many seconds")
    parser.add_argument("--table", action="store_true")
    options = vars(parser.parse_args())
    done: dict[str, Any] = json.loads(options["out"].read_text()) if options["out"].exists() else {}
    if options["table"]:
        print(table(done))
        return
    if options["lr"] is not None and not options["lr"].startswith("x"):
        options["lr"] = float(options["lr"])
    torch.set_num_threads(options["threads"])
    begun = time.perf_counter()
    cells = glyph_cells(options) if options["tiny"] is None else tiny_cells(options)
    empty = {"source": "", "memo": "", "skipped": 0, "seconds": 0.0}
    while short := [cell for cell in cells if len(done.get(cell.key, empty)["memo"]) < options["images"]]:
        for cell in short:
            if time.perf_counter() - begun > options["until"]:
                return
            result = done.setdefault(cell.key, dict(empty))
            cell.go_on(result, min(PART, options["images"] - len(result["memo"])))
            save(options["out"], done)
            print(cell.key, _row(result), flush=True)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(done: dict[str, Any]) -> str:
    """Markdown: a row a cell, and for each model all its corruptions together."""
    lines = [
        "| model | corruption | views | rate | images | source | MEMO | difference | mended, spoilt | chance | s an image |"
    ]
    lines += ["| --- " * 11 + "|"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, result in done.items():
        name, kind, _, views = key.split("|", 3)
        lines.append(f"| {name} | {kind} | {_budget(views)} | {_row(result)} |")
        groups.setdefault((name, views), []).append(result)
    for (name, views), results in groups.items():
        if len(results) > 1:
            every = {part: "".join(result[part] for result in results) for part in ("source", "memo")}
            every |= {"seconds": sum(result["seconds"] for result in results)}
            lines.append(f"| **{name}** | all | {_budget(views)} | {_row(every)} |")
    return "\n".join(lines)


def _budget(text: str) -> str:
    """Views and rate, from the end of a key."""
    views, _, rate = text.partition("|")
    return f"{views.removesuffix(' views')} | {rate or 'x1'}"


def _row(result: dict[str, Any]) -> str:
    source, memo = ([right == "1" for right in result[part]] for part in ("source", "memo"))
    count = len(memo)
    mended = sum(after and not before for before, after in zip(source, memo, strict=True))
    spoilt = sum(before and not after for before, after in zip(source, memo, strict=True))
    difference = (mended - spoilt) / count
    error = math.sqrt(max((mended + spoilt) / count - difference**2, 0) / count)
    cells = [
        f"{count:,}",
        f"{100 * sum(source) / count:.1f}",
        f"{100 * sum(memo) / count:.1f}",
        f"{100 * difference:+.1f} ± {100 * error:.1f}",
        f"{mended}, {spoilt}",
        f"{chance(mended, spoilt):.2g}",
        f"{result['seconds'] / count:.1f}",
    ]
    return " | ".join(cells)


def chance(mended: int, spoilt: int) -> float:
    """The exact two-sided sign test (McNemar's).

    >>> chance(5, 0)
    0.0625
    """
    count, least = mended + spoilt, min(mended, spoilt)
    tail = sum(math.comb(count, number) for number in range(least + 1))
    return min(1.0, 2 * tail / 2**count)


if __name__ == "__main__":
    main()
