"""DDA on the embedded glyphs: how much of the accuracy that noise costs comes back.

    python benchmarks/dda.py                                   # noise at severity 5, 200 images, both embedded models
    python benchmarks/dda.py --kinds defocus_blur,fog --images 100
    python benchmarks/dda.py --start 10,20,30 --scale 1,3,6    # every combination, to choose a model's settings by
    python benchmarks/dda.py --set source                      # other images than the test images, to choose them on

Accuracies are in percent: of the images as they are, of their adapted copies alone, and of both answers' mean, which is DDA's.
"Recovered" is the share of what the corruption cost that the mean wins back.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from torch import Tensor

from wildtta.corruptions import corrupt
from wildtta.data.glyphs import NETWORKS, TEST_IMAGES, Glyphs, glyph_batches, load_network
from wildtta.diffusion import GLYPHS, diffuse_back, load

NOISE = "gaussian_noise,shot_noise,impulse_noise"


def pictures(which: str, count: int) -> tuple[Tensor, Tensor]:
    """Clean images and their labels: the test images', or such as the networks have not met either."""
    if which == "test":
        domain = Glyphs(load_network("glyph-resnet")).domain("clean", 0)
        numbers = torch.linspace(0, TEST_IMAGES - 1, count).long()
        return domain.read(numbers)[0], domain.labels[numbers]
    return next(glyph_batches(77_777, count))


@torch.no_grad()
def answers(name: str, levels: Tensor) -> Tensor:
    """Probabilities of images of 0 to 255."""
    model = load_network(name)
    parts = [model.network(model.preprocessing.normalise(part / 255)) for part in levels.split(250)]
    return torch.cat(parts).softmax(-1)


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return 100 * (probabilities.argmax(-1) == labels).float().mean().item()


def numbers(text: str | None, kind: type) -> list:
    return [kind(part) for part in text.split(",")] if text else [None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--diffusion", default=GLYPHS, help="a model for images of 32 pixels (%(default)s)")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--kinds", default=NOISE)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--set", choices=["test", "source"], default="test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", choices=["float32", "bf16", "fp16"])
    parser.add_argument("--picture", type=Path, help="a PNG of images as they were, corrupted, and adapted")
    for name in ("steps", "start", "scale", "down"):
        parser.add_argument(f"--{name}", help="instead of the model's own; several with commas")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load(options.diffusion)
    clean, labels = pictures(options.set, options.images)
    rows: list[Tensor] = [clean]
    print(f"{model}, {options.images} images, {model.settings}")
    head = ("model", "corruption", "clean", "corrupted", "adapted", "DDA", "recovered", "settings", "s/image")
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    combinations = itertools.product(
        numbers(options.steps, int),
        numbers(options.start, int),
        numbers(options.scale, float),
        numbers(options.down, int),
    )
    for steps, start, scale, down in combinations:
        back = diffuse_back(
            model, ((0.0,), (1.0,)), steps=steps, start=start, scale=scale, down=down, chunk=options.chunk,
            precision=options.precision,
        )  # fmt: skip
        settings = f"{back.respacing}, {back.start}, {back.scale:g}, {back.down}"
        for kind in options.kinds.split(","):
            images = corrupt(clean, kind, options.severity, seeds=torch.arange(len(clean)))
            begin = time.perf_counter()
            adapted = back.restore(back.pixels(images), torch.tensor(options.seed))
            took = (time.perf_counter() - begin) / len(images)
            rows += [images, adapted.float() / 255]
            for name in NETWORKS:
                plain, changed = answers(name, images * 255), answers(name, adapted.float())
                whole, before = accuracy(answers(name, clean * 255), labels), accuracy(plain, labels)
                after = accuracy(plain + changed, labels)
                won = f"{100 * (after - before) / (whole - before):.0f} %" if whole > before else "—"
                print(
                    f"| {name} | {kind} | {whole:.1f} | {before:.1f} | {accuracy(changed, labels):.1f} | {after:.1f} | {won} "
                    f"| {settings} | {took:.3f} |",
                    flush=True,
                )
    if options.picture:
        from PIL import Image

        strip = torch.cat([torch.cat(list(row[:16]), -1) for row in rows], 1).clamp(0, 1)
        pixels = (strip * 255).byte().permute(1, 2, 0).repeat_interleave(3, 0).repeat_interleave(3, 1).contiguous()
        Image.fromarray(pixels.numpy()).save(options.picture)


if __name__ == "__main__":
    main()
