"""Every GPU measurement of docs/speed.md in one go, most important first.

    python benchmarks/gpu.py --out results [--data DATA]       # about ten minutes on one H200
    python benchmarks/gpu.py --out results --only goals-resnet fleet
    python benchmarks/gpu.py --out results --device cpu --tiny # a dry run with tiny networks: nothing of it means anything

Each measurement is a JSON file in the folder; what is there is not measured again, so the same command goes on where it stopped.
One that fails leaves a .failed file with the reason and does not stop the others; it is tried again by the next call. DATA is the
folder that benchmarks/tiny_imagenet.py takes. At the end the table of goals is printed; copy the files to docs/data/speed and run
`python benchmarks/speed_page.py --docs` to have them in the page.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cost  # noqa: E402
import speed_page  # noqa: E402
import tiny_imagenet  # noqa: E402

import wildtta  # noqa: E402
from wildtta.bench.growth import grow  # noqa: E402
from wildtta.bench.speed import Speed, machine, measure, prepared  # noqa: E402
from wildtta.bench.timing import in_turn, ratios, spread  # noqa: E402
from wildtta.core import Neighbourhood, entropy, region_confidence  # noqa: E402

RESNET, VIT = "timm:resnet50_gn", "timm:vit_base_patch16_224"
TINY = f"{HERE / 'tiny_speed_model.py'}:build"
METHODS = ("tent", "eta", "eata", "sar", "deyo", "recap", "recap+eta", "recap+sar", "recap+deyo")

CAPTURED = ("tests/test_captured.py", "tests/test_fleet.py::test_captured_equals_eager")

Figures = dict[str, Any]


class Tasks:
    """The measurements: each method whose name does not begin with an underscore is one, in this order."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.tiny, self.data = arguments.device, arguments.tiny, arguments.data
        self.resnet, self.vit = (TINY, TINY) if self.tiny else (RESNET, VIT)
        self.large = 4 if self.tiny else 64
        self.runners = ("eager", "captured")
        self.usual = Speed(
            device=self.device,
            precisions=("float32", "bf16"),
            methods=("recap",),
            runners=self.runners,
            batches=(self.large, 1),
            rounds=1 if self.tiny else 25,
            until=20.0,
            memory=not self.tiny,
        )

    def goals_resnet(self) -> Figures:
        return measure(replace(self.usual, models=[self.resnet], memory=True), _say)

    def goals_vit(self) -> Figures:
        return measure(replace(self.usual, models=[self.vit]), _say)

    def fleet(self) -> Figures:
        options = replace(self.usual, models=[self.resnet, self.vit])
        return grow(options, "streams", [self.large], _say)

    def loss(self) -> Figures:
        return {**loss_share(self.resnet, self.large, self.usual), **machine(self.device)}

    def cost(self) -> Figures:
        options = {"classes": 50, "features": 32, "batch": 8} if self.tiny else {}
        found: Figures = {"losses": cost.losses(self.device, **options)}
        if not self.tiny:
            found["step"] = cost.step(self.device, 224, 64, 20, small_stem=False)
        return found | machine(self.device)

    def accuracy(self) -> Figures:
        if self.data is None:
            raise SkippedError("no folder of data was given")
        return {"rows": accuracy(self.data, self.device, 2 if self.tiny else None), **machine(self.device)}

    def all_resnet(self) -> Figures:
        return self._all(self.resnet)

    def all_vit(self) -> Figures:
        return self._all(self.vit)

    def share(self) -> Figures:
        """Where little is selected: what sparing gives, and whether a graph of everything is still faster."""
        options = replace(self.usual, models=[self.resnet, self.vit], methods=("recap", "sar"), precisions=("float32",))
        options = replace(options, runners=("eager", "sparing", "captured"), batches=(self.large,), memory=False)
        tables = [measure(replace(options, share=share), _say) for share in ((0.4,) if self.tiny else (0.4, 0.1))]
        for table in tables:
            for row in table["rows"]:
                row["share"] = table["options"]["share"]
        return tables[0] | {"rows": [row for table in tables for row in table["rows"]]}

    def corruptions(self) -> Figures:
        if self.tiny:
            raise SkippedError("takes too long for a dry run")
        file = Path(os.environ.get("TMPDIR", "/tmp")) / f"corruptions_{os.getpid()}.json"
        command = [sys.executable, str(HERE / "corruptions.py"), "--device", self.device, "--json", str(file)]
        command += ["--severities", "3", "--repeats", "2"]
        subprocess.run(command, check=True, timeout=240, stdout=subprocess.DEVNULL)
        found: Figures = json.loads(file.read_text())
        file.unlink()
        return found

    def grow_batch(self) -> Figures:
        options = replace(self.usual, models=[self.resnet, self.vit], rounds=1 if self.tiny else 9)
        options = replace(options, runners=("captured",), precisions=("float32",) if self.tiny else ("bf16",))
        return grow(options, "batch", [1, 2] if self.tiny else None, _say)

    def grow_classes(self) -> Figures:
        options = replace(self.usual, models=[self.resnet], rounds=1 if self.tiny else 9, runners=("captured",))
        options = replace(options, batches=(self.large,), precisions=("float32",))
        return grow(options, "classes", [10, 50] if self.tiny else None, _say)

    def grow_streams(self) -> Figures:
        options = replace(self.usual, models=[self.resnet], rounds=1 if self.tiny else 9, precisions=("float32",))
        return grow(replace(options, runners=("captured",)), "streams", [1, 2] if self.tiny else None, _say)

    def compiled(self) -> Figures:
        if self.tiny:
            raise SkippedError("takes too long for a dry run")
        options = replace(self.usual, models=[self.resnet, self.vit], runners=("captured", "compiled"))
        return measure(replace(options, precisions=("bf16",), batches=(self.large,)), _say)

    def equality(self) -> Figures:
        """The tests that hold captured steps, of one stream and of many, against eager ones: without CUDA they skip."""
        if self.tiny:
            raise SkippedError("takes too long for a dry run")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CAPTURED]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=300)
        return {"passed": done.returncode == 0, "said": done.stdout.splitlines()[-5:], **machine(self.device)}

    def _all(self, model: str) -> Figures:
        """Every method × runner. Few methods at a time: graphs of large batches take much memory."""
        found: Figures = {}
        groups = (METHODS,) if self.tiny else (METHODS[:4], METHODS[4:])
        for precision in ("float32",) if self.tiny else ("float32", "bf16"):
            for place, group in enumerate(groups):
                reference = place == 0 and precision == "float32"
                options = replace(
                    self.usual, models=[model], methods=group, precisions=(precision,), reference=reference
                )
                options = replace(
                    options, runners=("eager", "sparing", "captured"), rounds=1 if self.tiny else 9, until=8.0
                )
                table = measure(options, _say)
                rows = [row for row in table["rows"] if _is_new(row, found.get("rows", []))]
                found = table | {"rows": found.get("rows", []) + rows}
        return found

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in vars(cls) if not name.startswith("_")]


class SkippedError(Exception):
    """A measurement that cannot be made here, for a reason that is no fault."""


def _is_new(row: Figures, rows: list[Figures]) -> bool:
    key = ("batch", "method", "runner", "precision")
    return not any(all(row[name] == other[name] for name in key) for other in rows)


# -- what `wildtta speed` does not measure -----------------------------------------------------------------------------


def loss_share(spec: str, batch: int, options: Speed) -> Figures:
    """Region confidence and its gradient as a graph of their own, next to a captured step, at C = 1000."""
    classes = 10 if options.device == "cpu" else 1000
    model = prepared(spec, options)
    view = wildtta.Network(model.network)
    side = model.preprocessing.size[0]
    images = torch.randn(batch, 3, side, side, device=options.device)
    region = wildtta.Region(torch.full((view.features,), 1e-3))
    adapter = wildtta.adapt(model.network, "recap", region=region, threshold=100.0, lr=1e-9, runner="captured")
    logits = torch.randn(batch, classes, device=options.device, requires_grad=True)
    around = Neighbourhood(torch.randn(classes, 64, device=options.device), torch.full((64,), 1e-3), 1.2)
    steps: dict[str, Callable[[], object]] = {"step": lambda: adapter(images)}
    for name, loss in (("loss", region_confidence(around)), ("entropy", entropy())):

        def gradient(loss: torch.nn.Module = loss) -> Tensor:
            return torch.autograd.grad(loss(cost.prediction(logits)).sum(), logits)[0]

        steps[name] = gradient if options.device == "cpu" else _graphed(gradient)
    times = in_turn(steps, options.rounds, options.device, warm_up=4)
    if options.device != "cpu":
        times |= {name: [value / _REPEATS for value in times[name]] for name in ("loss", "entropy")}
    found = {name: spread(values) for name, values in times.items()}
    found |= {"share": ratios(times, "loss", "step")}
    return {"model": spec, "batch": batch, "classes": classes} | {name: list(values) for name, values in found.items()}


_REPEATS = 20


def _graphed(function: Callable[[], object]) -> Callable[[], object]:
    """A CUDA graph of many calls, so that launching it hardly counts."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_REPEATS):
            function()
    return graph.replay


def accuracy(data: Path, device: str, per_class: int | None) -> list[Figures]:
    """ReCAP and Tent on corrupted photographs, in float32 and under bf16 autocast."""
    clean, labels = tiny_imagenet.load_images(data / "val.tar", per_class)
    source, _ = tiny_imagenet.load_images(data / "source.tar", 3)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    rows = []
    for name in tiny_imagenet.MODELS:
        model = tiny_imagenet.load_model(data, name).to(device)
        region = wildtta.Region.estimate(model, tiny_imagenet.normalise(source / 255, name)[:500].to(device))
        for kind in tiny_imagenet.CORRUPTIONS:
            parts = zip(clean.to(device).split(500), torch.arange(len(clean), device=device).split(500), strict=True)
            images = torch.cat([wildtta.corruptions.corrupt(part / 255, kind, 5, seeds=seeds) for part, seeds in parts])
            images = tiny_imagenet.normalise(images, name)[order.to(device)]
            for method in ("source", "tent", "recap"):
                row: Figures = {"model": name, "corruption": kind, "method": method, "images": len(labels)}
                for precision in ("float32", "bf16"):
                    options = {"region": region} if method == "recap" else {}
                    with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                        found = tiny_imagenet.run(model, images, labels[order].to(device), method, None, **options)
                    row[precision] = found["accuracy"]
                rows.append(row)
                _say(json.dumps(row))
    return rows


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# -- running them ------------------------------------------------------------------------------------------------------


def main(given: list[str] | None = None) -> int:
    names = [name.replace("_", "-") for name in Tasks._names()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny networks and one round: to see that all of it runs")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--budget", type=float, default=540.0, help="begin nothing new after so many seconds")
    arguments = parser.parse_args(given)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    arguments.out.mkdir(parents=True, exist_ok=True)
    tasks, begun, failed = Tasks(arguments), time.perf_counter(), 0
    for name in arguments.only:
        file, spoilt = arguments.out / f"{name}.json", arguments.out / f"{name}.failed"
        if file.exists():
            continue
        if time.perf_counter() - begun > arguments.budget:
            print(f"no time left for {name}; the same command goes on with it", flush=True)
            break
        start = time.perf_counter()
        try:
            found = getattr(tasks, name.replace("-", "_"))()
        except SkippedError as reason:
            print(f"{name}: left out, {reason}", flush=True)
            continue
        except Exception:
            failed += 1
            spoilt.write_text(traceback.format_exc())
            print(f"{name}: FAILED, see {spoilt}\n{traceback.format_exc(limit=-2)}", flush=True)
        else:
            took = round(time.perf_counter() - start, 1)
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(found | {"took": took}, indent=1) + "\n")
            os.replace(partial, file)
            spoilt.unlink(missing_ok=True)
            print(f"{name}: {took} s", flush=True)
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    print("\n" + speed_page.goals(arguments.out))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
