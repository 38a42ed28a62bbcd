"""What cells need whose method changes the images: the diffusion model, and the adapted images on disk.

These cost more than all the rest of a run, and depend on the image alone: so they are made first, many at a time, and found
again by every cell that shows the same images.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from wildtta.adapter import Adapter
from wildtta.bench.config import ConfigError
from wildtta.bench.gallery import write_strip
from wildtta.bench.images import Kept
from wildtta.bench.plan import Cell, Setting
from wildtta.bench.store import Store
from wildtta.core.restoring import Restoring
from wildtta.diffusion import Diffusion, DiffusionError, OnDisk, diffuse_back, load
from wildtta.recipes import recipe

__all__ = ["check_diffusion", "diffusion_of", "keep_on_disk", "restore_ahead"]

_SAMPLES = 8  # images in a strip


def diffusion_of(cell: Cell, setting: Setting) -> str | None:
    """Which diffusion model a cell needs: the one it is given, or the one that belongs to its data."""
    if "diffusion" not in recipe(cell.method).hyperparameters:
        return None
    given = dict(cell.settings).get("diffusion", setting.data.diffusion)
    if given is None:
        raise ConfigError(
            f"{cell.method!r} needs a diffusion model that knows images like those of {cell.data}: give its folder or checkpoint "
            f"with --set {cell.method}.diffusion=PATH"
        )
    return str(given)


def check_diffusion(cells: Iterable[Cell], settings: Mapping[tuple[str, str], Setting]) -> dict[str, str]:
    """Load each diffusion model of a run once before it begins, and see whether the images fit; their digests by place."""
    wanted = {
        (cell.method, cell.model, cell.data, cell.settings): cell
        for cell in cells
        if diffusion_of(cell, settings[cell.model, cell.data])
    }
    models: dict[str, Diffusion] = {}
    for cell in wanted.values():
        setting = settings[cell.model, cell.data]
        place = diffusion_of(cell, setting)
        assert place is not None
        own = {name: value for name, value in cell.settings if name != "diffusion"}
        prepared = setting.model.preprocessing
        try:
            models[place] = models.get(place) or load(place)
            part = diffuse_back(models[place], (prepared.mean, prepared.std), **own)
            part.pixels(torch.zeros(1, 3, *prepared.size))
        except (DiffusionError, ValueError, TypeError) as error:
            raise ConfigError(f"{cell.method} for {cell.model} on {cell.data}: {error}") from error
    return {place: model.digest for place, model in models.items()}


def keep_on_disk(adapter: Adapter, store: Store) -> None:
    """Let an adapter keep its adapted images in the run's folder, if it makes any."""
    method = adapter.method
    if isinstance(method, Restoring) and isinstance(method.restoration, diffuse_back):
        method.restoration = OnDisk(method.restoration, store.adapted)


def restore_ahead(
    adapter: Adapter,
    setting: Setting,
    store: Store,
    cell: Cell,
    domains: list[Kept],
    batches: Iterable[tuple[Tensor, Tensor]],
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    """Make what a stream's images become before it begins; how many were made, how many were there, and in how many seconds.

    Processes that are at work on the same images side by side begin at different ones, so that they share the work.
    """
    method = adapter.method
    if not isinstance(method, Restoring) or not isinstance(method.restoration, OnDisk):
        return {}
    begun, device = time.perf_counter(), adapter.state["stream"]["theta"].device
    shown = torch.unique(torch.stack([torch.cat(part) for part in zip(*batches, strict=True)]), dim=1)
    order = torch.Generator().manual_seed(int(hashlib.sha256(cell.name.encode()).hexdigest()[:8], 16))
    parts: list[tuple[int, Tensor]] = []
    for place in range(len(domains)):
        numbers = shown[1, shown[0] == place]
        size = max(1, min(method.restoration.inner.chunk, -(-len(numbers) // 4)))
        parts += [(place, part) for part in numbers.split(size)]
    done, prepared = 0, setting.model.preprocessing
    seed = torch.tensor(cell.seed, device=device)
    for index in torch.randperm(len(parts), generator=order).tolist():
        place, numbers = parts[index]
        images = domains[place].read(numbers)[0]
        if len(images):
            method.restoration(prepared.normalise(images), seed)
        done += len(numbers)
        tell(done, shown.shape[1])
    seconds = time.perf_counter() - begun
    for place, (kind, severity) in enumerate(cell.domains):
        path = store.gallery / "adapted" / f"{kind}-{severity}.png"
        numbers = shown[1, shown[0] == place][:_SAMPLES]
        if path.exists() or not len(numbers):
            continue
        images = domains[place].read(numbers)[0]
        if len(images):
            restored = method.restoration(prepared.normalise(images), seed)
            pixels = method.restoration.inner.pixels(restored) / 255
            clean = _clean(setting, domains[place].numbers[numbers], len(images))
            write_strip([*clean, images.cpu(), pixels.float().cpu()], path)
    made = method.restoration.made
    return {"made": made, "found": shown.shape[1] - made, "seconds": round(seconds, 3)}


def _clean(setting: Setting, numbers: Tensor, count: int) -> list[Tensor]:
    """The same images without corruption, where the data have them in the same order."""
    if not setting.data.on_the_fly:
        return []
    images = setting.data.domain("clean", 0).read(numbers)[0]
    return [images] if len(images) == count else []
