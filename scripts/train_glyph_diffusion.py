"""Trains the small diffusion model that comes with the package, on the glyphs that `glyph_batches` draws.

python scripts/train_glyph_diffusion.py --steps 6000 --out wildtta/data/glyph_diffusion

It takes 1,000 linear steps and predicts the noise, as DDA asks. What corrupts glyphs is gone in less noise than that of step
200, so only the steps below are trained: all of the model's capacity goes where it is used, and it cannot draw images from
nothing. What is kept is the moving average of the weights, in half precision, as a folder that diffusers' `DDPMPipeline` reads
too. A run that was ended goes on from its checkpoint; the learning rate falls to zero at the end of the steps or of the minutes,
whichever comes first, both of all runs together.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from wildtta.data.glyphs import glyph_batches
from wildtta.files import put

CONFIG = {
    "sample_size": 32,
    "in_channels": 3,
    "out_channels": 3,
    "block_out_channels": (32, 64, 128),
    "down_block_types": ("DownBlock2D",) * 3,
    "up_block_types": ("UpBlock2D",) * 3,
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 32,  # in the middle, at 8 x 8
}
STEPS = 1000
TRAINED = 200  # steps 0 to 199
HIGHEST_RATE = 1e-3
WARM_UP = 200  # steps
AVERAGE = 0.998
DDA = {"steps": 50, "start": 9, "scale": 2.0, "down": 2}
"""What suits it in DDA; chosen with `benchmarks/dda.py --set source`."""


class Images:
    """Images in [-1, 1]: drawn until there are `count`, then drawn no more but met again in a random order."""

    def __init__(self, seed: int, batch: int, count: int) -> None:
        self.stream, self.batch, self.count = glyph_batches(seed, batch), batch, count
        self.kept: list[Tensor] = []
        self.order: list[int] = []

    def __call__(self) -> Tensor:
        if len(self.kept) * self.batch < self.count:
            images, _ = next(self.stream)
            self.kept.append((images * 255).round().to(torch.uint8))
            images = self.kept[-1]
        else:
            if not isinstance(self.kept, Tensor):
                self.kept = torch.cat(self.kept)
            images = self.kept[torch.randint(len(self.kept), (self.batch,))]
        return images.float() / 127.5 - 1


def steps_of_batch(batch: int) -> Tensor:
    """One from each equal part of the trained steps, so that every batch meets all amounts of noise."""
    return ((torch.arange(batch) + torch.rand(batch)) * (TRAINED / batch)).long().clamp(max=TRAINED - 1)


def schedule(step: int, progress: float) -> float:
    """Share of the highest learning rate."""
    return min(step / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0)))


def train(options: argparse.Namespace) -> nn.Module:
    from diffusers import UNet2DModel

    torch.manual_seed(options.seed)
    network = UNet2DModel(**CONFIG).to(options.device)
    average = copy.deepcopy(network).requires_grad_(False)
    optimiser = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.99), weight_decay=1e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS, dtype=torch.float64), 0).float().to(options.device)
    step, before = 0, 0.0
    if options.checkpoint.is_file():
        saved = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        average.load_state_dict(saved["average"])
        optimiser.load_state_dict(saved["optimiser"])
        step, before = saved["step"], saved["seconds"]
        torch.manual_seed(options.seed + step)
    # a run that goes on draws other images than it has met
    images = Images(options.seed + step, options.batch, options.images)
    count = sum(parameter.numel() for parameter in network.parameters())
    print(f"{count:,} parameters, from step {step:,} of {options.steps:,}", flush=True)
    begin, told, total, summed = time.monotonic(), before, 0.0, 0
    while True:
        elapsed = before + time.monotonic() - begin
        if step and elapsed - told > 60:
            kept_so_far = {
                "network": network.state_dict(),
                "average": average.state_dict(),
                "optimiser": optimiser.state_dict(),
                "step": step,
                "seconds": elapsed,
            }
            partial = options.checkpoint.with_suffix(".partial")
            torch.save(kept_so_far, partial)
            partial.replace(options.checkpoint)
            print(f"  step {step:6,}  {elapsed:5.0f} s  loss {total / max(summed, 1):.4f}", flush=True)
            told, total, summed = elapsed, 0.0, 0
        if elapsed >= 60 * options.minutes or step >= options.steps:
            return average.eval()
        step += 1
        progress = max(step / options.steps, elapsed / (60 * options.minutes))
        for group in optimiser.param_groups:
            group["lr"] = HIGHEST_RATE * schedule(step, progress)
        clean = images().to(options.device)
        times = steps_of_batch(len(clean)).to(options.device)
        noise = torch.randn_like(clean)
        share = kept[times].reshape(-1, 1, 1, 1)
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        with torch.autocast(clean.device.type, torch.bfloat16):
            predicted = network(noisy, times).sample
        loss = mse_loss(predicted.float(), noise)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        total, summed = total + loss.item(), summed + 1
        rate = min(AVERAGE, (1 + step) / (10 + step))
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), network.parameters(), strict=True):
                mine.lerp_(theirs, 1 - rate)


def write(network: nn.Module, folder: Path) -> None:
    """The layout of diffusers' `DDPMPipeline`, unet/ and scheduler/; and DDA's settings."""
    (folder / "unet").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler").mkdir(exist_ok=True)
    weights = {name: value.detach().cpu().half().contiguous() for name, value in network.state_dict().items()}
    put(folder / "unet" / "diffusion_pytorch_model.safetensors", save(weights, metadata={"format": "pt"}))
    unet = {"_class_name": "UNet2DModel", **CONFIG}
    scheduler = {
        "_class_name": "DDPMScheduler",
        "num_train_timesteps": STEPS,
        "beta_start": 1e-4,
        "beta_end": 0.02,
        "beta_schedule": "linear",
        "prediction_type": "epsilon",
        "variance_type": "fixed_small",
        "clip_sample": True,
    }
    put(folder / "dda.json", (json.dumps(DDA, indent=2) + "\n").encode())
    put(folder / "unet" / "config.json", (json.dumps(unet, indent=2) + "\n").encode())
    put(folder / "scheduler" / "scheduler_config.json", (json.dumps(scheduler, indent=2) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("wildtta/data/glyph_diffusion"), help="folder (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("glyph_diffusion.pt"), help="(%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=6_000, help="at most (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="at most (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images a step (%(default)s)")
    parser.add_argument("--images", type=int, default=40_000, help="drawn at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=1_000, help="(%(default)s)")
    parser.add_argument("--threads", type=int, help="of the CPU")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    write(train(options), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
