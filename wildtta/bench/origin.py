"""What the results of a run's folder were made from: a run only goes on with the same weights and images.

A cell's name says which files it is about, not what is in them, so a file that was overwritten leaves no trace in the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wildtta.bench.plan import Cell, Setting
from wildtta.bench.store import RunError, Store
from wildtta.corruptions import frost_source

__all__ = ["check_origins", "place_of", "things"]

_PLACE = ("model", "data", "weights", "statistics", "source")


def place_of(cell: Cell) -> tuple[Any, ...]:
    """What decides which model and which data a cell is about."""
    return tuple(getattr(cell, name) for name in _PLACE)


def things(setting: Setting, kinds: Sequence[str]) -> dict[str, str]:
    """What a cell on these kinds of images is made from, as it stands in its file."""
    model, data = setting.digests
    made = {"model_digest": model, "data_digest": data}
    return made | ({"frost": frost_source()} if setting.data.on_the_fly and "frost" in kinds else {})


def check_origins(
    store: Store,
    cells: Sequence[Cell],
    settings: Mapping[tuple[str, str], Setting],
    diffusions: Mapping[str, str],
) -> None:
    """An error where the folder has results of a plan's models and data as they were before somebody changed them.

    Args:
        diffusions: the digest of each diffusion model of the plan, by the place it was loaded from.
    """
    planned = {place_of(cell): settings[cell.model, cell.data] for cell in cells}
    for name in store.finished():
        content = store.read(name) or {}
        cell, made = content.get("cell", {}), content.get("provenance", {})
        setting = planned.get(tuple(cell.get(key) for key in _PLACE))
        if setting is None:
            continue
        now: dict[str, Any] = things(setting, [kind for kind, _ in cell.get("domains", [])])
        if "diffusion" in (before := made.get("settings", {})):
            given = str(cell.get("settings", {}).get("diffusion", setting.data.diffusion))
            now["diffusion"], made = diffusions.get(given), made | {"diffusion": before["diffusion"]}
        for key, value in now.items():
            if made.get(key) not in (None, value) and value is not None:
                raise RunError(
                    f"{store.folder} has results with {_words(key, cell)} as it was ({name}: {made[key]}), and now it is "
                    f"another ({value}); name another folder with --out"
                )


def _words(key: str, cell: Mapping[str, Any]) -> str:
    """The thing that differs, as a user knows it."""
    weights = f" with {cell['weights']}" if cell.get("weights") else ""
    source = f" with the source images of {cell['source']}" if cell.get("source") else ""
    return {
        "model_digest": f"the model {cell.get('model')}{weights}",
        "data_digest": f"the data {cell.get('data')}{source}",
        "frost": "the frost of the corruption frost",
        "diffusion": "the diffusion model",
    }[key]
