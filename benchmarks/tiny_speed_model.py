"""A network of a few thousand weights, for dry runs of the measurements."""

import torch
from torch import nn

from wildtta.models import Model, Preprocessing


def build() -> Model:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return Model("tiny", network.eval(), Preprocessing((16, 16)))
