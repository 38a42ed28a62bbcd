"""What is measured along a stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Meter", "calibration_error"]

_POINTS = 50
_BINS = 15
_PARTS = 256  # batches whose tensors are kept apart: each takes far more memory than its few numbers


class Meter:
    """Collects, image by image and on the device, what the tables are made of; nothing waits for the device until `result`."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, ...]] = []
        self.domains: list[Tensor] = []
        self.seen = 0

    def add(self, logits: Tensor, labels: Tensor, selected: Tensor, domains: Tensor) -> None:
        """One batch: what was answered, what is right, which images taught, and which domain each is from."""
        log_probabilities = logits.detach().float().log_softmax(-1)
        best = log_probabilities.topk(min(5, logits.shape[-1]), dim=-1)
        right = best.indices == labels[:, None]
        loss = -log_probabilities.gather(-1, labels[:, None]).squeeze(-1)
        self.parts.append((right[:, 0], right.any(-1), loss, best.values[:, 0].exp(), selected))
        self.domains.append(domains)
        self.seen += len(labels)
        if len(self.parts) == _PARTS:
            self.parts = [self._columns()]
            self.domains = [torch.cat(self.domains)]

    def _columns(self) -> tuple[Tensor, ...]:
        return tuple(torch.cat(column) for column in zip(*self.parts, strict=True))

    def accuracy(self) -> float:
        """Of what was seen so far, in percent. It waits for the device."""
        return 100 * torch.cat([part[0] for part in self.parts]).float().mean().item() if self.parts else 0.0

    def result(self, names: list[str]) -> dict[str, Any]:
        """The measures of the whole stream, along it, and for each domain (by the name at its place)."""
        first, five, loss, confidence, selected = (column.cpu() for column in self._columns())
        domain = torch.cat(self.domains)
        right = first.double()
        pieces = [piece for piece in torch.arange(len(right)).tensor_split(min(_POINTS, len(right))) if len(piece)]
        return {
            "images": len(right),
            "top1": _percent(right),
            "top5": _percent(five.double()),
            "nll": _rounded(loss.double().mean()),
            "ece": _rounded(100 * calibration_error(confidence, first)),
            "selected": _rounded(selected.double().mean()),
            "along": {
                "seen": [int(piece[-1]) + 1 for piece in pieces],
                "top1": [_percent(right[piece]) for piece in pieces],
                "selected": [_rounded(selected[piece].double().mean()) for piece in pieces],
            },
            "domains": {
                name: {"images": int(mine.sum()), "top1": _percent(right[mine])}
                for name in dict.fromkeys(names)
                if (
                    mine := torch.isin(domain, torch.tensor([i for i, other in enumerate(names) if other == name]))
                ).any()
            },
        }


def calibration_error(confidence: Tensor, right: Tensor, bins: int = _BINS) -> Tensor:
    """The expected calibration error (Guo et al., 2017): over bins of equal width, |accuracy − confidence|, weighted by size.

    >>> calibration_error(torch.tensor([0.95, 0.95, 0.95, 0.95]), torch.tensor([True, True, True, False]))
    tensor(0.2000, dtype=torch.float64)
    """
    place = (confidence.double() * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, place, right.double() - confidence.double())
    return gaps.abs().sum() / len(confidence)


def _percent(values: Tensor) -> float:
    return _rounded(100 * values.mean())


def _rounded(value: Tensor) -> float:
    """Six digits after the point: fewer than float32 carries, so that files stay small and are still exact to compare."""
    return round(float(value), 6)
