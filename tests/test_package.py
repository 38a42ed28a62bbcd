"""What the package says of itself is so."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

import wildtta

ROOT = Path(__file__).parent.parent
CODE = "\n".join(path.read_text() for path in (ROOT / "wildtta").rglob("*.py"))
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_version_is_said_once() -> None:
    assert 'dynamic = ["version"]' in PROJECT
    assert not re.search(r"^version\s*=", PROJECT, re.MULTILINE)
    assert re.findall(r'^__version__ = "(.*)"$', CODE, re.MULTILINE) == [wildtta.__version__]


@pytest.mark.parametrize("name", ["py.typed", "data/glyph_resnet.safetensors", "report/page.css", "report/page.html"])
def test_what_is_no_code_is_there(name: str) -> None:
    assert files("wildtta").joinpath(name).is_file()


def test_extras_that_messages_name_exist() -> None:
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[tool")[0]
    defined = set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))
    named = {extra for found in re.findall(r"wildtta\[([\w,]+)\]", CODE) for extra in found.split(",")}
    assert named, "no message names an extra any more"
    assert named <= defined
    assert {"timm", "dda", "serve", "ray", "docs", "dev"} <= defined


def test_the_papers_of_all_methods_are_cited() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    noted = " ".join(re.findall(r'notes: "In wildtta: (.*?)\."', citation))
    for name, recipe in wildtta.methods().items():
        if name == "source":
            continue
        assert re.search(rf"(^|[ ,]){re.escape(name)}($|[ ,])", noted), name
        year = re.search(r"(20\d\d)", recipe.summary)
        assert year is None or f"year: {year[1]}" in citation, name
