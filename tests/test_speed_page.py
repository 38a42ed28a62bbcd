"""The page on speed: its tables are those that the result files give, and the script that makes them on a GPU runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> object:
    """Imports a script from the folder of benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def imported(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return imported


def test_the_tables_come_from_the_results(script) -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    assert script("speed_page").filled(page) == page


def test_goals_are_judged_by_the_files(script, tmp_path: Path) -> None:
    pages = script("speed_page")
    assert pages.goals(tmp_path).count(pages.MISSING) == len(pages.GOALS)
    rows = [{"name": "recap, sparing", "ratio": [0.8, 0.9, 1.0], "work_ratio": [0.7, 0.7, 0.7], "selected": 0.4}]
    (tmp_path / "cpu-real.json").write_text(json.dumps({"images": "real", "rows": rows}))
    (tmp_path / "loss.json").write_text(json.dumps({"share": [0.1, 0.2, 0.3]}))
    (tmp_path / "accuracy.json").write_text(json.dumps({"rows": []}))
    shown = pages.goals(tmp_path)
    assert "| ≤ 0.95 | 0.9 (quartiles 0.80 to 1.00; by work 0.70; 40% of the real images teach) | met |" in shown
    assert "| ≤ 0.005 | 0.2 | missed |" in shown
    assert "not in the results (ValueError)" in shown


ALL = [
    "goals-resnet",
    "goals-vit",
    "fleet",
    "loss",
    "cost",
    "accuracy",
    "all-resnet",
    "all-vit",
    "share",
    "corruptions",
]
ALL += ["grow-batch", "grow-classes", "grow-streams", "compiled", "equality"]
NOT_HERE = {"accuracy", "corruptions", "compiled", "equality"}


@pytest.mark.parametrize("only", [["goals-resnet", "fleet", "loss", "cost"], pytest.param(ALL, marks=pytest.mark.slow)])
def test_the_gpu_script_runs(script, only: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run on tiny networks gives the files, and the page can show them."""
    gpu, pages = script("gpu"), script("speed_page")
    assert gpu.main(["--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", *only]) == 0, (
        capsys.readouterr().out
    )
    written = {file.stem for file in tmp_path.glob("*.json")}
    assert written == set(only) - NOT_HERE
    assert not list(tmp_path.glob("*.failed"))
    for goal in pages.GOALS:
        if goal.file in written and goal.file != "cost":
            assert goal.line(tmp_path).endswith(("| met |", "| missed |")), goal.what
    for name in written & set(pages.PARTS):
        assert pages.PARTS[name](tmp_path).count("\n") > 4
    assert "| goal |" in capsys.readouterr().out
    assert set(ALL) == {name.replace("_", "-") for name in gpu.Tasks._names()}


def test_the_gpu_script_goes_on_where_it_stopped(script, tmp_path: Path) -> None:
    """What is there stays; a failure is told, stops nothing, and is tried again; with no time left nothing new begins."""
    gpu, calls = script("gpu"), []

    def works(self: object) -> dict[str, int]:
        calls.append("works")
        return {"found": 1}

    def fails(self: object) -> dict[str, int]:
        calls.append("fails")
        raise RuntimeError("out of memory, say")

    gpu.Tasks.loss, gpu.Tasks.fleet, gpu.Tasks.share = fails, works, works
    asked = ["--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", "loss", "fleet"]
    assert gpu.main(asked) == 1
    assert calls == ["fails", "works"]
    assert "out of memory, say" in (tmp_path / "loss.failed").read_text()
    assert json.loads((tmp_path / "fleet.json").read_text())["found"] == 1
    gpu.Tasks.loss = works
    assert gpu.main(asked) == 0
    assert calls == ["fails", "works", "works"]
    assert {file.name for file in tmp_path.iterdir()} == {"loss.json", "fleet.json"}
    assert gpu.main([*asked, "share", "--budget", "-1"]) == 0
    assert not (tmp_path / "share.json").exists()
