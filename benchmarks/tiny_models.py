"""The two source models of the Tiny-ImageNet results, for `wildtta bench --models benchmarks/tiny_models.py:resnet`.

The environment variable TINY_IMAGENET names the folder with their weights, `resnet50_gn_64.safetensors` and
`vit_small_patch8_64.safetensors` (half precision).
"""

from __future__ import annotations

import os
from pathlib import Path

import timm
from safetensors.torch import load_file
from torch import nn

from wildtta.models import STATISTICS, Model, ModelError, Preprocessing

CLASSES = 200


def resnet() -> Model:
    """ResNet50-GN without the pooling after its stem."""
    network = timm.create_model("resnet50_gn", num_classes=CLASSES)
    network.maxpool = nn.Identity()
    return _model("resnet50_gn_64", network, "imagenet")


def vit() -> Model:
    """ViT-S with patches of 8 pixels."""
    network = timm.create_model("vit_small_patch16_224", num_classes=CLASSES, img_size=64, patch_size=8)
    return _model("vit_small_patch8_64", network, "half")


def _model(name: str, network: nn.Module, statistics: str) -> Model:
    folder = os.environ.get("TINY_IMAGENET")
    if folder is None:
        raise ModelError(f"set the environment variable TINY_IMAGENET to the folder with {name}.safetensors")
    weights = load_file(Path(folder) / f"{name}.safetensors")
    network.load_state_dict({key: value.float() for key, value in weights.items()})
    return Model(name, network, Preprocessing((64, 64), None, "bilinear", *STATISTICS[statistics]))
