"""A camera that is never switched off for long: one frame at a time, and what was learnt outlives the process.

python examples/camera_loop.py STATE.safetensors      # start it again, and it goes on where it was
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import wildtta
from wildtta.data import open_data
from wildtta.models import load_model


def frames(start: int, count: int) -> Iterator[Tensor]:
    """In the place of your camera: a foggy view, one prepared frame (3 × height × width) after another."""
    domain = open_data("glyphs", model).domain("fog", 4)
    for number in range(start, start + count):
        yield model.preprocessing.normalise(domain.read(torch.tensor([number % len(domain)]))[0])[0]


def watch(state: Path, count: int = 48, every: int = 16) -> wildtta.Adapter:
    """Answer `count` frames, and save what was learnt after every few of them."""
    adapter = wildtta.adapt(model.network, "sar", guard="collapse", lr="x10")
    if state.exists():
        adapter.load(state)
    seen = adapter.report.seen
    print(f"going on after {seen} frames" if seen else "a new stream")
    for number, frame in enumerate(frames(seen, count), start=seen + 1):
        answer = (
            adapter(frame[None]).argmax(-1).item()
        )  # this is all that changes in a loop that had `network(frame[None])`
        if number % every == 0:
            adapter.save(state)
            print(f"frame {number}: it shows {model.classes[answer] if model.classes else answer}; {adapter.report}")
    return adapter


model = load_model("glyph-resnet")

if __name__ == "__main__":
    watch(Path(sys.argv[1] if len(sys.argv) > 1 else "camera.safetensors"))
