"""Small diffusion models with random weights, and guided-diffusion's UNet written plainly, for comparison."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.diffusion import Diffusion, Settings

STATISTICS = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


def unet(size: int = 8, out: int = 3, seed: int = 0, **others) -> nn.Module:
    """A UNet2DModel of diffusers; its last layer is made smaller, as that of a model that has been trained is."""
    from diffusers import UNet2DModel

    torch.manual_seed(seed)
    config = {
        "sample_size": size,
        "out_channels": out,
        "block_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "attention_head_dim": 8,
    }
    network = UNet2DModel(**config | others)
    with torch.no_grad():
        network.conv_out.weight.mul_(0.2)
    return network


def diffusion(size: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32, **others) -> Diffusion:
    learnt = others.get("variance") == "learned_range"
    network = unet(size, 6 if learnt else 3, seed).to(dtype)
    unet_config = {"_class_name": "UNet2DModel", **network.config}
    config = {"unet": unet_config, "scheduler": {"_class_name": "DDPMScheduler", "beta_schedule": "linear"}}
    others.setdefault("settings", Settings(steps=20, start=8, scale=1.0, down=2))
    return Diffusion(network, torch.linspace(1e-4, 0.02, 1000), size=(size, size), config=config, **others)


# -- guided-diffusion's UNet -------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """in_layers, emb_layers, out_layers and skip_connection; `change` is +1 (twice as large), −1 (half) or 0."""

    def __init__(self, before: int, after: int, embedding: int, groups: int, change: int = 0) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(groups, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding, 2 * after))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(groups, after), nn.SiLU(), nn.Dropout(0.0), nn.Conv2d(after, after, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if before == after else nn.Conv2d(before, after, 1)
        self.change = change

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.in_layers[1](self.in_layers[0](x))
        if self.change > 0:
            h, x = (each.repeat_interleave(2, 2).repeat_interleave(2, 3) for each in (h, x))
        if self.change < 0:
            h, x = F.avg_pool2d(h, 2), F.avg_pool2d(x, 2)
        h = self.in_layers[2](h)
        scale, shift = self.emb_layers(embedding)[:, :, None, None].chunk(2, dim=1)
        h = self.out_layers[0](h) * (1 + scale) + shift
        return self.skip_connection(x) + self.out_layers[3](F.silu(h))


class Attention(nn.Module):
    """Heads whose q, k and v lie together."""

    def __init__(self, channels: int, head: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)
        self.head = head

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        flat = x.flatten(2)
        packed = self.qkv(self.norm(flat))
        answers = []
        for start in range(0, packed.shape[1], 3 * self.head):
            q, k, v = packed[:, start : start + 3 * self.head].split(self.head, dim=1)
            weights = (q.transpose(1, 2) @ k / math.sqrt(self.head)).softmax(-1)  # of each place over all places
            answers.append(v @ weights.transpose(1, 2))
        return (flat + self.proj_out(torch.cat(answers, 1))).reshape(x.shape)


class GuidedUNet(nn.Module):
    """With resblock_updown, use_scale_shift_norm, and attention in the levels named."""

    def __init__(
        self, width: int, multiples: tuple[int, ...], attends: set[int], out: int = 6, blocks: int = 2, head: int = 8,
        groups: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width, deep = width, 4 * width
        self.time_embed = nn.Sequential(nn.Linear(width, deep), nn.SiLU(), nn.Linear(deep, deep))

        def residual(before: int, after: int, change: int = 0) -> Residual:
            return Residual(before, after, deep, groups, change)

        channels, widths = width, [width]
        self.input_blocks = nn.ModuleList([nn.ModuleList([nn.Conv2d(3, width, 3, padding=1)])])
        for level, multiple in enumerate(multiples):
            for _ in range(blocks):
                block = [residual(channels, multiple * width)]
                channels = multiple * width
                if level in attends:
                    block.append(Attention(channels, head, groups))
                self.input_blocks.append(nn.ModuleList(block))
                widths.append(channels)
            if level < len(multiples) - 1:
                self.input_blocks.append(nn.ModuleList([residual(channels, channels, -1)]))
                widths.append(channels)
        self.middle_block = nn.ModuleList(
            [residual(channels, channels), Attention(channels, head, groups), residual(channels, channels)]
        )
        self.output_blocks = nn.ModuleList()
        for level, multiple in reversed(list(enumerate(multiples))):
            for place in range(blocks + 1):
                block = [residual(channels + widths.pop(), multiple * width)]
                channels = multiple * width
                if level in attends:
                    block.append(Attention(channels, head, groups))
                if level and place == blocks:
                    block.append(residual(channels, channels, 1))
                self.output_blocks.append(nn.ModuleList(block))
        self.out = nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        half = self.width // 2
        angles = times[:, None].to(x.dtype) * torch.exp(-math.log(10000) * torch.arange(half, dtype=x.dtype) / half)
        embedding = self.time_embed(torch.cat([angles.cos(), angles.sin()], dim=1))
        h = self.input_blocks[0][0](x)
        kept = [h]
        for block in self.input_blocks[1:]:
            for part in block:
                h = part(h, embedding)
            kept.append(h)
        for part in self.middle_block:
            h = part(h, embedding)
        for block in self.output_blocks:
            h = torch.cat([h, kept.pop()], dim=1)
            for part in block:
                h = part(h, embedding)
        return self.out(h)
