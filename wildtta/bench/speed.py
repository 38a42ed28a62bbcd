"""What a step costs: methods × runners × precisions, in turn within one run, next to plain loops.

    result = measure(Speed(models=["timm:resnet50_gn"], batches=[64, 1], device="cuda", reference=True))
    print(wildtta.bench.speed_table.markdown(result))

Contestants take turns within each round, and a ratio is the median of the ratios within rounds; so what else the machine does
slows all alike. Weights do not matter to speed, so timm's and torchvision's networks are made without downloading theirs, and
how many images teach is set: `share`, of each batch, drawn anew for every image. The method's own selection is computed all the
same. Learning rates are next to nothing, so that nothing drifts.
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from wildtta.adapter import Adapter
from wildtta.bench.loops import LOOPS, Loop
from wildtta.bench.timing import in_turn, peak_memory, ratios, spread
from wildtta.bench.work import precision as in_precision
from wildtta.common import compose
from wildtta.core import keys
from wildtta.core.measures import shape_dependence
from wildtta.core.method import Method
from wildtta.core.prediction import Prediction
from wildtta.core.regional import Neighbourhood
from wildtta.core.regularisers import Regulariser
from wildtta.core.selections import Selection, non_redundant
from wildtta.core.tree import State
from wildtta.core.updates import sharpness_aware
from wildtta.models import Model, ModelError, Preprocessing, load_model
from wildtta.network import Network
from wildtta.recipes import methods as registered
from wildtta.source import Fisher, Region

__all__ = [
    "Speed",
    "SpeedError",
    "batch_of",
    "contestants",
    "in_precision",
    "load",
    "machine",
    "measure",
    "prepared",
    "table",
    "tidy",
]

PRECISIONS = ("float32", "tf32", "bf16")
YARDSTICK = "plain loop: tent, float32"

Row: TypeAlias = dict[str, Any]
Say: TypeAlias = Callable[[str], None]


class SpeedError(ValueError):
    """What was asked for cannot be measured."""


@dataclass(frozen=True)
class Speed:
    """What to measure.

    Attributes:
        models: as for a benchmark; `timm:NAME` and `torchvision:NAME` are made with random weights.
        batches: images a step.
        size: pixels a side, instead of the model's own.
        methods: all but the costly ones, if left out.
        runners: "eager" and "sparing", and on CUDA "captured", if left out.
        precisions: float32, tf32, bf16 (autocast); plain loops are always in float32.
        share: of the images that teach; None: what the methods select of random images.
        reference: time plain loops, too. Tent's is always there: it is the yardstick.
        memory: measure peak memory.
        small_stem: leave out the network's first pooling, as is usual for images of 64 pixels.
        until: seconds after which no new round of a table begins.
    """

    models: Sequence[str] = ("glyph-resnet",)
    batches: Sequence[int] = (64,)
    size: int | None = None
    device: str = "cpu"
    precisions: Sequence[str] = ("float32",)
    methods: Sequence[str] | None = None
    runners: Sequence[str] | None = None
    rounds: int = 9
    threads: int | None = None
    share: float | None = 1.0
    reference: bool = False
    memory: bool = True
    channels_last: bool = False
    small_stem: bool = False
    until: float = 0.0
    seed: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.precisions if name not in PRECISIONS]:
            raise SpeedError(f"unknown precision {unknown[0]!r}; choose from {', '.join(PRECISIONS)}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise SpeedError(f"the share of images that teach must lie between 0 and 1, but is {self.share}")
        if not self.batches or min(self.batches) < 1 or self.rounds < 1:
            raise SpeedError("a batch has at least one image, and there is at least one round")
        if unknown := [name for name in self.methods or () if name not in registered()]:
            raise SpeedError(f"unknown method {unknown[0]!r}; the methods are {', '.join(registered())}")
        if unknown := [name for name in self.runners or () if name not in _RUNNERS]:
            raise SpeedError(f"unknown runner {unknown[0]!r}; the runners are {', '.join(_RUNNERS)}")

    @property
    def usual_runners(self) -> Sequence[str]:
        return self.runners or (("eager", "sparing", "captured") if self.device == "cuda" else ("eager", "sparing"))


_RUNNERS = ("eager", "sparing", "captured", "compiled", "auto")


# -- contestants -------------------------------------------------------------------------------------------------------


@dataclass
class Contestant:
    """One that takes its turn: what it is called, what it does to a batch, and its row of the table.

    `head` is the last layer of the network that the step runs: what passes through it is counted.
    """

    name: str
    step: Callable[[Tensor], object]
    precision: str
    row: Row
    head: nn.Module
    adapter: Adapter | None = None


class drawn(Selection):
    """In the place of a method's selection: what it costs, but a set share of the images, drawn by their keys."""

    by_image = True

    def __init__(self, inner: Selection, share: float) -> None:
        super().__init__()
        self.inner, self.share = inner, share

    def init(self, theta: Tensor, classes: int) -> State:
        return self.inner.init(theta, classes)

    def forward(self, prediction: Prediction, state: State) -> Tensor:
        chosen: Tensor = self.inner(prediction, state)
        lot = keys.uniform(keys.fold(prediction.keys, 7))  # in (0, 1), so a share of 1 is all
        return torch.where(chosen, lot, lot.clone()) < self.share

    def advance(self, prediction: Prediction, mask: Tensor, state: State) -> State:
        return self.inner.advance(prediction, mask, state)


def contestants(network: nn.Module, options: Speed, images: Tensor, say: Say) -> Iterator[Contestant]:
    view = Network(network)
    head, classes = view.head_name, view.classes
    lr = 1e-9 if options.share is not None else 2.5e-4
    loops = LOOPS if options.reference else ("tent",)
    for method in loops:
        if method == "recap" and len(images) * classes**2 > 2**31:
            say(f"the plain loop of recap needs {len(images) * classes**2 * 4 / 2**30:.0f} GiB a tensor: left out")
            continue
        loop = Loop(network, method, head, share=None if method == "tent" else options.share, lr=lr)
        name = f"plain loop: {method}, float32"
        row = {"method": method, "runner": "plain loop", "precision": "float32"}
        yield Contestant(name, loop, "float32", row, loop.network.get_submodule(head))
    del view
    plain = copy.deepcopy(network).eval().requires_grad_(False)

    def forward(batch: Tensor) -> Tensor:
        with torch.no_grad():
            answer: Tensor = plain(batch)
        return answer

    for precision in options.precisions:
        row = {"method": "no adaptation", "runner": "eager", "precision": precision}
        yield Contestant(f"no adaptation, {precision}", forward, precision, row, plain.get_submodule(head))
        for method in options.methods or [
            name for name, recipe in registered().items() if name != "source" and not recipe.costly
        ]:
            for runner in options.usual_runners:
                adapter = _adapter(network, method, runner, options)
                if adapter is None:
                    say(f"{method} needs something that cannot be made up: left out")
                    break
                row = {
                    "method": method,
                    "runner": runner,
                    "precision": precision,
                    "other": other_computation(adapter.method),
                }
                last = adapter.network.module.get_submodule(head)
                yield Contestant(f"{method}, {runner}, {precision}", adapter, precision, row, last, adapter)


def _adapter(network: nn.Module, method: str, runner: str, options: Speed) -> Adapter | None:
    recipe = registered()[method]
    view = Network(network)
    made_up = {
        "region": lambda: Region(torch.full((view.features,), 1e-3)),
        "fisher": lambda: Fisher(
            {name: torch.zeros(shape) for name, shape in zip(view.norms().names, view.norms().shapes, strict=True)}
        ),
    }
    if any(name not in made_up for name in recipe.required):
        return None
    settings: dict[str, Any] = {name: made_up[name]() for name in recipe.required}
    if options.share is not None and "lr" in recipe.hyperparameters:
        settings["lr"] = 1e-9
    composed, name, settings = compose(view, method, None, settings)
    if options.share is not None and composed.update is not None and method != "tent":
        composed.selection = drawn(composed.selection, options.share)
    return Adapter(view, composed, name=name, runner=runner, seed=options.seed, settings=settings)


def other_computation(method: Method) -> str:
    """What a step does besides passes through the network, in a few words."""
    parts = list(method.modules())
    said = {
        "region confidence": any(isinstance(part, Neighbourhood) for part in parts),
        "shuffled patches": any(isinstance(part, shape_dependence) for part in parts),
        "a step up and back": any(isinstance(part, sharpness_aware) for part in parts),
        "regulariser": any(isinstance(part, Regulariser) for part in parts),
        "moving average of predictions": any(isinstance(part, non_redundant) for part in parts),
        "guards": len(method.guards) > 0,
    }
    return "; ".join(text for text, present in said.items() if present)


def _passes(contestant: Contestant, batch: Tensor) -> tuple[float, float]:
    """Images forward and backward through the network in a step, for each image of the batch.

    Counted at the head; where a step is replayed or compiled the head is not called, and the method says it.
    """
    adapter = contestant.adapter
    if adapter is not None and contestant.row["runner"] in ("captured", "compiled", "auto"):
        return float(adapter.method.forwards), float(adapter.method.backwards)
    counted = {"forward": 0, "backward": 0}

    def backward(gradient: Tensor) -> None:
        counted["backward"] += len(gradient)

    def forward(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        counted["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(backward)

    handle = contestant.head.register_forward_hook(forward)
    contestant.step(batch)
    handle.remove()
    return counted["forward"] / len(batch), counted["backward"] / len(batch)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(options: Speed, say: Say = lambda text: None) -> dict[str, Any]:
    """The table: a row for each contestant, with times in milliseconds, ratios to the plain Tent loop, and memory in MiB."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SpeedError("there is no CUDA device here; leave out --device cuda")
    busy = load()
    rows: list[Row] = []
    for spec in options.models:
        model = prepared(spec, options)
        for batch in options.batches:
            images = batch_of(model, batch, options)
            say(f"{spec}, {tuple(images.shape)}")
            rows += table(
                model.network, images, options, say, {"model": spec, "batch": batch, "size": images.shape[-1]}
            )
    return {
        "kind": "table",
        "options": asdict(options),
        **machine(options.device),
        "load": [busy, load()],
        "rows": rows,
    }


def table(network: nn.Module, images: Tensor, options: Speed, say: Say, common: Row) -> list[Row]:
    ready: list[Contestant] = []
    for contestant in contestants(network, options, images, say):
        try:
            with in_precision(contestant.precision, options.device):
                for _ in range(3):  # the captured runner wants two, the sparing one likes three
                    contestant.step(images)
        except (RuntimeError, ValueError) as error:  # out of memory, say: one that cannot run does not stop the others
            say(f"{contestant.name} cannot run: {first_line(error)}")
            contestant.row["error"] = first_line(error)
            contestant.adapter, contestant.step, contestant.head = None, lambda batch: None, nn.Identity()
        ready.append(contestant)
    running = {contestant.name: contestant for contestant in ready if "error" not in contestant.row}

    def turn(contestant: Contestant) -> Callable[[], object]:
        def step() -> None:
            with in_precision(contestant.precision, options.device):
                contestant.step(images)

        return step

    turns = {name: turn(contestant) for name, contestant in running.items()}
    times = in_turn(turns, options.rounds, options.device, warm_up=1, until=options.until)
    for name, contestant in running.items():
        row = contestant.row
        row["ms"] = [round(value, 4) for value in spread(times[name])]
        row["rounds"] = len(times[name])
        if YARDSTICK in times:
            row["ratio"] = [round(value, 4) for value in ratios(times, name, YARDSTICK)]
        with in_precision(contestant.precision, options.device):
            if options.memory:
                row["mib"] = round(peak_memory(turns[name], options.device), 1)
            row["forwards"], row["backwards"] = (round(value, 3) for value in _passes(contestant, images))
        if (adapter := contestant.adapter) is not None:
            report = adapter.report
            row["selected"] = round(report.selected / max(report.seen, 1), 3)
            if reason := getattr(adapter.runner, "reason", None):
                row["reason"] = reason
        say(f"{name}: {row['ms'][1]:.2f} ms")
    del turns, running
    found = [common | contestant.row for contestant in ready]
    ready.clear()
    tidy()
    return found


def prepared(spec: str, options: Speed) -> Model:
    """The model on the device; timm's and torchvision's with random weights, the same in every run."""
    torch.manual_seed(options.seed)
    kind, _, name = spec.partition(":")
    try:
        if kind == "timm" and name:
            timm: Any = importlib.import_module("timm")
            sized = {"img_size": options.size} if options.size and name.startswith("vit") else {}
            network = timm.create_model(name, pretrained=False, **sized)
            side = options.size or timm.data.resolve_data_config({}, model=network)["input_size"][-1]
        elif kind == "torchvision" and name:
            torchvision: Any = importlib.import_module("torchvision")
            network, side = torchvision.models.get_model(name, weights=None), options.size or 224
        else:
            model = load_model(spec)
            network, side = model.network, options.size or model.preprocessing.size[0]
    except ImportError as error:
        raise ModelError(f"{kind} is needed for {spec}: pip install 'wildtta[timm]' ({error})") from error
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{spec} cannot be made: {first_line(error)}") from error
    if options.small_stem and hasattr(network, "maxpool"):
        network.maxpool = nn.Identity()
    network = network.eval().to(options.device)
    if options.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return Model(spec, network, Preprocessing((side, side)))


def batch_of(model: Model, count: int, options: Speed) -> Tensor:
    generator = torch.Generator().manual_seed(options.seed)
    side = model.preprocessing.size[0]
    images = torch.randn(count, 3, side, side, generator=generator).to(options.device)
    return images.contiguous(memory_format=torch.channels_last) if options.channels_last else images


def machine(device: str) -> Row:
    """Where the figures are from."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else f"{name}, {os.cpu_count()} cores",
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def load() -> float | None:
    """How many processes want a core, on average over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def tidy() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
