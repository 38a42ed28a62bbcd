"""Diffusion models on disk: those that can be read, and what is said of those that cannot."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_diffusion import diffusion, unet

import wildtta
from wildtta.diffusion import DiffusionError, Settings, diffuse_back, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    diffusion().save(tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_was_saved_is_read(folder: Path) -> None:
    model, found = diffusion(), load(folder)
    assert repr(found) == repr(model)
    assert found.settings == Settings(20, 8, 1.0, 2)
    x, times = torch.randn(2, 3, 8, 8), torch.tensor([3, 700])
    assert torch.equal(found.noise_in(x, times)[0], model.noise_in(x, times)[0])
    assert not any(parameter.requires_grad for parameter in found.parameters())
    diffusion().save(folder, dtype=torch.float16)
    half = load(folder)
    assert half.digest != model.digest
    torch.testing.assert_close(half.noise_in(x, times)[0], model.noise_in(x, times)[0], rtol=0.01, atol=0.01)


def test_folders_that_diffusers_writes_are_read(tmp_path: Path) -> None:
    """A pipeline, and a network with a scheduler beside it."""
    from diffusers import DDPMPipeline, DDPMScheduler

    network = unet()
    DDPMPipeline(network, DDPMScheduler(variance_type="fixed_large")).save_pretrained(tmp_path / "pipeline")
    found = load(tmp_path / "pipeline")
    assert (found.variance, found.size, found.settings) == ("fixed_large", (8, 8), Settings(100, 50, 6.0, 4))
    network.save_pretrained(tmp_path / "flat")
    DDPMScheduler().save_pretrained(tmp_path / "flat")
    assert load(tmp_path / "flat").variance == "fixed_small"
    # weights of torch.save, and attention under its old names
    weights = load_file(tmp_path / "flat" / "diffusion_pytorch_model.safetensors")
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    for new, name in old.items():
        weights = {key.replace(f".{new}.", f".{name}."): value for key, value in weights.items()}
    (tmp_path / "flat" / "diffusion_pytorch_model.safetensors").unlink()
    torch.save(weights, tmp_path / "flat" / "diffusion_pytorch_model.bin")
    x, times = torch.randn(1, 3, 8, 8), torch.tensor([5])
    torch.testing.assert_close(load(tmp_path / "flat").noise_in(x, times)[0], found.noise_in(x, times)[0])


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("unet/config.json", {"_class_name": "UNet2DConditionModel"}, "is of a UNet2DConditionModel; DDA needs an unconditional"),
        ("unet/config.json", {"num_class_embeds": 10}, "conditioned on classes"),
        ("unet/config.json", {"sample_size": None}, "does not say how large its images are"),
        ("unet/config.json", {"block_out_channels": [8, 12]}, "does not hold the weights of its config"),
        ("unet/config.json", {"block_out_channels": [8]}, "not that of a diffusion model"),
        ("unet/config.json", {"out_channels": 6}, "takes 3 channels and gives 6"),
        ("scheduler/scheduler_config.json", {"prediction_type": "v_prediction"}, "predicts 'v_prediction'"),
        ("scheduler/scheduler_config.json", {"beta_schedule": "strange"}, "not that of a diffusion model"),
        ("scheduler/scheduler_config.json", {"variance_type": "learned"}, "variance of the diffusion model is 'learned'"),
        ("scheduler/scheduler_config.json", {"variance_type": "learned_range"}, "takes 3 channels and gives 3"),
        ("dda.json", {"stat": 5}, "must hold some of steps, start, scale and down"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(folder: Path, file: str, values: dict, words: str) -> None:
    change(folder / file, **values)
    with pytest.raises(DiffusionError, match=words):
        load(folder)


def test_what_is_not_there_or_damaged_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DiffusionError, match="there is no diffusion model"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DiffusionError, match=r"not a folder of a diffusion model of diffusers: there is no config\.json"
    ):
        load(tmp_path / "empty")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    whole = weights.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:6], b""):
        weights.write_bytes(part)
        with pytest.raises(DiffusionError, match="cannot be read"):
            load(folder)
    weights.unlink()
    with pytest.raises(DiffusionError, match=r"has no diffusion_pytorch_model\.safetensors"):
        load(folder)
    (folder / "unet" / "config.json").write_text("{")
    with pytest.raises(DiffusionError, match="not readable JSON"):
        load(folder)
    (folder / "scheduler" / "scheduler_config.json").unlink()
    (folder / "unet" / "config.json").write_text("{}")
    with pytest.raises(DiffusionError, match=r"there is no scheduler/scheduler_config\.json"):
        load(folder)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("how", ["torch.save", "pickle"])
def test_code_in_a_file_is_never_run(folder: Path, tmp_path: Path, how: str) -> None:
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    content = {"conv_in.weight": Trap(tmp_path / "sprung")}
    for file in (folder / "unet" / "diffusion_pytorch_model.bin", tmp_path / "checkpoint.pt"):
        if how == "pickle":
            file.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, file)
        with pytest.raises(DiffusionError, match="damaged, or holds more than tensors, which is never loaded"):
            load(folder if file.suffix == ".bin" else file)
    assert not (tmp_path / "sprung").exists()


def test_other_files_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    with pytest.raises(DiffusionError, match="holds a list, not tensors by name"):
        load(tmp_path / "list.pt")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(DiffusionError, match="is not a guided-diffusion UNet"):
        load(tmp_path / "other.safetensors")
    (tmp_path / "text.pt").write_text("not weights")
    with pytest.raises(DiffusionError, match="cannot be read"):
        load(tmp_path / "text.pt")


def test_without_diffusers_it_is_said_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(DiffusionError, match=r'pip install "wildtta\[dda\]"'):
        load(folder)
    with pytest.raises(ValueError, match=r'pip install "wildtta\[dda\]"'):
        wildtta.adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2)), "dda", diffusion="glyphs")


def test_dda_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="the method 'dda' needs diffusion: give diffusion=FOLDER"):
        wildtta.adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2)), "dda")


def test_the_embedded_model_is_small_and_its_images_do_not_depend_on_their_neighbours() -> None:
    model = load("glyphs")
    place = Path(wildtta.__file__).parent / "data" / "glyph_diffusion"
    assert sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) < 8 << 20
    assert (model.size, model.channels, len(model.betas)) == ((32, 32), 3, 1000)
    from wildtta.data.glyphs import PREPROCESSING, glyph_batches

    images, _ = next(glyph_batches(3, 3))
    part = diffuse_back(model, (PREPROCESSING.mean, PREPROCESSING.std))
    normal = PREPROCESSING.normalise((images + 0.1 * torch.randn_like(images)).clamp(0, 1))
    together = part(normal, torch.tensor(0))
    alone = torch.cat([part(image[None], torch.tensor(0)) for image in normal])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
