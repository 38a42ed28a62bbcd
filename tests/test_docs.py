"""The tables in the documentation are those that their result files give."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import wildtta

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("name", "mark"), [("tiny_imagenet", "table"), ("tiny_rates", "rates")])
def test_the_tables_on_real_images_come_from_their_results(name: str, mark: str) -> None:
    specification = importlib.util.spec_from_file_location("tiny_imagenet", ROOT / "benchmarks" / "tiny_imagenet.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    results = json.loads((ROOT / "docs" / "data" / f"{name}.json").read_text())
    page = (ROOT / "docs" / "tiny_imagenet.md").read_text()
    shown = page.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]
    assert shown.strip() == module.tables(results).strip()


def test_the_reasons_on_real_images_come_from_their_results() -> None:
    results = json.loads((ROOT / "docs" / "data" / "tiny_variants.json").read_text())
    page = (ROOT / "docs" / "tiny_imagenet.md").read_text()
    shown = page.partition("<!-- why -->")[2].partition("<!-- /why -->")[0]
    assert shown.strip() == load("benchmarks/tiny_variants.py").tables(results).strip()


def test_the_count_of_streams_that_lost_is_that_of_the_results() -> None:
    results = json.loads((ROOT / "docs" / "data" / "tiny_imagenet.json").read_text())
    source, lost, ran = {}, {"plain": 0, "guard": 0}, {"plain": 0, "guard": 0}
    cells = {tuple(name.split("|")): cell["accuracy"] for name, cell in results.items()}
    for (model, kind, order, method, *_), accuracy in cells.items():
        if method == "source":
            source[model, kind, order] = accuracy
    for (model, kind, order, method, _, _, guard), accuracy in cells.items():
        if method != "source":
            ran[guard] += 1
            lost[guard] += accuracy < source[model, kind, order]
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert f"{lost['plain']} of {ran['plain']} adapted streams" in page
    assert f"{lost['guard']} of {ran['guard']} with the guard on" in page


def load(path: str) -> Any:
    """A script of the project as a module."""
    place = ROOT / path
    sys.path.insert(0, str(place.parent))
    try:
        specification = importlib.util.spec_from_file_location(place.stem, place)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(place.parent))


def test_the_tables_of_the_readme_come_from_kept_results() -> None:
    page = (ROOT / "README.md").read_text()
    assert load("scripts/readme_tables.py").tables(page) == page


def test_the_picture_of_the_readme_shows_the_kept_stream() -> None:
    figure = load("scripts/readme_figure.py")
    kept, picture = json.loads(figure.KEPT.read_text()), figure.PICTURE.read_text()
    assert kept["command"] == figure.settings().command("runs/readme")
    for method, entry in kept["methods"].items():
        assert f"{figure.NAMES[method]} {entry['top1']:.1f} %" in picture
        assert sum(entry["domains"].values()) / len(entry["domains"]) == pytest.approx(entry["top1"])
    command = kept["command"].replace("--out runs/readme ", "")
    assert command in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.slow
def test_the_stream_of_the_readme_gives_these_numbers(tmp_path: Path) -> None:
    figure = load("scripts/readme_figure.py")
    kept = json.loads(figure.KEPT.read_text())
    found = figure.measure(tmp_path)
    for method, entry in found["methods"].items():
        # other processors add in another order, and a stream of 125 steps drifts a little
        assert entry["top1"] == pytest.approx(kept["methods"][method]["top1"], abs=1.0), method


def test_figures_are_small_and_bring_their_own_ground() -> None:
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        text = path.read_text()
        assert len(text) < 150_000, path.name
        assert "prefers-color-scheme:dark" in text, path.name
        assert "#0102" not in text, f"{path.name} has a colour that was not replaced"
        assert "#0200" not in text, f"{path.name} has a colour that was not replaced"


def test_the_numbers_on_the_page_on_region_confidence() -> None:
    figures, page = load("scripts/docs_figures.py"), (ROOT / "docs" / "region_confidence.md").read_text()
    feature = torch.tensor([[2.0, 0.35]], dtype=torch.float64)
    uncertainty, _ = figures.sampled(feature, 200_000)
    closed = figures.values(feature).regional_entropy.item()
    assert closed < uncertainty.item(), "Proposition 4.3 holds here after all"
    assert f"is {closed:.3f} while the mean entropy of samples is {uncertainty.item():.3f}" in " ".join(page.split())


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md"])
def test_the_table_of_costs_is_that_of_the_methods(page: str) -> None:
    network = wildtta.Network(
        torch.nn.Sequential(torch.nn.GroupNorm(1, 3), torch.nn.Flatten(), torch.nn.Linear(12, 40))
    )
    region = wildtta.Region(torch.ones(12))
    fisher = wildtta.Fisher({name: torch.ones(3) for name in network.norms().names})
    needs = {"region": region, "fisher": fisher}
    rows = [
        row
        for row in (ROOT / page).read_text().splitlines()
        if re.match(r"\| `", row) and re.search(r"\| \d+, \d+", row)
    ]
    shown = {name: row for row in rows for name in re.findall(r"`([a-z+]+)`", row.split("|")[1])}
    assert set(shown) == set(wildtta.methods())
    for name, row in shown.items():
        if name == "dda":
            continue
        found = wildtta.methods()[name]
        method = found.compose(network, **{need: needs[need] for need in found.required})
        assert f"| {method.forwards}, {method.backwards}" in row, f"{name}: {method.forwards}, {method.backwards}"
