"""Every method on real images: Tiny-ImageNet's 10,000 validation photographs, corrupted, through two real source models.

    python benchmarks/tiny_imagenet.py DATA --out docs/data/tiny_imagenet.json            # runs what is missing, resumable
    python benchmarks/tiny_imagenet.py DATA --out docs/data/tiny_imagenet.json --rates 0.1 0.3 3 --plain   # other learning rates
    python benchmarks/tiny_imagenet.py DATA --out docs/data/tiny_imagenet.json --table    # prints the tables, runs nothing

DATA is a folder with `val.tar`, `source.tar` (ImageFolder layout inside) and the models' `*.safetensors`. A cell is one model ×
corruption × order × method × guard, from a fresh adapter, at the method's default learning rate for batches of 64; the
prediction that counts is the one before the update. Where the guard never sets a stream back, the runs with and without it are
the same numbers, so the second is not run again but marked as such.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wildtta
from wildtta.corruptions import corrupt

MODELS = {
    "resnet50_gn_64": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "vit_small_patch8_64": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
METHODS = ("source", "tent", "eta", "sar", "deyo", "recap", "recap+eta", "recap+sar", "recap+deyo")
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "contrast")
ORDERS = ("shuffled", "ordered")
CLASSES, BATCH = 200, 64


def load_model(root: Path, name: str) -> nn.Module:
    import timm
    from safetensors.torch import load_file

    if name == "resnet50_gn_64":
        model = timm.create_model("resnet50_gn", num_classes=CLASSES)
        model.maxpool = nn.Identity()
    else:
        model = timm.create_model("vit_small_patch16_224", num_classes=CLASSES, img_size=64, patch_size=8)
    model.load_state_dict({key: value.float() for key, value in load_file(root / f"{name}.safetensors").items()})
    return model.eval()


def load_images(path: Path, per_class: int | None = None) -> tuple[Tensor, Tensor]:
    """Images (N × 3 × 64 × 64, bytes) and labels, ordered by class; all of them, or the first few of each class."""
    import numpy
    from PIL import Image

    with tarfile.open(path) as archive:
        members = sorted((member for member in archive if member.isfile()), key=lambda member: member.name)
        classes = sorted({Path(member.name).parent.name for member in members})
        taken, images, labels = dict.fromkeys(classes, 0), [], []
        for member in members:
            wnid = Path(member.name).parent.name
            if per_class is not None and taken[wnid] == per_class:
                continue
            taken[wnid] += 1
            file = archive.extractfile(member)
            assert file is not None
            pixels = Image.open(io.BytesIO(file.read())).convert("RGB")
            images.append(torch.from_numpy(numpy.array(pixels)).permute(2, 0, 1))
            labels.append(classes.index(wnid))
    return torch.stack(images), torch.tensor(labels)


def normalise(images: Tensor, name: str) -> Tensor:
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in MODELS[name])
    return (images - mean) / std


def run(
    model: nn.Module, images: Tensor, labels: Tensor, method: str, guard: str | None, **options: Any
) -> dict[str, Any]:
    """One stream through one adapter. On a GPU nothing waits for the device until the stream is over."""
    runner = "captured" if images.is_cuda else "sparing"
    # on a CPU a convolution takes half the time in this layout
    layout = torch.contiguous_format if images.is_cuda else torch.channels_last
    adapter = wildtta.adapt(model, method, guard=guard, runner=runner, **options).to(memory_format=layout)
    correct, start = [], time.perf_counter()
    for batch, truth in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        batch = batch.contiguous(memory_format=layout)
        correct.append(adapter(batch).argmax(-1) == truth)
    hits = torch.cat(correct).float().cpu()
    report = adapter.report
    return {
        "accuracy": round(100 * hits.mean().item(), 2),
        "quarters": [round(100 * quarter.mean().item(), 1) for quarter in hits.chunk(4)],
        "images": len(hits),
        "selected": round(report.selected / report.seen, 4),
        "updates": report.updates,
        "resets": report.resets,
        "skipped": report.skipped,
        "seconds": round(time.perf_counter() - start, 1),
        "runner": runner,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--corruptions", nargs="+", default=list(CORRUPTIONS))
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--per-class", type=int, help="images of each class; default: all 50")
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0], help="multiples of the default learning rate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU")
    parser.add_argument("--plain", action="store_true", help="without the guard only")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no further cell after so many seconds")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    done: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.table:
        print(tables(done))
        return
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    begun = time.perf_counter()
    clean, labels = (part.to(arguments.device) for part in load_images(arguments.data / "val.tar", arguments.per_class))
    source, _ = load_images(arguments.data / "source.tar")
    orders = {
        "ordered": torch.arange(len(labels)),
        "shuffled": torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)),
    }
    for name in arguments.models:
        model = load_model(arguments.data, name).to(arguments.device)
        calibration = normalise(source[torch.arange(len(source)) % 5 < 3] / 255, name)[:500].to(arguments.device)
        region = wildtta.Region.estimate(model, calibration)
        base = 1e-3 if name.startswith("vit") else 2.5e-4
        for corruption in arguments.corruptions:
            ids = torch.arange(len(clean), device=clean.device)
            corrupted = torch.cat(
                [
                    corrupt(part / 255, corruption, 5, seeds=seeds)
                    for part, seeds in zip(clean.split(500), ids.split(500), strict=True)
                ]
            )
            corrupted = normalise(corrupted, name)
            for order, rate, method in itertools.product(arguments.orders, arguments.rates, arguments.methods):
                options: dict[str, Any] = {"region": region} if method.startswith("recap") else {}
                if rate != 1.0 and method != "source":
                    options["lr"] = base * rate
                chosen = orders[order].to(labels.device)
                cell = f"{name}|{corruption}|{order}|{method}|x{rate:g}|{len(labels)}"
                guarded: dict[str, Any] | None = None
                for guard in (None,) if method == "source" or arguments.plain else ("collapse", None):
                    key = f"{cell}|{'guard' if guard else 'plain'}"
                    if key not in done:
                        if time.perf_counter() - begun > arguments.until:
                            return
                        if guard is None and guarded is not None and guarded["resets"] == 0:
                            done[key] = guarded | {"same_as_guarded": True}
                        else:
                            done[key] = run(model, corrupted[chosen], labels[chosen], method, guard, **options)
                            done[key] |= {"device": str(arguments.device), "torch": torch.__version__}
                        save(arguments.out, done)
                        print(key, json.dumps(done[key]), flush=True)
                    if guard is not None and method not in ("sar", "recap+sar"):  # their own recovery counts resets too
                        guarded = done[key]


def save(path: Path, done: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
    os.replace(partial, path)


def tables(done: dict[str, Any]) -> str:
    """Markdown: for each model, number of images and rate a table of methods × (corruption, order)."""
    keys = [key.split("|") for key in done]
    lines: list[str] = []
    for model, rate, images in sorted({(key[0], key[4], key[5]) for key in keys}):
        columns = [
            (corruption, order)
            for corruption, order in itertools.product(CORRUPTIONS, ORDERS)
            if any(key[:3] == [model, corruption, order] and key[4:6] == [rate, images] for key in keys)
        ]
        lines += ["", f"**{model}**, {images} images a stream, learning rate {rate}", ""]
        lines += [
            "| method | guard | " + " | ".join(f"{corruption}, {order}" for corruption, order in columns) + " | mean |"
        ]
        lines += ["| --- | --- |" + " --- |" * (len(columns) + 1)]
        for method, guard in itertools.product(METHODS, ("plain", "guard")):
            cells = [done.get("|".join((model, *column, method, rate, images, guard))) for column in columns]
            if not any(cells):
                continue
            shown = [_shown(cell) for cell in cells]
            mean = f"{sum(cell['accuracy'] for cell in cells if cell) / len(cells):.1f}" if all(cells) else ""
            lines.append(f"| {method} | {'on' if guard == 'guard' else 'off'} | {' | '.join(shown)} | {mean} |")
    return "\n".join(lines)


def _shown(cell: dict[str, Any] | None) -> str:
    """Accuracy, and in brackets how often the stream was set back."""
    if cell is None:
        return ""
    return f"{cell['accuracy']:.1f}" + (f" ({cell['resets']})" if cell["resets"] else "")


if __name__ == "__main__":
    main()
