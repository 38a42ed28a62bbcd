"""Images on disk: those that cannot be read, those that are not there, and what is kept of them between streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_bench import config, of, refused, results, write_folder, write_image, write_models

from wildtta.bench import run, work
from wildtta.bench.images import Kept, read_ahead
from wildtta.data import DataError, open_data
from wildtta.models import load_model
from wildtta.streams import scenario

CPU = torch.device("cpu")


def _cut(path: Path) -> None:
    """As when the disk was full."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "set")


@pytest.fixture
def models(tmp_path):
    return write_models(tmp_path)


def _given(file, folder, layout="folder", **others):
    usual = {"models": [f"{file}:tiny"], "data": [f"{layout}:{folder}"], "images": None, "calibration": 6}
    return config(**usual | others)


# -- images that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [2 << 30, 0], ids=["kept", "read each time"])
def test_images_that_cannot_be_read_are_counted_and_left_out(tmp_path, folder, models, monkeypatch, room):
    monkeypatch.setitem(work._KEPT, "cpu", room)
    _cut(folder / "class1" / "2.jpg")
    (folder / "class2" / "0.jpg").write_text("no picture")
    given = _given(models, folder, methods=["source", "tent", "recap"], scenarios=["limited", "mild", "mixed"], batch=3)
    summary = run(given, tmp_path / "run")
    assert summary.failed == {}
    for content in results(tmp_path / "run").values():
        result, domains = content["result"], len(content["cell"]["domains"])
        assert (result["images"], result["unreadable"]) == (10 * domains, 2 * domains)
        assert sum(domain["images"] for domain in result["domains"].values()) == 10 * domains
        for kind in result["domains"]:
            cut, foreign = result["unreadable_images"][kind]
            assert cut.startswith("class1/2.jpg: ")
            assert "runcated" in cut
            assert foreign == "class2/0.jpg: not an image, or damaged at its start"


def test_an_image_that_a_stream_shows_often_is_one_that_cannot_be_read(tmp_path, models):
    """The label shift draws images with replacement; of many only the first few are named."""
    folder = write_folder(tmp_path / "set", each=20)
    for number in range(8):
        _cut(folder / "class1" / f"{number}.jpg")
    given = _given(models, folder, methods=["source"], scenarios=["shift"], kinds=["fog"])
    assert run(given, tmp_path / "run").failed == {}
    result = of(tmp_path / "run")["result"]
    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    (labels, pictures) = (data.domain("fog", 5).labels, data.domain("fog", 5).pictures)
    shown = [pictures.name(number) for number in scenario("shift").order([labels], 2023).index.tolist()]
    lost = [name for name in shown if name in {f"class1/{number}.jpg" for number in range(8)}]
    assert result["images"] == len(shown) - len(lost)
    assert result["unreadable"] == len(set(lost)) < len(lost)
    names = [reason.partition(":")[0] for reason in result["unreadable_images"]["fog"]]
    assert names == sorted(set(lost))[:5]


def test_a_result_of_whole_images_names_none(tmp_path, folder, models):
    run(_given(models, folder, methods=["source"], scenarios=["mild"], kinds=["fog"]), tmp_path / "run")
    result = of(tmp_path / "run")["result"]
    assert (result["unreadable"], "unreadable_images" in result) == (0, False)


def test_what_is_kept_is_what_is_read(folder, models, tmp_path):
    _cut(folder / "class0" / "1.jpg")
    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    for kind in ("clean", "fog", "gaussian_noise", "jpeg_compression"):
        kept, read = (Kept(data.domain(kind, 5), 9, CPU, room) for room in (1 << 30, 0))
        assert kept.levels is not None
        assert (read.levels, kept.numbers.tolist()) == (None, read.numbers.tolist())
        places = torch.tensor([8, 1, 1, 0, 5, 4])
        for mine, other in zip(kept.read(places), read.read(places), strict=True):
            assert torch.equal(mine, other)


def test_a_fleet_whose_streams_end_one_after_another(tmp_path, models):
    """Fog has lost three images, so its stream is shorter."""
    for kind in ("fog", "contrast", "snow"):
        write_folder(tmp_path / "c" / kind / "5")
    for number in range(3):
        _cut(tmp_path / "c" / "fog" / "5" / "class1" / f"{number}.jpg")
    kinds = ["fog", "contrast", "snow"]
    given = {"layout": "imagenet-c", "kinds": kinds, "scenarios": ["limited"], "methods": ["tent", "sar", "deyo"]}
    given["settings"] = {"lr": 0.01}
    assert run(_given(models, tmp_path / "c", **given), tmp_path / "fleet").failed == {}
    for kind in kinds:
        run(_given(models, tmp_path / "c", **given | {"kinds": [kind]}), tmp_path / "alone")
    together, alone = results(tmp_path / "fleet"), results(tmp_path / "alone")
    assert together.keys() == alone.keys()
    for name, content in together.items():
        mine, other = content["result"], alone[name]["result"]
        assert mine["unreadable"] == (3 if content["cell"]["kind"] == "fog" else 0)
        assert mine["images"] == mine["forwards"] // (1 if content["cell"]["method"] == "tent" else 2)
        assert mine.pop("nll") == pytest.approx(other.pop("nll"), abs=1e-5)
        assert mine.pop("ece") == pytest.approx(other.pop("ece"), abs=1e-3)
        assert mine == other


def test_a_kind_of_which_nothing_can_be_read_stops_the_run_before_it_begins(tmp_path, folder, models):
    for path in folder.rglob("*.jpg"):
        _cut(path)
    arguments = f"--models {models}:tiny --data folder:{folder} --kinds fog --scenarios mild --methods source".split()
    message = refused("bench", "--out", str(tmp_path / "run"), *arguments)
    assert "of 12 sampled images 12 cannot be read" in message
    assert not (tmp_path / "run").exists()


def test_a_stream_of_which_nothing_can_be_read_is_a_failure(tmp_path, models):
    """The images that were looked at before the run are whole, those of the stream are not."""
    folder = write_folder(tmp_path / "set", each=20)
    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    domain = data.domain("fog", 5)
    (number,) = Kept(domain, 1, CPU, 0).numbers.tolist()
    _cut(folder / domain.pictures.name(number))
    summary = run(_given(models, folder, images=1, kinds=["fog"], scenarios=["mild"]), tmp_path / "run")
    assert set(summary.failed.values()) == {
        "DataError: not one image of fog could be read; look with `wildtta check --deep`"
    }


# -- what is not there -------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_said_before_anything_runs(tmp_path, models):
    write_folder(tmp_path / "c" / "fog" / "5")
    data = f"--data imagenet-c:{tmp_path / 'c'}"
    usual = [
        "bench",
        "--out",
        str(tmp_path / "run"),
        *f"--models {models}:tiny --methods source --scenarios mild".split(),
    ]
    for flags, message in {
        f"{data} --kinds fog,snow": "has no 'snow'; it has fog; unpack it there",
        f"{data} --kinds fog --severities 3": "has fog at severity 5, not at 3",
        f"{data} --kinds fogg": "has no 'fogg'; did you mean 'fog'?",
        f"{data} --kinds fog --scenarios gradual": "has fog at severity 5, not at 1",
        f"--data folder:{tmp_path / 'nowhere'}": "there is no folder or tar",
        f"--data folde:{tmp_path}": "unknown layout of data 'folde'; did you mean 'folder'",
        f"{data} --models {models}:none": "has no",
        f"{data} --models {tmp_path}/no.py:f": "no.py",
        f"{data} --device warp": "there is no device 'warp' here",
        f"{data} --kinds fog --methods recap": "'recap' needs uncorrupted source images",
    }.items():
        result = usual + flags.split()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(work.Workshop, "run", lambda *_: pytest.fail("a cell was run"))
            assert message in _first_error(result), flags
        if "recap" not in flags:
            assert not (tmp_path / "run").exists()


def _first_error(arguments: list[str]) -> str:
    from typer.testing import CliRunner

    from wildtta import cli

    result = CliRunner().invoke(cli.app, arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_a_class_that_the_model_does_not_know(tmp_path, folder, models):
    write_image(folder / "zebra" / "0.jpg", 1)
    with pytest.raises(DataError, match="zebra"):
        run(_given(models, folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- what is kept between streams --------------------------------------------------------------------------------------


def test_models_that_see_images_differently_do_not_share_them(tmp_path, folder, models):
    """One sees the middle of a picture and another the whole; a third has its classes in another order."""
    names = [f"{models}:{name}" for name in ("tiny", "small", "turned")]
    given = {"scenarios": ["mild"], "methods": ["source"], "kinds": ["clean", "fog"]}
    run(_given(models, folder, **given, models=names), tmp_path / "run")
    for name in names:
        run(_given(models, folder, **given, models=[name]), tmp_path / "alone")
    assert results(tmp_path / "run") == results(tmp_path / "alone")
    losses = {of(tmp_path / "run", model=name, kind="fog")["result"]["nll"] for name in names}
    assert len(losses) == 3


def test_images_that_do_not_fit_into_memory_give_the_same_results(tmp_path, folder, models, monkeypatch):
    given = _given(models, folder, scenarios=["limited", "mild", "shift"], kinds=["fog", "snow", "contrast"])
    run(given, tmp_path / "kept")
    monkeypatch.setitem(work._KEPT, "cpu", 8 * 12 * 3 * 24 * 24)  # one domain at a time
    run(given, tmp_path / "one")
    monkeypatch.setitem(work._KEPT, "cpu", 0)
    run(given, tmp_path / "none")
    assert results(tmp_path / "kept") == results(tmp_path / "one") == results(tmp_path / "none")


def test_a_part_of_the_images_is_the_same_part_in_every_run(tmp_path, folder, models):
    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    domain = data.domain("clean", 0)
    seven, again, all_of_them = (Kept(domain, limit, CPU, 1 << 20) for limit in (7, 7, 99))
    assert seven.numbers.tolist() == again.numbers.tolist() == sorted(set(seven.numbers.tolist()))
    assert (len(seven.numbers), len(all_of_them.numbers)) == (7, 12)
    assert torch.equal(seven.labels, domain.labels[seven.numbers])
    run(_given(models, folder, images=7, scenarios=["mild"], kinds=["fog"]), tmp_path / "run")
    assert of(tmp_path / "run", method="tent")["result"]["images"] == 7


def test_images_are_read_ahead_in_the_order_of_the_stream(folder, models):
    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    kept, read = ([Kept(data.domain(kind, 5), None, CPU, room) for kind in ("fog", "snow")] for room in (1 << 20, 0))
    stream = scenario("mixed").order([domain.labels for domain in kept], seed=1, batch=5)
    several = [list(read_ahead(domains, stream.batches(), CPU)) for domains in (kept, read)]
    places = torch.cat([batch[2] for batch in several[0]])
    assert torch.equal(places, stream.domain)
    for mine, other in zip(*several, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    labels = torch.cat([batch[1] for batch in several[1]])
    assert torch.equal(
        labels, torch.stack([kept[p].labels[n] for p, n in zip(stream.domain, stream.index, strict=True)])
    )


def test_an_error_while_reading_ahead_arrives_and_a_stream_that_is_left_ends(folder, models, monkeypatch):
    import threading

    data = open_data(f"folder:{folder}", load_model(f"{models}:tiny"))
    domains = [Kept(data.domain("fog", 5), None, CPU, 0)]
    stream = scenario("mild").order([domains[0].labels], seed=1, batch=1)
    before = threading.active_count()
    batches = read_ahead(domains, stream.batches(), CPU)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before
    monkeypatch.setattr(Kept, "read", lambda *_: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        list(read_ahead(domains, stream.batches(), CPU))
    assert threading.active_count() == before


def test_the_gallery_has_a_row_of_each_severity(tmp_path, folder, models):
    from PIL import Image

    run(_given(models, folder, scenarios=["mild"], severities=[1, 5], kinds=["clean", "fog"]), tmp_path / "run")
    sizes = {path.name: Image.open(path).size for path in (tmp_path / "run" / "gallery").iterdir()}
    side = 4 * 24 + 4
    assert sizes == {"clean.png": (8 * side, side), "fog.png": (8 * side, 2 * side)}
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["stand_in"] is False
