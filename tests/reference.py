"""The methods, written out plainly: loops over images and classes, torch optimisers, no part of the library.

The tests hold the library against these in float64. They change a copy of the network in place, index the selected images
instead of masking them, and build region confidence from the B × C × C formula.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def regional(logits: Tensor, weight: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """L_RE and L_RI by their definitions (Prop. 4.3 and 4.4), an image at a time, as a table over j and i."""
    half = 0.5 * ((weight[:, None] - weight[None]) ** 2 * variance).sum(-1)
    own = 0.5 * (weight**2 * variance).sum(1)
    re, ri = [], []
    for z in logits:
        p = z.exp() / z.exp().sum()
        p_bar = (z + own).exp() / (z + own).exp().sum()
        re.append((p_bar * torch.log((z[None, :] - z[:, None] + half).exp().sum(1))).sum())
        ri.append((p * torch.log((p[None, :] * half.exp()).sum(1))).sum())
    return torch.stack(re), torch.stack(ri)


class Reference:
    """One method on a copy of a network. `names` are the parameters that adapt."""

    def __init__(self, network: nn.Module, method: str, names: list[str], head: nn.Linear, **options: object) -> None:
        self.network = copy.deepcopy(network)
        self.network.eval().requires_grad_(False)
        if method != "source":
            for layer in self.network.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        self.parameters = [dict(self.network.named_parameters())[name] for name in names]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.method, self.options = method, options
        self.weight = head.weight.detach().clone()
        self.classes = len(self.weight)
        self.optimiser = self.new_optimiser()
        self.average_prediction: Tensor | None = None
        self.average_loss: float | None = None
        self.resets = 0

    def new_optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters or [torch.zeros(1)], lr=self.options.get("lr", 0.0), momentum=0.9)

    def step(self, images: Tensor, shuffled: Callable[[Tensor], Tensor]) -> Tensor:
        logits = self.network(images)
        if self.method != "source":
            getattr(self, self.method.replace("+", "_"))(images, logits, shuffled)
            self.optimiser.zero_grad()
        return logits.detach()

    def fraction(self, name: str) -> float:
        return self.options[name] * math.log(self.classes)

    def tent(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        entropy(logits).mean().backward()
        self.optimiser.step()

    def eta(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.diverse(logits, entropy)

    eata = eta

    def recap_eta(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.diverse(logits, self.confidence)

    def diverse(self, logits: Tensor, objective: Callable[[Tensor], Tensor]) -> None:
        h = entropy(logits)
        margin = self.fraction("margin")
        kept = []
        for i in range(len(logits)):
            if h[i] < margin:
                p = logits[i].softmax(0).detach()
                if self.average_prediction is None:
                    kept.append(i)
                else:
                    cosine = (p @ self.average_prediction) / (p.norm() * self.average_prediction.norm())
                    if abs(cosine) < self.options["redundancy"]:
                        kept.append(i)
        if not kept:
            return
        mean = logits[kept].softmax(1).detach().mean(0)
        self.average_prediction = (
            mean if self.average_prediction is None else 0.9 * self.average_prediction + 0.1 * mean
        )
        loss = ((margin - h[kept].detach()).exp() * objective(logits)[kept]).mean()
        if self.method == "eata":
            for parameter, start, importance in zip(self.parameters, self.start, self.options["fisher"], strict=True):
                loss = loss + self.options["strength"] * (importance * (parameter - start) ** 2).sum()
        loss.backward()
        self.optimiser.step()

    def sar(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.sharpness_aware(images, logits, entropy)

    def recap_sar(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.sharpness_aware(images, logits, self.confidence)

    def sharpness_aware(self, images: Tensor, logits: Tensor, objective: Callable[[Tensor], Tensor]) -> None:
        margin = self.fraction("margin")
        first = [i for i, h in enumerate(entropy(logits)) if h < margin]
        if not first:
            return
        objective(logits)[first].mean().backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in self.parameters))
        climbs = [self.options["rho"] * p.grad / (norm + 1e-12) for p in self.parameters]
        with torch.no_grad():
            for parameter, climb in zip(self.parameters, climbs, strict=True):
                parameter.add_(climb)
        self.optimiser.zero_grad()
        again = self.network(images)
        h = entropy(again)
        second = [i for i in first if h[i] < margin]
        loss = objective(again)[second].mean() if second else None
        if loss is not None:
            loss.backward()
        with torch.no_grad():
            for parameter, climb in zip(self.parameters, climbs, strict=True):
                parameter.sub_(climb)
        if loss is None:
            return
        self.optimiser.step()
        self.average_loss = loss.item() if self.average_loss is None else 0.9 * self.average_loss + 0.1 * loss.item()
        if self.average_loss < self.options["recovery"]:
            with torch.no_grad():
                for parameter, start in zip(self.parameters, self.start, strict=True):
                    parameter.copy_(start)
            self.optimiser, self.average_loss = self.new_optimiser(), None
            self.resets += 1

    def deyo(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.shape_based(images, logits, shuffled, entropy)

    def recap_deyo(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        self.shape_based(images, logits, shuffled, self.confidence)

    def shape_based(self, images: Tensor, logits: Tensor, shuffled: Callable, objective: Callable) -> None:
        with torch.no_grad():
            destroyed = self.network(shuffled(images)).softmax(1)
        h, losses = entropy(logits), objective(logits)
        terms = []
        for i in range(len(images)):
            p, guess = logits[i].softmax(0).detach(), logits[i].argmax()
            plpd = p[guess] - destroyed[i, guess]
            if h[i] < self.fraction("threshold") and plpd > self.options["plpd"]:
                weight = math.exp(self.fraction("margin") - h[i].item()) + math.exp(plpd.item())
                terms.append(weight * losses[i])
        if terms:
            torch.stack(terms).mean().backward()
            self.optimiser.step()

    def confidence(self, logits: Tensor) -> Tensor:
        re, ri = regional(logits, self.weight, self.options["tau"] * self.options["variance"])
        return re + self.options["lam"] * ri

    def recap(self, images: Tensor, logits: Tensor, shuffled: Callable) -> None:
        re, ri = regional(logits, self.weight, self.options["tau"] * self.options["variance"])
        terms = [
            math.exp(self.fraction("pivot") - re[i].item()) * (re[i] + self.options["lam"] * ri[i])
            for i in range(len(images))
            if re[i] < self.fraction("threshold")
        ]
        if terms:
            torch.stack(terms).mean().backward()
            self.optimiser.step()
