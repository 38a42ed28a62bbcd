"""What outlives the process, and what happens when the disk does not take it."""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import KEY, Client, StreamClient, bearer, glyphs, opened, service, until

from wildtta.bench.config import ConfigError
from wildtta.serve import Settings, create_app, storage

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import serve_faults

FAST = {"lr": "x30"}


def _learn(stream: StreamClient, steps: int = 4, count: int = 8) -> dict[str, Any]:
    for start in range(steps):
        answer = stream.predict(glyphs()[start * count : (start + 1) * count])
    return answer


def _saved(client: Client, stream: StreamClient) -> bool:
    record = client.service.records[stream.id]
    return record.unsaved == 0 and record.writing == 0


def test_streams_come_back_after_a_stop(tmp_path: Path) -> None:
    with service(state=tmp_path) as client:
        stream = client.make("recap", name="gate", hyperparameters=FAST, guard="none", seed=3)
        resting = client.make("tent")
        told = _learn(stream)["health"]
        state = stream.state()
    with service(state=tmp_path) as client:
        again = StreamClient(client.http, stream.id, stream.token)
        view = again.ask("GET").json()
        assert (view["name"], view["guard"], view["seed"], view["hyperparameters"]) == ("gate", "none", 3, FAST)
        for figure in ("images", "selected", "selected_share", "mean_entropy", "class_balance"):
            assert view["health"][figure] == told[figure]
        assert again.state() == state
        assert StreamClient(client.http, resting.id, resting.token).ask("GET").status_code == 200
        assert again.ask("GET", headers=bearer(resting.token)).status_code == 403


def test_a_snapshot_is_due_every_so_many_images(tmp_path: Path) -> None:
    with service(state=tmp_path, snapshot_images=32, max_images=8) as client:
        stream = client.make("tent")
        for step in range(12):
            stream.predict(glyphs()[:8])
            assert client.service.records[stream.id].unsaved <= 32, step


def test_learning_waits_for_a_slow_disk_so_that_no_more_is_lost_than_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, put = threading.Event(), storage.put
    with service(state=tmp_path, snapshot_images=16, max_images=8) as client:
        stream, other = client.make("tent"), client.make("tent")

        def slow(path: Path, data: bytes) -> None:
            if stream.id in path.name:
                assert gate.wait(20)
            put(path, data)

        monkeypatch.setattr(storage, "put", slow)
        record = client.service.records[stream.id]
        answered = threading.Event()

        def ask() -> None:
            for _ in range(4):
                stream.predict(glyphs()[:8])
            answered.set()

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: record.seen == 16)
        time.sleep(0.3)
        assert record.seen == record.unsaved == 16
        assert not answered.is_set()
        assert other.predict(glyphs()[:8])["health"]["images"] == 8  # no other stream waits
        gate.set()
        thread.join()
        assert answered.is_set()


def test_resets_and_uploads_are_on_disk_when_they_are_answered(tmp_path: Path) -> None:
    with service(state=tmp_path) as client:
        stream, other = (client.make("tent", hyperparameters=FAST) for _ in range(2))
        fresh = stream.state()
        _learn(other)
        state = other.state()
        assert stream.put(state).json()["unsaved_images"] == 0
        assert (tmp_path / f"{stream.id}.safetensors").read_bytes() == state
        stream.ask("POST", "/reset")
        assert (tmp_path / f"{stream.id}.safetensors").read_bytes() == fresh
        stream.ask("DELETE")
        assert not list(tmp_path.glob(f"{stream.id}*"))


def test_idle_streams_rest_on_disk_and_come_back(tmp_path: Path) -> None:
    with service(state=tmp_path, idle_minutes=0.5 / 60) as client:
        stream = client.make("recap", hyperparameters=FAST)
        _learn(stream)
        state, record = stream.state(), client.service.records[stream.id]
        record.used -= 10  # it has been quiet for a while
        until(lambda: not record.live)
        assert stream.id not in client.service.engine
        view = stream.ask("GET").json()
        assert (view["in_memory"], view["health"]["images"]) == (False, 32)
        assert stream.state() == state
        record.used -= 10
        until(lambda: not record.live)
        assert stream.predict(glyphs()[:8])["health"]["images"] == 40


def test_a_full_disk_costs_no_prediction_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = storage.put
    monkeypatch.setattr(storage, "_RETRY", 0.2)
    with service(state=tmp_path, snapshot_images=16, max_images=8) as client:
        stream = client.make("tent")
        before = (tmp_path / f"{stream.id}.safetensors").read_bytes()

        def full(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(storage, "put", full)
        for _ in range(8):
            answer = stream.predict(glyphs()[:8])
        until(lambda: client.service.storage.fault is not None)
        answer = stream.predict(glyphs()[:8])
        assert answer["health"]["status"] == "unsaved"
        assert "No space left" in answer["health"]["notes"][-1]
        assert stream.ask("GET").json()["unsaved_images"] > 16
        assert "No space left" in client.http.get("/readyz").json()["snapshots"]
        assert "wildtta_snapshots_failing 1.0" in client.http.get("/metrics").text
        assert (tmp_path / f"{stream.id}.safetensors").read_bytes() == before
        refused = client.http.post("/v1/streams", json={}, headers=bearer(KEY))
        assert refused.status_code == 503
        assert len(client.service.records) == len(client.service.engine) == 1
        assert stream.ask("POST", "/reset").status_code == 200

        monkeypatch.setattr(storage, "put", put)
        time.sleep(0.3)
        stream.predict(glyphs()[:8])
        until(lambda: client.service.storage.fault is None)
        assert stream.predict(glyphs()[:8])["health"]["status"] == "ok"
        until(lambda: (tmp_path / f"{stream.id}.safetensors").read_bytes() != before)
        assert client.make("tent").predict(glyphs()[:1])


def test_damaged_files_are_set_aside_and_told(tmp_path: Path) -> None:
    with service(state=tmp_path) as client:
        streams = [client.make("tent") for _ in range(4)]
        for stream in streams:
            _learn(stream)
    whole, cut, lost, nameless = streams
    path = tmp_path / f"{cut.id}.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / f"{lost.id}.safetensors").unlink()
    (tmp_path / f"{nameless.id}.json").write_text("{")
    (tmp_path / ".x.partial").write_text("left by a crash")
    with service(state=tmp_path) as client:
        whole, cut, lost, nameless = (StreamClient(client.http, one.id, one.token) for one in streams)
        assert not any("anew" in note for note in whole.predict(glyphs()[:1])["health"]["notes"])
        for stream in (cut, lost):
            assert "anew" in stream.predict(glyphs()[:1])["health"]["notes"][-1]
        assert nameless.ask("GET").status_code == 403
        assert path.with_name(f"{path.name}.damaged").exists()
        assert (tmp_path / f"{nameless.id}.json.damaged").exists()
        assert (tmp_path / f"{nameless.id}.safetensors.damaged").exists()
        assert not (tmp_path / ".x.partial").exists()


def test_a_snapshot_of_another_model_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    with service(state=tmp_path) as client:
        stream = client.make("tent")
        _learn(stream)
    path = tmp_path / f"{stream.id}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"hyperparameters": {"lr": 0.5}}))
    with service(state=tmp_path) as client:
        again = StreamClient(client.http, stream.id, stream.token)
        assert "could not be used" in again.predict(glyphs()[:1])["health"]["notes"][-1]


def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    with service(state=tmp_path):
        other = create_app(Settings(state=tmp_path, operator_key=KEY), opened())
        with pytest.raises(ConfigError, match="another service"):
            other.state.service.start()


def test_killed_under_load_it_keeps_its_word() -> None:
    """The short form of benchmarks/serve_faults.py."""
    found = serve_faults.kills(1, streams=4, longest=1.0)
    assert found["images_answered"] > 0
    assert found["most_images_lost"] <= found["promised_images"]


@pytest.mark.slow
def test_killed_again_and_again_it_keeps_its_word() -> None:
    assert serve_faults.kills(20)["unreadable"] == 0
