"""Sets of labelled images: the layouts that people have on disk, and the set that comes with the package.

    data = open_data("imagenet-c:/data/imagenet-c", model, source="/data/imagenet/val")
    images, readable = data.domain("fog", 5).read(torch.arange(64))

| layout | what lies at the path |
| --- | --- |
| `glyphs` | nothing: the embedded set, drawn as it is read |
| `imagenet-c`, `tiny-imagenet-c` | CORRUPTION/SEVERITY/CLASS/*.JPEG |
| `cifar10-c`, `cifar100-c` | CORRUPTION.npy and labels.npy |
| `imagenet`, `tiny-imagenet`, `folder` | uncorrupted images, CLASS/*.JPEG; the corruptions are made as they are read |
| `imagenet-r`, `imagenet-a`, `imagenet-v2`, `imagenet-sketch` | one domain, CLASS/*.JPEG |
| `visda-2021` | one domain, a list of images (a .txt of lines PATH LABEL) and the images |

All but those with .npy files may be an uncompressed tar instead of a folder. Class folders may lie below one top folder, and
clean images in `val/` beside `train/`.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PIL import Image

from wildtta.data.arrays import CorruptionArrays
from wildtta.data.base import Data, DataError, Domain, Finding
from wildtta.data.layouts import CorruptionFolders, class_set, clean_set, find_corruptions, listed_set
from wildtta.data.listing import ANNOTATIONS, class_folders, joined, part_folder
from wildtta.data.places import Folder, Place, open_place
from wildtta.models import Model

__all__ = ["LAYOUTS", "Data", "DataError", "Domain", "Finding", "open_data"]

_BUILDERS: dict[str, Callable[[Path, Model, str | None], Data]] = {
    "imagenet-c": partial(CorruptionFolders, "imagenet-c", exact_source=False),
    "imagenet": clean_set("imagenet"),
    "imagenet-r": class_set("imagenet-r"),
    "imagenet-a": class_set("imagenet-a"),
    "imagenet-v2": class_set("imagenet-v2"),
    "imagenet-sketch": class_set("imagenet-sketch"),
    "visda-2021": listed_set("visda-2021"),
    "cifar10-c": partial(CorruptionArrays, "cifar10-c", classes=10),
    "cifar100-c": partial(CorruptionArrays, "cifar100-c", classes=100),
    "tiny-imagenet-c": partial(CorruptionFolders, "tiny-imagenet-c", exact_source=True),
    "tiny-imagenet": clean_set("tiny-imagenet", exact=True),
    "folder": clean_set("folder"),
}

LAYOUTS = ("glyphs", *_BUILDERS)
"""The layouts by name; all but the first are written with a path, as "LAYOUT:PATH"."""


def open_data(spec: str, model: Model, *, source: str | None = None) -> Data:
    """The data that a spec names, its classes matched with the model's outputs.

    Args:
        spec: "glyphs", "LAYOUT:PATH", or a path alone where its content leaves no doubt of its layout.
        model: whose images they are to be. Where `Data.outputs` says so, use `model.restricted(data.outputs)` on them.
        source: uncorrupted images in class folders (a folder or a tar), for what is estimated on source images. Left out,
            a set that has clean images gives these. The glyphs have their own, whatever is given.
    """
    layout, _, path = spec.partition(":")
    if layout == "glyphs":
        if path:
            raise DataError(f"the glyphs come with the package and take no path; write 'glyphs', not {spec!r}")
        from wildtta.data.glyphs import Glyphs

        return Glyphs(model)
    if layout in _BUILDERS:
        if not path:
            raise DataError(f"{layout!r} does not say where the images lie; write {layout}:PATH")
        return _BUILDERS[layout](Path(path).expanduser(), model, source)
    whole = Path(spec).expanduser()
    if not spec or (not whole.exists() and (":" in spec or "/" not in spec)):
        raise _unknown(layout)
    return _BUILDERS[_detected(open_place(whole), model)](whole, model, source)


def _unknown(layout: str) -> DataError:
    near = difflib.get_close_matches(layout.lower(), LAYOUTS, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(LAYOUTS)}"
    return DataError(f"unknown layout of data {layout!r}; {hint}")


def _detected(place: Place, model: Model) -> str:
    """The layout of a path given alone, where there can be no doubt."""
    found = None
    at, kinds = find_corruptions(place)
    if isinstance(place, Folder) and "labels.npy" in place.files():
        found = {10: "cifar10-c", 100: "cifar100-c"}.get(model.outputs)
    elif kinds:
        kind = min(kinds)
        here = joined(at, kind, str(kinds[kind][0]))
        found = {64: "tiny-imagenet-c", 224: "imagenet-c"}.get(
            _width(place, joined(here, class_folders(place, here)[0][1]))
        )
    elif ANNOTATIONS in place.files(part_folder(place, "val")):
        found = "tiny-imagenet"
    if found is None:
        raise DataError(
            f"the layout of {place.path} cannot be told for certain; say it: LAYOUT:{place.path}, with one of "
            f"{', '.join(_BUILDERS)}"
        )
    return found


def _width(place: Place, name: str) -> int:
    try:
        with Image.open(io.BytesIO(place.read(name))) as image:
            return image.width
    except Exception:  # a damaged file makes Pillow fail in many ways
        return 0
