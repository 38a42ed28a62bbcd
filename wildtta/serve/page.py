"""The page at `/`: one file, with everything in it. A hash lets a browser run this script and no other."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

__all__ = ["page", "page_headers"]


@cache
def page() -> bytes:
    return (files("wildtta.serve") / "page.html").read_bytes()


@cache
def page_headers() -> dict[str, str]:
    text = page().decode()
    policy = (
        f"default-src 'none'; script-src {_hash('script', text)}; style-src {_hash('style', text)}; connect-src 'self'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}


def _hash(tag: str, text: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
