"""The yardstick: adaptation as plain loops, in the style of research code.

The network is switched to training, its normalisation affines are trained by torch's SGD, selected images are taken by index
(for which the host waits), and region confidence is computed by its formula, with a tensor of batch × classes × classes. No
part of the library is used, and nothing is spared or fused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["LOOPS", "Loop", "cubic"]


def _entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def cubic(logits: Tensor, weight: Tensor, variance: Tensor, lam: float = 0.5) -> tuple[Tensor, Tensor]:
    """Region confidence and L_RE by the plain formula, with its B × C × C tensor."""
    half = 0.5 * torch.cdist(weight * variance.sqrt(), weight * variance.sqrt()).square()
    own = 0.5 * (weight.square() * variance).sum(-1)
    u = logits.log_softmax(-1)
    sums = (u[:, None] + half).logsumexp(-1)
    regional = ((logits + own).softmax(-1) * (sums - u)).sum(-1)
    return regional + lam * (u.exp() * sums).sum(-1), regional


class Loop:
    """One method as a loop over a copy of a network.

    Args:
        network, method: what adapts, and how: one of `LOOPS`.
        head: its last layer; of its copy, `recap` takes the rows.
        share: None selects by the method's own thresholds; a number, so great a part of each batch, by the same criterion.
        lr: of the SGD.
    """

    def __init__(self, network: nn.Module, method: str, head: str, *, share: float | None = None, lr: float = 2.5e-4):
        if method not in LOOPS:
            raise ValueError(f"there is no plain loop for {method!r}; there are {', '.join(LOOPS)}")
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.method, self.share = method, share
        self.network.train(method != "source")
        affines: list[nn.Parameter] = []
        for layer in self.network.modules():
            if method != "source" and isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
                affines += layer.parameters()
            if method != "source" and isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        for affine in affines:
            affine.requires_grad_()
        self.affines = affines
        self.optimiser = torch.optim.SGD(affines, lr=lr, momentum=0.9) if affines else None
        weight = self.network.get_submodule(head).weight
        assert isinstance(weight, Tensor)
        self.weight = weight.detach().flatten(1)
        self.variance = torch.full_like(self.weight[0], 1e-3)
        self.classes = len(self.weight)
        self.average: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.method == "source":
            with torch.no_grad():
                logits: Tensor = self.network(images)
            return logits
        with torch.enable_grad():
            logits = self.network(images)
            step: Callable[[Tensor, Tensor], None] = getattr(self, "_" + self.method)
            step(images, logits)
        return logits.detach()

    def _kept(self, criterion: Tensor, threshold: float) -> Tensor:
        """Places of the selected images."""
        if self.share is not None:
            return criterion.argsort()[: math.ceil(self.share * len(criterion))]
        return torch.where(criterion < threshold * math.log(self.classes))[0]

    def _learn(self, loss: Tensor) -> None:
        assert self.optimiser is not None
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def _tent(self, images: Tensor, logits: Tensor) -> None:
        self._learn(_entropy(logits).mean(0))

    def _eta(self, images: Tensor, logits: Tensor) -> None:
        entropy = _entropy(logits)
        kept = self._kept(entropy, 0.4)
        chosen = logits[kept].softmax(1).detach()
        if self.average is not None:
            similarity = torch.cosine_similarity(self.average[None], chosen, dim=1)
            if self.share is None:
                kept, chosen = kept[similarity.abs() < 0.05], chosen[similarity.abs() < 0.05]
        if len(kept) == 0:
            return
        mean = chosen.mean(0)
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        weight = (0.4 * math.log(self.classes) - entropy[kept].detach()).exp()
        self._learn((weight * entropy[kept]).mean(0))

    def _sar(self, images: Tensor, logits: Tensor) -> None:
        assert self.optimiser is not None
        kept = self._kept(_entropy(logits), 0.4)
        if len(kept) == 0:
            return
        _entropy(logits)[kept].mean(0).backward()
        norm = torch.stack([affine.grad.norm() for affine in self.affines if affine.grad is not None]).norm()
        before = [affine.detach().clone() for affine in self.affines]
        with torch.no_grad():
            for affine in self.affines:
                if affine.grad is not None:
                    affine.add_(0.05 * affine.grad / (norm + 1e-12))
        self.optimiser.zero_grad()
        entropy = _entropy(self.network(images))[kept]
        loss = entropy[self._kept(entropy, 0.4)] if self.share is None else entropy
        if len(loss):
            loss.mean(0).backward()
        with torch.no_grad():
            for affine, value in zip(self.affines, before, strict=True):
                affine.copy_(value)
        self.optimiser.step()
        self.optimiser.zero_grad()
        if len(loss):
            self.moving = loss.mean(0).item()  # for the recovery: the host waits

    def _deyo(self, images: Tensor, logits: Tensor) -> None:
        entropy = _entropy(logits)
        kept = self._kept(entropy, 0.5)
        if len(kept) == 0:
            return
        pieces = images[kept]
        height, width = pieces.shape[2] // 4, pieces.shape[3] // 4
        tiles = pieces[:, :, : 4 * height, : 4 * width].unflatten(3, (4, width)).unflatten(2, (4, height))
        tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        order = torch.rand(tiles.shape[:2], device=images.device).argsort(-1)
        tiles = tiles[torch.arange(len(tiles), device=images.device)[:, None], order].unflatten(1, (4, 4))
        shuffled = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        with torch.no_grad():
            destroyed = self.network(shuffled).softmax(1)
        guess = logits[kept].argmax(1, keepdim=True)
        drop = (logits[kept].softmax(1).gather(1, guess) - destroyed.gather(1, guess)).squeeze(1).detach()
        if self.share is None:
            kept, drop = kept[drop > 0.2], drop[drop > 0.2]
        if len(kept) == 0:
            return
        weight = (0.4 * math.log(self.classes) - entropy[kept].detach()).exp() + drop.exp()
        self._learn((weight * entropy[kept]).mean(0))

    def _recap(self, images: Tensor, logits: Tensor) -> None:
        confidence, regional = cubic(logits, self.weight, self.variance)
        kept = self._kept(regional, 0.8)
        if len(kept) == 0:
            return
        weight = (0.7 * math.log(self.classes) - regional[kept].detach()).exp()
        self._learn((weight * confidence[kept]).mean(0))


LOOPS = ("source", "tent", "eta", "sar", "deyo", "recap")
"""The methods there is a plain loop for."""
