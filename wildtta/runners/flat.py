"""Many streams' images through a network as one plain batch, each under its own stream's parameters.

Vmapping a whole network costs: fused attention and normalisation have no rule for it and fall apart into many small operations.
Yet only the layers that adapt differ between streams. So the network runs once, on all images, as it is; and a layer that
adapts applies to each image the parameters of its stream. Norms have rules for that, other layers are vmapped by themselves.

What a network does inside cannot be known, so `fits` tries it: where the one batch does not give what each stream gets alone
(tokens before images, parameters used outside of their layer), `Together` vmaps the whole network instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from wildtta.network import Align, Layout, Network

__all__ = ["Flat", "beneath", "fits"]


def beneath(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Inside a vmapped function, call `function(streams, *tensors)` with the whole tensors, streams first, and get whole tensors.

    Autograd works beneath vmap: it sees the operations on whole tensors.
    """
    return _Beneath.apply(function, *tensors)


class _Beneath(torch.autograd.Function):
    @staticmethod
    def forward(function: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("there is nothing beneath: no tensor has an axis of streams")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], function: Any, *tensors: Tensor) -> Any:
        count = info.batch_size
        # moving no axis keeps the tensor the one that autograd knows
        whole = [
            tensor.expand(count, *tensor.shape) if place is None else tensor.movedim(place, 0) if place else tensor
            for tensor, place in zip(tensors, in_dims[1:], strict=True)
        ]
        found = function(count, *whole)
        return found, tuple(0 for _ in found)


class Flat(Network):
    """A view of a network, for use under vmap with the streams in front."""

    def __init__(self, network: Network) -> None:
        self.__dict__.update(network.__dict__)

    def run(self, parameters: dict[str, Tensor], images: Tensor, align: Align | None = None) -> tuple[Tensor, Tensor]:
        if align is not None:
            raise NotImplementedError("an alignment belongs to one stream, and cannot move the features of all")

        def whole(count: int, images: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            return self.whole(dict(zip(parameters, values, strict=True)), images)

        logits, feature = beneath(whole, images, *parameters.values())
        return logits, feature

    def whole(self, parameters: dict[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features (streams × batch × …) for parameters and images with an axis of streams in front."""
        count = len(images)
        with _personal(self.module, parameters, count):
            logits, feature = super().run({}, images.flatten(0, 1))
        return logits.unflatten(0, (count, -1)), feature.unflatten(0, (count, -1))


def fits(network: Network, layout: Layout, shape: torch.Size, dtype: torch.dtype) -> bool:
    """Whether `Flat` gives each stream what the network gives it alone, tried with unlike parameters and noise for images."""
    streams, images, generator = 3, 2, torch.Generator().manual_seed(0)
    initial = layout.initial

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(initial.device)

    theta = initial * (1 + 0.3 * noise(streams, len(initial))) + 0.1 * noise(streams, len(initial))
    batch = noise(streams, images, *shape).to(dtype)
    parameters = [layout.unpack(own) for own in theta.to(initial.dtype)]
    stacked = {name: torch.stack([own[name] for own in parameters]) for name in layout.names}
    with torch.no_grad(), torch.autocast(initial.device.type, enabled=False):
        alone = torch.stack([network.run(own, part)[0] for own, part in zip(parameters, batch, strict=True)])
        try:
            together = Flat(network).whole(stacked, batch)[0]
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a network does that this cannot be done with
            return False
    return _agree(alone, together)


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether these are the same values, up to rounding in their type."""
    rounding = 2e-3 if one.dtype in (torch.float32, torch.float64) else 0.05
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and bool((one - other).abs().amax() <= rounding * one.abs().amax())
    )


# -- layers that adapt -------------------------------------------------------------------------------------------------

Own = dict[str, Tensor]  # a layer's parameters by its own names, streams in front


@contextmanager
def _personal(module: nn.Module, parameters: dict[str, Tensor], count: int) -> Iterator[None]:
    """Inside, the layers that adapt take the parameters of the stream that an image belongs to."""
    adapting = {id(module.get_parameter(name)): name for name in parameters}
    changed: list[tuple[nn.Module, Any]] = []
    try:
        for layer in module.modules():
            own = {
                name: parameters[adapting[id(parameter)]]
                for name, parameter in layer._parameters.items()
                if id(parameter) in adapting
            }
            if own:
                changed.append((layer, layer.__dict__.get("forward")))
                layer.__dict__["forward"] = partial(_rule(layer), layer, layer.forward, own, count)
        yield
    finally:
        for layer, forward in changed:
            del layer.__dict__["forward"]
            if forward is not None:
                layer.__dict__["forward"] = forward


def _rule(layer: nn.Module) -> Callable[..., Tensor]:
    if "forward" not in layer.__dict__ and layer._parameters.keys() <= {"weight", "bias"}:
        if isinstance(layer, nn.GroupNorm):
            return partial(_norm, _group_norm)
        if isinstance(layer, nn.LayerNorm):
            return partial(_norm, _layer_norm)
    return _any_layer


_computes: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()
"""Which layers were found to compute what the rule for their base class does, for each kind of values."""


def _norm(
    rule: Callable[..., Tensor],
    layer: nn.Module,
    forward: Callable[..., Any],
    own: Own,
    count: int,
    values: Tensor,
    *others: Any,
    **named: Any,
) -> Tensor:
    """A layer that derives from one of torch's norms: by the rule for that, if it computes nothing else.

    timm's norms have a forward of their own, which for some is the same function, and for others permutes or goes on with an
    activation. Which it is cannot be read off the class, so each layer is tried.
    """
    if others or named:
        return _any_layer(layer, forward, own, count, values, *others, **named)
    device = values.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    kind = values.ndim, values.dtype, values.device, autocast
    known = _computes.setdefault(layer, {})
    if kind not in known:
        known[kind] = _follows(rule, layer, forward, own, values)
    return (rule if known[kind] else _any_layer)(layer, forward, own, count, values)


@torch.no_grad()
def _follows(
    rule: Callable[..., Tensor], layer: nn.Module, forward: Callable[..., Any], own: Own, values: Tensor
) -> bool:
    """Whether the rule gives two streams what the layer gives each alone, tried with unlike parameters and noise for values."""
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    unlike, tried = {name: noise(values[:2]) for name, values in own.items()}, noise(values[:2])
    bare = _Bare(layer, forward)
    try:
        alone = [
            functional_call(bare, {f"layer.{name}": part[place] for name, part in unlike.items()}, tried[place, None])
            for place in range(2)
        ]
        return _agree(torch.cat(alone), rule(layer, forward, unlike, 2, tried))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the rule may not even take these values
        return False


def _group_norm(layer: nn.GroupNorm, _: Any, own: Own, count: int, values: Tensor) -> Tensor:
    """All images as the channels of one: a fused kernel then takes other weights for each."""
    weight, bias = (_each(own.get(name), getattr(layer, name), count) for name in ("weight", "bias"))
    if values.is_contiguous():
        channels = (count, len(values) // count, values.shape[1])
        weight, bias = (None if part is None else part[:, None].expand(channels).reshape(-1) for part in (weight, bias))
        joined = values.view(1, -1, *values.shape[2:])
        return F.group_norm(joined, layer.num_groups * len(values), weight, bias, layer.eps).view(values.shape)
    normal = F.group_norm(values, layer.num_groups, eps=layer.eps)
    by_stream = normal.unflatten(0, (count, -1))
    ends = (1,) * (values.ndim - 2)
    weight, bias = (None if part is None else part.reshape(count, 1, -1, *ends) for part in (weight, bias))
    return _affine(by_stream, weight, bias).flatten(0, 1)


def _layer_norm(layer: nn.LayerNorm, _: Any, own: Own, count: int, values: Tensor) -> Tensor:
    weight, bias = (_each(own.get(name), getattr(layer, name), count) for name in ("weight", "bias"))
    normal = F.layer_norm(values, layer.normalized_shape, eps=layer.eps)
    by_stream = normal.reshape(count, -1, *layer.normalized_shape)
    weight, bias = (None if part is None else part[:, None] for part in (weight, bias))
    return _affine(by_stream, weight, bias).view(normal.shape)


def _each(own: Tensor | None, shared: Tensor | None, count: int) -> Tensor | None:
    if own is not None or shared is None:
        return own
    return shared.expand(count, *shared.shape)


def _affine(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is None or bias is None:
        result = values if weight is None else values * weight
        return (result if bias is None else result + bias).to(values.dtype)
    if weight.dtype == bias.dtype == values.dtype:
        return torch.addcmul(bias, values, weight)
    return (values * weight + bias).to(values.dtype)


def _any_layer(
    layer: nn.Module, forward: Callable[..., Any], own: Own, count: int, values: Tensor, *others: Any, **named: Any
) -> Tensor:
    """Any other layer, vmapped by itself."""
    bare = _Bare(layer, forward)

    def one(own: Own, values: Tensor) -> Tensor:
        return functional_call(bare, {f"layer.{name}": value for name, value in own.items()}, (values, *others), named)

    return vmap(one)(own, values.unflatten(0, (count, -1))).flatten(0, 1)


class _Bare(nn.Module):
    """A layer without its hooks, which have run already."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.inner = layer, forward

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.inner(*arguments, **named)
