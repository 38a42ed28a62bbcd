"""What `wildtta.bench.speed` measured, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

__all__ = ["bend", "bends", "columns", "groups", "markdown"]


def columns(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table as text: its header and its rows."""
    if result["kind"] == "curve":
        return _curve_columns(result)
    header = ["model", "px", "batch", "method", "runner", "precision", "forwards", "backwards", "other computation"]
    header += ["ms (quartiles)", "÷ plain Tent", "peak MiB"]
    found = []
    for row in result["rows"]:
        cells = [row["model"], str(row["size"]), str(row["batch"]), row["method"], row["runner"], row["precision"]]
        cells += [_number(row.get("forwards")), _number(row.get("backwards")), row.get("other", "")]
        if "error" in row:
            cells += [row["error"], "", ""]
        else:
            cells += [_times(row["ms"]), _ratio(row.get("ratio")), _number(row.get("mib"))]
        found.append(cells)
    return header, found


def groups(result: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """The table in parts that fit a terminal: what all rows of a part have in common stands in its title."""
    header, rows = columns(result)
    common = [place for place, name in enumerate(header) if name in ("model", "px", "batch", "precision")]
    others = [place for place in range(len(header)) if place not in common]
    parts: dict[str, tuple[list[str], list[list[str]]]] = {}
    for row in rows:
        title = ", ".join(f"{header[place]} {row[place]}" for place in common)
        parts.setdefault(title, ([header[place] for place in others], []))[1].append([row[place] for place in others])
    return parts


def _curve_columns(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    streams = result["what"] == "streams"
    header = ["model", result["what"], "method", "runner", "precision", "ms (quartiles)"]
    header += ["images/s", "× plain Tent at batch 1"] if streams else ["÷ plain Tent"]
    header += ["peak MiB"]
    found = []
    for row in result["rows"]:
        cells = [row["model"], f"{row['value']:,}", row["method"], row["runner"], row["precision"]]
        cells += [_times(row["ms"]) if "ms" in row else row["error"]]
        cells += (
            [_number(row.get("images_per_second")), _ratio(row.get("faster"))]
            if streams
            else [_ratio(row.get("ratio"))]
        )
        found.append([*cells, _number(row.get("mib"))])
    return header, found


def markdown(result: dict[str, Any]) -> str:
    """The table in Markdown, and under a table of how cost grows, where each curve bends."""
    header, rows = columns(result)
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    if result["kind"] == "curve":
        lines += ["", *bends(result)]
    return "\n".join(lines)


def bends(result: dict[str, Any]) -> list[str]:
    curves: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for row in result["rows"]:
        if "ms" in row and row["runner"] != "plain loop, one image":
            key = (row["model"], row["method"], row["runner"], row["precision"])
            curves.setdefault(key, []).append((row["value"], row["ms"][1]))
    found = []
    for names, points in curves.items():
        place = bend(points)
        where = "does not bend" if place is None else f"bends at {place:,}"
        found.append(f"- {', '.join(names)}: {where}")
    return found


def _times(quartiles: Sequence[float]) -> str:
    low, middle, high = (_digits(value) for value in quartiles)
    return f"{middle} ({low} to {high})"


def _ratio(quartiles: Sequence[float] | None) -> str:
    return "" if quartiles is None else f"{quartiles[1]:.2f} ({quartiles[0]:.2f} to {quartiles[2]:.2f})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")


def bend(points: Sequence[tuple[float, float]]) -> float | None:
    """Where a curve of cost bends from flat to growing: the first value after which doubling it costs over 1.41 times as much.

    >>> bend([(1, 3.0), (2, 3.0), (4, 3.1), (8, 5.8), (16, 11.0)])
    4
    """
    for (value, cost), (next_value, next_cost) in pairwise(points):
        if math.log(next_cost / cost) > 0.5 * math.log(next_value / value):
            return value
    return None
