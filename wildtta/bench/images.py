"""The images of a stream, batch by batch, with those of small sets kept at hand between streams."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from wildtta.data import Domain

__all__ = ["Batch", "Kept", "read_ahead"]

_AHEAD = 3  # batches read ahead


class Kept:
    """A domain cut to its share of images; a small one is read, and corrupted, once, and kept as 8-bit levels."""

    def __init__(self, domain: Domain, limit: int | None, device: torch.device, room: int) -> None:
        self.domain, self.device = domain, device
        count = len(domain)
        if limit is not None and limit < count:
            self.numbers = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:limit].sort().values
        else:
            self.numbers = torch.arange(count)
        self.labels = domain.labels[self.numbers]
        self.levels: Tensor | None = None
        self.place = torch.full((len(self.numbers),), -1)
        first = domain.read(self.numbers[:1], device)[0]
        self.bytes = first[0].numel() * len(self.numbers) if len(first) else room + 1
        if self.bytes <= room:
            self._keep()
        else:
            self.bytes = 0

    def _keep(self) -> None:
        parts: list[Tensor] = []
        for places in torch.arange(len(self.numbers)).split(256):
            images, readable = self.domain.read(self.numbers[places], self.device)
            before = sum(map(len, parts))
            self.place[places[readable.cpu()]] = torch.arange(before, before + len(images))
            parts.append((images * 255).round().byte())
        self.levels = torch.cat(parts)

    def read(self, places: Tensor) -> tuple[Tensor, Tensor]:
        if self.levels is None:
            images, readable = self.domain.read(self.numbers[places], self.device)
            return images, readable.cpu()
        found = self.place[places]
        readable = found >= 0
        return self.levels[found[readable].to(self.device)].float() / 255, readable

    def unreadable(self, places: Tensor) -> dict[int, str]:
        """Which of these could not be read, and why."""
        reasons = self.domain.unreadable
        found = zip(places.tolist(), self.numbers[places].tolist(), strict=True) if reasons else ()
        return {place: reasons[number] for place, number in found if number in reasons}


Batch = tuple[Tensor, Tensor, Tensor]
"""Images on the device, their labels and their domains on the CPU: of those that could be read."""


def _batch(domains: list[Kept], places: Tensor, numbers: Tensor) -> Batch:
    if not len(numbers):
        return torch.zeros(0, 3, 1, 1), domains[0].labels[:0], places
    order, images, labels = [], [], []
    for place in places.unique().tolist():
        mine = (places == place).nonzero().squeeze(-1)
        found, readable = domains[place].read(numbers[mine])
        images.append(found)
        order.append(mine[readable])
        labels.append(domains[place].labels[numbers[mine[readable]]])
    where = torch.cat(order)
    back = where.argsort()
    joined = images[0] if len(images) == 1 else torch.cat(images)[back.to(images[0].device)]
    return joined, torch.cat(labels)[back], places[where[back]]


def read_ahead(domains: list[Kept], batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[Batch]:
    """The batches of a stream; where images come from disk, some are read ahead while the adapter is at work."""
    if all(domain.levels is not None for domain in domains):
        for places, numbers in batches:
            yield _batch(domains, places, numbers)
        return
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def read() -> None:
        try:
            for places, numbers in batches:
                found = _batch(domains, places, numbers)
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
                if not _put(ready, found, stop):
                    return
            _put(ready, None, stop)
        except BaseException as error:
            _put(ready, error, stop)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _put(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
