"""One source must never spoil another's model: through the whole service, not the engine alone."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx
import numpy as np
import torch
from serve_helpers import KEY, NPY, Client, StreamClient, bearer, npy, opened, service
from torch import Tensor

import wildtta
from wildtta.corruptions import CORRUPTIONS, EXTRA
from wildtta.data.glyphs import Glyphs
from wildtta.serve import Settings, create_app
from wildtta.serve.service import Service

STREAMS, STEPS = 64, 3
KINDS = [*CORRUPTIONS, *EXTRA]


def _images(stream: int, count: int) -> Tensor:
    """Each stream's own corruption, severity and images, as bytes."""
    kind, severity = KINDS[stream % len(KINDS)], 1 + stream // len(KINDS)
    numbers = (torch.arange(count) * 64 + stream) % 2000
    images, _ = Glyphs(opened().model).domain(kind, severity).read(numbers)
    return (images * 255).round().clamp(0, 255).byte()


async def _ask(http: httpx.AsyncClient, stream: dict[str, str], images: Tensor) -> dict[str, Any]:
    headers = bearer(stream["token"]) | NPY
    answer = await http.post(f"/v1/streams/{stream['id']}/predict?top=40", content=npy(images), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _together(
    rounds: list[list[Tensor]], methods: list[str], **settings: Any
) -> tuple[list[list[Any]], list[bytes], Service]:
    """All streams at once, round after round: what each answered, and its state at the end."""
    app = create_app(Settings(operator_key=KEY, max_wait_ms=500, **settings), opened())
    service: Service = app.state.service
    service.start()

    async def main() -> tuple[list[list[Any]], list[bytes]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http:
            streams = []
            for place, method in enumerate(methods):
                wanted = {"method": method, "seed": place, "hyperparameters": {"lr": "x10"}}
                streams.append((await http.post("/v1/streams", json=wanted, headers=bearer(KEY))).json())
            answers = []
            for images in rounds:
                answers.append(
                    await asyncio.gather(*(_ask(http, one, batch) for one, batch in zip(streams, images, strict=True)))
                )
            states = [
                (await http.get(f"/v1/streams/{one['id']}/state", headers=bearer(KEY))).content for one in streams
            ]
            return answers, states

    try:
        return *asyncio.run(main()), service
    finally:
        service.stop()


def test_64_streams_at_once_are_64_lone_adapters() -> None:
    methods = [("recap", "tent", "sar", "deyo")[place % 4] for place in range(STREAMS)]
    counts = [1 + place % 3 for place in range(STREAMS)]
    images = [_images(place, count * STEPS).split(count) for place, count in enumerate(counts)]
    rounds = [[batches[step] for batches in images] for step in range(STEPS)]
    answers, _, service = _together(rounds, methods)

    steps = service.metrics.registry.get_sample_value("wildtta_step_seconds_count")
    assert steps is not None
    assert steps < STREAMS * STEPS / 4  # they were stepped together
    moved = 0
    for place, method in enumerate(methods):
        needed = {"region": opened().source["region"]} if method == "recap" else {}
        adapter = wildtta.adapt(opened().network, method, guard="collapse", seed=place, lr="x10", **needed)
        start = adapter.state["stream"]["theta"]
        for step in range(STEPS):
            expected = adapter(opened().model.preprocessing.normalise(images[place][step].float() / 255))
            found = answers[step][place]
            wanted = expected.softmax(-1)
            values = torch.zeros_like(wanted)
            for row, prediction in zip(values, found["predictions"], strict=True):
                for guess in prediction["classes"]:
                    row[guess["index"]] = guess["probability"]
            assert (values - wanted).abs().max() <= 1e-5
            assert adapter.outcome is not None
            assert [one["taught"] for one in found["predictions"]] == adapter.outcome.mask.tolist()
        moved += not torch.equal(adapter.state["stream"]["theta"], start)
    assert moved > STREAMS / 2


def test_a_stream_of_adversarial_noise_changes_no_bit_of_any_other() -> None:
    count, steps = 8, 4
    methods = ["recap"] * count
    clean = [[_images(place, steps)[step : step + 1] for place in range(count)] for step in range(steps)]
    noise = torch.Generator().manual_seed(0)
    hostile = [list(images) for images in clean]
    for step, images in enumerate(hostile):
        shape = images[3].shape
        images[3] = (
            torch.randint(0, 2, shape, generator=noise, dtype=torch.uint8) * 255
            if step % 2
            else torch.full(shape, 255 * (step // 2), dtype=torch.uint8)
        )
    (one, states, _), (other, changed, _) = (_together(rounds, methods) for rounds in (clean, hostile))
    for place in range(count):
        same = states[place] == changed[place]
        assert same == (place != 3)
        for before, after in zip(one, other, strict=True):
            assert (before[place]["predictions"] == after[place]["predictions"]) == (place != 3)


def test_refused_requests_of_one_stream_change_nothing_of_another() -> None:
    with service(max_images=4) as client:
        victim, attacker = client.make("recap"), client.make("recap")
        before = victim.state()
        for body in _attacks(attacker):
            assert attacker.ask("POST", "/predict", content=body, headers=NPY).status_code >= 400
        assert attacker.put(b"0" * 100).status_code == 422
        assert victim.state() == before
        assert not _leaks(client, attacker, victim)


def _attacks(_: StreamClient) -> list[bytes]:
    bodies = []
    for values in (np.full((1, 3, 32, 32), np.nan, np.float32), np.full((1, 3, 32, 32), 1e38, np.float32)):
        file = io.BytesIO()
        np.save(file, values)
        bodies.append(file.getvalue())
    return bodies


def _leaks(client: Client, attacker: StreamClient, victim: StreamClient) -> bool:
    """Whether anything the attacker may see names the other stream."""
    seen = [attacker.ask("GET").text, json.dumps(client.http.get("/metrics").text), client.http.get("/readyz").text]
    return any(victim.id in text for text in seen)
