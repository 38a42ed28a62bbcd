"""Test images, and the random numbers the package draws, handed out for the oracle."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wildtta.core import keys
from wildtta.corruptions import weather


def pictures(count: int, height: int, width: int | None = None, seed: int = 0) -> Tensor:
    """8-bit images like photographs: colours with a 1/f spectrum, shapes with edges, flat, black and white parts."""
    width = width or height
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(count, 3, height, width))) / frequency, s=(height, width))
    noise /= noise.std(axis=(-2, -1), keepdims=True)
    noise = noise + noise.mean(axis=1, keepdims=True)
    images = np.clip(0.5 + 0.2 * noise, 0, 1)
    y, x = np.mgrid[:height, :width]
    for image in images:
        for _ in range(4):
            inside = np.hypot(y - rng.uniform(0, height), x - rng.uniform(0, width)) < rng.uniform(0.05, 0.2) * height
            image[:, inside] = rng.uniform(size=(3, 1))
        image[:, : height // 8, : width // 8] = 0
        image[:, -height // 8 :, : width // 8] = 1
        image[:, : height // 8, -width // 8 :] = 0.4
    return torch.from_numpy(np.rint(images * 255).astype(np.float32)) / 255


def near(one: Any, two: Any) -> float:
    """The share of values within one grey level."""
    return float((abs(one.astype(int) - two.astype(int)) <= 1).mean())


def summary(batch: Any) -> tuple[float, float, Any]:
    """Mean, standard deviation and the power in some bands of frequency."""
    batch = batch.astype(float)
    power = abs(np.fft.rfft2(batch - batch.mean((1, 2), keepdims=True), axes=(1, 2))) ** 2
    radius = np.hypot(np.fft.fftfreq(batch.shape[1])[:, None], np.fft.rfftfreq(batch.shape[2]))
    edges = (0.004, 0.03, 0.1, 0.2, 0.35, 0.71)
    bands = [power.mean((0, 3))[(radius >= low) & (radius < high)].mean() for low, high in itertools.pairwise(edges)]
    return batch.mean(), batch.std(), np.array(bands)


# Images to compare in distribution, and how far the logarithm of a band's power may lie off. Elastic deformation is
# left out: imagecorruptions has none of the original's affine part and other parameters.
DISTRIBUTIONS = [
    ("gaussian_noise", 8, 0.03),
    ("shot_noise", 8, 0.03),
    ("impulse_noise", 8, 0.03),
    ("speckle_noise", 8, 0.03),
    ("glass_blur", 1, 0.10),
    ("motion_blur", 10, 0.25),  # of an angle
    ("snow", 12, 0.12),  # of an angle, too
    ("spatter", 12, 0.05),
    ("fog", 24, 0.15),  # a fractal is mostly its few coarsest numbers
    ("frost", 24, 0.35),  # of five photographs, which imagecorruptions enlarges by a tenth
]


def key_of(name: str, severity: int, seeds: Tensor) -> Tensor:
    return keys.fold(keys.fold(seeds, zlib.crc32(name.encode())), severity)


def draws(name: str, parameters: Any, severity: int, seed: int, height: int, width: int) -> dict[str, Any]:
    """What the package draws for one image, as numpy arrays (channels last)."""
    key = key_of(name, severity, torch.tensor([seed]))
    if name in ("gaussian_noise", "speckle_noise"):
        return {"normal": keys.normal(key, (3, height, width))[0].permute(1, 2, 0).double().numpy()}
    if name in ("shot_noise", "impulse_noise"):
        return {"uniform": keys.uniform(key, (3, height, width))[0].permute(1, 2, 0).double().numpy()}
    if name == "glass_blur":
        side = 2 * parameters[1]
        steps = []
        for turn in range(parameters[2]):
            choice = (keys.uniform(keys.fold(key, turn), (height * width,))[0] * side**2).long().numpy()
            steps.append((choice // side - side // 2, choice % side - side // 2))
        return {"steps": steps}
    if name == "motion_blur":
        return {"degrees": keys.uniform(key, dtype=torch.float64).item() * 90 - 45}
    if name == "snow":
        normal = keys.normal(keys.fold(key, 0), (height, width))[0].double().numpy()
        return {"normal": normal, "degrees": keys.uniform(keys.fold(key, 1), dtype=torch.float64).item() * 90 - 135}
    if name == "frost":
        numbers = keys.uniform(key, (3,))[0].tolist()
        folder = weather._folder()
        return {"file": folder and folder / weather._PHOTOGRAPHS[int(numbers[0] * 5)], "place": numbers[1:]}
    if name == "fog":
        size = 1 << (max(height, width) - 1).bit_length()
        levels, step = {}, size
        while step >= 2:
            count = size // step
            levels[step] = (keys.uniform(keys.fold(key, step), (3, count, count))[0] * 2 - 1).double().numpy()
            step //= 2
        return {"size": size, "levels": levels}
    if name == "elastic_transform":
        jitter = keys.uniform(keys.fold(key, 0), (3, 2), torch.float64)[0] * 2 - 1
        noise = keys.uniform(keys.fold(key, 1), (2, height, width))[0] * 2 - 1
        return {"jitter": (jitter * parameters[2]).numpy(), "noise": ((noise * 2**11).round() / 2**11).double().numpy()}
    if name == "spatter":
        return {"normal": keys.normal(key, (height, width))[0].double().numpy()}
    return {}


# Those whose numbers `imagecorruptions` draws by functions of numpy that can be replaced. (Its frost is enlarged, and its
# elastic deformation has no affine part.)
HANDED = ["gaussian_noise", "speckle_noise", "glass_blur", "motion_blur", "snow", "fog", "spatter"]


def hand_over(monkeypatch: Any, name: str, parameters: Any, draw: dict[str, Any]) -> None:
    """Make numpy, and so `imagecorruptions`, draw these numbers."""
    if "normal" in draw:
        monkeypatch.setattr(np.random, "normal", lambda loc=0, scale=1, size=None: loc + scale * draw["normal"])
    if "degrees" in draw:
        monkeypatch.setattr(np.random, "uniform", lambda low, high: draw["degrees"])
    if name == "fog":
        levels = itertools.chain.from_iterable(draw["levels"].values())
        monkeypatch.setattr(np.random, "uniform", lambda low, high, size: high * next(levels))
    if name == "glass_blur":
        reach = parameters[1]
        walks = [(right.reshape(224, 224), down.reshape(224, 224)) for down, right in draw["steps"]]
        inner = range(224 - reach, reach, -1)
        steps = ((right[y, x], down[y, x]) for right, down in walks for y in inner for x in inner)
        monkeypatch.setattr(np.random, "randint", lambda low, high, size: next(steps))


def to_uint8(images: Tensor) -> Any:
    """B x H x W x 3, uint8."""
    return (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
