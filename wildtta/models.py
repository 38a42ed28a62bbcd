"""Classifiers by name, with what belongs to them: how images are prepared, and what their outputs mean.

load_model("timm:resnet50_gn")                                  # downloads the weights, or takes them from timm's cache
load_model("timm:resnet50_gn", weights="resnet50_gn.safetensors")
load_model("torchvision:resnet50")
load_model("my_models.py:build")                                # a function of your own that returns a module or a `Model`
load_model("glyph-resnet")                                      # one of the two in the package
"""

from __future__ import annotations

import copy
import difflib
import importlib.util
import math
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from wildtta.files import fingerprint
from wildtta.network import _find_head

__all__ = ["STATISTICS", "Model", "ModelError", "Preprocessing", "imagenet_classes", "load_model"]

EMBEDDED = ("glyph-resnet", "glyph-vit")
"""The models that come with the package."""

_FORMS = ("timm:NAME", "torchvision:NAME", "path/to/file.py:function")
"""How others are named."""

_Colour = tuple[float, float, float]

STATISTICS: dict[str, tuple[_Colour, _Colour]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Means and deviations that can be asked for instead of the model's own. (The published figures of ViT-B/16, which wants
"half", were made with "imagenet".)"""


class ModelError(ValueError):
    """A model that cannot be had. The message says what was found and what to do."""


@dataclass(frozen=True)
class Preprocessing:
    """How a model wants its images: first the geometry, on 8 bits; later, after any corruption, the normalisation.

    Attributes:
        size: height and width.
        resize: the shorter side before the centre crop; None where images are only cropped.
        interpolation: of the resizing, as Pillow calls it.
        mean, std: of the normalisation.
        squash: resize both sides to `resize`, whatever their ratio.
    """

    size: tuple[int, int]
    resize: int | None = None
    interpolation: str = "bicubic"
    mean: _Colour = STATISTICS["imagenet"][0]
    std: _Colour = STATISTICS["imagenet"][1]
    squash: bool = False

    def __post_init__(self) -> None:
        if self.interpolation.upper() not in Image.Resampling.__members__:
            known = ", ".join(name.lower() for name in Image.Resampling.__members__)
            raise ModelError(f"there is no interpolation {self.interpolation!r}; choose from {known}")
        if len(self.size) != 2 or min(self.size) < 1:
            raise ModelError(f"size must be (height, width), not {self.size}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ModelError(f"mean and std must be three numbers each, std positive, not {self.mean} and {self.std}")

    def picture(self, image: Image.Image, *, exact: bool = False) -> Tensor:
        """An image as 3 × H × W bytes: RGB, resized and cropped to the model's size.

        With `exact` the image is taken for one that is resized already: it is cropped only (and so stays as it is if it has
        the size), or enlarged where it is smaller.
        """
        image = image if image.mode == "RGB" else image.convert("RGB")
        if self.resize is not None and not exact:
            sides = (self.resize, self.resize) if self.squash else _with_shorter_side(image.size, self.resize)
            image = self._resized(image, sides)
        height, width = self.size
        short = max(width / image.width, height / image.height)
        if short > 1:
            image = self._resized(image, (math.ceil(short * image.width), math.ceil(short * image.height)))
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        if image.size != (width, height):
            image = image.crop((left, top, left + width, top + height))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def _resized(self, image: Image.Image, sides: tuple[int, int]) -> Image.Image:
        return image if image.size == sides else image.resize(sides, Image.Resampling[self.interpolation.upper()])

    def normalise(self, images: Tensor) -> Tensor:
        """Images in [0, 1] (B × 3 × H × W, on any device) as the network takes them."""
        mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (self.mean, self.std))
        return (images - mean) / std


def _with_shorter_side(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with this shorter side, and the longer one truncated, as torchvision does."""
    width, height = size
    return (side, int(side * height / width)) if width <= height else (int(side * width / height), side)


@dataclass
class Model:
    """A classifier and what belongs to it.

    Attributes:
        name: as it stands in tables.
        network: in evaluation mode, float32, on the CPU; it takes normalised images and returns logits.
        classes: one name an output (WordNet ids where the model is one of ImageNet's); None where they are not known.
        stand_in: whether numbers from it are only for trying the library, and have to say so.
    """

    name: str
    network: nn.Module
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None = None
    stand_in: bool = False

    def __post_init__(self) -> None:
        outputs = self.outputs
        if self.classes is None:
            return
        self.classes = tuple(self.classes)
        if len(self.classes) != outputs:
            raise ModelError(
                f"{self.name}: {len(self.classes)} class names for a network of {outputs} outputs; give one an output, or None"
            )
        if len(set(self.classes)) < len(self.classes):
            twice = sorted(name for name in set(self.classes) if self.classes.count(name) > 1)
            raise ModelError(f"{self.name}: the class name {twice[0]!r} stands for more than one output")

    @property
    def outputs(self) -> int:
        """How many classes the network tells apart."""
        return _head(self.network)[1].shape[0]

    def restricted(self, outputs: Sequence[int]) -> Model:
        """A copy that knows only some of the classes: its head is cut down to these rows, in this order."""
        rows = torch.as_tensor(list(outputs), dtype=torch.int64)
        if len(rows) < 2 or len(set(rows.tolist())) < len(rows) or rows.min() < 0 or rows.max() >= self.outputs:
            raise ModelError(
                f"the outputs to keep must be two or more different numbers from 0 to {self.outputs - 1}, not {list(outputs)}"
            )
        network = copy.deepcopy(self.network)
        layer: Any = network.get_submodule(_head(network)[0])
        for name in ("weight", "bias"):
            if (parameter := getattr(layer, name, None)) is not None:
                kept = parameter.detach()[rows.to(parameter.device)].clone()
                setattr(layer, name, nn.Parameter(kept, requires_grad=parameter.requires_grad))
        for holder, attribute in ((layer, "out_features"), (layer, "out_channels"), (network, "num_classes")):
            if getattr(holder, attribute, None) == self.outputs:
                setattr(holder, attribute, len(rows))
        classes = None if self.classes is None else tuple(self.classes[row] for row in rows.tolist())
        return replace(self, network=network, classes=classes)

    def digest(self) -> str:
        """A hash of the weights."""
        return fingerprint(self.network.state_dict())


def _head(network: nn.Module) -> tuple[str, Tensor]:
    """The last affine layer's name and weight."""
    try:
        name = _find_head(network, None)
    except ValueError as error:
        raise ModelError(
            f"a {type(network).__name__} is no classifier that can be used: it has no Linear layer and no 1 × 1 convolution that "
            "could map features to logits"
        ) from error
    weight = network.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return name, weight


# -- by name -----------------------------------------------------------------------------------------------------------


def load_model(spec: str, *, weights: str | Path | None = None, statistics: str = "own") -> Model:
    """The model of this name.

    Args:
        spec: "glyph-resnet", "glyph-vit", "timm:NAME", "torchvision:NAME", or "path/to/file.py:function": the name of a
            function of no arguments that returns an `nn.Module` or a `Model`. (A module gets ImageNet's preprocessing, or
            timm's where it is one of timm's.)
        weights: a safetensors file, or one of `torch.save(model.state_dict())`. Without it timm and torchvision give their
            pretrained ones, which they download or have in their caches.
        statistics: "own" (the model's), "imagenet" or "half".
    """
    if statistics != "own" and statistics not in STATISTICS:
        raise ModelError(f"unknown statistics {statistics!r}; choose from own, {', '.join(STATISTICS)}")
    state = None if weights is None else _read_weights(Path(weights))
    kind, _, name = spec.partition(":")
    if spec in EMBEDDED:
        from wildtta.data.glyphs import load_network

        model = load_network(spec)
    elif kind in ("timm", "torchvision") and name:
        model = (_from_timm if kind == "timm" else _from_torchvision)(name, state)
    elif ".py" in spec:
        model = _from_file(spec)
    else:
        raise _unknown(spec)
    if state is not None:
        _fill(model.network, state, f"{weights} does not fit {spec}")
    if statistics != "own":
        mean, std = STATISTICS[statistics]
        model = replace(model, preprocessing=replace(model.preprocessing, mean=mean, std=std))
    model.network.float().eval()
    return model


def _unknown(spec: str) -> ModelError:
    near = difflib.get_close_matches(spec, EMBEDDED, n=1, cutoff=0.8)
    hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(EMBEDDED)}, or write {', '.join(_FORMS)}"
    return ModelError(f"unknown model {spec!r}; {hint}")


def _from_timm(name: str, state: Mapping[str, Tensor] | None) -> Model:
    timm = _needed("timm")
    remote = name.startswith(("hf-hub:", "hf_hub:", "local-dir:"))
    if not remote and not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "timm.list_models() lists those it has"
        raise ModelError(f"timm has no model {name!r}; {hint}")
    network = _built(
        lambda pretrained, **options: timm.create_model(name, pretrained=pretrained, **options), f"timm:{name}", state
    )
    return Model(f"timm:{name}", network, _timm_preprocessing(network), _timm_classes(network))


def _from_torchvision(name: str, state: Mapping[str, Tensor] | None) -> Model:
    models = _needed("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known)}"
        raise ModelError(f"torchvision has no classifier {name!r}; {hint}")

    def create(pretrained: bool, **options: Any) -> nn.Module:
        return models.get_model(name, weights="DEFAULT" if pretrained else None, **options)

    network: Any = _built(create, f"torchvision:{name}", state)
    if hasattr(network, "transform_input"):
        network.transform_input = True  # as with torchvision's own weights: Inception and GoogLeNet undo the statistics
    preset = models.get_model_weights(name).DEFAULT.transforms()
    side = preset.crop_size[0]
    preprocessing = Preprocessing(
        (side, side), preset.resize_size[0], preset.interpolation.value, tuple(preset.mean), tuple(preset.std)
    )
    classes = imagenet_classes() if _head(network)[1].shape[0] == 1000 else None
    return Model(f"torchvision:{name}", network, preprocessing, classes)


def _built(create: Callable[..., nn.Module], spec: str, state: Mapping[str, Tensor] | None) -> nn.Module:
    """The pretrained network; or, where there are weights to fill in, an empty one with as many outputs as they have."""
    if state is None:
        try:
            return create(True)
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # each library, and each version, fails in its own way without a connection
            raise ModelError(
                f"the pretrained weights of {spec} could not be had ({type(error).__name__}: {_first_line(error)}); where "
                "there is no connection, download them elsewhere and give the file with --weights"
            ) from error
    try:
        network = create(False)
        name, weight = _head(network)
        outputs = len(state[f"{name}.weight"]) if f"{name}.weight" in state else len(weight)
        return network if outputs == len(weight) else create(False, num_classes=outputs)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # an unknown tag, say, or a name of the hub's whose configuration is not in the cache
        raise ModelError(f"{spec} cannot be built ({type(error).__name__}: {_first_line(error)})") from error


def _timm_preprocessing(network: nn.Module) -> Preprocessing:
    """What timm's own configuration of the network says."""
    config = _needed("timm.data").resolve_model_data_config(network)
    own = getattr(getattr(network, "patch_embed", None), "img_size", None)  # built for another size than published
    height, width = own if isinstance(own, tuple) and len(own) == 2 else config["input_size"][1:]
    if config["crop_mode"] not in ("center", "squash"):
        raise ModelError(
            f"this model's images are cropped in timm's mode {config['crop_mode']!r}, which is not supported; build it in a "
            "file of your own and return a wildtta.models.Model with the Preprocessing you want"
        )
    return Preprocessing(
        size=(height, width),
        resize=math.floor(min(height, width) / config["crop_pct"]),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        squash=config["crop_mode"] == "squash",
    )


def _timm_classes(network: nn.Module) -> tuple[str, ...] | None:
    """The class names of ImageNet's sets (1k, 12k, 21k), which timm knows by the number of outputs."""
    data = _needed("timm.data")
    subset = data.infer_imagenet_subset({"num_classes": _head(network)[1].shape[0]})
    return None if subset is None else tuple(data.ImageNetInfo(subset).label_names())


def imagenet_classes() -> tuple[str, ...] | None:
    """The WordNet ids of ImageNet's 1,000 classes in the order of the outputs, as timm has them; None without timm."""
    if importlib.util.find_spec("timm") is None:
        return None
    return tuple(_needed("timm.data").ImageNetInfo().label_names())


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ModelError(f"{package} is needed for this: pip install 'wildtta[timm]' ({error})") from error


# -- from a file of the user's -----------------------------------------------------------------------------------------


def _from_file(spec: str) -> Model:
    path, _, function = spec.rpartition(":")
    if not path.endswith(".py") or not function.isidentifier():
        raise ModelError(f"{spec!r} does not name a function; write path/to/file.py:function")
    module = _imported(Path(path))
    build = getattr(module, function, None)
    if not callable(build):
        own = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ModelError(f"{path} has no function {function!r}; it has {', '.join(own) or 'none'}")
    try:
        built = build()
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{spec} failed: {type(error).__name__}: {error}") from error
    if isinstance(built, Model):
        return built
    if not isinstance(built, nn.Module):
        raise ModelError(
            f"{spec} returned a {type(built).__name__}, where an nn.Module or a wildtta.models.Model is needed"
        )
    name = f"{Path(path).stem}:{function}"
    if hasattr(built, "pretrained_cfg"):  # one of timm's
        return Model(name, built, _timm_preprocessing(built), _timm_classes(built))
    return Model(name, built, Preprocessing((224, 224), 256, "bilinear"))


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    name = f"_wildtta_model_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # classes in the file look themselves up there
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


# -- weights -----------------------------------------------------------------------------------------------------------


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name; no code in it is run."""
    if not path.is_file():
        raise ModelError(f"there is no weights file {path}")
    with path.open("rb") as file:
        start = file.read(9)
    if path.suffix == ".safetensors" or start[8:] == b"{":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"{path} is not a readable safetensors file (truncated, or another format): {error}"
            ) from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(
            r"GLOBAL (\S+)", str(error)
        )  # the rest of torch's message says how to run the code all the same
        raise ModelError(
            f"{path} holds {found[1] if found else 'something'} besides tensors, which is not loaded: it could run code. If you "
            "trust the file, load it yourself and write torch.save(model.state_dict(), …) or a safetensors file"
        ) from error
    except Exception as error:  # a damaged file makes torch fail in many ways
        raise ModelError(
            f"{path} is not a readable file of weights (truncated, or another format; {type(error).__name__}: "
            f"{_first_line(error)})"
        ) from error
    return _state_dict(content, path)


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Weights as they are, or as training scripts wrap them: under a key, and named for a parallel module."""
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items())
    ):
        found = (
            f"a dict of {', '.join(map(str, list(content)[:5]))}"
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise ModelError(f"{path} holds {found}, where a dict of tensors by name was expected (model.state_dict())")
    parallel = all(name.startswith("module.") for name in content)
    return {name.removeprefix("module.") if parallel else name: value for name, value in content.items()}


def _fill(network: nn.Module, state: Mapping[str, Tensor], mismatch: str) -> None:
    own = network.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    reshaped = [
        f"{name} is {_shape(state[name])}, the network has {_shape(own[name])}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    faults = [
        f"{title}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        for title, names in (("missing", missing), ("not in the network", unexpected), ("of another shape", reshaped))
        if names
    ]
    if faults:
        raise ModelError(
            f"{mismatch}; {'; '.join(faults)}. Give the weights of this very architecture, or build the one they are for in "
            "a file (path/to/file.py:function)"
        )
    broken = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise ModelError(f"{mismatch}: {broken[0]} has values that are not finite; the file is damaged")
    network.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in state.items()}, strict=False
    )


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "one number"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
