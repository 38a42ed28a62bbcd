"""The paper's ablations and analyses, each one command: `wildtta study NAME`.

    bench = Bench(Choice(models=["glyph-resnet"]), "runs/studies")
    run_studies(["bounds", "cost"], bench)          # files in runs/studies/bounds, …, and a page: runs/studies/index.html

A study asks the bench for streams and parts, each kept in a file of its own, so the same call goes on where it stopped. From its
summary (one JSON file) come its figures, its CSV, its tables, and its section of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wildtta.studies import bounds, components, consistency, cost, features, results, sensitivity, stability, tune
from wildtta.studies.base import Bench, Choice, Teller, TimeOverError, Trial, trial
from wildtta.studies.page import find, section, write_page
from wildtta.studies.study import Study, Summary, carry_out, read_summary

__all__ = [
    "STUDIES",
    "Bench",
    "Choice",
    "Study",
    "Summary",
    "Teller",
    "TimeOverError",
    "Trial",
    "find",
    "read_summary",
    "run_studies",
    "section",
    "trial",
    "write_page",
]

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (tune, results, consistency, sensitivity, components, features, bounds, cost, stability)
}
"""By name, in the order of the page."""


def run_studies(names: Sequence[str], bench: Bench) -> Path:
    """Carry out some studies, one after another, and write the page with all that are in the folder."""
    with bench.at_work():
        try:
            for name in names:
                carry_out(STUDIES[name], bench)
        finally:
            page = write_page(bench.folder, list(STUDIES.values()))
    return page
