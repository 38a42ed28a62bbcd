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
