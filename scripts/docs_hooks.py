"""What the documentation site does to its pages, so that it needs nothing from elsewhere.

Formulae become MathML, which browsers draw by themselves; links to files of the repository, which are no pages, become names.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./|data\b)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    return _FORMULA.sub(_as_mathml, html)


def _as_mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    drawn = convert(html.unescape(found[3]).strip(), display=display)
    return f'<div class="formula">{drawn}</div>' if display == "block" else drawn
