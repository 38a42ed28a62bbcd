"""Images per second of each corruption, next to the package `imagecorruptions` (image by image, on the CPU).

Run `python benchmarks/corruptions.py [--device cuda] [--batch 64] [--side 224] [--severities 1 3 5] [--threads 1]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_source  # noqa: E402


def baseline() -> Any:
    """`imagecorruptions`, through the shim the tests use; None where it is not installed."""
    spec = importlib.util.spec_from_file_location("shim", ROOT / "tests" / "corruptions" / "corruption_shim.py")
    assert spec is not None
    assert spec.loader is not None
    shim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shim)
    return shim.imagecorruptions()


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The shortest of some runs, which is the one least disturbed by what else the machine does."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--threads", type=int, default=1, help="on the CPU, for either side")
    parser.add_argument("--baseline-images", type=int, default=2, help="how many imagecorruptions gets")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(options.batch, 3, options.side // 8, options.side // 8, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (options.side, options.side), mode="bilinear").to(device)
    other = baseline() if options.baseline_images else None
    if other is not None:
        import cv2

        cv2.setNumThreads(options.threads)
        np.random.seed(0)
        pictures = (images[: options.baseline_images] * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()

    side, threads = options.side, options.threads
    print(f"{options.batch} images of {side} x {side} on {device}, {threads} thread(s) on the CPU")
    print(f"torch {torch.__version__}, severities {options.severities}, frost: {frost_source()}")
    print(f"{'corruption':<20}{'images/s':>12}{'imagecorruptions':>20}{'ratio':>10}")
    ours = theirs = 0.0  # seconds for an image, over all corruptions
    for name in CORRUPTIONS + EXTRA:
        one = two = 0.0
        for severity in options.severities:
            corrupt(images[:2], name, severity)  # fills the caches
            one += seconds(lambda: corrupt(images, name, severity), device, options.repeats) / options.batch  # noqa: B023
            if other is not None:
                for picture in pictures:
                    work = lambda: other.corrupt(picture, severity, name)  # noqa: B023, E731
                    two += seconds(work, torch.device("cpu"), options.repeats) / len(pictures)
        ours, theirs = ours + one, theirs + two
        count = len(options.severities)
        end = f"{count / two:>20.1f}{two / one:>10.1f}" if two else f"{'-':>20}{'-':>10}"
        print(f"{name:<20}{count / one:>12.1f}{end}", flush=True)
    count = len(options.severities) * len(CORRUPTIONS + EXTRA)
    end = f"{count / theirs:>20.1f}{theirs / ours:>10.1f}" if theirs else f"{'-':>20}{'-':>10}"
    print(f"{'all of them':<20}{count / ours:>12.1f}{end}")


if __name__ == "__main__":
    main()
