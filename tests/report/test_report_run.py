"""Reading a run folder: what is whole counts, what is damaged is named, what differs is kept apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import cell, write_run

from wildtta.bench.store import Store
from wildtta.files import PARTIAL
from wildtta.report import RunError, load_run, tables, write_report
from wildtta.report.groups import comparisons


def change(folder: Path, number: int, part: str, **values: object) -> Path:
    path = folder / "cells" / f"{number:04}.json"
    document = json.loads(path.read_text())
    document[part] |= values
    path.write_text(json.dumps(document))
    return path


def test_a_whole_run(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, [cell(), cell("tent", seed=0)], gallery=["fog"]))
    assert run.command == "wildtta bench --out runs/first"
    assert (len(run.cells), run.missing, run.problems, run.stand_in) == (2, (), (), False)
    assert run.gallery == {"fog": tmp_path / "gallery" / "fog.png"}
    first = run.cells[0]
    assert (first.method, first.top1, first.measures["selected"], first.seconds) == ("source", 50.0, 0.0, 1.5)
    assert first.along.selected == (25.0, 25.0)


def test_the_helper_writes_what_the_benchmark_writes() -> None:
    plan = pytest.importorskip("wildtta.bench.plan")
    fields = set(plan.Cell.__dataclass_fields__)
    assert set(cell()["cell"]) == fields


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "there is no run folder .*; give the folder that `wildtta bench` wrote"),
        (lambda folder: folder.mkdir(), "is not a run folder: it has neither a plan.json nor cells"),
        (lambda folder: folder.write_text("x"), "there is no run folder"),
        (
            lambda folder: (folder.mkdir(), (folder / "plan.json").write_text("{"))[0],
            r"is not a run folder.*plan\.json is not complete JSON",
        ),
    ],
)
def test_a_folder_that_is_no_run(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "run")  # type: ignore[operator]
    with pytest.raises(RunError, match=message):
        load_run(tmp_path / "run")
    with pytest.raises(RunError, match=message):
        write_report(tmp_path / "run")
    assert not (tmp_path / "run" / "report").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not complete JSON"),
        (b'{"format": 1, "cell": {', "is not complete JSON"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"[1, 2]", 'was not written by wildtta: it has no "format"'),
        (b'{"format": 7}', "has format 7, this version of wildtta reads format 1"),
        (b'{"format": 1}', "has no object 'cell'"),
        (b"[" * 100_000, "0000.json"),
    ],
)
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, text: bytes, message: str) -> None:
    write_run(tmp_path, [cell(), cell("tent")])
    (tmp_path / "cells" / "0000.json").write_bytes(text)
    run = load_run(tmp_path)
    assert [found.method for found in run.cells] == ["tent"]
    assert run.missing == ("0000",)
    assert len(run.problems) == 1
    assert message in run.problems[0]
    assert "0000.json" in run.problems[0]
    assert run.problems[0].endswith("it is left out")


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("cell", {"model": 3}, "cell.model must be a str, but is 3"),
        ("cell", {"seed": -1}, "cell.seed must be a whole number from 0 on, but is -1"),
        ("cell", {"seed": True}, "cell.seed must be a whole number from 0 on, but is True"),
        ("cell", {"domains": [["fog"]]}, "cell.domains must be pairs of a name and a severity"),
        ("cell", {"domains": []}, "cell.domains must be pairs"),
        ("cell", {"options": [1]}, "cell.options must be a dict, but is [1]"),
        ("cell", {"images": "all"}, "cell.images must be a int, but is 'all'"),
        ("cell", {"precision": 32}, "cell.precision must be a str, but is 32"),
        ("result", {"top1": float("nan")}, "result.top1 must be a percentage, but is nan"),
        ("result", {"top1": 101}, "result.top1 must be a percentage, but is 101"),
        ("result", {"top1": None}, "result.top1 must be a percentage, but is None"),
        ("result", {"nll": "low"}, "result.nll must be a number, but is 'low'"),
        ("result", {"images": 1.5}, "result.images must be a int, but is 1.5"),
        ("measured", {"seconds": []}, "measured.seconds must be a number, but is []"),
        ("provenance", {"stand_in": "no"}, "provenance.stand_in must be a bool, but is 'no'"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, part: str, values: dict[str, object], message: str) -> None:
    write_run(tmp_path, [cell(), cell("tent")])
    path = change(tmp_path, 0, part, **values)
    run = load_run(tmp_path)
    assert [found.method for found in run.cells] == ["tent"]
    assert message in run.problems[0]
    assert run.problems[0].startswith(f"cells/{path.name}: ")


def test_numbers_that_are_not_finite_are_no_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, [cell()])
    change(tmp_path, 0, "result", nll=float("nan"), ece=float("inf"))
    (found,) = load_run(tmp_path).cells
    assert (found.measures["nll"], found.measures["ece"], found.top1) == (None, None, 50.0)


@pytest.mark.parametrize(
    "along", [{"seen": [2, 1], "top1": [1, 2]}, {"seen": [1], "top1": [1, 2]}, {"seen": "abc", "top1": 3}, {}]
)
def test_points_that_do_not_fit_together_are_no_curve(tmp_path: Path, along: dict[str, object]) -> None:
    write_run(tmp_path, [cell()])
    change(tmp_path, 0, "result", along=along)
    (found,) = load_run(tmp_path).cells
    assert found.along.top1 == ()


def test_a_cell_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path, [cell(top1=50.0), cell(top1=60.0)])
    run = load_run(tmp_path)
    assert [found.top1 for found in run.cells] == [50.0]
    assert "0001.json repeats a cell that another file has" in run.problems[0]


@pytest.mark.parametrize(
    ("changed", "heading"),
    [
        ({"statistics": "imagenet"}, "statistics imagenet"),
        ({"weights": "mine.safetensors"}, "weights mine.safetensors"),
        ({"precision": "bf16"}, "precision bf16"),
        ({"images": 500}, "images 500"),
        ({"calibration": 100}, "calibration 100"),
        ({"threads": 2}, "threads 2"),
        ({"options": {"length": 300}}, "length 300"),
        ({"batch": 2}, "batch 2"),
        ({"reset": False}, "no reset"),
    ],
)
def test_cells_that_differ_in_anything_stay_apart(tmp_path: Path, changed: dict[str, object], heading: str) -> None:
    run = load_run(write_run(tmp_path, [cell(top1=40.0), cell(top1=60.0, **changed)]))
    assert len(run.cells) == 2
    assert not any("repeats" in problem for problem in run.problems)
    found = comparisons(run)
    assert sorted(comparison.cells[0].top1 for comparison in found) == [40.0, 60.0]
    assert [heading in comparison.setting for comparison in found if comparison.cells[0].top1 == 60.0] == [True]
    assert len({comparison.setting for comparison in found}) == 2
    means = {table.section: table.rows[0].values[0].mean for table in tables(run) if table.kind == "accuracy"}
    assert sorted(means.values()) == [40.0, 60.0]


def test_the_shift_ratio_keeps_cells_apart(tmp_path: Path) -> None:
    options = [{"ratio": ratio, "repeats": True, "length": None} for ratio in (1000.0, 500_000.0)]
    run = load_run(write_run(tmp_path, [cell(scenario="shift", options=given) for given in options]))
    assert [comparison.setting for comparison in comparisons(run)] == [
        "Imbalanced label shift — glyphs, batch 64, ratio 1000",
        "Imbalanced label shift — glyphs, batch 64, ratio 500000",
    ]


def test_an_unusual_option_is_named_even_where_all_cells_have_it(tmp_path: Path) -> None:
    unusual = {"ratio": 1000.0, "repeats": True, "length": None}
    (found,) = comparisons(load_run(write_run(tmp_path / "a", [cell(scenario="shift", options=unusual)])))
    assert found.setting.endswith("batch 64, ratio 1000")
    (found,) = comparisons(load_run(write_run(tmp_path / "b", [cell(scenario="shift")])))
    assert found.setting.endswith("batch 64")


def test_guards_and_hyperparameters_are_rows_of_their_own(tmp_path: Path) -> None:
    cells = [cell("tent"), cell("tent", guard="collapse"), cell("tent", settings={"lr": 0.1})]
    (found,) = comparisons(load_run(write_run(tmp_path, cells)))
    assert [str(label) for label in found.labels] == ["Tent", "Tent (lr=0.1)", "Tent (collapse guard)"]


def test_cells_made_with_different_things_are_pointed_out(tmp_path: Path) -> None:
    cells = [cell(provenance={"torch": "2.6.0"}), cell("tent", provenance={"torch": "2.7.0", "model_digest": "other"})]
    run = load_run(write_run(tmp_path, cells))
    assert len(run.cells) == 2
    assert any("not all made with the same torch: 2.6.0, 2.7.0" in problem for problem in run.problems)
    assert any("same weights of glyph-resnet: mmmm" in problem for problem in run.problems)


def test_hidden_and_half_written_files_are_not_cells(tmp_path: Path) -> None:
    write_run(tmp_path, [cell()])
    (tmp_path / "cells" / ".abc.partial").write_text("{")
    (tmp_path / "cells" / ".hidden.json").write_text("{")
    run = load_run(tmp_path)
    assert (len(run.cells), run.problems) == (1, ())


def test_cells_without_a_plan_are_still_shown(tmp_path: Path) -> None:
    write_run(tmp_path, [cell(), cell("tent")])
    (tmp_path / "plan.json").write_text("{ broken")
    run = load_run(tmp_path)
    assert (len(run.cells), run.planned, run.command) == (2, None, "")
    assert "the command and the number of planned cells are not known" in run.problems[0]
    assert write_report(tmp_path).exists()


def test_what_a_killed_report_leaves_is_taken_away_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with all files of a run: those that were being written have names that are known."""
    write_run(tmp_path, [cell()])
    seen: list[str] = []

    def look(handle: int) -> None:
        seen.extend(path.name for path in (tmp_path / "report").iterdir() if path.name.startswith("."))

    monkeypatch.setattr("wildtta.files.os.fsync", look)
    write_report(tmp_path)
    assert len(seen) == 4
    assert all(Path(name).match(PARTIAL) for name in seen)
    (tmp_path / "report" / seen[0]).write_text("half")
    with Store(tmp_path).locked():
        assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
            "index.html",
            "results.csv",
            "results.md",
            "results.tex",
        ]
