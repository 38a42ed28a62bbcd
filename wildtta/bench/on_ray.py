"""Cells as tasks of Ray: on this machine, or on a cluster that shares the run's folder.

Ray decides where a family of cells runs, and runs it again where a worker dies; the cells, their files and their numbers are
those of a run without it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wildtta.bench.config import Config, ConfigError
from wildtta.bench.store import Store
from wildtta.bench.work import Workshop

if TYPE_CHECKING:
    from wildtta.bench.engine import Account, Event, Family

__all__ = ["on_ray"]

_RETRIES = 3
"""How often a family is run again after its worker has died."""


def on_ray(account: Account, config: Config) -> None:
    """Work off what is missing, `config.jobs` families at a time."""
    ray = _ray()
    own = _join(ray, config)
    gpus = config.gpus if config.device.startswith("cuda") else 0.0
    task = ray.remote(num_cpus=config.threads, num_gpus=gpus, max_retries=_RETRIES)(_task)
    running: dict[Any, Family] = {}
    try:
        while account.waiting or running:
            while account.waiting and len(running) < config.jobs:
                family = account.waiting.pop()
                running[task.remote(str(account.store.folder.absolute()), family)] = family
            (done,), _ = ray.wait(list(running), num_returns=1)
            family = running.pop(done)
            try:
                name, content = ray.get(done)
            except ray.exceptions.RayError as error:
                name, content = "failed", (f"its worker died {_RETRIES + 1} times ({type(error).__name__})",)
            getattr(account, name)(family, *content)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if own:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError('the engine "ray" needs Ray: pip install "wildtta[ray]"') from error
    return ray


def _join(ray: Any, config: Config) -> bool:
    """Join the cluster that is asked for, or start one here; whether it is ours to stop."""
    if ray.is_initialized():
        return False
    try:
        if config.address is None:
            # each family counts as `threads` processors, and `jobs` of them may run at a time whatever the machine has
            ray.init(
                address="local",
                num_cpus=config.jobs * config.threads,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        else:
            ray.init(address=config.address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot join Ray at {config.address or 'this machine'}: {error}") from error
    return True


@cache
def _workshop(folder: str) -> Workshop:
    """A process of Ray's runs many families: their models and images stay at hand."""
    return Workshop(Store(folder))


def _task(folder: str, family: Family) -> Event:
    from wildtta.bench.engine import work

    if not Path(folder).is_dir():
        return "failed", (f"{os.uname().nodename} does not see the folder {folder}; a cluster has to share it",)
    return work(_workshop(folder), family, lambda *_: None)
