"""A table of means over seeds that renders itself for the terminal, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["MISSING", "Column", "Row", "Table", "Value", "latex_text", "markdown_text", "ranked", "signed"]

MISSING = "—"
_PAGE = 100  # letters across a page of LaTeX; a wider table is made to fit


@dataclass(frozen=True)
class Column:
    """A column's heading (`name`, under `group`), how many decimals its numbers have, and the heading in full."""

    name: str
    group: str = ""
    digits: int = 1
    full: str = ""


@dataclass(frozen=True)
class Value:
    """One number of a table.

    Attributes:
        mean: over seeds; None where a cell is missing.
        std: over seeds, with n − 1; None for one seed.
        seeds: how many the mean is of.
        partial: whether the plan has more seeds than that.
        paper: the paper's own figure where this is one of the paper's cells.
        gain: difference to the source model in the same column.
    """

    mean: float | None = None
    std: float | None = None
    seeds: int = 0
    partial: bool = False
    paper: float | None = None
    gain: float | None = None
    best: bool = False
    second: bool = False

    def text(self, digits: int) -> str:
        """The mean; with a dagger where seeds are still missing."""
        return MISSING if self.mean is None else f"{self.mean:,.{digits}f}{'†' if self.partial else ''}"


@dataclass(frozen=True)
class Row:
    """A method and its numbers; `method` is the name it is registered under, `label` what is shown."""

    label: str
    method: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """Methods × columns.

    Attributes:
        kind: "overview" (averages of all settings), "accuracy", or "measures" (the smaller table of everything else).
        section: the heading it belongs under: the scenario, and what else tells this comparison from others.
        notes: sentences that belong under the table wherever it is shown.
    """

    title: str
    kind: str
    section: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    stand_in: bool = field(default=False)

    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns under one heading: (heading, how many)."""
        return [(name, len(list(columns))) for name, columns in groupby(self.columns, key=lambda column: column.group)]

    # -- terminal ------------------------------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """`rich.print(table)`: where the terminal is too narrow, the groups of columns go below each other."""
        from rich.text import Text

        yield Text(self.title, style="bold")
        for part in self._parts(options.max_width):
            yield part.rich()
            yield Text()
        for note in self.notes:
            yield Text(note, style="dim italic")
        if self.notes:
            yield Text()

    def _parts(self, width: int) -> Iterator[Table]:
        """The table cut into as few as fit the width: between groups of columns, or columns that stand alone."""
        label = max((len(row.label) for row in self.rows), default=0)
        widths = [2 + self._width(place) for place in range(len(self.columns))]
        start, used, place = 0, 0, 0
        for name, count in self.groups():
            for size in [count] if name else [1] * count:
                needed = sum(widths[place : place + size]) + max(0, len(name) + 2 - widths[place])
                if place > start and label + used + needed > width:
                    yield self._slice(start, place)
                    start, used = place, 0
                used += needed
                place += size
        yield self._slice(start, len(self.columns))

    def _width(self, place: int, between: str = "\n") -> int:
        """Letters of the widest line of a column, with this between the parts of a cell."""
        column = self.columns[place]
        cells = [between.join(self._lines(row.values[place], column.digits)) for row in self.rows]
        return max(len(line) for cell in [column.name, *cells] for line in cell.split("\n"))

    def _slice(self, start: int, stop: int) -> Table:
        rows = tuple(replace(row, values=row.values[start:stop]) for row in self.rows)
        return replace(self, columns=self.columns[start:stop], rows=rows)

    @staticmethod
    def _lines(value: Value, digits: int) -> list[str]:
        """A cell in a terminal: mean and deviation, and below them the paper's figure."""
        first = value.text(digits) + (f"±{value.std:.{digits}f}" if value.std is not None else "")
        return [first] if value.paper is None else [first, f"({value.paper:.{digits}f})"]

    def rich(self) -> rich.table.Table:
        """The bare grid for a terminal; `rich.print(table)` adds title and notes."""
        import rich.box
        import rich.table
        from rich.text import Text

        grid = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        grid.add_column("", no_wrap=True)
        ends, grouped = self._group_ends(), any(name for name, _ in self.groups())
        for place, column in enumerate(self.columns):
            first = place == 0 or place - 1 in ends
            heading = Text(f"{column.group if first else ''}\n{column.name}" if grouped else column.name)
            grid.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            cells = [
                self._rich_cell(value, column.digits) for value, column in zip(row.values, self.columns, strict=True)
            ]
            grid.add_row(Text(row.label), *cells)
        return grid

    def _rich_cell(self, value: Value, digits: int) -> Text:
        from rich.text import Text

        first, *others = self._lines(value, digits)
        mean = value.text(digits)
        style = "bold" if value.best else "underline" if value.second else "dim" if value.mean is None else ""
        text = Text.assemble((mean, style), (first[len(mean) :], "dim"))
        for line in others:
            text.append(f"\n{line}", style="dim")
        return text

    def _group_ends(self) -> set[int]:
        ends, place = set(), -1
        for _, count in self.groups():
            place += count
            ends.add(place)
        return ends

    # -- Markdown ------------------------------------------------------------------------------------------------------

    def markdown(self) -> str:
        """GitHub's tables; the second best is underlined with <u>."""
        shared = len({column.name for column in self.columns}) < len(self.columns)  # Markdown has no row for the groups
        names = [f"{column.group}: {column.name}" if shared else column.name for column in self.columns]
        heading = ["", *map(markdown_text, names)]
        lines = [f"**{markdown_text(self.title)}**", "", _pipes(heading), _pipes([":--"] + ["--:"] * len(self.columns))]
        for row in self.rows:
            cells = [
                _markdown_cell(value, column.digits) for value, column in zip(row.values, self.columns, strict=True)
            ]
            lines.append(_pipes([markdown_text(row.label), *cells]))
        for note in self.notes:
            lines += ["", f"*{markdown_text(note)}*"]
        return "\n".join(lines) + "\n"

    # -- LaTeX ---------------------------------------------------------------------------------------------------------

    def latex(self) -> str:
        r"""A booktabs table; it needs \usepackage{booktabs,graphicx} and nothing else."""
        sizes = self.groups()
        lines = [r"\begin{table}[htbp]", r"\centering", rf"\caption{{{latex_text(self.title)}}}"]
        wide = sum(self._width(place, "") + 2 for place in range(len(self.columns))) > _PAGE
        lines += [r"\resizebox{\linewidth}{!}{%"] if wide else [r"\small"]
        lines += [rf"\begin{{tabular}}{{l{''.join('c' * count for _, count in sizes)}}}", r"\toprule"]
        if any(name for name, _ in sizes):
            spans, rules, place = [], [], 2
            for name, count in sizes:
                spans.append(rf"\multicolumn{{{count}}}{{c}}{{{latex_text(name)}}}")
                rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}" if name else "")
                place += count
            lines += [" & ".join(["", *spans]) + r" \\", "".join(rules)]
        lines += [" & ".join(["", *(latex_text(column.name) for column in self.columns)]) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [_latex_cell(value, column.digits) for value, column in zip(row.values, self.columns, strict=True)]
            lines.append(" & ".join([latex_text(row.label), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}" + ("%\n}" if wide else "")]
        lines += [rf"\par\smallskip{{\footnotesize {latex_text(note)}\par}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"


def ranked(values: Sequence[Value], digits: int) -> list[Value]:
    """The same values with the best and the second marked, as the paper does it.

    What is printed alike ranks alike. Where several are best, none is second. A lone number is not a best one.
    """
    shown = [None if value.mean is None else float(f"{value.mean:.{digits}f}") for value in values]
    order = sorted((number for number in shown if number is not None), reverse=True)
    if len(order) < 2:
        return list(values)
    best, next_one = order[0], order[1]
    return [
        replace(value, best=number == best, second=number == next_one != best)
        for value, number in zip(values, shown, strict=True)
    ]


def signed(difference: float) -> str:
    """A difference of percentages with its sign, e.g. +3.1 or −0.4."""
    text = f"{difference:+.1f}"
    return "±0.0" if float(text) == 0 else text.replace("-", "−")


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(value: Value, digits: int) -> str:
    text = value.text(digits)
    text = f"**{text}**" if value.best else f"<u>{text}</u>" if value.second else text
    text += f" ± {value.std:.{digits}f}" if value.std is not None else ""
    return text + (f" ({value.paper:.{digits}f})" if value.paper is not None else "")


def _latex_cell(value: Value, digits: int) -> str:
    if value.mean is None:
        return "---"
    text = latex_text(value.text(digits))
    text = rf"\textbf{{{text}}}" if value.best else rf"\underline{{{text}}}" if value.second else text
    text += rf"$_{{\pm {value.std:.{digits}f}}}$" if value.std is not None else ""
    return text + (rf" {{\scriptsize ({value.paper:.{digits}f})}}" if value.paper is not None else "")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is. Underscores inside of words need no escape."""
    text = re.sub(r"([\\`*<>|\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text).replace("&", "&amp;")


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "…": r"\dots{}",
    "∞": r"$\infty$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "→": r"$\to$",
    "·": r"$\cdot$",
    "’": "'",
}


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is; a letter that its usual fonts lack becomes a question mark."""
    return "".join(_LATEX.get(letter) or _latin(letter) for letter in " ".join(text.split()))


def _latin(letter: str) -> str:
    return letter if letter.isprintable() and (letter.isascii() or (letter.isalpha() and ord(letter) < 0x180)) else "?"
