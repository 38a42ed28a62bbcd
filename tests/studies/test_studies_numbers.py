"""The studies' numbers, in cases that can be computed by hand."""

from __future__ import annotations

import math
import time
from functools import partial

import numpy as np
import pytest
import torch
from small_studies import choice, place

import wildtta
from wildtta.bench.config import ConfigError
from wildtta.core.prediction import Prediction
from wildtta.network import Network
from wildtta.studies import Bench, Choice, bounds, trial
from wildtta.studies.base import average, multiple, rates_from, times
from wildtta.studies.bounds import _differentiated, _drawn, chain
from wildtta.studies.consistency import consistency_of
from wildtta.studies.features import separation
from wildtta.studies.grid import Grid
from wildtta.studies.methods import (
    component_entropy,
    component_entropy_instability,
    component_instability,
    entropy_in_areas,
    registered,
)
from wildtta.studies.regions import Draws, inconsistency
from wildtta.studies.results import _used
from wildtta.studies.stability import collapse, endless
from wildtta.studies.tune import _best

WEIGHT = torch.tensor([[1.0], [0.0]], dtype=torch.float64)  # so that the logits are (z, 0)
VARIANCE = torch.tensor([0.8], dtype=torch.float64)


def _logits(*z: float) -> torch.Tensor:
    feature = torch.tensor(z, dtype=torch.float64)[:, None]
    return feature @ WEIGHT.T


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _expected(function, z: float, variance: float) -> float:
    """E f(z + ε) by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return float((weights * function(z + math.sqrt(variance) * nodes)).sum() / weights.sum())


def _entropy(x):
    p = 1 / (1 + np.exp(-x))
    return -(p * np.log(p) + (1 - p) * np.log(1 - p))


def _divergence(z):
    p = 1 / (1 + math.exp(-z))

    def at(x):
        q = 1 / (1 + np.exp(-x))
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))

    return at


@pytest.mark.parametrize("z", [0.0, 0.4, -1.0, 2.5])
def test_what_is_drawn_is_what_the_region_holds(z):
    count, tau = 40_000, 1.2
    spread = tau * 0.8
    found = Draws(WEIGHT, VARIANCE, tau, count).measures(_logits(z))
    if z:
        other = _normal(-abs(z) / math.sqrt(spread))
        assert found["inconsistent"].item() == pytest.approx(other, abs=5 * math.sqrt(other * (1 - other) / count))
    for name, value in (
        ("entropy", _expected(_entropy, z, spread)),
        ("divergence", _expected(_divergence(z), z, spread)),
    ):
        error = found[f"{name}_deviation"].item() / math.sqrt(count)
        assert found[name].item() == pytest.approx(value, abs=5 * error)


def test_an_empty_region_changes_no_prediction():
    logits = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = consistency_of(logits, Draws(WEIGHT, VARIANCE, 0.0, 64))
    assert (found["inconsistent"], found["divergence"]) == (0.0, 0.0)
    assert found["entropy"] == found["neighbours_entropy"]
    assert found["histogram"] == [20] + [0] * 9


def test_draws_of_other_seeds_are_others_and_a_first_part_is_a_part():
    one, two = Draws(WEIGHT, VARIANCE, 1.0, 50), Draws(WEIGHT, VARIANCE, 1.0, 50, seed=1)
    assert not torch.isclose(one.offsets[:, 0], two.offsets[:, 0]).any()
    assert torch.equal(one.first(7).offsets, one.offsets[:7])
    assert len(one.offsets) == 50


def test_drawing_in_parts_adds_up_to_all_draws():
    """Without a spread every draw is the same, so a gradient in parts is that of the centre's entropy."""
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    weight, bias = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.arange(5.0)
    given = {"weight": weight, "bias": bias, "spread": torch.zeros(3), "count": 10}
    whole, parts = (partial(_drawn, **given, at_once=room) for room in (1 << 20, 3 * 4 * (3 + 3 * 5)))
    assert [len(list(objective(z))) for objective in (whole, parts)] == [1, 4]
    at = z.clone().requires_grad_()
    log_p = (at @ weight.T + bias).log_softmax(-1)
    (expected,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(-1).mean(), at)
    for objective in (whole, parts):
        torch.testing.assert_close(_differentiated(objective, z), expected)


def test_every_number_of_draws_is_there_however_small_the_room(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "_ROOM", {"cpu": 64 * 300 * (8 + 3 * 3)})
    where = place(tmp_path)
    found = bounds._cost(Bench(choice(where), tmp_path / "run"), where["models"][0], "fog", 1)
    assert [row["draws"] for row in found["rows"] if row["draws"]] == [1, 4, 16, 64, 256, 1024]


@pytest.mark.parametrize("z", [0.2, 1.0, 4.0])
def test_the_chain_of_bounds(z):
    """By hand: with two classes M is τ v off the diagonal, and every sum has two terms."""
    tau, count = 1.2, 20_000
    half = 0.5 * tau * 0.8
    found = {
        name: value.item()
        for name, value in chain(_logits(z), WEIGHT, VARIANCE, tau, Draws(WEIGHT, VARIANCE, tau, count)).items()
    }
    p = 1 / (1 + math.exp(-z))
    sums = [math.log(p + (1 - p) * math.exp(half)), math.log((1 - p) + p * math.exp(half))]
    bar = 1 / (1 + math.exp(-(z + half)))
    assert found["regional_instability"] == pytest.approx(p * sums[0] + (1 - p) * sums[1], rel=1e-9)
    by_hand = bar * (sums[0] - math.log(p)) + (1 - bar) * (sums[1] - math.log(1 - p))
    assert found["regional_entropy"] == pytest.approx(by_hand, rel=1e-9)
    mean = _expected(lambda x: 1 / (1 + np.exp(-x)), z, tau * 0.8)
    assert found["with_mean"] == pytest.approx(
        mean * (sums[0] - math.log(p)) + (1 - mean) * (sums[1] - math.log(1 - p)), rel=0.01
    )
    assert found["entropy"] == pytest.approx(_expected(_entropy, z, tau * 0.8), rel=0.02)
    assert found["entropy"] <= found["lemma"] <= found["with_mean"]
    assert found["divergence"] <= found["regional_instability"]
    # where the prediction is certain, p̄ is more certain than E[p], and what is called a bound is below what it bounds
    assert (found["regional_entropy"] < found["entropy"]) == (z == 4.0)


def test_inconsistency_is_the_share_of_other_answers():
    logits = _logits(0.3, -2.0)
    prediction = Prediction(logits, logits, logits, torch.zeros(2, dtype=torch.int64), lambda images: prediction)
    draws = Draws(WEIGHT, VARIANCE, 1.0, 500)
    by_hand = [
        float((0.3 + draws.offsets[:, 0] < 0).double().mean()),
        float((-2.0 + draws.offsets[:, 0] > 0).double().mean()),
    ]
    assert inconsistency(draws)(prediction).tolist() == by_hand


# -- methods of the studies' own ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5),
    )  # fmt: skip
    with torch.no_grad():
        network[-1].weight.mul_(12)
    images = torch.randn(64, 3, 12, 12)
    return network, images, wildtta.Region.estimate(network, images)


def _mask(network, images, compose):
    adapter = wildtta.adapt(network, compose)
    adapter(images)
    return adapter.outcome.mask


def test_areas_divide_the_images(small):
    network, images, region = small

    logits = network(images).detach()
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    shares = Draws(network[-1].weight.detach(), region.variance, 1.2, 256).measures(logits)["inconsistent"]
    bounds = {"entropy_below": float(entropy.median()) / math.log(5), "inconsistent_below": float(shares.median())}

    def area(which):
        return _mask(
            network,
            images,
            lambda view: entropy_in_areas(view, region=region, areas=which, lr=0.1, frozen_top=False, **bounds),
        )

    parts = {which: area(which) for which in "1234"}
    assert all(part.any() for part in parts.values()), {name: int(part.sum()) for name, part in parts.items()}
    assert torch.stack(list(parts.values())).sum(0).tolist() == [1] * 64
    assert torch.equal(area("12"), parts["1"] | parts["2"])
    assert area("1234").all()
    assert area("12").sum() == pytest.approx(32, abs=1)
    assert torch.equal(area("12"), entropy < bounds["entropy_below"] * math.log(5))
    assert torch.equal(parts["1"] | parts["3"], shares < bounds["inconsistent_below"])
    with pytest.raises(ValueError, match="areas must be one of"):
        area("5")


def _moved(network, images, compose):
    adapter = wildtta.adapt(network, compose)
    adapter(images)
    return adapter.state["stream"]["theta"]


def test_components_are_parts_of_recap(small):
    network, images, region = small
    own = {"lr": 1e-3, "frozen_top": False, "threshold": 3.0}
    plain = _moved(network, images, lambda view: component_entropy(view, **own))
    both = {"region": region, **own}
    assert torch.equal(
        plain, _moved(network, images, lambda view: component_entropy_instability(view, lam=0.0, **both))
    )
    assert not torch.equal(plain, _moved(network, images, lambda view: component_entropy_instability(view, **both)))
    # recap with λ = 1 less recap with λ = 0 is the gradient of L_RI alone
    recap = {
        lam: wildtta.adapt(network, "recap", region=region, lam=lam, lr=1e-3, frozen_top=False, threshold=3.0)
        for lam in (0.0, 1.0)
    }
    for adapter in recap.values():
        adapter(images)
    start = recap[0.0].method.layout.initial
    difference = recap[1.0].state["stream"]["theta"] - recap[0.0].state["stream"]["theta"]
    alone = _moved(network, images, lambda view: component_instability(view, **both)) - start
    assert alone.norm() > 0
    # θ is near 1 in float32, so a difference of two of them is known to a few 1e-7
    torch.testing.assert_close(difference, alone, rtol=1e-3, atol=3e-7)


def test_their_names_are_there_only_inside():
    before = set(wildtta.methods())
    with registered():
        assert set(wildtta.methods()) - before == {
            "component:entropy", "component:entropy+instability", "component:instability", "entropy-in-areas"}  # fmt: skip
    assert set(wildtta.methods()) == before


# -- small things ------------------------------------------------------------------------------------------------------


def test_collapse():
    source = [50.0] * 40
    seen = list(range(10, 410, 10))
    assert collapse(seen, [60.0] * 40, source) is None
    assert collapse(seen, [60.0] * 20 + [5.0] * 20, source) == pytest.approx(210, abs=30)
    assert collapse(seen, [5.0] * 20 + [60.0] * 20, source) is None, "it recovered"
    assert collapse(seen, [5.0] * 40, source) == 0
    assert collapse(seen, [60.0] * 39 + [5.0], source) is None, "one point says nothing"


def _result(seed, kind, top1):
    return {"cell": {"seed": seed, "kind": kind}, "result": {"top1": top1}}


def test_average_is_over_corruptions_then_seeds():
    found = average([_result(1, "fog", 10), _result(1, "snow", 30), _result(2, "fog", 20), _result(2, "snow", 40)])
    assert found == {"mean": 25.0, "std": round(math.sqrt(50), 4), "seeds": 2, "streams": 4, "even": True}
    assert average([_result(1, "fog", 10)])["std"] is None
    assert not average([_result(1, "fog", 10), _result(2, "fog", 10), _result(2, "snow", 10)])["even"]


def test_images_are_told_by_scenario():
    assert _used({"images": {"limited": 96, "mixed": 1024, "shift": None}}) == (
        " Of each corruption at most so many images: 96 (limited), 1,024 (mixed)."
    )
    assert _used({"images": {"limited": None}}) == _used({"images": 512}) == ""


def test_a_long_stream_of_glyphs_is_shuffled_and_shows_none_twice(tmp_path):
    bench = Bench(Choice(), tmp_path)
    one, two = ([*endless(bench, "glyph-resnet", "clean", 1100)] for _ in range(2))
    assert [len(labels) for _, labels in one] == [64] * 17 + [12]
    images, labels = (torch.cat(parts) for parts in zip(*one, strict=True))
    assert torch.equal(labels, torch.cat([labels for _, labels in two]))
    assert len(images.flatten(1).unique(dim=0)) == 1100
    classes = len(labels.unique())
    assert labels[:64].bincount(minlength=classes).max() > -(-64 // classes), "the classes take turns"
    assert labels[:1024].bincount().max() == -(-1024 // classes)


def test_the_best_rate_is_the_smallest_of_the_best():
    rows = [
        {"spec": "m", "method": "recap", "mean": mean, "lr": lr}
        for mean, lr in ((5.0, "x10"), (7.0, "x3"), (7.0, "x0.3"), (None, "x1"))
    ]
    assert _best(rows, "m", "recap")["lr"] == "x0.3"
    assert _best(rows, "m", "tent") is None


def test_separation_of_clusters():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    apart = torch.eye(3)[labels] * 100 + torch.randn(60, 3, generator=generator)
    found = separation(apart, labels)
    assert found["neighbours"] == 100.0
    assert found["silhouette"] > 0.95
    mixed = separation(torch.randn(60, 3, generator=generator), labels)
    assert mixed["neighbours"] < 60
    assert abs(mixed["silhouette"]) < 0.1


def test_what_a_cpu_is_timed_by_is_its_own_work(tmp_path):
    bench = Bench(Choice(), tmp_path)
    found = bench.timed({"waits": lambda: time.sleep(0.1), "works": lambda: torch.randn(500, 500).svd()}, 3)
    assert 0 <= found["waits"] < 50 < 100 * found["works"]
    assert found["waits"] < found["works"]


def test_multiples():
    assert multiple("x30") == 30
    assert times("x30", 1 / 3) == "x10"
    for wrong in ("3", "x0", "x-1", "xnan", "x", "xinf"):
        with pytest.raises(ConfigError, match="must be a multiple"):
            multiple(wrong)


def test_choices_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="say which models"):
        Choice(data="folder:x")
    with pytest.raises(ConfigError, match="scale is small or full"):
        Choice(scale="huge")
    with pytest.raises(ConfigError, match="images must be at least 1"):
        Choice(images=0)
    with pytest.raises(ConfigError, match="no file of learning rates"):
        rates_from(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"chosen": [{"model": 1}]}')
    with pytest.raises(ConfigError, match="is not a file that"):
        rates_from(tmp_path / "other.json")


def test_a_sweep_gives_each_value_its_own_streams(tmp_path):
    """As fleets, what differs in a hyper-parameter gives what it would give alone."""
    where = place(tmp_path)
    # the first step is one image's: a region of any confidence teaches
    trials = [trial(f"{lam:g}", "recap", "limited", lam=lam, lr="x100000", threshold=2.0) for lam in (0.0, 4.0)]
    together = Bench(choice(where, images=12, kinds=["fog"]), tmp_path / "together")
    with together.at_work():
        settings = {(model, together.choice.data): together.setting(model) for model in together.models}
        found = together.streams(trials, ["fog"], images=12)
        cells = [result["cell"] for _, _, result in found]
        assert [result["measured"]["fleet"] for _, _, result in found] == [2, 2]
    assert [cell["settings"]["lam"] for cell in cells] == [0.0, 4.0]
    for one, (_, _, result) in zip(trials, found, strict=True):
        alone = Bench(choice(where, images=12, kinds=["fog"]), tmp_path / f"alone-{one.label}")
        with alone.at_work():
            ((_, _, same),) = alone.streams([one], ["fog"], images=12)
        assert same["measured"]["fleet"] == 1
        assert same["result"]["nll"] == pytest.approx(result["result"]["nll"], rel=1e-4)
    assert found[0][2]["result"]["nll"] != found[1][2]["result"]["nll"]
    assert len(settings) == 1


def test_a_stream_is_looked_at_from_start_to_end(tmp_path):
    where = place(tmp_path)
    bench = Bench(choice(where, kinds=["fog"]), tmp_path / "run")
    seen = []
    with bench.at_work():
        bench.follow(trial("tent", "tent", "limited"), where["models"][0], "fog", images=10, seed=0, points=4,
                     look=lambda adapter, count: seen.append((count, adapter.report.seen)))  # fmt: skip
    assert seen == [(0, 0), (2, 2), (5, 5), (8, 8), (10, 10)]
    network = Network(bench.setting(where["models"][0]).model.network)
    assert network.classes == 3


def test_the_best_of_a_column_is_bold():
    grid = Grid("t", ("", "a", "b"), (("x", "1.5 ± 0.2", "—"), ("y", "−2.0", "3.0")), best=(1, 2))
    assert grid.markdown().splitlines()[-2:] == ["| x | **1.5 ± 0.2** | — |", "| y | −2.0 | 3.0 |"]
    assert "<b>1.5 ± 0.2</b>" in grid.html()
