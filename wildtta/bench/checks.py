"""What would stop a run, found before anything runs: `wildtta check` tells it, and a run refuses to begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from wildtta.bench.config import Config, ConfigError
from wildtta.bench.plan import Cell, Setting, open_settings, plan
from wildtta.bench.restore import check_diffusion
from wildtta.bench.work import needs, without_source
from wildtta.common import compose
from wildtta.corruptions import CORRUPTIONS
from wildtta.data import DataError, Finding
from wildtta.data.base import some
from wildtta.network import Network
from wildtta.recipes import recipe
from wildtta.source import Fisher, Region
from wildtta.streams import scenario

__all__ = ["Preflight", "check_device", "preflight"]

_Settings = Mapping[tuple[str, str], Setting]


class Preflight(NamedTuple):
    """A benchmark before it begins.

    Attributes:
        settings: every model with every data set. cells: the plan; none where there can be no plan.
        findings: what would stop a run, or make its numbers odd.
        diffusions: the digest of each diffusion model, by the place it was loaded from.
    """

    settings: dict[tuple[str, str], Setting]
    cells: list[Cell]
    findings: list[Finding]
    diffusions: dict[str, str]


def preflight(config: Config, *, deep: bool = False) -> Preflight:
    """Open every model and data set of a benchmark, make its plan, and look for what would stop a run.

    Images are looked at by sample; with `deep` every one is read.
    """
    check_device(config.device)
    settings, findings = open_settings(config), []
    # a gradual stream goes through all severities below its own
    severities = range(1, max(config.severities) + 1) if "gradual" in config.scenarios else config.severities
    for (model, place), setting in settings.items():
        data = setting.data
        cut = "; the model's head is cut down to them" if data.outputs else ""
        findings.append(Finding("ok", f"{place} for {model}: {len(data.classes):,} classes{cut}"))
        if not config.kinds and data.lacking:
            findings.append(
                Finding(
                    "error",
                    f"{place} lacks {len(data.lacking)} of the benchmark's {len(CORRUPTIONS)} corruptions: "
                    f"{some(data.lacking)}; unpack them there, or name those to run with --kinds",
                )
            )
        findings += data.check(config.kinds_of(data.kinds), severities, deep=deep)
    cells: list[Cell] = []
    diffusions: dict[str, str] = {}
    try:
        cells = plan(config, settings)
        diffusions = check_diffusion(cells, settings)
    except (ConfigError, DataError) as error:
        findings.append(Finding("error", str(error)))
    faults = [*_sources(cells, settings), *_methods(cells, settings), *_orders(cells, settings, config)]
    findings += [Finding("error", fault) for fault in faults]
    return Preflight(settings, cells, list(dict.fromkeys(findings)), diffusions)


def check_device(name: str) -> None:
    """An error where torch has no such device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"there is no device {name!r} here ({reason}); choose cpu, or cuda where there is one"
        ) from error


def _sources(cells: Sequence[Cell], settings: _Settings) -> Iterator[str]:
    """Methods that need source images, on data that have none."""
    for cell in {(cell.method, cell.data, cell.model): cell for cell in cells if needs(cell)}.values():
        try:
            if settings[cell.model, cell.data].data.source(1) is None:
                yield without_source(cell)
        except DataError as error:
            yield str(error)


def _methods(cells: Sequence[Cell], settings: _Settings) -> Iterator[str]:
    """Methods that cannot be composed with the hyper-parameters that they are given, or for this network."""
    wanted = {(cell.model, cell.data, cell.method, cell.guard, cell.settings): cell for cell in cells}
    networks: dict[tuple[str, str], Network] = {}
    for cell in wanted.values():
        key = (cell.model, cell.data)
        if "diffusion" in recipe(cell.method).hyperparameters:
            continue  # `check_diffusion` has seen to these
        try:
            if key not in networks:
                networks[key] = Network(settings[key].model.network)
            given = {need: _stand_in(need, networks[key]) for need in needs(cell)} | dict(cell.settings)
            compose(networks[key], cell.method, cell.guard, given)
        except (ValueError, TypeError) as error:
            yield f"{cell.method} for {cell.model}: {error}"


def _stand_in(need: str, network: Network) -> Any:
    """What will be estimated on source images, as far as its form goes."""
    if need == "region":
        return Region(torch.ones(network.features), classes=network.classes)
    layout = network.norms()
    return Fisher({name: torch.ones(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}, 1)


def _orders(cells: Sequence[Cell], settings: _Settings, config: Config) -> Iterator[str]:
    """Options of a scenario that the data cannot meet: a length beyond the number of images, say."""
    wanted = {
        (cell.model, cell.data, cell.scenario, cell.domains, cell.images, cell.options): cell
        for cell in cells
        if config.options_of(cell.scenario)
    }
    for cell in wanted.values():
        data = settings[cell.model, cell.data].data
        try:
            labels = [data.domain(kind, severity).labels[: cell.images] for kind, severity in cell.domains]
            scenario(cell.scenario).order(
                labels, cell.seed, domains=cell.domains, batch=cell.batch, **dict(cell.options)
            )
        except DataError:
            continue  # the data have said it themselves
        except (ValueError, TypeError) as error:
            yield f"scenario {cell.scenario!r} on {cell.data}: {error}"
