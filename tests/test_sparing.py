"""The sparing runner against the plain one: the same numbers, from less work."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from cases import IMPOSSIBLE, STREAMING, adapter, settings
from networks import images, make
from torch import Tensor, nn

import wildtta
from wildtta.core import everything, go_back_on_collapse, measure, tree
from wildtta.core.method import Method
from wildtta.core.updates import sgd, sharpness_aware
from wildtta.runners.costs import Costs
from wildtta.runners.sparing import Sparing

STEPS = 20
WAYS: dict[str, Callable[[int], bool]] = {
    "whole": lambda turn: True,
    "part": lambda turn: False,
    "in turn": lambda turn: turn % 3 != 0,
}


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Force a way for every step, in place of the measured one."""

    def forced(way: str) -> None:
        turns = {"build": 0, "whole": 0}

        def build_first(self: Costs) -> bool:
            turns["build"] += 1
            return WAYS[way](turns["build"])

        def whole_is_cheaper(self: Costs, selected: int) -> bool:
            turns["whole"] += 1
            return way == "whole" or turns["whole"] % 2 == 0

        monkeypatch.setattr(Costs, "build_first", build_first)
        monkeypatch.setattr(Costs, "whole_is_cheaper", whole_is_cheaper)

    return forced


FEWER: dict[str, dict[str, float]] = {"recap": {"threshold": 0.9}, "recap+eta": {"lr": 0.001}}


def pair(method: str, kind: str, **others: object) -> list[wildtta.Adapter]:
    others = FEWER.get(method, {}) | others
    return [adapter(method, kind, runner=runner, **others) for runner in ("eager", "sparing")]


def check(plain: wildtta.Adapter, spare: wildtta.Adapter, batch: Tensor, tolerance: float = 1e-5) -> None:
    """Logits within 1e-5 (of the largest, where that is above 1: float32 has no more digits), and the same selection."""
    expected = plain(batch)
    scale = expected.nan_to_num(0.0).abs().amax().clamp(min=1).item()
    torch.testing.assert_close(spare(batch), expected, rtol=0, atol=tolerance * scale, equal_nan=True)
    assert torch.equal(spare.outcome.mask, plain.outcome.mask)
    for name in ("loss", "objective", "probabilities", "learned", "finite"):
        torch.testing.assert_close(
            getattr(spare.outcome, name), getattr(plain.outcome, name), rtol=1e-4, atol=1e-5, equal_nan=True
        )


def leaves(model: wildtta.Adapter) -> dict[str, Tensor]:
    return tree.flatten(model.state)


@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_it_equals_the_plain_runner(method: str, kind: str, choose: Callable[[str], None]) -> None:
    choose("in turn")
    plain, spare = pair(method, kind, guard="collapse")
    for step in range(STEPS):
        check(plain, spare, images(3 if step % 7 == 6 else 8, step))
    for name, leaf in leaves(plain).items():
        scale = max([1.0, *leaf.double().nan_to_num(0.0).abs().flatten().tolist()])  # as for the logits
        torch.testing.assert_close(leaves(spare)[name], leaf, rtol=1e-4, atol=1e-4 * scale, equal_nan=True, msg=name)
    assert spare.report.updates == plain.report.updates
    if method not in ("source", "tent"):
        assert 0 < plain.report.selected < plain.report.seen
        assert sum(cost.part for cost in spare.runner.costs.values()) > 3
        assert sum(cost.whole for cost in spare.runner.costs.values()) > 3


@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_in_float64_it_is_the_same_but_for_the_last_digits(
    method: str, kind: str, choose: Callable[[str], None]
) -> None:
    choose("part")
    plain, spare = pair(method, kind, dtype=torch.float64)
    for step in range(6):
        check(plain, spare, images(8, step, torch.float64), 1e-11)


@pytest.mark.parametrize(("method", "kind"), [("recap", "gn"), ("sar", "ln"), ("deyo", "gn")])
def test_it_equals_the_plain_runner_with_what_it_measures(method: str, kind: str) -> None:
    plain, spare = pair(method, kind)
    for step in range(STEPS):
        check(plain, spare, images(8, step))


@pytest.mark.parametrize("method", ["source", *STREAMING])
def test_a_network_that_mixes_images_takes_the_plain_way_to_the_bit(method: str) -> None:
    plain, spare = pair(method, "bn")
    for step in range(4):
        assert torch.equal(spare(images(8, step)), plain(images(8, step)))
    for name, leaf in leaves(plain).items():
        assert torch.equal(leaves(spare)[name].nan_to_num(7.0), leaf.nan_to_num(7.0)), name
    assert ("learns nothing" if method == "source" else "BatchNorm") in spare.runner.reason


@pytest.mark.parametrize("way", ["whole", "part"])
@pytest.mark.parametrize("kind", ["gn", "ln"])
@pytest.mark.parametrize("method", IMPOSSIBLE)
def test_with_nothing_selected_the_state_is_the_plain_runners_to_the_bit(
    method: str, kind: str, way: str, choose: Callable[[str], None]
) -> None:
    choose(way)
    plain, spare = pair(method, kind, **IMPOSSIBLE[method])
    with count_backwards() as backwards:
        for step in range(3):
            check(plain, spare, images(8, step))
    assert backwards.of == {"eager": plain.method.backwards * 3, "sparing": 0}
    for name, leaf in leaves(plain).items():
        assert torch.equal(leaves(spare)[name].nan_to_num(7.0), leaf.nan_to_num(7.0)), name


class count_backwards:
    """Counts gradients, by the runner that asked for them."""

    def __enter__(self) -> count_backwards:
        self.of, self.original = {"eager": 0, "sparing": 0}, torch.autograd.grad
        torch.autograd.grad = self
        self.step = Sparing.step
        return self

    def __call__(self, *arguments: object, **keywords: object) -> object:
        import inspect

        spared = any(isinstance(frame.frame.f_locals.get("self"), Sparing) for frame in inspect.stack(context=0))
        self.of["sparing" if spared else "eager"] += 1
        return self.original(*arguments, **keywords)

    def __exit__(self, *problem: object) -> None:
        torch.autograd.grad = self.original


@pytest.mark.parametrize("kind", ["gn", "ln"])
def test_what_is_forwarded(kind: str, choose: Callable[[str], None]) -> None:
    """Images through the network: all once; then, with a gradient, those that are selected."""
    choose("part")
    for method, evaluations in {"recap": 1, "sar": 2, "deyo": 1}.items():
        spare = pair(method, kind)[1]
        spare(images(8, 0))
        seen: list[tuple[int, bool]] = []
        layer = spare.network.module.get_submodule(spare.network.head_name)
        handle = layer.register_forward_hook(
            lambda _, inputs, out, seen=seen: seen.append((len(out), out.requires_grad))
        )
        spare(images(8, 1))
        handle.remove()
        taught = [count for count, gradient in seen if gradient]
        assert [count for count, gradient in seen if not gradient] == [8] * (2 if method == "deyo" else 1)
        assert len(taught) == evaluations
        assert all(0 < count < 8 for count in taught)


def test_a_part_that_does_not_speak_for_single_images_takes_the_plain_way() -> None:
    def against_the_others(prediction: wildtta.Prediction) -> Tensor:
        return (prediction.logits - prediction.logits.mean(0)).square().sum(-1)

    def compose(network: wildtta.Network) -> Method:
        return Method(network.norms(), measure(against_the_others), sgd(0.01))

    spare = wildtta.adapt(make("gn"), compose, runner="sparing")
    plain = wildtta.adapt(make("gn"), compose)
    for step in range(3):
        assert torch.equal(spare(images(8, step)), plain(images(8, step)))
    assert "by_image" in spare.runner.reason
    alone = measure(lambda prediction: prediction.logits.amax(-1), by_image=True)
    assert Method(plain.network.norms(), alone, sgd(0.01)).by_image
    assert not Method(plain.network.norms(), alone + measure(against_the_others), sgd(0.01)).by_image


class Centred(nn.Module):
    """Mixes images where nobody would look."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make("gn")
        self.head, self.inner.head = self.inner.head, nn.Identity()

    def forward(self, batch: Tensor) -> Tensor:
        feature = self.inner(batch)
        return self.head(feature - 0.5 * feature.mean(0))


def test_a_network_that_mixes_images_in_its_own_way_is_found_out(choose: Callable[[str], None]) -> None:
    choose("part")
    network = Centred()
    options = settings("eta", network, margin=0.75)
    plain, spare = (wildtta.adapt(network, "eta", runner=runner, **options) for runner in ("eager", "sparing"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            assert torch.equal(spare(images(8, step)), plain(images(8, step)))
    assert ["depends on the others" in str(warning.message) for warning in caught] == [True]
    assert 0 < plain.report.selected < plain.report.seen
    assert torch.equal(spare.state["stream"]["theta"], plain.state["stream"]["theta"])


@pytest.mark.parametrize(("method", "way"), [("recap", "part"), ("sar", "whole"), ("sar", "part"), ("eata", "part")])
def test_images_that_are_not_finite_are_judged_as_always(method: str, way: str, choose: Callable[[str], None]) -> None:
    choose(way)
    plain, spare = pair(method, "gn", guard=go_back_on_collapse(window=16))
    for step in range(6):
        batch = images(8, step)
        if step == 3:
            batch[2] = torch.nan
        check(plain, spare, batch)
    assert spare.report.skipped == plain.report.skipped == 1


@pytest.mark.parametrize(("way", "passes"), [("whole", 1), ("part", 2)])
def test_images_that_are_not_finite_are_forwarded_again_only_where_nothing_was_kept(
    way: str, passes: int, choose: Callable[[str], None]
) -> None:
    choose(way)
    plain, spare = pair("recap", "gn")
    check(plain, spare, images(8, 0))
    before = {name: leaf.clone() for name, leaf in leaves(spare).items()}
    forwards: list[int] = []
    handle = spare.network.module.register_forward_hook(lambda _, inputs, out: forwards.append(len(out)))
    batch = images(8, 1)
    batch[2] = torch.nan
    check(plain, spare, batch)
    handle.remove()
    assert forwards == [8] * passes
    for name, leaf in leaves(spare).items():
        assert name.startswith("counters") or torch.equal(leaf.nan_to_num(7.0), before[name].nan_to_num(7.0)), name
    assert spare.report.skipped == plain.report.skipped == 1


def test_costs_of_few_shapes_are_remembered() -> None:
    spare = pair("tent", "gn")[1]
    for step in range(100):
        spare.runner._costs(torch.empty(step + 1, 3, 4, 4))
    assert [cost.images for cost in spare.runner.costs.values()] == list(range(37, 101))


def test_an_update_may_evaluate_as_often_as_it_likes(choose: Callable[[str], None]) -> None:
    class twice(sharpness_aware):
        def forward(self, first, evaluate, theta, state):  # type: ignore[no-untyped-def]
            return super().forward(evaluate(theta + 0.001), evaluate, theta, state)

    def compose(network: wildtta.Network) -> Method:
        method = wildtta.methods()["sar"].compose(network, lr=0.002, margin=0.7, recovery=0.0)
        method.update = twice(method.update.base)
        return method

    choose("part")
    plain, spare = (wildtta.adapt(make("gn"), compose, runner=runner) for runner in ("eager", "sparing"))
    for step in range(5):
        check(plain, spare, images(8, step))
    assert spare.report.updates > 0


def test_layouts_autocast_and_copies(choose: Callable[[str], None]) -> None:
    choose("part")
    plain, spare = (model.to(memory_format=torch.channels_last) for model in pair("recap", "gn"))
    for step in range(4):
        check(plain, spare, images(8, step).contiguous(memory_format=torch.channels_last))
    twin = copy.deepcopy(spare)
    check(plain, twin, images(8, 5))
    plain, spare = pair("recap", "gn")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(4):
            torch.testing.assert_close(spare(images(8, step)), plain(images(8, step)), rtol=0, atol=0.1)
    assert spare.runner.reason is None


def test_a_layer_without_influence_is_an_error_here_too() -> None:
    network = make("gn")
    network.aside = nn.GroupNorm(1, 4)
    model = wildtta.adapt(network, "tent", layers=["aside"], head="head", runner="sparing")
    with pytest.raises(ValueError, match="no parameter that adapts reaches the logits"):
        model(images(8))


# -- the choice --------------------------------------------------------------------------------------------------------


def costs(images: int = 64, share: float = 1.0, **seconds: float) -> Costs:
    """Costs as if measured; `teach` is for half of the images."""
    found = Costs(images)
    for _ in range(3):
        for name, value in seconds.items():
            found.note(name, 0.0, value, images // 2 if name == "teach" else 0)
    found.settle(images)
    found.expected = share * images
    return found


def test_the_choice_follows_what_was_measured() -> None:
    usual = {"look": 4.5, "build": 5.0, "back": 7.0, "teach": 6.0}
    assert [costs(share=share, **usual).build_first() for share in (0.0, 0.3, 0.55, 0.8, 1.0)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [costs(**usual).whole_is_cheaper(count) for count in (1, 30, 45, 64)] == [False, False, True, True]
    launches = usual | {"teach": 11.5}  # a small batch takes as long as a large one
    assert costs(share=0.1, **launches).build_first()
    assert not costs(share=0.0, **launches).build_first()
    assert costs(**launches).whole_is_cheaper(2)


def test_what_was_not_measured_is_tried() -> None:
    assert Costs(64).build_first()
    assert Costs(64).whole_is_cheaper(1)
    known = {"build": 5.0, "back": 7.0}
    assert not costs(share=0.3, **known).build_first()
    assert not costs(share=0.0, **known).build_first()
    assert costs(share=1.0, **known).build_first()
    assert not costs(**known).whole_is_cheaper(10)


def test_slow_times_are_forgiven() -> None:
    """A pass that was disturbed does not count as long as there were few, nor once there was a better one."""
    found = costs(share=0.5, build=5.0, back=7.0, look=4.5)
    for _ in range(2):
        found.note("teach", 0.0, 60.0, 32)
        found.settle(32)
        assert not found.whole_is_cheaper(32)
    found.note("teach", 0.0, 60.0, 32)
    found.settle(32)
    assert found.whole_is_cheaper(32)
    found.note("teach", 0.0, 6.0, 32)
    found.settle(32)
    assert not found.whole_is_cheaper(32)


def test_what_was_not_done_for_long_is_measured_anew() -> None:
    found = costs(share=0.5, build=5.0, back=7.0, look=4.5, teach=60.0)
    assert found.whole_is_cheaper(32)
    for step in range(140):
        found.note("build", 0.0, 5.0)
        found.note("back", 0.0, 7.0)
        found.settle(32)
        if step not in (127, 128):
            assert found.whole_is_cheaper(32) == (step < 127)
    found = costs(share=0.2, build=5.0, back=7.0, look=4.5, teach=6.0)
    builds = 0
    for _ in range(300):
        build = found.build_first()
        builds += build
        for name, seconds in {"build": 5.0, "back": 7.0}.items() if build else {"look": 4.5, "teach": 6.0}.items():
            found.note(name, 0.0, seconds, 32 if name == "teach" else 0)
        found.settle(13)
    assert 2 <= builds <= 6


def test_without_a_choice_to_make_there_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spare = adapter("tent", "gn", runner="sparing")
        for step in range(3):
            spare(images(8, step))
    assert isinstance(spare.runner, Sparing)
    assert everything().by_image
    assert all(cost.part == 0 for cost in spare.runner.costs.values())


def test_auto_spares_on_a_cpu() -> None:
    plain, auto = (adapter("recap", "gn", threshold=0.9, runner=runner) for runner in ("eager", "auto"))
    for step in range(6):
        check(plain, auto, images(8, step))
    assert [sum(cost.whole + cost.part for cost in auto.runner.sparing.costs.values())] == [6]
    auto.double()
    assert not auto.runner.sparing.costs
