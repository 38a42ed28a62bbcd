"""What the losses and a step cost, as tables.

    python benchmarks/cost.py                      # CPU: losses at C = 1000, a step at 64 px
    python benchmarks/cost.py --device cuda        # and a step at 224 px
    python benchmarks/cost.py --only wide          # C = 21,841, d = 768, B = 64, in a process of its own

Times are medians with the quartiles, methods taken in turn within each round so that they share what the machine does; a ratio is
the median of the ratios within rounds. Memory is the peak over what was allocated before: the allocator's on CUDA; on the CPU,
what the profiler's allocations add up to.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import wildtta
from wildtta.bench.loops import cubic
from wildtta.bench.timing import MIB, in_turn, peak_memory, ratios, spread
from wildtta.core import Neighbourhood, Prediction, entropy, region_confidence


def prediction(logits: Tensor) -> Prediction:
    return Prediction(logits, logits, logits, torch.arange(len(logits)), lambda _: prediction(logits))


def losses(device: str, classes: int = 1000, features: int = 2048, batch: int = 64) -> dict[str, float]:
    torch.manual_seed(0)
    weight = 0.03 * torch.randn(classes, features, device=device)
    variance = 0.06 * torch.ones(features, device=device)
    logits = (3 * torch.randn(batch, classes, device=device)).requires_grad_()
    around, plain = Neighbourhood(weight, variance, 1.2), entropy()
    confidence = region_confidence(around)

    def gradient(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(loss().sum(), logits)[0]

    functions = {
        "entropy": gradient(lambda: plain(prediction(logits))),
        "region confidence": gradient(lambda: confidence(prediction(logits))),
        "the same with a B × C × C tensor": gradient(lambda: cubic(logits, weight, 1.2 * variance)[0]),
    }
    times = {name: spread(values) for name, values in in_turn(functions, 10, device).items()}
    memory = {name: peak_memory(function, device) for name, function in functions.items()}
    constants = sum(buffer.numel() * buffer.element_size() for buffer in around.buffers()) / MIB
    print(f"\nLoss and gradient, B = {batch}, C = {classes}, float32, {device}")
    print("| loss | ms (quartiles) | peak MiB | over entropy |\n| --- | --- | --- | --- |")
    for name, (low, middle, high) in times.items():
        over = memory[name] - memory["entropy"]
        print(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) | {memory[name]:.1f} | {over:+.1f} |")
    together = memory["region confidence"] - memory["entropy"] + constants
    print(f"Constants kept for the run: {constants:.1f} MiB; with them, {together:.1f} over entropy.")
    return {name: middle for name, (_, middle, _) in times.items()} | {"mib_over_entropy": together}


def wide(classes: int = 21_841, features: int = 768, batch: int = 64) -> None:
    torch.manual_seed(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    weight, variance = 0.05 * torch.randn(classes, features), 0.06 * torch.ones(features)
    logits = (3 * torch.randn(batch, classes)).requires_grad_()
    start = time.perf_counter()
    around = Neighbourhood(weight, variance, 1.2)
    built = time.perf_counter() - start
    start = time.perf_counter()
    torch.autograd.grad(region_confidence(around)(prediction(logits)).sum(), logits)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nC = {classes}, d = {features}, B = {batch}, CPU: constants built in {built:.1f} s, loss and gradient {took:.2f} s,"
    )
    print(f"largest resident size of the process {peak / 1024:.2f} GiB ({before / 1024:.2f} GiB before)")


def step(device: str, side: int, batch: int, rounds: int, small_stem: bool) -> dict[str, float]:
    import timm

    torch.manual_seed(0)
    network = timm.create_model("resnet50_gn", num_classes=1000).to(device)
    if small_stem:
        network.maxpool = nn.Identity()
    region = wildtta.Region(torch.full((2048,), 1e-3, device=device))
    images = torch.randn(batch, 3, side, side, device=device)
    if device == "cpu":
        images = images.contiguous(memory_format=torch.channels_last)
    methods = {
        "tent": wildtta.adapt(network, "tent"),
        "recap, the same layers": wildtta.adapt(network, "recap", region=region, threshold=2.0, frozen_top=False),
        "recap": wildtta.adapt(network, "recap", region=region, threshold=2.0),
    }
    if device == "cpu":
        methods = {name: adapter.to(memory_format=torch.channels_last) for name, adapter in methods.items()}
    turns = {name: lambda adapter=adapter: adapter(images) for name, adapter in methods.items()}
    times = in_turn(turns, rounds, device)
    for name, adapter in methods.items():
        assert adapter.report.selected == adapter.report.seen, f"{name} must learn from all images to be compared"
    print(f"\nA step, ResNet50-GN, {side} px, batch {batch}, float32, eager, {device}: every image teaches")
    print("| method | ms (quartiles) | ÷ tent |\n| --- | --- | --- |")
    found: dict[str, float] = {}
    for name in methods:
        low, found[name], high = spread(times[name])
        found[f"{name} ÷ tent"] = over = ratios(times, name, "tent").middle
        print(f"| {name} | {found[name]:.1f} ({low:.1f} to {high:.1f}) | {over:.3f} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", choices=["losses", "wide", "step"])
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if arguments.only in (None, "losses"):
        losses(arguments.device)
    if arguments.only in (None, "wide"):
        wide()
    if arguments.only in (None, "step"):
        if arguments.device == "cuda":
            step("cuda", 224, 64, 5 * arguments.rounds, small_stem=False)
        else:
            step("cpu", 64, 64, arguments.rounds, small_stem=True)


if __name__ == "__main__":
    main()
