"""Images per second of each corruption, next to the package `imagecorruptions` (image by image, on the CPU).

Run `python benchmarks/corruptions.py [--device cuda] [--batch 64] [--side 224] [--severities 1 3 5] [--threads 1]`.
With `--json FILE` the figures are kept, too; `--docs` measures nothing, but writes the kept figures of
docs/data/corruptions_*.json into docs/corruptions.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt, frost_source  # noqa: E402

ALL = CORRUPTIONS + EXTRA
PAGE = ROOT / "docs" / "corruptions.md"


def baseline() -> Any:
    """`imagecorruptions`, through the shim the tests use; None where it is not installed."""
    spec = importlib.util.spec_from_file_location("shim", ROOT / "tests" / "corruptions" / "corruption_shim.py")
    assert spec is not None
    assert spec.loader is not None
    shim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shim)
    return shim.imagecorruptions()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def waits(work: Callable[[], object]) -> int:
    """How often the host waits for the GPU in this call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in seen)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds for an image at each severity, ours and theirs in turn: what else the machine does slows either alike.

    The shortest of some runs counts, which is the one least disturbed.
    """
    torch.set_num_threads(options.threads)
    device, cpu = torch.device(options.device), torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(options.batch, 3, options.side // 8, options.side // 8, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (options.side, options.side), mode="bilinear").to(device)
    other = baseline() if options.baseline_images else None
    pictures = (images[: options.baseline_images] * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    if other is not None:
        import cv2

        cv2.setNumThreads(options.threads)
        np.random.seed(0)
    for name in ALL:  # fills the caches and the allocators
        corrupt(images, name, options.severities[0])

    begun, rows = time.perf_counter(), {}
    for name in ALL:
        row: dict[str, Any] = {"ours": 0.0, "theirs": None if other is None else 0.0}
        for severity in options.severities:
            work = partial(corrupt, images, name, severity)
            work()
            ours, theirs = [], []
            for _ in range(options.repeats):
                ours.append(seconds(work, device))
                if other is not None:
                    originals = [partial(other.corrupt, picture, severity, name) for picture in pictures]
                    theirs.append([seconds(original, cpu) for original in originals])
            row["ours"] += min(ours) / options.batch
            if other is not None:
                row["theirs"] += float(np.min(theirs, axis=0).mean())
            if device.type == "cuda":
                row["waits"] = max(row.get("waits", 0), waits(work))
        rows[name] = row
        if options.verbose:
            print(f"{name}: {row}", file=sys.stderr, flush=True)
    return {
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "host": processor(),
        "device": device.type,
        "batch": options.batch,
        "side": options.side,
        "severities": options.severities,
        "threads": options.threads,
        "torch": torch.__version__,
        "opencv": cv2.__version__ if other is not None else None,
        "frost": frost_source(),
        "took": round(time.perf_counter() - begun, 1),
        "rows": rows,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def totals(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows, and their sums: over all, and without the corruption that is a Python loop in the original."""
    rows = dict(figures["rows"])
    for label, names in (
        ("all", ALL),
        ("all but glass_blur", [name for name in ALL if name != "glass_blur"]),
    ):
        parts = [figures["rows"][name] for name in names]
        rows[label] = {
            side: None if any(part[side] is None for part in parts) else sum(part[side] for part in parts)
            for side in ("ours", "theirs")
        } | {"count": len(names)}
    return rows


def cells(figures: dict[str, Any], row: dict[str, Any]) -> tuple[str, str, str]:
    """Images a second, ours and theirs, and the ratio."""
    count = len(figures["severities"]) * row.get("count", 1)
    if row["theirs"] is None:
        return f"{count / row['ours']:.0f}", "-", "-"
    return f"{count / row['ours']:.0f}", f"{count / row['theirs']:.1f}", f"{row['theirs'] / row['ours']:.1f}"


def title(figures: dict[str, Any]) -> str:
    threads = f"{figures['threads']} thread{'s' if figures['threads'] > 1 else ''}"
    return f"{figures['machine']}, {threads}" if figures["device"] == "cpu" else figures["machine"]


def describe(figures: dict[str, Any]) -> str:
    gpu = f" against {figures['threads']} thread(s) of its host ({figures['host']})"
    return (
        f"{title(figures)}{gpu if figures['device'] != 'cpu' else ''}: batch {figures['batch']}, {figures['side']} px, "
        f"severities {figures['severities']}, torch {figures['torch']}, opencv {figures['opencv']}, "
        f"frost {figures['frost']}, {figures['took']:.0f} s for the run"
    )


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: for each run our images a second, those of imagecorruptions, the ratio, and the waits on a GPU."""
    head, rule = "| corruption |", "| --- |"
    for figures in runs:
        head += f" {title(figures)} | imagecorruptions | ratio |" + (" waits |" if figures["device"] == "cuda" else "")
        rule += " --- | --- | --- |" + (" --- |" if figures["device"] == "cuda" else "")
    lines = [head, rule]
    summed = [totals(figures) for figures in runs]
    for name in summed[0]:
        line = f"| {name} |"
        for figures, rows in zip(runs, summed, strict=True):
            line += "".join(f" {cell} |" for cell in cells(figures, rows[name]))
            line += f" {rows[name].get('waits', '')} |" if figures["device"] == "cuda" else ""
        lines.append(line)
    return lines


def kept() -> list[str]:
    """What the page shows of the figures in docs/data."""
    runs = [json.loads(file.read_text()) for file in sorted((ROOT / "docs" / "data").glob("corruptions_*.json"))]
    return [*(f"- {describe(figures)}" for figures in runs), "", *table(runs)]


def fill(page: Path, part: str, lines: list[str]) -> None:
    """Put lines between the two comments that mark a part of a page."""
    opening, closing = f"<!-- {part} -->", f"<!-- /{part} -->"
    text = page.read_text()
    if opening not in text or closing not in text:
        raise SystemExit(f"{page} has no place for them: it lacks {opening} or {closing}")
    before, after = text.split(opening)[0], text.split(closing)[1]
    page.write_text(f"{before}{opening}\n\n" + "\n".join(lines) + f"\n\n{closing}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--threads", type=int, default=1, help="on the CPU, for either side")
    parser.add_argument("--baseline-images", type=int, default=2, help="how many imagecorruptions gets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--docs", action="store_true", help="only write the kept figures into docs/corruptions.md")
    parser.add_argument("--verbose", action="store_true", help="say what is done meanwhile")
    options = parser.parse_args()

    if options.docs:
        fill(PAGE, "speed", kept())
        return
    figures = measure(options)
    print(describe(figures))
    for line in table([figures]):
        name, *columns = (cell.strip() for cell in line.strip("|").split("|"))
        print(f"{name:<20}" + "".join(f"{column[:26]:>28}" for column in columns))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
