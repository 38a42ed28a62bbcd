"""The paper's lemmas and propositions against Monte Carlo, and the fast path against the plain formula."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import regional
from torch import Tensor

from wildtta.core import Neighbourhood, Prediction, entropy, regional_entropy, regional_instability
from wildtta.core.regional import _widest

SAMPLES = 20_000


class Head:
    """A random head, features and region, in float64."""

    def __init__(self, seed: int, classes: int, features: int, scale: float, spread: float) -> None:
        random = torch.Generator().manual_seed(seed)
        options = {"generator": random, "dtype": torch.float64}
        self.weight = scale * torch.randn(classes, features, **options)
        self.bias = torch.randn(classes, **options)
        self.variance = spread * torch.rand(features, **options)
        self.feature = torch.randn(4, features, **options)
        self.noise = torch.randn(SAMPLES, features, **options)

    def logits(self, feature: Tensor) -> Tensor:
        return feature @ self.weight.T + self.bias

    def prediction(self, feature: Tensor | None = None) -> Prediction:
        feature = self.feature if feature is None else feature
        return Prediction(self.logits(feature), feature, feature, torch.arange(len(feature)), lambda _: None)

    def around(self, tau: float = 1.0) -> Neighbourhood:
        return Neighbourhood(self.weight, self.variance, tau)

    def neighbours(self, index: int) -> Tensor:
        """Logits of features drawn from the region of one feature."""
        return self.logits(self.feature[index] + self.noise * self.variance.sqrt())


heads = st.builds(
    Head,
    seed=st.integers(0, 2**31),
    classes=st.integers(2, 12),
    features=st.integers(1, 8),
    scale=st.floats(0.1, 2.0),
    spread=st.floats(0.01, 1.0),
)


@settings(max_examples=60, deadline=None)
@given(head=heads)
def test_lemma_4_1_entropy_under_finite_sampling(head: Head) -> None:
    logs = head.neighbours(0)[:200].log_softmax(-1)
    left = -(logs.exp() * logs).sum()
    right = -(logs.exp().mean(0) * logs.sum(0)).sum()
    assert left <= right + 1e-9 * right.abs()


@settings(max_examples=60, deadline=None)
@given(head=heads)
def test_lemma_4_2_bounds_the_negative_log_likelihood(head: Head) -> None:
    """S_j − u_j is the lemma's right-hand side for class j."""
    prediction = head.prediction()
    bound = head.around()(prediction) - prediction.log_probabilities
    for index in range(len(head.feature)):
        sampled = -head.neighbours(index).log_softmax(-1)
        error = 5 * sampled.std(0) / math.sqrt(SAMPLES)
        assert (sampled.mean(0) <= bound[index] + error + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(head=heads)
def test_proposition_4_4_bounds_the_instability(head: Head) -> None:
    prediction = head.prediction()
    bound = regional_instability(head.around())(prediction)
    for index in range(len(head.feature)):
        u = prediction.log_probabilities[index]
        divergence = (u.exp() * (u - head.neighbours(index).log_softmax(-1))).sum(-1)
        error = 5 * divergence.std() / math.sqrt(SAMPLES)
        assert divergence.mean() <= bound[index] + error + 1e-9


@settings(max_examples=60, deadline=None)
@given(head=heads)
def test_proposition_4_3_equals_its_definition(head: Head) -> None:
    """The right-hand side as the paper writes it."""
    prediction = head.prediction()
    found = regional_entropy(head.around())(prediction)
    expected, _ = regional(prediction.logits, head.weight, head.variance)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(head=heads)
def test_the_mean_prediction_is_a_ratio_of_expectations(head: Head) -> None:
    """p̄_j = E[exp(l̃_j)] / Σ E[exp(l̃_k)], the expectations by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(values) for values in numpy.polynomial.hermite.hermgauss(120))
    spread = (2 * (head.weight**2 * head.variance).sum(1)).sqrt()
    assume(spread.max() < 6)
    moments = (weights * (head.prediction().logits[..., None] + spread[:, None] * nodes).exp()).sum(-1)
    expected = moments / moments.sum(-1, keepdim=True)
    found = (head.prediction().logits + head.around().half_norms).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(head=heads, tau=st.floats(0.01, 4.0))
def test_the_fast_path_equals_the_plain_formula(head: Head, tau: float) -> None:
    prediction, around = head.prediction(), head.around(tau)
    assert not around.exact
    entropy_, instability = regional(prediction.logits, head.weight, tau * head.variance)
    torch.testing.assert_close(regional_entropy(around)(prediction), entropy_, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(regional_instability(around)(prediction), instability, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(head=heads)
def test_as_tau_goes_to_zero(head: Head) -> None:
    """The region shrinks to its centre: L_RE → H and L_RI → 0."""
    prediction = head.prediction()
    around = head.around(1e-9)
    torch.testing.assert_close(regional_entropy(around)(prediction), entropy()(prediction), rtol=1e-5, atol=1e-5)
    assert (regional_instability(around)(prediction).abs() < 1e-5).all()


@settings(max_examples=30, deadline=None)
@given(head=heads, tau=st.floats(0.1, 2.0))
def test_both_grow_with_the_region(head: Head, tau: float) -> None:
    prediction = head.prediction()
    smaller, larger = head.around(tau), head.around(1.5 * tau)
    assert (regional_instability(larger)(prediction) >= regional_instability(smaller)(prediction) - 1e-12).all()
    assert (regional_instability(smaller)(prediction) >= -1e-12).all()


def huge(dtype: torch.dtype) -> Head:
    head = Head(3, 40, 16, 4.0, 1.0)
    for name, value in vars(head).items():
        setattr(head, name, value.to(dtype))
    return head


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exact_path_takes_over_where_the_product_would_underflow(dtype: torch.dtype) -> None:
    """Around the limit both paths agree; beyond it the exact one stays right where the product gives infinities."""
    head = huge(dtype)
    reach = head.around(1.0)
    widest = (reach.factor if reach.exact else reach.shift).max().item()
    limit = _widest(dtype, 40)
    within, beyond = head.around(0.98 * limit / widest), head.around(1.02 * limit / widest)
    assert (within.exact, beyond.exact) == (False, True)
    for around in (within, beyond, head.around(100 * limit / widest)):
        expected = plain_log_sums(head, around.tau)
        found = around.log_sums(head.prediction().log_probabilities)
        tolerance = 2e-5 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def plain_log_sums(head: Head, tau: float) -> Tensor:
    weight = head.weight.double()
    half = 0.5 * ((weight[:, None] - weight[None]) ** 2 * (tau * head.variance.double())).sum(-1)
    return (head.prediction().log_probabilities.double()[:, None] + half[None]).logsumexp(-1)


def test_extreme_logits_stay_finite() -> None:
    """Confident and hopeless predictions, in float32, on both paths; gradients too."""
    head = huge(torch.float32)
    for tau in (1e-3, 1.2, 1e3):
        around = head.around(tau)
        for size in (0.0, 1.0, 100.0, 1e4):
            feature = (size * head.feature).requires_grad_()
            prediction = head.prediction(feature)
            value = regional_entropy(around)(prediction) + regional_instability(around)(prediction)
            (gradient,) = torch.autograd.grad(value.sum(), feature)
            assert torch.isfinite(value).all()
            assert torch.isfinite(gradient).all()
            assert (value >= -1e-4 * (1 + value.abs())).all()


@pytest.mark.parametrize("tau", [0.5, 500.0], ids=["product", "exact"])
def test_gradients(tau: float) -> None:
    head = Head(1, 7, 5, 1.5, 1.0)
    around = head.around(tau)
    assert around.exact == (tau == 500.0)

    def measures(feature: Tensor) -> tuple[Tensor, Tensor]:
        prediction = head.prediction(feature)
        return regional_entropy(around)(prediction), regional_instability(around)(prediction)

    assert torch.autograd.gradcheck(measures, (head.feature.clone().requires_grad_(),))


def test_exact_path_in_blocks_and_under_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(1, 9, 5, 1.5, 1.0)
    around = head.around(500.0)
    u = head.prediction().log_probabilities
    whole = around.log_sums(u)
    stacked = torch.func.vmap(around.log_sums)(torch.stack([u, u.flip(0)]))
    monkeypatch.setattr("wildtta.core.regional._BLOCK", 40)
    assert torch.equal(around.log_sums(u), whole)
    assert torch.equal(stacked, torch.stack([whole, whole.flip(0)]))
    torch.testing.assert_close(
        Neighbourhood(head.weight, head.variance, 500.0).factor, around.factor, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("scale", [0.03, 0.1, 0.3])
def test_what_tf32_does_to_the_product(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 cuts the operands to 10 bits after the first; none of the sums moves by more than 2⁻⁹, and it does move."""

    def cut(values: Tensor) -> Tensor:
        return (values.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)

    random = torch.Generator().manual_seed(0)
    around = Neighbourhood(scale * torch.randn(500, 64, generator=random), torch.full((64,), 0.5), 1.2)
    assert not around.exact
    u = (3 * torch.randn(16, 500, generator=random)).log_softmax(-1)
    expected = around.log_sums(u)
    linear = torch.nn.functional.linear
    monkeypatch.setattr("wildtta.core.regional.F.linear", lambda one, other: linear(cut(one), cut(other)))
    off = (around.log_sums(u) - expected).abs().max()
    assert 1e-5 < off < 2**-9


def test_the_constants_of_a_half_precision_head_are_wide() -> None:
    head = huge(torch.float32)
    narrow = Neighbourhood(head.weight.bfloat16(), head.variance, 0.01)
    assert {narrow.factor.dtype, narrow.shift.dtype, narrow.half_norms.dtype} == {torch.float32}
    torch.testing.assert_close(narrow.shift, Neighbourhood(head.weight.bfloat16().float(), head.variance, 0.01).shift)


def test_no_tensor_of_b_c_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """On neither path does an operation make a tensor as large as B × C × C."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*arguments, **(keywords or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    classes, batch = 600, 32
    head = Head(1, classes, 8, 1.0, 1.0)
    feature = torch.randn(batch, 8, dtype=torch.float64).requires_grad_()
    monkeypatch.setattr("wildtta.core.regional._BLOCK", 1 << 18)
    for tau in (0.1, 1e5):
        with Watch():
            around = head.around(tau)
            prediction = head.prediction(feature)
            (regional_entropy(around)(prediction) + regional_instability(around)(prediction)).sum().backward()
        assert around.exact == (tau == 1e5)
        assert largest <= classes * classes < batch * classes * classes
