"""A benchmark run by several processes that `torchrun` started: who does what.

Streams of single images are shared out, each to one process. A stream of batches is run by all of them together, each with its
part of every batch. The first process leads: it plans, and writes what all of them need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["ALONE", "Crew", "muster"]


@dataclass(frozen=True)
class Crew:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def hear(self, said: Any = None) -> Any:
        """What the leader says."""
        if self.size == 1:
            return said
        content = [said]
        dist.broadcast_object_list(content, src=0)
        return content[0]

    def gather(self, said: Any) -> list[Any]:
        """What each of them says."""
        if self.size == 1:
            return [said]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, said)
        return found


ALONE = Crew()


def muster(device: str) -> Crew:
    """The crew that `torchrun` started, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    return Crew(dist.get_rank(), dist.get_world_size())
