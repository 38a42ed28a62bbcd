"""A client of `wildtta serve`: two cameras, each with a stream of its own that learns from its pictures alone.

wildtta serve --open &     # on this machine, without an operator's key; or set WILDTTA_OPERATOR_KEY for both
pip install httpx
python examples/service_client.py http://127.0.0.1:8000
"""

import io
import os
import sys

import httpx
import torch
from PIL import Image

from wildtta.data import open_data
from wildtta.models import load_model


def pictures(kind: str, count: int) -> list[bytes]:
    """In the place of your camera: PNG files of the embedded set, under one weather."""
    images, _ = open_data("glyphs", load_model("glyph-resnet")).domain(kind, 5).read(torch.arange(count))
    files = []
    for image in (images * 255).round().byte():
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG")
        files.append(file.getvalue())
    return files


def watch(service: httpx.Client, kind: str, count: int = 8) -> list[str]:
    """Make a stream, send it pictures four at a time, and say what they show."""
    wanted = {"method": "sar", "name": f"camera in {kind}", "hyperparameters": {"lr": "x10"}}
    key = os.environ.get("WILDTTA_OPERATOR_KEY")
    made = service.post("/v1/streams", json=wanted, headers={"authorization": f"Bearer {key}"} if key else {})
    made.raise_for_status()
    stream, token = made.json()["id"], made.json()["token"]  # it is told this once
    opens = {"authorization": f"Bearer {token}"}
    seen = []
    files = pictures(kind, count)
    for start in range(0, count, 4):
        form = [("images", (f"{start}.png", file, "image/png")) for file in files[start : start + 4]]
        answer = service.post(f"/v1/streams/{stream}/predict", files=form, headers=opens)
        if answer.is_error:
            raise SystemExit(f"{answer.json()['error']}: {answer.json()['detail']}")
        seen += [prediction["classes"][0]["class"] for prediction in answer.json()["predictions"]]
    health = answer.json()["health"]
    print(
        f"{kind}: {' '.join(seen)}; {health['selected']} of {health['images']} pictures taught, status {health['status']}"
    )
    return seen


if __name__ == "__main__":
    with httpx.Client(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000", timeout=30) as client:
        for weather in ("fog", "snow"):
            watch(client, weather)
