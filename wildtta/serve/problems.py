"""What goes wrong for a client, as it is told: a status, what was found, and what to do."""

from __future__ import annotations

__all__ = ["Problem", "busy", "forbidden", "unknown"]


class Problem(Exception):  # noqa: N818 (it is a response, not a fault of the program)
    """Ends a request with `{"error": …, "detail": …}`."""

    def __init__(self, status: int, error: str, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.detail, self.retry_after = status, error, detail, retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    @property
    def content(self) -> dict[str, str]:
        return {"error": self.error, "detail": self.detail}


def forbidden() -> Problem:
    """The same for a stream that does not exist and one that is not yours, so that nobody learns which streams there are."""
    return Problem(
        403,
        "no stream for this token",
        "there is no such stream, or the token does not open it; send the token that came with the stream's id as "
        "'Authorization: Bearer TOKEN'",
    )


def unknown() -> Problem:
    return Problem(401, "no token", "send the token that came with the stream's id as 'Authorization: Bearer TOKEN'")


def busy(what: str = "the service has as many requests as it can hold") -> Problem:
    return Problem(503, what, "send it again after the time in Retry-After", retry_after=1)
