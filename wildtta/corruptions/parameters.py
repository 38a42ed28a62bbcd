"""The severities of the original data sets.

Each table maps a corruption to its parameters at severities 1 to 5, transcribed from the script that made the data
set (Hendrycks & Dietterich, 2019, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations"):

- 224: ImageNet-C, `make_imagenet_c.py`
- 64: Tiny-ImageNet-C, `make_tinyimagenet_c.py`
- 32: CIFAR-10-C and CIFAR-100-C, `make_cifar_c.py`

The parameters are in pixels of their own size and are not rescaled for images of another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PARAMETERS", "reference_for"]


def _elastic(side: int, *rows: tuple[float, float, float]) -> list[tuple[float, float, float]]:
    """The original gives strength, smoothness and affine jitter as shares of a side."""
    return [(side * strength, side * sigma, side * affine) for strength, sigma, affine in rows]


def _zooms(*ranges: tuple[float, float]) -> list[tuple[float, ...]]:
    """Zoom factors from 1 up to a stop. By numpy, whose rounding decides whether the stop itself is one (1.11 is)."""
    return [tuple(np.arange(1, stop, step).tolist()) for stop, step in ranges]


_IMAGENET: dict[str, list[Any]] = {
    "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],  # standard deviation
    "shot_noise": [60, 25, 12, 5, 3],  # photons at white
    "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],  # share of the values replaced
    "speckle_noise": [0.15, 0.2, 0.35, 0.45, 0.6],  # standard deviation, relative
    "gaussian_blur": [1, 2, 3, 4, 6],  # sigma
    "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],  # radius, sigma of its antialiasing
    "glass_blur": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],  # sigma, reach, rounds
    "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],  # length, sigma
    "zoom_blur": _zooms((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": [  # mean, deviation, zoom, threshold, length and sigma of the motion, share of the image kept
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    # share of the image, of the frost, and the scale of its photographs
    "frost": [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    "fog": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],  # strength, decay of the fractal
    "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],  # added to the value of HSV
    "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],  # factor
    "elastic_transform": _elastic(  # 244 is the original's slip for 224, and part of the data set
        244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": [0.6, 0.5, 0.4, 0.3, 0.25],  # share of the side kept
    "jpeg_compression": [25, 18, 15, 10, 7],  # quality
    "spatter": [  # mean, deviation, sigma, threshold, opacity (of water) or sigma (of mud), 1 for mud
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],  # factor and shift of the saturation of HSV
}

_TINY: dict[str, list[Any]] = {
    "gaussian_noise": [0.04, 0.08, 0.12, 0.15, 0.18],
    "shot_noise": [250, 100, 50, 30, 15],
    "impulse_noise": [0.01, 0.02, 0.05, 0.08, 0.14],
    "speckle_noise": [0.15, 0.2, 0.25, 0.3, 0.35],
    "gaussian_blur": [0.5, 0.75, 1, 1.25, 1.5],
    "defocus_blur": [(0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)],
    "glass_blur": [(0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)],
    "motion_blur": [(10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)],
    "zoom_blur": _zooms((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ],
    "frost": [(1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)],
    "fog": [(0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)],
    "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
    "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
    "elastic_transform": _elastic(
        64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
    ),
    "pixelate": [0.9, 0.8, 0.7, 0.6, 0.5],
    "jpeg_compression": [65, 58, 50, 40, 25],
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)],
}

_CIFAR: dict[str, list[Any]] = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
    "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": _zooms((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "elastic_transform": _elastic(
        32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
}

PARAMETERS: dict[int, dict[str, list[Any]]] = {224: _IMAGENET, 64: _TINY, 32: _CIFAR}


def reference_for(side: int) -> int:
    """The parameter set whose images are nearest in size to images of this (longer) side."""
    return 32 if side <= 40 else 64 if side <= 96 else 224
