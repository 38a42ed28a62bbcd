"""Who may do what, below the routes."""

from __future__ import annotations

import statistics
import time

import pytest
from serve_helpers import KEY, bearer, service

from wildtta.bench.config import ConfigError
from wildtta.serve import Settings
from wildtta.serve.access import Access, digest, new_token
from wildtta.serve.access import bearer as token_of
from wildtta.serve.problems import Problem


def test_a_token_opens_its_own_stream_alone() -> None:
    access = Access(KEY)
    mine, theirs = new_token(), new_token()
    assert access.opens(mine, digest(mine))
    assert access.opens(KEY, digest(mine))
    for token in (theirs, mine[:-1], mine + "x", mine.swapcase(), "", None, "ü\udc80"):
        assert not access.opens(token, digest(mine))
    assert not access.opens(mine, None)
    assert not access.opens(KEY, None)
    assert not access.opens(digest(mine), digest(mine))  # what is stored opens nothing


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer  ", None),
        ("", None),
    ],
)
def test_the_header(header: str, token: str | None) -> None:
    assert token_of({"authorization": header}) == token


def test_settings_that_are_not_safe_are_refused() -> None:
    for wrong in (
        {"open": True, "host": "0.0.0.0"},
        {"operator_key": "short"},
        {"max_images": 512, "snapshot_images": 256},
        {"max_waiting": 0},
        {"timeout_s": 0.0},
        {"precision": "float8"},
    ):
        with pytest.raises(ConfigError):
            Settings(**wrong)  # type: ignore[arg-type]
    assert Settings(open=True, host="::1").is_local


def test_refusals_take_the_same_time_whatever_the_reason() -> None:
    """A stream that is there and one that is not, in turns. Other work only adds time, so the quicker ones are compared."""
    with service() as client:
        mine, theirs = client.make("tent"), client.make("tent")
        headers, nanoseconds = bearer(mine.token), {theirs.id: [], "f" * 16: []}
        for _ in range(5000):
            for id, found in nanoseconds.items():
                begun = time.perf_counter_ns()
                with pytest.raises(Problem):
                    client.service.open(id, headers)
                found.append(time.perf_counter_ns() - begun)
        there, not_there = (statistics.quantiles(found, n=10)[1] / 1000 for found in nanoseconds.values())
        print(f"{there:.2f} µs where it is there, {not_there:.2f} µs where it is not")
        assert abs(there - not_there) < 2  # µs: a network's jitter is a hundred times that
