"""The program that makes all results on a GPU, tried out on the CPU with tiny settings."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from small_studies import numbers, place, summary

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def program():
    specification = importlib.util.spec_from_file_location("results_gpu", ROOT / "benchmarks" / "results_gpu.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["results_gpu"] = module  # where its dataclass looks for its module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["results_gpu"]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    where = place(tmp_path_factory.mktemp("data"))
    return [
        "--data", "nowhere", "--layout", where["data"], "--models", *where["models"], "--device", "cpu", "--precision", "float32",
        "--scale", "small", "--images", "8", "--tune-images", "8", "--seeds", "2", "--kinds", "fog", "--lr", "x300",
        "--calibration", "32",
    ]  # fmt: skip


FIRST = ["--stages", "tune", "results, first"]
MORE = ["--stages", "tune", "results", "bounds"]


def _stopped_now_and_then(program, arguments, monkeypatch, capsys, every, after_two=lambda: None):
    """Each call runs so many families of streams, however fast the machine is; how many calls it took."""
    hurry, runs, calls = program.Bench._hurry, [], 0

    def limited(self):
        runs.append(self)
        if len(runs) % every == 0:
            self.until = 0.0
        hurry(self)

    with monkeypatch.context() as patch:
        patch.setattr(program.Bench, "_hurry", limited)
        while program.main(arguments) == 3:
            calls += 1
            assert "the time is over" in capsys.readouterr().out
            assert calls < 60
            if calls == 2:
                after_two()
    assert "all done" in capsys.readouterr().out
    return calls


def test_it_stops_goes_on_elsewhere_and_uses_what_was_tuned(program, given, tmp_path, monkeypatch, capsys):
    arguments = [*given, *FIRST, "--out", str(tmp_path / "one"), "--archive", str(tmp_path / "all.tar.gz")]

    def another_machine():
        """It has the archive alone."""
        arguments[arguments.index("--out") + 1] = str(tmp_path / "two")

    assert _stopped_now_and_then(program, arguments, monkeypatch, capsys, 12, another_machine) > 2
    assert not (tmp_path / "one" / "tuned" / "results").exists()
    chosen = json.loads((tmp_path / "two" / "tune" / "tune" / "rates.json").read_text())["chosen"]
    settings = {(each["method"], each["scenario"]): each["settings"] for each in chosen}
    rows = summary(tmp_path / "two" / "tuned", "results")["rows"]
    assert {(row["method"], row["scenario"]) for row in rows} > settings.keys()
    assert all(row["settings"] == settings.get((row["method"], row["scenario"]), {}) for row in rows)
    assert program.main([*given, *FIRST, "--out", str(tmp_path / "two"), "--publish", str(tmp_path / "docs")]) == 0
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["results-tuned", "tune"]


@pytest.mark.slow
def test_it_ends_as_a_run_that_was_left_in_peace(program, given, tmp_path, monkeypatch, capsys):
    stopped = [*given, *MORE, "--out", str(tmp_path / "stopped")]
    assert _stopped_now_and_then(program, stopped, monkeypatch, capsys, 9) > 2
    assert program.main([*given, *MORE, "--out", str(tmp_path / "peace")]) == 0
    for folder, name in (("tune", "tune"), ("tuned", "results"), ("published", "results"), ("studies", "bounds")):
        one, two = (numbers(summary(tmp_path / each / folder, name))["rows"] for each in ("stopped", "peace"))
        assert one == two
    rows = summary(tmp_path / "peace" / "tuned", "results")["rows"]
    assert {row["seed"] for row in rows} == {2023, 2024}
    published = summary(tmp_path / "peace" / "published", "results")["rows"]
    assert {row["scenario"] for row in published} == {"limited", "mixed", "shift", "mild"}
    assert {row["settings"].get("lr") for row in published} == {"x300", None}


def test_what_is_most_valuable_comes_first(program, given, tmp_path, capsys):
    assert program.main([*given, "--out", str(tmp_path / "none"), "--plan"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["tune", "results, first seed"]
    assert names[-1] == "results, all seeds"
    assert not (tmp_path / "none").exists()


def test_memo_goes_on_as_the_rest_does(program, given, tmp_path, capsys):
    memo = [*given, "--out", str(tmp_path / "run"), "--stages", "memo", "--memo-images", "2", "--memo-views", "2"]
    assert program.main([*memo, "--until", "0"]) == 3
    assert "the time is over" in capsys.readouterr().out
    assert program.main([*memo, "--plan"]) == 0
    assert "memo: 0 of 6 images" in capsys.readouterr().out
    assert program.main(memo) == 0
    assert program.main([*memo, "--publish", str(tmp_path / "docs")]) == 0
    found = json.loads((tmp_path / "docs" / "memo_tiny.json").read_text())
    assert {key.split("|")[1] for key in found} == {"gaussian_noise", "defocus_blur", "contrast"}
    assert [len(cell["memo"]) for cell in found.values()] == [2, 2, 2]
    assert program.main([*memo, "--memo-views", "0"]) == 3, "what cannot be is not done"


def test_tuned_stages_wait_for_tune(program, given, tmp_path, capsys):
    assert program.main([*given, "--out", str(tmp_path / "run"), "--stages", "results, first"]) == 3
    assert "waits for tune" in capsys.readouterr().out
