"""Figures of matplotlib as small SVG files that can be read on a light and on a dark page: they bring their own ground."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

GROUND, INK, FAINT = "#010203", "#010204", "#010205"
"""Stand-ins for the colours that depend on the page."""

_COLOURS = {GROUND: ("#ffffff", "#1d2026"), INK: ("#1f2328", "#e6e8eb"), FAINT: ("#c9ced6", "#4a5059")}
LINES = {  # on light, on dark
    "grey": ("#6b7280", "#9ca3af"),
    "ochre": ("#a16207", "#d6a848"),
    "teal": ("#0f766e", "#2fbfae"),
    "blue": ("#2563eb", "#6ea8fe"),
    "violet": ("#6d28d9", "#b39bfa"),
    "red": ("#dc2626", "#ff6b6b"),
}
COLOUR = {name: f"#0200{place:02x}" for place, name in enumerate(LINES)}
"""Stand-ins for the colours of lines, by name."""


def new_figure(width: float, height: float) -> Figure:
    """Inches; matplotlib's settings are made here, so that a figure is the same on every machine."""
    matplotlib.rcParams.update(matplotlib.rcParamsDefault)
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "wildtta",
            "path.simplify_threshold": 0.2,
            "font.size": 9.0,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": FAINT,
            "axes.titlesize": 9.5,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.major.size": 0,
            "ytick.major.size": 0,
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=GROUND)
    FigureCanvasSVG(figure)
    return figure


def save(figure: Figure, path: Path, describe: str) -> None:
    """Write the figure, its description for those who cannot see it, and its two sets of colours."""
    for axes in figure.axes:
        axes.set_facecolor("none")
        for spine in axes.spines.values():
            spine.set_edgecolor(FAINT)
    buffer = io.StringIO()
    figure.canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})  # type: ignore[attr-defined]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*|<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL
    )
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    names = {**_COLOURS, **{COLOUR[name]: pair for name, pair in LINES.items()}}
    rules: tuple[list[str], list[str]] = ([], [])
    for place, (stand_in, pair) in enumerate(names.items()):
        text = text.replace(stand_in, f"var(--c{place})")
        for sheet, colour in zip(rules, pair, strict=True):
            sheet.append(f"--c{place}:{colour}")
    style = f"svg{{{';'.join(rules[0])}}}@media(prefers-color-scheme:dark){{svg{{{';'.join(rules[1])}}}}}text{{fill:var(--c1)}}"
    opening, rest = text.split(">", 1)
    opening += f' role="img" aria-label="{describe}"'
    text = f"{opening}><title>{describe}</title><style>{style}*{{stroke-linejoin:round}}</style>{rest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r">\s+<", "><", text).strip() + "\n")
