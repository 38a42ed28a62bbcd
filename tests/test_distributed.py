"""One stream over several processes equals the same stream in one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import LEARNING, adapter
from networks import images, make

import wildtta

PROGRAM = """
import sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_distributed import stream
dist.init_process_group("gloo")
found = stream(runner="distributed", rank=dist.get_rank(), world=dist.get_world_size())
torch.save(found, f"{sys.argv[2]}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""

SIZES = (12, 12, 7, 1, 12)
"""Of the batches: some that the processes share evenly, one that they do not, one that leaves most of them without any."""


def stream(runner: str, rank: int = 0, world: int = 1) -> dict[str, dict[str, torch.Tensor]]:
    """A stream through every method on both kinds of network: what each process is answered, and what it has learnt."""
    found = {}
    for kind in ("gn", "ln"):
        for method in LEARNING:
            learner = adapter(method, kind, runner=runner, guard="collapse")
            answers = []
            for step, size in enumerate(SIZES):
                batch = images(size, step)
                if step == 1 and method == "recap":
                    batch[5] = torch.nan  # in one process; it must stop all of them
                answers.append(learner(batch.tensor_split(world)[rank]))
            report = learner.report
            found[f"{method}, {kind}"] = {
                "answers": torch.cat(answers),
                "theta": learner.state["stream"]["theta"],
                "report": torch.tensor([report.seen, report.selected, report.updates, report.skipped, report.resets]),
                "loss": torch.tensor(report.loss),
            }
    return found


def together(tmp_path: Path, world: int) -> list[dict[str, dict[str, torch.Tensor]]]:
    """What each of several processes has found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path)]
    processes = [
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "GLOO_SOCKET_IFNAME": "lo",
            },
        )
        for rank in range(world)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    return [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_equal_one(tmp_path, world):
    alone, parts = stream("eager"), together(tmp_path, world)
    starts = torch.tensor([0, *SIZES]).cumsum(0)
    for name, expected in alone.items():
        for rank, part in enumerate(parts):
            found = part[name]
            own = torch.cat([torch.arange(size).tensor_split(world)[rank] + starts[i] for i, size in enumerate(SIZES)])
            close(found["answers"], expected["answers"][own], name)
            close(found["theta"], expected["theta"], name)
            close(found["loss"], expected["loss"], name)
            assert found["report"].tolist() == expected["report"].tolist(), name
            assert torch.equal(found["theta"], parts[0][name]["theta"]), "the processes drift apart"
    selected = {name: int(expected["report"][1]) for name, expected in alone.items()}
    assert all(count > 0 for count in selected.values()), selected
    assert any(count < sum(SIZES) for count in selected.values()), selected


def close(found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(ValueError, match="start the program with torchrun"):
        wildtta.adapt(make("gn"), "tent", runner="distributed")
