"""What would stop a run is found before it begins, by `wildtta check` and by the run itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_bench import config, write_folder, write_models
from typer.testing import CliRunner

from wildtta import cli
from wildtta.bench import preflight, run, work
from wildtta.data import DataError


@pytest.fixture
def folders(tmp_path):
    """Images with one corruption, a model for them, and flags for both."""
    write_folder(tmp_path / "c" / "fog" / "5")
    return ["--models", f"{write_models(tmp_path)}:tiny", "--data", f"imagenet-c:{tmp_path / 'c'}"]


def _checked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["check", *arguments])
    assert "Traceback" not in result.output
    return result.exit_code, " ".join(result.output.split())


GLYPHS = ["--models", "glyph-resnet", "--data", "glyphs", "--kinds", "fog"]
FAULTS = {
    "a rate that is none": (["--set", "lr=abc"], "tent for glyph-resnet: lr must be a number"),
    "a rate for one method": (["--set", "recap.lr=-1"], "recap for glyph-resnet: "),
    "an optimiser that is none": (["--methods", "memo", "--set", "optimiser=adam"], 'optimiser must be "sgd" or "adamw"'),
    "more moments than images": (
        ["--scenarios", "mild", "--option", "mild.length=3000"],
        "scenario 'mild' on glyphs: length must be at most the number of images of each kind, but one has 2000",
    ),
    "more moments than images are asked for": (
        ["--scenarios", "limited", "--option", "limited.length=30", "--images", "20"],
        "scenario 'limited' on glyphs: length must be at most the number of images of each kind, but one has 20",
    ),
    "an option that is none": (["--scenarios", "mild", "--option", "mild.ratio=3"], "has no option 'ratio'"),
    "a moment for a reset that is none": (
        ["--kinds", "fog,snow", "--scenarios", "mixed", "--reset"],
        "there is no moment between them for a reset",
    ),
    "a diffusion model that is none": (
        ["--methods", "dda", "--set", "dda.diffusion=nowhere"],
        "there is no diffusion model nowhere",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_run_is_a_fault_of_a_check_and_stops_a_run(tmp_path, monkeypatch, fault):
    flags, words = FAULTS[fault]
    code, said = _checked(*GLYPHS, *flags)
    assert (code, said.endswith("to mend before a run")) == (2, True), said
    assert words in said
    monkeypatch.setattr(work.Workshop, "run", lambda *_: pytest.fail("a cell was run"))
    result = CliRunner().invoke(cli.app, ["bench", "--out", str(tmp_path / "run"), *GLYPHS, *flags])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()


def test_methods_that_need_source_images_on_data_that_have_none(folders):
    code, said = _checked(*folders, "--kinds", "fog", "--scenarios", "mild")
    assert code == 2
    for method in ("eata", "recap", "recap+sar", "recap+deyo"):
        assert f"'{method}' needs uncorrupted source images, and {folders[-1]} has none" in said
    assert "'tent' needs" not in said
    assert _checked(*folders, "--kinds", "fog", "--scenarios", "mild", "--methods", "source,tent")[0] == 0


def test_what_can_run_is_ready():
    code, said = _checked(
        *GLYPHS, "--scenarios", "mild,shift,limited", "--option", "shift.length=5000", "--set", "lr=x3"
    )
    assert (code, said.split(" ✓ ")[-1].endswith("ready to run")) == (0, True)


def test_all_methods_are_composed_and_none_is_run(monkeypatch):
    monkeypatch.setattr(work.Workshop, "run", lambda *_: pytest.fail("a cell was run"))
    found = preflight(config(methods=["all"]))
    assert [finding for finding in found.findings if finding.level != "ok"] == []
    assert len({cell.method for cell in found.cells}) > 8


def _arrays(folder: Path) -> None:
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(np.arange(10), 5))
    np.save(folder / "fog.npy", np.random.RandomState(0).randint(0, 256, (50, 32, 32, 3), dtype=np.uint8))


TEN = """

def ten():
    return Model("ten", _network(10), Preprocessing((32, 32)))
"""


@pytest.mark.parametrize("layout", ["imagenet-c", "cifar10-c"])
def test_a_missing_corruption_is_an_error_unless_the_others_are_named(tmp_path, folders, layout):
    if layout == "cifar10-c":
        _arrays(tmp_path / "arrays")
        with (tmp_path / "models.py").open("a") as file:
            file.write(TEN)
        folders = ["--models", f"{tmp_path}/models.py:ten", "--data", f"cifar10-c:{tmp_path}/arrays"]
    usual = [*folders, "--scenarios", "mild", "--methods", "source"]
    code, said = _checked(*usual)
    assert code == 2
    assert f"{folders[-1]} lacks 14 of the benchmark's 15 corruptions: gaussian_noise, " in said
    assert "unpack them there, or name those to run with --kinds" in said
    assert _checked(*usual, "--kinds", "fog")[0] == 0
    given = {"models": [folders[1]], "data": [folders[3]], "scenarios": ["mild"], "methods": ["source"]}
    with pytest.raises(DataError, match="lacks 14 of the benchmark's 15 corruptions"):
        run(config(**given, kinds=[]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run(config(**given, kinds=["fog"]), tmp_path / "run").finished == 1


def test_a_head_that_is_cut_down_is_told_without_a_guess(tmp_path):
    """How many outputs the model has is not known from the last class that the data have."""
    folder, models = write_folder(tmp_path / "set", classes=2), write_models(tmp_path)
    found = preflight(config(models=[f"{models}:tiny"], data=[f"folder:{folder}"], methods=["source"]))
    assert (
        found.findings[0].text == f"folder:{folder} for {models}:tiny: 2 classes; the model's head is cut down to them"
    )
