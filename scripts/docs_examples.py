"""Docstrings as the site's parser wants them: examples (`>>> …`) fenced wherever they stand, and entries of one name each."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^|(?<=\n))((?:>>> .*(?:\n(?!\n).*)*)(?:\n\n>>> .*(?:\n(?!\n).*)*)*)")
_TOGETHER = re.compile(r"^(\s+)(\w+)((?:, \w+)+): ", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
            obj.docstring.value = _TOGETHER.sub(_first_of_them, text)


def _first_of_them(found: re.Match[str]) -> str:
    others = ", ".join(f"`{name}`" for name in found[3].strip(", ").split(", "))
    return f"{found[1]}{found[2]}: (and {others}) "
