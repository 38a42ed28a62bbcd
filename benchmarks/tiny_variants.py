"""Why a method falls behind in the table of `tiny_imagenet.py`, and what helps: what each selects, how far it steps, and variants.

    python benchmarks/tiny_variants.py DATA --out docs/data/tiny_variants.json            # runs what is missing, resumable
    python benchmarks/tiny_variants.py DATA --out docs/data/tiny_variants.json --table    # prints the tables, runs nothing

The first table looks at single steps from the source weights: the share of images that a method selects, how many of these the
network answers right, what they weigh, and the length of the step next to that of plain entropy on the same layers at the same
learning rate. The second runs variants over a stream. DATA is as for `tiny_imagenet.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tiny_imagenet import BATCH, CORRUPTIONS, MODELS, load_images, load_model, normalise, run, save

import wildtta
from wildtta.corruptions import corrupt

STEPS = {
    "entropy of all": ("tent", {"frozen_top": True}),
    "eta": ("eta", {"frozen_top": True}),
    "sar": ("sar", {}),
    "deyo": ("deyo", {}),
    "recap": ("recap", {}),
    "recap, 0.4 ln C": ("recap", {"threshold": 0.4, "pivot": 0.4}),
    "recap+eta": ("recap+eta", {}),
}
VARIANTS = {
    "source": ("source", {}),
    "tent": ("tent", {}),
    "eta": ("eta", {}),
    "eta, 0.6 ln C": ("eta", {"margin": 0.6}),
    "deyo": ("deyo", {}),
    "deyo, lr x0.1": ("deyo", {"lr": "x0.1"}),
    "recap+eta": ("recap+eta", {}),
    "recap+eta, 0.6 ln C": ("recap+eta", {"margin": 0.6}),
    "recap": ("recap", {}),
    "recap, lr x0.1": ("recap", {"lr": "x0.1"}),
    "recap, 0.4 ln C": ("recap", {"threshold": 0.4, "pivot": 0.4}),
    "recap, 0.4 ln C, lr x0.1": ("recap", {"threshold": 0.4, "pivot": 0.4, "lr": "x0.1"}),
}
"""0.4 ln C stands for both the threshold and the pivot of the weights: what SAR and EATA have for entropy; 0.6 ln C for ETA's."""


def step(model: torch.nn.Module, batches: Any, method: str, options: dict[str, Any]) -> dict[str, float]:
    """Means over batches, each met by a fresh adapter: nothing has been learnt yet."""
    found: list[tuple[float, ...]] = []
    adapter = wildtta.adapt(model, method, lr=1.0, **options)
    for images, labels in batches:
        adapter.reset()
        before = adapter.state["stream"]["theta"].clone()
        right = adapter(images).argmax(-1) == labels
        outcome = adapter.outcome
        assert outcome is not None
        mask, count = outcome.mask, max(int(outcome.mask.sum()), 1)
        weight = float(outcome.loss / outcome.objective) if count and float(outcome.objective) else 0.0
        length = float((adapter.state["stream"]["theta"] - before).norm())
        found.append((mask.float().mean().item(), (right & mask).sum().item() / count, weight, length))
    means = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return dict(zip(("selected", "right", "weight", "length"), (round(value, 4) for value in means), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", type=int, default=4, help="of the first table")
    parser.add_argument("--per-class", type=int, default=20, help="images of each class, of the second table")
    parser.add_argument("--stream", default="gaussian_noise", help="the corruption of the second table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=["steps", "streams"], help="one of the two tables")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    done: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.table:
        print(tables(done))
        return
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    clean, labels = (part.to(arguments.device) for part in load_images(arguments.data / "val.tar", arguments.per_class))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    source, _ = load_images(arguments.data / "source.tar")
    for name in arguments.models:
        model = load_model(arguments.data, name).to(arguments.device)
        calibration = normalise(source[torch.arange(len(source)) % 5 < 3] / 255, name)[:500].to(arguments.device)
        region = wildtta.Region.estimate(model, calibration)

        def needs(method: str, region: wildtta.Region = region) -> dict[str, Any]:
            return {"region": region} if method.startswith("recap") else {}

        def corrupted(kind: str, count: int, name: str = name) -> torch.Tensor:
            parts = [corrupt(clean[ids] / 255, kind, 5, seeds=ids) for ids in order[:count].split(500)]
            return normalise(torch.cat(parts), name)

        for kind in CORRUPTIONS if arguments.only != "streams" else ():
            count = BATCH * arguments.batches
            images = (
                corrupted(kind, count) if any(f"step|{name}|{kind}|{label}" not in done for label in STEPS) else None
            )
            for label, (method, options) in STEPS.items():
                key = f"step|{name}|{kind}|{label}"
                if key not in done:
                    assert images is not None
                    batches = zip(images.split(BATCH), labels[order[:count]].split(BATCH), strict=True)
                    done[key] = step(model, batches, method, needs(method) | options)
                    save(arguments.out, done)
                    print(key, json.dumps(done[key]), flush=True)
        images = None
        for label, (method, options) in VARIANTS.items() if arguments.only != "steps" else ():
            key = f"stream|{name}|{arguments.stream}|{label}|{len(labels)}"
            if key not in done:
                images = corrupted(arguments.stream, len(labels)) if images is None else images
                done[key] = run(model, images, labels[order], method, None, **needs(method), **options)
                done[key] |= {"device": str(arguments.device), "torch": torch.__version__}
                save(arguments.out, done)
                print(key, json.dumps(done[key]), flush=True)


def tables(done: dict[str, Any]) -> str:
    """Markdown."""
    lines: list[str] = []
    steps = {tuple(key.split("|")[1:]): value for key, value in done.items() if key.startswith("step|")}
    for name in dict.fromkeys(key[0] for key in steps):
        lines += ["", f"**{name}**, single steps from the source weights", ""]
        lines += ["| method | corruption | selected | right among them | weight | step, ÷ entropy of all |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for label in STEPS:
            for kind in CORRUPTIONS:
                if (found := steps.get((name, kind, label))) is not None:
                    usual = steps[name, kind, "entropy of all"]["length"]
                    lines.append(
                        f"| {label} | {kind} | {100 * found['selected']:.1f} % | {100 * found['right']:.1f} % "
                        f"| {found['weight']:.2f} | {found['length'] / usual:.2f} |"
                    )
    streams = {tuple(key.split("|")[1:]): value for key, value in done.items() if key.startswith("stream|")}
    for name, kind, count in dict.fromkeys((key[0], key[1], key[3]) for key in streams):
        lines += ["", f"**{name}**, {kind}, the first {count} images shuffled, no guard", ""]
        lines += ["| method | accuracy | by quarters of the stream | selected |", "| --- | --- | --- | --- |"]
        for label in VARIANTS:
            if (found := streams.get((name, kind, label, count))) is not None:
                quarters = ", ".join(f"{value:.1f}" for value in found["quarters"])
                lines.append(f"| {label} | {found['accuracy']:.1f} | {quarters} | {100 * found['selected']:.1f} % |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
