"""The paper's figures: transcribed rightly, and shown only where a cell is one of the paper's."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest
from synthetic_runs import IMAGENET_C, RESNET, VIT, cell, paper_run, write_run

from wildtta.corruptions import CORRUPTIONS
from wildtta.report import load_run, published, tables
from wildtta.report.headline import against_paper

SOURCE = Path(__file__).parents[3] / "shared" / "recap-paper.tex"


def rows_of(text: str) -> list[tuple[str, tuple[float, ...]]]:
    """The rows of a LaTeX table that hold numbers: (name, numbers)."""
    rows = []
    for line in text.splitlines():
        name, *cells = line.rstrip().removesuffix("\\\\").split("&")
        plain = [re.sub(r"_\{\\pm [\d.]+\}|\\textbf|\\underline|[${}\\\s]", "", found) for found in cells]
        plain = [found for found in plain if found]
        if plain and all(re.fullmatch(r"\d+\.\d", found) for found in plain):
            name = re.sub(r"\\cite\{\w+\}", "", name.split("bullet$")[-1])
            rows.append((re.sub(r"\(Ours\)|[{}\s]|\\multicolumn1c\|", "", name).lower(), tuple(map(float, plain))))
    return rows


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
class TestTranscription:
    text = SOURCE.read_text() if SOURCE.exists() else ""

    def table(self, caption: str, *, after: bool = False) -> dict[str, dict[str, tuple[float, ...]]]:
        """The rows by network and method; where both networks share a table, under "both"."""
        place = self.text.index(caption)
        start = self.text.rindex(r"\begin{tabular}", 0, place) if after else self.text.index(r"\begin{tabular}", place)
        rows = rows_of(self.text[start : self.text.index(r"\end{tabular}", start)])
        found: dict[str, dict[str, tuple[float, ...]]] = {}
        network = "both"
        for name, numbers in rows:
            if re.search(r"resnet50|vitbase|no-adapt", name):
                network = "resnet" if "resnet" in name else "vit" if "vit" in name else "both"
                name = "source"
            found.setdefault(network, {})[name] = numbers
        return found

    @pytest.mark.parametrize(
        ("caption", "mine"),
        [
            (r"under \textbf{Limited Batch Size = 1} regarding Accuracy (\%). We report mean performance", "LIMITED"),
            (r"under \textbf{Mixed Testing Domain}", "MIXED"),
            (r"(severity level 5) under \textbf{Imbalanced Label Shift}", "SHIFT"),
        ],
    )
    def test_tables_one_to_three(self, caption: str, mine: str) -> None:
        found = self.table(caption)
        assert {network: len(rows) for network, rows in found.items()} == {"resnet": 10, "vit": 10}
        assert getattr(published, mine) == found

    @pytest.mark.parametrize(("name", "mine"), [("ImageNet-R", "imagenet-r"), ("VisDA-2021", "visda-2021")])
    def test_other_data(self, name: str, mine: str) -> None:
        found = self.table(rf"on \textbf{{{name}}} under", after=True)
        assert len(found["both"]) == 6
        assert published.OTHER[mine] == found["both"]


def test_averages_are_those_of_their_rows() -> None:
    for table in (published.LIMITED, published.SHIFT):
        for network, rows in table.items():
            for method, row in rows.items():
                assert len(row) == 16
                # every figure is rounded by up to 0.05, and so is their average
                assert row[-1] == pytest.approx(fmean(row[:15]), abs=0.1), (network, method)


def figures(folder: Path, **changed: object) -> list[float | None]:
    """The paper's figures in the table of one cell, which is one of the paper's but for what is changed."""
    (folder / "x").mkdir(parents=True, exist_ok=True)
    name = str(len(list(folder.iterdir())))
    given: dict = {"model": RESNET, "data": IMAGENET_C, "result": {"images": 50_000}} | changed
    run = load_run(write_run(folder / name, [cell(given.pop("method", "recap"), **given)]))
    shown = {value.paper for table in tables(run) for row in table.rows for value in row.values}
    assert shown <= {None, published.figure(run.cells[0])}
    return sorted(found for found in shown if found is not None)  # type: ignore[type-var]


def test_shown_for_the_papers_cells(tmp_path: Path) -> None:
    assert figures(tmp_path) == [57.5]
    assert figures(tmp_path, kind="snow") == [49.7]
    assert figures(tmp_path, method="tent") == [1.4]
    assert figures(tmp_path, statistics="imagenet") == [57.5]
    assert figures(tmp_path, precision="tf32") == [57.5]
    assert figures(tmp_path, images=50_000) == [57.5]
    assert figures(tmp_path, model="timm:resnet50_gn") == [57.5]
    assert figures(tmp_path, model=VIT, statistics="imagenet") == [74.1]
    assert figures(tmp_path, scenario="shift", result={"images": 100_000}) == [57.3]
    assert figures(tmp_path, result={"images": 49_990, "unreadable": 10}) == [57.5]
    mixed = {"scenario": "mixed", "domains": dict.fromkeys(CORRUPTIONS, 50.0), "result": {"images": 750_000}}
    assert figures(tmp_path, **mixed) == [41.5]
    assert figures(tmp_path, severity=4, **mixed) == [51.2]
    other = {"kind": "imagenet-r", "severity": 0, "data": "imagenet-r:/r", "result": {"images": 30_000}}
    assert figures(tmp_path, **other) == [51.5]


SHIFT = {"scenario": "shift", "result": {"images": 100_000}}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "timm:resnet50_gn.other"}, None),
        ({"model": "torchvision:resnet50"}, None),
        ({"data": "glyphs"}, None),
        ({"severity": 4}, None),
        ({"kind": "spatter"}, None),
        ({"method": "eta"}, None),
        ({"batch": 2}, None),
        ({"reset": False}, None),
        ({"guard": "collapse"}, None),
        ({"settings": {"lr": 0.1}}, None),
        ({"scenario": "mild"}, None),
        ({"scenario": "mixed", "domains": {"fog": 1.0, "snow": 2.0}}, None),
        ({"weights": "mine.pt"}, "the weights are mine.pt"),
        ({"statistics": "half"}, 'normalised with the statistics "half"'),
        ({"model": VIT}, "which are not that model's own"),
        ({"model": VIT, "statistics": "half"}, 'statistics "imagenet"'),
        ({"precision": "bf16"}, "the precision is bf16"),
        ({"calibration": 100}, "estimated on 100 images instead of 500"),
        ({"result": {"images": 1000}}, "streams have 50,000 images or more, these 1,000"),
        ({"options": {"length": 100}}, "of the scenario's options length is 100"),
        (SHIFT | {"options": {"ratio": 1000.0, "repeats": True, "length": None}}, "options ratio is 1000"),
        (SHIFT | {"options": {"ratio": 500_000.0, "repeats": False, "length": None}}, "options repeats is False"),
        (
            {"kind": "imagenet-r", "severity": 0, "data": "imagenet-r:/r", "images": 100},
            "streams have all images, these 100 at most",
        ),
    ],
)
def test_not_shown_for_others_and_where_it_is_close_it_is_said_why(
    tmp_path: Path, changed: dict[str, object], reason: str | None
) -> None:
    assert figures(tmp_path, **changed) == []
    run = load_run(next(folder for folder in tmp_path.iterdir() if (folder / "plan.json").exists()))
    notes = [note for table in tables(run) for note in table.notes]
    assert not any("In brackets" in note for note in notes)
    if reason is None:
        assert notes == []
    else:
        assert notes[0].startswith("The paper's figures for this setting are not shown: ")
        assert reason in notes[0]


def test_a_whole_run_of_the_paper(tmp_path: Path) -> None:
    run = load_run(paper_run(tmp_path, seeds=1))
    found = tables(run)
    overview = found[0]
    assert overview.kind == "overview"
    shown = {row.label: [value.paper for value in row.values] for row in overview.rows}
    assert shown["ReCAP"] == [46.4, 65.7, 45.8, 63.0, 41.5, 59.4]
    assert shown["ETA"] == [None] * 6
    limited = next(table for table in found if "Limited" in table.title and "resnet50_gn" in table.title)
    assert tuple(limited.rows[6].values[place].paper for place in range(16)) == published.LIMITED["resnet"]["recap"]
    assert limited.notes == ("In brackets: the paper's own figure.",)
    vit = next(table for table in found if "Limited" in table.title and "vit" in table.title)
    assert "with its own the source model is about 20 points better" in vit.notes[1]


def test_a_part_of_the_corruptions_has_no_average_of_the_papers(tmp_path: Path) -> None:
    place = {"model": RESNET, "data": IMAGENET_C, "result": {"images": 50_000}}
    run = load_run(write_run(tmp_path, [cell("recap", kind, **place) for kind in CORRUPTIONS[:14]]))
    (table,) = (table for table in tables(run) if table.kind == "accuracy")
    assert [value.paper for value in table.rows[0].values] == [*published.LIMITED["resnet"]["recap"][:14], None]


def test_a_missing_cell_has_no_figure_beside_it(tmp_path: Path) -> None:
    place = {"model": RESNET, "data": IMAGENET_C, "result": {"images": 50_000}}
    cells = [cell("source", kind, **place) for kind in CORRUPTIONS] + [cell("recap", "fog", **place)]
    (table,) = (table for table in tables(load_run(write_run(tmp_path, cells))) if table.kind == "accuracy")
    assert [value.paper for value in table.rows[0].values] == list(published.LIMITED["resnet"]["source"])
    assert [value.paper for value in table.rows[1].values if value.mean is None] == [None] * 15
    assert [value.paper for value in table.rows[1].values if value.mean is not None] == [57.5]


def test_a_vit_without_figures_does_not_speak_of_them(tmp_path: Path) -> None:
    place = {"data": IMAGENET_C, "result": {"images": 50_000}}
    run = load_run(write_run(tmp_path, [cell("recap", model=model, **place) for model in (RESNET, VIT)]))
    overview = tables(run)[0]
    assert [value.paper for value in overview.rows[0].values] == [57.5, None]
    assert len(overview.notes) == 2
    assert overview.notes[0] == "In brackets: the paper's own figure."
    assert overview.notes[1].startswith(
        "The paper's figures for this setting are not shown: the paper's ViT images are"
    )


def test_mixed_average_needs_both_severities(tmp_path: Path) -> None:
    place = {"model": RESNET, "data": IMAGENET_C, "scenario": "mixed", "result": {"images": 750_000}}
    cells = [
        cell("recap", severity=severity, domains=dict.fromkeys(CORRUPTIONS, 5.0), **place) for severity in (5, 4, 3)
    ]
    run = load_run(write_run(tmp_path / "two", cells[:2]))
    (table,) = (table for table in tables(run) if table.kind == "accuracy")
    assert [value.paper for value in table.rows[0].values] == [41.5, 51.2, 46.4]
    run = load_run(write_run(tmp_path / "three", cells))
    (table,) = (table for table in tables(run) if table.kind == "accuracy")
    assert [value.paper for value in table.rows[0].values] == [41.5, 51.2, None, None]


def test_a_model_without_a_tag_may_have_other_weights(tmp_path: Path) -> None:
    place = {"model": "timm:resnet50_gn", "data": IMAGENET_C, "result": {"images": 50_000}}
    run = load_run(write_run(tmp_path, [cell("recap", **place)]))
    assert (
        "The paper's weights are timm:resnet50_gn.a1h_in1k; timm:resnet50_gn may load others." in tables(run)[0].notes
    )


def test_the_distance_to_the_paper_in_words(tmp_path: Path) -> None:
    place = {"model": RESNET, "data": IMAGENET_C, "result": {"images": 50_000}}
    cells = [cell("recap", "fog", 57.0, **place), cell("tent", "fog", 2.5, **place), cell("eta", "fog", 9.0, **place)]
    found = tables(load_run(write_run(tmp_path, cells)))
    assert against_paper(found) == (
        "Where the settings are the paper's, the averages differ from its own by 0.8 points in the mean "
        "and by 1.1 at most (Tent: 2.5 here, 1.4 there)."
    )
    assert against_paper(tables(load_run(write_run(tmp_path / "glyphs", [cell("recap")])))) is None
