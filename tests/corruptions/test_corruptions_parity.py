"""Agreement with the original: pixel by pixel where the random numbers can be handed over, else in distribution."""

from __future__ import annotations

import corruption_helpers as helpers
import numpy as np
import pytest
import torch
from corruption_shim import imagecorruptions

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_source, noise
from wildtta.corruptions.parameters import PARAMETERS

oracle = pytest.importorskip("corruption_oracle")
scipy_stats = pytest.importorskip("scipy.stats")

DETERMINISTIC = ["defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"]
DETERMINISTIC += ["gaussian_blur", "saturate"]


@pytest.mark.parametrize("side", [224, 64, 32])
@pytest.mark.parametrize("name", [name for name in CORRUPTIONS + EXTRA if name != "shot_noise"])
def test_pixels_agree(name, side):
    if name == "frost" and frost_source() == "procedural":
        pytest.skip("frost needs the photographs of imagecorruptions")
    count = {224: 1, 64: 2, 32: 4}[side]
    images = helpers.pictures(count, side)
    pictures, seeds = helpers.to_uint8(images), torch.arange(50, 50 + count)
    for severity in range(1, 6):
        parameters = PARAMETERS[side][name][severity - 1]
        result = helpers.to_uint8(corrupt(images, name, severity, seeds=seeds))
        for picture, ours, seed in zip(pictures, result, seeds.tolist(), strict=True):
            draw = helpers.draws(name, parameters, severity, seed, side, side)
            assert helpers.near(oracle.corrupt(name, picture, parameters, draw), ours) >= 0.99, severity


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "pixelate", "jpeg_compression", "glass_blur", "spatter"])
def test_pixels_agree_at_odd_sizes(name):
    images = helpers.pictures(2, 45, 70)
    pictures = helpers.to_uint8(images)
    for severity in (1, 3, 5):
        parameters = PARAMETERS[64][name][severity - 1]
        result = helpers.to_uint8(corrupt(images, name, severity))
        for index, picture in enumerate(pictures):
            draw = helpers.draws(name, parameters, severity, index, 45, 70)
            assert helpers.near(oracle.corrupt(name, picture, parameters, draw), result[index]) >= 0.99


@pytest.mark.parametrize("size", [(16, 16), (17, 31), (33, 48), (63, 20)])
def test_jpeg_is_pillows_to_the_bit(size):
    images = helpers.pictures(2, *size)
    pictures = helpers.to_uint8(images)
    for reference in (224, 32):
        for severity in range(1, 6):
            quality = PARAMETERS[reference]["jpeg_compression"][severity - 1]
            result = helpers.to_uint8(corrupt(images, "jpeg_compression", severity, reference=reference))
            for picture, ours in zip(pictures, result, strict=True):
                assert np.array_equal(oracle.corrupt("jpeg_compression", picture, quality, {}), ours)


@pytest.mark.parametrize("photons", sorted({c for table in PARAMETERS.values() for c in table["shot_noise"]}))
def test_the_table_of_shot_noise_is_poissons(photons):
    """The probability of every count under the table, against the one it should have."""
    shares, counts = (part.numpy() for part in noise._poisson(photons, torch.device("cpu")))
    shares, counts = shares.astype(float), counts.astype(int)
    slots = len(shares) // 256
    table = np.zeros((256, 2000))
    row = np.repeat(np.arange(256), slots)
    np.add.at(table, (row, counts >> 16), shares / slots)
    np.add.at(table, (row, counts & 0xFFFF), (1 - shares) / slots)
    expected = scipy_stats.poisson.pmf(np.arange(2000), np.arange(256)[:, None] * photons / 255)
    assert abs(table - expected).max() < 1e-6


@pytest.fixture(scope="module")
def package():
    module = imagecorruptions()
    if module is None:
        pytest.skip("imagecorruptions, OpenCV, scikit-image or scipy is not installed")
    return module


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_pixels_agree_with_imagecorruptions(package, name):
    images = helpers.pictures(1, 224, seed=1)
    for severity in range(1, 6):
        theirs = package.corrupt(helpers.to_uint8(images)[0], severity, name)
        assert helpers.near(theirs, helpers.to_uint8(corrupt(images, name, severity))[0]) >= 0.99, severity


@pytest.mark.parametrize("name", helpers.HANDED)
def test_pixels_agree_with_imagecorruptions_given_the_same_numbers(package, name, monkeypatch):
    """So that neither this package nor the oracle beside the tests is right about itself alone."""
    images = helpers.pictures(1, 224, seed=3)
    picture, seed = helpers.to_uint8(images)[0], 70
    # It smears snow before it crops what its zoom made too large, so the snow beyond the edge differs from the original's.
    inner = slice(30, -30) if name == "snow" else slice(None)
    for severity in range(1, 6):
        parameters = PARAMETERS[224][name][severity - 1]
        draw = helpers.draws(name, parameters, severity, seed, 224, 224)
        helpers.hand_over(monkeypatch, name, parameters, draw)
        theirs = package.corrupt(picture, severity, name)
        monkeypatch.undo()
        ours = helpers.to_uint8(corrupt(images, name, severity, seeds=torch.tensor([seed])))[0]
        assert helpers.near(theirs[inner, inner], ours[inner, inner]) >= 0.99, severity


@pytest.mark.parametrize(("name", "count", "tolerance"), helpers.DISTRIBUTIONS)
def test_distribution_agrees_with_imagecorruptions(package, name, count, tolerance):
    if name == "frost" and frost_source() == "procedural":
        pytest.skip("frost needs the photographs of imagecorruptions")
    np.random.seed(0)
    image = helpers.pictures(1, 224, seed=2)
    for severity in (2, 5):
        ours = helpers.summary(helpers.to_uint8(corrupt(image.expand(count, -1, -1, -1), name, severity)))
        theirs = helpers.summary(
            np.stack([package.corrupt(helpers.to_uint8(image)[0], severity, name) for _ in range(count)])
        )
        assert abs(ours[0] - theirs[0]) < 60 * tolerance
        assert abs(ours[1] - theirs[1]) < 40 * tolerance
        assert (abs(np.log(ours[2] / theirs[2]))[1:] < tolerance).all(), ours[2] / theirs[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA)
def test_a_gpu_agrees_with_the_cpu(name):
    """To the bit where all is whole numbers; else a GPU may round a sum otherwise, and the last level with it."""
    images = helpers.pictures(4, 224)
    for severity in (1, 3, 5):
        cpu, gpu = corrupt(images, name, severity), corrupt(images.cuda(), name, severity).cpu()
        if name in ("impulse_noise", "pixelate", "jpeg_compression"):
            assert torch.equal(cpu, gpu)
        assert helpers.near(helpers.to_uint8(cpu), helpers.to_uint8(gpu)) >= 0.999, severity
