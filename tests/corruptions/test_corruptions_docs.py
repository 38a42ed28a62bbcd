"""The page on corruptions shows the figures that are kept, and has the tables its benchmark makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    specification = importlib.util.spec_from_file_location("bench_corruptions", ROOT / "benchmarks" / "corruptions.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def part(text, name):
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip()


def test_the_speeds_are_the_kept_ones(benchmark):
    assert part(benchmark.PAGE.read_text(), "speed") == "\n".join(benchmark.kept())


def test_every_corruption_stands_in_the_tables(benchmark):
    text = benchmark.PAGE.read_text()
    for name in benchmark.ALL:
        rows = part(text, "pixels").count(f"| {name} |")
        assert rows == (0 if name == "shot_noise" else 3), name
        assert part(text, "speed").count(f"| {name} |") == 1


def test_a_page_is_filled_between_its_marks(benchmark, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- one -->\nold\n<!-- /one -->\nafter\n")
    benchmark.fill(page, "one", ["new"])
    assert page.read_text() == "before\n<!-- one -->\n\nnew\n\n<!-- /one -->\nafter\n"
    with pytest.raises(SystemExit, match="it lacks <!-- two --> or <!-- /two -->"):
        benchmark.fill(page, "two", ["new"])
