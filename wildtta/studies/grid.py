"""A plain table: text and numbers, for the terminal, Markdown and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from wildtta.report.table import MISSING, markdown_text

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Grid", "number", "plus_minus"]


@dataclass(frozen=True)
class Grid:
    """Rows of cells under headings; the first column names the row. `best`: columns whose largest number is set off."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    best: tuple[int, ...] = ()

    def markdown(self) -> str:
        lines = [f"**{markdown_text(self.title)}**", ""]
        lines += [f"| {' | '.join(markdown_text(name) for name in self.columns)} |"]
        lines += [f"| {' | '.join([':--'] + ['--:'] * (len(self.columns) - 1))} |"]
        marked = self._marked()
        for at, row in enumerate(self.rows):
            cells = [
                f"**{markdown_text(cell)}**" if (at, place) in marked else markdown_text(cell)
                for place, cell in enumerate(row)
            ]
            lines.append(f"| {' | '.join(cells)} |")
        if self.note:
            lines += ["", f"*{markdown_text(self.note)}*"]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        marked = self._marked()
        heading = "".join(
            f'<th scope="col"{" class=method" if place == 0 else ""}>{escape(name)}</th>'
            for place, name in enumerate(self.columns)
        )
        body = ""
        for at, row in enumerate(self.rows):
            cells = "".join(
                f"<td><b>{escape(cell)}</b></td>" if (at, place) in marked else f"<td>{escape(cell)}</td>"
                for place, cell in enumerate(row)
                if place
            )
            body += f'<tr><th class="method" scope="row">{escape(row[0])}</th>{cells}</tr>'
        few = " few" if len(self.columns) <= 9 else ""
        note = f'<p class="soft small">{escape(self.note)}</p>' if self.note else ""
        return (
            f'<h3>{escape(self.title)}</h3><div class="scroll{few}" tabindex="0"><table>'
            f"<caption>{escape(self.title)}</caption><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """`rich.print(grid)`: where the terminal is too narrow, columns go below each other."""
        from rich.text import Text

        yield Text(self.title, style="bold")
        widths = [max(len(cell) for cell in column) + 2 for column in zip(self.columns, *self.rows, strict=True)]
        start = 1
        while start < len(self.columns):
            stop, used = start + 1, widths[0] + widths[start]
            while stop < len(self.columns) and used + widths[stop] <= options.max_width:
                used += widths[stop]
                stop += 1
            yield self._rich([0, *range(start, stop)])
            start = stop
        if self.note:
            yield Text(self.note, style="dim italic")

    def _rich(self, places: Sequence[int]) -> rich.table.Table:
        import rich.box
        import rich.table
        from rich.text import Text

        found = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        marked = self._marked()
        for place in places:
            found.add_column(Text(self.columns[place]), justify="right" if place else "left", no_wrap=True)
        for at, row in enumerate(self.rows):
            found.add_row(*(Text(row[place], style="bold" if (at, place) in marked else "") for place in places))
        return found

    def _marked(self) -> set[tuple[int, int]]:
        found = set()
        for place in self.best:
            values = {at: value for at, row in enumerate(self.rows) if (value := _value(row[place])) is not None}
            found |= {(at, place) for at, value in values.items() if len(values) > 1 and value == max(values.values())}
        return found


def _value(text: str) -> float | None:
    try:
        return float(text.partition(" ")[0].replace(",", "").replace("−", "-"))
    except ValueError:
        return None


def number(value: float | None, digits: int = 1) -> str:
    """
    >>> number(1234.56), number(None), number(-0.5, 2)
    ('1,234.6', '—', '−0.50')
    """
    return MISSING if value is None else f"{value:,.{digits}f}".replace("-", "−")


def plus_minus(mean: float | None, std: float | None, digits: int = 1) -> str:
    """
    >>> plus_minus(43.21, 0.18)
    '43.2 ± 0.2'
    """
    return number(mean, digits) + (f" ± {std:.{digits}f}" if std is not None and mean is not None else "")


def columns_of(rows: Sequence[dict[str, object]]) -> list[str]:
    """The names of all entries, in the order in which they are first met."""
    return list(dict.fromkeys(name for row in rows for name in row))
