"""DDA as a method: what is answered, what it depends on, and what is kept."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_diffusion import STATISTICS, diffusion
from torch import Tensor, nn

import wildtta
from wildtta.core import Restoration, Restoring, tree
from wildtta.diffusion import DiffusionError, OnDisk, diffuse_back


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).to(dtype)


def images(count: int, seed: int = 0, size: int = 8) -> Tensor:
    """Normalised, at 8 bits."""
    levels = torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(seed))
    mean, deviation = (torch.tensor(values)[:, None, None] for values in STATISTICS)
    return (levels / 255 - mean) / deviation


def adapter(model=None, **others) -> wildtta.Adapter:  # type: ignore[no-untyped-def]
    return wildtta.adapt(network(), "dda", diffusion=model or diffusion(), statistics=STATISTICS, **others)


def test_it_answers_with_the_mean_of_both_probabilities() -> None:
    model, batch = adapter(seed=3), images(4)
    part = model.method.restoration
    plain = network().eval()
    with torch.no_grad():
        restored = part(batch, torch.tensor(3))
        expected = (plain(batch).softmax(-1) + plain(restored).softmax(-1)) / 2
        assert (plain(batch).softmax(-1) - plain(restored).softmax(-1)).abs().max() > 1e-4
    answer = model(batch)
    torch.testing.assert_close(answer.softmax(-1), expected)
    torch.testing.assert_close(answer, expected.log())
    torch.testing.assert_close(model.outcome.probabilities, expected)
    with model.frozen():
        assert torch.equal(model(batch), answer)
    assert restored.shape == batch.shape
    assert (restored - batch).abs().max() > 0.1


def test_nothing_is_learned_and_an_answer_depends_on_its_image_and_the_seed_alone() -> None:
    model, batch = adapter(diffusion(dtype=torch.float64)), images(6)
    first = model(batch)
    assert not model.outcome.mask.any()
    assert (model.report.seen, model.report.updates, model.report.selected) == (6, 0, 0)
    alone = torch.cat([model(batch[place : place + 1]) for place in (5, 2, 0)])
    torch.testing.assert_close(alone, first[[5, 2, 0]], rtol=0, atol=1e-5)
    chunked = adapter(diffusion(dtype=torch.float64), chunk=4)(batch)
    torch.testing.assert_close(chunked, first, rtol=0, atol=1e-5)
    other = adapter(diffusion(dtype=torch.float64), seed=1)(batch)
    assert (other - first).abs().max() > 1e-4
    theta = tree.flatten(model.state["stream"])
    assert all(leaf.numel() == 0 for leaf in theta.values())


def test_equal_images_get_equal_noise_and_unequal_ones_other_noise() -> None:
    part = diffuse_back(diffusion(dtype=torch.float64), STATISTICS)
    batch = images(3)
    batch[1] = batch[0]
    batch[2] = batch[0]
    batch[2, 1, 4, 4] += 1 / 255 / STATISTICS[1][1]  # one grey level of one value
    found = part(batch, torch.tensor(0))
    assert torch.equal(found[0], found[1])
    assert (found[2] - found[0]).abs().mean() > 0.01


def test_a_damaged_image_costs_only_itself() -> None:
    model, batch = adapter(diffusion(dtype=torch.float64)), images(4)
    expected = model(batch)
    batch[2, 0, 0, 0] = float("nan")
    found = model(batch)
    assert model.report.skipped == 1
    torch.testing.assert_close(found[[0, 1, 3]], expected[[0, 1, 3]], rtol=0, atol=1e-5)
    assert found[2].isnan().all()


def test_an_image_that_cannot_be_restored_is_answered_as_it_is() -> None:
    class broken(Restoration):
        def forward(self, images: Tensor, seed: Tensor) -> Tensor:
            return torch.cat([images[:1], torch.full_like(images[1:], float("inf"))])

    model = wildtta.adapt(network(), lambda view: Restoring(view, broken()))
    batch = images(3)
    with torch.no_grad():
        torch.testing.assert_close(model(batch).softmax(-1), network().eval()(batch).softmax(-1))


def test_batchnorm_keeps_the_sources_statistics_and_there_is_nothing_to_export(tmp_path: Path) -> None:
    model = adapter()
    assert model.network.module[1].running_mean is not None
    with pytest.raises(ValueError, match="no adapted weights to export"):
        model.export()
    assert (model.method.forwards, model.method.backwards, model.method.diffusion_steps) == (2, 0, 8)
    model(images(2))
    model.save(tmp_path / "state.safetensors")
    again = adapter()
    again.load(tmp_path / "state.safetensors")
    assert again.report.seen == 2
    with pytest.raises(ValueError, match="state of another adapter"):
        adapter(diffusion(seed=4)).load(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="state of another adapter"):
        adapter(scale=2.0).load(tmp_path / "state.safetensors")
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images(2, 1)), model(images(2, 1)))
    model.reset()
    assert model.report.seen == 0


def test_it_runs_under_autocast_in_inference_mode_and_vmapped() -> None:
    model, batch = adapter(diffusion(dtype=torch.float64)), images(4)
    expected = model(batch)
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), expected)
    one = diffuse_back(diffusion(), STATISTICS, scale=0.1)
    whole = one(batch, torch.tensor(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = one(batch, torch.tensor(0))
    assert half.dtype == torch.float32
    assert 0 < (half - whole).abs().mean() < 0.1
    explicit = diffuse_back(diffusion(), STATISTICS, scale=0.1, precision="bf16")(batch, torch.tensor(0))
    assert torch.equal(explicit, half)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steady = diffuse_back(diffusion(), STATISTICS, scale=0.1, precision="float32")(batch, torch.tensor(0))
    assert torch.equal(steady, whole)
    part = diffuse_back(diffusion(dtype=torch.float64), STATISTICS)
    seeds, streams = torch.tensor([0, 5]), torch.stack([batch, images(4, 1)])
    together = torch.func.vmap(lambda seed, stream: part(stream, seed))(seeds, streams)
    for place in range(2):
        torch.testing.assert_close(together[place], part(streams[place], seeds[place]), rtol=0, atol=1e-5)


def test_images_of_another_size_or_with_other_channels_are_an_error_or_resized() -> None:
    model = adapter()
    with pytest.raises(DiffusionError, match=r"is of images of 8 × 8 pixels, these have 12 × 12; .*resize=True"):
        model(images(2, size=12))
    with pytest.raises(DiffusionError, match="3 channels, these have 1"):
        model.method.restoration(torch.zeros(2, 1, 8, 8), torch.tensor(0))
    answer = adapter(resize=True)(images(2, size=12))
    assert torch.isfinite(answer).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 1}, "steps must be from 2 to 1000"),
        ({"start": 0}, "start is a step of the 20, from 1 to 19, but is 0"),
        ({"start": 20}, "start is a step of the 20"),
        ({"scale": -1.0}, "scale must be 0 or more"),
        ({"down": 3}, r"down must divide the model's sides \(8, 8\), but is 3"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"precision": "half"}, "precision must be one of float32, bf16, fp16"),
        ({"statistics": (0.5, 0.2)}, "statistics are"),
        ({"statistics": ((0.5,) * 2, (0.2,) * 2)}, "each with 3 numbers"),
        ({"statistics": ((0.5,) * 3, (0.0,) * 3)}, "deviations above 0"),
    ],
)
def test_settings_that_cannot_be_are_errors(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        diffuse_back(diffusion(), **{"statistics": STATISTICS} | wrong)


def test_progress_is_told(tmp_path: Path) -> None:
    part = diffuse_back(diffusion(), STATISTICS, chunk=2)
    told: list[tuple[int, int]] = []
    part.progress = lambda done, total: told.append((done, total))
    part(images(3), torch.tensor(0))
    assert told[:8] == [(2 * step, 24) for step in range(1, 9)]
    assert told[8:] == [(16 + step, 24) for step in range(1, 9)]


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_adapted_images_are_kept_and_found_again(tmp_path: Path) -> None:
    part, batch, seed = diffuse_back(diffusion(), STATISTICS), images(4), torch.tensor(7)
    exact = part(batch, seed)
    kept = OnDisk(part, tmp_path / "adapted")
    first = kept(batch[[0, 1, 2, 1]], seed)  # one comes twice
    assert (kept.made, kept.found) == (3, 1)
    level = 0.5 / 255 / torch.tensor(STATISTICS[1])[:, None, None] + 1e-5
    assert ((first - exact[[0, 1, 2, 1]]).abs() <= level).all()
    again = OnDisk(part, tmp_path / "adapted")
    second = again(batch, seed)
    assert (again.made, again.found) == (1, 3)
    assert torch.equal(second[[0, 1, 2]], first[:3])
    (folder,) = (tmp_path / "adapted").iterdir()
    pictures = sorted(folder.iterdir())
    assert len(pictures) == 4
    with Image.open(pictures[0]) as picture:
        assert (picture.size, picture.mode) == ((8, 8), "RGB")


def test_what_was_made_otherwise_is_not_taken_and_what_is_damaged_is_made_again(tmp_path: Path) -> None:
    part, batch, seed = diffuse_back(diffusion(), STATISTICS), images(2), torch.tensor(7)
    first = OnDisk(part, tmp_path)(batch, seed)
    for other, number in [
        (diffuse_back(diffusion(), STATISTICS, scale=2.0), 7),
        (diffuse_back(diffusion(), STATISTICS, start=5), 7),
        (diffuse_back(diffusion(seed=9), STATISTICS), 7),
        (part, 8),
    ]:
        kept = OnDisk(other, tmp_path)
        kept(batch, torch.tensor(number))
        assert (kept.made, kept.found) == (2, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = OnDisk(part, tmp_path)
        kept(batch, seed)
    assert kept.made == 2
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:40])
    kept = OnDisk(part, tmp_path)
    assert torch.equal(kept(batch, seed), first)
    assert kept.made == 2


def test_grey_images_are_kept_too(tmp_path: Path) -> None:
    from tiny_diffusion import unet

    from wildtta.diffusion import Diffusion

    model = Diffusion(unet(in_channels=1, out=1), torch.linspace(1e-4, 0.02, 100), size=(8, 8), channels=1)
    part = diffuse_back(model, ((0.5,), (0.5,)), steps=10, start=3)
    batch = torch.rand(2, 1, 8, 8)
    kept = OnDisk(part, tmp_path)
    first = kept(batch, torch.tensor(0))
    assert torch.equal(kept(batch, torch.tensor(0)), first)
    assert (kept.made, kept.found) == (2, 2)


def test_importing_the_library_does_not_import_diffusers() -> None:
    code = "import sys, wildtta, wildtta.diffusion; sys.exit('diffusers' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
