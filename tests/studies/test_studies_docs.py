"""The numbers in the documentation are those of the result files."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from wildtta.studies import STUDIES, read_summary

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def fill():
    specification = importlib.util.spec_from_file_location("fill_docs", ROOT / "scripts" / "fill_docs.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["studies.md", "results.md"])
def test_every_table_is_what_its_summary_gives(fill, page):
    text = (ROOT / "docs" / page).read_text()
    assert fill.filled(text, ROOT / "docs" / "data" / fill.PAGES[page], fill.PAGES[page]) == text
    for image in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text):
        assert (ROOT / "docs" / image).stat().st_size <= fill.LARGEST


def test_every_study_is_shown(fill):
    text = (ROOT / "docs" / "studies.md").read_text()
    shown = re.findall(r"<!-- study: (\S+) -->", text)
    assert sorted(shown) == sorted(STUDIES)
    for name in shown:
        summary = read_summary(ROOT / "docs" / "data" / "studies" / name)
        assert summary is not None
        assert summary["made"]["stand_in"] is True
        assert summary["made"]["failures"] == {}
        assert not re.search(r"[ '\"]/\w", str(summary["made"]))  # nobody's own folders
        for picture in STUDIES[name].pictures(summary):
            assert f"images/studies/{name}-{picture}.svg" in text


def test_a_part_changes_with_its_numbers(fill, tmp_path):
    text = "<!-- study: bounds -->\n<!-- /study -->"
    assert fill.MISSING in fill.filled(text, tmp_path, "studies")
    path = ROOT / "docs" / "data" / "studies" / "bounds" / "summary.json"
    content = json.loads(path.read_text())
    pages = []
    for change in (0, 1):
        next(row for row in content["rows"] if row["what"] == "tightness")["entropy"] += change
        (tmp_path / "bounds").mkdir(exist_ok=True)
        (tmp_path / "bounds" / "summary.json").write_text(json.dumps(content))
        pages.append(fill.filled(text, tmp_path, "studies"))
    assert fill.MISSING not in "".join(pages)
    assert pages[0] != pages[1]
