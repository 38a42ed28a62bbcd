"""DDA in the benchmark: its model, its adapted images, its cost, its pictures, and how many images it gets."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_bench import asked, config, of, refused, write_folder, write_models
from typer.testing import CliRunner

import wildtta
from wildtta import cli
from wildtta.bench import Config, run
from wildtta.bench.config import ConfigError
from wildtta.bench.images import Kept
from wildtta.bench.plan import open_settings, plan
from wildtta.data import open_data
from wildtta.models import load_model
from wildtta.report import load_run, tables, write_report

FAST = {"dda.steps": 20, "dda.start": 2}
ONCE: dict[str, Any] = {
    "scenarios": ["mild"],
    "kinds": ["fog"],
    "methods": ["source", "dda"],
    "images": 5,
    "settings": FAST,
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dda") / "run"
    summary = run(config(**ONCE, models=["glyph-resnet", "glyph-vit"]), folder)
    assert not summary.failed
    return folder


def measured(folder: Path, **wanted: Any) -> dict[str, Any]:
    contents = [json.loads(file.read_text()) for file in (folder / "cells").glob("*.json")]
    (found,) = [c for c in contents if all(c["cell"][name] == value for name, value in wanted.items())]
    return found["measured"]


def test_a_result_is_what_the_library_gives_by_hand(done: Path) -> None:
    result = of(done, method="dda", model="glyph-resnet")["result"]
    model = load_model("glyph-resnet")
    data = open_data("glyphs", model)
    domain = data.domain("fog", 5)
    numbers = Kept(domain, 5, torch.device("cpu"), 0).numbers
    prepared = model.preprocessing
    adapter = wildtta.adapt(
        model.network, "dda", seed=2023, diffusion="glyphs", statistics=(prepared.mean, prepared.std), steps=20, start=2
    )
    logits = adapter(prepared.normalise(domain.read(numbers)[0]))
    loss = torch.nn.functional.cross_entropy(logits, domain.labels[numbers]).item()
    assert result["nll"] == pytest.approx(loss, abs=0.02)  # adapted images are kept at 8 bits
    assert result["nll"] != pytest.approx(of(done, method="source", model="glyph-resnet")["result"]["nll"], abs=1e-3)
    assert (result["forwards"], result["backwards"], result["diffusion_steps"]) == (2, 0, 10)
    assert of(done, method="source", model="glyph-vit")["result"]["diffusion_steps"] == 0


def test_both_models_share_the_adapted_images_and_so_does_another_run(done: Path, tmp_path: Path) -> None:
    counts = [measured(done, method="dda", model=name)["adapted"] for name in ("glyph-resnet", "glyph-vit")]
    assert sorted((count["made"], count["found"]) for count in counts) == [(0, 5), (5, 0)]
    assert len(list((done / "adapted").rglob("*.png"))) == 5
    assert "adapted" not in measured(done, method="source", model="glyph-vit")
    settings = of(done, method="dda", model="glyph-vit")["provenance"]["settings"]
    assert (settings["steps"], settings["start"]) == (20, 2)
    assert settings["diffusion"] == wildtta.diffusion.load("glyphs").digest


def test_the_report_has_a_column_and_a_picture_of_before_and_after(done: Path) -> None:
    found = load_run(done)
    (picture,) = found.adapted.values()
    with Image.open(picture) as image:
        assert image.size == (5 * 100, 3 * 100)  # clean, corrupted, adapted
    page = write_report(done).read_text()
    assert "Before and after DDA" in page
    assert "fog, severity 5" in page
    (table,) = [table for table in tables(found) if table.kind == "measures" and "vit" in table.title]
    place = [column.name for column in table.columns].index("Diff.")
    assert {row.label.partition(" ")[0]: row.values[place].mean for row in table.rows} == {"Source": 0, "DDA": 10}


def test_images_that_are_corrupted_as_they_are_read_are_shown_as_they_were_too(tmp_path: Path) -> None:
    folder, models = write_folder(tmp_path / "images", each=2), write_models(tmp_path)
    settings = FAST | {"dda.diffusion": "glyphs", "dda.resize": True}
    given = ONCE | {"methods": ["dda"], "settings": settings, "data": [f"folder:{folder}"], "images": 4}
    assert not run(config(**given, models=[f"{models}:tiny"]), tmp_path / "run").failed
    with Image.open(tmp_path / "run" / "gallery" / "adapted" / "fog-5.png") as image:
        assert image.size == (4 * 100, 3 * 100)  # clean, corrupted, adapted


def test_runs_without_dda_say_nothing_of_it(tmp_path: Path) -> None:
    run(config(scenarios=["mild"], kinds=["fog"], methods=["source"]), tmp_path / "run")
    found = load_run(tmp_path / "run")
    assert not found.adapted
    assert "Before and after" not in write_report(tmp_path / "run").read_text()
    assert "Diff." not in {column.name for table in tables(found) for column in table.columns}


def test_single_images_and_mixed_streams_find_the_same_adapted_images(tmp_path: Path) -> None:
    given = ONCE | {"kinds": ["fog", "contrast"], "scenarios": ["limited", "mixed"], "images": 3, "methods": ["dda"]}
    summary = run(config(**given), tmp_path / "run")
    assert not summary.failed
    assert len(list((tmp_path / "run" / "adapted").rglob("*.png"))) == 6
    assert of(tmp_path / "run", scenario="limited", kind="fog")["result"]["forwards"] == 6


def test_costly_methods_get_a_sample_and_the_source_is_run_on_it_too(tmp_path: Path) -> None:
    given = config(scenarios=["mild"], methods=["source", "tent", "dda"], images=12, sample=4, settings=FAST)
    counts = sorted((c.method, c.images) for c in plan(given, open_settings(given)) if c.kind == "fog")
    assert counts == [("dda", 4), ("source", 4), ("source", 12), ("tent", 12)]
    plain = config(scenarios=["mild"], methods=["source", "tent"], images=12, sample=4)
    assert {c.images for c in plan(plain, open_settings(plain))} == {12}
    few = config(scenarios=["mild"], methods=["source", "dda"], images=3, sample=4, settings=FAST)
    assert {c.images for c in plan(few, open_settings(few))} == {3}
    run(given, tmp_path / "run")
    found = {table.title: [row.label for row in table.rows] for table in tables(load_run(tmp_path / "run"))}
    own = [(title, labels) for title, labels in found.items() if "images 4" in title and "Accuracy" in title]
    rest = [(title, labels) for title, labels in found.items() if "images 12" in title and "Accuracy" in title]
    assert [[label.partition(" ")[0] for label in labels] for _, labels in own] == [["Source", "DDA"]]
    assert [labels for _, labels in rest] == [["Source", "Tent"]]
    (overview,) = [labels for title, labels in found.items() if title.startswith("Overview")]
    assert [label.partition(" ")[0] for label in overview] == ["Source", "DDA", "Tent"]


def test_the_demo_runs_the_costly_methods_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = asked(monkeypatch, "demo", "--methods", "all")
    assert "dda" in found.methods
    assert found.sample == 16
    assert found.settings_of("memo") == {"lr": "x1", "crop": False, "flip": False}
    assert found.settings_of("recap") == {"lr": "x30"}
    assert "dda" not in asked(monkeypatch, "demo")[0].methods
    assert asked(monkeypatch, "bench", "--out", "x", "--sample", "7")[0].sample == 7
    with pytest.raises(ConfigError, match="sample must be at least 1"):
        Config(sample=0)


@pytest.mark.parametrize(
    ("methods", "settings"),
    [
        ("source", {}),
        ("dda", {}),
        ("source,tent", {"lr": "x30"}),
        ("memo", {"memo.lr": "x1", "memo.crop": False, "memo.flip": False}),
    ],
)
def test_the_command_of_a_demo_is_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, methods: str, settings: dict[str, Any]
) -> None:
    """It stands on the page, for others to type."""
    found, out = asked(monkeypatch, "demo", "--methods", methods)
    assert (found.settings, found.options) == (settings, {"shift.repeats": False})
    assert asked(monkeypatch, *shlex.split(found.command(out))[1:]) == (found, out)


def test_a_demo_of_a_method_that_is_none() -> None:
    assert "unknown method 'tentt'; did you mean tent" in refused("demo", "--methods", "tentt")


def test_methods_shows_what_dda_takes() -> None:
    result = CliRunner().invoke(cli.app, ["methods", "dda"])
    assert result.exit_code == 0
    assert "diffusion" in result.stdout
    assert "CVPR 2023" in result.stdout


# -- what cannot be is said before anything runs -----------------------------------------------------------------------


def test_data_that_no_model_knows_need_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    models = write_models(tmp_path)
    said = refused(
        "bench", "--out", str(tmp_path / "run"), "--models", f"{models}:tiny", "--data", f"folder:{folder}", "--methods", "dda"
    )  # fmt: skip
    assert "needs a diffusion model that knows images like those of" in said
    assert "--set dda.diffusion=PATH" in said
    said = refused(
        "bench", "--out", str(tmp_path / "run"), "--models", f"{models}:tiny", "--data", f"folder:{folder}", "--methods", "dda",
        "--set", "dda.diffusion=glyphs",
    )  # fmt: skip
    assert "is of images of 32 × 32 pixels, these have 24 × 24" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("diffusion=nowhere", "there is no diffusion model nowhere"),
        ("start=500", "start is a step of the 50, from 1 to 49, but is 500"),
        ("down=5", "down must divide the model's sides"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, setting: str, words: str) -> None:
    said = refused("bench", "--out", str(tmp_path / "run"), "--methods", "dda", "--set", f"dda.{setting}")
    assert words in said


def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    said = refused("bench", "--out", str(tmp_path / "run"), "--methods", "dda")
    assert 'pip install "wildtta[dda]"' in said
