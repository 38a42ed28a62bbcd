"""Small networks of every kind, for the tests."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

CLASSES, SIDE = 10, 16


class GroupNormNet(nn.Module):
    """Staged, as a ResNet: a stem, three stages that differ, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        widths = (8, 12, 16, 16)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(before, after, 3, 2, 1, bias=False),
                    nn.GroupNorm(2, after),
                    nn.ReLU(),
                    nn.Conv2d(after, after, 3, 1, 1, bias=False),
                    nn.GroupNorm(4, after),
                    nn.ReLU(),
                    nn.Dropout(0.5),
                )
                for before, after in pairwise(widths)
            )
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


class Block(nn.Module):
    """A transformer's block, small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        return tokens + self.mlp(self.norm2(tokens))


class LayerNormNet(nn.Module):
    """Like blocks, as a ViT."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, (SIDE // 4) ** 2, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(1))


class BatchNormNet(nn.Module):
    """With BatchNorm, whose batch statistics mix images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        )
        self.layer2 = nn.Sequential(
            nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)
        )
        self.fc = nn.Linear(12, CLASSES)

    @staticmethod
    def stage(before: int, after: int) -> nn.Sequential:
        first = (nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU())
        return nn.Sequential(*first, nn.Conv2d(after, after, 1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(images)).mean((2, 3)))


NETWORKS = {"gn": GroupNormNet, "ln": LayerNormNet, "bn": BatchNormNet}


def make(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """A network with weights that give predictions of varied confidence."""
    torch.manual_seed(seed)
    network = NETWORKS[kind]().to(dtype)
    head = network.fc if kind == "bn" else network.head
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for _ in range(20):  # gives BatchNorm running statistics
            logits = network.train()(torch.randn(64, 3, SIDE, SIDE, dtype=dtype))
        logits = network.eval()(images(256, 1, dtype))
        scale = 2.5 / logits.std(0).mean()
        head.bias.copy_((head.bias - logits.mean(0)) * scale)
        head.weight.mul_(scale)
    return network


def images(count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, dtype=dtype, generator=torch.Generator().manual_seed(seed))


KINDS_OF_IMAGES = {
    "a tensor": lambda batch: batch,
    "a list of images": list,
    "a list of batches": lambda batch: list(batch.split(33)),
    "pairs with labels": lambda batch: [(part, torch.zeros(len(part))) for part in batch.split(33)],
    "a loader": lambda batch: torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(batch, torch.zeros(len(batch))), batch_size=21
    ),
}
