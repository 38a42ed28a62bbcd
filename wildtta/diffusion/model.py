"""Unconditional diffusion models: a network that finds the noise in an image, and the diffusion it was trained on.

They are read from folders of `diffusers`, and from guided-diffusion's checkpoints (`wildtta.diffusion.guided`). A file of weights
is data: nothing in it is ever run.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from wildtta.core.prediction import widened
from wildtta.files import fingerprint, put

__all__ = ["GLYPHS", "Diffusion", "DiffusionError", "Settings", "load", "read_weights"]

GLYPHS = "glyphs"
"""The name of the model of the embedded glyphs, which comes with the package."""

_WEIGHTS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
_SETTINGS = "dda.json"

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Of the network; the arithmetic around it is in float32 or wider in any case."""


class DiffusionError(ValueError):
    """A diffusion model that cannot be used, or not for these images."""


@dataclass(frozen=True)
class Settings:
    """How far images go back, and how tightly they are led: the published values, which suit 256 × 256 photographs.

    A model's folder may hold its own, in `dda.json`.
    """

    steps: int = 100
    start: int = 50
    scale: float = 6.0
    down: int = 4


class Diffusion(nn.Module):
    """A network that finds the noise in images of one size in [−1, 1], and the betas of the diffusion it was trained on.

    Args:
        network: (images, steps) → noise, as a tensor or with a `sample`; with twice the channels where it learnt the variance too.
        betas: of all steps of the diffusion.
        size: height and width of its images. channels: of them.
        variance: "fixed_small", "fixed_large", or "learned_range" where the network gives it.
        settings: what suits it in DDA.
        config: of the network and the scheduler, as diffusers writes them, for `save`.
    """

    def __init__(
        self,
        network: nn.Module,
        betas: Tensor,
        *,
        size: tuple[int, int],
        channels: int = 3,
        variance: str = "fixed_small",
        settings: Settings | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        if variance not in ("fixed_small", "fixed_large", "learned_range"):
            raise DiffusionError(
                f"the variance of the diffusion model is {variance!r}; known are fixed_small, fixed_large and learned_range"
            )
        self.network = network.eval().requires_grad_(False)
        self.betas = tuple(betas.double().tolist())
        self.size, self.channels, self.variance = size, channels, variance
        self.settings = settings or Settings()
        self.config = {name: dict(content) for name, content in (config or {}).items()}

    def noise_in(self, images: Tensor, times: Tensor, half: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The noise in images at these steps; and where the variance is between the smallest (−1) and the largest (1).

        The network runs with autocast to `half`, where that is given; what it finds is in float32 or wider.
        """
        with torch.autocast(images.device.type, dtype=half, enabled=half is not None):
            found = self.network(images, times)
        found = widened(found if isinstance(found, Tensor) else found.sample)
        if self.variance == "learned_range":
            noise, share = found.chunk(2, dim=1)
            return noise, share
        return found, torch.full_like(found[:, :1, :1, :1], 1.0 if self.variance == "fixed_large" else -1.0)

    @cached_property
    def digest(self) -> str:
        """A hash of the weights and of the diffusion."""
        text = f"{fingerprint(self.network.state_dict())}{self.betas}{self.size}{self.variance}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def save(self, folder: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write it as diffusers' `DDPMPipeline` does: unet/ and scheduler/; `dtype` is that of the weights in the file."""
        if not {"unet", "scheduler"} <= self.config.keys():
            raise DiffusionError("only a diffusion model made of a UNet2DModel can be saved; this one has no config")
        folder = Path(folder)
        for name in ("unet", "scheduler"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        weights = {
            name: (value.to(dtype) if dtype is not None and value.is_floating_point() else value).cpu().contiguous()
            for name, value in self.network.state_dict().items()
        }
        put(folder / "unet" / _WEIGHTS[0], save(weights, metadata={"format": "pt"}))
        _write_json(folder / "scheduler" / "scheduler_config.json", self.config["scheduler"])
        _write_json(folder / _SETTINGS, asdict(self.settings))
        _write_json(folder / "unet" / "config.json", self.config["unet"])

    def __getstate__(self) -> dict[str, Any]:
        """Weights may change between a copy and its original, so a copy takes its own digest."""
        return {name: value for name, value in self.__dict__.items() if name != "digest"}

    def __repr__(self) -> str:
        height, width = self.size
        return (
            f"Diffusion({width} × {height} × {self.channels}, {len(self.betas)} steps, {self.variance}, {self.digest})"
        )


def load(place: Diffusion | Path | str) -> Diffusion:
    """A diffusion model.

    Args:
        place: "glyphs"; a folder with a `UNet2DModel` of diffusers and its scheduler (unet/ and scheduler/, or both at the
            top); or a checkpoint of guided-diffusion's 256 × 256 unconditional model (others: `load_guided`).
    """
    if isinstance(place, Diffusion):
        return place
    if str(place) == GLYPHS:
        with as_file(files("wildtta.data") / "glyph_diffusion") as folder:
            return _from_folder(folder)
    path = Path(place)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        from wildtta.diffusion.guided import load_guided

        return load_guided(path)
    raise DiffusionError(
        f"there is no diffusion model {place}; give {GLYPHS!r}, a folder that diffusers wrote, or a guided-diffusion checkpoint"
    )


# -- folders of diffusers ----------------------------------------------------------------------------------------------


def _from_folder(folder: Path) -> Diffusion:
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    config = _read_json(unet / "config.json", folder)
    places = [folder / "scheduler" / "scheduler_config.json", folder / "scheduler_config.json"]
    scheduler = _read_json(next((place for place in places if place.is_file()), places[0]), folder)
    if config.get("_class_name") != "UNet2DModel":
        raise DiffusionError(
            f"{unet / 'config.json'} is of a {config.get('_class_name')}; DDA needs an unconditional UNet2DModel on pixels"
        )
    own = folder / _SETTINGS
    weights = next((unet / name for name in _WEIGHTS if (unet / name).is_file()), None)
    if weights is None:
        raise DiffusionError(f"{unet} has no {_WEIGHTS[0]}")
    return assemble(
        config, scheduler, _renamed(read_weights(weights)), weights, _settings(own) if own.is_file() else Settings()
    )


def assemble(
    config: Mapping[str, Any],
    scheduler: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    origin: Path,
    settings: Settings,
) -> Diffusion:
    """A diffusion model from the configs and weights of diffusers' network and scheduler; all must fit."""
    with _diffusers() as (network_class, scheduler_class):
        if config.get("class_embed_type") is not None or config.get("num_class_embeds") is not None:
            raise DiffusionError(
                f"{origin} is conditioned on classes, which are not known of an image; DDA needs one that is not"
            )
        if (kind := scheduler.get("prediction_type", "epsilon")) != "epsilon":
            raise DiffusionError(f"{origin} predicts {kind!r}; DDA needs a model that predicts the noise (epsilon)")
        try:
            # some configs name the class of the scheduler that they were first used with; the betas are all that counts here
            betas = scheduler_class.from_config({**scheduler, "_class_name": "DDPMScheduler"}).betas
            with torch.device("meta"):
                network = network_class.from_config(dict(config))
        except (ValueError, TypeError, KeyError, NotImplementedError, AttributeError) as error:
            raise DiffusionError(f"the config beside {origin} is not that of a diffusion model: {error}") from error
        size = config.get("sample_size")
        size = (size, size) if isinstance(size, int) else tuple(size or ())
        if len(size) != 2:
            raise DiffusionError(f"the config beside {origin} does not say how large its images are (sample_size)")
        channels, given = network.config["in_channels"], network.config["out_channels"]
        variance = str(scheduler.get("variance_type", "fixed_small"))
        if given != channels * (2 if variance == "learned_range" else 1):
            raise DiffusionError(
                f"{origin} takes {channels} channels and gives {given}, which does not fit the variance {variance!r}"
            )
        try:
            network.load_state_dict({name: value.float() for name, value in weights.items()}, assign=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise DiffusionError(f"{origin} does not hold the weights of its config: {reason[:300]}") from error
    return Diffusion(
        network,
        betas,
        size=size,
        channels=channels,
        variance=variance,
        settings=settings,
        config={"unet": config, "scheduler": scheduler},
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a file of torch.save that holds nothing else."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, IndexError,
        pickle.UnpicklingError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        reason = str(error).strip().partition("\n")[0]
        raise DiffusionError(
            f"{path} cannot be read (it is damaged, or holds more than tensors, which is never loaded): {reason}"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise DiffusionError(f"{path} is not a state_dict: it holds a {type(content).__name__}, not tensors by name")
    return content


_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Attention's parameters have other names in folders that old versions of diffusers wrote."""
    found = {}
    for name, value in weights.items():
        before, dot, last = name.rpartition(".")
        block, second, part = before.rpartition(".")
        if "attentions." in block + second and part in _OLD_NAMES:
            name = f"{block}.{_OLD_NAMES[part]}{dot}{last}"
        found[name] = value
    return found


@contextmanager
def _diffusers() -> Iterator[tuple[Any, Any]]:
    try:
        from diffusers import DDPMScheduler, UNet2DModel
    except ImportError as error:
        raise DiffusionError(
            f'DDA needs diffusers, which is not installed here ({error}): pip install "wildtta[dda]"'
        ) from error
    yield UNet2DModel, DDPMScheduler


def _settings(path: Path) -> Settings:
    content = _read_json(path, path.parent)
    try:
        return Settings(**content)
    except TypeError as error:
        raise DiffusionError(f"{path} must hold some of steps, start, scale and down, but: {error}") from error


def _read_json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DiffusionError(
            f"{folder} is not a folder of a diffusion model of diffusers: there is no {path.relative_to(folder)}"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DiffusionError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise DiffusionError(f"{path} must hold an object, but holds a {type(content).__name__}")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    put(path, (json.dumps(content, indent=2) + "\n").encode())
