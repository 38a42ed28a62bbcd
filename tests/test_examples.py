"""Every example is short and runs, and the notebook is the example it is made from."""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wildtta

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TINY_TIMM = {"MODEL": "test_vit", "PRETRAINED": "0", "IMAGES": "16"}


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_there_are_five_and_each_fits_on_a_screen() -> None:
    assert len(EXAMPLES) == 5
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.fixture
def _tiny_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    for name, value in TINY_TIMM.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_tiny_timm")
def test_a_timm_model(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(ROOT / "examples" / "adapt_timm_model.py"))
    assert names["adapter"].report.seen == 8
    assert "of 8 answers changed" in capsys.readouterr().out


@pytest.mark.usefixtures("_tiny_timm")
def test_the_notebook_is_in_step_and_its_cells_run() -> None:
    path = ROOT / "examples" / "adapt_timm_model.ipynb"
    made = load(ROOT / "scripts" / "make_notebook.py").notebook(path.with_suffix(".py").read_text())
    assert path.read_text() == made, "run scripts/make_notebook.py"
    names: dict[str, Any] = {}
    for cell in json.loads(made)["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["adapter"].report.seen == 8


def test_a_camera_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    camera = load(ROOT / "examples" / "camera_loop.py")
    state = tmp_path / "camera.safetensors"
    camera.watch(state, count=4, every=2)
    resumed = camera.watch(state, count=4, every=2)
    through = camera.watch(tmp_path / "other.safetensors", count=8, every=8)
    assert "going on after 4 frames" in capsys.readouterr().out
    assert resumed.report == through.report
    assert resumed.report.seen == 8


def test_a_new_method() -> None:
    example = load(ROOT / "examples" / "new_method.py")
    assert "steady" in wildtta.methods()
    assert 30 < example.accuracy("steady", 64) <= 100


def test_a_sweep_as_a_fleet() -> None:
    example = load(ROOT / "examples" / "sweep_as_fleet.py")
    found = example.sweep("fog", 32)
    assert list(found) == example.RATES
    assert max(found.values()) > 30


def test_a_client_of_the_service() -> None:
    for needed in ("fastapi", "httpx", "multipart", "prometheus_client"):
        pytest.importorskip(needed)
    from fastapi.testclient import TestClient

    from wildtta.serve import Settings, create_app

    example = load(ROOT / "examples" / "service_client.py")
    with TestClient(create_app(Settings(open=True, source=None))) as service:
        assert len(example.watch(service, "fog", 8)) == 8
        assert len(example.watch(service, "snow", 4)) == 4
        assert len(service.app.state.service.records) == 2
