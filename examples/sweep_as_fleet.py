"""A sweep of learning rates as a fleet: all of them go through one stream side by side, in one batch.

    python examples/sweep_as_fleet.py

The labels serve the counting. With the winner you still have to look at images that did not choose it.
"""

from __future__ import annotations

import sys

import torch

import wildtta
from wildtta.data import open_data
from wildtta.models import load_model

RATES = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1]


def sweep(kind: str, count: int) -> dict[float, float]:
    """The accuracy at each rate, in percent, over the images of a corruption."""
    model = load_model("glyph-resnet")
    data = open_data("glyphs", model)
    region = wildtta.Region.estimate(model.network, model.preprocessing.normalise(data.source(128)))
    lanes = wildtta.fleet(
        model.network, "recap", region=region, streams=len(RATES), each={"lr": RATES}, guard="collapse"
    )

    domain = data.domain(kind, 5)
    images = model.preprocessing.normalise(domain.read(torch.arange(count))[0])
    right = dict.fromkeys(lanes.streams, 0)
    for batch, truth in zip(images.split(16), domain.labels[:count].split(16), strict=True):
        for lane, logits in lanes(dict.fromkeys(lanes.streams, batch)).items():
            right[lane] += int((logits.argmax(-1) == truth).sum())
    for rate, lane in zip(RATES, lanes.streams, strict=True):
        report = lanes.report(lane)
        print(f"lr {rate:<6} {100 * right[lane] / count:5.1f} %   {report.updates} updates, {report.resets} resets")
    return {rate: 100 * right[lane] / count for rate, lane in zip(RATES, lanes.streams, strict=True)}


if __name__ == "__main__":
    found = sweep("fog", int(sys.argv[1]) if len(sys.argv) > 1 else 512)
    print(f"best here: {max(found, key=found.__getitem__)}")
