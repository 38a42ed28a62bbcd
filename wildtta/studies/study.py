"""A study: what it asks, how it is run, and what its summary is shown as."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wildtta.bench.store import FORMAT, RunError, write_json
from wildtta.files import put
from wildtta.studies.base import Bench
from wildtta.studies.draw import Picture, as_files
from wildtta.studies.grid import Grid, columns_of

__all__ = ["Study", "Summary", "carry_out", "read_summary"]

Summary = dict[str, Any]
"""All numbers that a study's figures, tables and sentences come from: what SUMMARY.json holds."""


@dataclass(frozen=True)
class Study:
    """One of the paper's analyses, made repeatable.

    Attributes:
        name: by which `wildtta study` runs it.
        title: a heading. asks: the question, in a sentence or two. paper: what the paper found, and where.
        run: asks the bench for what is needed and puts it together. It returns at least "rows": dicts, which make the CSV.
        pictures, tables, findings: from a summary alone, so that a page can be made again at any time.
    """

    name: str
    title: str
    asks: str
    paper: str
    run: Callable[[Bench], Summary]
    pictures: Callable[[Summary], dict[str, Picture]]
    tables: Callable[[Summary], list[Grid]]
    findings: Callable[[Summary], list[str]]


def carry_out(study: Study, bench: Bench) -> Summary:
    """Run what is missing, and write the study's files: FOLDER/NAME/summary.json, NAME.csv, and figures as SVG and PNG.

    Raises:
        TimeOverError: where the bench's time is over. What is done is kept.
        RunError: where all of it failed.
    """
    begun = time.perf_counter()
    bench.failures = {}
    summary = study.run(bench)
    if not summary["rows"]:
        reason = next(iter(bench.failures.values()), "nothing was asked for")
        raise RunError(f"{study.name!r} has no result at all: {reason}")
    folder = bench.folder / study.name
    folder.mkdir(parents=True, exist_ok=True)
    before = read_summary(folder)
    summary["study"] = study.name
    summary["made"] = bench.made(study.name)
    # what was done already costs no time: the longest call is the one that ran
    spent = time.perf_counter() - begun
    summary["made"]["seconds"] = round(max(spent, (before or {}).get("made", {}).get("seconds", 0.0)), 1)
    write_json(folder / "summary.json", {"format": FORMAT, **summary})
    found = read_summary(folder)
    assert found is not None
    write_files(study, found, folder)
    return found


def write_files(study: Study, summary: Summary, folder: Path) -> None:
    """The CSV and the figures of a summary."""
    put(folder / f"{study.name}.csv", csv_text(summary["rows"]).encode())
    for name, picture in study.pictures(summary).items():
        for ending, content in as_files(picture).items():
            put(folder / f"{name}.{ending}", content)


def read_summary(folder: Path) -> Summary | None:
    """The numbers of a study that was carried out; None where it was not."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}); remove it, and run the study again") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("rows"), list):
        raise RunError(f"{path} is not the summary of a study; remove it, and run the study again")
    return found


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row; empty where a row has no such number."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        )
    return buffer.getvalue()
