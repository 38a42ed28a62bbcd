"""Plots along the stream as SVG for a page: text stays text, and colours are CSS variables, so that they follow its theme."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wildtta.report.groups import Comparison, Label

__all__ = ["Line", "Style", "along", "palette_css", "plot", "styles", "swatch"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Style:
    """How a method is drawn everywhere: the number of its colour, its dashes (lengths in line widths), its width."""

    colour: int
    dashes: tuple[float, ...] = ()
    width: float = 1.3


_COLOURS = (  # on a light page, on a dark page
    ("#6b7280", "#9ca3af"),  # grey
    ("#a16207", "#d6a848"),  # ochre
    ("#65a30d", "#a3d65c"),  # lime
    ("#0f766e", "#2fbfae"),  # teal
    ("#2563eb", "#6ea8fe"),  # blue
    ("#6d28d9", "#b39bfa"),  # violet
    ("#dc2626", "#ff6b6b"),  # red
    ("#ea7a0c", "#ffab4a"),  # orange
    ("#c026d3", "#f07bfb"),  # magenta
    ("#334155", "#cbd5e1"),  # slate
    ("#0e7490", "#4cc9e8"),  # cyan
    ("#4d5f1c", "#c3cf86"),  # olive
    ("#9f1239", "#ff8fab"),  # wine
    ("#b45309", "#f2c14e"),  # amber
)
_KNOWN = {
    "source": Style(0, (4.0, 2.0), 1.6),
    "tent": Style(1, (1.0, 1.2)),
    "eta": Style(2, (5.0, 1.5, 1.0, 1.5)),
    "eata": Style(3),
    "sar": Style(4, (3.0, 1.2)),
    "deyo": Style(5),
    "recap": Style(6, (), 2.2),
    "recap+eta": Style(11, (8.0, 1.5), 2.2),
    "recap+sar": Style(7, (5.0, 1.2), 2.2),
    "recap+deyo": Style(8, (), 2.2),
    "memo": Style(9, (1.0, 1.2)),
    "dda": Style(10, (3.0, 1.2)),
}
_DASHES: tuple[tuple[float, ...], ...] = ((6.0, 1.5), (2.0, 1.0), (6.0, 1.5, 1.0, 1.5, 1.0, 1.5), ())


@dataclass(frozen=True)
class Line:
    """One method's curve; `points`: how many of the stream's points each of its own is the mean of."""

    label: str
    style: Style
    x: Numbers
    y: Numbers
    points: int


def styles(labels: Sequence[Label]) -> dict[str, Style]:
    """A style for each row: a method's own; its further variants have its colour and other dashes; others what is left."""
    found: dict[str, Style] = {}
    taken: set[Style] = set()
    colours: dict[str, int] = {}
    spare = [Style(colour, dashes) for dashes in _DASHES for colour in reversed(range(len(_COLOURS)))]
    for label in labels:
        own = [_KNOWN[label.method]] if label.method in _KNOWN else []
        colour = colours.get(label.method)
        variants = [Style(colour, dashes) for dashes in _DASHES] if colour is not None else []
        found[str(label)] = style = next((style for style in [*own, *variants, *spare] if style not in taken), spare[0])
        colours.setdefault(label.method, style.colour)
        taken.add(style)
    return found


def palette_css(*, dark: bool) -> str:
    """The colours as CSS variables."""
    return " ".join(f"--line-{number}: {pair[dark]};" for number, pair in enumerate(_COLOURS))


def swatch(style: Style) -> str:
    """A short piece of a line, to stand beside a method's name."""
    dashes = f' stroke-dasharray="{_dash_list(style)}"' if style.dashes else ""
    return (
        f'<svg class="swatch" viewBox="0 0 26 8" width="26" height="8" aria-hidden="true"><path d="M1 4H25" fill="none" '
        f'stroke="var(--line-{style.colour})" stroke-width="{style.width * 1.15:.2g}"{dashes}/></svg>'
    )


def _dash_list(style: Style) -> str:
    return " ".join(f"{length * style.width:.3g}" for length in style.dashes)


def along(comparison: Comparison, what: str, found: Mapping[str, Style]) -> list[Line]:
    """A line a method: `what` ("top1", "selected") along the stream, averaged over corruptions and seeds.

    Only cells that every method with curves has are averaged, so that the lines can be compared. Streams of unequal
    length are laid over each other from start (0 %) to end (100 %). Where there are few images at a point, the lines are
    running means.
    """
    curves = {
        label: {
            (cell.domains, cell.seed): (np.array(cell.along.seen), np.array(values))
            for cell in cells
            if len(values := getattr(cell.along, what)) > 1 and cell.kind != "clean"
        }
        for label, cells in comparison.by_label.items()
    }
    curves = {label: cells for label, cells in curves.items() if cells}
    if not curves:
        return []
    common = set.intersection(*(set(cells) for cells in curves.values()))
    if not common:
        return []
    grids = {tuple(curves[label][place][0]) for label in curves for place in common}
    x = np.array(next(iter(grids))) if len(grids) == 1 else np.linspace(2.0, 100.0, 50)
    images = sum(next(iter(curves.values()))[place][0][-1] for place in common) / len(x)
    reach = min(_REACH, round(_ENOUGH / images / 2))
    lines = []
    for label, cells in curves.items():
        rows = [y if len(grids) == 1 else np.interp(x, 100 * seen / seen[-1], y) for seen, y in map(cells.get, common)]  # type: ignore[misc]
        lines.append(Line(str(label), found[str(label)], x, _smoothed(np.mean(rows, axis=0), reach), 2 * reach + 1))
    return lines


_ENOUGH = 2000  # images in a point: chance moves an accuracy by a point or so
_REACH = 5  # points to each side at most


def _smoothed(values: Numbers, reach: int) -> Numbers:
    """The mean of each point and up to `reach` points to each side."""
    windows = (values[max(0, place - reach) : place + reach + 1] for place in range(len(values)))
    return np.array([np.mean(window) for window in windows])


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """The same heights, moved as little as needed to be so far apart; for labels beside the ends of lines."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    groups: list[list[int]] = []  # neighbours that touch, each around the mean of its own heights
    for place in order:
        groups.append([place])
        while len(groups) > 1 and _bottom(groups[-1], heights, apart) < _bottom(
            groups[-2], heights, apart
        ) + apart * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    found = list(heights)
    for group in groups:
        for number, place in enumerate(group):
            found[place] = _bottom(group, heights, apart) + apart * number
    return found


def _bottom(group: Sequence[int], heights: Sequence[float], apart: float) -> float:
    return float(np.mean([heights[place] for place in group])) - apart * (len(group) - 1) / 2


_LABELS = 12  # lines that still fit their names beside the plot
_LONGEST = 20  # letters of such a name


_INK, _GRID = "#010101", "#010102"
_LOCK = threading.Lock()  # matplotlib keeps the settings below for the whole process


def plot(lines: Sequence[Line], *, y_label: str, x_label: str, describe: str) -> str:
    """An `<svg>` to stand inside a page, with the methods' names beside the ends of their lines."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    with _LOCK, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wildtta", "font.size": 9.0}):
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        for number, line in enumerate(lines):
            (drawn,) = axes.plot(
                line.x,
                line.y,
                color=f"#0200{line.style.colour:02x}",
                linewidth=line.style.width,
                linestyle=(0, line.style.dashes) if line.style.dashes else "-",
                solid_capstyle="round",
            )
            drawn.set_gid(f"line-{number}")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_GRID)
        axes.grid(axis="y", color=_GRID, linewidth=0.7)
        axes.tick_params(colors=_INK, length=0, pad=4)
        axes.set_ylabel(y_label, color=_INK)
        axes.set_xlabel(x_label, color=_INK)
        axes.margins(x=0.01)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.locator_params(axis="y", nbins=6)
        axes.locator_params(axis="x", nbins=4, integer=True)
        _name_lines(axes, lines)
        buffer = io.StringIO()
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(buffer.getvalue(), [line.label for line in lines], describe)


def _name_lines(axes: Any, lines: Sequence[Line]) -> None:
    if len(lines) > _LABELS:
        return
    bottom, top = axes.get_ylim()
    ends = [float(line.y[np.isfinite(line.y)][-1]) if np.isfinite(line.y).any() else bottom for line in lines]
    for line, height in zip(lines, _spread(ends, (top - bottom) / 16), strict=True):
        name = line.label if len(line.label) <= _LONGEST else f"{line.label[: _LONGEST - 1]}…"
        place = {"xy": (1.015, height), "xycoords": axes.get_yaxis_transform(), "annotation_clip": False}
        axes.annotate(name, **place, va="center", color=f"#0200{line.style.colour:02x}", fontsize=8.5)
    axes.set_ylim(bottom, top)


def _for_page(svg: str, labels: Sequence[str], describe: str) -> str:
    """A file of matplotlib as a piece of HTML: no prologue, no name spaces, colours by variable, titles on the lines."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL
    )  # it would hold for the whole page
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="([^"]*)"', svg)
    opening = (
        f'<svg class="plot" viewBox="{view[1] if view else "0 0 403 223"}" role="img" aria-label="{escape(describe)}">'
    )
    svg = opening + svg[svg.index(">") + 1 :]
    for number, label in enumerate(labels):
        svg = svg.replace(f'<g id="line-{number}">', f"<g><title>{escape(label)}</title>")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--rule)")
    svg = re.sub(r"#0200([0-9a-f]{2})", lambda found: f"var(--line-{int(found[1], 16)})", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", svg)
    svg = re.sub(r"(\d\.\d{2})\d+", r"\1", svg)
    return re.sub(r">\s+<", "><", svg).strip()
