"""From what clients send to tensors of the model's size; everything is checked before it is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import json
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wildtta.models import Preprocessing
from wildtta.serve.problems import Problem

__all__ = ["FORMATS", "Decoder"]

FORMATS = ("JPEG", "PNG", "WEBP")
_HEADER = 10_000  # the longest .npy header that is read


class Decoder:
    """Decodes for one model, within limits. It keeps no state, so many threads may use it.

    Images are 3 × height × width: bytes, or floats in [0, 1] where the client sent floats.
    """

    def __init__(self, preprocessing: Preprocessing, *, max_images: int, max_pixels: int) -> None:
        self.preprocessing, self.max_images, self.max_pixels = preprocessing, max_images, max_pixels

    def pictures(self, files: list[bytes]) -> Tensor:
        """JPEG, PNG or WebP files, prepared as the model wants them."""
        self._count(len(files))
        return torch.stack([self._picture(data, place) for place, data in enumerate(files)])

    def base64(self, body: bytes) -> Tensor:
        """{"images": ["base64 of a file", …]}"""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Problem(422, "the body is not JSON", 'send {"images": ["base64 of a picture", …]}') from error
        images = content.get("images") if isinstance(content, dict) else None
        if not isinstance(images, list) or not all(isinstance(item, str) for item in images) or len(content) != 1:
            raise Problem(422, "the body has no list of images", 'send {"images": ["base64 of a picture", …]}')
        self._count(len(images))
        try:
            files = [base64.b64decode(item, validate=True) for item in images]
        except (binascii.Error, ValueError) as error:
            raise Problem(
                422, f"an image is not base64: {error}", "encode the file's bytes with the standard alphabet"
            ) from error
        return self.pictures(files)

    def array(self, body: bytes) -> Tensor:
        """A .npy batch that has the model's size: N × H × W × 3 bytes, or N × 3 × H × W floats in [0, 1]."""
        height, width = self.preprocessing.size
        advice = (
            f"send numpy.save's output of images of the model's size: uint8 of shape (N, {height}, {width}, 3), or float32 of "
            f"shape (N, 3, {height}, {width}) with values from 0 to 1"
        )
        shape, fortran, dtype, start = _npy_header(body, advice)
        bytes_ = dtype == np.dtype(np.uint8)
        if not bytes_ and dtype != np.dtype("<f4"):
            raise Problem(422, f"the array is of type {str(dtype)[:40]}", advice)
        wanted = (height, width, 3) if bytes_ else (3, height, width)
        if fortran or len(shape) != 4 or shape[1:] != wanted:
            order = " in Fortran order" if fortran else ""
            raise Problem(422, f"the array has the shape {str(tuple(shape))[:60]}{order}", advice)
        self._count(shape[0])
        size = int(np.prod(shape)) * dtype.itemsize
        if len(body) - start != size:
            raise Problem(422, f"the array has {len(body) - start} bytes where its header says {size}", advice)
        values = torch.from_numpy(np.frombuffer(body, dtype, offset=start).reshape(shape).copy())
        if bytes_:
            return values.permute(0, 3, 1, 2).contiguous()
        if not bool(((values >= 0) & (values <= 1)).all()):  # NaN is neither
            raise Problem(422, "the array has values that are not from 0 to 1", advice)
        return values

    def _count(self, count: int) -> None:
        if not 1 <= count <= self.max_images:
            raise Problem(
                422 if count < 1 else 413,
                f"there are {count} images in the request",
                f"send 1 to {self.max_images} images at a time",
            )

    def _picture(self, data: bytes, place: int) -> Tensor:
        advice = f"send pictures as JPEG, PNG or WebP, of at most {self.max_pixels:,} pixels"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's own, at a limit of its own
                with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                    if picture.width * picture.height > self.max_pixels:
                        found = f"picture {place} has {picture.width} × {picture.height} pixels"
                        raise Problem(413, found, advice)
                    if self._enlarged(picture.size) > self.max_pixels:
                        found = f"picture {place} is too long for its width: {picture.width} × {picture.height}"
                        raise Problem(422, found, "cut it to about the sides of the model's images")
                    return self.preprocessing.picture(picture)
        except Problem:
            raise
        except Image.DecompressionBombError as error:
            raise Problem(413, f"picture {place} has too many pixels", advice) from error
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes Pillow fail in many ways
            reason = str(error).partition("<")[0].strip() or type(error).__name__
            raise Problem(422, f"picture {place} cannot be read: {reason[:120]}", advice) from error

    def _enlarged(self, size: tuple[int, int]) -> float:
        """Pixels of a picture whose shorter side is brought to the model's: a line of one pixel's width would become vast."""
        side = max(self.preprocessing.resize or 0, *self.preprocessing.size)
        return side * side * max(size) / max(min(size), 1)


def _npy_header(body: bytes, advice: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(file, max_header_size=_HEADER)
    except Exception as error:  # the header is Python's syntax, and can be wrong in all of its ways
        raise Problem(422, "the body is not a readable .npy array", advice) from error
    # types with fields or objects are refused before anything is made of them; so are sizes that no body has
    if dtype.hasobject or dtype.fields or any(not 0 <= side < 1 << 31 for side in shape):
        raise Problem(422, "the .npy array is of a type or shape that is not accepted", advice)
    return shape, fortran, dtype, file.tell()
