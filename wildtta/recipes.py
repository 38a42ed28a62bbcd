"""The methods: each a recipe of parts, with its equation and where its defaults come from.

A recipe is a function `(network, *, hyper-parameters) -> Method`; the keyword arguments are its hyper-parameters and their
defaults. `register` puts one under a name. Thresholds and pivots are in units of ln C, so they fit any number of classes.
A learning rate is a number, a function of the batch size, or a multiple of the published one: `lr="x10"`.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from wildtta.core.episodic import Episodic
from wildtta.core.guards import recover_on_collapse
from wildtta.core.measures import entropy, marginal_entropy, shape_dependence
from wildtta.core.method import Method
from wildtta.core.regional import Neighbourhood, region_confidence, regional_entropy
from wildtta.core.regularisers import fisher_anchor
from wildtta.core.restoring import Restoring
from wildtta.core.selections import confident_region, non_redundant, reliable, shape_sensitive
from wildtta.core.updates import Rate, Update, adamw, sgd, sharpness_aware
from wildtta.core.views import Statistics, augmix
from wildtta.core.weightings import decaying, growing
from wildtta.diffusion import Diffusion, diffuse_back, load
from wildtta.network import Network
from wildtta.source import Fisher, Region

__all__ = ["BenchmarkRate", "Recipe", "build", "default_rate", "methods", "recipe", "register"]

_Function = TypeVar("_Function", bound=Callable[..., Method])


@dataclass(frozen=True)
class Recipe:
    """A registered method: its name, the function that composes it, and what that function takes.

    A costly one takes many times what others do: benchmarks run it only where it is asked for.
    """

    name: str
    compose: Callable[..., Method]
    costly: bool = False

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Names and defaults; `inspect.Parameter.empty` where the user must give a value."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.compose).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }

    @property
    def required(self) -> list[str]:
        return [name for name, default in self.hyperparameters.items() if default is inspect.Parameter.empty]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.compose) or "").partition("\n")[0]


_RECIPES: dict[str, Recipe] = {}
_HOW_TO_GET = {
    "region": "region=wildtta.Region.estimate(network, source_images)",
    "fisher": "fisher=wildtta.Fisher.estimate(network, source_images)",
    "diffusion": "diffusion=FOLDER, of an unconditional model of diffusers trained on images like those of the source",
}


def register(name: str, *, costly: bool = False) -> Callable[[_Function], _Function]:
    """Put a recipe under a name, so that `adapt` and everything built on it can use it.

    A `costly` one (tens of passes an image) is left out of benchmarks that name no methods.

    >>> @register("mine")
    ... def mine(network, *, lr=1e-3, threshold=0.3):
    ...     '''Entropy of the confident images, without momentum.'''
    ...     return Method(network.norms(), entropy(), sgd(lr, momentum=0.0), selection=reliable(threshold))
    """

    def put(compose: _Function) -> _Function:
        signature = inspect.signature(compose)
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if (
            not kinds
            or kinds[0] is inspect.Parameter.KEYWORD_ONLY
            or any(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds[1:])
        ):
            raise TypeError(
                f"a recipe is a function (network, *, hyper-parameters), but {name!r} has the signature {signature}"
            )
        _RECIPES[name] = Recipe(name, compose, costly)
        return compose

    return put


def methods() -> dict[str, Recipe]:
    """The registered methods by name."""
    return dict(_RECIPES)


def recipe(name: str) -> Recipe:
    """The recipe of a name, or an error with the near names."""
    if name not in _RECIPES:
        raise ValueError(f"unknown method {name!r}{_near(name, _RECIPES)}; the methods are {', '.join(_RECIPES)}")
    return _RECIPES[name]


def build(network: Network, name: str, hyperparameters: dict[str, Any]) -> Method:
    """Compose a registered method for a network, checking the hyper-parameters' names first."""
    found = recipe(name)
    for given in hyperparameters:
        if given not in found.hyperparameters:
            takes = ", ".join(found.hyperparameters) or "none"
            raise TypeError(
                f"{name!r} has no hyper-parameter {given!r}{_near(given, found.hyperparameters)}; it takes: {takes}"
            )
    missing = [required for required in found.required if hyperparameters.get(required) is None]
    if missing:
        hints = ", ".join(_HOW_TO_GET.get(required, f"{required}=…") for required in missing)
        raise ValueError(f"the method {name!r} needs {' and '.join(missing)}: give {hints}")
    return found.compose(network, **hyperparameters)


_OTHER_WORDS = {"learning_rate": "lr", "rate": "lr", "lambda": "lam", "lambda_": "lam"}


def _near(name: str, known: dict[str, Any]) -> str:
    if (meant := _OTHER_WORDS.get(name)) in known:
        return f" (did you mean {meant!r}?)"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


@dataclass(frozen=True)
class BenchmarkRate:
    """The wild benchmark's learning rate for the number of images in a batch.

    From 32 images on it is `base`; below, base · n/64 · `small`. SAR and DeYO double that of single images (`single`).
    """

    base: float
    small: float
    single: float

    def __call__(self, images: int) -> float:
        if images >= 32:
            return self.base
        return self.base * images / 64 * self.small * (self.single if images == 1 else 1.0)


def default_rate(network: Network, *, double_single: bool = False) -> BenchmarkRate:
    """2.5e-4 ("resnet") or 1e-3 ("vit"); "resnet" has twice the rate below 32 images."""
    base, small = (1e-3, 1.0) if network.kind == "vit" else (2.5e-4, 2.0)
    return BenchmarkRate(base, small, 2.0 if double_single else 1.0)


def _rate(network: Network, lr: Rate | str | None, *, double_single: bool = False) -> Rate:
    """What was given; the benchmark's rate where nothing was, or a multiple of that ("x10")."""
    usual = default_rate(network, double_single=double_single)
    if lr is None:
        return usual
    return replace(usual, base=_factor(lr) * usual.base) if isinstance(lr, str) else lr


def _factor(lr: str) -> float:
    try:
        factor = float(lr.removeprefix("x"))
    except ValueError:
        factor = math.nan
    if not lr.startswith("x") or not 0 <= factor < math.inf:
        raise ValueError(
            f'lr must be a number, a function of the batch size, or a multiple such as "x10", but is {lr!r}'
        )
    return factor


@register("source")
def source(network: Network) -> Method:
    """The network as it is: predicts, and learns nothing."""
    return Method(network.nothing(), batch_statistics=False)


@register("tent")
def tent(network: Network, *, lr: Rate | str | None = None, momentum: float = 0.9, frozen_top: bool = False) -> Method:
    """Entropy minimisation on every image (Wang et al., ICLR 2021).

    min H(p), over all normalisation affines.
    """
    rate = _rate(network, lr)
    return Method(network.norms(frozen_top=frozen_top), entropy(), sgd(rate, momentum))


@register("eta")
def eta(
    network: Network,
    *,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    margin: float = 0.4,
    redundancy: float = 0.05,
    redundancy_decay: float = 0.9,
    frozen_top: bool = False,
) -> Method:
    """EATA without its regulariser: entropy of reliable, non-redundant images (Niu et al., ICML 2022).

    min exp(E₀ − H) · 1[H < E₀] · 1[|cos(p, m)| < ε] · H, with E₀ = `margin` · ln C and m the moving average of the kept p, of
    which a batch keeps the share `redundancy_decay` (the reference's 0.9).
    """
    rate = _rate(network, lr)
    uncertainty = entropy()
    return Method(
        network.norms(frozen_top=frozen_top),
        uncertainty,
        sgd(rate, momentum),
        selection=reliable(margin) & non_redundant(redundancy, redundancy_decay),
        weighting=decaying(uncertainty, margin),
    )


@register("eata")
def eata(
    network: Network,
    *,
    fisher: Fisher,
    strength: float = 2000.0,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    margin: float = 0.4,
    redundancy: float = 0.05,
    redundancy_decay: float = 0.9,
    frozen_top: bool = False,
) -> Method:
    """ETA with an anchor: what the source task relies on stays where it was (Niu et al., ICML 2022).

    ETA's loss + `strength` · Σ F (θ − θ₀)².
    """
    _expect("fisher", fisher, Fisher)
    method = eta(
        network,
        lr=lr,
        momentum=momentum,
        margin=margin,
        redundancy=redundancy,
        redundancy_decay=redundancy_decay,
        frozen_top=frozen_top,
    )
    method.regulariser = fisher_anchor(fisher.pack(method.layout), method.layout.initial, strength)
    return method


@register("sar")
def sar(
    network: Network,
    *,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    double_single: bool = True,
    margin: float = 0.4,
    rho: float = 0.05,
    eps: float = 1e-12,
    recovery: float = 0.2,
    recovery_decay: float = 0.9,
    frozen_top: bool = True,
) -> Method:
    """Sharpness-aware entropy of reliable images, with recovery (Niu et al., ICLR 2023).

    min over θ of max over ‖ε‖ ≤ ρ of 1[H(θ) < E₀] · 1[H(θ + ε) < E₀] · H(θ + ε); start afresh when the moving average of
    the loss falls below `recovery`. The climb is ρ g / (‖g‖ + `eps`); a step that teaches keeps the share `recovery_decay` of
    that average. Both defaults are the reference's, 1e-12 and 0.9.
    """
    rate = _rate(network, lr, double_single=double_single)
    return Method(
        network.norms(frozen_top=frozen_top),
        entropy(),
        sharpness_aware(sgd(rate, momentum), rho, eps),
        selection=reliable(margin),
        guards=[recover_on_collapse(recovery, recovery_decay)],
    )


@register("deyo")
def deyo(
    network: Network,
    *,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    double_single: bool = True,
    threshold: float = 0.5,
    margin: float = 0.4,
    plpd: float = 0.2,
    patches: int = 4,
    frozen_top: bool = True,
) -> Method:
    """Entropy of images whose answer depends on the object's shape (Lee et al., ICLR 2024).

    min (exp(E₀ − H) + exp(PLPD)) · 1[H < `threshold` ln C] · 1[PLPD > `plpd`] · H, with E₀ = `margin` · ln C. `plpd` is 0.2 in
    the wild settings, 0.3 in the mild one. PLPD is computed for the whole batch, so that a step has one shape; the
    reference asks only for the images of low entropy. The two agree unless the network mixes images (BatchNorm).
    """
    rate = _rate(network, lr, double_single=double_single)
    uncertainty, dependence = entropy(), shape_dependence(patches)
    return Method(
        network.norms(frozen_top=frozen_top),
        uncertainty,
        sgd(rate, momentum),
        selection=reliable(threshold) & shape_sensitive(plpd, dependence),
        weighting=decaying(uncertainty, margin) + growing(dependence),
    )


@register("recap")
def recap(
    network: Network,
    *,
    region: Region,
    tau: float = 1.2,
    lam: float = 0.5,
    threshold: float | None = None,
    pivot: float | None = None,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    double_single: bool = True,
    frozen_top: bool = True,
) -> Method:
    """Region confidence of images whose whole region is confident (Hu et al., ICML 2025).

    min exp(L₀ − L_RE) · 1[L_RE < τ_RE] · (L_RE + λ L_RI), eq. 10, with L₀ = `pivot` · ln C (0.7 "resnet", 1.0 "vit") and
    τ_RE = `threshold` · ln C (0.8 and 1.0). The paper leaves open whether the top is frozen and whether the rate doubles for
    single images; it follows SAR's benchmark, so both default to SAR's choice.
    """
    rate = _rate(network, lr, double_single=double_single)
    usual_threshold, usual_pivot = (1.0, 1.0) if network.kind == "vit" else (0.8, 0.7)
    around = _around(network, region, tau)
    regional = regional_entropy(around)
    return Method(
        network.norms(frozen_top=frozen_top),
        region_confidence(around, lam, regional),
        sgd(rate, momentum),
        selection=confident_region(regional, usual_threshold if threshold is None else threshold),
        weighting=decaying(regional, usual_pivot if pivot is None else pivot),
    )


@register("recap+eta")
def recap_eta(
    network: Network,
    *,
    region: Region,
    tau: float = 1.2,
    lam: float = 0.5,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    margin: float = 0.4,
    redundancy: float = 0.05,
    redundancy_decay: float = 0.9,
    frozen_top: bool = False,
) -> Method:
    """ETA with region confidence in the place of entropy. Not in the paper; put together as its other two are.

    ETA's selection and weights stay: by entropy, and by what the stream has been answering. An image that is answered as the
    last ones were does not teach, so that one class does not easily draw all others to it; and a weight is at most exp(E₀),
    where ReCAP's own reaches exp(L₀).
    """
    method = eta(
        network,
        lr=lr,
        momentum=momentum,
        margin=margin,
        redundancy=redundancy,
        redundancy_decay=redundancy_decay,
        frozen_top=frozen_top,
    )
    method.objective = region_confidence(_around(network, region, tau), lam)
    return method


@register("recap+sar")
def recap_sar(
    network: Network,
    *,
    region: Region,
    tau: float = 1.2,
    lam: float = 0.5,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    double_single: bool = True,
    margin: float = 0.4,
    rho: float = 0.05,
    eps: float = 1e-12,
    recovery: float = 0.2,
    recovery_decay: float = 0.9,
    frozen_top: bool = True,
) -> Method:
    """SAR with region confidence in the place of entropy (Hu et al., ICML 2025, Sec. 5.2).

    The paper replaces "entropy minimization with region confidence"; SAR's selection, by entropy, stays.
    """
    method = sar(
        network,
        lr=lr,
        momentum=momentum,
        double_single=double_single,
        margin=margin,
        rho=rho,
        eps=eps,
        recovery=recovery,
        recovery_decay=recovery_decay,
        frozen_top=frozen_top,
    )
    method.objective = region_confidence(_around(network, region, tau), lam)
    return method


@register("recap+deyo")
def recap_deyo(
    network: Network,
    *,
    region: Region,
    tau: float = 1.2,
    lam: float = 0.5,
    lr: Rate | str | None = None,
    momentum: float = 0.9,
    double_single: bool = True,
    threshold: float = 0.5,
    margin: float = 0.4,
    plpd: float = 0.2,
    patches: int = 4,
    frozen_top: bool = True,
) -> Method:
    """DeYO with region confidence in the place of entropy (Hu et al., ICML 2025, Sec. 5.2).

    DeYO's selection and weights, by entropy and PLPD, stay.
    """
    method = deyo(
        network,
        lr=lr,
        momentum=momentum,
        double_single=double_single,
        threshold=threshold,
        margin=margin,
        plpd=plpd,
        patches=patches,
        frozen_top=frozen_top,
    )
    method.objective = region_confidence(_around(network, region, tau), lam)
    return method


@register("memo", costly=True)
def memo(
    network: Network,
    *,
    views: int = 64,
    statistics: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    lr: Rate | str | None = None,
    optimiser: str | None = None,
    decay: float = 0.01,
    severity: float = 1.0,
    crop: bool = True,
    flip: bool = True,
    prior: float = 16 / 17,
    at_once: int = 1,
    chunk: int = 0,
) -> Episodic:
    """Marginal entropy over views of each image, and forget (Zhang, Levine & Finn, NeurIPS 2022).

    min H(p̄), p̄ = (1/V) Σ p(xᵥ) over `views` AugMix views of one image, eq. 2; one step on all parameters, the image is predicted,
    and parameters and optimiser are as they were. SGD at 2.5e-4 without momentum ("resnet"), AdamW at 1e-5 with weight decay 0.01
    ("vit"). The paper takes 64 views, and 32 of images of 32 pixels. A `lr` that is a function is given the number of views.
    Where there is BatchNorm, `prior` (16/17) is the share of the source's statistics, and the rest is that of the views, or of
    the image when it is predicted. Views are made of pixels, so `statistics`, the (mean, deviation) that the images were
    normalised with, must be your network's: the default is ImageNet's; a benchmark gives those of its model. Without `crop`
    and `flip` views are AugMix alone: for images such as characters, of which a crop or a mirror makes others. `at_once`
    images side by side, with parameters of their own, make use of a large GPU; `chunk` views in a pass save memory (0: all
    of them in one).
    """
    name = ("adamw" if network.kind == "vit" else "sgd") if optimiser is None else optimiser
    usual = {"sgd": 2.5e-4, "adamw": 1e-5}.get(name)
    if usual is None:
        raise ValueError(f'optimiser must be "sgd" or "adamw", but is {optimiser!r}')
    rate = usual if lr is None else _factor(lr) * usual if isinstance(lr, str) else lr
    update: Update = adamw(rate, decay=decay) if name == "adamw" else sgd(rate, momentum=0.0)
    return Episodic(
        network.everything(),
        augmix(views, statistics, severity=severity, crop=crop, flip=flip),
        marginal_entropy(),
        update,
        prior=prior,
        at_once=at_once,
        chunk=chunk,
    )


@register("dda", costly=True)
def dda(
    network: Network,
    *,
    diffusion: Diffusion | Path | str,
    statistics: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    steps: int | None = None,
    start: int | None = None,
    scale: float | None = None,
    down: int | None = None,
    chunk: int = 16,
    resize: bool = False,
    precision: str | None = None,
) -> Restoring:
    """Images go back to the source domain, the network stays as it is (Gao et al., CVPR 2023).

    p = ½ p(x) + ½ p(x₀), where x₀ is x with noise, brought back by an unconditional diffusion model:
    x_{i−1} ~ p(x_{i−1} | x_i) − `scale` · ∇ ‖φ(x) − φ(x̂₀)‖₂ from `start` of `steps` on, φ = smaller by `down` and large again.
    Published, and the default for a model that does not say what suits it: 100 steps, from 50, 6.0 and 4. `diffusion` is such a
    model, its folder (diffusers') or checkpoint (guided-diffusion's), or "glyphs"; it needs `pip install "wildtta[dda]"`.
    It sees pixels, so `statistics`, the (mean, deviation) that the images were normalised with, must be your network's: the
    default is ImageNet's; a benchmark gives those of its model. The norm is each image's own, where the reference's is the
    batch's: an image's result does not depend on its neighbours. `chunk` images go side by side; `resize` brings images to the
    model's size and back; `precision` is the diffusion model's ("bf16", "fp16", "float32").
    """
    return Restoring(
        network,
        diffuse_back(
            load(diffusion),
            statistics,
            steps=steps,
            start=start,
            scale=scale,
            down=down,
            chunk=chunk,
            resize=resize,
            precision=precision,
        ),
    )


def _expect(name: str, value: object, kind: type[Region] | type[Fisher]) -> None:
    if not isinstance(value, kind):
        made = kind.__name__
        raise TypeError(
            f"{name} must be a wildtta.{made}, but is an object of type {type(value).__name__}; make one with "
            f"wildtta.{made}.estimate(network, source_images), or read a saved one with wildtta.{made}.load(path)"
        )


def _around(network: Network, region: Region, tau: float) -> Neighbourhood:
    _expect("region", region, Region)
    region.check(network)
    return Neighbourhood(network.head[0], region.variance, tau)
