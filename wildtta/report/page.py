"""One HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from wildtta import __version__
from wildtta.report import figures, names
from wildtta.report.groups import Comparison, comparisons, rows
from wildtta.report.headline import Standing, Verdict, against_paper, headline, names_in_words, verdicts
from wildtta.report.run import Run
from wildtta.report.table import MISSING, Column, Row, Table, Value, signed
from wildtta.report.tables import STAND_IN

__all__ = ["completeness", "page", "sentence", "unreadable"]

_HOW_TO_READ = (
    "Best bold, second underlined; ± is the deviation over seeds; green is above the source model, red below it."
)
_TAG = '<span class="tag">stand-in data</span>'


def page(run: Run, tables: Sequence[Table]) -> str:
    """The page, from a run and its tables."""
    found = comparisons(run)
    drawn = figures.styles(rows(found)) if found else {}
    stories = verdicts(run)
    sections = list(dict.fromkeys(comparison.setting for comparison in found))
    overview = "".join(_html_table(table, drawn) for table in tables if table.kind == "overview")
    paper = against_paper(tables)
    heading = "Test-time adaptation in the wild"
    template = Template(_resource("page.html"))
    return template.substitute(
        version=escape(__version__),
        title=escape(f"{heading} — {run.path.resolve().name}"),
        style=_style(),
        heading=escape(heading),
        subtitle=escape(_subtitle(run, found)),
        navigation=_navigation(sections, run),
        notices=_notices(run),
        headline=f"{escape(headline(run))}{' ' + _TAG if run.stand_in else ''}",
        paper=f"<p>{escape(paper)}</p>" if paper else "",
        overview=f'{overview}<p class="soft small">{_HOW_TO_READ}</p>' if overview else "",
        verdicts=_cards(stories),
        sections="\n".join([*(_section(name, tables, found, drawn) for name in sections), *_studies(run).values()]),
        gallery=_gallery(run),
        making=_making(run),
        footer=_footer(run),
    )


def completeness(run: Run) -> str:
    """How much of the plan is there."""
    count = f"{len(run.cells):,}"
    if run.planned is None:
        return f"{count} cells; the plan does not say how many there should be"
    planned, there = len(run.planned), len(run.planned) - len(run.missing)
    others = len(run.cells) - there
    further = f", and {_plural(others, 'cell')} of other plans" if others > 0 else ""
    if not run.missing:
        return f"all {planned:,} cells of the plan are there{further}"
    return f"{there:,} of the plan's {planned:,} cells are there{further}; a missing one shows as {MISSING}"


def unreadable(run: Run) -> str | None:
    """How many images could not be read, counted once however many methods met them."""
    worst: dict[tuple[str, str, int], int] = {}
    for cell in run.cells:
        place = (cell.data, cell.kind, cell.severity)
        worst[place] = max(worst.get(place, 0), cell.unreadable)
    found = {place: count for place, count in worst.items() if count}
    if not found:
        return None
    where = [f"{data}, {names.title(kind)}{f' {severity}' if severity else ''}: {count:,}"
             for (data, kind, severity), count in sorted(found.items())]  # fmt: skip
    return f"Images that could not be read and were skipped: {'; '.join(where)}."


def _resource(name: str) -> str:
    return files("wildtta.report").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    light, dark = figures.palette_css(dark=False), figures.palette_css(dark=True)
    return f"{_resource('page.css')}:root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _anchor(name: str) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _subtitle(run: Run, found: Sequence[Comparison]) -> str:
    if not found:
        return completeness(run)
    models = list(dict.fromkeys(comparison.model_name for comparison in found))
    counts = [
        names_in_words(models),
        _plural(len({label.method for label in rows(found)}), "method"),
        _plural(len({comparison.scenario for comparison in found}), "scenario"),
        _plural(len({kind for comparison in found for kind in comparison.kinds}), "kind") + " of images",
        _plural(found[0].seeds, "seed"),
        completeness(run),
    ]
    return " · ".join(counts)


def sentence(text: str) -> str:
    """With a capital and a full stop, whatever it has already."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _navigation(sections: Sequence[str], run: Run) -> str:
    links = [(f"#{_anchor(name)}", name.partition(" — ")[0].partition(":")[0]) for name in sections]
    if sections and len({text for _, text in links}) < len(links):
        links = [(f"#{_anchor(name)}", name) for name in sections]
    links += [(f"#study-{name}", name.capitalize()) for name in _studies(run)]
    links += [("#gallery", "Gallery")] if run.gallery else []
    links += [("#making", "How it was made")]
    return "".join(f'<a href="{escape(target)}">{escape(text)}</a>' for target, text in links)


def _notices(run: Run) -> str:
    notices = []
    if run.stand_in:
        notices.append(f"<p><b>A stand-in.</b> {escape(sentence(STAND_IN.partition(': ')[2]))}</p>")
    if run.missing:
        items = "".join(f"<li>{escape(name)}</li>" for name in run.missing)
        notices.append(
            f"<p><b>Not finished.</b> {escape(sentence(completeness(run)))}</p>"
            f"<details><summary>What is missing</summary><ul>{items}</ul></details>"
        )
    lost = unreadable(run)
    if lost:
        notices.append(f"<p>{escape(lost)}</p>")
    if run.problems:
        items = "".join(f"<li>{escape(problem)}.</li>" for problem in run.problems[:20])
        more = f"<li>and {len(run.problems) - 20} more</li>" if len(run.problems) > 20 else ""
        notices.append(f"<p><b>Found while reading the run</b></p><ul>{items}{more}</ul>")
    return "\n".join(f'<div class="notice">{notice}</div>' for notice in notices)


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _cards(stories: Sequence[Verdict]) -> str:
    cards = []
    for verdict in stories:
        tag = f" {_TAG}" if verdict.stand_in else ""
        body = "".join(f"<p>{_standing(standing)}</p>" for standing in verdict.standings)
        cards.append(f'<div class="card"><h3>{escape(verdict.setting)}{tag}</h3>{body}</div>')
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _standing(standing: Standing) -> str:
    """The sentence of a standing, with the model in front and its differences coloured."""
    name = f"{standing.model}{f', severity {standing.severity}' if standing.severity else ''}"
    text = escape(standing.sentence(name_model=False))
    text = re.sub(r"([+]\d+\.\d)( points)", r'<b class="gain up">\1</b>\2', text)
    text = re.sub(r"\((−\d+\.\d)\)", r'<span class="gain down">(\1)</span>', text)
    return f'<span class="soft">{escape(name)}</span><br>{text}'


# -- tables and plots --------------------------------------------------------------------------------------------------


def _section(
    name: str, tables: Sequence[Table], found: Sequence[Comparison], drawn: Mapping[str, figures.Style]
) -> str:
    own = [table for table in tables if table.section == name]
    together = [comparison for comparison in found if comparison.setting == name]
    accuracy = [_html_table(table, drawn) for table in own if table.kind == "accuracy"]
    measures = [_html_table(table, drawn) for table in own if table.kind == "measures"]
    heading, _, rest = name.partition(" — ")
    images = sorted({cell.images + cell.unreadable for comparison in together for cell in comparison.cells})
    spread = f"{images[0]:,}" if images[0] == images[-1] else f"{images[0]:,} to {images[-1]:,}"
    tag = f" {_TAG}" if any(table.stand_in for table in own) else ""
    return (
        f'<section id="{_anchor(name)}"><h2>{escape(heading)}{tag}</h2>'
        f'<p class="soft small">{escape(rest)}, {spread} images a stream. {_HOW_TO_READ}</p>'
        f"{''.join(accuracy)}{_plots(together, drawn)}"
        f"<details><summary>Other measures: top-5, calibration, selected images, passes, time</summary>"
        f"{''.join(measures)}</details></section>"
    )


_FEW = 8  # columns, that need not fill the page


def _html_table(table: Table, drawn: Mapping[str, figures.Style]) -> str:
    heading = table.title.removeprefix(table.section).lstrip(":. ") or table.title
    groups = table.groups()
    starts = {sum(count for _, count in groups[:place]) for place in range(len(groups))}
    first_row = ""
    if any(name for name, _ in groups):
        cells = "".join(
            f'<th class="group first" colspan="{count}" scope="colgroup">{_breakable(name)}</th>'
            for name, count in groups
        )
        first_row = f'<tr><th class="method"></th>{cells}</tr>'
    columns = "".join(_html_heading(column, place in starts) for place, column in enumerate(table.columns))
    rows = "".join(_html_row(row, table.columns, starts, drawn) for row in table.rows)
    notes = "".join(f'<p class="soft small">{escape(note)}</p>' for note in table.notes if note != STAND_IN)
    tag = f" {_TAG}" if table.stand_in else ""
    few = "few" if len(table.columns) <= _FEW else ""
    return (
        f'<h3>{escape(heading)}{tag}</h3><div{_class("scroll", few)} tabindex="0"><table><caption>{escape(table.title)}</caption>'
        f'<thead>{first_row}<tr><th class="method" scope="col">Method</th>{columns}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{notes}"
    )


def _html_heading(column: Column, first: bool) -> str:
    hint = f' title="{escape(column.full)}"' if column.full else ""
    return f'<th scope="col"{_class("first" if first else "")}{hint}>{_breakable(column.name)}</th>'


def _breakable(name: str) -> str:
    return escape(name).replace("_", "_<wbr>")


def _html_row(row: Row, columns: Sequence[Column], starts: set[int], drawn: Mapping[str, figures.Style]) -> str:
    cells = "".join(
        _html_cell(value, column.digits, place in starts)
        for place, (value, column) in enumerate(zip(row.values, columns, strict=True))
    )
    mark = figures.swatch(drawn[row.label]) if row.label in drawn else ""
    family = _class("family" if row.method.startswith("recap") else "")
    label = escape(row.label)
    return f'<tr{family}><th class="method" scope="row" title="{label}">{mark}{label}</th>{cells}</tr>'


def _html_cell(value: Value, digits: int, first: bool) -> str:
    kinds = ["first"] if first else []
    if value.mean is None:
        return f"<td{_class('missing', *kinds)}>{MISSING}</td>"
    if value.gain is not None and abs(value.gain) >= 0.05:
        strength = 1 + sum(abs(value.gain) >= bound for bound in (3, 10, 20))
        kinds.append(f"{'g' if value.gain > 0 else 'l'}{strength}")
    hints = [f"{signed(value.gain)} to source"] if value.gain is not None else []
    if value.partial:
        hints.append(f"{value.seeds} of the plan's seeds so far")
    hint = f' title="{", ".join(hints)}"' if hints else ""
    text = value.text(digits)
    text = f"<b>{text}</b>" if value.best else f"<u>{text}</u>" if value.second else f'<span class="mean">{text}</span>'
    text += f'<span class="std">±{value.std:.{digits}f}</span>' if value.std is not None else ""
    text += f'<span class="paper">({value.paper:.{digits}f})</span>' if value.paper is not None else ""
    return f"<td{_class(*kinds)}{hint}>{text}</td>"


def _class(*kinds: str) -> str:
    present = [kind for kind in kinds if kind]
    return f' class="{" ".join(present)}"' if present else ""


def _plots(together: Sequence[Comparison], drawn: Mapping[str, figures.Style]) -> str:
    """For each model, at the highest severity, accuracy and selected share along the stream."""
    plots, shown = [], set()
    for model in dict.fromkeys(comparison.model_name for comparison in together):
        own = [comparison for comparison in together if comparison.model_name == model]
        comparison = max(own, key=lambda found: found.severity)
        for what, heading in (("top1", "Accuracy along the stream"), ("selected", "Share of images that taught")):
            lines = figures.along(comparison, what, drawn)
            if what == "selected":
                lines = [line for line in lines if line.y.any()]
            else:
                shown |= {line.label for line in lines}
            if lines:
                unequal = len({cell.images for cell in comparison.cells}) > 1
                svg = figures.plot(
                    lines,
                    y_label="accuracy, %" if what == "top1" else "selected, %",
                    x_label="share of the stream seen, %" if unequal else "images seen",
                    describe=f"{heading}, {model}, {comparison.setting}",
                )
                tag = f" {_TAG}" if comparison.stand_in else ""
                points = lines[0].points
                smooth = f", running mean of {points} points" if points > 1 else ""
                caption = f"<b>{heading}</b> · {escape(model + comparison.at_severity)}{smooth}{tag}"
                plots.append(f"<figure><figcaption>{caption}</figcaption>{svg}</figure>")
    if not plots:
        return ""
    legend = "".join(
        f"<li>{figures.swatch(style)}{escape(label)}</li>" for label, style in drawn.items() if label in shown
    )
    return f'<ul class="legend">{legend}</ul><div class="plots">{"".join(plots)}</div>'


def _studies(run: Run) -> dict[str, str]:
    """The sections of the studies that lie in RUN/studies, by name."""
    folder = run.path / "studies"
    if not folder.is_dir():
        return {}
    from wildtta.studies import STUDIES, find, section

    return {study.name: section(study, summary) for study, summary in find(folder, list(STUDIES.values()))}


# -- gallery -----------------------------------------------------------------------------------------------------------

_SMALL = 40_000  # bytes up to which a strip is embedded as it is
_WIDTH = 900  # pixels of a strip that is larger


def _gallery(run: Run) -> str:
    order = names.in_order(run.gallery)
    if names.CLEAN in order:
        order = [names.CLEAN, *(kind for kind in order if kind != names.CLEAN)]
    figures_ = []
    for kind in order:
        strip = _strip(run.gallery[kind])
        if strip is None:
            figures_.append(
                f'<figure><figcaption>{escape(names.title(kind))}</figcaption><p class="soft small">'
                f"{escape(run.gallery[kind].name)} is not a readable image.</p></figure>"
            )
            continue
        address, tiny = strip
        figures_.append(
            f"<figure><figcaption>{escape(names.title(kind))}</figcaption>"
            f'<img src="{address}" alt="Sample images: {escape(names.title(kind))}" loading="lazy"'
            f"{_class('tiny' if tiny else '')}></figure>"
        )
    if not figures_:
        return ""
    tag = f" {_TAG}" if run.stand_in else ""
    several = len({cell.severity for cell in run.cells}) > 1
    severities = ", a row for each severity, the mildest first" if several else ""
    return (
        f'<section id="gallery"><h2>What the model was shown{tag}</h2>'
        f'<p class="soft small">The same images under every corruption{severities}.</p>'
        f'<div class="gallery">{"".join(figures_)}</div>{_before_and_after(run, tag)}</section>'
    )


def _before_and_after(run: Run, tag: str) -> str:
    """What DDA made of some images of each corruption."""
    figures_ = []
    order = names.in_order(name.rpartition("-")[0] for name in run.adapted)
    for name in sorted(run.adapted, key=lambda name: (order.index(name.rpartition("-")[0]), name)):
        kind, _, severity = name.rpartition("-")
        heading = names.title(kind) + (f", severity {severity}" if severity not in ("", "0") else "")
        if (strip := _strip(run.adapted[name])) is not None:
            figures_.append(
                f'<figure><figcaption>{escape(heading)}</figcaption><img src="{strip[0]}" '
                f'alt="Images before and after: {escape(heading)}" loading="lazy"{_class("tiny" if strip[1] else "")}></figure>'
            )
    if not figures_:
        return ""
    return (
        f"<h3>Before and after DDA{tag}</h3>"
        '<p class="soft small">From top to bottom: without corruption (where the data have such images), as they came, as the '
        f'diffusion model gave them back.</p><div class="gallery">{"".join(figures_)}</div>'
    )


def _strip(file: Path) -> tuple[str, bool] | None:
    """A strip as a data address, made smaller where it is large, and whether its pixels are so few that they may show."""
    from PIL import Image

    try:
        content = file.read_bytes()
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.load()
            tiny = image.height <= 64
            if len(content) <= _SMALL:
                return f"data:image/png;base64,{base64.b64encode(content).decode()}", tiny
            picture = image.convert("RGB")
        if picture.width > _WIDTH:
            picture = picture.resize((_WIDTH, max(1, round(picture.height * _WIDTH / picture.width))))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=85)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}", tiny


# -- how it was made ---------------------------------------------------------------------------------------------------


def _making(run: Run) -> str:
    command = f"<pre>{escape(run.command)}</pre>" if run.command else '<p class="soft">The plan does not say.</p>'
    return (
        f'<section id="making"><h2>How it was made</h2><h3>Command</h3>{command}'
        f"<h3>Versions and machine</h3>{_facts(_versions(run))}"
        f"<h3>Hyper-parameters</h3>{_facts(_settings(run))}"
        f"<details><summary>The plan's configuration</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2, ensure_ascii=False))}</pre></details></section>"
    )


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else _NOTHING


_NOTHING = '<p class="soft">No cell says.</p>'


def _versions(run: Run) -> dict[str, str]:
    """What the cells say about how they were computed; several values where they differ."""
    skipped = ("settings", "stand_in", "model_digest", "data_digest")
    found: dict[str, set[str]] = {}
    for cell in run.cells:
        for name, value in cell.provenance.items():
            if name not in skipped:
                found.setdefault(name, set()).add(value if isinstance(value, str) else json.dumps(value))
        if digest := cell.provenance.get("model_digest"):
            found.setdefault(f"weights of {cell.model}", set()).add(str(digest))
        if digest := cell.provenance.get("data_digest"):
            found.setdefault(f"images of {cell.data}", set()).add(str(digest))
    facts = {name: ", ".join(sorted(values)) for name, values in found.items()}
    seconds = [part for cell in run.cells for part in (cell.seconds, cell.adapting) if part is not None]
    if seconds:
        facts["computing time"] = _duration(sum(seconds))
    return facts


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _settings(run: Run) -> dict[str, str]:
    """The hyper-parameters as used, by model and row; rows that used the same in all scenarios stand together."""
    found: dict[str, dict[str, list[str]]] = {}
    for comparison in comparisons(run):
        for label, cells in comparison.by_label.items():
            for cell in cells:
                settings = cell.provenance.get("settings")
                text = json.dumps(settings, ensure_ascii=False)[1:-1] if isinstance(settings, dict) and settings else ""
                where = found.setdefault(str(label), {}).setdefault(text.replace('"', ""), [])
                if comparison.model_name not in where:
                    where.append(comparison.model_name)
    facts = {}
    for name, by_text in found.items():
        for text, models in by_text.items():
            if text:
                facts[name if len(by_text) == 1 else f"{name}, {names_in_words(models)}"] = text
    return facts


def _footer(run: Run) -> str:
    others = "".join(
        f' <a href="{name}">{text}</a>'
        for name, text in (("results.md", "Markdown"), ("results.tex", "LaTeX"), ("results.csv", "CSV"))
    )
    return f"Made by wildtta {escape(__version__)} from {escape(run.path.resolve().name)}. The same tables as{others}."
