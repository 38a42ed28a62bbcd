"""A run only goes on with the weights and the images that its results were made from."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tiny_bench import config, of, results, write_folder, write_image, write_models

from wildtta.bench import origin, run
from wildtta.bench.store import RunError
from wildtta.models import Model, load_model


@pytest.fixture
def given(tmp_path):
    """A model with weights in a file, on a folder of images: two cells."""

    def make(**others):
        usual = {"data": [f"folder:{folder}"], "kinds": ["fog"], "scenarios": ["mild"], "weights": str(weights)}
        return config(**usual | {"models": [f"{models}:tiny"]} | others)

    folder, models, weights = write_folder(tmp_path / "set"), write_models(tmp_path), tmp_path / "w.pt"
    torch.save(load_model(f"{models}:tiny").network.state_dict(), weights)
    return make


def _refused(given, folder) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError) as error:
        run(given, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(error.value)


@pytest.mark.parametrize("methods", [["source", "tent"], ["sar"]], ids=["the same plan", "one that grew"])
def test_weights_that_were_overwritten(given, tmp_path, methods):
    run(given(), tmp_path / "run")
    changed = {name: value + 0.1 for name, value in torch.load(tmp_path / "w.pt").items()}
    torch.save(changed, tmp_path / "w.pt")
    said = _refused(given(methods=methods), tmp_path / "run")
    assert (
        f"has results with the model {tmp_path}/models.py:tiny with {tmp_path}/w.pt as it was (models.py_tiny__" in said
    )
    assert said.endswith("; name another folder with --out")
    run(given(methods=methods), tmp_path / "another")
    if "tent" in methods:
        old, new = (of(tmp_path / name, method="tent")["result"]["nll"] for name in ("run", "another"))
        assert old != new


def test_images_that_were_changed(given, tmp_path):
    run(given(), tmp_path / "run")
    write_image(tmp_path / "set" / "class1" / "0.jpg", seed=7, side=40)
    assert f"with the data folder:{tmp_path}/set as it was" in _refused(given(), tmp_path / "run")


def test_source_images_that_were_changed(given, tmp_path):
    shutil.copytree(tmp_path / "set", tmp_path / "clean")
    given_source = given(source=str(tmp_path / "clean"))
    run(given_source, tmp_path / "run")
    (tmp_path / "clean" / "class1" / "0.jpg").unlink()
    assert f"with the source images of {tmp_path}/clean as it was" in _refused(given_source, tmp_path / "run")


def test_other_weights_beside_those_of_before_are_no_matter(given, tmp_path):
    """They have another name, so their cells are others."""
    run(given(), tmp_path / "run")
    torch.save({name: value + 0.1 for name, value in torch.load(tmp_path / "w.pt").items()}, tmp_path / "v.pt")
    assert run(given(weights=str(tmp_path / "v.pt")), tmp_path / "run").finished == 2
    assert run(given(), tmp_path / "run").kept == 2


def test_frost_of_another_source(given, tmp_path, monkeypatch):
    """Photographs where a package is installed, else drawn: the same cell has other images on another machine."""
    both = given(kinds=["fog", "frost"])
    run(both, tmp_path / "run")
    usual = origin.frost_source()
    assert of(tmp_path / "run", kind="frost", method="tent")["provenance"]["frost"] == usual
    assert "frost" not in of(tmp_path / "run", kind="fog", method="tent")["provenance"]
    monkeypatch.setattr(origin, "frost_source", lambda: "elsewhere")
    said = _refused(both, tmp_path / "run")
    assert "the frost of the corruption frost as it was" in said
    assert f"{usual}), and now it is another (elsewhere)" in said


def test_frost_that_lies_on_disk_has_its_source_in_the_files(given, tmp_path):
    for kind in ("fog", "frost"):
        write_folder(tmp_path / "c" / kind / "5")
    run(given(data=[f"imagenet-c:{tmp_path}/c"], kinds=["frost"]), tmp_path / "run")
    assert "frost" not in of(tmp_path / "run", method="tent")["provenance"]


def test_a_diffusion_model_that_was_replaced(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    assert diffusers
    from wildtta.diffusion import load

    model = load("glyphs")
    model.save(tmp_path / "diffusion")
    settings = {"dda.diffusion": str(tmp_path / "diffusion"), "dda.steps": 20, "dda.start": 2}
    given = config(scenarios=["mild"], kinds=["fog"], methods=["dda"], images=2, settings=settings)
    run(given, tmp_path / "run")
    assert run(given, tmp_path / "run").kept == 1
    for value in model.network.parameters():
        value.data.mul_(1.01)
    model.save(tmp_path / "diffusion")
    assert "has results with the diffusion model as it was" in _refused(given, tmp_path / "run")


def test_results_that_do_not_say_where_they_come_from_are_kept(given, tmp_path):
    run(given(), tmp_path / "run")

    for file in (tmp_path / "run" / "cells").glob("*.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "provenance": {}}))
    torch.save({name: value + 0.1 for name, value in torch.load(tmp_path / "w.pt").items()}, tmp_path / "w.pt")
    assert run(given(), tmp_path / "run").kept == 2
    assert len(results(tmp_path / "run")) == 2


def test_a_digest_is_computed_once(tmp_path, monkeypatch):
    """Of a large model or set it takes a while."""
    counts = []
    digest = Model.digest
    monkeypatch.setattr(Model, "digest", lambda self: counts.append(self.name) or digest(self))
    run(config(methods=["source", "recap", "eata"], scenarios=["mild"]), tmp_path / "run")
    assert len(counts) == 2  # before the run, and where the cells are run
