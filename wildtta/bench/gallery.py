"""A strip of sample images of each corruption, for the report."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from wildtta.bench.config import Config
from wildtta.bench.plan import Setting
from wildtta.bench.store import Store
from wildtta.files import put

__all__ = ["write_gallery", "write_strip"]

_SAMPLES = 8
_HEIGHT = 96  # of a sample in the picture, at least


def write_gallery(store: Store, config: Config, settings: Mapping[tuple[str, str], Setting]) -> None:
    """One picture a corruption: the same few images of the first data set, a row for each severity."""
    data = settings[config.models[0], config.data[0]].data
    for kind in config.kinds_of(data.kinds):
        path = store.gallery / f"{kind}.png"
        if path.exists():
            continue
        rows = []
        for severity in sorted(config.severities) if data.severities != (0,) and kind != "clean" else [0]:
            domain = data.domain(kind, severity)
            numbers = torch.linspace(0, len(domain) - 1, min(_SAMPLES, len(domain))).long()
            images = domain.read(numbers)[0]
            if len(images):
                rows.append(_row(images))
        if rows:
            _save(_below(rows), path)


def write_strip(rows: Sequence[Tensor], path: Path) -> None:
    """A picture of batches of images in [0, 1], each a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(_below([_row(images) for images in rows]), path)


def _below(rows: list[Tensor]) -> Tensor:
    width = max(row.shape[2] for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, width - row.shape[2])) for row in rows], 1)


def _row(images: Tensor) -> Tensor:
    """Side by side, small ones with their pixels enlarged."""
    factor = -(-_HEIGHT // images.shape[2])
    images = images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    return torch.cat(list(torch.nn.functional.pad(images, (2, 2, 2, 2), value=1.0)), -1)


def _save(picture: Tensor, path: Path) -> None:
    pixels = (picture * 255).round().byte().permute(1, 2, 0).numpy()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    put(path, content.getvalue())
