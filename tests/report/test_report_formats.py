"""Every format is well-formed, whole, and says what must be said; nothing in it comes from elsewhere."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import METHODS, cell, paper_run, write_run

from wildtta.corruptions import CORRUPTIONS
from wildtta.report import load_run, published, tables, write_report
from wildtta.report.figures import _spread, along, styles
from wildtta.report.groups import Label, comparisons
from wildtta.report.table import latex_text, markdown_text
from wildtta.report.write import csv_text, latex, markdown

NASTY = "own.py:<b>&\"'|_*`%$#{}\\~^—</style><script>alert(1)</script>"
_VOID = {"meta", "link", "img", "br", "hr", "wbr", "input"}


class Page(HTMLParser):
    """Reads a page: every element must be closed, and nothing may be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert "url(" not in (value or "").replace("url(#", ""), (tag, name, value)
            if name in ("src", "href", "xlink:href"):
                own = ("#", "data:image/", "data:,", "results.")
                assert (value or "").startswith(own), (tag, name, value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def read(folder: Path, name: str = "index.html") -> str:
    return (folder / "report" / name).read_text(encoding="utf-8")


def check_latex(text: str) -> Iterator[list[int]]:
    """Environments and braces are balanced; yields the columns of each row of each tabular, its specification first."""
    plain = re.sub(r"(?<!\\)%.*", "", text)
    assert all(ord(letter) < 0x180 for letter in plain)
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", plain):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    bare = re.sub(r"\\[{}]", "", plain)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert not re.search(r"(?<!\\)[#&_^~]", re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", bare, flags=re.DOTALL))
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", plain, flags=re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        widths = []
        for row in rows:
            spans = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", row))
            widths.append(1 + len(re.findall(r"(?<!\\)&", row)) + spans)
        yield [len(columns), *widths]


def check_markdown(text: str) -> int:
    """Every row of a table has as many cells as its heading; returns the number of tables."""
    widths: list[int] = []
    count = 0
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        elif widths:
            assert len(set(widths)) == 1, widths
            count += 1
            widths = []
    return count


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = paper_run(tmp_path_factory.mktemp("runs") / "whole", seeds=2)
    assert write_report(folder) == folder / "report" / "index.html"
    return folder


class TestWholeRun:
    def test_files(self, whole: Path) -> None:
        names = {path.name for path in (whole / "report").iterdir()}
        assert names == {"index.html", "results.csv", "results.md", "results.tex"}

    def test_page(self, whole: Path) -> None:
        page = Page(read(whole))
        assert page.all("script") == []
        assert len(page.all("table")) > 10
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes and attributes["id"][:2] == "s-"]  # type: ignore[index]
        links = [found["href"] for found in page.all("a")]
        assert [link for link in links if link.startswith("#s-")] == [f"#{name}" for name in ids]  # type: ignore[union-attr]
        assert "wildtta bench --out runs/first" in page.words
        assert "46.4" in page.words

    def test_page_has_every_plot_with_every_name(self, whole: Path) -> None:
        text = read(whole)
        plots = re.findall(r'<svg class="plot".*?</svg>', text, flags=re.DOTALL)
        assert len(plots) == 3 * 2 * 2  # scenarios × models × (accuracy, selected)
        for plot in plots:
            names = set(re.findall(r"<title>([^<]*)</title>", plot))
            assert {"Tent", "ReCAP+DeYO"} <= names
            assert len(names) == (9 if "accuracy, %" in plot else 8)  # source selects nothing
            assert names <= set(re.findall(r">([^<>]+)</text>", plot))
        assert "stroke: #" not in "".join(plots)  # colours follow the page's theme

    def test_a_method_has_one_colour_in_all_plots(self, whole: Path) -> None:
        lines = re.findall(r"<title>([^<]*)</title>.*?stroke: var\(--line-(\d+)\)", read(whole), flags=re.DOTALL)
        colours: dict[str, set[str]] = {}
        for name, colour in lines:
            colours.setdefault(name, set()).add(colour)
        assert all(len(found) == 1 for found in colours.values())
        assert len({next(iter(found)) for found in colours.values()}) == len(METHODS)

    def test_page_has_the_gallery_in_order(self, whole: Path) -> None:
        pictures = [found["alt"] for found in Page(read(whole)).all("img")]
        assert len(pictures) == 16
        assert pictures[:2] == ["Sample images: clean", "Sample images: gaussian noise"]

    def test_the_papers_figures_are_in_every_format(self, whole: Path) -> None:
        figure = f"({published.LIMITED['vit']['recap+sar'][-1]})"
        assert f'<span class="paper">{figure}</span>' in read(whole)
        assert f" {figure} |" in read(whole, "results.md")
        assert rf"{{\scriptsize {figure}}}" in read(whole, "results.tex")
        rows = list(csv.DictReader(io.StringIO(read(whole, "results.csv"))))
        fog = {
            row["paper_top1"]
            for row in rows
            if row["method"] == "recap" and row["kind"] == "fog" and "res" in row["model"]
        }
        assert fog == {"57.5", "57.3"}
        assert {row["paper_top1"] for row in rows if row["method"] == "eta"} == {""}

    def test_markdown(self, whole: Path) -> None:
        text = read(whole, "results.md")
        found = tables(load_run(whole))
        assert check_markdown(text) == len(found)
        assert "| ReCAP+DeYO |" in text
        assert re.search(r"\| \*\*\d\d\.\d\*\* ± 0\.\d \(\d\d\.\d\) \|", text)
        assert re.search(r"\| <u>\d\d\.\d</u> ± 0\.\d \(\d\d\.\d\) \|", text)

    def test_latex(self, whole: Path) -> None:
        text = read(whole, "results.tex")
        widths = list(check_latex(text))
        assert len(widths) == len(tables(load_run(whole)))
        assert all(len(set(rows)) == 1 for rows in widths)
        assert re.search(r"\\textbf\{\d\d\.\d\}\$_\{\\pm 0\.\d\}\$ \{\\scriptsize \(\d\d\.\d\)\}", text)
        assert re.search(r"\\underline\{\d\d\.\d\}", text)

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
    def test_latex_compiles(self, whole: Path, tmp_path: Path) -> None:
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"-output-directory={tmp_path}"]
        done = subprocess.run([*command, whole / "report" / "results.tex"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]

    def test_csv_has_every_cell_in_full(self, whole: Path) -> None:
        run = load_run(whole)
        rows = list(csv.DictReader(io.StringIO(read(whole, "results.csv"))))
        assert len(rows) == len(run.cells)
        for row, found in zip(rows, run.cells, strict=True):
            assert float(row["top1"]) == found.top1
            assert (row["model"], row["method"], row["seed"]) == (found.model, found.method, str(found.seed))
            assert (row["statistics"], row["precision"], row["stand_in"]) == ("imagenet", "float32", "False")
            assert json.loads(row["top1_by_domain"]) == found.by_domain
        assert {row["ratio"] for row in rows} == {"", "500000"}

    def test_terminal_of_a_hundred_columns(self, whole: Path) -> None:
        console = Console(width=100, file=io.StringIO())
        for table in tables(load_run(whole)):
            console.print(table)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= 100
        grids = [line for line in text.splitlines() if re.match(r"ReCAP|Tent|Source|\s+\(|\s+Gauss", line)]
        assert not any("…" in line for line in grids)
        assert "Elastic" in text
        assert "In brackets: the paper's own figure." in text

    def test_again_gives_the_same(self, whole: Path) -> None:
        before = {path.name: path.read_bytes() for path in (whole / "report").iterdir()}
        write_report(whole)
        assert {path.name: path.read_bytes() for path in (whole / "report").iterdir()} == before


class TestStandIn:
    def test_it_is_said_everywhere(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [cell("source"), cell("tent")], stand_in=True, gallery=["fog"])
        write_report(folder)
        notice = "These numbers say nothing about photographs."
        page = Page(read(folder))
        assert notice in page.words
        for part in re.findall(r"<h3>.*?</h3>|<h2>What.*?</h2>|<figcaption><b>.*?</figcaption>", read(folder)):
            if not re.search("Command|Versions|Hyper", part):
                assert "stand-in data" in part, part
        assert notice in read(folder, "results.md")
        assert read(folder, "results.tex").count(notice) == 1 + 2  # above, and under each table
        assert {row["stand_in"] for row in csv.DictReader(io.StringIO(read(folder, "results.csv")))} == {"True"}
        console = Console(width=100, file=io.StringIO())
        found = tables(load_run(folder))
        for table in found:
            console.print(table)
        text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
        assert text.count(notice) == len(found)

    def test_one_such_cell_is_enough(self, tmp_path: Path) -> None:
        cells = [cell("source"), cell("source", data="imagenet-c:/x"), cell("tent", data="imagenet-c:/x")]
        cells[0]["provenance"]["stand_in"] = True
        run = load_run(write_run(tmp_path, cells))
        assert run.stand_in
        assert [table.stand_in for table in tables(run) if table.kind == "accuracy"] == [True, False]

    def test_real_data_are_not_called_so(self, whole: Path) -> None:
        for name in ("index.html", "results.md", "results.tex"):
            assert "tand-in" not in read(whole, name).replace("stand_in", "")


class TestUnfinished:
    def test_what_is_missing_is_shown(self, tmp_path: Path) -> None:
        folder = write_run(
            tmp_path, [cell("source", "fog"), cell("source", "snow"), cell("tent", "fog")], missing=["tent-snow"]
        )
        write_report(folder)
        page = Page(read(folder))
        assert "Not finished. 3 of the plan's 4 cells are there; a missing one shows as —." in page.words
        assert "What is missing tent-snow" in page.words.replace("missingtent", "missing tent")
        assert '<td class="first missing">—</td>' in read(folder) or '<td class="missing' in read(folder)
        text = read(folder, "results.md")
        assert "3 of the plan's 4 cells are there" in text
        assert "- tent-snow" in text
        assert re.search(r"\| Tent \| — \|", text)
        assert "3 of the plan's 4 cells are there" in read(folder, "results.tex")
        assert re.search(r"Tent & ---", read(folder, "results.tex"))

    def test_a_finished_run_says_so(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [cell("source"), cell("tent")])
        write_report(folder)
        assert "all 2 cells of the plan are there" in Page(read(folder)).words
        assert "missing" not in read(folder, "results.md")

    def test_cells_of_an_earlier_plan_do_not_stand_in_for_missing_ones(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [cell("source"), cell("tent")], missing=["one"])
        plan = json.loads((folder / "plan.json").read_text())
        plan["cells"] = ["0000", "one"]
        (folder / "plan.json").write_text(json.dumps(plan))
        write_report(folder)
        assert "1 of the plan's 2 cells are there, and 1 cell of other plans" in Page(read(folder)).words

    def test_a_plan_alone_has_a_page_too(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [], missing=["one", "two"])
        write_report(folder)
        assert "0 of the plan's 2 cells are there" in Page(read(folder)).words
        assert list(check_latex(read(folder, "results.tex"))) == []

    def test_damaged_cells_are_named(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [cell("source"), cell("tent")])
        (folder / "cells" / "0001.json").write_text("{")
        write_report(folder)
        for name in ("index.html", "results.md"):
            assert "0001.json is not complete JSON" in read(folder, name)
        assert len(list(csv.DictReader(io.StringIO(read(folder, "results.csv"))))) == 1

    def test_unreadable_images_are_counted_once(self, tmp_path: Path) -> None:
        cells = [cell(method, result={"unreadable": 3}) for method in ("source", "tent")]
        folder = write_run(tmp_path, cells)
        write_report(folder)
        sentence = "Images that could not be read and were skipped: glyphs, fog 5: 3."
        assert sentence in Page(read(folder)).words
        assert sentence in read(folder, "results.md")

    def test_a_broken_picture_costs_nothing_else(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path, [cell("source"), cell("tent")], gallery=["fog", "snow"])
        (folder / "gallery" / "fog.png").write_bytes(b"no image")
        write_report(folder)
        page = Page(read(folder))
        assert "fog.png is not a readable image." in page.words
        assert [found["alt"] for found in page.all("img")] == ["Sample images: snow"]


class TestNames:
    """What a run calls things cannot break a format."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        cells = [cell(method, top1=top1, model=NASTY) for method, top1 in (("source", 50.0), ("tent", 60.0))]
        cells += [cell(NASTY, NASTY, 55.0, model=NASTY, data=NASTY, settings={"lr": NASTY})]
        cells += [cell("tent", "fog", 55.0, model=NASTY, options={"length": 1234567})]
        folder = write_run(tmp_path, cells, command=f"wildtta bench --models '{NASTY}' ``` \n")
        (folder / "gallery").mkdir()
        (folder / "gallery" / 'a"><b>.png').write_bytes(b"x")
        write_report(folder)
        return folder

    def test_page(self, run: Path) -> None:
        page = Page(read(run))
        assert page.all("script") == []
        assert [name for name, _ in page.tags].count("style") == 1
        assert f"--models '{NASTY}'" in page.words
        assert "<script>" not in read(run)

    def test_markdown(self, run: Path) -> None:
        text = read(run, "results.md")
        assert check_markdown(text) == len(tables(load_run(run)))
        assert not re.search(
            r"(?<!\\)<(?!u>|/u>|details>|/details>|summary>|/summary>)", text.partition("## Command")[0]
        )
        assert text.count("```") == 2

    def test_latex(self, run: Path) -> None:
        widths = list(check_latex(read(run, "results.tex")))
        assert len(widths) == len(tables(load_run(run)))
        assert all(len(set(rows)) == 1 for rows in widths)

    def test_csv(self, run: Path) -> None:
        rows = list(csv.DictReader(io.StringIO(read(run, "results.csv"))))
        assert {row["model"] for row in rows} == {NASTY}
        assert NASTY in {row["method"] for row in rows}

    def test_terminal(self, run: Path) -> None:
        console = Console(width=60, file=io.StringIO())
        for table in tables(load_run(run)):
            console.print(table)
        assert "[" not in latex_text("")
        assert "Tent" in console.file.getvalue()  # type: ignore[attr-defined]


def test_markup_of_a_terminal_is_not_obeyed(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, [cell("[red]x[/red]"), cell("[/nothing]", "snow")]))
    console = Console(width=80, file=io.StringIO())
    for table in tables(run):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]x[/red]" in text
    assert "[/nothing]" in text


@pytest.mark.parametrize(
    ("text", "latex_", "markdown_"),
    [
        ("a_b 5 % & <c>", r"a\_b 5 \% \& \textless{}c\textgreater{}", r"a_b 5 % &amp; \<c\>"),
        ("_a_ *b* | `c`", r"\_a\_ *b* \textbar{} `c`", r"\_a\_ \*b\* \| \`c\`"),
        ("−3 ± 1 — ü 漢", r"$-$3 $\pm$ 1 --- ü ?", "−3 ± 1 — ü 漢"),
        ("two\n lines", "two lines", "two lines"),
    ],
)
def test_escapes(text: str, latex_: str, markdown_: str) -> None:
    assert latex_text(text) == latex_
    assert markdown_text(text) == markdown_


def test_texts_are_those_of_the_files(whole: Path) -> None:
    run = load_run(whole)
    found = tables(run)
    assert markdown(run, found) == read(whole, "results.md")
    assert latex(run, found) == read(whole, "results.tex")
    assert csv_text(run) == read(whole, "results.csv")


def test_streams_of_unequal_length_share_a_plot(tmp_path: Path) -> None:
    cells = [
        cell(method, kind, result={"images": images}, along={"seen": [1, images], "top1": [10, 20], "selected": [0, 1]})
        for method in ("source", "tent")
        for kind, images in (("fog", 100), ("snow", 300))
    ]
    folder = write_run(tmp_path, cells)
    write_report(folder)
    assert "share of the stream seen, %" in read(folder)


def test_a_curve_is_the_mean_over_what_every_method_has(tmp_path: Path) -> None:
    curves = {("tent", "fog"): [10, 20], ("tent", "snow"): [30, 60], ("sar", "fog"): [5, 7], ("sar", "snow"): [7, 9]}
    cells = [
        cell(method, kind, result={"images": 9000}, along={"seen": [4000, 9000], "top1": top1, "selected": [0, 1]})
        for (method, kind), top1 in {**curves, ("tent", "frost"): [99, 99], ("sar", "clean"): [99, 99]}.items()
    ]
    (found,) = comparisons(load_run(write_run(tmp_path, cells)))
    lines = along(found, "top1", styles(found.labels))
    assert [(line.label, line.x.tolist(), line.y.tolist(), line.points) for line in lines] == [
        ("Tent", [4000, 9000], [20.0, 40.0], 1),
        ("SAR", [4000, 9000], [6.0, 8.0], 1),
    ]


def test_few_images_make_a_running_mean(tmp_path: Path) -> None:
    points = {"seen": [300 * place for place in range(1, 8)], "top1": [0, 0, 0, 70, 0, 0, 0], "selected": [0] * 7}
    folder = write_run(tmp_path, [cell("tent", result={"images": 2100}, along=points)])
    (found,) = comparisons(load_run(folder))
    (line,) = along(found, "top1", styles(found.labels))
    assert line.points == 7  # of 300 images each, to have some 2,000
    assert line.y.tolist() == pytest.approx([70 / 4, 70 / 5, 70 / 6, 10, 70 / 6, 70 / 5, 70 / 4])
    write_report(folder)
    assert "running mean of 7 points" in Page(read(folder)).words


def test_variants_of_a_method_have_its_colour_and_a_style_of_their_own() -> None:
    labels = [Label(method, guard) for method in (*METHODS, "mine", "yours") for guard in (None, "collapse", "recover")]
    found = styles(labels)
    assert len(set(found.values())) == len(labels)
    for method in METHODS:
        assert len({found[str(label)].colour for label in labels if label.method == method}) == 1, method
    assert len({found[str(label)].colour for label in labels if label.guard is None}) == len(METHODS) + 2


def test_a_stream_without_points_has_no_plot(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path, [cell("tent", kind, along={"seen": [10], "top1": [5], "selected": [0]}) for kind in CORRUPTIONS]
    )
    write_report(folder)
    assert 'class="plot"' not in read(folder)
    assert "5 to" not in Page(read(folder)).words


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([0.0, 5.0, 10.0], [0.0, 5.0, 10.0]),
        ([5.0, 5.0], [4.5, 5.5]),
        ([5.2, 5.0, 4.8], [6.0, 5.0, 4.0]),
        ([0.0, 0.5, 1.2, 9.0], [-0.4333, 0.5667, 1.5667, 9.0]),
        ([], []),
    ],
)
def test_labels_move_apart_and_no_further(heights: list[float], expected: list[float]) -> None:
    assert _spread(heights, 1.0) == pytest.approx(expected, abs=1e-3)


def test_an_unwritable_file_leaves_the_old_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [cell("source"), cell("tent")])
    write_report(folder)
    before = read(folder)
    (folder / "report" / "results.csv").unlink()
    (folder / "report" / "results.csv").mkdir()
    with pytest.raises(OSError, match=r"results\.csv"):
        write_report(folder)
    assert read(folder) == before
    assert not [path.name for path in (folder / "report").iterdir() if path.name.startswith(".")]
