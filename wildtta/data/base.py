"""What every set of labelled images is to the rest of the library: domains of images that are read by number."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS

__all__ = ["Data", "DataError", "Domain", "Finding"]


class DataError(ValueError):
    """Data that cannot be used. The message says what was found and what to do."""


@dataclass(frozen=True)
class Finding:
    """One line of a preflight: `ok` tells, a `warning` may explain a strange result, an `error` stops a run."""

    level: Literal["ok", "warning", "error"]
    text: str


class Domain(ABC):
    """Labelled images of one kind, read by number.

    Attributes:
        name: of its corruption, "clean", or the data set's where it is a single domain.
        severity: 1 to 5; 0 where there is none.
        labels: for each image (int64, on the CPU) the output of the model that is right; where the data have classes for
            some of the outputs only (`Data.outputs`), the place among these.
        unreadable: why the images that could not be read so far could not be, by number.
    """

    name: str
    severity: int
    labels: Tensor
    unreadable: dict[int, str]

    @abstractmethod
    def read(self, numbers: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The images of these numbers (k × 3 × H × W in [0, 1], on the device), and which of the numbers could be read.

        k is the count of those that could. An image has the same bits in any batch and order. A number may come twice.
        """

    def check(self, *, deep: bool = False) -> list[Finding]:
        """What there is to say about the images before they are used; `deep` reads every one of them."""
        return [Finding("ok", f"{self.name}: {len(self):,} images")]

    def __len__(self) -> int:
        return len(self.labels)


class Data(ABC):
    """Sets of labelled images of the same classes: one domain for each kind and severity.

    Attributes:
        name: of the layout, as it stands in tables.
        stand_in: whether numbers on it are only for trying the library, and have to say so.
        classes: one name a label.
        outputs: the outputs of the model that the data have classes for, when these are not all: the head is then cut down
            to them (`Model.restricted`), and labels count within them.
        kinds: the corruptions it offers, "clean" among them where it has that; or its one domain's name.
        severities: that it offers; (0,) where it has none.
        diffusion: the diffusion model of such images, where one comes with the package.
        on_the_fly: whether the corruptions are made as the images are read: then every domain has the same images, "clean" too,
            in the same order.
    """

    name: str
    stand_in: bool = False
    classes: tuple[str, ...]
    outputs: tuple[int, ...] | None = None
    kinds: tuple[str, ...]
    severities: tuple[int, ...]
    diffusion: str | None = None
    on_the_fly: bool = False

    @property
    def lacking(self) -> tuple[str, ...]:
        """The benchmark's corruptions that are not there, of data that have corruptions at all."""
        return () if self.severities == (0,) else tuple(kind for kind in CORRUPTIONS if kind not in self.kinds)

    @abstractmethod
    def domain(self, kind: str, severity: int) -> Domain:
        """The images of one kind. The severity does not matter where the kind has none ("clean", a single domain)."""

    @abstractmethod
    def source(self, count: int) -> Tensor | None:
        """Up to `count` uncorrupted images in [0, 1], like those the model was trained on; None where there are none."""

    @abstractmethod
    def digest(self) -> str:
        """A hash that differs when the data do."""

    def check(self, kinds: Iterable[str], severities: Iterable[int], *, deep: bool = False) -> list[Finding]:
        """The preflight of these domains: what was found, and what would stop a run. `deep` reads every image."""
        findings = []
        for kind in kinds:
            for severity in severities:
                try:
                    findings += self.domain(kind, severity).check(deep=deep)
                except DataError as error:
                    findings.append(Finding("error", str(error)))
        return list(dict.fromkeys(findings))  # domains that share their images say the same of them

    def _no_such_kind(self, kind: str, where: str, advice: str = "") -> DataError:
        near = difflib.get_close_matches(kind, self.kinds, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {some(self.kinds)}"
        return DataError(f"{where} has no {kind!r}{hint}{advice}")


def some(names: Sequence[object], limit: int = 6) -> str:
    """The first few of some names, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"
