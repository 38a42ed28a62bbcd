"""A minute's tour: train a small network on clean gratings, show it noisy and faded ones, and let it adapt.

The gratings are a stand-in made on the spot, so that the tour needs no download; its numbers say that the library works, not
which method is best on photographs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import wildtta

CLASSES, SIDE = 12, 24
METHODS = ("source", "tent", "eta", "sar", "deyo", "recap", "recap+sar", "recap+deyo")


def gratings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Stripes of 12 directions, in random colours, widths and places, over a blotchy background."""
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=random)

    labels = torch.randint(CLASSES, (count,), generator=random)
    turn = ((labels + uniform(-0.2, 0.2)) * math.pi / CLASSES).view(-1, 1, 1)
    axis = torch.linspace(-1, 1, SIDE)
    along = axis.view(1, 1, -1) * turn.cos() + axis.view(1, -1, 1) * turn.sin()
    stripes = torch.sin(uniform(6, 14, 1, 1) * along + uniform(0, 2 * math.pi, 1, 1))[:, None]
    blotches = nn.functional.interpolate(torch.rand(count, 3, 4, 4, generator=random), (SIDE, SIDE), mode="bicubic")
    return (0.25 + 0.5 * blotches + uniform(-0.25, 0.25, 3, 1, 1) * stripes).clamp(0, 1), labels


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


def train(steps: int) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    )  # fmt: skip
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, steps)
    for step in range(steps):
        images, labels = gratings(64, 1_000 + step)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()
        schedule.step()
    return network.eval()


def noisy(images: Tensor) -> Tensor:
    return (images + 0.18 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)


def faded(images: Tensor) -> Tensor:
    middle = images.mean((1, 2, 3), keepdim=True)
    return middle + 0.25 * (images - middle)


def main() -> None:
    print("Training a small network on clean gratings …", flush=True)
    network = train(400)
    clean, labels = gratings(2_048, 1)
    source_images, _ = gratings(500, 2)
    with torch.no_grad():
        correct = torch.cat([network(part) for part in clean.split(500)]).argmax(-1) == labels
    print(f"On clean gratings it is right {100 * correct.float().mean():.1f} % of the time.\n")
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
