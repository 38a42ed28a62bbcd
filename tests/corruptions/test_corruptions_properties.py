"""Properties of single corruptions that need no second implementation to check."""

from __future__ import annotations

import corruption_helpers as helpers
import numpy as np
import pytest
import torch

from wildtta.corruptions import CORRUPTIONS, EXTRA, _filters, _jpeg, _spatter, blur, corrupt, frost_source, weather
from wildtta.corruptions.parameters import PARAMETERS


def grey(level, count=1, side=64):
    return torch.full((count, 3, side, side), round(level * 255) / 255)


def test_gaussian_noise_has_its_deviation():
    for reference, table in PARAMETERS.items():
        for severity, deviation in enumerate(table["gaussian_noise"], 1):
            if deviation <= 0.15:  # else too much is clipped
                difference = corrupt(grey(0.5, 8), "gaussian_noise", severity, reference=reference) - grey(0.5, 8)
                assert difference.std() == pytest.approx(deviation, rel=0.01)
                assert difference.mean() == pytest.approx(-0.5 / 255, abs=0.002)  # truncated


def test_noise_is_white():
    values = corrupt(grey(0.5, 4), "gaussian_noise", 2).double() - 0.5
    for shift in ((0, 1, 0), (0, 0, 1), (1, 0, 0)):
        product = (values * values.roll(shift, (1, 2, 3))).mean() / values.var()
        assert abs(product) < 0.02


def test_speckle_leaves_black_alone():
    assert (corrupt(grey(0), "speckle_noise", 5) == 0).all()


@pytest.mark.parametrize("level", [0.02, 0.1])
def test_shot_noise_has_a_poissons_variance(level):
    for reference, table in PARAMETERS.items():
        for severity, photons in enumerate(table["shot_noise"], 1):
            image = grey(level, 8)
            values = corrupt(image, "shot_noise", severity, reference=reference).double()
            mean = image[0, 0, 0, 0].item()
            assert values.mean() == pytest.approx(mean, abs=0.5 / 255 + 0.01 * (mean / photons) ** 0.5 * 3)
            if photons < 20 and mean * photons < photons / 3:
                assert values.var() == pytest.approx(mean / photons, rel=0.08)


def test_impulse_noise_has_its_share():
    for severity, share in enumerate(PARAMETERS[224]["impulse_noise"], 1):
        values = corrupt(grey(0.5, 8), "impulse_noise", severity, reference=224)
        assert (values == 0).double().mean() == pytest.approx(share / 2, rel=0.05)
        assert (values == 1).double().mean() == pytest.approx(share / 2, rel=0.05)


@pytest.mark.parametrize("name", ["gaussian_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate"])
def test_a_flat_image_stays_flat(name):
    for reference in (224, 64, 32):
        for severity in range(1, 6):
            image = torch.arange(48).reshape(16, 3, 1, 1).expand(16, 3, 32, 32) * 5 / 255
            assert (corrupt(image, name, severity, reference=reference) == image).all()


def test_defocus_of_a_flat_image_is_flat():
    for severity in range(1, 6):
        values = corrupt(grey(0.5, side=48), "defocus_blur", severity, reference=224)
        assert values.min() == values.max()


def test_a_point_becomes_a_disk():
    point = torch.zeros(1, 3, 41, 41)
    point[..., 20, 20] = 255.0
    spread = blur.defocus_blur(point, torch.zeros(1).long(), (3, 0.1))[0, 0] * 29 / 255
    y, x = np.mgrid[-20:21, -20:21]
    assert np.allclose(spread.numpy(), y**2 + x**2 <= 9, atol=1e-3)


def test_a_point_moves_along_its_direction():
    point = torch.zeros(1, 1, 41, 41)
    point[..., 20, 20] = 255.0
    moved = _filters.motion(point, 10, 5, torch.tensor([0.0]))[0, 0]
    assert (moved[20, :21] > 0).sum() > 10
    assert moved[20, 21:].sum() == 0
    assert moved[:20].sum() + moved[21:].sum() == 0
    moved = _filters.motion(point, 10, 5, torch.tensor([-90.0]))[0, 0]
    assert moved[:, 20].sum() == moved.sum()
    assert moved[:20].sum() == 0


@pytest.mark.parametrize("parameters", [(0.01, 2, 3), (0.01, 4, 2), (0.01, 1, 1)])
def test_glass_takes_every_pixel_from_its_neighbourhood(parameters):
    """With next to no blur, an image of its own coordinates says where each pixel came from."""
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    image = torch.stack([y, x, torch.zeros_like(x)])[None].float()
    moved = blur.glass_blur(image, torch.tensor([1]), parameters)
    assert torch.equal(moved, moved.round())
    reach, rounds = parameters[1:]
    distance = (moved - image).abs()[0, :2]
    assert distance.max() > 0
    # A chain of copies can go further down, where the walk has been, but ends with its first step up.
    assert (image - moved)[0, 0].max() <= reach * rounds
    inner = slice(reach + 1, 64 - reach + 1)
    border = torch.ones(64, 64, dtype=torch.bool)
    border[inner, inner] = False
    assert (distance.sum(0)[border] == 0).all()


def test_zoom_keeps_the_corners_of_the_crop():
    image = helpers.pictures(1, 64) * 255
    zoomed = _filters.clipped_zoom(image, 2.0)
    assert torch.equal(zoomed[..., 0, 0], image[..., 16, 16])
    assert torch.equal(zoomed[..., -1, -1], image[..., 47, 47])


def test_brightness_and_contrast():
    image = helpers.pictures(2, 64)
    for severity, shift in enumerate(PARAMETERS[64]["brightness"], 1):
        value = corrupt(image, "brightness", severity).amax(1) - (image.amax(1) + shift).clamp(max=1)
        assert value.abs().max() <= 1.01 / 255
    spread = [corrupt(image, "contrast", severity).std() for severity in range(1, 6)]
    assert spread == sorted(spread, reverse=True)
    assert (corrupt(image, "contrast", 5).mean() - image.mean()).abs() <= 1 / 255


def test_saturation():
    image = helpers.pictures(2, 64)

    def saturation(batch):
        return (batch.amax(1) - batch.amin(1)).mean()

    assert saturation(corrupt(image, "saturate", 2)) < saturation(corrupt(image, "saturate", 1)) < saturation(image)
    assert saturation(image) < saturation(corrupt(image, "saturate", 3))


def test_pixelate_has_blocks():
    image = helpers.pictures(1, 64)
    result = corrupt(image, "pixelate", 5)  # half the side
    assert torch.equal(result[..., ::2, ::2], result[..., 1::2, 1::2])


def test_jpeg_gets_coarser():
    image = helpers.pictures(2, 64)
    error = [(corrupt(image, "jpeg_compression", severity) - image).square().mean() for severity in range(1, 6)]
    assert error == sorted(error)
    flat = torch.full((1, 3, 32, 32), 128.0)
    assert torch.equal(_jpeg.round_trip(flat, 50), flat)


def test_fog_fills_the_range_and_grows():
    height = weather._plasma(torch.arange(8), 64, 2.0)
    assert (height.amin((1, 2)) == 0).all()
    assert (height.amax((1, 2)) == 1).all()
    rough, smooth = (weather._plasma(torch.arange(8), 64, decay).diff(dim=1).abs().mean() for decay in (1.4, 3))
    assert smooth < rough
    image = helpers.pictures(4, 64)
    assert corrupt(image, "fog", 5).std() < corrupt(image, "fog", 1).std()


def test_snow_falls_symmetrically_and_brightens():
    image = grey(0.2)
    result = corrupt(image, "snow", 3)
    assert torch.equal(result, result.rot90(2, (-2, -1)))
    assert result.mean() > image.mean()


def test_frost_without_photographs(monkeypatch):
    def clear():
        for cached in (weather._folder, weather._originals, weather._photographs):
            cached.cache_clear()

    clear()
    monkeypatch.setattr(weather.importlib.util, "find_spec", lambda name: None)
    try:
        assert frost_source() == "procedural"
        for side in (32, 64, 224, 700):
            image = helpers.pictures(1, side)
            result = corrupt(image, "frost", 3)
            assert result.mean() > 0.2
            assert not torch.equal(result, corrupt(image, "frost", 3, seeds=torch.tensor([9])))
    finally:
        monkeypatch.undo()
        clear()


def test_spatter_relief_parts():
    layer = torch.zeros(1, 1, 40, 40, dtype=torch.int32)
    layer[..., 10:30, 10:30] = 200
    edge = _spatter.edges(layer, 50, 150)[0, 0]
    assert edge.any()
    assert not edge[13:27, 13:27].any()
    assert not edge[:8].any()
    spot = torch.zeros(1, 1, 40, 40, dtype=torch.bool)
    spot[..., 20, 20] = True
    distance = _spatter.chamfer(spot)[0, 0].double() / 65536
    y, x = np.mgrid[-20:20, -20:20]
    true = np.minimum(np.hypot(y, x), 20)
    assert abs(distance.numpy() - true).max() < 0.03 * 20
    assert (_spatter.chamfer(torch.zeros_like(spot)) == 20 << 16).all()


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA)
def test_the_worst_severity_is_worse_than_the_mildest(name):
    image = helpers.pictures(6, 64)
    mild, harsh = ((corrupt(image, name, severity) - image).abs().mean() for severity in (1, 5))
    assert harsh > mild or name in ("elastic_transform", "saturate")  # whose severities change kind


def test_an_infinite_margin_of_reflections():
    image = torch.arange(4.0).reshape(1, 1, 2, 2)
    assert _filters.pad(image, 3, "reflect")[0, 0, 3].tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
