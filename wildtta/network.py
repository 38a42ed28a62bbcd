"""Any classifier, seen as the functional core needs it: a pure function (θ, images) → logits, feature.

`Network` makes a private copy of the caller's module and finds in it, by structure and never by the names of layers,

- the *head*: the last affine layer (Linear, or 1 × 1 convolution), whose input is the feature;
- the *normalisation layers*, in the order of the network;
- the *top*: the part that SAR keeps frozen (the last stage of a staged network; the last quarter of the blocks and all that
  follows of a network of like blocks).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from wildtta.core.prediction import Prediction, widened
from wildtta.files import fingerprint

__all__ = ["Layout", "Network", "is_normalisation"]

Align = Callable[[Tensor], Tensor]


class Layout(nn.Module):
    """Which tensors θ is made of. θ itself is one flat vector, in float32 or wider.

    Attributes:
        names: the parameters' names in the network.
        initial: θ of the source network.
    """

    initial: Tensor

    def __init__(self, parameters: dict[str, Tensor], device: torch.device | None = None) -> None:
        super().__init__()
        self.names = tuple(parameters)
        self.shapes = tuple(parameter.shape for parameter in parameters.values())
        self.sizes = tuple(parameter.numel() for parameter in parameters.values())
        self.dtypes = tuple(parameter.dtype for parameter in parameters.values())
        initial = self.pack(parameters) if parameters else torch.zeros(0, device=device)
        self.register_buffer("initial", initial, persistent=False)

    def pack(self, tensors: dict[str, Tensor]) -> Tensor:
        """One flat vector from tensors by name."""
        return torch.cat([widened(tensors[name].detach()).reshape(-1) for name in self.names])

    def unpack(self, theta: Tensor) -> dict[str, Tensor]:
        """The tensors by name: views of θ, in the network's precision."""
        pieces = theta.split(self.sizes) if self.sizes else ()
        return {
            name: piece.view(shape).to(dtype)
            for name, piece, shape, dtype in zip(self.names, pieces, self.shapes, self.dtypes, strict=True)
        }

    def follow(self, module: nn.Module) -> None:
        """Take over the types that the network's parameters have now."""
        self.dtypes = tuple(module.get_parameter(name).dtype for name in self.names)

    def extra_repr(self) -> str:
        return f"{len(self.names)} tensors, {sum(self.sizes)} numbers"


class Network(nn.Module):
    """A private, frozen copy of a classifier.

    Args:
        module: the caller's network; it is copied, and never changed.
        head: the name of its last affine layer, where it is not the last one registered.
        kind: "resnet" or "vit": which published defaults apply. By default, "vit" where most normalisation layers are
            LayerNorm or RMSNorm.
        layers: names of the layers that adapt, instead of the normalisation layers that a method chooses.

    Attributes:
        classes, features: C and d.
        mixes_images: whether BatchNorm layers were told, by `use_batch_statistics`, to normalise with those of a batch. (Whether
            there are any that could be told so is another question: the function of this name in `wildtta.runners.together`.)
        norm_names: the normalisation layers that have parameters, in order.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        head: str | None = None,
        kind: str | None = None,
        layers: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"the network must be a torch.nn.Module, but is {type(module).__name__}")
        if any(isinstance(layer, Network) for layer in module.modules()):
            raise TypeError(
                "the network is an adapter already; adapt the network it was made from, or what export() gives"
            )
        if kind not in (None, "resnet", "vit"):
            raise ValueError(f'kind must be "resnet" or "vit", but is {kind!r}')
        self._flags = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.head_name = _find_head(self.module, head)
        self.classes, self.features = self.head[0].shape
        if self.classes < 2:
            raise ValueError(
                f"the head {self.head_name!r} gives {self.classes} value an image; a classifier needs two or more"
            )
        self.norm_names = tuple(name for name, layer in self.module.named_modules() if _has_affine(layer))
        self.kind = kind or self._guess_kind()
        self.layers = None if layers is None else self._named(layers)
        self.mixes_images = False
        self._twins = _twins(self.module)
        self._tap = _Tap()
        self._changes_images = False
        self.module.get_submodule(self.head_name).register_forward_pre_hook(self._tap)

    # -- what may adapt ------------------------------------------------------------------------------------------------

    def norms(self, *, frozen_top: bool = False) -> Layout:
        """The affine parameters of the normalisation layers: of all, or of those below the top.

        Where the user named `layers`, these are the ones.
        """
        if self.layers is None and not self.norm_names:
            raise ValueError(
                "the network has no normalisation layer with parameters (looked for BatchNorm, GroupNorm, LayerNorm, "
                "InstanceNorm, RMSNorm and their kin), so there is nothing to adapt; name layers of another kind with layers=…"
            )
        names = self.norm_names[: self._top] if frozen_top else self.norm_names
        chosen: dict[Tensor, str] = {}  # a parameter that two layers share adapts once
        for layer in self.layers or names:
            for name, parameter in self.module.get_submodule(layer).named_parameters(recurse=False):
                chosen.setdefault(parameter, f"{layer}.{name}" if layer else name)
        return Layout({name: parameter for parameter, name in chosen.items()})

    def everything(self) -> Layout:
        """All parameters; or those of the `layers` that the user named."""
        return Layout(dict(self.module.named_parameters())) if self.layers is None else self.norms()

    def nothing(self) -> Layout:
        """No parameter at all."""
        return Layout({}, self.head[0].device)

    @cached_property
    def _top(self) -> int:
        return _start_of_top(self.norm_names, self.module)

    def _named(self, layers: Iterable[str]) -> list[str]:
        if isinstance(layers, str):
            raise TypeError(f"layers must be a list of names, but is the string {layers!r}; write layers=[{layers!r}]")
        known, named = dict(self.module.named_modules()), list(layers)
        for name in named:
            if name not in known:
                raise ValueError(
                    f"the network has no layer {name!r}; its normalisation layers are {list(self.norm_names)}"
                )
            if not any(True for _ in known[name].parameters(recurse=False)):
                raise ValueError(f"layer {name!r} ({type(known[name]).__name__}) has no parameters of its own to adapt")
        if not named:
            raise ValueError("layers=[] leaves nothing to adapt; name at least one layer, or use the method 'source'")
        return named

    def _guess_kind(self) -> str:
        layers = [self.module.get_submodule(name) for name in self.norm_names]
        by_image = sum(not isinstance(layer, _NormBase | nn.GroupNorm) for layer in layers)
        return "vit" if 2 * by_image > len(layers) else "resnet"

    # -- running it ----------------------------------------------------------------------------------------------------

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        """A (C × d) and b (C) of the head."""
        layer = self.module.get_submodule(self.head_name)
        weight, bias = layer.weight, getattr(layer, "bias", None)
        assert isinstance(weight, Tensor)
        weight = weight.detach().flatten(1)
        return weight, weight.new_zeros(len(weight)) if bias is None else bias.detach()

    def use_batch_statistics(self, prior: float = 0.0) -> None:
        """Let BatchNorm layers normalise with the statistics of each batch, or mix them: `prior` is the source's share."""
        for layer in self.module.modules():
            if isinstance(layer, _BatchNorm):
                self.mixes_images = prior < 1
                if prior == 0:
                    layer.track_running_stats = False
                    layer.running_mean = layer.running_var = layer.num_batches_tracked = None
                elif layer.running_mean is not None:
                    blend = _Blend(prior)
                    layer.register_forward_pre_hook(blend.before)
                    layer.register_forward_hook(blend.after, always_call=True)

    def run(self, parameters: dict[str, Tensor], images: Tensor, align: Align | None = None) -> tuple[Tensor, Tensor]:
        """Logits and feature with some of the network's parameters replaced."""
        self._tap.align = align
        if self._changes_images:
            images = images.clone()
        if self._twins:
            parameters = {
                twin: tensor for name, tensor in parameters.items() for twin in self._twins.get(name, (name,))
            }
        try:
            # torch would look for twins itself, in every call, by a walk over all parameters and buffers
            logits = functional_call(self.module, parameters, (images,), tie_weights=False)
            feature = self._tap.feature
        finally:
            self._tap.align = self._tap.feature = None
        if feature is None:
            raise ValueError(
                f"the forward pass did not use the head {self.head_name!r}; name the layer that gives the logits with head=…"
            )
        return logits, feature

    def places(self, images: Tensor) -> tuple[Tensor, int]:
        """Where these images stand in the batch, and how many it has: more than these where several processes share it."""
        return torch.arange(len(images), device=images.device), len(images)

    def predict(
        self, parameters: dict[str, Tensor], images: Tensor, keys: Tensor, align: Align | None = None
    ) -> tuple[Prediction, Tensor]:
        """A prediction, for the parts of a method to read, and the logits as the network gave them."""
        kind = images.device.type
        autocast, precision = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def again(others: Tensor) -> Prediction:
            fixed = {name: parameter.detach() for name, parameter in parameters.items()}
            with torch.no_grad(), torch.autocast(kind, dtype=precision, enabled=autocast):
                return self.predict(fixed, others, keys, align)[0]

        logits, feature = self.run(parameters, images, align)
        return Prediction(widened(logits), widened(feature), images, keys, again), logits

    def check(self, images: Tensor) -> None:
        """Run two images, and say clearly what is wrong if they do not fit or if the head is not where it should be."""
        probe = images[:2].clone()
        version = probe._version
        try:
            with torch.no_grad():
                logits, feature = self.run({}, probe)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AssertionError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"the network cannot take images of shape {tuple(images.shape)} and type {images.dtype}: {error}"
            ) from error
        self._changes_images = self._changes_images or probe._version != version  # networks that normalise in place
        count = min(len(images), 2)
        if not isinstance(logits, Tensor) or logits.shape != (count, self.classes):
            if not isinstance(logits, Tensor):
                raise ValueError(
                    f"the network returns a {type(logits).__name__}; wrap it in a module whose forward returns the logits alone"
                )
            found = tuple(logits.shape)
            raise ValueError(
                f"the network gave {found} for {count} images where its head {self.head_name!r} has {self.classes} classes; "
                f"it should give logits of shape ({count}, {self.classes}). {self._other_head(images[:2])}"
            )
        if feature.shape != (count, self.features):
            raise ValueError(
                f"the head {self.head_name!r} takes {self.features} features an image, but got {tuple(feature.shape)} for "
                f"{count} images; it is not the last layer of a classifier. {self._other_head(images[:2])}"
            )
        kind = images.device.type
        weight, bias = map(widened, self.head)
        with torch.autocast(
            kind, enabled=False
        ):  # a network may run its head in float32 where the rest is in half precision
            expected = torch.nn.functional.linear(feature.to(weight.dtype), weight, bias)
        precise = logits.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(kind)
        tolerance = 1e-3 if precise else 0.1
        # written so that a NaN, which an image may bring, is not an error here
        if ((expected - logits).abs() > tolerance * (1 + logits.abs().amax())).any():
            raise ValueError(
                f"the logits are not an affine function of the input of {self.head_name!r}, which was taken for the head. "
                f"{self._other_head(images[:2])}"
            )

    def _other_head(self, images: Tensor) -> str:
        """A sentence that names the layer whose output the logits are, if there is another one."""
        outputs: list[tuple[str, Tensor]] = []
        handles = [
            layer.register_forward_hook(lambda _layer, _inputs, output, name=name: outputs.append((name, output)))
            for name, layer in self.module.named_modules()
            if _is_affine_map(layer)
        ]
        try:
            with torch.no_grad():
                logits = self.module(images.clone())
        finally:
            self._tap.feature = None
            for handle in handles:
                handle.remove()
        found = [
            name
            for name, output in reversed(outputs)
            if isinstance(logits, Tensor)
            and output.numel() == logits.numel()
            and torch.equal(output.flatten(), logits.flatten())
        ]
        for name in found:
            if name != self.head_name:
                return f"The layer {name!r} gives the logits: pass head={name!r}."
        if found:
            return (
                f"The layer {self.head_name!r} does give them, but not as its weight times its input plus its bias: the last "
                "layer has to be a plain affine one."
            )
        return "No affine layer's output is the network's: it does something after its head, which has to be left out."

    def fingerprint(self) -> str:
        """A hash of the source network's parameters and buffers: their names, shapes, types and bits."""
        return fingerprint(self.module.state_dict())

    def export(self, parameters: dict[str, Tensor]) -> nn.Module:
        """A plain module with these parameters, which predicts what this network predicts with them.

        Its parameters can be trained where the caller's could: only this copy was frozen.
        """
        module = copy.deepcopy(self.module)
        head = module.get_submodule(self.head_name)
        for key, hook in list(head._forward_pre_hooks.items()):
            if isinstance(hook, _Tap):
                del head._forward_pre_hooks[key]
        with torch.no_grad():
            for name, parameter in parameters.items():
                module.get_parameter(name).copy_(parameter)
        for name, flag in self._flags.items():
            module.get_parameter(name).requires_grad_(flag)
        return module


class _Blend:
    """Hooks around a BatchNorm layer: its source statistics, mixed with those of what passes through it.

    As in MEMO's reference, the variance is the unbiased one and no gradient goes through the statistics. One value a channel
    has no variance; there the source's statistics stand alone.
    """

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.source: tuple[Tensor, Tensor] | None = None

    def before(self, layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        mean, variance = layer.running_mean, layer.running_var
        assert mean is not None
        assert variance is not None
        values = widened(inputs[0].detach()).transpose(0, 1).flatten(1)
        if values.shape[1] > 1:
            self.source = mean, variance
            layer.running_mean = (self.prior * mean + (1 - self.prior) * values.mean(1)).to(mean.dtype)
            layer.running_var = (self.prior * variance + (1 - self.prior) * values.var(1)).to(variance.dtype)

    def after(self, layer: _BatchNorm, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self.source is not None:
            layer.running_mean, layer.running_var = self.source
            self.source = None


class _Tap:
    """A hook before the head: keeps the feature, and lets an alignment move it first."""

    def __init__(self) -> None:
        self.align: Align | None = None
        self.feature: Tensor | None = None

    def __call__(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        feature = inputs[0].flatten(1)
        if self.align is None:
            self.feature = feature
            return None
        self.feature = self.align(feature)
        return (self.feature.reshape(inputs[0].shape),)


# -- finding things by structure ---------------------------------------------------------------------------------------


def is_normalisation(layer: nn.Module) -> bool:
    """Torch's normalisation layers and what derives from them, and any leaf that looks like one.

    A hand-written normalisation layer is recognised by what it has to have: one-dimensional parameters, one for each
    channel, and an epsilon.
    """
    if isinstance(layer, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        return True
    parameters = list(layer.parameters())
    return (
        bool(parameters)
        and not any(True for _ in layer.children())
        and all(parameter.ndim == 1 and parameter.shape == parameters[0].shape for parameter in parameters)
        and any(attribute.strip("_").split("_")[-1] in ("eps", "epsilon") for attribute in vars(layer))
    )


def _twins(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Of each parameter that layers share, by any of its names: all of them. A layer that is shared as a whole has one name."""
    names: dict[Tensor, list[str]] = {}
    for prefix, layer in module.named_modules():
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                names.setdefault(parameter, []).append(f"{prefix}.{name}" if prefix else name)
    return {name: tuple(shared) for shared in names.values() if len(shared) > 1 for name in shared}


def _has_affine(layer: nn.Module) -> bool:
    return is_normalisation(layer) and any(True for _ in layer.parameters(recurse=False))


def _is_affine_map(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (
        isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    )


def _find_head(module: nn.Module, name: str | None) -> str:
    layers = dict(module.named_modules())
    if name is not None:
        if name not in layers:
            affine = [name for name, layer in layers.items() if _is_affine_map(layer)]
            raise ValueError(
                f"the network has no layer {name!r} to be its head; its last affine layers are {affine[-5:]}"
            )
        if not _is_affine_map(layers[name]):
            raise ValueError(
                f"the head must be a Linear layer or a 1 × 1 convolution, but {name!r} is a {type(layers[name]).__name__}"
            )
        return name
    with_parameters: list[str] = [
        name for name, layer in layers.items() if any(True for _ in layer.parameters(recurse=False))
    ]
    if with_parameters and _is_affine_map(layers[with_parameters[-1]]):
        return with_parameters[-1]
    linear: list[str] = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    candidates = linear or [name for name, layer in layers.items() if _is_affine_map(layer)]
    if not candidates:
        raise ValueError(
            "no head found: the network has no Linear layer and no 1 × 1 convolution that could map features to logits; "
            "name its last affine layer with head=…"
        )
    return candidates[-1]


def _start_of_top(norms: Sequence[str], module: nn.Module) -> int:
    """How many of the normalisation layers, from the first on, lie below the top.

    Going down from the root while a single child holds the trunk (four fifths of the layers, so that a stem with a few
    of its own does not matter), one comes to its units: stages or blocks. Up to eight
    units that differ are stages, and the last is the top; units that are alike, or many, are blocks, and the top is their
    last quarter. All that follows the first unit of the top belongs to it.
    """
    if len(norms) < 2:
        return len(norms)
    prefix = ""
    while True:
        groups: dict[str, list[int]] = {}
        for place, name in enumerate(norms):
            if name.startswith(prefix):
                groups.setdefault(prefix + name[len(prefix) :].split(".")[0], []).append(place)
        large = [name for name, places in groups.items() if len(places) > 1]
        inside = sum(map(len, groups.values()))
        trunk = [name for name in large if len(large) == 1 or len(groups[name]) > 0.8 * inside]
        if not trunk:
            break
        prefix = trunk[0] + "."
    units = large or list(groups)
    shapes = {tuple(parameter.shape for parameter in module.get_submodule(name).parameters()) for name in units}
    blocks = len(shapes) == 1 or len(units) > 8
    top = max(len(units) // 4, 1) if blocks else 1
    return max(groups[units[-top]][0], 1)
