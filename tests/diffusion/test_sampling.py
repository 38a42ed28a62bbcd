"""The way back, against loops over numbers in float64."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_diffusion import diffusion, unet
from torch import Tensor, nn

from wildtta.diffusion.sampling import back, guided_step, low_pass, respaced

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64).tolist()

# -- plainly -----------------------------------------------------------------------------------------------------------


def kernel(x: float) -> float:
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def resized(line: list[float], after: int) -> list[float]:
    """One line of pixels; each new one a mean of the old ones around it, over a kernel as wide as the new pixels."""
    factor = len(line) / after
    wide = max(factor, 1.0)
    result = []
    for place in range(after):
        middle = (place + 0.5) * factor
        weights = [kernel((old + 0.5 - middle) / wide) for old in range(len(line))]
        result.append(sum(w * value for w, value in zip(weights, line, strict=True)) / sum(weights))
    return result


def plain_low_pass(image: list[list[float]], down: int) -> list[list[float]]:
    def lines(rows: list[list[float]]) -> list[list[float]]:
        return [resized(resized(row, len(row) // down), len(row)) for row in rows]

    turned = [list(column) for column in zip(*lines(image), strict=True)]
    return [list(column) for column in zip(*lines(turned), strict=True)]


def plain_step(network, x: Tensor, reference: Tensor, betas, steps, place, fresh, scale, down, learnt):  # type: ignore[no-untyped-def]
    """One image, by the formulas of guided-diffusion and DDA; the gradient by central differences."""
    kept, product = [], 1.0
    for beta in betas:
        product *= 1 - beta
        kept.append(product)
    times = [round(i * (len(betas) - 1) / (steps - 1)) for i in range(steps)]
    now = kept[times[place]]
    before = kept[times[place - 1]] if place else 1.0
    beta = 1 - now / before

    def clean(x: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            out = network(x[None], torch.tensor([times[place]]))[0]
        noise, values = (out[:3], out[3:]) if learnt else (out, None)
        return ((x - math.sqrt(1 - now) * noise) / math.sqrt(now)).clamp(-1, 1), values

    def distance(x: Tensor) -> float:
        total = 0.0
        for mine, theirs in zip(reference.tolist(), clean(x)[0].tolist(), strict=True):
            for one, two in zip(plain_low_pass(mine, down), plain_low_pass(theirs, down), strict=True):
                total += sum((a - b) ** 2 for a, b in zip(one, two, strict=True))
        return math.sqrt(total)

    gradient = torch.zeros_like(x)
    for index in range(x.numel()):
        step = torch.zeros_like(x)
        step.view(-1)[index] = 1e-5
        gradient.view(-1)[index] = (distance(x + step) - distance(x - step)) / 2e-5

    guess, values = clean(x)
    mean = math.sqrt(before) * beta / (1 - now) * guess + math.sqrt(1 - beta) * (1 - before) / (1 - now) * x
    if place:
        smallest = math.log(beta * (1 - before) / (1 - now))
        share = (values + 1) / 2 if learnt else 0.0
        mean = mean + torch.exp(torch.as_tensor(0.5 * (share * math.log(beta) + (1 - share) * smallest))) * fresh
    return mean - scale * gradient


class Smooth(nn.Module):
    """A little network of images and steps, in float64."""

    def __init__(self, out: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, out, 3, padding=1)
        self.double().requires_grad_(False)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x) + times[:, None, None, None] / 1000))


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [1, 2, 4])
def test_the_low_pass_is_the_plain_one_and_torchs(down: int) -> None:
    images = torch.rand(2, 3, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = low_pass(images, down)
    for image, answer in zip(images, found, strict=True):
        for channel, expected in zip(image.tolist(), answer, strict=True):
            torch.testing.assert_close(
                expected, torch.tensor(plain_low_pass(channel, down), dtype=torch.float64), rtol=1e-12, atol=1e-12
            )
    resize = torch.nn.functional.interpolate
    small = resize(images, size=(8 // down, 16 // down), mode="bicubic", antialias=True)
    torch.testing.assert_close(found, resize(small, size=(8, 16), mode="bicubic", antialias=True))
    if down > 1:
        fine = (torch.arange(16) % 2).double().expand(1, 1, 8, 16)  # stripes of a pixel
        assert (low_pass(fine, 4)[..., 4:-4] - 0.5).abs().max() < 0.03, "detail is gone"
    torch.testing.assert_close(low_pass(torch.ones(1, 1, 8, 8), down), torch.ones(1, 1, 8, 8))


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("learnt", [False, True])
def test_a_guided_step_is_the_plain_one(place: int, learnt: bool) -> None:
    network = Smooth(6 if learnt else 3)
    generator = torch.Generator().manual_seed(place)
    x, reference, fresh = (torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    x = 0.7 * x

    def noise_in(x: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        out = network(x, times)
        return (out[:, :3], out[:, 3:]) if learnt else (out, torch.full((1,), -1.0, dtype=torch.float64))

    level = respaced(BETAS, 12)[place]
    found = guided_step(noise_in, x, reference.clamp(-1, 1), level, fresh if place else None, 6.0, 2)
    for image in range(2):
        expected = plain_step(
            network, x[image], reference[image].clamp(-1, 1), BETAS, 12, place, fresh[image], 6.0, 2, learnt
        )
        torch.testing.assert_close(found.before[image], expected, rtol=1e-6, atol=1e-6)
    free = guided_step(noise_in, x, reference, level, fresh if place else None, 0.0, 2).before
    assert (free - found.before).abs().max() > 1e-3, "the guidance does something"


def test_a_step_is_led_towards_the_reference() -> None:
    """With guidance the guess of the image, from afar, comes nearer to the reference than without."""
    model = diffusion(dtype=torch.float64)
    reference = torch.rand(4, 3, 8, 8, dtype=torch.float64) * 2 - 1
    keys = torch.arange(4)
    away = []
    for scale in (0.0, 0.3):
        found = back(model.noise_in, reference, keys, respaced(model.betas, 50), start=25, scale=scale, down=2)
        away.append(torch.linalg.vector_norm(low_pass(found - reference, 2).flatten(1), dim=1))
    assert (away[1] < away[0]).all()


def test_steps_are_spread_as_the_reference_spreads_them() -> None:
    """The first and the last are kept; 100 of 1,000 are 0, 10, 20, 30, 40, 50, 61, …, 999."""
    levels = respaced(BETAS, 100)
    times = [level.time for level in levels]
    assert times[:8] == [0, 10, 20, 30, 40, 50, 61, 71]
    assert times[-2:] == [989, 999]
    assert len(times) == len(set(times)) == 100
    kept = torch.cumprod(1 - torch.tensor(BETAS, dtype=torch.float64), 0)
    torch.testing.assert_close(torch.tensor([level.kept for level in levels], dtype=torch.float64), kept[times])
    whole = respaced(BETAS, 1000)
    torch.testing.assert_close([math.exp(level.largest) for level in whole], BETAS, rtol=1e-9, atol=0)


def test_the_levels_are_those_of_diffusers() -> None:
    """Its ancestral sampler, on the whole diffusion, takes the same step where nothing guides."""
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(beta_start=1e-4, beta_end=0.02, variance_type="fixed_small", clip_sample=True)
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(1, 3, 4, 4, generator=generator) for _ in range(2))
    level = respaced(scheduler.betas.double().tolist(), 1000)[300]
    theirs = scheduler.step(noise, 300, x, generator=torch.Generator().manual_seed(7)).prev_sample
    fresh = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    mine = guided_step(lambda x, times: (noise + 0 * x, -torch.ones(1)), x, x, level, fresh, 0.0, 1).before
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variance", ["fixed_small", "fixed_large", "learned_range"])
def test_an_image_does_not_depend_on_its_neighbours(variance: str) -> None:
    model = diffusion(dtype=torch.float64, variance=variance)
    reference = torch.rand(5, 3, 8, 8, dtype=torch.float64) * 2 - 1
    keys, levels = torch.tensor([5, 3, 99, -4, 0]), respaced(model.betas, 20)

    def far_back(places: list[int]) -> Tensor:
        return back(model.noise_in, reference[places], keys[places], levels, start=10, scale=6.0, down=4)

    together = far_back([0, 1, 2, 3, 4])
    torch.testing.assert_close(torch.cat([far_back([place]) for place in range(5)]), together, rtol=0, atol=1e-5)
    torch.testing.assert_close(far_back([3, 0]), together[[3, 0]], rtol=0, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 0.1


def test_what_cannot_be_is_said() -> None:
    for steps in (1, 1001):
        with pytest.raises(ValueError, match="steps must be from 2 to 1000"):
            respaced(BETAS, steps)
    for down in (0, 3):
        with pytest.raises(ValueError, match="does not divide 8"):
            low_pass(torch.zeros(1, 1, 8, 8), down)
    images, keys = torch.zeros(1, 3, 8, 8), torch.zeros(1)
    for start in (0, 20):
        with pytest.raises(ValueError, match="start must be from 1 to 19"):
            back(lambda x, times: (x, x), images, keys, respaced(BETAS, 20), start=start, scale=1.0, down=2)


def test_the_tiny_network_is_one_of_diffusers() -> None:
    assert type(unet()).__name__ == "UNet2DModel"
