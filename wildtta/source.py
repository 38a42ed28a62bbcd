"""What some methods need to know of the source domain: the region Σ (ReCAP) and the Fisher information (EATA).

Both are estimated once, from a few hundred images of the kind that the network was trained on, and kept in a small file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from wildtta import files
from wildtta.network import Layout, Network

__all__ = ["Fisher", "Images", "Region"]

Images: TypeAlias = Tensor | Iterable[Any]
"""A tensor (N × channels × height × width), a list of images or batches, or a loader, with or without labels."""


class Region:
    """Σ: how features vary over source images; with τ it says how far the region around a feature reaches.

    Attributes:
        variance: the diagonal of Σ, d values (unbiased).
        mean: the features' mean, d values.
        classes: C of the network it was estimated with.
        count: how many images it comes from.
    """

    def __init__(
        self, variance: Tensor, mean: Tensor | None = None, classes: int | None = None, count: int = 0
    ) -> None:
        if variance.ndim != 1 or not variance.is_floating_point():
            raise ValueError(
                f"variance must be a vector of floats, but has shape {tuple(variance.shape)}, {variance.dtype}"
            )
        if not torch.isfinite(variance).all() or (variance < 0).any():
            raise ValueError("variance must be finite and not negative; were there NaN or Inf among the source images?")
        self.variance = variance
        self.mean = torch.zeros_like(variance) if mean is None else mean
        self.classes, self.count = classes, count

    @classmethod
    @torch.inference_mode(False)
    def estimate(
        cls, network: nn.Module, images: Images, *, limit: int = 500, head: str | None = None, batch_size: int = 64
    ) -> Region:
        """Estimate Σ from up to `limit` source images (500 are enough for ImageNet).

        The images go through the network as they are, so they must be preprocessed as for prediction. They are read
        batch by batch; nothing is kept but a running mean and variance.
        """
        view = Network(network, head=head)
        count, mean, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for batch in _batches(images, limit, batch_size, _device(view)):
            if count == 0:
                view.check(batch)
            with torch.no_grad():
                feature = view.run({}, batch)[1].double().cpu()
            total, here = count + len(feature), feature.mean(0)
            # Chan's update: exact in one pass, whatever the batches
            squares = (
                squares + (feature - here).square().sum(0) + (here - mean).square() * (count * len(feature) / total)
            )
            mean = mean + (here - mean) * (len(feature) / total)
            count = total
        if count < 2:
            raise ValueError(f"a region needs at least 2 source images (500 are usual), but got {count}")
        return cls((squares / (count - 1)).float(), mean.float(), view.classes, count)

    def check(self, network: Network) -> None:
        """Raise if this is the region of another network."""
        if len(self.variance) != network.features or self.classes not in (None, network.classes):
            own = f"{len(self.variance)} features" + (f" and {self.classes} classes" if self.classes else "")
            raise ValueError(
                f"this region belongs to another network: it has {own}, the network has {network.features} features and "
                f"{network.classes} classes; estimate it with Region.estimate(network, images)"
            )

    def digest(self) -> str:
        return files.fingerprint({"variance": self.variance, "mean": self.mean})

    def save(self, path: str | Path) -> None:
        header = {"classes": self.classes, "count": self.count}
        files.write(path, "region", {"variance": self.variance, "mean": self.mean}, header)

    @classmethod
    def load(cls, path: str | Path) -> Region:
        tensors, header = files.read(path, "region")
        return cls(tensors["variance"], tensors["mean"], header["classes"], header["count"])

    def __repr__(self) -> str:
        return f"Region({len(self.variance)} features, {self.classes} classes, from {self.count} images)"


class Fisher:
    """How much the source task relies on each parameter: the diagonal Fisher information (EATA eq. 9).

    The mean over batches of the squared gradient of the cross-entropy to the network's own answers. It depends on the size of
    the batches; EATA's is 64.

    Attributes:
        importance: a tensor for each parameter, by name.
        count: how many images it comes from.
    """

    def __init__(self, importance: dict[str, Tensor], count: int = 0) -> None:
        self.importance, self.count = importance, count

    @classmethod
    @torch.inference_mode(False)
    def estimate(
        cls,
        network: nn.Module,
        images: Images,
        *,
        limit: int = 2000,
        head: str | None = None,
        layers: Iterable[str] | None = None,
        batch_size: int = 64,
    ) -> Fisher:
        """Estimate it from up to `limit` source images, for all normalisation layers or for `layers`."""
        view = Network(network, head=head, layers=layers)
        view.use_batch_statistics()
        layout = view.norms()
        count, batches, squares = 0, 0, torch.zeros_like(layout.initial)
        for batch in _batches(images, limit, batch_size, _device(view)):
            if count == 0:
                view.check(batch)
            theta = layout.initial.clone().requires_grad_()
            with torch.enable_grad():
                logits = view.run(layout.unpack(theta), batch)[0]
                loss = nn.functional.cross_entropy(logits, logits.detach().argmax(-1))
                (gradient,) = torch.autograd.grad(loss, theta)
            squares += gradient.square()
            count, batches = count + len(batch), batches + 1
        if count == 0:
            raise ValueError("the Fisher information needs source images (2,000 are usual), but got none")
        if not torch.isfinite(squares).all():
            raise ValueError("the Fisher information is not finite; are there NaN or Inf among the source images?")
        split = (squares / batches).split(layout.sizes)
        named = zip(layout.names, split, layout.shapes, strict=True)
        return cls({name: piece.reshape(shape) for name, piece, shape in named}, count)

    def pack(self, layout: Layout) -> Tensor:
        """The importance as one vector in the order of θ."""
        missing = [name for name in layout.names if name not in self.importance]
        wrong = [
            name
            for name, shape in zip(layout.names, layout.shapes, strict=True)
            if name not in missing and self.importance[name].shape != shape
        ]
        if missing or wrong:
            what = f"it lacks {missing[0]!r}" if missing else f"{wrong[0]!r} has another shape"
            raise ValueError(
                f"this Fisher information belongs to another network or to other layers: {what}; "
                "estimate it with Fisher.estimate(network, images)"
            )
        return layout.pack(self.importance).to(layout.initial)

    def digest(self) -> str:
        return files.fingerprint(self.importance)

    def save(self, path: str | Path) -> None:
        files.write(path, "fisher", self.importance, {"count": self.count})

    @classmethod
    def load(cls, path: str | Path) -> Fisher:
        tensors, header = files.read(path, "fisher")
        return cls(tensors, header["count"])

    def __repr__(self) -> str:
        return f"Fisher({len(self.importance)} tensors, from {self.count} images)"


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


def _batches(images: Images, limit: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Batches of `size` images on the device, `limit` images in all, however they come."""
    if limit < 1 or size < 1:
        raise ValueError(f"limit and batch_size must be at least 1, but are {limit} and {size}")
    pending: list[Tensor] = []
    left = limit
    for group in _groups(images):
        for part in _cut(group[:left], size - sum(map(len, pending)), size):
            part = part.to(device)  # a batch at a time: all of them may be too many for it
            left -= len(part)
            pending.append(part.clone() if part.is_inference() else part)
            if sum(map(len, pending)) == size:
                yield torch.cat(pending)
                pending = []
        if left == 0:
            break
    if pending:
        yield torch.cat(pending)


def _cut(group: Tensor, first: int, size: int) -> list[Tensor]:
    """Parts of `size` images, the first and the last of which may be smaller; none is empty."""
    return [part for part in (group[:first], *group[first:].split(size)) if len(part)]


def _groups(images: Images) -> Iterator[Tensor]:
    for item in [images] if isinstance(images, Tensor) else images:
        group = item[0] if isinstance(item, Sequence) and len(item) > 0 else item
        if not isinstance(group, Tensor):
            raise TypeError(f"source images must be tensors, but got {type(group).__name__}; convert them first")
        if not group.is_floating_point():
            raise TypeError(f"source images must be floats, preprocessed as for prediction, but are {group.dtype}")
        if group.ndim == 3:
            group = group[None]
        if group.ndim != 4:
            raise ValueError(
                f"source images must be channels × height × width or batches of that, but got {tuple(group.shape)}"
            )
        yield group
