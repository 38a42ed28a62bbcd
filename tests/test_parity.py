"""Each method against an independent, plainly written float64 reference, over several steps."""

from __future__ import annotations

import math

import pytest
import torch
from networks import images, make
from reference import Reference

import wildtta
from wildtta.core import Neighbourhood, entropy, keys, regional_entropy, shape_dependence
from wildtta.core.measures import shuffle_patches

STEPS, BATCH = 8, 12

CASES = {
    "source": {},
    "tent": {"lr": 0.02},
    "eta": {"lr": 0.01, "redundancy": 0.9},
    "eata": {"lr": 0.01, "redundancy": 0.9, "strength": 50.0},
    "sar": {"lr": 0.02, "rho": 0.05, "recovery": 0.01},
    "deyo": {"lr": 0.01},
    "recap": {"lr": 0.002, "tau": 0.2, "lam": 0.5, "pivot": 0.7},
    "recap+eta": {"lr": 0.003, "tau": 0.2, "lam": 0.5, "redundancy": 0.9},
    "recap+sar": {"lr": 0.01, "tau": 0.2, "lam": 0.5, "rho": 0.05, "recovery": 0.01},
    "recap+deyo": {"lr": 0.002, "tau": 0.2, "lam": 0.5},
}


def thresholds(method: str, network: torch.nn.Module, region: wildtta.Region) -> dict[str, float]:
    """Thresholds in the middle of what this network shows, so that each batch has selected and rejected images."""
    view = wildtta.Network(network)
    if method != "source":
        view.use_batch_statistics()
    pool = images(96, 77, torch.float64)
    prediction, _ = view.predict({}, pool, torch.arange(96))
    unit = math.log(view.classes)
    uncertainty = entropy()(prediction).median().item() / unit
    if method == "recap":
        around = Neighbourhood(view.head[0], region.variance, 0.2)
        return {"threshold": regional_entropy(around)(prediction).median().item() / unit}
    if method.endswith("deyo"):
        return {
            "threshold": uncertainty * 1.2,
            "margin": 0.4,
            "plpd": shape_dependence()(prediction).quantile(0.3).item(),
        }
    return {} if method in ("source", "tent") else {"margin": uncertainty}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("kind", ["gn", "ln", "bn"])
@pytest.mark.parametrize("method", CASES)
def test_equals_the_reference(method: str, kind: str) -> None:
    network = make(kind, torch.float64)
    region = wildtta.Region.estimate(network, images(100, 99, torch.float64))
    options = CASES[method] | thresholds(method, network, region)
    extra: dict[str, object] = {"region": region} if "recap" in method else {}
    if method == "eata":
        extra["fisher"] = wildtta.Fisher.estimate(network, images(100, 98, torch.float64), batch_size=50)
    adapter = wildtta.adapt(network, method, seed=5, **options, **extra)
    names = list(adapter.method.layout.names)
    head = network.fc if kind == "bn" else network.head
    known = options | {"variance": region.variance.double()}
    if "fisher" in extra:
        known["fisher"] = [extra["fisher"].importance[name] for name in names]
    reference = Reference(network, method, names, head, **known)

    shares = []
    for step in range(STEPS):
        batch = images(BATCH, step, torch.float64)
        order = keys.fold(torch.tensor(5), step * BATCH + torch.arange(BATCH))
        expected = reference.step(batch, lambda x, order=order: shuffle_patches(x, order, 4))
        found = adapter(batch)
        assert relative(found, expected) < 1e-9, f"logits at step {step}"
        if names:
            theta = torch.cat([parameter.detach().reshape(-1) for parameter in reference.parameters])
            assert relative(adapter.state["stream"]["theta"], theta) < 1e-9, f"parameters after step {step}"
        shares.append(adapter.outcome.mask.float().mean().item())

    report = adapter.report
    if method != "source":
        assert report.updates >= 6
        assert not torch.equal(adapter.state["stream"]["theta"], adapter.method.layout.initial)
    if method not in ("source", "tent"):
        assert any(0 < share < 1 for share in shares), "the selection was never put to the test"


@pytest.mark.parametrize("method", ["sar", "recap+sar"])
def test_recovery_equals_the_reference(method: str) -> None:
    """With a threshold that the loss falls below: weights, momentum and moving average all start afresh."""
    network = make("gn", torch.float64)
    region = wildtta.Region.estimate(network, images(100, 99, torch.float64))
    options = CASES[method] | {"recovery": 2.2 if "recap" in method else 1.1, "margin": 0.8}
    extra = {"region": region} if "recap" in method else {}
    adapter = wildtta.adapt(network, method, **options, **extra)
    names = list(adapter.method.layout.names)
    reference = Reference(network, method, names, network.head, **options, variance=region.variance.double())
    for step in range(12):
        batch = images(BATCH, step, torch.float64)
        expected = reference.step(batch, lambda x: x)
        assert relative(adapter(batch), expected) < 1e-9, step
    assert adapter.report.resets == reference.resets > 0


@pytest.mark.parametrize("kind", ["gn", "ln", "bn"])
def test_fisher_equals_its_definition(kind: str) -> None:
    network, batches = make(kind, torch.float64), images(48, 3, torch.float64).split(16)
    fisher = wildtta.Fisher.estimate(network, list(batches), batch_size=16)
    plain = Reference(network, "eata", list(fisher.importance), network.fc if kind == "bn" else network.head)
    expected = [torch.zeros_like(parameter) for parameter in plain.parameters]
    for batch in batches:
        logits = plain.network(batch)
        plain.optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
        for total, parameter in zip(expected, plain.parameters, strict=True):
            total += parameter.grad**2 / len(batches)
    for found, total in zip(fisher.importance.values(), expected, strict=True):
        assert relative(found, total) < 1e-9
