"""A benchmark under `torchrun`: several processes share the cells, and the batches, of one run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tiny_bench import config, results, write_folder, write_models

from wildtta.bench import run


def test_two_processes_share_a_run(tmp_path):
    """Streams of single images go to one process each; batches are split, the last one of 65 images into one and none."""
    folder, models = write_folder(tmp_path / "images", classes=3, each=22), write_models(tmp_path)
    (folder / "class1" / "3.jpg").write_bytes(b"no picture")
    given = config(
        models=[f"{models}:tiny"],
        data=[f"folder:{folder}"],
        kinds=["fog", "contrast"],
        scenarios=["limited", "mild"],
        methods=["source", "deyo", "recap"],
        settings={"lr": 0.01},
        images=65,
    )
    run(given, tmp_path / "one")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "wildtta.cli",
    ]
    done = subprocess.run(
        [*command, *given.command(tmp_path / "two").split()[1:]],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The page with everything") == 1
    alone, shared = results(tmp_path / "one"), results(tmp_path / "two")
    assert alone.keys() == shared.keys()
    assert len(alone) == 2 * 2 * 3
    for name, content in alone.items():
        expected, found = content["result"], shared[name]["result"]
        for measure in ("nll", "ece"):
            assert found.pop(measure) == pytest.approx(expected.pop(measure), abs=1e-3), name
        assert found == expected, name
        assert expected["images"] + expected["unreadable"] == 65
