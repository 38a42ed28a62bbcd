"""Who may do what: a stream's token opens that stream alone, the operator's key opens everything."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

__all__ = ["Access", "bearer", "digest", "new_id", "new_token"]


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def new_id() -> str:
    return secrets.token_hex(8)


def digest(token: str) -> str:
    """What is stored in a token's place. A token is random, so one round of a hash is enough: there is nothing to guess."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of a request, if it has one."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


class Access:
    """Compares in constant time, and does the same work whether a stream exists or not."""

    def __init__(self, operator_key: str) -> None:
        self._operator = digest(operator_key)
        self._nobody = digest(new_token())

    def is_operator(self, token: str | None) -> bool:
        return hmac.compare_digest(digest(token or ""), self._operator)

    def opens(self, token: str | None, stored: str | None) -> bool:
        """Whether this token opens the stream whose stored digest this is (None: there is no such stream)."""
        given = digest(token or "")
        mine = hmac.compare_digest(given, self._nobody if stored is None else stored)
        operator = hmac.compare_digest(given, self._operator)
        return (mine | operator) and stored is not None
