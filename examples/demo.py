"""A minute's tour: train a small network on clean drawings, show it noisy and faded ones, and let it adapt.

The drawings are a stand-in made on the spot, so that the tour needs no download; its numbers say that the library works, not
which method is best on photographs.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

import wildtta

CLASSES, SIDE = 12, 32
METHODS = ("source", "tent", "eta", "sar", "deyo", "recap", "recap+sar", "recap+deyo")


def drawings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Regular polygons and stars of 12 kinds: random place, size, turn and colours on a wavy background."""
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=random)

    labels = torch.randint(CLASSES, (count,), generator=random)
    corners = (labels % 6 + 3).view(-1, 1, 1)
    axis = torch.linspace(-1, 1, SIDE)
    x = axis.view(1, 1, -1) - uniform(-0.2, 0.2, 1, 1)
    y = axis.view(1, -1, 1) - uniform(-0.2, 0.2, 1, 1)
    angle = torch.atan2(y, x) + uniform(0, 2 * math.pi, 1, 1)
    slice_ = 2 * math.pi / corners
    polygon = math.pi / corners
    edge = torch.cos(polygon) / torch.cos(angle % slice_ - polygon)
    star = 0.45 + 0.55 * ((angle % slice_) / slice_ - 0.5).abs() * 2
    reach = uniform(0.5, 0.85, 1, 1) * torch.where((labels < 6).view(-1, 1, 1), edge, star)
    inside = torch.sigmoid(24 * (reach - torch.hypot(x, y)))[:, None]
    wave = torch.sin(uniform(2, 9, 1, 1) * x + uniform(2, 9, 1, 1) * y + uniform(0, 6, 1, 1))[:, None]
    ground = uniform(0.1, 0.9, 3, 1, 1) + 0.1 * wave
    ink = (ground + torch.where(uniform(0, 1, 3, 1, 1) < 0.5, -1, 1) * uniform(0.3, 0.6, 3, 1, 1)) % 1.0
    return (inside * ink + (1 - inside) * ground).clamp(0, 1), labels


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(8, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(8, after),
        )
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return (self.body(values) + self.short(values)).relu()


def train(seconds: float) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, CLASSES),
    )  # fmt: skip
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    start = time.monotonic()
    for step in range(10_000):
        share = (time.monotonic() - start) / seconds
        if share >= 1:
            break
        optimiser.param_groups[0]["lr"] = 3e-3 * (1 - share)
        images, labels = drawings(128, 1_000 + step)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()
    return network.eval()


def noisy(images: Tensor) -> Tensor:
    return (images + 0.12 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)


def faded(images: Tensor) -> Tensor:
    middle = images.mean((1, 2, 3), keepdim=True)
    return middle + 0.25 * (images - middle)


def main() -> None:
    print("Training a small network on clean drawings (30 s) …", flush=True)
    network = train(30)
    clean, labels = drawings(1_536, 1)
    source_images, _ = drawings(500, 2)
    with torch.no_grad():
        correct = torch.cat([network(part) for part in clean.split(500)]).argmax(-1) == labels
    print(f"On clean drawings it is right {100 * correct.float().mean():.1f} % of the time.\n")
    region = wildtta.Region.estimate(network, source_images)
    print(f"{'accuracy in %':14}{'noisy':>10}{'faded':>10}{'learnt from':>14}")
    for method in METHODS:
        accuracies, report = [], None
        for corruption in (noisy, faded):
            options = {} if method == "source" else {"lr": 1e-3}
            if method.startswith("recap"):
                options["region"] = region
            adapter = wildtta.adapt(network, method, guard="collapse", **options)
            answers = torch.cat([adapter(batch).argmax(-1) for batch in corruption(clean).split(64)])
            accuracies.append(100 * (answers == labels).float().mean().item())
            report = adapter.report
        print(f"{method:14}{accuracies[0]:10.1f}{accuracies[1]:10.1f}{report.selected / report.seen:14.0%}", flush=True)
    print("\nEach image was predicted before it was learnt from, without its label. See README.md for what to do next.")


if __name__ == "__main__":
    main()
