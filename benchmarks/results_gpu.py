"""Everything that `docs/results.md` shows, on real images, from one command that goes on where it stopped.

    TINY_IMAGENET=DATA python benchmarks/results_gpu.py --data DATA --out runs/gpu --device cuda --precision tf32 --until 540
    TINY_IMAGENET=DATA python benchmarks/results_gpu.py --data DATA --out runs/gpu --plan     # what is to do, what is done
    TINY_IMAGENET=DATA python benchmarks/results_gpu.py --data DATA --out runs/gpu --publish docs/data/results

DATA is a folder with `val.tar`, `source.tar` and the two models' weights (see `tiny_models.py`). The most valuable come first:

1. `tune`: each method's learning rate, then its thresholds, on speckle noise, Gaussian blur, spatter and saturate.
2. `results`, first seed: the three wild scenarios × 15 corruptions × all methods × both models, at what was chosen.
3. the studies, at the same settings;
4. `results` at the published learning rate, with the mild scenario beside the three wild ones;
5. MEMO (`memo.py`) on 500 images of three corruptions, ResNet alone; 6. `results`, the further seeds.

`--until` begins nothing new after so many seconds, writes what can be written, and says what is left. Where only a few files come
back from a machine, `--archive FILE.tar.gz` keeps the whole folder in one, written at the end in any case and read at the start.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wildtta.bench.config import WILD
from wildtta.bench.engine import Family
from wildtta.studies import STUDIES, Bench, Choice, Teller, TimeOverError, read_summary, run_studies

HERE = Path(__file__).parent
MODELS = [f"{HERE / 'tiny_models.py'}:resnet", f"{HERE / 'tiny_models.py'}:vit"]
SEEDS = [2023, 2024, 2025]
MEMO = ("gaussian_noise", "defocus_blur", "contrast")


@dataclass(frozen=True)
class Stage:
    """One call of some studies: a folder below OUT, what is chosen there, and whether it is at the tuned settings.

    Without studies: one of MEMO.
    """

    name: str
    folder: str
    studies: tuple[str, ...]
    choice: dict[str, Any]
    tuned: bool = True


def stages(arguments: argparse.Namespace) -> list[Stage]:
    """In the order of their value."""
    images = {"images": arguments.images}
    first, whole = {"seeds": SEEDS[:1]}, {"seeds": SEEDS[: arguments.seeds]}
    found = [
        Stage("tune", "tune", ("tune",), {"seeds": [SEEDS[0]], "images": arguments.tune_images}, tuned=False),
        Stage("results, first seed", "tuned", ("results",), images | first),
        Stage("bounds and cost", "studies", ("bounds", "cost"), first),
        Stage("consistency", "studies", ("consistency",), images | first),
        Stage("components", "studies", ("components",), images | first),
        Stage("sensitivity", "studies", ("sensitivity",), images | first),
        Stage(
            "results at the published rates",
            "published",
            ("results",),
            images | first | {"scenarios": [*WILD, "mild"]},
            tuned=False,
        ),
        Stage("memo", "memo", (), {}, tuned=False),
        Stage("features", "studies", ("features",), images | first),
        Stage("stability", "studies", ("stability",), images | first),
        Stage("results, all seeds", "tuned", ("results",), images | whole),
    ]
    return [
        stage for stage in found if arguments.stages is None or any(name in stage.name for name in arguments.stages)
    ]


def choice_of(stage: Stage, arguments: argparse.Namespace) -> Choice:
    own = dict(stage.choice)
    if arguments.kinds and stage.name != "tune":
        own["kinds"] = arguments.kinds
    if stage.tuned:
        own["rates"] = str(arguments.out / "tune" / "tune" / "rates.json")
    if arguments.lr is not None:
        own["lr"] = arguments.lr
    return Choice(
        models=arguments.models,
        data=f"tiny-imagenet:{arguments.data / 'val.tar'}" if arguments.layout is None else arguments.layout,
        source=str(arguments.data / "source.tar") if arguments.layout is None else arguments.source,
        scale=arguments.scale,
        device=arguments.device,
        precision=arguments.precision,
        threads=arguments.threads,
        together=arguments.together,
        calibration=arguments.calibration,
        **own,
    )


class Printer(Teller):
    """One line for every ten seconds of work."""

    def __init__(self) -> None:
        self.streams, self.done, self.told = 0, 0, 0.0

    def note(self, text: str) -> None:
        print(f"  ! {text}", flush=True)

    def begin(self, cells: int, kept: int) -> None:
        self.streams, self.done = cells, kept

    def progress(self, family: Family, seen: int, images: int, accuracy: float) -> None:
        first = family[0]
        self._tell(f"now {first.model} {first.scenario} {first.kind} {first.method}: {seen} of {images} images")

    def finished(self, family: Family) -> None:
        self.done += len(family)
        self._tell(f"{family[0].model} {family[0].scenario} {family[0].method} is done")

    def failed(self, family: Family, reason: str) -> None:
        print(f"  FAILED {family[0].name}: {reason}", file=sys.stderr, flush=True)

    def part(self, name: str) -> None:
        print(f"  {name}", flush=True)

    def _tell(self, text: str) -> None:
        if time.monotonic() - self.told > 10:
            self.told = time.monotonic()
            print(f"  {self.done} of {self.streams} streams, {text}", flush=True)


def carry_on(arguments: argparse.Namespace) -> bool:
    """Run what is missing; whether all is done."""
    deadline = time.monotonic() + arguments.until
    whole = True
    for stage in stages(arguments):
        begun = time.monotonic()
        print(f"{stage.name} …", flush=True)
        if stage.tuned and not (arguments.out / "tune" / "tune" / "rates.json").exists():
            print("  waits for tune")
            whole = False
            continue
        if not stage.studies:
            finished = memo(arguments, deadline - time.monotonic())
            if finished is None:
                whole = False
                continue
            if not finished:
                print("  not finished: the time is over; the same command goes on")
                return False
            print(f"  done in {time.monotonic() - begun:.0f} s")
            continue
        bench = Bench(choice_of(stage, arguments), arguments.out / stage.folder, Printer(), deadline)
        try:
            run_studies(stage.studies, bench)
        except TimeOverError:
            print(f"  not finished: the time is over after {time.monotonic() - begun:.0f} s; the same command goes on")
            return False
        whole = whole and not bench.failures
        print(f"  done in {time.monotonic() - begun:.0f} s, {len(bench.failures)} failures")
        for name in stage.studies:
            for point in STUDIES[name].findings(read_summary(bench.folder / name) or {}):
                print(f"  - {point}")
    return whole


def memo(arguments: argparse.Namespace, seconds: float) -> bool | None:
    """Go on with MEMO's images; whether all are done, None where it failed."""
    file = memo_file(arguments)
    file.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, HERE / "memo.py", "--out", file, "--images", arguments.memo_images]
    words += ["--until", max(0.0, seconds)]
    words += ["--device", arguments.device, "--threads", arguments.threads, "--views", arguments.memo_views]
    words += ["--at-once", 8 if arguments.device.startswith("cuda") else 1, "--kinds", *MEMO]
    tiny = ["--tiny", arguments.data, "--models", "resnet50_gn_64"]
    words += tiny if arguments.layout is None else ["--models", "glyph-resnet"]
    if code := subprocess.run(list(map(str, words))).returncode:
        print(f"  FAILED memo.py, with exit code {code}", file=sys.stderr, flush=True)
        return None
    return memo_done(arguments) >= len(MEMO) * arguments.memo_images


def memo_file(arguments: argparse.Namespace) -> Path:
    return Path(arguments.out) / "memo" / "memo_tiny.json"


def memo_done(arguments: argparse.Namespace) -> int:
    """How many images it has adapted to, with so many views."""
    file = memo_file(arguments)
    cells = json.loads(file.read_text()) if file.exists() else {}
    return sum(len(cell["memo"]) for key, cell in cells.items() if key.endswith(f"|{arguments.memo_views} views"))


def show_plan(arguments: argparse.Namespace) -> None:
    for stage in stages(arguments):
        folder = arguments.out / stage.folder
        if not stage.studies:
            print(f"{stage.name}: {memo_done(arguments)} of {len(MEMO) * arguments.memo_images} images in {folder}")
            continue
        streams = len(list((folder / "streams" / "cells").glob("*.json")))
        there = [name for name in stage.studies if (folder / name / "summary.json").exists()]
        print(
            f"{stage.name}: {', '.join(stage.studies)} in {folder}: {streams} streams; summaries: {', '.join(there) or 'none'}"
        )


def publish(arguments: argparse.Namespace) -> None:
    """Copy the summaries, which hold every number that is shown, and the figures."""
    for stage in stages(arguments):
        if not stage.studies and memo_file(arguments).exists():
            arguments.publish.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(memo_file(arguments), arguments.publish / memo_file(arguments).name)
            print(arguments.publish / memo_file(arguments).name)
        for name in stage.studies:
            source = arguments.out / stage.folder / name
            if (source / "summary.json").exists():
                target = arguments.publish / (f"{name}-{stage.folder}" if name == "results" else name)
                target.mkdir(parents=True, exist_ok=True)
                for file in (source / "summary.json", *source.glob("*.svg"), *source.glob("*.png")):
                    shutil.copyfile(file, target / file.name)
                print(target)


def pack(folder: Path, archive: Path) -> None:
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w:gz") as file:
        file.add(
            folder, arcname=".", filter=lambda entry: None if entry.name.endswith((".partial", ".lock")) else entry
        )
    partial.replace(archive)


def unpack(archive: Path, folder: Path) -> None:
    """What is there already is kept."""
    with tarfile.open(archive) as file:
        for member in file:
            if not (folder / member.name).exists():
                file.extract(member, folder, filter="data")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin nothing more after so many seconds")
    parser.add_argument("--images", type=int, default=2000, help="of each corruption; tiny-imagenet has 10,000")
    parser.add_argument("--tune-images", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--memo-images", type=int, default=500, help="of each corruption")
    parser.add_argument("--memo-views", type=int, default=64)
    parser.add_argument("--stages", nargs="+", help="only those whose name has one of these words")
    parser.add_argument(
        "--archive", type=Path, help="the whole folder as one file, read at the start and written at the end"
    )
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--publish", type=Path, help="copy summaries and figures here, and run nothing")
    others = parser.add_argument_group("for trying it out")
    others.add_argument("--models", nargs="+", default=MODELS)
    others.add_argument("--layout", help="other data, as `wildtta study --data` takes them")
    others.add_argument("--source")
    others.add_argument("--scale", default="full")
    others.add_argument("--kinds", nargs="+")
    others.add_argument("--lr")
    others.add_argument("--threads", type=int, default=1)
    others.add_argument("--together", type=int, default=16)
    others.add_argument("--calibration", type=int, default=500)
    arguments = parser.parse_args(given)
    if arguments.archive is not None and arguments.archive.exists():
        unpack(arguments.archive, arguments.out)
    if arguments.plan:
        show_plan(arguments)
        return 0
    if arguments.publish is not None:
        publish(arguments)
        return 0
    try:
        whole = carry_on(arguments)
    finally:
        if arguments.archive is not None and arguments.out.exists():
            pack(arguments.out, arguments.archive)
    print("all done" if whole else "not all done: the same command goes on", flush=True)
    return 0 if whole else 3


if __name__ == "__main__":
    sys.exit(main())
