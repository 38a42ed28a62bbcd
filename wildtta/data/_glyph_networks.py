"""The two small networks for the glyphs: one of the ResNet kind with GroupNorm, one of the ViT kind with LayerNorm.

They are as small as they can be and still have what the methods look for in their large relatives: stages or blocks, a top, a
head, and normalisation layers that do not mix images.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

__all__ = ["GlyphResNet", "GlyphViT"]

_GROUPS = 8


class _Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, after)
        self.around = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, values: Tensor) -> Tensor:
        inside = relu(self.norm1(self.conv1(values)))
        return relu(self.norm2(self.conv2(inside)) + self.around(values))


class GlyphResNet(nn.Module):
    """32 × 32 pixels through a stem and three stages of 16, 8 and 4 pixels a side."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 2, 1, bias=False), nn.GroupNorm(_GROUPS, widths[0]), nn.ReLU()
        )
        self.stages = nn.Sequential(
            *(
                nn.Sequential(_Residual(before, after, 1 if before == after else 2), _Residual(after, after, 1))
                for before, after in pairwise((widths[0], *widths))
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


class _Block(nn.Module):
    """Attention between the patches, then a perceptron within each."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.mixing = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.inward = nn.Linear(width, inner)
        self.outward = nn.Linear(inner, width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self._attend(self.norm1(tokens))
        return tokens + self.outward(gelu(self.inward(self.norm2(tokens))))

    def _attend(self, tokens: Tensor) -> Tensor:
        images, patches, width = tokens.shape
        parts = self.mixing(tokens).view(images, patches, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(query, key, value)
        return self.mixed(attended.transpose(1, 2).reshape(images, patches, width))


class GlyphViT(nn.Module):
    """The image as 8 × 8 patches of 4 × 4 pixels through six like blocks; the mean of the tokens goes into the head."""

    def __init__(self, classes: int, width: int = 128, depth: int = 6, heads: int = 4, inner: int = 256) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.3 * torch.randn(1, 8 * 8, width))
        self.blocks = nn.ModuleList(_Block(width, heads, inner) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(1))
