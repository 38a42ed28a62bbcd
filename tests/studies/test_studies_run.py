"""Every study, on tiny settings: its files, its page, and that it goes on where it stopped."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sys
import time
import xml.etree.ElementTree as ET

import pytest
from PIL import Image
from small_studies import choice, numbers, place, summary
from typer.testing import CliRunner

from wildtta import files, methods
from wildtta.bench import store, work
from wildtta.bench.config import ConfigError
from wildtta.bench.store import RunError
from wildtta.cli import app
from wildtta.data import DataError
from wildtta.studies import STUDIES, Bench, Choice, TimeOverError, run_studies
from wildtta.studies import study as study_module
from wildtta.studies.study import csv_text

NAMES = list(STUDIES)
plan = sys.modules["wildtta.bench.plan"]  # the function of this name hides it


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    return place(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def done(where, tmp_path_factory):
    """All studies, carried out once."""
    folder = tmp_path_factory.mktemp("studies") / "run"
    bench = Bench(choice(where), folder)
    page = run_studies(NAMES, bench)
    assert bench.failures == {}
    return folder, page.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_files(done, name):
    folder, page = done
    found = summary(folder, name)
    assert found["study"] == name
    assert found["rows"]
    assert found["made"]["failures"] == {}
    assert found["made"]["command"].startswith(f"wildtta study {name} --out ")
    rows = list(csv.DictReader(io.StringIO((folder / name / f"{name}.csv").read_text())))
    assert len(rows) == len(found["rows"])
    for row, entry in zip(rows, found["rows"], strict=True):
        assert all(row[key] == ("" if value is None else str(value)) for key, value in entry.items()
                   if not isinstance(value, list | dict | float))  # fmt: skip
    pictures = STUDIES[name].pictures(found)
    assert pictures
    for each in pictures:
        assert ET.parse(folder / name / f"{each}.svg").getroot().tag.endswith("svg")
        with Image.open(folder / name / f"{each}.png") as image:
            assert min(image.size) > 200
            assert len(image.convert("L").getcolors() or range(999)) > 8, "nothing is drawn"
    assert f'id="study-{name}"' in page
    part = page.partition(f'id="study-{name}"')[2].partition("</section>")[0]
    assert part.count("<figure>") == len(pictures)
    assert part.count("<table>") >= len(STUDIES[name].tables(found))
    assert STUDIES[name].findings(found)
    for grid in STUDIES[name].tables(found):
        assert all(len(row) == len(grid.columns) for row in grid.rows)


def test_the_page_needs_nothing_but_itself(done):
    _, page = done
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "#0200" not in page, "a colour was left that is not the page's"
    assert "nan" not in re.sub(r"<[^>]*>", "", page).lower().split()


def test_nothing_is_run_again(done, where, monkeypatch):
    folder, _ = done
    bench = Bench(choice(where), folder, until=time.monotonic() - 1)
    names = ["bounds", "cost", "stability"]
    before = {name: numbers(summary(folder, name)) for name in names}
    run_studies(names, bench)
    assert {name: numbers(summary(folder, name)) for name in names} == before


def test_the_studies_own_methods_are_gone_afterwards(done):
    assert not any(name.startswith(("component", "entropy-in")) for name in methods())


class Killed(BaseException):
    """No handler of errors sees it, and nothing is cleaned up."""


@pytest.mark.parametrize("name", ["sensitivity", "features", pytest.param("consistency", marks=pytest.mark.slow)])
def test_killed_at_every_file_that_it_writes(done, where, tmp_path, monkeypatch, name):
    folder, _ = done
    put, chance, calls, kills = files.put, random.Random(1), 0, 0

    def dies(path, data):
        """Before a file is whole, or right after it is."""
        nonlocal calls
        calls += 1
        before, after = (chance.random() < 0.25 and kills < 30 for _ in range(2))
        if before:
            (path.parent / f".{calls}.partial").write_bytes(data[: len(data) // 2])
            raise Killed
        put(path, data)
        if after:
            raise Killed

    for module in (files, store, study_module):
        monkeypatch.setattr(module, "put", dies)
    while True:
        try:
            with (bench := Bench(choice(where), tmp_path / "run")).at_work():
                study_module.carry_out(STUDIES[name], bench)
            break
        except Killed:
            kills += 1  # the last writes of a study all have to get through in one go: after 30 they do
    assert kills > 1
    assert numbers(summary(tmp_path / "run", name)) == numbers(summary(folder, name))
    assert (tmp_path / "run" / name / f"{name}.csv").read_text() == (folder / name / f"{name}.csv").read_text()


def test_out_of_time(where, tmp_path):
    bench = Bench(choice(where), tmp_path / "run", until=time.monotonic() - 1)
    with pytest.raises(TimeOverError):
        run_studies(["bounds"], bench)
    assert not (tmp_path / "run" / "bounds" / "summary.json").exists()


def test_costly_methods_are_timed_where_that_is_asked_for(tmp_path):
    asked = Choice(costly=True, scenarios=["mild"], images=8, calibration=32, lr="x3")
    assert asked.command("cost", "runs/s") == (
        "wildtta study cost --out runs/s --images 8 --lr x3 --scenarios mild --costly --calibration 32"
    )
    with (bench := Bench(asked, tmp_path / "run")).at_work():
        found = study_module.carry_out(STUDIES["cost"], bench)
    rows = {row["method"]: row for row in found["rows"]}
    assert bench.failures == {}
    assert (rows["memo"]["forwards"], rows["memo"]["backwards"], rows["memo"]["diffusion_steps"]) == (65, 64, 0)
    assert rows["dda"]["forwards"] == 2
    assert rows["dda"]["diffusion_steps"] > 1
    assert min(rows["memo"]["ms"], rows["dda"]["ms"]) > 10 * rows["tent"]["ms"], (
        "a batch of 64 takes as many times as long"
    )
    (table,) = STUDIES["cost"].tables(found)
    place = table.columns.index("diffusion steps")
    assert {row[0]: row[place] for row in table.rows}["dda"] == str(rows["dda"]["diffusion_steps"])
    assert {row[0]: row[-1] for row in table.rows}["dda"] == "120.70"
    plain = {**found, "rows": [row for row in found["rows"] if row["method"] not in ("memo", "dda")]}
    assert "diffusion steps" not in STUDIES["cost"].tables(plain)[0].columns


def test_results_of_other_scenarios(where, tmp_path):
    bench = Bench(choice(where, scenarios=["mild"], images=8), tmp_path / "run")
    run_studies(["results"], bench)
    found = summary(tmp_path / "run", "results")
    assert {row["scenario"] for row in found["rows"]} == {"mild"}
    assert found["images"] == {"mild": 8}
    with pytest.raises(ConfigError, match="wlid"):
        run_studies(["results"], Bench(choice(where, scenarios=["wlid"]), tmp_path / "other"))


def test_a_command_that_is_not_finished_says_so_by_its_code(where, tmp_path):
    run, words = CliRunner(), ["study", "bounds", "--models", where["models"][0], "--data", where["data"]]
    over = run.invoke(app, [*words, "--out", str(tmp_path / "run"), "--until", "0"])
    assert over.exit_code == 3, over.output
    assert "the same command goes on" in over.output
    wrong = run.invoke(app, [*words, "--out", str(tmp_path / "other"), "--until", "0", "--kinds", "fgo"])
    assert wrong.exit_code == 2
    assert "did you mean 'fog'" in wrong.output


def test_what_would_stop_streams_is_told_before_anything_runs(where, tmp_path):
    with pytest.raises(DataError, match=r"has no 'fgo'; did you mean 'fog'\?"):
        run_studies(NAMES, Bench(choice(where, kinds=["fog", "fgo"]), tmp_path / "run"))
    damaged = place(tmp_path)
    for picture in (tmp_path / "pictures").rglob("*.jpg"):
        picture.write_bytes(picture.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        run_studies(["cost"], Bench(choice(damaged), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_models_and_data_are_opened_once(where, tmp_path, monkeypatch):
    def again(*given, **options):
        raise AssertionError("opened again")

    opened, load = [], plan.load_model
    monkeypatch.setattr(plan, "load_model", lambda *given, **options: opened.append(given) or load(*given, **options))
    monkeypatch.setattr(work, "load_model", again)
    bench = Bench(choice(where), tmp_path / "run")
    run_studies(["features"], bench)
    assert bench.failures == {}
    assert len(opened) == 1


def test_a_stream_that_fails_costs_no_other(where, tmp_path, monkeypatch):
    from wildtta.bench.work import Workshop

    run = Workshop.run

    def fails(self, family, progress):
        if family[0].method == "deyo":
            raise RuntimeError("no patience")
        run(self, family, progress)

    monkeypatch.setattr(Workshop, "run", fails)
    bench = Bench(choice(where, kinds=["fog"]), tmp_path / "run")
    page = run_studies(["sensitivity"], bench).read_text()
    assert [reason for reason in bench.failures.values()] == ["RuntimeError: no patience"]
    assert "no patience" in page
    found = summary(tmp_path / "run", "sensitivity")
    assert {row["method"] for row in found["rows"]} == {"recap", "source", "tent", "eta", "sar"}


def test_a_study_of_which_all_failed_says_why(where, tmp_path, monkeypatch):
    from wildtta.bench.work import Workshop

    def fails(self, family, progress):
        raise RuntimeError("no patience")

    monkeypatch.setattr(Workshop, "run", fails)
    with pytest.raises(RunError, match=r"'components' has no result at all: RuntimeError: no patience"):
        run_studies(["components"], Bench(choice(where), tmp_path / "run"))
    assert not (tmp_path / "run" / "components" / "summary.json").exists()


def test_a_damaged_summary_is_named(done, tmp_path):
    folder, _ = done
    (tmp_path / "bounds").mkdir()
    path = tmp_path / "bounds" / "summary.json"
    for damage in ((folder / "bounds" / "summary.json").read_bytes()[:100], b"[]", b'{"format": 99}'):
        path.write_bytes(damage)
        with pytest.raises(RunError, match=re.escape(str(path))):
            study_module.read_summary(tmp_path / "bounds")


def test_rows_of_unlike_names_make_one_table():
    text = csv_text([{"a": 1, "b": None}, {"a": 0.5, "c": [1, 2]}])
    assert text == 'a,b,c\n1,,\n0.5,,"[1, 2]"\n'


def test_a_report_shows_the_studies_of_its_run(done, where, tmp_path):
    import shutil

    from wildtta.bench import Config, run
    from wildtta.report import write_report

    folder, _ = done
    config = Config(
        models=where["models"], data=[where["data"]], kinds=["fog"], scenarios=["mild"], methods=["source"], images=8
    )
    run(config, tmp_path / "run")
    assert "study-bounds" not in write_report(tmp_path / "run").read_text()
    shutil.copytree(folder / "bounds", tmp_path / "run" / "studies" / "bounds")
    page = write_report(tmp_path / "run").read_text()
    assert page.count('id="study-bounds"') == 1
    assert 'href="#study-bounds"' in page
    assert "study-cost" not in page


def test_rates_that_were_tuned_are_used(done, where, tmp_path):
    folder, _ = done
    rates = folder / "tune" / "rates.json"
    chosen = json.loads(rates.read_text())["chosen"]
    bench = Bench(choice(where, rates=str(rates)), tmp_path / "run")
    from wildtta.studies import trial

    for row in chosen:
        one = trial("", row["method"], row["scenario"])
        assert bench.settings_of(one, row["model"]) == row["settings"]
    mixed = next(row["settings"] for row in chosen if (row["method"], row["scenario"]) == ("recap", "mixed"))
    assert bench.settings_of(trial("", "recap", "mild"), where["models"][0]) == mixed
    assert bench.settings_of(trial("", "recap", "mild", lr="x7"), where["models"][0])["lr"] == "x7"
    assert bench.settings_of(trial("", "recap", tuned=False), where["models"][0]) == {}
    assert bench.settings_of(trial("", "source"), where["models"][0]) == {}
    with pytest.raises(ConfigError, match="has no settings for glyph-vit"):
        Bench(Choice(models=["glyph-vit"], rates=str(rates)), tmp_path / "other")
