"""How near the corruptions come to the original's, as tables in Markdown; fails where a floor is broken.

Run `python benchmarks/corruption_parity.py [--sides 224 64 32] [--docs]`. The first tables hand the random numbers of
this package to the plainly written original beside the tests and compare pixel by pixel; shot noise, whose numbers
cannot be handed over, is held against the Poisson distribution; the last table compares with the package
`imagecorruptions` in distribution. `--docs` writes the tables into docs/corruptions.md. It needs the "dev" extra.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "corruptions")]

import corruption_helpers as helpers  # noqa: E402
import corruption_oracle as oracle  # noqa: E402
from corruption_shim import imagecorruptions  # noqa: E402
from corruptions import PAGE, fill  # noqa: E402

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_source, noise  # noqa: E402
from wildtta.corruptions.parameters import PARAMETERS  # noqa: E402

FLOOR = 0.99  # of the values within one grey level
COUNTS = {224: 2, 64: 8, 32: 16}  # images


def pixels(side: int, broken: list[str]) -> list[str]:
    """The least share within one grey level at each severity, over some images."""
    count = COUNTS[side]
    images, seeds = helpers.pictures(count, side), torch.arange(50, 50 + count)
    pictures = helpers.to_uint8(images)
    lines = [
        f"**{side} px**, {count} images",
        "",
        "| corruption | 1 | 2 | 3 | 4 | 5 | identical | largest difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in CORRUPTIONS + EXTRA:
        if name == "shot_noise" or (name == "frost" and frost_source() == "procedural"):
            continue
        shares, same, most = [], [], 0
        for severity in range(1, 6):
            parameters = PARAMETERS[side][name][severity - 1]
            ours = helpers.to_uint8(corrupt(images, name, severity, seeds=seeds, reference=side))
            share = 1.0
            for picture, result, seed in zip(pictures, ours, seeds.tolist(), strict=True):
                draw = helpers.draws(name, parameters, severity, seed, side, side)
                original = oracle.corrupt(name, picture, parameters, draw)
                share = min(share, helpers.near(original, result))
                same.append((original == result).mean())
                most = max(most, int(abs(original.astype(int) - result).max()))
            shares.append(share)
            if share < FLOOR:
                broken.append(f"{name}, severity {severity}, {side} px: {share:.2%} within one grey level")
        cells = " | ".join(_percent(share) for share in shares)
        lines.append(f"| {name} | {cells} | {_percent(float(np.mean(same)))} | {most} |")
    return lines


def shot_noise(broken: list[str]) -> list[str]:
    """The table the counts are drawn from, and the drawn levels, against the Poisson distribution."""
    from scipy.stats import poisson

    lines = [
        "| photons at white | used at | table: largest error of a probability | mean, in standard errors | variance, ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    level = np.arange(256)[:, None]
    for photons in sorted({row for table in PARAMETERS.values() for row in table["shot_noise"]}, reverse=True):
        shares, counts = (part.numpy().astype(np.int64 if part.dtype == torch.int32 else float)
                          for part in noise._poisson(photons, torch.device("cpu")))  # fmt: skip
        slots, size = len(shares) // 256, 2000
        table, row = np.zeros((256, size)), np.repeat(np.arange(256), len(shares) // 256)
        np.add.at(table, (row, counts >> 16), shares / slots)
        np.add.at(table, (row, counts & 0xFFFF), (1 - shares) / slots)
        error = abs(table - poisson.pmf(np.arange(size), level * photons / 255)).max()

        side, severity = next(
            (side, table["shot_noise"].index(photons) + 1)
            for side, table in PARAMETERS.items()
            if photons in table["shot_noise"]
        )
        grey = torch.arange(256).reshape(256, 1, 1, 1).expand(256, 3, 64, 64) / 255
        drawn = (corrupt(grey, "shot_noise", severity, reference=side) * 255).double().flatten(1).numpy()
        # What each grey level should become: clipped and truncated like the original.
        levels = np.floor(np.clip(np.arange(size) / photons, 0, 1) * 255 + 1e-9)
        chance = poisson.pmf(np.arange(size), level * photons / 255)
        mean = (chance * levels).sum(1)
        variance = (chance * levels**2).sum(1) - mean**2
        inner = variance > 0.5  # of a grey level; black does not vary
        off = (drawn.mean(1) - mean)[inner] / np.sqrt(variance[inner] / drawn.shape[1])
        ratio = drawn.var(1)[inner].sum() / variance[inner].sum()
        if error > 1e-6 or abs(off).max() > 5 or abs(ratio - 1) > 0.01:
            broken.append(f"shot_noise, {photons} photons: {error:.1e}, {abs(off).max():.1f}, {ratio:.3f}")
        used = ", ".join(
            f"{side} px: {table['shot_noise'].index(photons) + 1}"
            for side, table in PARAMETERS.items()
            if photons in table["shot_noise"]
        )
        lines.append(
            f"| {photons} | {used} | {error:.1e} | ±{abs(off).max():.1f} of {inner.sum()} levels | {ratio:.4f} |"
        )
    return lines


def distributions(package: Any, broken: list[str]) -> list[str]:
    """Mean, deviation and spectrum of corrupted copies of an image, next to those of `imagecorruptions`."""
    lines = [
        "| corruption | severity | images | mean | theirs | deviation | theirs | log-ratio of five bands' power, low to high "
        "| bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    image = helpers.pictures(1, 224, seed=2)
    picture = helpers.to_uint8(image)[0]
    for name, count, tolerance in helpers.DISTRIBUTIONS:
        if name == "frost" and frost_source() == "procedural":
            continue
        np.random.seed(0)
        for severity in (2, 5) if name == "glass_blur" else range(1, 6):
            ours = helpers.summary(helpers.to_uint8(corrupt(image.expand(count, -1, -1, -1), name, severity)))
            theirs = helpers.summary(np.stack([package.corrupt(picture, severity, name) for _ in range(count)]))
            ratio = np.log(ours[2] / theirs[2])
            if (
                abs(ours[0] - theirs[0]) >= 60 * tolerance
                or abs(ours[1] - theirs[1]) >= 40 * tolerance
                or (abs(ratio[1:]) >= tolerance).any()  # the lowest band is a few numbers of one image
            ):
                broken.append(f"{name}, severity {severity}: {ours[:2]} and {theirs[:2]}, bands {ratio.round(3)}")
            bands = " ".join(f"{part:+.3f}" for part in ratio)
            lines.append(
                f"| {name} | {severity} | {count} | {ours[0]:.2f} | {theirs[0]:.2f} | {ours[1]:.2f} | {theirs[1]:.2f} "
                f"| {bands} | {tolerance} |"
            )
    return lines


def _percent(share: float) -> str:
    """Never rounded up to all of them."""
    return "100" if share == 1 else f"{min(100 * share, 99.99):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[224, 64, 32], choices=[224, 64, 32])
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/corruptions.md")
    options = parser.parse_args()

    torch.set_num_threads(1)
    broken: list[str] = []
    parts = {"pixels": [line for side in options.sides for line in ["", *pixels(side, broken)]][1:]}
    parts["shot-noise"] = shot_noise(broken)
    package = imagecorruptions()
    if package is None:
        print("imagecorruptions is not installed: no comparison in distribution", file=sys.stderr)
    else:
        parts["distributions"] = distributions(package, broken)
    for name, lines in parts.items():
        print("\n".join(lines), end="\n\n")
        if options.docs:
            fill(PAGE, name, lines)
    print("\n".join(["Floors broken:", *broken]) if broken else "No floor is broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
