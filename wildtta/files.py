"""Safetensors files with a header that says what they are: written whole or not at all, and checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["PARTIAL", "fingerprint", "put", "read", "write"]

_KEY = "wildtta"
_VERSION = 1

PARTIAL = ".*.partial"
"""The names of files that are being written. What a process that was killed has left of them counts for nothing."""


def write(path: str | Path, kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header; an existing file is replaced only once the new one is complete."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps({"kind": kind, "version": _VERSION, **header}, sort_keys=True)
    data = save(content, metadata={_KEY: text})
    put(path, data)


def put(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, even if the machine stops."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)  # it is not there if Ctrl-C came right after it got its name
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file of this kind; anything else is an error that says what was found."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file (truncated, or of another format): {error}"
        ) from error
    try:
        header = json.loads(text) if text is not None else {}
        found = header.get("kind")
    except (json.JSONDecodeError, AttributeError, RecursionError):
        found = None
    if found != kind:
        raise ValueError(
            f"{path} holds {f'wildtta data of kind {found!r}' if found else 'no wildtta data'}, where {kind!r} was expected"
        )
    if header.get("version") != _VERSION:
        raise ValueError(f"{path} has format {header.get('version')}, this version of wildtta reads format {_VERSION}")
    return tensors, header


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors: their names, shapes, types and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
