"""Parts by themselves, and compositions against what they should be equal to."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cases import settings
from networks import images, make
from torch import Tensor

import wildtta
from wildtta.core import (
    Measure,
    Method,
    Prediction,
    adamw,
    below,
    confident_region,
    entropy,
    everything,
    measure,
    non_redundant,
    recentre,
    reliable,
    sgd,
    sharpness_aware,
    tree,
)
from wildtta.core.measures import shuffle_patches
from wildtta.core.updates import Evaluation


def prediction(logits: Tensor) -> Prediction:
    return Prediction(logits, logits, torch.zeros(len(logits), 3, 4, 4), torch.arange(len(logits)), lambda _: None)


def run(method: object, steps: int = 4, kind: str = "gn", **options: object) -> tuple[list[Tensor], wildtta.Adapter]:
    model = wildtta.adapt(make(kind), method, **options)
    return [model(images(8, step)) for step in range(steps)], model


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


# -- measures, selections, weightings ----------------------------------------------------------------------------------


def test_entropy() -> None:
    found = entropy()(prediction(torch.tensor([[0.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0]])))
    torch.testing.assert_close(found, torch.tensor([math.log(4), 0.0]))


def test_measures_add_up_and_are_computed_once() -> None:
    calls = []

    class counted(Measure):
        def compute(self, prediction: Prediction) -> Tensor:
            calls.append(prediction)
            return prediction.logits.sum(-1)

    part, given = counted(), prediction(torch.ones(2, 3))
    total = part + 0.5 * part
    assert torch.equal(total(given), torch.full((2,), 4.5))
    assert below(part, 4.0)(given, {}).all()
    assert len(calls) == 1
    assert len(prediction(torch.ones(2, 3)).logits) == 2
    total(prediction(torch.ones(2, 3)))
    assert len(calls) == 2, "another prediction is another computation"


def test_masks_combine() -> None:
    given = prediction(torch.tensor([[9.0, 0.0], [2.0, 0.0], [0.0, 0.0]]))
    low, high = below(entropy(), 0.5), below(measure(lambda p: -p.logits[:, 0]), -5.0)
    assert low(given, {}).tolist() == [True, True, False]
    both = low & high & everything()
    assert both(given, both.init(torch.zeros(1), 2)).tolist() == [True, False, False]


def test_non_redundant_averages_what_the_whole_method_kept() -> None:
    first = torch.tensor([[8.0, 0.0, 0.0], [0.0, 8.0, 0.0], [0.0, 0.0, 8.0]])
    selection = reliable(0.4) & non_redundant(0.5)
    state = selection.init(torch.zeros(1), 3)
    given = prediction(first)
    assert selection(given, state).all(), "no test before the first kept image"
    state = selection.advance(given, torch.tensor([True, False, False]), state)
    torch.testing.assert_close(state["second"]["average"], first.softmax(-1)[0])
    assert selection(given, state).tolist() == [False, True, True]
    unmoved = selection.advance(given, torch.zeros(3, dtype=torch.bool), state)
    assert torch.equal(unmoved["second"]["average"], state["second"]["average"])
    moved = selection.advance(given, torch.tensor([False, True, True]), state)
    expected = 0.9 * first.softmax(-1)[0] + 0.1 * first.softmax(-1)[1:].mean(0)
    torch.testing.assert_close(moved["second"]["average"], expected)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (18, 23), (3, 5)])
def test_patches_are_permuted_image_by_image(height: int, width: int) -> None:
    batch = torch.rand(5, 3, height, width)
    keys = torch.arange(5) + 100
    found = shuffle_patches(batch, keys, 4)
    assert found.shape == batch.shape
    assert not torch.equal(found, batch)
    torch.testing.assert_close(shuffle_patches(batch[3:4], keys[3:4], 4)[0], found[3])
    if height % 4 == width % 4 == 0:
        assert torch.equal(found.flatten(1).sort(-1).values, batch.flatten(1).sort(-1).values)


def test_patches_in_half_precision() -> None:
    batch = torch.rand(2, 3, 18, 18)
    found = shuffle_patches(batch.bfloat16(), torch.arange(2), 4)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), shuffle_patches(batch, torch.arange(2), 4), rtol=0.02, atol=0.02)


# -- updates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "optimiser"),
    [
        (sgd(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (sgd(0.1, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (adamw(0.1, decay=0.02), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.02)),
    ],
    ids=["momentum", "plain", "adamw"],
)
def test_updates_equal_torch(update: object, optimiser: object) -> None:
    theta = torch.linspace(-1, 1, 7, dtype=torch.float64)
    parameter = torch.nn.Parameter(theta.clone())
    plain, state = optimiser([parameter]), update.init(theta)
    for step in range(6):
        gradient = torch.sin(theta * (step + 1))
        parameter.grad = gradient.clone()
        plain.step()
        empty = torch.ones(4)
        evaluation = Evaluation(gradient, empty, empty.bool(), empty, empty[0], empty[0], empty, {}, {})
        theta, state, _ = update(evaluation, lambda *_: None, theta, state)
        torch.testing.assert_close(theta, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_a_rate_may_depend_on_the_batch() -> None:
    fixed, _ = run("tent", lr=0.02)
    ruled, _ = run("tent", lr=lambda count: 0.02 * count / 8)
    assert equal(fixed, ruled)
    kinds = {"gn": (2.5e-4, 7.8125e-6, 2.5e-4 * 16 / 64 * 2), "ln": (1e-3, 1.5625e-5, 1e-3 * 16 / 64)}
    for kind, (full, single, few) in kinds.items():
        network = wildtta.Network(make(kind))
        tent, sar = (wildtta.methods()[name].compose(network).update for name in ("tent", "sar"))
        assert [tent.lr(count) for count in (64, 32, 16, 1)] == pytest.approx([full, full, few, single])
        assert [sar.base.lr(count) for count in (64, 32, 16, 1)] == pytest.approx([full, full, few, 2 * single])


# -- composition -------------------------------------------------------------------------------------------------------


def test_thresholds_that_keep_all_or_nothing_make_sense() -> None:
    given = prediction(torch.randn(3, 4))
    assert below(entropy(), math.inf)(given, {}).all()
    assert not below(entropy(), -math.inf)(given, {}).any()
    assert below(entropy(), torch.tensor(9.0))(given, {}).all()


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("eta", "redundancy_decay", 0.1),
        ("eata", "redundancy_decay", 0.1),
        ("sar", "recovery_decay", 0.1),
        ("sar", "eps", 10.0),
        ("recap+sar", "recovery_decay", 0.1),
        ("recap+sar", "eps", 10.0),
    ],
)
def test_averages_and_eps_can_be_set_by_name(method: str, name: str, value: float) -> None:
    """The default is what it was; another value reaches the numbers."""
    network = make("gn")
    given = settings(method, network, **({"recovery": 0.7} if "sar" in method else {}))
    usual, plain = run(method, 6, **given)
    default = wildtta.methods()[method].hyperparameters[name]
    assert default == {"eps": 1e-12}.get(name, 0.9)
    assert equal(run(method, 6, **given, **{name: default})[0], usual)
    _, changed = run(method, 6, **given, **{name: value})
    leaves = tree.flatten(changed.state)
    assert any(not torch.equal(leaf, leaves[key]) for key, leaf in tree.flatten(plain.state).items())
    assert repr(changed.method) != repr(plain.method), "a saved state knows that it is of another composition"


def test_without_guards_no_first_state_is_made_again() -> None:
    """It would be allocated in every step, and thrown away."""
    made: list[str | None] = []
    for guard in (None, "collapse"):
        _, model = run("tent", 1, guard=guard)

        def counted(network: object, guard: str | None = guard, fresh: Callable = model.method._fresh) -> object:
            made.append(guard)
            return fresh(network)

        model.method._fresh = counted
        model(images(8, 1))
    assert made == ["collapse"]


def test_a_composed_method_equals_the_recipe() -> None:
    def by_hand(network: wildtta.Network) -> Method:
        return Method(
            network.norms(frozen_top=True),
            entropy(),
            sharpness_aware(sgd(0.02, 0.9), 0.05),
            selection=reliable(0.7),
        )

    assert equal(run(by_hand)[0], run("sar", lr=0.02, margin=0.7, recovery=0.0)[0])


def test_eata_without_its_anchor_is_eta() -> None:
    network = make("gn")
    options = settings("eata", network)
    assert equal(run("eata", **options, strength=0.0)[0], run("eta", **settings("eta", network))[0])
    assert not equal(run("eata", **options, strength=1e5)[0], run("eta", **settings("eta", network))[0])


def test_eta_without_its_selection_and_weights_is_tent() -> None:
    """All images kept; weights exp(E₀ − H) made constant by a flat measure."""

    def flat(network: wildtta.Network) -> Method:
        method = wildtta.methods()["eta"].compose(network, lr=0.02, margin=2.0, redundancy=2.0)
        method.weighting = wildtta.core.uniform()
        return method

    assert equal(run(flat)[0], run("tent", lr=0.02)[0])


def test_sar_without_its_climb_is_selected_entropy() -> None:
    def plain(network: wildtta.Network) -> Method:
        return Method(network.norms(frozen_top=True), entropy(), sgd(0.02), selection=reliable(0.7))

    assert equal(run("sar", lr=0.02, rho=0.0, margin=0.7, recovery=0.0)[0], run(plain)[0])


def test_recap_with_a_vanishing_region_is_weighted_entropy() -> None:
    """τ → 0: L_RE → H and L_RI → 0, so ReCAP becomes entropy with ReCAP's selection and weights."""

    def limit(network: wildtta.Network) -> Method:
        uncertainty = entropy()
        return Method(
            network.norms(frozen_top=True),
            uncertainty,
            sgd(0.02),
            selection=confident_region(uncertainty, 0.8),
            weighting=wildtta.core.decaying(uncertainty, 0.7),
        )

    region = wildtta.Region.estimate(make("gn"), images(60, 90))
    found, _ = run("recap", region=region, tau=1e-10, lr=0.02)
    for one, two in zip(found, run(limit)[0], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_the_combinations_differ_from_their_hosts_in_the_objective_alone() -> None:
    network = wildtta.Network(make("gn"))
    region = wildtta.Region.estimate(make("gn"), images(60, 90))
    for host in ("eta", "sar", "deyo"):
        one = wildtta.methods()[host].compose(network, lr=0.01)
        two = wildtta.methods()[f"recap+{host}"].compose(network, region=region, lr=0.01)
        for part in ("selection", "weighting", "update", "guards", "layout"):
            assert repr(getattr(one, part)) == repr(getattr(two, part))
        assert repr(one.objective) != repr(two.objective)


def test_a_new_method_in_ten_lines() -> None:
    @wildtta.register("margin-tent")
    def margin_tent(network, *, lr=0.01, threshold=1.0):  # type: ignore[no-untyped-def]
        """Entropy of images whose two best classes are far apart."""
        gap = measure(lambda p: -(p.logits.topk(2).values @ torch.tensor([1.0, -1.0])))
        return Method(network.norms(), entropy(), sgd(lr), selection=below(gap, -threshold))

    _, model = run("margin-tent", threshold=0.5)
    assert 0 < model.report.selected < model.report.seen
    assert wildtta.methods()["margin-tent"].hyperparameters == {"lr": 0.01, "threshold": 1.0}
    assert wildtta.methods()["margin-tent"].summary.startswith("Entropy of images whose")


def test_alignment_recentres_without_gradients() -> None:
    """A method without an objective: features get back the mean they had at the source."""
    network = make("gn")
    region = wildtta.Region.estimate(network, images(200, 90))

    def recentred(view: wildtta.Network) -> Method:
        return Method(view.nothing(), alignment=recentre(region.mean, rate=0.02))

    model = wildtta.adapt(network, recentred)
    shifted = [images(16, step) * 0.5 + 1.0 for step in range(30)]
    features = []
    for batch in shifted:
        answer = model(batch)
        features.append(model.network.run({}, batch)[1])
    expected = region.mean.clone()
    for feature in features[:-1]:
        keep = (1 - 0.02) ** 16
        expected = keep * expected + (1 - keep) * feature.mean(0)
    weight, bias = model.network.head
    torch.testing.assert_close(answer, (features[-1] + region.mean - expected) @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert model.report.updates == model.report.skipped == 0
    with pytest.raises(ValueError, match="keep the adapter"):
        model.export()
    before = tree.map(Tensor.clone, model.state)
    batch = images(4, 1)
    batch[0] = torch.nan
    model(batch)
    assert torch.equal(model.state["stream"]["alignment"]["mean"], before["stream"]["alignment"]["mean"])


def test_a_method_needs_both_objective_and_update() -> None:
    network = wildtta.Network(make("gn"))
    with pytest.raises(ValueError, match="both an objective and an update"):
        Method(network.norms(), entropy())
