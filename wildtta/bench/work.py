"""Running cells, and keeping at hand what the next ones need too."""

from __future__ import annotations

import contextlib
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import torch

import wildtta
from wildtta.adapter import Adapter, adapt
from wildtta.bench.crew import ALONE, Crew
from wildtta.bench.images import Batch, Kept, read_ahead
from wildtta.bench.meter import Meter
from wildtta.bench.origin import place_of, things
from wildtta.bench.plan import Cell, Setting, fit
from wildtta.bench.restore import diffusion_of, keep_on_disk, restore_ahead
from wildtta.bench.store import Store
from wildtta.common import Report
from wildtta.data import DataError
from wildtta.diffusion import Diffusion, load
from wildtta.fleets import Fleet, fleet
from wildtta.models import load_model
from wildtta.recipes import recipe
from wildtta.runners.distributed import Distributed
from wildtta.source import Fisher, Region
from wildtta.streams import Stream, scenario

__all__ = ["Workshop", "needs", "precision", "prepare_source", "without_source"]

_SOURCES: dict[str, Any] = {"region": Region, "fisher": Fisher}  # what a method may need of the source domain
_KEPT = {"cpu": 2 << 30, "cuda": 32 << 30}  # bytes of corrupted images kept at hand

_EXAMPLES = 5  # images that cannot be read which a result names, of each kind

_Unreadable = dict[tuple[int, int], str]
"""Why images of a stream could not be read: by the place of their domain, and their own in it."""

Progress = Callable[[int, int, float], None]
"""(images seen, images in all, accuracy so far in percent)"""


class Workshop:
    """Runs cells; models, data, and the corrupted images of small sets stay at hand between them."""

    def __init__(self, store: Store, crew: Crew = ALONE) -> None:
        self.store, self.crew = store, crew
        self._settings: dict[Any, Setting] = {}
        self._domains: dict[Any, Kept] = {}
        self._diffusions: dict[str, Diffusion] = {}

    def run(self, family: tuple[Cell, ...], progress: Progress) -> None:
        """Run a cell, or some that go side by side as one fleet of streams, and write their results."""
        first = family[0]
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        torch.set_num_threads(first.threads)
        device = torch.device(first.device)
        setting = self._setting(first)
        lanes = [_Lane(cell, [self._domain(cell, setting, *domain) for domain in cell.domains]) for cell in family]
        with precision(first.precision, device):
            adapter = self._adapter(family, setting, device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            restored: dict[str, Any] = {}
            if isinstance(adapter, Adapter) and self.crew.size == 1:
                batches = lanes[0].stream.batches()
                restored = restore_ahead(
                    adapter,
                    setting,
                    self.store,
                    first,
                    lanes[0].domains,
                    batches,
                    lambda done, images: progress(done, images, float("nan")),
                )
            begun = told = time.perf_counter()
            if self.crew.size > 1:
                assert isinstance(adapter, Adapter)
                steps = _together(adapter, setting, lanes[0], self.crew)
            elif isinstance(adapter, Fleet):
                steps = _side_by_side(adapter, setting, lanes)
            else:
                steps = _alone(adapter, setting, lanes[0])
            for _ in steps:
                if time.perf_counter() - told > 1:
                    told = time.perf_counter()
                    seen = sum(lane.meter.seen for lane in lanes)
                    progress(seen, sum(len(lane.stream) for lane in lanes), lanes[0].meter.accuracy())
            if empty := [lane.cell.kind for lane in lanes if lane.meter.seen == 0]:
                raise DataError(f"not one image of {', '.join(empty)} could be read; look with `wildtta check --deep`")
            results = [lane.meter.result([kind for kind, _ in lane.cell.domains]) for lane in lanes]
            seconds = time.perf_counter() - begun
        unreadable = [_joined(self.crew.gather(lane.unreadable())) for lane in lanes]
        if not self.crew.leads:
            return
        method = adapter.method
        for lane, result, lost in zip(lanes, results, unreadable, strict=True):
            assert lane.report is not None
            self.store.write(
                lane.cell.name,
                {
                    "cell": lane.cell.as_dict(),
                    "result": {
                        **result,
                        "unreadable": len(lost),
                        **({"unreadable_images": _examples(lane.cell, lost)} if lost else {}),
                        "forwards": lane.steps * method.forwards,
                        "backwards": lane.steps * method.backwards,
                        "diffusion_steps": lane.meter.seen * method.diffusion_steps,
                        "updates": lane.report.updates,
                        "resets": lane.report.resets,
                        "skipped": lane.report.skipped,
                    },
                    "measured": {
                        "seconds": round(seconds / len(lanes), 3),
                        "fleet": len(lanes),
                        "processes": self.crew.size,
                        "peak_memory_mib": _peak_memory(device),
                        "started": started,
                        **({"adapted": restored} if restored else {}),
                    },
                    "provenance": self._provenance(lane.cell, setting, adapter, device),
                },
            )

    def open(self, cell: Cell) -> tuple[Setting, Adapter, Iterator[Batch], int]:
        """A cell ready to run, for those who look closer than its result does: its adapter, its batches, how many images."""
        setting, device = self._setting(cell), torch.device(cell.device)
        lane = _Lane(cell, [self._domain(cell, setting, *domain) for domain in cell.domains])
        adapter = self._adapter((cell,), setting, device)
        assert isinstance(adapter, Adapter)
        return setting, adapter, lane.batches(device), len(lane.stream)

    # -- what cells share ----------------------------------------------------------------------------------------------

    def _setting(self, cell: Cell) -> Setting:
        key = place_of(cell)
        if key not in self._settings:
            model = load_model(cell.model, weights=cell.weights, statistics=cell.statistics)
            self._settings[key] = fit(model, cell.data, cell.source)
        return self._settings[key]

    def _domain(self, cell: Cell, setting: Setting, kind: str, severity: int) -> Kept:
        """The images of a domain, corrupted once for all cells that show them."""
        prepared = setting.model.preprocessing
        geometry = (prepared.size, prepared.resize, prepared.interpolation, prepared.squash)
        labels = (setting.data.classes, setting.data.outputs)
        key = (cell.data, cell.source, geometry, labels, kind, severity, cell.images, cell.device)
        if key not in self._domains:
            room = _KEPT[torch.device(cell.device).type]
            while self._domains and sum(domain.bytes for domain in self._domains.values()) > room / 2:
                del self._domains[next(iter(self._domains))]
            self._domains[key] = Kept(
                setting.data.domain(kind, severity), cell.images, torch.device(cell.device), room // 8
            )
        self._domains[key] = self._domains.pop(key)  # the most recently used last
        return self._domains[key]

    def _adapter(self, family: tuple[Cell, ...], setting: Setting, device: torch.device) -> Adapter | Fleet:
        """What runs a cell, or some side by side: they differ in their images, their seeds and the values of settings alone."""
        cell = family[0]
        paths = {need: self.store.sources / _source_name(cell, need, *setting.digests) for need in needs(cell)}
        settings = dict(cell.settings) | {need: _SOURCES[need].load(path) for need, path in paths.items()}
        if "statistics" in recipe(cell.method).hyperparameters:
            settings["statistics"] = (setting.model.preprocessing.mean, setting.model.preprocessing.std)
        if given := diffusion_of(cell, setting):
            settings["diffusion"] = self._diffusions[given] = self._diffusions.get(given) or load(given)
        runner = "distributed" if self.crew.size > 1 else "captured" if device.type == "cuda" else "eager"
        settings |= {"guard": cell.guard, "runner": runner}
        network = setting.model.network
        if len(family) > 1:
            seeds = [cell.seed for cell in family]
            own = {
                name for name, value in cell.settings if any(dict(other.settings)[name] != value for other in family)
            }
            each = {name: [dict(other.settings)[name] for other in family] for name in own}
            shared = {name: value for name, value in settings.items() if name not in own}
            return fleet(network, cell.method, streams=len(family), seed=seeds, each=each, **shared).to(device)
        adapter = adapt(network, cell.method, seed=cell.seed, **settings)
        keep_on_disk(adapter, self.store)
        return adapter.to(device)

    def _provenance(
        self, cell: Cell, setting: Setting, adapter: Adapter | Fleet, device: torch.device
    ) -> dict[str, Any]:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else (platform.machine() or "cpu")
        return {
            "wildtta": wildtta.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": f"{device.type} ({name})",
            "precision": cell.precision,
            "threads": cell.threads,
            **things(setting, [kind for kind, _ in cell.domains]),
            "settings": adapter.settings,
            "stand_in": setting.model.stand_in or setting.data.stand_in,
        }


# -- streams through adapters ------------------------------------------------------------------------------------------


class _Lane:
    """One cell's stream on its way."""

    def __init__(self, cell: Cell, domains: list[Kept]) -> None:
        self.cell, self.domains = cell, domains
        self.stream: Stream = scenario(cell.scenario).order(
            [domain.labels for domain in domains],
            cell.seed,
            domains=cell.domains,
            batch=cell.batch,
            **dict(cell.options),
        )
        self.meter, self.steps = Meter(), 0
        self.report: Report | None = None

    def batches(self, device: torch.device) -> Iterator[Batch]:
        """Those of which something could be read."""
        return (batch for batch in read_ahead(self.domains, self.stream.batches(), device) if len(batch[0]))

    def unreadable(self) -> _Unreadable:
        """Which of its images could not be read, each once however often the stream shows it."""
        shown = torch.unique(torch.stack([self.stream.domain, self.stream.index]), dim=1)
        return {
            (place, number): reason
            for place, domain in enumerate(self.domains)
            for number, reason in domain.unreadable(shown[1, shown[0] == place]).items()
        }

    def parts(self, device: torch.device, crew: Crew) -> Iterator[Batch]:
        """Of every batch the part of one process, be it empty."""
        parts = (
            (places.tensor_split(crew.size)[crew.rank], numbers.tensor_split(crew.size)[crew.rank])
            for places, numbers in self.stream.batches()
        )
        return read_ahead(self.domains, parts, device)


def _joined(parts: list[_Unreadable]) -> _Unreadable:
    """What the processes of a crew have found together, in order."""
    return dict(sorted({key: reason for part in parts for key, reason in part.items()}.items()))


def _examples(cell: Cell, unreadable: _Unreadable) -> dict[str, list[str]]:
    """The first few of each kind, by name and with the reason."""
    found: dict[str, list[str]] = {}
    for (place, _), reason in unreadable.items():
        found.setdefault(cell.domains[place][0], []).append(reason)
    return {kind: list(dict.fromkeys(reasons))[:_EXAMPLES] for kind, reasons in found.items()}


def _alone(adapter: Adapter, setting: Setting, lane: _Lane) -> Iterator[None]:
    device = adapter.state["stream"]["theta"].device
    for images, labels, places in lane.batches(device):
        logits = adapter(setting.model.preprocessing.normalise(images))
        assert adapter.outcome is not None
        lane.meter.add(logits, labels.to(device), adapter.outcome.mask, places)
        lane.steps += 1
        yield
    lane.report = adapter.report


def _together(adapter: Adapter, setting: Setting, lane: _Lane, crew: Crew) -> Iterator[None]:
    """Each step with the part of one process; the answers of all are measured."""
    device, runner = adapter.state["stream"]["theta"].device, adapter.runner
    assert isinstance(runner, Distributed)
    for images, labels, places in lane.parts(device, crew):
        if not any(crew.gather(len(labels))):
            continue  # of this batch nothing could be read
        if not len(labels):
            images = torch.zeros(0, 3, *setting.model.preprocessing.size, device=device)
        adapter(setting.model.preprocessing.normalise(images))
        assert runner.whole is not None
        joined = (runner.join(part.to(device)) for part in (labels, places))
        lane.meter.add(runner.whole.logits, next(joined), runner.whole.mask, next(joined).cpu())
        lane.steps += 1
        yield
    lane.report = adapter.report


def _side_by_side(streams: Fleet, setting: Setting, lanes: list[_Lane]) -> Iterator[None]:
    """A fleet: at each step the next image of every stream. A stream that ends leaves."""
    device = streams.device
    going = [(place, lane.batches(device)) for place, lane in enumerate(lanes)]
    while going:
        arrived: list[tuple[int, Batch]] = []
        for place, source in going:
            if (batch := next(source, None)) is None:
                lanes[place].report = streams.report(place)
                streams.leave(place)
            else:
                arrived.append((place, batch))
        if arrived:
            images = setting.model.preprocessing.normalise(torch.cat([batch[0] for _, batch in arrived]))
            counts = [len(batch[0]) for _, batch in arrived]
            answers = streams(dict(zip((place for place, _ in arrived), images.split(counts), strict=True)))
            for place, (_, labels, places) in arrived:
                outcome = streams.outcome(place)
                assert outcome is not None
                lanes[place].meter.add(answers[place], labels.to(device), outcome.mask, places)
                lanes[place].steps += 1
        going = [(place, source) for place, source in going if place in streams]
        yield


# -- what a method needs of the source domain --------------------------------------------------------------------------


def prepare_source(store: Store, cells: list[Cell], settings: dict[tuple[str, str], Setting]) -> None:
    """Estimate, once for a run and before its first cell, the regions and Fisher matrices that its methods need."""
    wanted = {(cell.model, cell.data, cell.calibration, need): cell for cell in cells for need in needs(cell)}
    for (*_, need), cell in wanted.items():
        setting = settings[cell.model, cell.data]
        path = store.sources / _source_name(cell, need, *setting.digests)
        if not path.exists():
            _estimate(cell, setting, need).save(path)


def needs(cell: Cell) -> list[str]:
    """What a cell's method needs of the source domain, and what the user has not given."""
    return [need for need in recipe(cell.method).required if need in _SOURCES and need not in dict(cell.settings)]


def without_source(cell: Cell) -> str:
    """Says what a cell lacks."""
    return (
        f"{cell.method!r} needs uncorrupted source images, and {cell.data} has none; say where they lie with --source"
    )


def _source_name(cell: Cell, need: str, model_digest: str, data_digest: str) -> str:
    return f"{need}-{model_digest}-{data_digest[:12]}-{cell.calibration}-{cell.statistics}.safetensors"


def _estimate(cell: Cell, setting: Setting, need: str) -> Region | Fisher:
    count = cell.calibration * (1 if need == "region" else 4)
    images = setting.data.source(count)
    if images is None:
        raise DataError(without_source(cell))
    torch.set_num_threads(cell.threads)
    device = torch.device(cell.device)
    network = setting.model.network.to(device)
    try:
        batches = (setting.model.preprocessing.normalise(part.to(device)) for part in images.split(64))
        if need == "region":
            return Region.estimate(network, batches, limit=count)
        return Fisher.estimate(network, batches, limit=count)
    finally:
        network.cpu()


# -- the machine -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def precision(name: str, device: torch.device | str) -> Iterator[None]:
    """float32, tf32 (float32 whose matrix products and convolutions may use TF32) or bf16 (autocast).

    Losses are in float32 in any case, and their products use TF32 with "tf32" alone (see `Neighbourhood` for what that does).
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = name == "tf32"
    try:
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=name == "bf16"):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _peak_memory(device: torch.device) -> float:
    """MiB: allocated on the GPU since the cell began; on a CPU the largest size the process has had."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(largest / (2**20 if sys.platform == "darwin" else 2**10), 1)
