"""Studies as sections of a page, in the report's style, and a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import wildtta
from wildtta.files import put
from wildtta.report.page import _TAG, _duration, _facts, _resource, _style
from wildtta.studies.draw import for_page
from wildtta.studies.study import Study, Summary, read_summary

__all__ = ["find", "section", "write_page"]


def find(folder: Path, studies: Sequence[Study]) -> list[tuple[Study, Summary]]:
    """The studies that were carried out in a folder."""
    found = ((study, read_summary(folder / study.name)) for study in studies)
    return [(study, summary) for study, summary in found if summary is not None]


def section(study: Study, summary: Summary) -> str:
    """A `<section>`: the question, what was found, figures, tables, and how it was made."""
    made = summary["made"]
    tag = f" {_TAG}" if made["stand_in"] else ""
    points = "".join(f"<li>{escape(point)}</li>" for point in study.findings(summary))
    figures = "".join(
        f""
        f"<figure><figcaption>{_caption(picture.caption or picture.describe)}{tag}</figcaption>{for_page(picture)}</figure>"
        for picture in study.pictures(summary).values()
    )
    tables = "".join(grid.html() for grid in study.tables(summary))
    failures = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in made["failures"].items())
    trouble = f'<div class="notice"><p><b>Failed</b></p><ul>{failures}</ul></div>' if failures else ""
    facts = {
        "device": f"{made['device']}, {made['precision']}",
        "models": ", ".join(f"{name} ({digest[:8]})" for name, digest in made["models"].items()),
        "data": f"{made['data']}, severity {made['severity']}",
        "learning rates": f"tuned ({made['rates']}), else {made['lr']}" if made["rates"] else made["lr"],
        "versions": f"wildtta {made['wildtta']}, torch {made['torch']}",
        "time": _duration(made["seconds"]),
    }
    return (
        f'<section id="study-{study.name}"><h2>{escape(study.title)}{tag}</h2>'
        f'<p>{escape(study.asks)}</p><p class="soft small">The paper: {escape(study.paper)}</p>'
        f'{trouble}<ul class="findings">{points}</ul><div class="studies">{figures}</div>{tables}'
        "<details><summary>How it was "
        f"made</summary><pre>{escape(made['command'])}</pre>{_facts(facts)}</details></section>"
    )


def _caption(text: str) -> str:
    """The first sentence stands out."""
    first, dot, rest = text.partition(". ")
    return f"<b>{escape(first)}</b>{dot and ' · '}{escape(rest)}"


def write_page(folder: Path, studies: Sequence[Study]) -> Path:
    """FOLDER/index.html: all studies that are there, in one page that needs nothing but itself."""
    found = find(folder, studies)
    stand_in = any(summary["made"]["stand_in"] for _, summary in found)
    notice = (
        '<div class="notice"><p><b>A stand-in.</b> The embedded glyphs and their small networks only show that the studies '
        "run; they say little about photographs.</p></div>"
        if stand_in
        else ""
    )
    titles = "".join(f'<a href="#study-{study.name}">{escape(study.title)}</a>' for study, _ in found)
    text = Template(_resource("page.html")).substitute(
        version=escape(wildtta.__version__),
        title="Studies of test-time adaptation",
        style=_style(),
        heading="Studies of test-time adaptation",
        subtitle=escape(f"{len(found)} of {len(studies)} studies are there"),
        navigation=titles,
        notices=notice,
        headline="Why region confidence, when it helps, and where it ends.",
        paper="",
        overview="",
        verdicts="",
        sections="\n".join(section(study, summary) for study, summary in found),
        gallery="",
        making="",
        footer=escape(
            f"Made by wildtta {wildtta.__version__}. The numbers lie beside this page, a folder for each study."
        ),
    )
    put(folder / "index.html", text.encode())
    return folder / "index.html"
