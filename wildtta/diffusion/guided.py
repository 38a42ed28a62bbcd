"""Checkpoints of guided-diffusion (Dhariwal & Nichol, 2021), as `UNet2DModel` of diffusers.

Its UNet, with `resblock_updown` and `use_scale_shift_norm`, is one that diffusers can express in full; only the names differ,
and the order of the attention's projections: q, k and v of a head lie together there. The layout is read from the shapes; the
size of the images and of the attention's heads leave no trace in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from wildtta.diffusion.model import Diffusion, DiffusionError, Settings, assemble, read_weights

__all__ = ["SCHEDULER", "load_guided"]

SCHEDULER = {
    "_class_name": "DDPMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "prediction_type": "epsilon",
    "variance_type": "learned_range",
    "clip_sample": True,
}
"""The linear diffusion, with a learned variance."""


def load_guided(path: Path | str, *, size: int = 256, head_channels: int = 64, groups: int = 32) -> Diffusion:
    """A checkpoint of an unconditional model of guided-diffusion; `diffusion.save(folder)` writes it as diffusers does.

    Args:
        path: of the checkpoint. The defaults are those of the public `256x256_diffusion_uncond.pt`.
        size: of its images, in pixels a side.
        head_channels: of each head of its attention (`num_head_channels`).
        groups: of its normalisation, 32 in all public models.
    """
    path = Path(path)
    weights = read_weights(path)
    try:
        config, names = _layout(weights)
    except (KeyError, IndexError) as error:
        raise DiffusionError(
            f"{path} is not a guided-diffusion UNet with resblock_updown and use_scale_shift_norm: it has no {error}"
        ) from error
    if "label_emb.weight" in weights:
        raise DiffusionError(
            f"{path} is conditioned on classes, which are not known of an image; DDA needs one that is not"
        )
    config |= {
        "_class_name": "UNet2DModel",
        "sample_size": size,
        "attention_head_dim": head_channels,
        "norm_num_groups": groups,
        "attn_norm_num_groups": groups,
        "norm_eps": 1e-5,
        "resnet_time_scale_shift": "scale_shift",
        "downsample_type": "resnet",
        "upsample_type": "resnet",
    }
    converted: dict[str, Tensor] = {}
    for new, old in names.items():
        for part in ("weight", "bias"):
            if f"{old}.{part}" not in weights:
                raise DiffusionError(f"{path} has no {old}.{part}, where its other parts ask for it")
            converted[f"{new}.{part}"] = weights[f"{old}.{part}"]
    for name in [name for name in converted if ".qkv." in name]:
        converted |= _unpacked(name, converted.pop(name), head_channels)
    converted = {
        name: value.flatten(1) if ".to_out.0.weight" in name else value for name, value in converted.items()
    }  # a convolution of 1 there, a linear map here
    if left := len(weights) - 2 * len(names):
        raise DiffusionError(f"{path} has {left} tensors that such a UNet does not have")
    # a head_channels that does not divide the channels, and the like, is said by what builds the network
    learnt = config["out_channels"] != config["in_channels"]
    scheduler = SCHEDULER | {"variance_type": "learned_range" if learnt else "fixed_large"}
    return assemble(config, scheduler, converted, path, Settings())


def _unpacked(name: str, packed: Tensor, head_channels: int) -> dict[str, Tensor]:
    """q, k and v of all heads from q, k, v of the first head, q, k, v of the second, …."""
    rows = packed.flatten(1) if packed.ndim > 1 else packed
    channels = len(rows) // 3
    if channels % head_channels:
        raise DiffusionError(
            f"attention of {channels} channels cannot have heads of {head_channels}; give the model's num_head_channels"
        )
    heads = rows.unflatten(0, (channels // head_channels, 3, head_channels))
    return {
        name.replace(".qkv.", f".to_{letter}."): heads[:, place].flatten(0, 1).contiguous()
        for place, letter in enumerate("qkv")
    }


def _layout(weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, str]]:
    """The network's config, and the name in the checkpoint of every module with weights, by its name in diffusers.

    A block is a list of modules there: a residual block, then attention where there is some. The blocks of a level are
    followed by one that changes the size, in the last level by none.
    """
    first = weights["input_blocks.0.0.weight"]
    downs = _levels(weights, "input_blocks", 1)
    ups = _levels(weights, "output_blocks", 0)
    attends = ["attentions" if any(f"{block}.1.qkv.weight" in weights for block in level) else "" for level, _ in downs]
    config: dict[str, Any] = {
        "in_channels": first.shape[1],
        "out_channels": len(weights["out.2.weight"]),
        "block_out_channels": [len(weights[f"{level[0]}.0.in_layers.2.weight"]) for level, _ in downs],
        "layers_per_block": len(downs[0][0]),
        "down_block_types": ["AttnDownBlock2D" if it else "ResnetDownsampleBlock2D" for it in attends],
        "up_block_types": ["AttnUpBlock2D" if it else "ResnetUpsampleBlock2D" for it in reversed(attends)],
    }
    names = {
        "conv_in": "input_blocks.0.0",
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    }
    blocks = (
        [("down", "downsamplers", levels, changes) for levels, changes in downs],
        [("up", "upsamplers", levels, changes) for levels, changes in ups],
    )
    for side in blocks:
        for place, (kind, sampler, level, change) in enumerate(side):
            for number, block in enumerate(level):
                names[f"{kind}_blocks.{place}.resnets.{number}"] = f"{block}.0"
                if f"{block}.1.qkv.weight" in weights:
                    names[f"{kind}_blocks.{place}.attentions.{number}"] = f"{block}.1"
            if change:
                names[f"{kind}_blocks.{place}.{sampler}.0"] = change
    found: dict[str, str] = {}
    for new, old in names.items():
        if ".resnets." in new or "samplers." in new:
            parts = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1",
                     "norm2": "out_layers.0", "conv2": "out_layers.3"}  # fmt: skip
            if f"{old}.skip_connection.weight" in weights:
                parts["conv_shortcut"] = "skip_connection"
        elif ".attentions." in new:
            parts = {"group_norm": "norm", "qkv": "qkv", "to_out.0": "proj_out"}
        else:
            found[new] = old
            continue
        found |= {f"{new}.{mine}": f"{old}.{theirs}" for mine, theirs in parts.items()}
    return config, found


def _levels(weights: Mapping[str, Tensor], side: str, begin: int) -> list[tuple[list[str], str]]:
    """The blocks of each level in order, and the residual block that changes the size after them ("" in the last level).

    Going down, such a block stands alone; going up, it is the last part of a level's last block. Both change the size
    without weights, so they are known by their place: a level has as many blocks as the first one.
    """
    numbers = [int(name.split(".")[1]) for name in weights if name.startswith(f"{side}.")]
    if not numbers:
        raise KeyError(side)
    blocks = [f"{side}.{number}" for number in range(begin, 1 + max(numbers))]
    levels: list[tuple[list[str], str]] = []
    if side == "output_blocks":
        level: list[str] = []
        for block in blocks:
            level.append(block)
            last = max((int(name.split(".")[2]) for name in weights if name.startswith(f"{block}.")), default=0)
            if last and f"{block}.{last}.qkv.weight" not in weights:
                levels.append((level, f"{block}.{last}"))
                level = []
        return [*levels, (level, "")]
    # every level going up has one block more than going down
    ups = _levels(weights, "output_blocks", 0)
    each = len(ups[0][0]) - 1
    for start in range(0, len(blocks), each + 1):
        part = blocks[start : start + each + 1]
        levels.append((part[:each], f"{part[each]}.0" if len(part) > each else ""))
    return levels
