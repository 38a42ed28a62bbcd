"""What `corrupt` promises whatever the corruption: shapes, levels, errors, and the same bits in any batch."""

from __future__ import annotations

import subprocess
import sys

import corruption_helpers as helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wildtta.corruptions as corruptions
from wildtta.corruptions import CORRUPTIONS, EXTRA, FAMILIES, corrupt
from wildtta.corruptions.parameters import PARAMETERS, reference_for

ALL = CORRUPTIONS + EXTRA


def test_the_registry_is_the_papers():
    assert len(CORRUPTIONS) == 15
    assert CORRUPTIONS[0] == "gaussian_noise"
    assert CORRUPTIONS[-1] == "jpeg_compression"
    assert sum(FAMILIES.values(), ()) == CORRUPTIONS
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for table in PARAMETERS.values():
        assert set(table) == set(ALL)
        assert all(len(row) == 5 for row in table.values())


def test_reference_follows_the_size():
    assert [reference_for(side) for side in (32, 40, 41, 96, 97, 224, 384)] == [32, 32, 64, 64, 224, 224, 224]


@pytest.mark.parametrize("name", ALL)
def test_levels_are_8_bit_and_the_input_is_left_alone(name):
    images = helpers.pictures(2, 32)
    before = images.clone()
    for severity in range(1, 6):
        result = corrupt(images, name, severity)
        assert result.dtype == torch.float32
        assert result.shape == images.shape
        levels = result * 255
        assert torch.equal(result, levels.round() / 255)
        assert 0 <= levels.min() <= levels.max() <= 255
        assert not torch.equal(result, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("name", "side"), [(name, side) for name in ALL for side in (32, 64)])
def test_same_bits_alone_in_a_batch_and_in_any_order(name, side):
    images, seeds = helpers.pictures(8, side), torch.arange(100, 108)
    for severity in (1, 5) if side == 32 else (3,):
        together = corrupt(images, name, severity, seeds=seeds)
        alone = torch.cat([corrupt(images[i : i + 1], name, severity, seeds=seeds[i : i + 1]) for i in range(8)])
        assert torch.equal(together, alone)
        order = torch.tensor([3, 7, 0, 1, 6])
        assert torch.equal(together[order], corrupt(images[order], name, severity, seeds=seeds[order]))


@pytest.mark.parametrize("name", ALL)
def test_same_bits_however_the_work_is_sliced(name, monkeypatch):
    """The path of other devices takes the whole batch at once; sizes that fill no vector make its tails visible."""
    images = helpers.pictures(4, 61, 67)
    sliced = corrupt(images, name, 3)
    for size in (1, 1 << 30):
        monkeypatch.setattr(corruptions, "_SLICE", size)
        assert torch.equal(sliced, corrupt(images, name, 3))


def test_same_bits_at_full_size(monkeypatch):
    monkeypatch.setattr(corruptions, "_SLICE", 1 << 30)
    images = helpers.pictures(2, 224)
    for name in ALL:
        assert torch.equal(corrupt(images, name, 3)[1:], corrupt(images[1:], name, 3, seeds=torch.tensor([1]))), name


def test_same_bits_in_another_process():
    code = (
        "import torch, zlib; torch.set_num_threads(1); from wildtta.corruptions import *\n"
        "x = (torch.arange(3 * 32 * 32) * 37 % 256).reshape(1, 3, 32, 32) / 255\n"
        "print([zlib.crc32(corrupt(x, n, 5).numpy().tobytes()) for n in CORRUPTIONS + EXTRA])"
    )
    here, there = ([sys.executable, "-c", code] for _ in range(2))
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in (here, there)]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(",") == 18


@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "glass_blur",
        "motion_blur",
        "snow",
        "frost",
        "fog",
        "elastic_transform",
        "speckle_noise",
        "spatter",
    ],
)
def test_the_seed_decides(name):
    images = helpers.pictures(1, 64)
    one, again, two = (corrupt(images, name, 3, seeds=torch.tensor([seed])) for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


def test_the_default_seeds_count_up():
    images = helpers.pictures(4, 32)
    result = corrupt(images, "gaussian_noise", 3, seeds=torch.arange(4))
    assert torch.equal(corrupt(images, "gaussian_noise", 3), result)


@pytest.mark.parametrize("name", ALL)
def test_any_shape(name):
    for shape in ((16, 50), (97, 37)):
        for reference in (224, 32):
            images = helpers.pictures(2, *shape)
            assert corrupt(images, name, 5, reference=reference).shape == images.shape


@given(
    st.sampled_from(ALL), st.integers(16, 80), st.integers(16, 80), st.integers(1, 5), st.integers(-(2**63), 2**63 - 1)
)
@settings(max_examples=40, deadline=None)
def test_any_size_and_seed(name, height, width, severity, seed):
    images, seeds = helpers.pictures(2, height, width), torch.tensor([seed, 0])
    result = corrupt(images, name, severity, seeds=seeds)
    assert result.isfinite().all()
    assert torch.equal(result[:1], corrupt(images[:1], name, severity, seeds=seeds[:1]))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_black_and_white(name, level):
    for severity in (1, 5):
        assert corrupt(torch.full((1, 3, 64, 64), level), name, severity).isfinite().all()


def test_other_float_types_and_no_images():
    images = helpers.pictures(2, 32)
    expected = corrupt(images, "brightness", 3)
    for dtype in (torch.float16, torch.float64):
        assert torch.equal(corrupt(images.to(dtype), "brightness", 3), expected)
    for name in ALL:
        assert corrupt(images[:0], name, 3).shape == (0, 3, 32, 32)


def test_gradients_are_not_recorded():
    images = helpers.pictures(1, 32).requires_grad_()
    assert not corrupt(images, "contrast", 3).requires_grad


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.zeros(1, 3, 32, 32, dtype=torch.uint8)}, TypeError, "divide 8-bit images by 255"),
        ({"images": [[0.0]]}, TypeError, "torch tensor, not list"),
        ({"images": torch.zeros(3, 32, 32)}, ValueError, r"shape \(3, 32, 32\); add a batch axis"),
        ({"images": torch.zeros(1, 32, 32, 3)}, ValueError, "permute"),
        ({"images": torch.zeros(1, 1, 32, 32)}, ValueError, "B x 3 x H x W"),
        ({"images": torch.zeros(1, 3, 8, 32)}, ValueError, "at least 16 pixels a side, not 8 x 32"),
        ({"images": torch.full((1, 3, 32, 32), 1.5)}, ValueError, "range from 1.5 to 1.5"),
        ({"images": torch.full((1, 3, 32, 32), -0.1)}, ValueError, "undo their normalisation"),
        ({"images": torch.full((1, 3, 32, 32), torch.nan)}, ValueError, "replace the NaN"),
        ({"name": "gausian_noise"}, ValueError, "did you mean 'gaussian_noise'"),
        ({"name": "zzz"}, ValueError, "choose from gaussian_noise, shot_noise"),
        ({"severity": 0}, ValueError, "from 1 to 5, not 0"),
        ({"severity": 6}, ValueError, "from 1 to 5, not 6"),
        ({"severity": 2.0}, TypeError, "not float"),
        ({"severity": True}, TypeError, "not bool"),
        ({"reference": 128}, ValueError, "224, 64, 32 .* not 128"),
        ({"seeds": torch.arange(3)}, ValueError, r"shape \(1,\), one for each image, not \(3,\)"),
        ({"seeds": torch.zeros(1)}, TypeError, "int64 tensor, not torch.float32"),
        ({"seeds": [1]}, TypeError, "int64 tensor, not list"),
    ],
)
def test_errors_say_what_was_found(change, error, message):
    arguments = {"images": torch.zeros(1, 3, 32, 32), "name": "contrast", "severity": 3} | change
    with pytest.raises(error, match=message):
        corrupt(arguments.pop("images"), arguments.pop("name"), arguments.pop("severity"), **arguments)
