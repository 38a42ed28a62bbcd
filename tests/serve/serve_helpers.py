"""A service for the tests: the embedded model, opened once, and a client in the same process."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import numpy as np
import torch
from fastapi.testclient import TestClient
from PIL import Image
from torch import Tensor

from wildtta.data.glyphs import Glyphs
from wildtta.serve import Settings, create_app
from wildtta.serve.opening import Opened, open_model

KEY = "the-operator's-key-of-the-tests"
NPY = {"content-type": "application/x-npy"}
FILE = {"content-type": "application/octet-stream"}


@cache
def opened() -> Opened:
    return open_model(Settings())


@cache
def glyphs() -> Tensor:
    """Test images as bytes, N × 3 × 32 × 32."""
    images, _ = Glyphs(opened().model).domain("clean", 0).read(torch.arange(256))
    return (images * 255).round().byte()


def npy(images: Tensor) -> bytes:
    """The body of a request with such images."""
    file = io.BytesIO()
    np.save(file, images.permute(0, 2, 3, 1).contiguous().numpy() if images.dtype == torch.uint8 else images.numpy())
    return file.getvalue()


def picture(image: Tensor, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Client:
    """Requests to a service in this process."""

    def __init__(self, http: TestClient) -> None:
        self.http = http
        self.service = http.app.state.service  # type: ignore[attr-defined]

    def make(self, method: str = "recap", **wanted: Any) -> StreamClient:
        answer = self.http.post("/v1/streams", json={"method": method, **wanted}, headers=bearer(KEY))
        assert answer.status_code == 201, answer.text
        return StreamClient(self.http, answer.json()["id"], answer.json()["token"])

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, headers=bearer(KEY), **options)


class StreamClient:
    """Requests for one stream, with its token."""

    def __init__(self, http: TestClient, id: str, token: str) -> None:
        self.http, self.id, self.token = http, id, token

    def ask(self, verb: str, what: str = "", **options: Any) -> httpx.Response:
        headers = bearer(self.token) | options.pop("headers", {})
        return self.http.request(verb, f"/v1/streams/{self.id}{what}", headers=headers, **options)

    def predict(self, images: Tensor, query: str = "?top=40") -> dict[str, Any]:
        answer = self.ask("POST", f"/predict{query}", content=npy(images), headers=NPY)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self) -> bytes:
        answer = self.ask("GET", "/state")
        assert answer.status_code == 200, answer.text
        return answer.content

    def put(self, state: bytes) -> httpx.Response:
        return self.ask("PUT", "/state", content=state, headers=FILE)


def probabilities(answer: dict[str, Any]) -> Tensor:
    """Images × classes, from an answer that has them all."""
    found = torch.zeros(len(answer["predictions"]), len(opened().model.classes or ()))
    for row, prediction in zip(found, answer["predictions"], strict=True):
        for guess in prediction["classes"]:
            row[guess["index"]] = guess["probability"]
    return found


@contextmanager
def service(**settings: Any) -> Iterator[Client]:
    app = create_app(Settings(operator_key=KEY, **settings), opened())
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Client(http)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that a thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
