"""Cells as tasks of Ray: the same files, also when a worker is killed on the way."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_bench import config, refused, results

from wildtta.bench import Config, Listener, run

pytest.importorskip("ray")


def _given(**others: object) -> Config:
    return config(**{"scenarios": ["limited", "mild"], "methods": ["source", "tent", "recap"], "images": 64} | others)


def _workers() -> list[int]:
    """Processes of Ray that have a family in hand, below this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_task"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class _Seen(Listener):
    def __init__(self) -> None:
        self.ended: list[str] = []

    def finished(self, family):
        self.ended += [cell.name for cell in family]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Ray has no wheel for it yet")
def test_the_same_files_though_a_worker_is_killed(tmp_path):
    run(_given(), tmp_path / "local")
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for worker in _workers()[:1]:
                os.kill(worker, 9)
                killed.append(worker)
            time.sleep(0.002)

    killer, seen = threading.Thread(target=kill_one), _Seen()
    killer.start()
    summary = run(_given(engine="ray", jobs=2), tmp_path / "ray", seen)
    killer.join()
    assert killed, "no worker was met at work"
    assert (summary.failed, summary.finished) == ({}, summary.cells)
    assert len(seen.ended) == summary.cells
    assert results(tmp_path / "ray") == results(tmp_path / "local")
    assert run(_given(engine="ray"), tmp_path / "ray").kept == summary.cells


def test_an_address_needs_the_engine(tmp_path):
    said = refused("bench", "--out", str(tmp_path / "x"), "--address", "somewhere:6379")
    assert "add --engine ray" in said
    assert not (tmp_path / "x").exists()


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused("bench", "--out", str(tmp_path / "x"), "--engine", "ray", "--images", "4", "--methods", "source",
                   "--models", "glyph-resnet", "--kinds", "fog", "--scenarios", "mild")  # fmt: skip
    assert said == 'the engine "ray" needs Ray: pip install "wildtta[ray]"'
