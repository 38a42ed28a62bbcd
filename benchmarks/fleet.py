"""What a fleet gives over a loop of adapters, as tables.

    python benchmarks/fleet.py                              # 64 streams with one image each, both embedded models, 1 and 2 threads
    python benchmarks/fleet.py --streams 1 4 16 64 256 --threads 2
    python benchmarks/fleet.py --threads 1 --cpu-time       # on a machine that others use too
    python benchmarks/fleet.py --memory                     # bytes of a stream, by method

The loop and the fleet take turns within each round, so that they share what the machine does; times are medians with quartiles,
ratios medians of the ratios within rounds.
"Floor" is one adapter that gets all the images as one batch: the same network passes, without any stream of its own.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import wildtta
from wildtta.bench.timing import in_turn, ratios, spread
from wildtta.core import tree
from wildtta.models import load_model

MODELS = ("glyph-resnet", "glyph-vit")


def throughput(model: str, streams: int, options: argparse.Namespace) -> None:
    network, images, settings = prepare(model, streams, options)
    adapters = [wildtta.adapt(network, options.method, **settings) for _ in range(streams)]
    fleet = wildtta.fleet(network, options.method, streams=streams, chunk=options.chunk, **settings)
    one = wildtta.adapt(network, options.method, **settings)
    names = list(range(streams))

    def loop() -> None:
        for adapter, image in zip(adapters, images, strict=True):
            adapter(image[None])

    times = in_turn(
        {"loop": loop, "fleet": lambda: fleet(images, names), "floor": lambda: one(images)},
        options.rounds,
        options.device,
        clock=time.process_time if options.cpu_time else time.perf_counter,
    )
    reports = [adapter.report for adapter in adapters] + [fleet.report(name) for name in names]
    assert all(report.selected == report.seen for report in reports), "every image must teach"
    quartiles = [spread(values) for values in times.values()]
    cells = [f"{streams / middle * 1000:.0f} ({low:.0f} to {high:.0f} ms)" for low, middle, high in quartiles]
    faster = [ratios(times, "loop", name).middle for name in ("fleet", "floor")]
    print(
        f"| {model} | {torch.get_num_threads()} | {streams} | {' | '.join(cells)} | {faster[0]:.2f} | {faster[1]:.2f} |",
        flush=True,
    )


def prepare(model: str, count: int, options: argparse.Namespace) -> tuple[torch.nn.Module, Tensor, dict[str, object]]:
    """A network, images, and settings by which every image teaches."""
    torch.manual_seed(0)
    found = load_model(model)
    network, size = found.network.to(options.device), found.preprocessing.size
    side = size if isinstance(size, int) else 32
    images = torch.randn(count, 3, side, side, device=options.device)
    settings: dict[str, object] = {}
    if options.method == "recap":
        settings = {"region": wildtta.Region.estimate(network, torch.randn(64, 3, side, side, device=options.device))}
        settings["threshold"] = 100.0
    return network, images, settings


def memory(model: str) -> None:
    network = load_model(model).network
    images = torch.randn(64, 3, 32, 32)
    region, fisher = wildtta.Region.estimate(network, images), wildtta.Fisher.estimate(network, images)
    needs = {
        "eata": {"fisher": fisher},
        **{name: {"region": region} for name in ("recap", "recap+eta", "recap+sar", "recap+deyo")},
    }
    for guard in (None, "collapse"):
        for method in (name for name, recipe in wildtta.methods().items() if not recipe.costly):
            fleet = wildtta.fleet(network, method, guard=guard, **needs.get(method, {}))  # type: ignore[arg-type]
            worst = 0.0
            for name in range(100):
                fleet.join(name)
                worst = max(worst, size(fleet) / len(fleet.streams)) if name >= 4 else 0.0
            fleet.trim()
            own = sum(fleet._usual.method.layout.sizes)
            parts = [
                f"{total:.0f} ({total / own / 4:.2f})" if own else f"{total:.0f}"
                for total in (size(fleet) / 100, worst)
            ]
            print(f"| {model} | {method} | {guard or ''} | {4 * own} | {' | '.join(parts)} |")


def size(fleet: wildtta.Fleet) -> int:
    """Bytes of all that a fleet keeps for its streams."""
    leaves = [leaf for cohort in fleet._cohorts for leaf in tree.flatten(cohort.state).values()]
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="as for `wildtta bench`")
    parser.add_argument("--method", default="recap", choices=["recap", "tent"])
    parser.add_argument("--streams", nargs="+", type=int, default=[64])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chunk", type=int, help="streams at once")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cpu-time", action="store_true", help="of the process, in the place of the time that passes")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.method}, one image a stream and step, float32, {options.device}\n")
    if options.memory:
        print("| model | method | guard | bytes of θ | bytes of a stream (÷ θ) | at worst while joining |")
        print("| --- | --- | --- | --- | --- | --- |")
        for model in options.models:
            memory(model)
        return
    print(
        "| model | threads | streams | loop, images/s | fleet, images/s | floor, images/s | fleet ÷ loop | floor ÷ loop |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for model in options.models:
            for streams in options.streams:
                throughput(model, streams, options)


if __name__ == "__main__":
    main()
