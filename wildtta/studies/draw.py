"""Figures in the report's style: for a page (colours follow its theme), as SVG and as PNG, all from one drawing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wildtta.report import figures as report
from wildtta.report.figures import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Ink", "Picture", "as_files", "for_page", "grid_of", "legend", "method_style", "panel"]

_TEXT, _RULE, _PAPER = "#4b5563", "#dfe3e8", "#ffffff"  # on a light page


class Ink:
    """Colours: of the theme where the drawing is for a page, those of a light page otherwise."""

    def __init__(self, *, themed: bool) -> None:
        self.themed = themed
        self.text = report._INK if themed else _TEXT
        self.rule = report._GRID if themed else _RULE

    def line(self, number: int) -> str:
        """One of the report's colours."""
        number %= len(report._COLOURS)
        return f"#0200{number:02x}" if self.themed else report._COLOURS[number][0]


@dataclass(frozen=True)
class Picture:
    """What is to be drawn: `draw` gets an empty figure of this size (inches) and fills it."""

    size: tuple[float, float]
    describe: str
    draw: Callable[[Figure, Ink], None]
    caption: str = ""


def method_style(method: str) -> Style:
    """As in the report: colour, dashes, width."""
    return report._KNOWN.get(method, Style(9))


def for_page(picture: Picture) -> str:
    """An `<svg>` to stand inside a page."""
    return report._for_page(_svg(picture, themed=True), [], picture.describe)


def as_files(picture: Picture) -> dict[str, bytes]:
    """Its files by their ending. The same picture gives the same bytes."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", _svg(picture, themed=False), flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(\d\.\d{2})\d+", r"\1", svg)
    return {"svg": svg.encode(), "png": _png(picture)}


def _figure(picture: Picture, themed: bool) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size, layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr,call-arg]
    if themed:
        figure.patch.set_visible(False)
    else:
        figure.patch.set_facecolor(_PAPER)
    picture.draw(figure, Ink(themed=themed))
    return figure


def _settings() -> Any:
    import matplotlib

    return matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wildtta", "font.size": 9.0})


def _svg(picture: Picture, *, themed: bool) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with report._LOCK, _settings():
        figure = _figure(picture, themed)
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(
            buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return buffer.getvalue()


def _png(picture: Picture) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with report._LOCK, _settings():
        figure = _figure(picture, themed=False)
        figure.set_dpi(130)
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


# -- pieces ------------------------------------------------------------------------------------------------------------


def panel(
    axes: Axes, ink: Ink, *, title: str = "", x_label: str = "", y_label: str = "", grid: str | None = "y"
) -> Axes:
    """An empty plot as the report has it: no box, pale rules, quiet ticks."""
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(ink.rule)
    if grid is not None:
        axes.grid(axis=grid, color=ink.rule, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=ink.text, length=0, pad=4, which="both")
    if title:
        axes.set_title(title, color=ink.text, fontsize=9.5, loc="left", pad=8)
    if x_label:
        axes.set_xlabel(x_label, color=ink.text)
    if y_label:
        axes.set_ylabel(y_label, color=ink.text)
    return axes


def draw_line(
    axes: Axes,
    ink: Ink,
    style: Style,
    x: Sequence[float],
    y: Sequence[float | None],
    *,
    label: str = "",
    spread: Sequence[float | None] | None = None,
    marker: str = "",
) -> None:
    """A curve, with a band of ± `spread` around it where there is one. None: no point there."""
    import math

    values = [math.nan if value is None else value for value in y]
    axes.plot(
        list(x),
        values,
        color=ink.line(style.colour),
        linewidth=style.width,
        linestyle=(0, style.dashes) if style.dashes else "-",
        marker=marker or None,
        markersize=4,
        label=label or None,
    )
    if spread is not None and any(one is not None for one in spread):
        low = [value - (one or 0.0) for value, one in zip(values, spread, strict=True)]
        high = [value + (one or 0.0) for value, one in zip(values, spread, strict=True)]
        axes.fill_between(list(x), low, high, color=ink.line(style.colour), alpha=0.15, linewidth=0)


def legend(
    owner: Axes | Figure,
    ink: Ink,
    *,
    columns: int = 1,
    where: str = "best",
    entries: Iterable[tuple[Any, str]] | None = None,
) -> None:
    """Without a frame, in the text's colour."""
    given: dict[str, Any] = {}
    if entries is not None:
        entries = list(entries)
        given = {"handles": [handle for handle, _ in entries], "labels": [label for _, label in entries]}
    given |= {
        "loc": where,
        "ncols": columns,
        "frameon": False,
        "labelcolor": ink.text,
        "fontsize": 8.5,
        "handlelength": 2.6,
    }
    found = owner.legend(**given)
    found.set_zorder(5)


def line_entry(ink: Ink, style: Style, label: str, marker: str = "") -> tuple[Any, str]:
    """A legend's entry for a style."""
    from matplotlib.lines import Line2D

    dashes: Any = (0, style.dashes) if style.dashes else "-"
    handle = Line2D(
        [], [], color=ink.line(style.colour), linewidth=style.width, linestyle=dashes, marker=marker or None
    )
    return handle, label


def grid_of(figure: Figure, rows: int, columns: int, **others: Any) -> list[list[Axes]]:
    """Plots in rows and columns."""
    return [list(row) for row in figure.subplots(rows, columns, squeeze=False, **others)]


def shaded(
    axes: Axes,
    ink: Ink,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    texts: Sequence[Sequence[str]],
    full: float,
) -> None:
    """A table of differences: blue above zero, orange below it, the stronger the further; each with its number."""
    from matplotlib.patches import Rectangle

    axes.patch.set_visible(False)
    for at, row in enumerate(values):
        for place, value in enumerate(row):
            if value is not None:
                strength = min(abs(value) / full, 1.0)
                colour = ink.line(4 if value > 0 else 7)
                axes.add_patch(
                    Rectangle((place - 0.48, at - 0.46), 0.96, 0.92, color=colour, alpha=0.75 * strength, linewidth=0)
                )
            axes.text(place, at, texts[at][place], ha="center", va="center", fontsize=7.5, color=ink.text)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.tick_params(colors=ink.text, length=0, pad=4)
    for spine in axes.spines.values():
        spine.set_visible(False)
