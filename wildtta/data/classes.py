"""Which output of a model each class of a data set is."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wildtta.data.base import DataError, some
from wildtta.models import Model, imagenet_classes

__all__ = ["Matching", "imagenet_names", "match", "subset"]


@dataclass(frozen=True)
class Matching:
    """Classes of the data by label, the model's outputs they are (None: all, in order), and the label of each name."""

    classes: tuple[str, ...]
    outputs: tuple[int, ...] | None
    label: Mapping[str, int]
    assumed: str = ""
    """What had to be taken for granted, for want of names."""


def match(names: Sequence[str], model: Model, where: str, *, imagenet: bool = False, whole: bool = False) -> Matching:
    """Match class names of the data (sorted) with the model's outputs.

    By name where the model's are known, or are ImageNet's for all that is known (`imagenet`: the data are). Else the sorted
    names must be as many as the outputs, and are taken to stand in their order. With `whole` the head is not cut down to
    the classes that there are.
    """
    known, assumed = model.classes, ""
    if known is None and imagenet and model.outputs == 1000 and (known := imagenet_classes()) is not None:
        assumed = (
            f"the class names of {model.name} are not known; its 1000 outputs are taken for ImageNet's in their order"
        )
    if known is None:
        return _by_order(names, model, where)
    place = {name: number for number, name in enumerate(known)}
    if strange := [name for name in names if name not in place]:
        raise DataError(
            f"{where}: {len(strange):,} of {len(names):,} classes are not among the {len(known):,} of {model.name}: "
            f"{some(strange)}, where it has such as {some(known, 3)}; give data of the model's classes, named as it names them, "
            "or a model of these"
        )
    outputs = tuple(range(len(known))) if whole else tuple(sorted(place[name] for name in names))
    if len(outputs) < 2:
        raise DataError(f"{where} has images of the class {names[0]} alone; a classifier needs two or more")
    classes = tuple(known[output] for output in outputs)
    label = {name: number for number, name in enumerate(classes)}
    return Matching(classes, None if len(outputs) == len(known) else outputs, label, assumed)


def _by_order(names: Sequence[str], model: Model, where: str) -> Matching:
    if len(names) != model.outputs:
        raise DataError(
            f"{where} has {len(names):,} classes ({some(names, 3)}) and {model.name} has {model.outputs:,} outputs, whose names "
            "are not known, so which is which cannot be told; give data with a folder for each output, or let a function in a "
            "file return a wildtta.models.Model with classes=…"
        )
    assumed = f"the class names of {model.name} are not known; its outputs are taken for the sorted classes of the data"
    return Matching(tuple(names), None, {name: number for number, name in enumerate(names)}, assumed)


def imagenet_names(model: Model, where: str) -> tuple[str, ...]:
    """What ImageNet's class numbers stand for; of a model of 1000 named classes where timm is not there to say it."""
    names = imagenet_classes() or model.classes
    if names is None or len(names) != 1000:
        raise DataError(
            f"{where} numbers ImageNet's classes, and timm, which knows them, is missing: pip install 'wildtta[timm]'"
        )
    return names


def subset(name: str) -> tuple[str, ...] | None:
    """The 200 WordNet ids of "imagenet-r" or "imagenet-a", as timm carries them; None where it does not."""
    try:
        content = pkgutil.get_data("timm.data", f"_info/{name.replace('-', '_')}_synsets.txt")
    except (ImportError, OSError):
        return None
    return None if content is None else tuple(content.decode().split())
