"""The files of a report: a page, Markdown, LaTeX and CSV. Each is replaced only by a complete one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from wildtta.files import put
from wildtta.report import published
from wildtta.report.headline import against_paper, headline, verdicts
from wildtta.report.page import completeness, page, sentence, unreadable
from wildtta.report.run import MEASURES, Run, load_run
from wildtta.report.table import Table, latex_text, markdown_text
from wildtta.report.tables import STAND_IN, tables

__all__ = ["csv_text", "latex", "markdown", "write_report"]


def write_report(path: str | Path) -> Path:
    """Write RUN/report/index.html, results.md, results.tex and results.csv; returns the page's path.

    Raises:
        RunError: where the folder is not a run. A damaged cell is no error: the page names it.
    """
    run = load_run(path)
    found = tables(run)
    folder = run.path / "report"
    folder.mkdir(exist_ok=True)
    texts = {
        "results.csv": csv_text(run),
        "results.md": markdown(run, found),
        "results.tex": latex(run, found),
        "index.html": page(run, found),
    }
    for name, text in texts.items():
        put(folder / name, text.encode())
    return folder / "index.html"


def markdown(run: Run, found: Sequence[Table]) -> str:
    """The page's words and tables."""
    parts = ["# Test-time adaptation in the wild", markdown_text(headline(run))]
    if paper := against_paper(found):
        parts.append(markdown_text(paper))
    parts += [f"> **{markdown_text(STAND_IN)}**"] if run.stand_in else []
    for verdict in verdicts(run):
        lines = [f"- {markdown_text(standing.sentence())}" for standing in verdict.standings]
        parts.append(f"{markdown_text(verdict.setting)}\n\n" + "\n".join(lines))
    lost = unreadable(run)
    remarks = [sentence(completeness(run)), *([lost] if lost else []), *(f"{problem}." for problem in run.problems)]
    parts.append("\n".join(f"- {markdown_text(remark)}" for remark in remarks))
    if run.missing:
        names = "\n".join(f"- {markdown_text(name)}" for name in run.missing)
        parts.append(f"<details><summary>What is missing</summary>\n\n{names}\n\n</details>")
    section = ""
    for table in found:
        if table.section != section:
            section = table.section
            parts.append(f"## {markdown_text(section)}")
        parts.append(table.markdown().strip())
    parts.append("Best bold, second underlined; mean ± standard deviation over seeds (n − 1).")
    if run.command:
        parts.append(f"## Command\n\n```\n{run.command.replace('```', '')}\n```")
    return "\n\n".join(parts) + "\n"


_PREAMBLE = r"""% The tables alone need \usepackage{booktabs,graphicx}.
\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\begin{document}
"""


def latex(run: Run, found: Sequence[Table]) -> str:
    """A document of its own; each table can also be copied out of it."""
    notice = rf"\noindent\textbf{{{latex_text(STAND_IN)}}}" + "\n\n" if run.stand_in else ""
    opening = rf"\noindent {latex_text(headline(run))} {latex_text(sentence(completeness(run)))}" + "\n\n"
    body = "\n\\clearpage\n".join(table.latex() for table in found)
    return f"{_PREAMBLE}{notice}{opening}{body}\n\\end{{document}}\n"


_PLACE = ("model", "data", "scenario", "reset", "kind", "severity", "method", "guard", "seed", "batch")
_NUMBERS = ("images", "unreadable", "top1", *MEASURES, "seconds", "diffusion_seconds", "peak_memory_mib")


def csv_text(run: Run) -> str:
    """Long form: one row a cell, with all of its numbers in full precision. Empty where there is none."""
    conditions = list(dict.fromkeys(name for cell in run.cells for name, _ in cell.conditions))
    last = ("top1_by_domain", "paper_top1", "stand_in")
    # "images" is a condition (at most so many) and a result (so many were seen)
    headings = [f"{name}_at_most" if name == "images" else name for name in conditions]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*_PLACE, "settings", *headings, *_NUMBERS, *last])
    for cell in run.cells:
        place = [getattr(cell, name) for name in _PLACE]
        own = dict(cell.conditions)
        numbers = {**cell.measures, "images": cell.images, "unreadable": cell.unreadable, "top1": cell.top1}
        numbers |= {"seconds": cell.seconds, "diffusion_seconds": cell.adapting, "peak_memory_mib": cell.memory}
        writer.writerow(
            [
                *place,
                json.dumps(dict(cell.settings), sort_keys=True),
                *(own.get(name) for name in conditions),
                *(numbers[name] for name in _NUMBERS),
                json.dumps(dict(cell.by_domain)),
                published.figure(cell),
                cell.stand_in,
            ]
        )
    return buffer.getvalue()
