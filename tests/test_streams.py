"""Scenarios: the published label-shift stream bit for bit, and what each order promises."""

from __future__ import annotations

import hashlib
import math
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wildtta.streams import SCENARIOS, Stream, orders, scenario

PUBLISHED_RATIOS = [1, 1000, 2000, 3000, 4000, 5000, 500000]
ONE_BY_ONE = ["mild", "limited", "continual", "correlated"]
few = settings(max_examples=40, deadline=None)  # small orders, but many shapes of them


def plain_recipe(seed, ratio, counts, length):
    """The published recipe, written out with the global generators: (class, number within the class) of each moment."""
    classes = len(counts)
    class_order = None
    random.seed(seed)
    for listed in PUBLISHED_RATIOS:
        shuffled = list(range(classes))
        random.shuffle(shuffled)
        class_order = shuffled
        if listed == ratio:
            break
    np.random.seed(2022)
    minor = 1 / (ratio + classes - 1)
    major = ratio * minor
    drawn = []
    for turn, likely in enumerate(class_order):
        q = [minor] * classes
        q[likely] = major
        # length / classes moments each; where that is not whole, as even as can be
        for _ in range((turn + 1) * length // classes - turn * length // classes):
            drawn.append(int(np.random.choice(classes, 1, p=q)[0]))
    stream = [(-1, -1)] * length
    for i in range(classes):
        moments = [moment for moment, c in enumerate(drawn) if c == i]
        if moments:
            numbers = np.random.randint(0, counts[i], len(moments))
            for moment, number in zip(moments, numbers, strict=True):
                stream[moment] = (i, int(number))
    return stream


def plain_index(labels, seed, ratio, length):
    """The images of `plain_recipe`: the n-th of class i in index order."""
    present = labels.unique().tolist()
    images = [(labels == c).nonzero().flatten().tolist() for c in present]
    return [images[i][n] for i, n in plain_recipe(seed, ratio, [len(mine) for mine in images], length)]


@pytest.fixture(autouse=True)
def _generators():
    """The plain recipe uses the global generators; leave them as they were."""
    before, numpy_before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before)
    np.random.set_state(numpy_before)


def sha256(index):
    return hashlib.sha256(index.numpy().astype("<i8").tobytes()).hexdigest()


def balanced(classes, each, seed=0):
    """Labels of `each` images a class, in no order."""
    labels = torch.arange(classes).repeat_interleave(each)
    return labels[torch.from_numpy(np.random.RandomState(seed).permutation(len(labels)))]


def changes(labels):
    """How often the class differs from that of the moment before."""
    return int((labels[1:] != labels[:-1]).sum())


labels_of_a_domain = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(torch.tensor)
seeds = st.integers(0, 2**32 - 1)


# -- the published label shift -----------------------------------------------------------------------------------------


def test_the_published_stream_of_seed_2023_at_infinity():
    labels = torch.arange(1000).repeat_interleave(50)
    stream = scenario("shift").order([labels], 2023, ratio="inf")
    assert len(stream) == 100_000
    assert stream.index.tolist() == plain_index(labels, 2023, 500000, 100_000)
    assert sha256(stream.index) == "4c53bb0caa8252f855f8dba76fbc0dd812ff484789e6c418c774bb4d654bda4b"
    assert 43_000 < len(stream.index.unique()) < 43_700  # with replacement: 1 − e⁻² of 50,000 is 43,233


@pytest.mark.parametrize("ratio", PUBLISHED_RATIOS)
@pytest.mark.parametrize("seed", [0, 2022])
def test_every_published_ratio_takes_its_own_shuffle(ratio, seed):
    labels = torch.arange(20).repeat_interleave(10)
    stream = scenario("shift").order([labels], seed, ratio=ratio)
    assert stream.index.tolist() == plain_index(labels, seed, ratio, 400)


def test_the_shuffles_of_the_ratios_differ():
    labels = torch.arange(20).repeat_interleave(10)
    first = {
        r: labels[scenario("shift").order([labels], 0, ratio=r).index][::20].tolist() for r in (4000, 5000, 500000)
    }
    assert first[4000] != first[5000] != first[500000] != first[4000]


def test_a_ratio_between_takes_the_last_shuffle():
    labels = balanced(20, 10)
    assert scenario("shift").order([labels], 3, ratio=42).index.tolist() == plain_index(labels, 3, 42, 400)


@few
@given(
    labels=labels_of_a_domain,
    seed=seeds,
    ratio=st.sampled_from([*PUBLISHED_RATIOS, 1.5, 77]),
    length=st.none() | st.integers(1, 90),
)
def test_any_class_counts_order_and_length_agree_with_the_plain_recipe(labels, seed, ratio, length):
    """Classes of unequal size, absent classes, images in any order, fewer moments than classes."""
    stream = scenario("shift").order([labels], seed, ratio=ratio, length=length)
    expected = plain_index(labels, seed, ratio, length or 2 * len(labels))
    assert stream.index.tolist() == expected
    assert stream.domain.tolist() == [0] * len(expected)


def test_infinity_has_many_names():
    labels = balanced(5, 4)
    named = [scenario("shift").order([labels], 1, ratio=r).index for r in ("inf", "Infinity", "∞", math.inf, 500000)]
    assert all(torch.equal(index, named[0]) for index in [*named, scenario("shift").order([labels], 1).index])


def test_without_a_reset_the_recipe_goes_on():
    """The first kind has the stream it has alone, and each later kind another class order."""
    labels = balanced(30, 10)
    alone = scenario("shift").order([labels], 5).index
    through = scenario("shift").order([labels] * 3, 5)
    assert through.domain.tolist() == [0] * 600 + [1] * 600 + [2] * 600
    first, second, third = through.index.split(600)
    assert torch.equal(first, alone)
    assert not torch.equal(labels[first], labels[second])
    assert not torch.equal(labels[second], labels[third])


def test_at_ratio_1_the_classes_are_balanced_all_along():
    labels = balanced(10, 200)
    for repeats in (True, False):
        shown = labels[scenario("shift").order([labels], 0, ratio=1, repeats=repeats).index]
        for part in shown.split(500):
            counts = part.bincount(minlength=10)
            # 50 expected of 500; five standard deviations of a binomial are 34
            assert (counts - 50).abs().max() < 34


@pytest.mark.parametrize("repeats", [True, False])
def test_at_infinity_the_classes_come_in_runs(repeats):
    labels = balanced(40, 25)
    shown = labels[scenario("shift").order([labels], 0, repeats=repeats).index]
    assert shown.unique_consecutive().unique().numel() == 40
    # 39 changes between the classes; a stray image (one in 12,800 moments) makes two more
    assert 39 <= changes(shown) <= 43


@pytest.mark.parametrize("ratio", [3, 20, 200])
def test_without_repeats_a_class_is_as_likely_in_its_time_as_in_the_recipe(ratio):
    classes, each = 10, 400
    labels = balanced(classes, each)
    with_repeats = labels[scenario("shift").order([labels], 8, ratio=ratio, length=classes * each).index]
    without = labels[scenario("shift").order([labels], 8, ratio=ratio, repeats=False).index]
    likely = [part.mode().values.item() for part in with_repeats.split(each)]
    hits = torch.stack([(part == c).sum() for part, c in zip(without.split(each), likely, strict=True)])
    probability = ratio / (ratio + classes - 1)
    # 4,000 moments: five standard deviations of their share (their dependence makes it narrower still)
    assert abs(hits.sum().item() / len(labels) - probability) < 5 * math.sqrt(probability * (1 - probability) / 4000)
    assert sorted(likely) == list(range(classes))


# -- every image once, the same for the same seed ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ONE_BY_ONE, "mixed", "shift"])
def test_every_image_exactly_once(name):
    options = {"repeats": False} if name == "shift" else {}

    @few
    @given(labels=st.lists(labels_of_a_domain, min_size=1, max_size=4), seed=seeds)
    def check(labels, seed):
        stream = scenario(name).order(labels, seed, **options)
        assert stream.domain.dtype == stream.index.dtype == torch.int64
        found = sorted(zip(stream.domain.tolist(), stream.index.tolist(), strict=True))
        assert found == [(place, number) for place, mine in enumerate(labels) for number in range(len(mine))]
        if name != "mixed":
            assert stream.domain.tolist() == sorted(stream.domain.tolist())
        again = scenario(name).order(labels, seed, **options)
        assert torch.equal(stream.domain, again.domain)
        assert torch.equal(stream.index, again.index)

    check()


def domains_for(name, kinds):
    return scenario(name).streams(kinds, 3, reset=False)[0]


@pytest.mark.parametrize("name", SCENARIOS)
def test_other_seeds_and_other_kinds_have_other_orders(name):
    labels = balanced(10, 20)
    domains = domains_for(name, ["fog", "snow"])
    first, other = (scenario(name).order([labels] * len(domains), seed, domains=domains) for seed in (0, 1))
    assert not torch.equal(first.index, other.index)
    kind = torch.tensor([["fog", "snow"].index(kind) for kind, _ in domains])[first.domain]
    assert not torch.equal(first.index[kind == 0], first.index[kind == 1])


def test_the_global_generators_are_left_alone():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    for name in SCENARIOS:
        domains = domains_for(name, ["fog"])
        scenario(name).order([balanced(4, 5)] * len(domains), 0, domains=domains)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_orders_stay_what_they_are():
    """A seed must mean the same stream with every version of this library and of numpy."""
    labels = [torch.arange(6).repeat(2), torch.arange(6).repeat(2)]
    expected = {
        "mild": [11, 4, 0, 2, 3, 7, 1, 6, 8, 10, 5, 9, 20, 23, 17, 21, 16, 22, 13, 12, 15, 14, 18, 19],
        "mixed": [10, 3, 0, 11, 5, 2, 20, 18, 15, 9, 17, 8, 6, 19, 4, 13, 21, 22, 23, 7, 12, 1, 16, 14],
        "correlated": [0, 6, 1, 11, 5, 4, 10, 7, 2, 8, 3, 9, 20, 14, 13, 19, 23, 17, 12, 18, 21, 15, 16, 22],
        "shift": [0, 5, 7, 11, 9, 3, 6, 8, 10, 1, 2, 4, 22, 18, 20, 12, 23, 19, 13, 14, 15, 17, 16, 21],
    }
    for name, index in expected.items():
        options = {"repeats": False, "ratio": 2} if name == "shift" else {}
        stream = scenario(name).order(labels, 0, **options)
        assert (12 * stream.domain + stream.index).tolist() == index, name


@pytest.mark.parametrize("name", [*ONE_BY_ONE, "mixed", "shift", "gradual"])
def test_a_length_shows_the_same_part_in_all_scenarios(name):
    labels = balanced(10, 20)
    options = {"repeats": False} if name == "shift" else {}
    domains = domains_for(name, ["fog", "snow"])
    stream = scenario(name).order([labels] * len(domains), 4, domains=domains, length=30, **options)
    kind = torch.tensor([["fog", "snow"].index(kind) for kind, _ in domains])[stream.domain]
    for place in (0, 1):
        reference = scenario("mild").order([labels] * 2, 4)
        assert sorted(stream.index[kind == place]) == sorted(reference.index[reference.domain == place][:30])
    assert len(stream) == 60


# -- each scenario -----------------------------------------------------------------------------------------------------


def test_continual_is_mild_without_a_reset_and_limited_is_mild_one_at_a_time():
    labels = [balanced(5, 10), balanced(4, 9)]
    mild, continual, limited = (scenario(name).order(labels, 7) for name in ("mild", "continual", "limited"))
    for other in (continual, limited):
        assert torch.equal(mild.domain, other.domain)
        assert torch.equal(mild.index, other.index)
    assert (mild.batch, continual.batch, limited.batch) == (64, 64, 1)
    alone = scenario("mild").order(labels[:1], 7).index
    assert torch.equal(mild.index[:50], alone)


def test_shuffled_means_shuffled():
    labels = torch.arange(10).repeat_interleave(100)
    shown = labels[scenario("mild").order([labels], 0).index]
    assert abs(changes(shown) - 900) < 50  # expected 999 · 900/999; five standard deviations are 47


def test_mixed_mixes_the_domains_all_along():
    labels = [balanced(10, 40)] * 5
    stream = scenario("mixed").order(labels, 0)
    for domains, _ in stream.batches():
        if len(domains) == 64:
            assert domains.bincount(minlength=5).min() >= 2  # about 12.8 expected
            assert domains.bincount(minlength=5).max() <= 32


def test_gradual_rises_and_falls_with_every_image_once():
    gradual = scenario("gradual")
    (domains,) = gradual.streams(["fog", "snow"], 5)
    labels = balanced(9, 10)
    stream = gradual.order([labels] * len(domains), 3, domains=domains)
    path = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    shown = [domains[place] for place in stream.domain.tolist()]
    assert shown == [(kind, severity) for kind in ("fog", "snow") for severity in path for _ in range(10)]
    assert [sorted(part.tolist()) for part in stream.index.split(90)] == [list(range(90))] * 2
    continual = scenario("continual").order([labels] * 2, 3)
    assert torch.equal(stream.index, continual.index)  # so that the two differ in severity alone


@few
@given(labels=labels_of_a_domain, seed=seeds, highest=st.integers(1, 5), order=st.randoms(use_true_random=False))
def test_gradual_finds_its_domains_in_any_order(labels, seed, highest, order):
    domains = list(scenario("gradual").streams(["fog"], highest)[0])
    order.shuffle(domains)
    stream = scenario("gradual").order([labels] * highest, seed, domains=domains)
    severities = [domains[place][1] for place in stream.domain.tolist()]
    steps = 2 * highest - 1
    sizes = torch.tensor([len(part) for part in torch.arange(len(labels)).tensor_split(steps)])
    path = torch.tensor([*range(1, highest + 1), *range(highest - 1, 0, -1)])
    assert severities == path.repeat_interleave(sizes).tolist()
    assert sorted(stream.index.tolist()) == list(range(len(labels)))


def classes_in_a_window(labels, width=50):
    return float(torch.tensor([len(part.unique()) for part in labels.split(width)]).float().mean())


def test_the_smaller_the_concentration_the_more_correlated():
    labels = balanced(100, 20)
    concentrations = (1e-6, 0.01, 0.1, 1, 10)
    seen = [
        sum(
            classes_in_a_window(labels[scenario("correlated").order([labels], seed, concentration=c).index])
            for seed in range(5)
        )
        for c in concentrations
    ]
    assert seen == sorted(seen)
    assert seen[-1] > 5 * seen[0]
    shuffled = sum(classes_in_a_window(labels[scenario("mild").order([labels], seed).index]) for seed in range(5))
    # even shares are as good as a shuffle; five streams of 2,000 images leave 1 % of noise, and unevenness a little more
    assert abs(seen[-1] / shuffled - 1) < 0.05


def test_at_the_smallest_concentration_each_class_is_one_run():
    labels = balanced(30, 20)
    assert changes(labels[scenario("correlated").order([labels], 0, concentration=1e-6).index]) == 29


def test_a_single_slot_is_one_run_a_class_whatever_the_concentration():
    labels = balanced(30, 20)
    assert changes(labels[scenario("correlated").order([labels], 0, concentration=1000, slots=1).index]) == 29


@pytest.mark.parametrize("concentration", [1e-6, 0.05, 0.5, 4.0])
def test_shares_follow_the_dirichlet_distribution(concentration):
    slots, draws = 5, 40_000
    shares = orders._dirichlet(draws, slots, concentration, np.random.RandomState(0))
    assert np.isfinite(shares).all()
    assert np.allclose(shares.sum(axis=1), 1)
    mean, variance = 1 / slots, (slots - 1) / (slots**2 * (slots * concentration + 1))
    assert np.abs(shares.mean(axis=0) - mean).max() < 5 * math.sqrt(variance / draws)  # five standard errors
    assert np.abs(shares.var(axis=0) / variance - 1).max() < 0.05  # standard error below 1 %


# -- streams and resets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mild", "limited", "shift", "continual", "correlated"])
def test_a_reset_is_one_stream_a_kind(name):
    kinds = ["fog", "snow", "clean"]
    domains = (("fog", 4), ("snow", 4), ("clean", 0))
    assert scenario(name).streams(kinds, 4, reset=True) == [(domain,) for domain in domains]
    assert scenario(name).streams(kinds, 4, reset=False) == [domains]
    assert scenario(name).streams(kinds, 4) == scenario(name).streams(kinds, 4, reset=name != "continual")


def test_streams_of_gradual_and_mixed():
    gradual, mixed = scenario("gradual"), scenario("mixed")
    fog, snow = (("fog", 1), ("fog", 2)), (("snow", 1), ("snow", 2))
    assert gradual.streams(["fog", "snow"], 2, reset=True) == [fog, snow]
    assert gradual.streams(["fog", "snow"], 2) == [fog + snow]
    assert mixed.streams(["fog", "snow"], 2) == [(("fog", 2), ("snow", 2))]
    assert mixed.streams(["fog"], 2, reset=True) == [(("fog", 2),)]


def test_the_registry():
    assert set(SCENARIOS) == {"mild", "limited", "mixed", "shift", "continual", "gradual", "correlated"}
    assert {name for name, one in SCENARIOS.items() if one.wild} == {"limited", "mixed", "shift"}
    for name, one in SCENARIOS.items():
        assert one.name == name
        assert one.settings() == {option.name: option.default for option in one.options}
        assert pickle.loads(pickle.dumps(one)) == one


def test_batches_are_the_stream_in_order():
    stream = Stream(torch.zeros(10, dtype=torch.int64), torch.arange(10), 4)
    assert len(stream) == 10
    assert [index.tolist() for _, index in stream.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(domain) for domain, _ in stream.batches()] == [4, 4, 2]
    assert scenario("mild").order([balanced(2, 5)], 0, batch=3).batch == 3


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_unknown_scenario():
    with pytest.raises(ValueError, match="unknown scenario 'shifts'; did you mean 'shift'"):
        scenario("shifts")
    with pytest.raises(ValueError, match="unknown scenario 'xyz'; choose from mild, limited"):
        scenario("xyz")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("shift", {"ration": 2}, TypeError, "'shift' has no option 'ration'; did you mean 'ratio'"),
        ("mild", {"ratio": 2}, TypeError, "'mild' has no option 'ratio'; choose from length"),
        ("shift", {"ratio": 0.5}, ValueError, r'ratio must be from 1 \(balanced\) to 500000, or "inf", not 0.5'),
        ("shift", {"ratio": math.nan}, ValueError, "not nan"),
        ("shift", {"ratio": 10**400}, ValueError, "ratio must be from 1"),
        ("shift", {"ratio": "many"}, TypeError, "ratio must be a number .*not 'many'"),
        ("shift", {"ratio": True}, TypeError, "ratio must be a number .*not True"),
        ("shift", {"ratio": np.ones(2)}, TypeError, "ratio must be a number .*ndarray"),
        ("shift", {"repeats": "no"}, TypeError, "repeats must be True .*or False .*not 'no'"),
        ("shift", {"length": 0}, ValueError, "length must be at least 1, not 0"),
        ("shift", {"length": 2.5}, TypeError, "length must be a whole number at least 1, not 2.5"),
        ("shift", {"length": 21, "repeats": False}, ValueError, "length must be at most .* has 20 and length is 21"),
        ("mild", {"length": 21}, ValueError, "length must be at most .* has 20 and length is 21; leave it out"),
        ("correlated", {"concentration": 0}, ValueError, "concentration must be finite and from 1e-06 .*not 0"),
        ("correlated", {"concentration": math.inf}, ValueError, "not inf"),
        ("correlated", {"concentration": "low"}, TypeError, "concentration must be a number .*not 'low'"),
        ("correlated", {"slots": 0}, ValueError, "slots must be at least 1, not 0"),
        ("correlated", {"slots": 21}, ValueError, "slots must be at most .*20, not 21"),
        ("mild", {"batch": 0}, ValueError, "batch must be at least 1, not 0"),
        ("mild", {"batch": True}, TypeError, "batch must be a whole number"),
    ],
)
def test_wrong_options(name, options, error, message):
    with pytest.raises(error, match=message):
        scenario(name).order([balanced(4, 5)], 0, **options)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.arange(3), TypeError, r"not one tensor; write \[labels\]"),
        ([], ValueError, "labels is empty"),
        ([torch.arange(3), torch.arange(3.0)], TypeError, r"labels\[1\] must be an int64 tensor, not torch.float32"),
        ([[0, 1]], TypeError, r"labels\[0\] must be an int64 tensor, not list"),
        ([torch.zeros(2, 2, dtype=torch.int64)], ValueError, r"labels\[0\] must have one axis.* shape \(2, 2\)"),
        ([torch.zeros(0, dtype=torch.int64)], ValueError, r"labels\[0\] is empty"),
    ],
)
def test_wrong_labels(labels, error, message):
    with pytest.raises(error, match=message):
        scenario("mild").order(labels, 0)


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [(-1, ValueError, "seed must be from 0 to 4294967295, not -1"), (1.0, TypeError, "seed must be a whole number")],
)
def test_wrong_seeds(seed, error, message):
    with pytest.raises(error, match=message):
        scenario("mild").order([balanced(2, 2)], seed)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("mild", (["fog"], 6), ValueError, "severity must be from 0 to 5, not 6"),
        ("mild", (["fog"], "5"), TypeError, "severity must be a whole number from 0 to 5, not '5'"),
        ("mild", ([], 5), ValueError, "kinds is empty"),
        ("mild", ("fog", 5), TypeError, r"not the string 'fog'; write \['fog'\]"),
        ("mild", (["fog", "snow", "fog"], 5), ValueError, "kinds holds 'fog' more than once"),
        ("mild", (["fog"], 5, "yes"), TypeError, "reset must be True, False or None .*not 'yes'"),
        ("mixed", (["fog", "snow"], 5, True), ValueError, "shuffles its 2 kinds into one stream.*take 'mild'"),
        ("gradual", (["fog", "clean"], 5), ValueError, "needs severities to go through, but 'clean' has none"),
        ("gradual", (["imagenet-r"], 0), ValueError, "'imagenet-r' has none"),
    ],
)
def test_wrong_streams(name, arguments, error, message):
    with pytest.raises(error, match=message):
        scenario(name).streams(*arguments)


FOG = [("fog", 1), ("fog", 2)]


@pytest.mark.parametrize(
    ("labels", "domains", "error", "message"),
    [
        (
            [balanced(2, 9)] * 2,
            None,
            TypeError,
            "needs to know the kind and the severity of each domain; give domains=",
        ),
        ([balanced(2, 9)] * 3, FOG, ValueError, "2 domains were given with the labels of 3"),
        ([balanced(2, 9)] * 2, [("fog", 2), ("fog", 3)], ValueError, r"severities 1, 2, ... of 'fog'.* given \[2, 3\]"),
        ([balanced(2, 9)] * 2, [("fog", 1), ("fog", 1)], ValueError, r"\('fog', 1\) more than once"),
        ([balanced(2, 9), balanced(2, 8)], FOG, ValueError, r"of severity 2 differ .*\(16 and 18 images\)"),
    ],
)
def test_wrong_domains_of_gradual(labels, domains, error, message):
    with pytest.raises(error, match=message):
        scenario("gradual").order(labels, 0, domains=domains)
