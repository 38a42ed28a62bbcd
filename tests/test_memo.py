"""MEMO: an episode for each image, against a plainly written reference, and what an episode leaves behind: nothing."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from cases import adapter, settings
from networks import images, make
from test_properties import same
from torch import Tensor, nn

import wildtta
from wildtta.core import Episodic, Views, augmix, keys, marginal_entropy, sgd, sharpness_aware, tree

KINDS = ("gn", "ln", "bn")
HALF = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Given(Views):
    """Views by a plain rule, which the reference follows too."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, images: Tensor, key: Tensor) -> Tensor:
        noise = keys.normal(keys.fold(key[:, None], torch.arange(self.count)), tuple(images.shape[1:]), images.dtype)
        return images[:, None].flip(-1) * 0.8 + 0.3 * noise


class Mixed(nn.Module):
    """A BatchNorm layer as MEMO's reference has it: statistics of the source and of what comes, N to 1."""

    def __init__(self, layer: nn.BatchNorm2d, strength: int) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.variance, self.strength = layer.running_mean, layer.running_var, strength

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for channel in range(x.shape[1]):
            values = x[:, channel].detach().reshape(-1).tolist()
            mean = math.fsum(values) / len(values)
            variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
            mean = (self.strength * self.mean[channel] + mean) / (self.strength + 1)
            variance = (self.strength * self.variance[channel] + variance) / (self.strength + 1)
            normal = (x[:, channel] - mean) / (variance + self.eps).sqrt()
            out[:, channel] = normal * self.weight[channel] + self.bias[channel]
        return out


def with_mixed_statistics(network: nn.Module, strength: int = 16) -> nn.Module:
    network = copy.deepcopy(network).eval()
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, Mixed(layer, strength))
    return network


def reference(network: nn.Module, image: Tensor, views: Tensor, optimiser: str, lr: float) -> Tensor:
    """MEMO on one image, with a torch optimiser, on a copy: the logits."""
    network = with_mixed_statistics(network).requires_grad_(True)
    if optimiser == "sgd":
        steps = torch.optim.SGD(network.parameters(), lr=lr)
    else:
        steps = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.01)
    mean = sum(network(views).softmax(1)) / len(views)
    (-(mean * mean.log()).sum()).backward()
    steps.step()
    with torch.no_grad():
        return network(image[None])[0]


def made(
    network: nn.Module, optimiser: str = "sgd", lr: float = 0.01, count: int = 6, **others: object
) -> wildtta.Adapter:
    adapted = wildtta.adapt(network, "memo", optimiser=optimiser, lr=lr, seed=5, **others)
    adapted.method.views = Given(count)
    return adapted


def changed(network: nn.Module, batch: Tensor, answer: Tensor) -> Tensor:
    """How far the answers are from the network's own."""
    plain = with_mixed_statistics(network)
    with torch.no_grad():
        return (answer - torch.cat([plain(image) for image in batch.split(1)])).abs().amax(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("optimiser", "lr"), [("sgd", 0.01), ("adamw", 0.001)])
def test_equals_the_reference(kind: str, optimiser: str, lr: float) -> None:
    network = make(kind, torch.float64)
    adapted, views = made(network, optimiser, lr), Given(6)
    for start, size in ((0, 5), (5, 1), (6, 2)):
        batch = images(size, start, torch.float64)
        names = keys.of_content(batch, torch.tensor(5))
        found = adapted(batch)
        for place, image in enumerate(batch):
            own = views(image[None], names[place : place + 1])[0]
            expected = reference(network, image, own, optimiser, lr)
            assert ((found[place] - expected).abs().max() / expected.abs().max()).item() < 1e-9
        assert (changed(network, batch, found) > 1e-2).all()
    assert adapted.report.updates == adapted.report.seen == 8


def test_the_usual_optimiser_is_that_of_the_networks_kind() -> None:
    for kind, expected in (("gn", "sgd(lr=0.00025, momentum=0.0)"), ("ln", "adamw(lr=1e-05, ")):
        method = wildtta.adapt(make(kind), "memo").method
        assert repr(method.update).startswith(expected)
        assert "decay=0.01" in repr(method.update) or kind == "gn"
        assert set(method.layout.names) == {name for name, _ in make(kind).named_parameters()}
        assert (method.forwards, method.backwards) == (65, 64)
    assert wildtta.adapt(make("gn"), "memo", lr="x4").method.update.lr == pytest.approx(1e-3)
    assert wildtta.adapt(make("gn"), "memo", lr=lambda views: views / 10, views=2).method.update.lr(2) == 0.2
    assert "sgd" in repr(wildtta.adapt(make("gn"), "memo", kind="vit", optimiser="sgd").method.update)
    chosen = wildtta.adapt(make("gn"), "memo", layers=["stem.1"]).method.layout.names
    assert chosen == ("stem.1.weight", "stem.1.bias")


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_an_image(kind: str, optimiser: str) -> None:
    """Parameters, BatchNorm statistics, and whatever the optimiser gathered: all bits are as before, after every image."""
    network = make(kind)
    adapted = wildtta.adapt(network, "memo", views=4, lr=1e-3, optimiser=optimiser)
    state, bits = tree.map(Tensor.clone, adapted.state), copy.deepcopy(adapted.network.state_dict())
    batch, alone = images(3), []
    for place in range(3):
        alone.append(adapted(batch[place : place + 1]))
        assert same(adapted.state, state, but=("counters/seen", "counters/selected", "counters/updates", "loss"))
        assert torch.equal(adapted.state["stream"]["theta"], adapted.method.layout.initial)
        assert all(torch.equal(value, bits[name]) for name, value in adapted.network.state_dict().items())
        assert not any(
            parameter.requires_grad or parameter.grad is not None for parameter in adapted.network.parameters()
        )
    adapted.reset()
    together = adapted(batch)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=0)
    adapted.reset()
    assert torch.equal(adapted(batch[:2]), together[:2]), "an image's answer does not depend on those after it"
    other = wildtta.adapt(network, "memo", views=4, lr=1e-3, optimiser=optimiser, seed=1)(batch)
    assert not torch.equal(other, together), "views are drawn by the seed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_images_side_by_side_get_the_same_answers(kind: str, optimiser: str) -> None:
    network, batch = make(kind, torch.float64), images(5, 3, torch.float64)
    expected = made(network, optimiser, 1e-3)
    answer = expected(batch)
    assert (changed(network, batch, answer) > 1e-3).all()
    for at_once in (2, 16):
        beside = made(network, optimiser, 1e-3, at_once=at_once)
        torch.testing.assert_close(beside(batch), answer, rtol=1e-9, atol=1e-9)
        assert str(beside.report.updates) == str(expected.report.updates)
        torch.testing.assert_close(beside.outcome.loss, expected.outcome.loss)
    single = wildtta.adapt(make(kind), "memo", views=4, lr=1e-4, optimiser=optimiser)
    beside = wildtta.adapt(make(kind), "memo", views=4, lr=1e-4, optimiser=optimiser, at_once=3)
    torch.testing.assert_close(beside(batch.float()), single(batch.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("chunk", [1, 4, 6, 100])
def test_views_in_chunks_have_the_gradient_of_all(kind: str, chunk: int) -> None:
    network, batch = make(kind, torch.float64), images(3, 3, torch.float64)
    expected, chunked = made(network), made(network, chunk=chunk)
    torch.testing.assert_close(chunked(batch), expected(batch), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(chunked.outcome.loss, expected.outcome.loss)
    both = made(network, chunk=chunk, at_once=2)
    torch.testing.assert_close(both(batch), expected.outcome.logits, rtol=1e-9, atol=1e-9)
    assert (chunked.method.forwards, chunked.method.backwards) == (13, 6)


def test_chunks_of_views_with_batch_norm_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"chunk cannot be used with BatchNorm statistics of the views.*prior=1.0"):
        wildtta.adapt(make("bn"), "memo", chunk=4)
    wildtta.adapt(make("bn"), "memo", views=3, chunk=2, prior=1.0)(images(2))


def test_prior_is_the_sources_share_of_batch_norm_statistics() -> None:
    network, batch = make("bn"), images(4, 2)
    still = {"lr": 0.0, "views": 2}
    with torch.no_grad():
        source, mixed = network(batch), with_mixed_statistics(network)
        one_by_one = torch.cat([mixed(image) for image in batch.split(1)])
        alone = copy.deepcopy(network)
        for layer in alone.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean = layer.running_var = None
                layer.track_running_stats = False
        own = torch.cat([alone(image) for image in batch.split(1)])
    torch.testing.assert_close(wildtta.adapt(network, "memo", prior=1.0, **still)(batch), source)
    torch.testing.assert_close(wildtta.adapt(network, "memo", **still)(batch), one_by_one, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(wildtta.adapt(network, "memo", prior=0.0, **still)(batch), own)
    assert (source - one_by_one).abs().max() > 1e-2
    model = wildtta.adapt(network, "memo", **still)
    with model.frozen():
        torch.testing.assert_close(model(batch), one_by_one, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="prior is a share from 0 to 1, but is 2"):
        wildtta.adapt(network, "memo", prior=2.0)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_an_image_that_is_not_finite_is_skipped_alone(kind: str, poison: float, at_once: int) -> None:
    clean, model = adapter("memo", kind, at_once=at_once), adapter("memo", kind, at_once=at_once)
    batch, others = images(4, 5), [0, 1, 3]
    expected = clean(batch)
    batch[2, 1, 4, 4] = poison
    answer = model(batch)
    assert torch.equal(answer[others], expected[others]) or at_once > 1
    torch.testing.assert_close(answer[others], expected[others], rtol=1e-5, atol=1e-5)
    assert model.outcome.mask.tolist() == [True, True, False, True]
    report = model.report
    assert (report.seen, report.selected, report.updates, report.skipped) == (4, 3, 3, 1)
    assert math.isfinite(report.loss)
    only = model(batch[2:3])
    assert only.shape == (1, 10)
    assert not model.outcome.learned
    assert model.report.loss == report.loss
    assert model.report.skipped == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_not_finite_gives_the_plain_prediction(kind: str) -> None:
    network, batch = make(kind), images(3, 5)
    model = wildtta.adapt(network, "memo", views=2, lr=math.inf)
    torch.testing.assert_close(changed(network, batch, model(batch)), torch.zeros(3), rtol=0, atol=1e-4)
    assert model.report.skipped == 3
    assert not model.outcome.mask.any()


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_for_the_image_at_hand(kind: str) -> None:
    """The marginal entropy of the same views is lower after the step."""
    reached: list[Tensor] = []

    class Watched(sgd):
        def forward(self, *arguments):  # type: ignore[no-untyped-def]
            found = super().forward(*arguments)
            reached.append(found[0])
            return found

    model = made(make(kind, torch.float64))
    model.method.update = Watched(1e-4, momentum=0.0)
    for step in range(3):
        image = images(1, step, torch.float64)
        model(image)
        names = keys.of_content(image, torch.tensor(5))
        views, unpacked = Given(6)(image, names)[0], model.method.layout.unpack(reached[-1])
        after = marginal_entropy()(model.network.predict(unpacked, views, torch.arange(6))[0])
        assert after.item() < model.outcome.loss.item()


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_image_is_answered_the_same_wherever_it_comes(at_once: int) -> None:
    network, batch = make("gn", torch.float64), images(4, 3, torch.float64)
    first = made(network, at_once=at_once)(batch)
    later = made(network, at_once=at_once)
    later(images(3, 4, torch.float64))
    assert ((later(batch.flip(0)).flip(0) - first).abs().max() / first.abs().max()).item() < 1e-9
    assert not torch.equal(keys.of_content(batch, torch.tensor(5)), keys.of_content(batch, torch.tensor(6)))
    assert len(keys.of_content(batch, torch.tensor(5)).unique()) == 4


def test_frozen_predicts_as_the_source_and_there_is_nothing_to_export() -> None:
    model, batch = adapter("memo", "gn"), images(5, 3)
    model(batch)
    before = model.state
    with model.frozen(), torch.no_grad():
        torch.testing.assert_close(model(batch), make("gn")(batch))
    assert model.state is before
    with pytest.raises(ValueError, match="'memo' forgets what it learnt with every image"):
        model.export()


def test_a_guard_finds_nothing_to_do() -> None:
    plain, guarded = adapter("memo", "gn"), adapter("memo", "gn", guard="collapse")
    assert torch.equal(plain(images(4)), guarded(images(4)))
    assert guarded.report.resets == 0


def test_a_captured_runner_runs_it_eagerly_and_says_why() -> None:
    network = make("gn")
    eager, captured = (
        wildtta.adapt(network, "memo", runner=name, **settings("memo", network)) for name in ("eager", "captured")
    )
    for step in range(3):
        assert torch.equal(eager(images(2, step)), captured(images(2, step)))
    assert "loop over images" in captured.runner.reason


def test_an_episode_can_be_composed_of_other_parts(tmp_path: Path) -> None:
    """Sharpness-aware, on the normalisation layers alone, and with more at once; it is saved and loaded like any other."""

    def composed(network: wildtta.Network) -> Episodic:
        update = sharpness_aware(sgd(0.01, momentum=0.0), 0.05)
        return Episodic(network.norms(), augmix(3, HALF), marginal_entropy(), update, at_once=2)

    model, plain = wildtta.adapt(make("gn"), composed), wildtta.adapt(make("gn"), composed)
    assert (model.method.forwards, model.method.backwards) == (7, 6)
    model(images(4))
    model.save(tmp_path / "state")
    plain.load(tmp_path / "state")
    assert torch.equal(plain(images(4, 1)), model(images(4, 1)))


def test_settings_of_a_saved_state_are_compared(tmp_path: Path) -> None:
    network = make("gn")
    wildtta.adapt(network, "memo", statistics=HALF).save(tmp_path / "state")
    wildtta.adapt(network, "memo", statistics=HALF).load(tmp_path / "state")
    with pytest.raises(ValueError, match="another adapter"):
        wildtta.adapt(network, "memo").load(tmp_path / "state")


@pytest.mark.parametrize("kind", ["ln", "bn"])
def test_a_pickle_travels(kind: str, tmp_path: Path) -> None:
    model = adapter("memo", kind)
    model(images(2))
    torch.save(model, tmp_path / "whole.pt")
    again = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert torch.equal(again(images(2, 1)), model(images(2, 1)))


def test_marginal_entropy_is_that_of_the_mean_prediction() -> None:
    network = wildtta.Network(make("gn", torch.float64))
    prediction, logits = network.predict({}, images(7, 1, torch.float64), torch.arange(7))
    mean = logits.softmax(-1).mean(0)
    torch.testing.assert_close(marginal_entropy()(prediction), -(mean * mean.log()).sum()[None])
    assert marginal_entropy()(prediction) > wildtta.core.entropy()(prediction).mean()


@pytest.mark.slow
def test_it_mends_more_noisy_glyphs_than_it_spoils() -> None:
    from wildtta.data import open_data
    from wildtta.models import load_model

    model = load_model("glyph-vit")
    numbers = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:100]
    domain = open_data("glyphs", model).domain("impulse_noise", 5)
    batch, right = model.preprocessing.normalise(domain.read(numbers)[0]), domain.labels[numbers]
    statistics = (model.preprocessing.mean, model.preprocessing.std)
    options = {"views": 16, "lr": "x3", "statistics": statistics, "crop": False, "flip": False}
    with torch.no_grad():
        before = model.network(batch).argmax(-1) == right
    after = wildtta.adapt(model.network, "memo", **options)(batch).argmax(-1) == right
    assert (after & ~before).sum() > (before & ~after).sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"views": 0}, "at least 1 view of an image, but views is 0"),
        ({"optimiser": "adam"}, 'optimiser must be "sgd" or "adamw", but is \'adam\''),
        ({"at_once": 0}, "at_once must be at least 1, but is 0"),
        ({"chunk": -1}, "chunk must be at least 0, but is -1"),
        ({"lr": "fast"}, 'a multiple such as "x10"'),
        ({"statistics": (0.5, 0.5)}, "statistics must be the"),
        ({"view": 3}, r"'memo' has no hyper-parameter 'view' \(did you mean 'views'"),
    ],
)
def test_settings_that_cannot_be(arguments: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        wildtta.adapt(make("gn"), "memo", **arguments)
