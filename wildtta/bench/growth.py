"""How the cost of a step grows: with the number of classes, the size of the batch, the number of streams.

print(speed_table.markdown(grow(Speed(["timm:resnet50_gn"], device="cuda"), "streams")))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from wildtta.bench.loops import Loop
from wildtta.bench.speed import (
    Row,
    Say,
    Speed,
    SpeedError,
    batch_of,
    first_line,
    in_precision,
    load,
    machine,
    prepared,
    table,
    tidy,
)
from wildtta.bench.timing import in_turn, peak_memory, spread
from wildtta.network import Network
from wildtta.recipes import methods as registered
from wildtta.source import Region

__all__ = ["BATCHES", "CLASSES", "STREAMS", "grow"]

CLASSES = (10, 100, 1_000, 5_000, 10_000, 21_841)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STREAMS = (1, 4, 16, 64, 256, 1_024)


def grow(
    options: Speed, what: str, values: Sequence[int] | None = None, say: Say = lambda text: None
) -> dict[str, Any]:
    """How cost grows with "classes", "batch" or "streams": a table for each value; those that do not fit end the curve."""
    curves = {"classes": (_by_classes, CLASSES), "batch": (_by_batch, BATCHES), "streams": (_by_streams, STREAMS)}
    if what not in curves:
        raise SpeedError(f"cost grows with {', '.join(curves)}; {what!r} is none of them")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SpeedError("there is no CUDA device here; leave out --device cuda")
    if options.threads:
        torch.set_num_threads(options.threads)
    one, usual = curves[what]
    busy, rows = load(), []
    for spec in options.models:
        for value in values or usual:
            say(f"{spec}: {what} {value}")
            try:
                found = one(spec, value, options, say)
            except (RuntimeError, MemoryError) as error:
                say(f"{what} {value} cannot be measured: {first_line(error)}")
                break
            finally:
                tidy()
            rows += [{"model": spec, "value": value} | row for row in found]
    return {
        "kind": "curve",
        "what": what,
        "options": asdict(options),
        **machine(options.device),
        "load": [busy, load()],
        "rows": rows,
    }


def _by_classes(spec: str, classes: int, options: Speed, say: Say) -> list[Row]:
    model = prepared(spec, options)
    view = Network(model.network)
    device, weight = view.head[0].device, view.head[0]
    head = nn.Linear(view.features, classes).to(device, weight.dtype)
    parent, _, name = view.head_name.rpartition(".")
    old = view.module.get_submodule(view.head_name)
    if not isinstance(old, nn.Linear):
        raise SpeedError(f"the head of {spec} is no Linear layer, and cannot be swapped for one of more classes")
    setattr(model.network.get_submodule(parent), name, head)
    images = batch_of(model, options.batches[0], options)
    return table(model.network, images, options, say, {"batch": len(images)})


def _by_batch(spec: str, batch: int, options: Speed, say: Say) -> list[Row]:
    model = prepared(spec, options)
    return table(model.network, batch_of(model, batch, options), options, say, {"batch": batch})


def _by_streams(spec: str, streams: int, options: Speed, say: Say) -> list[Row]:
    """A fleet with one image a stream, next to the plain Tent loop that takes the images one by one."""
    from wildtta.fleets import fleet

    model = prepared(spec, options)
    images = batch_of(model, streams, options)
    view = Network(model.network)
    loop = Loop(model.network, "tent", view.head_name, lr=1e-9)
    contestants: dict[str, tuple[str, Callable[[], object]]] = {"loop": ("float32", lambda: loop(images[:1]))}
    rows: dict[str, Row] = {"loop": {"method": "tent", "runner": "plain loop, one image", "precision": "float32"}}
    for precision in options.precisions:
        for method in options.methods or ("recap",):
            for runner in options.runners or (("captured",) if options.device == "cuda" else ("eager",)):
                settings: dict[str, Any] = {"lr": 1e-9}
                if "region" in registered()[method].required:
                    settings |= {"region": Region(torch.full((view.features,), 1e-3)), "threshold": 100.0}
                made = fleet(model.network, method, streams=streams, runner=runner, **settings)
                name = f"{method}, {runner}, {precision}"
                contestants[name] = (precision, partial(made, images, list(range(streams))))
                rows[name] = {"method": method, "runner": f"fleet, {runner}", "precision": precision}

    def turn(precision: str, step: Callable[[], object]) -> Callable[[], object]:
        def taken() -> None:
            with in_precision(precision, options.device):
                step()

        return taken

    turns = {name: turn(*pair) for name, pair in contestants.items()}
    times = in_turn(turns, options.rounds, options.device, warm_up=3, until=options.until)
    for name, row in rows.items():
        row["ms"] = [round(value, 4) for value in spread(times[name])]
        count = 1 if name == "loop" else streams
        pairs = zip(times[name], times["loop"], strict=True)
        row["faster"] = [round(value, 3) for value in spread([count * loop / mine for mine, loop in pairs])]
        row["images_per_second"] = round(1000 * count / row["ms"][1], 1)
        if options.memory:
            row["mib"] = round(peak_memory(turns[name], options.device), 1)
    return list(rows.values())
