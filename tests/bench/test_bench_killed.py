"""A run that is killed, again and again, ends with the files of one that was left in peace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_bench import config, results

from wildtta import files
from wildtta.bench import Config, gallery, run, store

PROGRAM = """
import signal
import wildtta.cli
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background is started to ignore it
    print("ready", flush=True)
    wildtta.cli.main()
"""


def _given(**others: object) -> Config:
    several = {"scenarios": ["limited", "mild", "mixed"], "methods": ["source", "tent", "recap"], "images": 16}
    return config(**several | others)


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peace") / "run"
    run(_given(), folder)
    return results(folder)


@pytest.fixture
def start(tmp_path):
    """Starts `wildtta bench` as the leader of a group of processes; gives it back once it has imported all."""
    started = []

    def go(given: Config, out: Path) -> subprocess.Popen[str]:
        (tmp_path / "program.py").write_text(PROGRAM)
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), *given.command(out).split()[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield go
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _same(found, expected) -> bool:
    """The same files. Single images run side by side with what is missing: whose company was, by rounding, another."""
    assert found.keys() == expected.keys()
    for name, content in found.items():
        mine, other = dict(content["result"]), dict(expected[name]["result"])
        if content["cell"]["scenario"] == "limited":
            assert mine.pop("nll") == pytest.approx(other.pop("nll"), abs=1e-5)
            assert mine.pop("ece") == pytest.approx(other.pop("ece"), abs=1e-3)
        assert content | {"result": mine} == expected[name] | {"result": other}
    return True


def _kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def _no_half_results(folder: Path) -> int:
    found = list((folder / "cells").glob("*.json"))
    for file in found:
        assert json.loads(file.read_text())["format"] == 1, "half a file counts as a result"
    return len(found)


def _killed_at_random(start, peaceful, out: Path, times: int, jobs: int = 1) -> None:
    """Each kill meets a run at work. One that was done before its moment came is compared, and another is begun."""
    moments, given, kills, runs = random.Random(0), _given(jobs=jobs), 0, 0
    begun = time.monotonic()
    assert start(given, out / "peace").wait(timeout=120) == 0
    usual = time.monotonic() - begun
    while kills < times:
        process = start(given, out / str(runs))
        try:
            process.wait(timeout=moments.uniform(0, usual))
        except subprocess.TimeoutExpired:
            _kill(process)
            kills += 1
            _no_half_results(out / str(runs))
            continue
        assert process.returncode == 0
        assert _same(results(out / str(runs)), peaceful)
        runs += 1
    assert start(given, out / str(runs)).wait(timeout=120) == 0
    assert _same(results(out / str(runs)), peaceful)
    assert not list(out.rglob("*.partial"))


def test_killed_three_times(start, peaceful, tmp_path):
    """At moments that do not depend on how fast the machine is: soon after some more results."""
    moments, done, out = random.Random(1), 0, tmp_path / "run"
    for _ in range(3):
        process, wanted = start(_given(), out), done + moments.randint(1, 3)
        while done < wanted:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
            done = len(list((out / "cells").glob("*.json")))
        time.sleep(moments.uniform(0, 0.05))
        _kill(process)
        done = _no_half_results(out)
        assert done < len(peaceful)
    summary = run(_given(), out)
    assert (summary.failed, summary.cells) == ({}, len(peaceful))
    assert _same(results(out), peaceful)
    assert not list(out.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_ten_random_moments(start, peaceful, tmp_path, jobs):
    _killed_at_random(start, peaceful, tmp_path, times=10, jobs=jobs)


class Killed(BaseException):
    """No handler of errors sees it, and nothing is cleaned up."""


def test_killed_at_every_file_that_it_writes(peaceful, tmp_path, monkeypatch):
    """The plan, the pictures, the region and each result: half written, or written and not yet known to be."""
    put, calls = files.put, 0

    def dies(path, data):
        nonlocal calls
        calls += 1
        if calls % 2:
            put(path, data)
        if calls % 3 != 1:  # every third file gets through, so that the run gets on
            (path.parent / f".{calls}.partial").write_bytes(data[: len(data) // 2])
            raise Killed

    given, kills = _given(scenarios=["mild", "mixed"]), 0
    for module in (files, gallery, store):
        monkeypatch.setattr(module, "put", dies)
    while True:
        try:
            summary = run(given, tmp_path)
            break
        except Killed:
            kills += 1
            assert kills < 100
            _no_half_results(tmp_path)
    assert (summary.failed, summary.cells) == ({}, 9)
    assert kills > summary.cells
    monkeypatch.undo()
    run(given, tmp_path)
    assert results(tmp_path).items() <= peaceful.items()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ctrl_c_says_how_to_go_on(start, peaceful, tmp_path, jobs):
    """With two jobs it comes while the worker processes are still starting."""
    given, out = _given(jobs=jobs), tmp_path / "run"
    process = start(given, out)
    wanted = (out / "cells").glob if jobs == 1 else (out / "source").glob
    while not any(True for _ in wanted("[a-z]*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.3 * (jobs - 1))
    os.killpg(process.pid, signal.SIGINT)
    out_text, err_text = process.communicate(timeout=60)
    assert process.returncode == 130
    said = [line for line in err_text.splitlines() if line.strip()]
    assert said[-1] == f"stopped; what is done is kept in {out}, and the same command goes on from there"
    assert "Traceback" not in out_text + err_text
    done = _no_half_results(out)
    assert done < len(peaceful)
    summary = run(_given(), out)
    assert (summary.kept <= done, summary.finished) == (True, len(peaceful) - summary.kept)
    assert _same(results(out), peaceful)


def _group(leader: int) -> list[int]:
    """The processes of a group that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_workers_end_when_their_parent_is_killed(start, peaceful, tmp_path):
    process = start(_given(jobs=2), tmp_path / "run")
    while not any((tmp_path / "run" / "cells").glob("*.json")):
        time.sleep(0.02)
    assert len(_group(process.pid)) >= 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while _group(process.pid):
        assert time.monotonic() < deadline, "orphans are left"
        time.sleep(0.1)
    run(_given(), tmp_path / "run")
    assert _same(results(tmp_path / "run"), peaceful)
