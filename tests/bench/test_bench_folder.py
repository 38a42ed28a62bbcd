"""The folder of a run: what it may hold, who may work on it, and what is not touched."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import pytest
from tiny_bench import config, refused, results

from wildtta import files
from wildtta.bench import gallery, run
from wildtta.bench.store import RunError, Store

ARGUMENTS = [
    "--models",
    "glyph-resnet",
    "--kinds",
    "fog",
    "--scenarios",
    "mild",
    "--methods",
    "source",
    "--images",
    "4",
]


def _content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


FOREIGN = {
    "a file": {"thesis.tex": "hello"},
    "a hidden file": {".bashrc": "hello"},
    "folders of that name with something in them": {"source/a.jpg": "x", "gallery/b.png": "y"},
    "a plan of something else": {"plan.json": '{"trip": "to the sea"}'},
    "a plan that is a list": {"plan.json": "[1, 2]"},
    "a plan that is not JSON": {"plan.json": "first we take Manhattan"},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_holds_other_things_is_left_alone(tmp_path, name):
    for path, text in FOREIGN[name].items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    before = _content(tmp_path)
    with pytest.raises(RunError, match="is not empty and holds no run; name another folder with --out"):
        Store(tmp_path).prepare()
    assert "is not empty and holds no run" in refused("bench", "--out", str(tmp_path), *ARGUMENTS)
    assert _content(tmp_path) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "results").write_text("mine")
    message = refused("bench", "--out", str(tmp_path / "results"), *ARGUMENTS)
    assert message.endswith("results is a file; name a folder for the results with --out")
    below = refused("bench", "--out", str(tmp_path / "results" / "run"), *ARGUMENTS)
    assert "cannot write to" in below
    assert "make room there, or name another --out" in below
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize("left", [[], ["cells"], ["cells", "gallery", "source", ".lock", ".x8y.partial"]])
def test_a_run_that_was_stopped_right_at_its_start_is_gone_on_with(tmp_path, left):
    for name in left:
        (tmp_path / name).touch() if name.startswith(".") else (tmp_path / name).mkdir()
    assert run(config(kinds=["fog"], scenarios=["mild"]), tmp_path).finished == 2


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path):
    small = config(kinds=["fog"], scenarios=["mild"])
    run(small, tmp_path)
    before = results(tmp_path)
    for folder in (".", "cells", "gallery", "source"):
        (tmp_path / folder / ".abc.partial").write_text('{"format": 1')
    run(small, tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    assert results(tmp_path) == before


def test_two_runs_at_once_on_one_folder(tmp_path):
    store = Store(tmp_path / "run")
    store.prepare()
    with store.locked():
        before = _content(tmp_path)
        message = refused("bench", "--out", str(tmp_path / "run"), *ARGUMENTS)
        assert message == f"another run is at work on {tmp_path / 'run'}; wait for it, or stop it"
        assert _content(tmp_path) == before
    assert run(config(kinds=["fog"], scenarios=["mild"]), tmp_path / "run").finished == 2


def test_a_disk_that_is_full(tmp_path):
    """As far as the process is concerned: no file may grow beyond a hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        message = refused("bench", "--out", str(tmp_path / "run"), *ARGUMENTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message == f"cannot write to {tmp_path / 'run'}: File too large; make room there, or name another --out"
    assert [path.name for path in (tmp_path / "run").rglob("*") if path.is_file()] == [".lock"]
    assert run(config(kinds=["fog"], scenarios=["mild"]), tmp_path / "run").finished == 2


def test_a_disk_that_gets_full_before_the_first_cell(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(gallery, "put", full)
    assert "No space left on device" in refused("bench", "--out", str(tmp_path / "run"), *ARGUMENTS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write to" in refused("bench", "--out", str(tmp_path / "run"), *ARGUMENTS)


def test_others_may_read_the_results_where_they_may_read_other_files(tmp_path):
    (tmp_path / "usual").touch()
    run(config(kinds=["fog"], scenarios=["mild"]), tmp_path / "run")
    usual = (tmp_path / "usual").stat().st_mode
    assert {path.stat().st_mode for path in (tmp_path / "run").rglob("*") if path.is_file()} == {usual}


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    files.put(tmp_path / "a", b"before")
    for error in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with monkeypatch.context() as patch:

            def fails(*arguments, error=error):
                raise error

            patch.setattr(os, "fsync", fails)
            with pytest.raises(type(error)):
                files.put(tmp_path / "a", b"after")
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"before")]


def test_ctrl_c_right_after_a_file_is_in_place_is_still_ctrl_c(tmp_path, monkeypatch):
    replace = os.replace

    def interrupted(*arguments):
        replace(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.put(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_what_is_not_a_result_is_not_read(tmp_path):
    store = Store(tmp_path)
    store.prepare()
    store.write("whole", {"result": 1})
    for name in ("half.json", ".hidden.json", "other.txt"):
        (store.cells / name).write_text("{")
    assert store.finished() == ["half", "whole"]  # by their names
    assert (store.read("whole"), store.read("half"), store.read("none")) == ({"format": 1, "result": 1}, None, None)
    assert json.loads((store.cells / "whole.json").read_text()) == {"format": 1, "result": 1}
