"""On the CPU: methods and runners on a stream of corrupted photographs, next to the plain Tent loop.

    python benchmarks/cpu_speed.py DATA --json docs/data/speed/cpu-real.json      # real images and a model that knows them
    python benchmarks/cpu_speed.py --json docs/data/speed/cpu-drawn.json --share 0.4   # neither: so many images are drawn to teach

DATA is the folder that benchmarks/tiny_imagenet.py takes. ResNet50-GN, 64 px, batches of 64, contiguous, float32. All take turns
within each round, on the same batch of the same stream, each with a network of its own that goes on learning; a ratio is the
median of the ratios within rounds. "Work" is the time that the process itself ran on its cores, which a busy machine stretches
far less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
import tiny_imagenet

import wildtta
from wildtta.bench.loops import Loop
from wildtta.bench.speed import Speed, contestants, machine
from wildtta.bench.timing import in_turn, ratios, spread
from wildtta.corruptions import corrupt

WARM_UP = 4  # the sparing runner learns what passes cost
BATCH, CORRUPTIONS = 64, ("gaussian_noise", "defocus_blur", "contrast")
CONTESTANTS = ("recap, eager", "recap, sparing", "sar, eager", "sar, sparing")


def real(data: Path, wanted: list[str], batches: int) -> tuple[dict[str, Callable[[Tensor], object]], list[Tensor]]:
    name = "resnet50_gn_64"
    model = tiny_imagenet.load_model(data, name)
    images, _ = tiny_imagenet.load_images(data / "val.tar", per_class=1 + batches * BATCH // 200)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: batches * BATCH]
    source, _ = tiny_imagenet.load_images(data / "source.tar", per_class=1)
    region = wildtta.Region.estimate(model, tiny_imagenet.normalise(source / 255, name))
    stream = []
    for place, part in enumerate(order.split(BATCH)):
        kind = CORRUPTIONS[place % len(CORRUPTIONS)]
        stream.append(tiny_imagenet.normalise(corrupt(images[part] / 255, kind, 5, seeds=part), name))
    steps: dict[str, Callable[[Tensor], object]] = {"plain loop: tent": Loop(model, "tent", "fc")}
    for title in wanted:
        method, runner = title.split(", ")
        options: dict[str, Any] = {"region": region} if "recap" in method else {}
        steps[title] = wildtta.adapt(model, method, runner=runner, **options)
    return steps, stream


def drawn(share: float, wanted: list[str]) -> tuple[dict[str, Callable[[Tensor], object]], list[Tensor]]:
    import timm

    torch.manual_seed(0)
    network = timm.create_model("resnet50_gn", num_classes=200).eval()
    network.maxpool = nn.Identity()
    stream = [torch.randn(BATCH, 3, 64, 64)]
    methods = list(dict.fromkeys(title.split(", ")[0] for title in wanted))
    runners = list(dict.fromkeys(title.split(", ")[1] for title in wanted))
    options = Speed(methods=methods, runners=runners, share=share)
    found = {
        entry.name.removesuffix(", float32"): entry.step for entry in contestants(network, options, stream[0], print)
    }
    return {title: found[title] for title in ["plain loop: tent", *wanted]}, stream


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    before = os.getloadavg()[0]
    if arguments.data is None:
        steps, stream = drawn(arguments.share, arguments.contestants)
    else:
        steps, stream = real(arguments.data, arguments.contestants, arguments.rounds + WARM_UP)
    streams = {name: cycle(stream) for name in steps}

    work: dict[str, list[float]] = {name: [] for name in steps}

    def turn(name: str) -> Callable[[], object]:
        def taken() -> None:
            start = time.process_time()
            steps[name](next(streams[name]))
            work[name].append(1000 * (time.process_time() - start))
            print(".", end="", file=sys.stderr, flush=True)

        return taken

    times = in_turn({name: turn(name) for name in steps}, arguments.rounds, "cpu", warm_up=WARM_UP)
    work = {name: values[WARM_UP:] for name, values in work.items()}
    rows = []
    for name, step in steps.items():
        row: dict[str, Any] = {"name": name, "ms": [round(value, 1) for value in spread(times[name])]}
        row["ratio"] = [round(value, 4) for value in ratios(times, name, "plain loop: tent")]
        row["work"] = [round(value, 1) for value in spread(work[name])]
        row["work_ratio"] = [round(value, 4) for value in ratios(work, name, "plain loop: tent")]
        if isinstance(step, wildtta.Adapter):
            row["selected"] = round(step.report.selected / step.report.seen, 3)
            if costs := getattr(step.runner, "costs", None):
                row["measured"] = [found.summary() for found in costs.values()]
        rows.append(row)
    return {
        "images": "drawn" if arguments.data is None else "real",
        "rounds": arguments.rounds,
        **machine("cpu"),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--share", type=float, default=0.4, help="of the images that teach, without data")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    found = measure(arguments)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["rows"], indent=1))


if __name__ == "__main__":
    main()
