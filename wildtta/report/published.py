"""The figures of the ReCAP paper (Hu et al., ICML 2025), to stand beside a run's own numbers.

Accuracies in percent, transcribed from its tables; a test compares every one of them with the paper's source.
"""

from __future__ import annotations

from wildtta.corruptions import CORRUPTIONS
from wildtta.report.run import Cell
from wildtta.streams.options import INFINITE_RATIO

__all__ = ["LIMITED", "MIXED", "OTHER", "SHIFT", "architecture", "average", "differences", "figure", "weights"]

_MODELS = {"timm:resnet50_gn": ("resnet", "a1h_in1k"), "timm:vit_base_patch16_224": ("vit", "augreg_in21k_ft_in1k")}
_BATCH = {"limited": 1, "mixed": 64, "shift": 64}


def architecture(model: str) -> str | None:
    """Which of the paper's two networks this is ("resnet", "vit"), or None.

    A name without a tag of weights counts: it is the same network, though timm may load other weights by now
    (`weights` tells the paper's). A tag other than the paper's does not.
    """
    name, _, tag = model.partition(".")
    found, published = _MODELS.get(name, (None, ""))
    return found if tag in ("", published) else None


def weights(model: str) -> str | None:
    """The paper's model by its full name, for a model that is one of the paper's."""
    name = model.partition(".")[0]
    return f"{name}.{_MODELS[name][1]}" if architecture(model) else None


def figure(cell: Cell) -> float | None:
    """The paper's accuracy for a cell, or None where the cell is not one of the paper's."""
    plain = cell.guard is None and not cell.settings
    return _look_up(cell) if plain and not differences(cell) else None


def average(cell: Cell) -> float | None:
    """The paper's average over the cells like this one: over the fifteen corruptions (`mixed`: over the severities 5 and 4).

    It is the caller's to see that all of these are there.
    """
    network = architecture(cell.model)
    if network is None or figure(cell) is None or _layout(cell) in OTHER:
        return None
    return _at(_TABLES[cell.scenario][network].get(cell.method), -1)


def differences(cell: Cell) -> list[str]:
    """For a cell whose model, data, scenario and severity are in the paper: what else about it is not as there."""
    network = architecture(cell.model)
    if network is None or _look_up(cell) is None:
        return []
    found = []
    if _layout(cell) == "imagenet-c":
        least, seen = _IMAGES * len(cell.domains), cell.images + cell.unreadable
        found += [f"the paper's streams have {least:,} images or more, these {seen:,}"] if seen < least else []
    elif cell.limit is not None:
        found.append(f"the paper's streams have all images, these {cell.limit:,} at most")
    if cell.weights is not None:
        found.append(f"the weights are {cell.weights}")
    if network == "vit" and cell.statistics != "imagenet":
        found.append(
            "the paper's ViT images are normalised with ImageNet's mean and deviation (statistics \"imagenet\"), "
            "which are not that model's own and cost its source model some 20 points"
        )
    elif network == "resnet" and cell.statistics not in ("own", "imagenet"):
        found.append(f'the images are normalised with the statistics "{cell.statistics}"')
    if cell.precision == "bf16":
        found.append("the precision is bf16")
    if cell.calibration not in (None, 500):
        found.append(f"the region is estimated on {cell.calibration:,} images instead of 500")
    changed = [f"{name} is {value}" for name, value in cell.options.items() if _OPTIONS.get(name) != value]
    return found + ([f"of the scenario's options {', '.join(changed)}"] if changed else [])


_IMAGES = 50_000  # of each corruption of ImageNet-C
_OPTIONS = {"ratio": INFINITE_RATIO, "repeats": True}  # any other is at its default, None


def _layout(cell: Cell) -> str:
    return cell.data.partition(":")[0]


def _look_up(cell: Cell) -> float | None:
    """By model, data, scenario, batch, severity and method."""
    network, layout = architecture(cell.model), _layout(cell)
    if network is None or _BATCH.get(cell.scenario) != cell.batch or cell.reset == (cell.scenario == "mixed"):
        return None
    if layout in OTHER:
        place = {("limited", "resnet"): 0, ("limited", "vit"): 1, ("shift", "resnet"): 3, ("shift", "vit"): 4}
        return _at(OTHER[layout].get(cell.method), place.get((cell.scenario, network)))
    if layout != "imagenet-c":
        return None
    if cell.scenario == "mixed":
        complete = sorted(cell.domains) == sorted((kind, cell.severity) for kind in CORRUPTIONS)
        return _at(MIXED[network].get(cell.method), {5: 0, 4: 1}.get(cell.severity) if complete else None)
    if cell.severity != 5 or len(cell.domains) != 1 or cell.domains[0][0] not in CORRUPTIONS:
        return None
    return _at(_TABLES[cell.scenario][network].get(cell.method), CORRUPTIONS.index(cell.domains[0][0]))


def _at(row: tuple[float, ...] | None, place: int | None) -> float | None:
    return None if row is None or place is None else row[place]


# fmt: off
LIMITED: dict[str, dict[str, tuple[float, ...]]] = {
    "resnet": {
        "source": (18.0, 19.8, 17.9, 19.8, 11.4, 21.4, 24.9, 40.4, 47.3, 33.6, 69.3, 36.3, 18.6, 28.4, 52.3, 30.6),
        "memo": (18.5, 20.5, 18.4, 17.1, 12.6, 21.8, 26.9, 40.4, 47.0, 34.4, 69.5, 36.5, 19.2, 32.1, 53.3, 31.2),
        "dda": (42.4, 43.3, 42.3, 16.6, 19.6, 21.9, 26.0, 35.7, 40.1, 13.7, 61.2, 25.2, 37.5, 46.6, 54.1, 35.1),
        "tent": (2.5, 2.9, 2.5, 13.5, 3.6, 18.6, 17.6, 15.3, 23.0, 1.4, 70.4, 42.2, 6.2, 49.2, 53.8, 21.5),
        "eata": (24.9, 28.0, 25.8, 18.3, 17.0, 31.2, 29.8, 42.5, 44.1, 41.3, 70.9, 44.2, 27.6, 46.8, 55.4, 36.5),
        "sar": (25.5, 28.0, 24.9, 18.7, 16.3, 28.6, 31.4, 46.2, 44.9, 33.4, 72.8, 44.3, 15.3, 47.1, 56.1, 35.6),
        "deyo": (41.2, 44.3, 42.5, 22.4, 24.7, 41.8, 21.9, 54.8, 51.6, 21.9, 73.1, 53.2, 48.5, 59.8, 59.6, 44.1),
        "recap": (42.5, 44.4, 42.9, 19.4, 25.0, 42.2, 44.0, 49.7, 52.4, 57.5, 72.9, 53.6, 29.5, 60.4, 60.0, 46.4),
        "recap+sar": (41.7, 44.5, 40.6, 24.8, 25.8, 44.0, 47.0, 56.2, 53.0, 52.8, 73.4, 54.6, 48.8, 61.7, 60.7, 48.6),
        "recap+deyo": (42.5, 44.8, 42.8, 25.9, 27.2, 43.7, 44.9, 55.8, 52.8, 51.9, 73.5, 54.8, 50.9, 61.5, 60.7, 48.9),
    },
    "vit": {
        "source": (9.5, 6.7, 8.2, 29.0, 23.4, 33.9, 27.1, 15.9, 26.5, 47.2, 54.7, 44.1, 30.5, 44.5, 47.8, 29.9),
        "memo": (21.6, 17.3, 20.6, 37.1, 29.6, 40.4, 34.4, 24.9, 34.7, 55.1, 64.8, 54.9, 37.4, 55.4, 57.6, 39.1),
        "dda": (41.3, 41.1, 40.7, 24.4, 27.2, 30.6, 26.9, 18.3, 27.5, 34.6, 50.1, 32.4, 42.3, 52.2, 52.6, 36.1),
        "tent": (42.2, 1.0, 43.3, 52.4, 48.2, 55.5, 50.5, 16.5, 16.9, 66.4, 74.9, 64.7, 51.6, 67.0, 64.3, 47.7),
        "eata": (30.1, 24.6, 34.2, 44.3, 39.6, 48.4, 42.4, 38.1, 46.0, 60.7, 65.8, 61.2, 46.7, 57.8, 59.5, 46.6),
        "sar": (42.7, 39.5, 41.9, 54.6, 51.2, 58.3, 54.4, 60.2, 54.7, 70.3, 75.9, 66.8, 58.4, 69.5, 66.3, 57.6),
        "deyo": (53.4, 50.4, 55.0, 58.7, 59.5, 64.5, 52.5, 68.1, 66.3, 73.8, 78.3, 67.9, 68.9, 73.8, 70.8, 64.1),
        "recap": (53.5, 56.7, 56.9, 59.2, 60.5, 65.3, 64.0, 69.6, 67.2, 74.1, 78.4, 64.6, 70.2, 74.4, 71.5, 65.7),
        "recap+sar": (55.3, 56.2, 56.5, 60.0, 61.2, 66.5, 65.2, 69.8, 68.0, 74.5, 78.6, 68.4, 71.0, 74.9, 71.6, 66.5),
        "recap+deyo": (54.4, 55.3, 55.5, 59.8, 61.1, 65.2, 64.9, 69.3, 67.9, 73.9, 78.4, 67.1, 70.7, 74.4, 71.0, 65.9),
    },
}
"""Table 1: ImageNet-C at severity 5, batch 1. The fifteen corruptions in the order of `CORRUPTIONS`, then their average."""

MIXED: dict[str, dict[str, tuple[float, ...]]] = {
    "resnet": {
        "source": (30.6, 42.7, 36.7),
        "memo": (31.2, 43.0, 37.1),
        "dda": (35.1, 43.6, 39.4),
        "tent": (13.4, 20.6, 17.0),
        "eata": (38.1, 47.7, 42.9),
        "sar": (38.3, 48.6, 43.5),
        "deyo": (38.6, 50.2, 44.4),
        "recap": (41.5, 51.2, 46.4),
        "recap+sar": (42.1, 51.9, 47.0),
        "recap+deyo": (42.2, 52.4, 47.3),
    },
    "vit": {
        "source": (29.9, 42.9, 36.4),
        "memo": (39.1, 51.3, 45.2),
        "dda": (36.1, 45.1, 40.6),
        "tent": (16.5, 64.3, 40.4),
        "eata": (55.7, 63.7, 59.7),
        "sar": (57.1, 64.9, 61.0),
        "deyo": (59.4, 66.8, 63.1),
        "recap": (59.4, 67.1, 63.3),
        "recap+sar": (60.0, 67.2, 63.6),
        "recap+deyo": (59.8, 67.0, 63.4),
    },
}
"""Table 2: all corruptions shuffled together, at severity 5, at severity 4, and the average of the two."""

SHIFT: dict[str, dict[str, tuple[float, ...]]] = {
    "resnet": {
        "source": (17.9, 19.9, 17.9, 19.7, 11.3, 21.3, 24.9, 40.4, 47.4, 33.6, 69.2, 36.3, 18.7, 28.4, 52.2, 30.6),
        "memo": (18.4, 20.6, 18.4, 17.1, 12.7, 21.8, 26.9, 40.7, 46.9, 34.8, 69.6, 36.4, 19.2, 32.2, 53.4, 31.3),
        "dda": (42.5, 43.4, 42.3, 16.5, 19.4, 21.9, 26.1, 35.8, 40.2, 13.7, 61.3, 25.2, 37.3, 46.9, 54.3, 35.1),
        "tent": (2.6, 3.3, 2.7, 13.9, 7.9, 19.5, 28.7, 16.5, 21.9, 1.8, 70.5, 42.2, 6.6, 49.4, 53.7, 22.8),
        "eata": (27.2, 28.5, 28.4, 15.1, 16.7, 24.6, 25.5, 32.5, 32.2, 40.0, 66.5, 33.2, 24.1, 42.2, 38.6, 31.7),
        "sar": (34.0, 36.7, 36.2, 21.8, 20.9, 33.2, 32.4, 38.7, 45.6, 50.6, 72.9, 46.8, 14.3, 52.2, 56.8, 39.5),
        "deyo": (41.7, 44.0, 42.5, 23.4, 23.9, 41.3, 13.0, 53.9, 52.2, 38.6, 73.1, 52.3, 46.8, 59.3, 59.1, 44.3),
        "recap": (42.0, 44.1, 42.7, 19.8, 24.3, 39.7, 40.2, 46.0, 52.2, 57.3, 73.1, 52.4, 33.7, 59.4, 59.5, 45.8),
        "recap+sar": (42.2, 44.4, 42.7, 24.1, 24.3, 41.6, 43.8, 51.6, 52.4, 56.8, 73.1, 52.9, 38.9, 60.2, 59.4, 47.2),
        "recap+deyo": (42.5, 44.5, 43.3, 25.8, 26.7, 43.3, 39.1, 54.2, 53.2, 59.3, 73.4, 53.8, 49.2, 61.4, 60.3, 48.7),
    },
    "vit": {
        "source": (9.4, 6.7, 8.3, 29.1, 23.4, 34.0, 27.0, 15.8, 26.3, 47.4, 54.7, 43.9, 30.5, 44.5, 47.6, 29.9),
        "memo": (21.6, 17.4, 20.6, 37.1, 29.6, 40.6, 34.4, 25.0, 34.8, 55.2, 65.0, 54.9, 37.4, 55.5, 57.7, 39.1),
        "dda": (41.3, 41.3, 40.6, 24.6, 27.4, 30.7, 26.9, 18.2, 27.7, 34.8, 50.0, 32.3, 42.2, 52.5, 52.7, 36.2),
        "tent": (32.7, 1.4, 34.6, 54.4, 52.3, 58.2, 52.2, 7.7, 12.0, 69.3, 76.1, 66.1, 56.7, 69.4, 66.4, 47.3),
        "eata": (35.8, 34.8, 36.8, 45.1, 47.3, 49.3, 47.8, 56.6, 55.5, 62.1, 72.3, 21.6, 56.0, 64.6, 63.7, 50.0),
        "sar": (48.2, 48.7, 49.0, 55.4, 54.5, 59.2, 54.3, 55.8, 54.5, 70.0, 76.9, 66.1, 62.2, 70.2, 66.5, 59.4),
        "deyo": (53.0, 34.4, 48.8, 57.6, 58.5, 63.3, 35.4, 67.4, 66.0, 73.0, 77.7, 66.6, 68.1, 73.1, 69.8, 60.8),
        "recap": (53.1, 38.5, 49.6, 57.3, 59.0, 63.8, 60.7, 67.8, 66.3, 72.9, 77.7, 66.8, 68.2, 73.0, 70.0, 63.0),
        "recap+sar": (53.2, 42.7, 50.9, 58.0, 58.9, 63.8, 60.9, 67.6, 66.1, 73.2, 77.6, 67.6, 68.3, 73.1, 69.8, 63.4),
        "recap+deyo": (53.1, 53.9, 54.1, 57.4, 58.8, 63.6, 60.6, 67.8, 66.4, 72.9, 77.7, 67.1, 68.3, 73.1, 69.8, 64.3),
    },
}
"""Table 3: ImageNet-C at severity 5, imbalanced label shift. Columns as in `LIMITED`."""

OTHER: dict[str, dict[str, tuple[float, ...]]] = {
    "imagenet-r": {
        "source": (40.8, 43.1, 42.0, 40.8, 43.1, 42.0, 42.0),
        "tent": (43.2, 43.8, 43.5, 42.4, 46.8, 44.6, 44.1),
        "eata": (44.1, 52.5, 48.3, 42.1, 50.5, 46.3, 47.3),
        "sar": (46.7, 55.5, 51.1, 44.3, 54.4, 49.4, 50.2),
        "deyo": (48.1, 59.2, 53.7, 46.7, 58.5, 52.6, 53.1),
        "recap": (51.5, 61.1, 56.3, 49.6, 60.4, 55.0, 55.7),
    },
    "visda-2021": {
        "source": (43.5, 44.3, 43.9, 43.5, 44.3, 43.9, 43.9),
        "tent": (43.9, 50.6, 47.3, 43.7, 50.1, 46.9, 47.1),
        "eata": (44.2, 49.5, 46.9, 43.5, 51.6, 47.6, 47.2),
        "sar": (45.2, 52.8, 49.0, 44.7, 53.9, 49.3, 49.2),
        "deyo": (45.8, 58.5, 52.2, 45.2, 57.1, 51.2, 51.7),
        "recap": (48.0, 59.2, 53.6, 47.7, 58.5, 53.1, 53.4),
    },
}
"""ImageNet-R and VisDA-2021: batch 1 (ResNet, ViT, average), label shift (ResNet, ViT, average), the average of both."""
# fmt: on

_TABLES = {"limited": LIMITED, "mixed": MIXED, "shift": SHIFT}
