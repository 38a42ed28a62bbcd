"""Region confidence: closed-form bounds on the entropy and the instability of the predictions around a feature.

The region of a feature z is Ω(z) = N(z, τΣ). With head `l = Az + b`, `u = log softmax(l)` and the squared distance
between two classes' rows `M_ij = (a_i − a_j) τΣ (a_i − a_j)ᵀ`, both bounds of the paper need one quantity,

    S_j = log Σ_i exp(u_i + ½ M_ij)                                                     (a B × C matrix)

and are, in full (Hu et al., ICML 2025, Prop. 4.3 and 4.4),

    L_RE = Σ_j p̄_j (S_j − u_j),   p̄ = softmax(l_j + ½ a_j τΣ a_jᵀ)
    L_RI = Σ_j p_j  S_j

M is a constant of the run, so S is a matrix product with exp(½M) and no B × C × C tensor is ever made.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wildtta.core.measures import Measure
from wildtta.core.prediction import Prediction

__all__ = ["Neighbourhood", "region_confidence", "regional_entropy", "regional_instability"]

_BLOCK = 1 << 21  # elements of the largest temporary of the exact path and of the set-up


class Neighbourhood(Measure):
    """The constants of one head and one region, and S for a prediction.

    Args:
        weight: A, C × d.
        variance: the diagonal of Σ, d values.
        tau: scales Σ.

    `exp(½M − shift)` is kept as a C × C factor, shifted so that the largest entry of each row is 1. Where ½M is so wide
    that this would underflow, ½M itself is kept and S comes from an exact, slower log-sum-exp in blocks: the choice is
    made here, once, from the constants (`exact`).

    The product is the one part of a loss that follows torch's setting for float32 products: where they may use TF32
    (`torch.backends.cuda.matmul.allow_tf32`), it does, forward and backward. All its terms are positive, so S is then off by less
    than 2⁻⁹ ≈ 0.002 nats. Around this product alone the setting cannot be changed: it belongs to the whole process, so threads
    would disturb each other, and a compiled step would run without the change.
    """

    by_image = True
    factor: Tensor
    shift: Tensor
    half_norms: Tensor

    def __init__(self, weight: Tensor, variance: Tensor, tau: float) -> None:
        super().__init__()
        if not 0 <= tau < math.inf:
            raise ValueError(f"tau scales a variance and cannot be {tau}; the paper's value is 1.2")
        dtype = torch.promote_types(weight.dtype, torch.float32)
        # M does not change when all rows move together; centring them keeps the differences below accurate.
        scaled = weight.detach().double() * (tau * variance.to(weight.device).double()).sqrt()
        self.register_buffer("half_norms", (0.5 * scaled.square().sum(-1)).to(dtype), persistent=False)
        scaled = scaled - scaled.mean(0)
        half = 0.5 * scaled.square().sum(-1)
        classes = len(scaled)
        factor = torch.empty(classes, classes, dtype=dtype, device=weight.device)
        shift = torch.empty(classes, dtype=dtype, device=weight.device)
        for rows in torch.arange(classes, device=weight.device).split(max(_BLOCK // classes, 1)):
            distance = half[rows, None] + half - scaled[rows] @ scaled.T
            distance[torch.arange(len(rows)), rows] = 0.0
            factor[rows] = distance.clamp_(min=0.0).to(dtype)
            shift[rows] = factor[rows].amax(-1)
        self.classes, self.tau = classes, tau
        self.exact = not bool(shift.max() <= _widest(dtype, classes))
        if not self.exact:
            factor.sub_(shift[:, None]).exp_()
        self.register_buffer("factor", factor, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def compute(self, prediction: Prediction) -> Tensor:
        return self.log_sums(prediction.log_probabilities)

    def log_sums(self, log_probabilities: Tensor) -> Tensor:
        """S, from u."""
        if self.exact:
            return _ExactLogSums.apply(log_probabilities, self.factor)
        top = log_probabilities.detach().amax(-1, keepdim=True)
        sums = F.linear((log_probabilities - top).exp(), self.factor)
        return sums.log() + (self.shift + top)

    def extra_repr(self) -> str:
        return f"classes={self.classes}, tau={self.tau}, exact={self.exact}"


def _widest(dtype: torch.dtype, classes: int) -> float:
    """The largest ½M for which the shifted product still carries full precision.

    The largest u, shifted, is exp(0) = 1; its own factor is at least exp(−½M_max). What underflows in either operand is
    below `tiny`, so C such terms stay below `eps` of the sum as long as exp(−½M_max) · eps ≥ C · tiny.
    """
    info = torch.finfo(dtype)
    return math.log(info.eps) - math.log(info.tiny) - math.log(classes)


class _ExactLogSums(torch.autograd.Function):
    """S_j = log Σ_i exp(u_i + ½M_ij) in blocks of j, recomputed in the backward pass instead of kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_probabilities: Tensor, half_distances: Tensor) -> Tensor:
        blocks = half_distances.split(_rows(log_probabilities))
        return torch.cat([(log_probabilities[:, None] + block).logsumexp(-1) for block in blocks], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        log_probabilities, half_distances, sums = ctx.saved_tensors
        rows = _rows(log_probabilities)
        total = torch.zeros_like(log_probabilities)
        for block, outer, inner in zip(
            half_distances.split(rows), gradient.split(rows, -1), sums.split(rows, -1), strict=True
        ):
            share = (log_probabilities[:, None] + block - inner[:, :, None]).exp()
            total = total + (outer[:, :, None] * share).sum(1)
        return total, None


def _rows(log_probabilities: Tensor) -> int:
    return max(_BLOCK // log_probabilities.numel(), 1)


class regional_entropy(Measure):
    """L_RE: a bound on the expected entropy in the region (Prop. 4.3).

    The paper's step from E[p_j] to the ratio of expectations p̄_j makes it an approximation of a bound, not a theorem.
    """

    by_image = True

    def __init__(self, around: Neighbourhood) -> None:
        super().__init__()
        self.around = around

    def compute(self, prediction: Prediction) -> Tensor:
        expected = (prediction.logits + self.around.half_norms).softmax(-1)
        return (expected * (self.around(prediction) - prediction.log_probabilities)).sum(-1)


class regional_instability(Measure):
    """L_RI: an upper bound on the expected KL(p(z) ‖ p(z̃)) for z̃ in the region of z (Prop. 4.4)."""

    by_image = True

    def __init__(self, around: Neighbourhood) -> None:
        super().__init__()
        self.around = around

    def compute(self, prediction: Prediction) -> Tensor:
        return (prediction.probabilities * self.around(prediction)).sum(-1)


def region_confidence(around: Neighbourhood, lam: float = 0.5, bias: Measure | None = None) -> Measure:
    """L_RE + λ L_RI, what ReCAP minimises (eq. 3 through its two bounds); `bias` is L_RE where a method has it already."""
    if not 0 <= lam < math.inf:
        raise ValueError(f"lam weighs a bound that is to become small and cannot be {lam}; the paper's value is 0.5")
    return (regional_entropy(around) if bias is None else bias) + lam * regional_instability(around)
