"""The tables in the documentation are those that their result files give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_on_real_images_comes_from_its_results() -> None:
    specification = importlib.util.spec_from_file_location("tiny_imagenet", ROOT / "benchmarks" / "tiny_imagenet.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    results = json.loads((ROOT / "docs" / "data" / "tiny_imagenet.json").read_text())
    page = (ROOT / "docs" / "tiny_imagenet.md").read_text()
    shown = page.partition("<!-- table -->")[2].partition("<!-- /table -->")[0]
    assert shown.strip() == module.tables(results).strip()


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
