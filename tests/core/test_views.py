"""Views against Pillow, operation by operation, and what they promise about keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from wildtta.core import augmix, keys
from wildtta.core.views import (
    _BLEND,
    _CHAINS,
    _DEPTHS,
    _STEPS,
    OPERATIONS,
    Box,
    _cropped,
    _drawn_box,
    operate,
    resized,
    shifted,
)

HALF = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def pictures(count: int, height: int = 40, width: int = 48, seed: int = 0) -> Tensor:
    """Smooth pictures of little contrast with some noise on them, as levels: N × 3 × height × width."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 6, generator=generator) * 170 + 30
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return (smooth + 6 * torch.randn(smooth.shape, generator=generator)).clamp(0, 255).round()


def image(levels: Tensor) -> Image.Image:
    return Image.fromarray(levels.permute(1, 2, 0).byte().numpy())


def levels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()


def by_pillow(name: str, picture: Image.Image, strength: float, sign: int) -> Image.Image:
    """AugMix's operation of this name, as its reference defines them."""
    width, height = picture.size

    def whole(most: float) -> int:
        return int(strength * most / 10)

    shear, across, down = sign * strength * 0.3 / 10, sign * whole(width / 3), sign * whole(height / 3)
    maps = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, across, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, down),
    }
    if name in maps:
        return picture.transform(picture.size, Image.Transform.AFFINE, maps[name], resample=Image.Resampling.BILINEAR)
    if name == "rotate":
        return picture.rotate(sign * whole(30), resample=Image.Resampling.BILINEAR)
    return {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "solarize": lambda: ImageOps.solarize(picture, 256 - whole(256)),
        "posterize": lambda: ImageOps.posterize(picture, 4 - whole(4)),
    }[name]()


def differing(found: Tensor, expected: Tensor, by: float) -> float:
    """The share of levels that differ by more."""
    return ((found - expected).abs() > by).float().mean().item()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows(name: str) -> None:
    """At every strength and in both directions. Colours are exact, but for autocontrast, where Pillow's own rounding can cost
    a level; shapes are but where a float32 point falls on the other side of a pixel's edge, which decides over black or not."""
    strengths = torch.linspace(0.1, 7.4, 24)
    signs = torch.tensor([-1.0, 1.0]).repeat(12)
    batch = pictures(24)
    found = operate(batch, torch.full((24,), OPERATIONS.index(name)), strengths, signs)
    expected = torch.stack(
        [
            levels(by_pillow(name, image(one), strength, int(sign)))
            for one, strength, sign in zip(batch, strengths.tolist(), signs.tolist(), strict=True)
        ]
    )
    assert not torch.equal(expected, batch)
    if name == "autocontrast":
        assert differing(found, expected, 1) == 0
    elif name in ("equalize", "solarize", "posterize"):
        assert torch.equal(found, expected)
    else:
        assert differing(found, expected, 1) < 1e-3
        assert differing(found, expected, 0) < 1e-2


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_odd_histograms_are_treated_as_pillow_does(name: str) -> None:
    """One level, two, few pixels, and all levels already."""
    flat = torch.full((3, 16, 16), 77.0)
    two = flat.clone()
    two[:, :, 8:] = 200
    ramp = torch.arange(256.0).reshape(16, 16).expand(3, -1, -1)
    rare = flat.clone()
    rare[:, 0, 0] = 3
    batch = torch.stack([flat, two, ramp, rare])
    found = operate(batch, torch.full((4,), OPERATIONS.index(name)), torch.ones(4), torch.ones(4))
    for one, own in zip(batch, found, strict=True):
        assert torch.equal(own, levels(by_pillow(name, image(one), 1.0, 1)))


def test_each_image_has_its_own_operation() -> None:
    batch = pictures(9)
    places, strengths, signs = torch.arange(9), torch.linspace(0.5, 5, 9), torch.ones(9)
    together = operate(batch, places, strengths, signs)
    for place in range(9):
        part = slice(place, place + 1)
        assert torch.equal(together[part], operate(batch[part], places[part], strengths[part], signs[part]))


@pytest.mark.parametrize("flip", [False, True])
def test_a_resized_box_is_pillows(flip: bool) -> None:
    batch = pictures(4)
    boxes = [(0, 0, 48, 40), (5, 7, 13, 11), (40, 0, 8, 40), (0, 30, 48, 10)]  # left, top, width, height
    box = Box(*torch.tensor(boxes, dtype=torch.float32).unbind(-1))
    found = resized(batch, box, torch.full((4,), flip))
    for own, one, (left, top, width, height) in zip(found, batch, boxes, strict=True):
        box_alone = image(one).crop((left, top, left + width, top + height))
        expected = box_alone.resize((48, 40), Image.Resampling.BILINEAR)
        # Pillow rounds twice, once for each direction
        assert differing(own, levels(ImageOps.mirror(expected) if flip else expected), 1) == 0


@pytest.mark.parametrize("flip", [False, True])
def test_a_shifted_image_is_pillows(flip: bool) -> None:
    batch = pictures(3, 32, 32)
    found = shifted(batch, torch.tensor([-4, 0, 3]), torch.tensor([2, 0, -4]), torch.full((3,), flip))
    for own, one, (across, down) in zip(found, batch, [(-4, 2), (0, 0), (3, -4)], strict=True):
        expected = levels(image(one).crop((across, down, across + 32, down + 32)))
        assert torch.equal(own, expected.flip(-1) if flip else expected)


def test_boxes_lie_in_the_image_and_have_the_asked_sizes_and_ratios() -> None:
    box = _drawn_box(40, 48, keys.fold(torch.arange(4000), 1))
    assert (box.left >= 0).all()
    assert (box.top >= 0).all()
    assert (box.left + box.width <= 48).all()
    assert (box.top + box.height <= 40).all()
    area, ratio = box.width * box.height / (40 * 48), box.width / box.height
    assert 0.07 < area.min() < 0.1 < 0.9 < area.max() <= 1
    assert 0.7 < ratio.min() < 0.8 < 1.25 < ratio.max() < 1.4
    # uniform areas, but for large ones that fit less often
    assert 0.45 < area.mean() < 0.54
    assert abs((box.left / (48 - box.width).clamp(min=1)).mean() - 0.5) < 0.03


def test_an_image_in_which_no_box_fits_gets_the_largest_in_the_middle() -> None:
    box = _drawn_box(64, 1000, torch.arange(2000))
    middle = (box.left == (1000 - 85) // 2) & (box.width == 85) & (box.height == 64)
    assert 0 < middle.float().mean() < 1
    assert (box.width <= 1000).all()
    assert (box.height <= 64).all()


def test_small_images_are_shifted_and_larger_ones_resized() -> None:
    batch = pictures(1, 32, 32).expand(50, -1, -1, -1)
    moved = _cropped(batch, torch.arange(50))
    assert all(torch.isin(one, torch.cat([batch[0].flatten(), torch.zeros(1)])).all() for one in moved)
    assert any((one == 0).any() for one in moved)
    assert (_cropped(pictures(20, 33, 33), torch.arange(20)) > 0).float().mean() > 0.99


def test_mirror_images_can_be_left_out() -> None:
    """Of a picture that is black on the left: half of the views have it on the right, or none."""
    half = torch.ones(1, 3, 40, 40)
    half[..., :20] = 0
    for flip, low, high in ((True, 0.4, 0.6), (False, 0.0, 0.0)):
        crops = _cropped(half.expand(400, -1, -1, -1) * 255, torch.arange(400), flip=flip)
        assert low <= (crops[..., 0].mean((1, 2)) > crops[..., -1].mean((1, 2))).float().mean() <= high
    assert "flip=False" in repr(augmix(3, HALF, flip=False))


def test_crops_can_be_left_out() -> None:
    batch = pictures(1).expand(30, -1, -1, -1)
    assert torch.equal(_cropped(batch, torch.arange(30), crop=False, flip=False), batch)
    either = _cropped(batch, torch.arange(30), crop=False)
    mirrored = [torch.equal(one, batch[0].flip(-1)) for one in either]
    assert 5 < sum(mirrored) < 25
    assert all(torch.equal(one, batch[0]) for one, other in zip(either, mirrored, strict=True) if not other)


def test_views_depend_on_an_images_key_alone() -> None:
    views, batch, names = augmix(5, HALF), pictures(3) / 127.5 - 1, torch.tensor([3, 9, 4])
    found = views(batch, names)
    assert found.shape == (3, 5, 3, 40, 48)
    assert torch.equal(views(batch.flip(0), names.flip(0)), found.flip(0))
    assert torch.equal(views(batch[1:2], names[1:2])[0], found[1])
    assert torch.equal(augmix(2, HALF)(batch, names), found[:, :2]), (
        "a smaller budget takes the first of the same views"
    )
    others = views(batch, names + 1)
    assert all(not torch.equal(one, two) for one, two in zip(found.flatten(0, 1), others.flatten(0, 1), strict=True))
    assert len({tuple(view.flatten().tolist()) for view in found.flatten(0, 1)}) == 15


def test_views_undo_and_redo_the_normalisation() -> None:
    """Pixels mean the same whatever the statistics are; and in half precision."""
    pixels, names = pictures(2) / 255, torch.arange(2)
    statistics = ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in statistics)
    plain = augmix(3, ((0.0,), (1.0,)))(pixels, names)
    found = augmix(3, statistics)((pixels - mean) / deviation, names)
    torch.testing.assert_close(found * deviation + mean, plain, rtol=0, atol=1e-6)
    assert plain.min() >= 0
    assert plain.max() <= 1
    assert augmix(3, statistics)(pixels.bfloat16(), names).dtype == torch.bfloat16


def test_a_view_is_the_mixture_that_it_says() -> None:
    """AugMix written out with Pillow, view by view, on the numbers that the views draw."""
    count, one = 30, pictures(1)
    own = keys.fold(torch.tensor([[7]]), torch.arange(count)).flatten()
    clean = _cropped(one.expand(count, -1, -1, -1), own)
    weights = -keys.uniform(keys.fold(own, _CHAINS), (3,)).log()
    weights = weights / weights.sum(-1, keepdim=True)
    depths = (3 * keys.uniform(keys.fold(own, _DEPTHS), (3,))).long() + 1
    steps = keys.uniform(keys.fold(own, _STEPS), (3, 3, 3))
    shares = keys.uniform(keys.fold(own, _BLEND))
    expected = []
    for view in range(count):
        mix = torch.zeros_like(clean[view])
        for chain in range(3):
            picture = image(clean[view])
            for which, level, sign in steps[view, chain, : depths[view, chain]].tolist():
                name = OPERATIONS[int(which * len(OPERATIONS))]
                picture = by_pillow(name, picture, 0.1 + 0.9 * level, -1 if sign < 0.5 else 1)
            mix += weights[view, chain] * levels(picture)
        expected.append(shares[view] * clean[view] + (1 - shares[view]) * mix)
    found = augmix(count, ((0.0,), (1.0,)))(one / 255, torch.tensor([7]))[0] * 255
    assert differing(found, torch.stack(expected), 1.001) < 1e-2
    assert set(depths.flatten().tolist()) == {1, 2, 3}
    assert len(set((steps[..., 0] * 9).long().flatten().tolist())) == 9


def test_what_is_not_finite_stays_in_its_own_image() -> None:
    views, batch, names = augmix(4, HALF), pictures(3) / 127.5 - 1, torch.arange(3)
    expected = views(batch, names)
    batch[1, 0, 3, 3], batch[1, 1, 5, 5] = torch.nan, torch.inf
    found = views(batch, names)
    assert torch.isfinite(found).all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0, "statistics": HALF}, "at least 1 view of an image, but views is 0"),
        ({"count": 4, "statistics": HALF, "severity": 11.0}, "severity goes from 0.1 to 10, but is 11"),
        ({"count": 4, "statistics": "imagenet"}, r"statistics must be the \(mean, deviation\)"),
        ({"count": 4, "statistics": ((0.5,) * 3, (0.5,) * 2)}, "a number for each channel"),
        ({"count": 4, "statistics": ((0.5,) * 3, (0.0,) * 3)}, "deviations above 0"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        augmix(**arguments)


def test_images_of_other_channels_than_the_statistics_are_an_error() -> None:
    with pytest.raises(ValueError, match="the images have 1 channels, but statistics are for 3"):
        augmix(2, HALF)(torch.zeros(1, 1, 40, 40), torch.zeros(1, dtype=torch.int64))
