"""A new method in ten lines: learn from the images whose answer survives a small shift, and compare it with Tent.

python examples/new_method.py
"""

from __future__ import annotations

import sys

import torch

import wildtta
from wildtta.core import Measure, Method, Prediction, above, entropy, reliable, sgd
from wildtta.data import open_data
from wildtta.models import load_model


class steadiness(Measure):
    """How much probability the answer keeps when the image moves by `pixels`: 1 is all of it."""

    forwards = 1  # it asks the network once more, which the benchmark's cost tables have to know

    def __init__(self, pixels: int = 2) -> None:
        super().__init__()
        self.pixels = pixels

    def compute(self, prediction: Prediction) -> torch.Tensor:
        moved = prediction.again(prediction.images.roll(self.pixels, dims=-1))
        answer = prediction.logits.argmax(-1, keepdim=True)
        return (moved.probabilities.gather(-1, answer) / prediction.probabilities.detach().gather(-1, answer)).squeeze(
            -1
        )


@wildtta.register("steady")
def steady(network: wildtta.Network, *, lr: float = 0.01, keep: float = 0.7, margin: float = 0.6) -> Method:
    """Entropy of images with a confident answer that survives a shift."""
    selection = reliable(margin) & above(steadiness(), keep)
    return Method(network.norms(frozen_top=True), entropy(), sgd(lr), selection=selection)


def accuracy(method: str, count: int) -> float:
    model = load_model("glyph-resnet")
    fog = open_data("glyphs", model).domain("fog", 5)
    adapter = wildtta.adapt(model.network, method, **({} if method == "source" else {"lr": 0.01}))
    images = model.preprocessing.normalise(fog.read(torch.arange(count))[0])
    answers = torch.cat([adapter(batch) for batch in images.split(64)]).argmax(-1)
    return 100 * (answers == fog.labels[:count]).float().mean().item()


if __name__ == "__main__":
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    for name in ("source", "tent", "steady"):
        print(f"{name:8} {accuracy(name, images):.1f} %")
