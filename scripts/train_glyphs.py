"""Trains the two small networks that come with the package, on glyphs drawn as they are needed.

python scripts/train_glyphs.py --device cuda --out wildtta/data
python scripts/train_glyphs.py --model glyph-vit --minutes 20 --batch 64 --start wildtta/data  # go on from other weights

No image is seen twice, so there is no augmentation: to the networks, every corruption is new. The weights are written in half
precision. A run that takes all its steps is repeatable, up to the order in which a GPU adds; where the minutes end first, the
learning rate still goes down to zero.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wildtta import files
from wildtta.corruptions import CORRUPTIONS, EXTRA
from wildtta.data.glyphs import KIND, NETWORKS, PREPROCESSING, TEST_IMAGES, Glyphs, glyph_batches
from wildtta.models import Model

HIGHEST_RATE = {"glyph-resnet": 3e-3, "glyph-vit": 1e-3}


def schedule(progress: float) -> float:
    """Share of the highest learning rate: up in the first tenth, then down along a cosine."""
    return min(progress / 0.1, 0.5 + 0.5 * math.cos(math.pi * max(0.0, progress - 0.1) / 0.9))


def train(
    name: str, device: str, *, steps: int, batch: int, minutes: float, seed: int, start: Path | None
) -> nn.Module:
    torch.manual_seed(seed)
    network = NETWORKS[name](len(Glyphs.classes)).to(device)
    if start is not None:
        network.load_state_dict({key: value.float() for key, value in files.read(_file(start, name), KIND)[0].items()})
    weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    count = sum(parameter.numel() for parameter in network.parameters())
    print(f"{name}: {count:,} parameters, {steps:,} steps of {batch} images or {minutes:g} minutes", flush=True)
    begin, progress, told = time.monotonic(), 0.0, 0
    correct, seen = torch.zeros((), device=device), 0
    for step, (images, labels) in enumerate(glyph_batches(seed, batch, device), 1):
        progress = max(step / steps, (time.monotonic() - begin) / (60 * minutes))
        for group in optimiser.param_groups:
            group["lr"] = HIGHEST_RATE[name] * (1 if start is None else 0.1) * schedule(min(progress, 1.0))
        logits = network(PREPROCESSING.normalise(images))
        optimiser.zero_grad()
        cross_entropy(logits, labels, label_smoothing=0.1).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        correct, seen = correct + (logits.argmax(-1) == labels).sum(), seen + batch
        if int(20 * progress) > told:
            told, elapsed = int(20 * progress), time.monotonic() - begin
            print(
                f"  step {step:6,}  {elapsed:5.0f} s  accuracy while training {correct.item() / seen:6.1%}", flush=True
            )
            correct, seen = torch.zeros_like(correct), 0
        if progress >= 1:
            break
    return network.eval()


@torch.no_grad()
def accuracy(data: Glyphs, network: nn.Module, kind: str, device: str) -> float:
    """On a domain's images at severity 5."""
    domain = data.domain(kind, 5)
    correct = 0
    for numbers in torch.arange(TEST_IMAGES).split(250):
        images, _ = domain.read(numbers, device)
        answers = network(PREPROCESSING.normalise(images)).argmax(-1).cpu()
        correct += int((answers == domain.labels[numbers]).sum())
    return correct / TEST_IMAGES


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('-', '_')}.safetensors"


def halved(network: nn.Module) -> dict[str, Tensor]:
    """The weights in half precision, which the network then has too: what is measured is what is written."""
    weights = {name: value.half() for name, value in network.state_dict().items()}
    network.load_state_dict(weights)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=NETWORKS, help="only this one")
    parser.add_argument("--out", type=Path, default=Path("wildtta/data"), help="folder for the weights (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=6_000, help="at most (%(default)s)")
    parser.add_argument("--batch", type=int, default=512, help="images a step (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1.5, help="at most, for each network (%(default)s)")
    parser.add_argument("--start", type=Path, help="folder of weights to go on from, at a tenth of the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [options.model] if options.model else NETWORKS:
        network = train(
            name,
            options.device,
            steps=options.steps,
            batch=options.batch,
            minutes=options.minutes,
            seed=options.seed,
            start=options.start,
        )
        path = _file(options.out, name)
        files.write(path, KIND, halved(network), {"network": name})
        data = Glyphs(Model(name, network, PREPROCESSING, Glyphs.classes))
        print(f"{name}: wrote {path}; right on the test images, in %:")
        for kind in ("clean", *CORRUPTIONS, *EXTRA):
            print(f"  {kind:18}{100 * accuracy(data, network, kind, options.device):6.1f}", flush=True)


if __name__ == "__main__":
    main()
