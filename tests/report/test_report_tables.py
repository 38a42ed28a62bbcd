"""The numbers in the tables, against numbers computed by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from synthetic_runs import cell, write_run

from wildtta.corruptions import CORRUPTIONS
from wildtta.report import Table, load_run, tables, write_report
from wildtta.report.table import Value, ranked


def tables_of(folder: Path, cells: list[dict], kind: str = "accuracy", **more: object) -> list[Table]:
    return [table for table in tables(load_run(write_run(folder, cells, **more))) if table.kind == kind]  # type: ignore[arg-type]


def value(table: Table, row: str, column: str) -> Value:
    place = [found.name for found in table.columns].index(column)
    return next(found for found in table.rows if found.label == row).values[place]


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    fog, snow = {0: 40.0, 1: 44.0}, {0: 50.0, 1: 58.0}
    cells = [cell("tent", "fog", top1, seed=seed) for seed, top1 in fog.items()]
    cells += [cell("tent", "snow", top1, seed=seed) for seed, top1 in snow.items()]
    (table,) = tables_of(tmp_path, cells)
    assert (value(table, "Tent", "Fog").mean, value(table, "Tent", "Snow").mean) == (42.0, 54.0)
    assert value(table, "Tent", "Fog").std == pytest.approx(math.sqrt(8))  # ((−2)² + 2²) / (2 − 1)
    average = value(table, "Tent", "Average")
    assert average.mean == 48.0
    assert average.std == pytest.approx(math.sqrt(18))  # of the seeds' own averages, 45 and 51
    assert (average.seeds, average.partial) == (2, False)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    (table,) = tables_of(tmp_path, [cell("tent")])
    assert value(table, "Tent", "Fog").std is None


def test_columns_stand_in_the_papers_order_and_clean_images_do_not_count(tmp_path: Path) -> None:
    cells = [cell("tent", kind, 10.0) for kind in ("clean", "snow", "gaussian_noise", "mine")]
    cells[0]["result"]["top1"] = 90.0
    (table,) = tables_of(tmp_path, cells)
    assert [column.name for column in table.columns] == ["Gauss.", "Snow", "mine", "Clean", "Average"]
    assert [column.group for column in table.columns] == ["Noise", "Weather", "", "", ""]
    assert value(table, "Tent", "Average").mean == 10.0


def test_a_stream_of_several_kinds_has_a_column_for_each(tmp_path: Path) -> None:
    (table,) = tables_of(tmp_path, [cell("tent", top1=30.0, scenario="continual", domains={"fog": 20.0, "snow": 40.0})])
    assert [(column.name, row.mean) for column, row in zip(table.columns, table.rows[0].values, strict=True)] == [
        ("Snow", 40.0),
        ("Fog", 20.0),
        ("Average", 30.0),
    ]


def test_mixed_streams_have_a_column_a_model_and_severity(tmp_path: Path) -> None:
    cells = [
        cell("tent", top1=top1, scenario="mixed", model=model, severity=severity, domains={"fog": 1.0, "snow": 2.0})
        for model, severity, top1 in (("glyph-resnet", 5, 30.0), ("glyph-resnet", 4, 40.0), ("glyph-vit", 5, 50.0))
    ]
    (table,) = tables_of(tmp_path, cells)
    assert [(column.group, column.name) for column in table.columns] == [
        ("glyph-resnet", "Severity 5"),
        ("glyph-resnet", "Severity 4"),
        ("glyph-resnet", "Average"),
        ("glyph-vit", "Severity 5"),
    ]
    assert [found.mean for found in table.rows[0].values] == [30.0, 40.0, 35.0, 50.0]


def test_the_overview_has_every_comparisons_average(tmp_path: Path) -> None:
    cells = [cell("tent", "fog", 40.0), cell("tent", "snow", 50.0), cell("tent", "fog", 30.0, model="glyph-vit")]
    cells += [cell("tent", top1=77.0, scenario="mixed", domains={"fog": 1.0, "snow": 2.0})]
    (table,) = tables_of(tmp_path, cells, "overview")
    found = [
        (column.group, column.name, row.mean) for column, row in zip(table.columns, table.rows[0].values, strict=True)
    ]
    assert found == [
        ("Limited data", "glyph-resnet", 45.0),
        ("Limited data", "glyph-vit", None),  # it has no snow yet
        ("Mixed domains", "glyph-resnet", 77.0),
    ]
    assert tables_of(tmp_path / "one", [cell("tent")], "overview") == []


def test_differences_to_source(tmp_path: Path) -> None:
    cells = [cell("source", top1=50.0), cell("tent", top1=47.5), cell("sar", top1=50.0)]
    (table,) = tables_of(tmp_path, cells)
    assert [row.values[0].gain for row in table.rows] == [0.0, -2.5, 0.0]
    (table,) = tables_of(tmp_path / "without", cells[1:])
    assert [row.values[0].gain for row in table.rows] == [None, None]


def test_a_guarded_source_is_still_the_source(tmp_path: Path) -> None:
    cells = [cell("source", top1=50.0, guard="collapse"), cell("tent", top1=52.0, guard="collapse")]
    (table,) = tables_of(tmp_path, cells)
    assert [row.values[0].gain for row in table.rows] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("means", "best", "second"),
    [
        ([1.0, 3.0, 2.0], [1], [2]),
        ([3.0, 3.0, 2.0], [0, 1], []),  # two are best: none is second
        ([3.04, 2.96, 1.0], [0, 1], []),  # both are printed 3.0
        ([3.0, 2.0, 2.04], [0], [1, 2]),
        ([None, 3.0, 2.0], [1], [2]),
        ([None, 3.0, None], [], []),  # alone, it is not best of anything
        ([2.0, 2.0], [0, 1], []),
        ([0.0, -0.0], [0, 1], []),
        ([None, None], [], []),
    ],
)
def test_best_and_second(means: list[float | None], best: list[int], second: list[int]) -> None:
    found = ranked([Value(mean) for mean in means], digits=1)
    assert [place for place, value in enumerate(found) if value.best] == best
    assert [place for place, value in enumerate(found) if value.second] == second
    assert [value.mean for value in found] == means


def test_other_measures_are_averages_over_cells(tmp_path: Path) -> None:
    cells = [
        cell("tent", "fog", 40.0, result={"nll": 1.0, "selected": 0.5, "images": 10}),
        cell("tent", "snow", 60.0, result={"nll": 3.0, "selected": 0.25, "images": 10}),
        cell("sar", "fog", 50.0, result={"nll": None}),
    ]
    (table,) = tables_of(tmp_path, cells, "measures")
    found = {row.label: [value.mean for value in row.values] for row in table.rows}
    names = [column.name for column in table.columns]
    assert dict(zip(names, found["Tent"], strict=True)) == {
        "Cells": 2.0,
        "Top-1 %": 50.0,
        "Top-5 %": 70.0,
        "NLL": 2.0,
        "ECE %": 5.0,
        "Selected %": 37.5,
        "Forw.": 16.0,
        "Backw.": 16.0,
        "Resets": 0.0,
        "Seconds": 1.5,
        "MiB": 100.0,
    }
    assert found["SAR"][names.index("NLL")] is None


class TestUnfinished:
    def test_what_is_missing_is_a_gap(self, tmp_path: Path) -> None:
        cells = [cell("source", "fog", 50.0), cell("source", "snow", 40.0), cell("tent", "fog", 60.0)]
        more = {"methods": ["source", "tent", "recap"]}
        (table,) = tables_of(tmp_path, cells, missing=["tent-snow", "recap-fog"], config=more)
        assert [row.label for row in table.rows] == ["Source", "Tent", "ReCAP"]
        assert [[found.mean for found in row.values] for row in table.rows] == [
            [40.0, 50.0, 45.0],
            [None, 60.0, None],
            [None, None, None],
        ]

    def test_fewer_seeds_than_planned_are_marked(self, tmp_path: Path) -> None:
        cells = [cell("source", top1=50.0), cell("source", top1=52.0, seed=1), cell("tent", top1=60.0)]
        (table,) = tables_of(tmp_path, cells)
        assert [row.values[0].partial for row in table.rows] == [False, True]
        assert table.rows[1].values[0].text(1) == "60.0†"
        assert "† of fewer seeds than the plan has, so far." in table.notes

    def test_a_finished_table_has_no_such_note(self, tmp_path: Path) -> None:
        (table,) = tables_of(tmp_path, [cell("source"), cell("tent")])
        assert table.notes == ()

    def test_planned_kinds_guards_and_hyperparameters_have_their_place(self, tmp_path: Path) -> None:
        config = {"kinds": ["fog", "snow"], "methods": ["source", "recap", "tent"], "guards": ["collapse"]}
        config["settings"] = {"lr": 0.1, "recap.tau": 1.0, "recap.lr": 0.2}
        (table,) = tables_of(tmp_path, [cell("source", guard="collapse")], config=config)
        assert [column.name for column in table.columns] == ["Snow", "Fog", "Average"]
        assert [row.label for row in table.rows] == [
            "Source (collapse guard)",
            "Tent (collapse guard, lr=0.1)",
            "ReCAP (collapse guard, lr=0.2, tau=1)",
        ]

    def test_a_plan_without_cells_has_no_tables(self, tmp_path: Path) -> None:
        run = load_run(write_run(tmp_path, [], missing=["one"], config={"methods": ["tent"]}))
        assert tables(run) == []


def test_an_unknown_scenario_or_method_is_shown_as_it_is(tmp_path: Path) -> None:
    write_run(tmp_path, [cell("mine", top1=12.0)])
    path = tmp_path / "cells" / "0000.json"
    document = json.loads(path.read_text())
    document["cell"]["scenario"] = "storm"
    path.write_text(json.dumps(document))
    table = next(table for table in tables(load_run(tmp_path)) if table.kind == "accuracy")
    assert table.section == "storm — glyphs, batch 1"
    assert table.rows[0].label == "mine"


def test_models_are_named_in_short_where_that_leaves_them_apart(tmp_path: Path) -> None:
    specs = ["timm:resnet50_gn.a1h_in1k", "timm:vit.one", "timm:vit.two", "own.py:build"]
    found = tables_of(tmp_path, [cell("tent", model=spec) for spec in specs])
    assert [table.title.split(": ")[-1].split(",")[0] for table in found] == [
        "resnet50_gn",
        "vit.one",
        "vit.two",
        "own.py:build",
    ]


def test_all_fifteen_corruptions_stand_under_four_headings(tmp_path: Path) -> None:
    (table,) = tables_of(tmp_path, [cell("tent", kind) for kind in CORRUPTIONS])
    assert table.groups() == [("Noise", 3), ("Blur", 4), ("Weather", 4), ("Digital", 4), ("", 1)]


def test_two_data_sets_of_one_layout_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    found = tables_of(tmp_path, [cell("tent", data=f"imagenet-c:/{name}") for name in ("a", "b")])
    assert [table.section for table in found] == [
        "Limited data: one image at a time — imagenet-c:/a, batch 1",
        "Limited data: one image at a time — imagenet-c:/b, batch 1",
    ]


def test_what_every_method_was_given_alike_stands_in_the_heading(tmp_path: Path) -> None:
    cells = [
        cell("source"),
        cell("tent", settings={"lr": "x30"}),
        cell("recap", settings={"lr": "x30", "lam": 0.1}),
    ]
    (table,) = tables_of(tmp_path, cells)
    assert [row.label for row in table.rows] == ["Source", "Tent", "ReCAP (lam=0.1)"]
    assert "batch 1, lr=x30" in table.title


def test_a_costly_method_with_a_value_of_its_own_leaves_the_others_rows_plain(tmp_path: Path) -> None:
    cells = [
        cell("source"),
        cell("tent", settings={"lr": "x30"}),
        cell("sar", settings={"lr": "x30"}),
        cell("memo", settings={"lr": "x1"}),
        cell("dda", settings={"steps": 20}),
    ]
    (table,) = tables_of(tmp_path / "own", cells)
    labels = ["Source", "MEMO (lr=x1)", "DDA (steps=20)", "Tent", "SAR"]
    assert sorted(row.label for row in table.rows) == sorted(labels)
    assert "batch 1, lr=x30" in table.title
    silent = [*cells[:3], cell("memo"), cell("mine", settings={"lr": "x30"})]
    (table,) = tables_of(tmp_path / "silent", silent)  # the heading would tell a lie about MEMO
    assert sorted(row.label for row in table.rows) == [
        "MEMO",
        "SAR (lr=x30)",
        "Source",
        "Tent (lr=x30)",
        "mine (lr=x30)",
    ]
    assert "lr=x30" not in table.title


def test_a_plan_with_guards_has_the_source_once(tmp_path: Path) -> None:
    """A guard around it changes nothing, so it is run without; older runs have it with a guard."""
    config = {"methods": ["source", "tent"], "guards": ["none", "collapse"]}
    (table,) = tables_of(tmp_path / "new", [cell("tent", guard="collapse")], config=config)
    assert [row.label for row in table.rows] == ["Source", "Tent", "Tent (collapse guard)"]
    (table,) = tables_of(tmp_path / "old", [cell("source", guard="collapse")], config=config)
    assert [row.label for row in table.rows] == ["Source (collapse guard)", "Tent", "Tent (collapse guard)"]


def test_the_time_of_the_diffusion_has_a_column(tmp_path: Path) -> None:
    """It comes before the stream, and is most of what DDA takes; a cell that finds its images made has next to none."""
    cells = [
        cell("source"),
        cell("dda", result={"diffusion_steps": 50}),
        cell("dda", "snow", result={"diffusion_steps": 50}),
    ]
    for found, seconds in zip(cells[1:], (100.0, 2.0), strict=True):
        found["measured"]["adapted"] = {"made": 1, "found": 0, "seconds": seconds}
    (table,) = tables_of(tmp_path / "dda", cells, "measures")
    place = [column.name for column in table.columns].index("Diff. s")
    assert {row.label: row.values[place].mean for row in table.rows} == {"Source": None, "DDA": 51.0}
    assert "1 min 46 s" in write_report(tmp_path / "dda").read_text()  # 3 × 1.5 + 102
    rows = list(csv.DictReader((tmp_path / "dda" / "report" / "results.csv").open()))
    assert sorted(row["diffusion_seconds"] for row in rows) == ["", "100.0", "2.0"]
    (table,) = tables_of(tmp_path / "none", [cell("source"), cell("tent")], "measures")
    assert "Diff. s" not in [column.name for column in table.columns]


def test_markdown_names_the_group_of_columns_that_have_one_name(tmp_path: Path) -> None:
    cells = [cell(scenario=scenario) for scenario in ("limited", "shift")]
    (overview,) = tables_of(tmp_path, cells, "overview")
    heading = overview.markdown().splitlines()[2]
    assert "Limited data: glyph-resnet" in heading
    assert "Imbalanced label shift: glyph-resnet" in heading
