"""Corrupted copies on disk: the layout, the same files from every run, and what cannot be copied."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from pathlib import Path

import corruption_helpers as helpers
import numpy as np
import pytest
import torch
from PIL import Image

from wildtta.corruptions import corrupt
from wildtta.data import copy, open_data
from wildtta.data.base import DataError
from wildtta.data.copy import RECORD, Copied, corrupted_copy
from wildtta.models import Model, Preprocessing

SMALL = {"kinds": ("gaussian_noise", "contrast"), "severities": (1, 4), "size": 32, "workers": 2}
IMAGES = 5  # of each class, and there are two


@pytest.fixture
def source(tmp_path):
    """Two classes of images, taller and wider than the copies."""
    for number, picture in enumerate(helpers.to_uint8(helpers.pictures(2 * IMAGES, 40, 56))):
        path = tmp_path / "source" / ("cat", "dog")[number // IMAGES] / f"{number}.{('png', 'JPEG')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return tmp_path / "source"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepared(path: Path, side: int = 32) -> torch.Tensor:
    """The middle of the image, its shorter side resized, without the library."""
    with Image.open(path) as image:
        resized = image.convert("RGB").resize((int(side * image.width / image.height), side), Image.Resampling.BILINEAR)
    left = round((resized.width - side) / 2)
    return torch.from_numpy(np.array(resized.crop((left, 0, left + side, side)))).permute(2, 0, 1).float() / 255


def test_the_layout_and_every_pixel(source, tmp_path):
    target = tmp_path / "copies" / "small"
    assert corrupted_copy(source, target, quality=None, **SMALL) == Copied(40, 0, ())
    originals = sorted(source.rglob("*.*"))
    files = [f"{kind}/{severity}" for kind in SMALL["kinds"] for severity in SMALL["severities"]]
    expected = {f"{cell}/{path.parent.name}/{path.stem}.png" for cell in files for path in originals}
    assert tree(target).keys() == expected | {RECORD}
    for kind in SMALL["kinds"]:
        for number, path in enumerate(originals):
            result = corrupt(prepared(path)[None], kind, 4, seeds=torch.tensor([number]))
            with Image.open(target / kind / "4" / path.parent.name / f"{path.stem}.png") as image:
                assert np.array_equal(np.array(image), helpers.to_uint8(result)[0])


def test_jpegs_as_the_authors_saved_them(source, tmp_path):
    corrupted_copy(source, tmp_path / "copies", **{**SMALL, "kinds": ["pixelate"], "severities": [3]})
    path = sorted(source.rglob("*.*"))[7]
    picture = helpers.to_uint8(corrupt(prepared(path)[None], "pixelate", 3))[0]
    Image.fromarray(picture).save(tmp_path / "expected.JPEG", quality=85, optimize=True)
    copied = tmp_path / "copies" / "pixelate" / "3" / path.parent.name / f"{path.stem}.JPEG"
    assert copied.read_bytes() == (tmp_path / "expected.JPEG").read_bytes()


def test_noise_can_be_saved_at_every_quality(tmp_path):
    """Pure noise is what compresses least."""
    (tmp_path / "source" / "cat").mkdir(parents=True)
    noise = np.random.default_rng(0).choice(np.array([0, 255], dtype=np.uint8), (256, 256, 3))
    Image.fromarray(noise).save(tmp_path / "source" / "cat" / "0.png")
    for quality in (85, 86, 94, 95, 100):
        target = tmp_path / str(quality)
        result = corrupted_copy(
            tmp_path / "source", target, kinds=["impulse_noise"], severities=[1], size=256, quality=quality
        )
        assert result == Copied(1, 0, ())


def test_imagenets_own_sizes_are_the_default(source, tmp_path):
    corrupted_copy(source, tmp_path / "copies", kinds=["contrast"], severities=[1], quality=None)
    path = sorted(source.rglob("*.*"))[0]
    with Image.open(path) as image, Image.open(tmp_path / "copies" / "contrast" / "1" / "cat" / "0.png") as copied:
        resized = image.resize((358, 256), Image.Resampling.BILINEAR).crop(
            (67, 16, 291, 240)
        )  # 256 * 56 / 40, truncated
        assert copied.size == (224, 224)
        result = corrupt(torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None] / 255, "contrast", 1)
        assert np.array_equal(np.array(copied), helpers.to_uint8(result)[0])


@pytest.mark.parametrize("after", [1, 4, 7])
def test_interrupted_and_gone_on_with_is_as_uninterrupted(source, tmp_path, monkeypatch, after):
    monkeypatch.setattr(copy, "_BATCH", 3)
    corrupted_copy(source, tmp_path / "whole", **SMALL)
    told = []

    def stop(done, total):
        told.append((done, total))
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupted_copy(source, tmp_path / "parts", progress=stop, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*.JPEG")}
    assert 0 < len(before) < 40
    assert not list((tmp_path / "parts").glob(".*"))
    damaged = sorted(before)[0]
    damaged.write_bytes(damaged.read_bytes()[:100])  # as when the machine went down

    result = corrupted_copy(source, tmp_path / "parts", progress=lambda *now: told.append(now), **SMALL)
    assert result == Copied(40 - len(before) + 1, len(before) - 1, ())
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == made for path, made in before.items() if path != damaged)
    assert told[-1] == (40, 40)
    again = corrupted_copy(source, tmp_path / "parts", **SMALL)
    assert again == Copied(0, 40, ())


def test_more_can_be_added_and_changes_nothing_else(source, tmp_path):
    target = tmp_path / "copies"
    corrupted_copy(source, target, **SMALL)
    first = tree(target)
    assert corrupted_copy(source, target, **{**SMALL, "kinds": ["frost"]}).written == 20
    assert corrupted_copy(source, target, **{**SMALL, "severities": [4, 5, 5]}) == Copied(20, 20, ())
    both = tree(target)
    assert {name: both[name] for name in first if name != RECORD} == {k: v for k, v in first.items() if k != RECORD}
    assert json.loads(both[RECORD])["frost"] in ("imagecorruptions", "procedural")


def test_a_tar_gives_the_same(source, tmp_path):
    with tarfile.open(tmp_path / "source.tar", "w") as archive:
        archive.add(source, arcname=".")
    corrupted_copy(source, tmp_path / "one", **SMALL)
    corrupted_copy(tmp_path / "source.tar", tmp_path / "two", **SMALL)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_part_of_a_set_and_tiny_imagenets_own_layout(source, tmp_path):
    """The same images as a "val" beside "train", and as files in one folder with a list of their classes."""
    corrupted_copy(source, tmp_path / "one", **SMALL)
    images = tmp_path / "tiny" / "val" / "images"
    images.mkdir(parents=True)
    (tmp_path / "tiny" / "train").mkdir()
    lines = []
    for path in source.rglob("*.*"):
        (images / path.name).write_bytes(path.read_bytes())
        lines.append(f"{path.name}\t{path.parent.name}\t0\t0\t9\t9\n")
    (images.parent / "val_annotations.txt").write_text("".join(lines))
    corrupted_copy(tmp_path / "tiny", tmp_path / "two", **SMALL)
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert one.pop(RECORD) != two.pop(RECORD)  # of the names
    assert one == two


def test_the_copies_are_what_the_layout_makes_as_it_reads(source, tmp_path):
    corrupted_copy(source, tmp_path / "copies", quality=None, **SMALL)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    model = Model("small", network, Preprocessing((32, 32), 32, "bilinear"), ("cat", "dog"))
    numbers = torch.arange(2 * IMAGES)
    read = open_data(f"folder:{source}", model).domain("gaussian_noise", 4).read(numbers)[0]
    copied = open_data(f"imagenet-c:{tmp_path / 'copies'}", model).domain("gaussian_noise", 4).read(numbers)[0]
    assert torch.equal(read, copied)


def test_unreadable_images_are_reported_and_change_no_other(source, tmp_path):
    corrupted_copy(source, tmp_path / "whole", **SMALL)
    (source / "cat" / "1.JPEG").write_bytes(b"no image")
    cut = source / "dog" / "8.png"
    cut.write_bytes(cut.read_bytes()[:200])
    result = corrupted_copy(source, tmp_path / "copies", **SMALL)
    assert (result.written, result.kept) == (32, 0)
    assert [line.split(":")[0] for line in result.unreadable] == ["cat/1.JPEG", "dog/8.png"]
    assert "not an image" in result.unreadable[0]
    whole, copies = tree(tmp_path / "whole"), tree(tmp_path / "copies")
    assert copies == {name: content for name, content in whole.items() if not re.search(r"cat/1\.|dog/8\.", name)}
    assert corrupted_copy(source, tmp_path / "copies", **SMALL) == Copied(0, 32, result.unreadable)


def test_nothing_readable_is_an_error(source, tmp_path):
    for path in source.rglob("*.*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"none of the 10 images of .*source can be read: cat/0.png: not an image"):
        corrupted_copy(source, tmp_path / "copies", **SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": ["gausian_noise"]}, "unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'"),
        ({"kinds": ["zzz"]}, "unknown corruption 'zzz'; choose from gaussian_noise, shot_noise"),
        ({"kinds": []}, "no corruption was asked for"),
        ({"severities": []}, "no severity was asked for"),
        ({"severities": [3, 6]}, "severities are from 1 to 5, not 6"),
        ({"size": 8}, "images of 8 × 8 are too small to corrupt; ask for at least 16"),
        ({"resize": 31}, "a middle of 32 × 32 cannot be cut out of images whose shorter side is 31"),
        ({"quality": 0}, "from 1 to 100, not 0"),
        ({"workers": 0}, "workers must be at least 1, not 0"),
    ],
)
def test_wrong_options(source, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        corrupted_copy(source, tmp_path / "copies", **(SMALL | change))
    assert not (tmp_path / "copies").exists()


def test_wrong_places(source, tmp_path):
    def refused(message, one=source, two=tmp_path / "copies"):
        with pytest.raises(DataError, match=message):
            corrupted_copy(one, two, **SMALL)

    refused("there is no folder or tar .*nowhere; .* has source", tmp_path / "nowhere")
    refused("copies lies in .*source, where the copies would count as images of it", two=source / "copies")
    refused("source lies in .*source", two=source)
    deep = tmp_path / "copies" / "contrast" / "4"
    deep.parent.mkdir(parents=True)
    source.rename(deep)
    refused("lies where its copies would be written", deep)
    refused("has contrast already, of which nothing says how it was made", deep.rename(source))
    (tmp_path / "file").touch()
    refused("file is a file; choose a folder", two=tmp_path / "file")
    refused("cat has no folders, where one for each class is needed; it has 0.png", source / "cat")
    (tmp_path / "bare" / "notes").mkdir(parents=True)
    refused("bare has no images in 1 of its 1 class folders: notes", tmp_path / "bare")
    (source / "cat" / "0.bmp").write_bytes((source / "cat" / "0.png").read_bytes())
    refused("the copies of cat/0.bmp and cat/0.png would have the same name", two=tmp_path / "others")


def test_an_earlier_run_must_have_made_them_alike(source, tmp_path):
    target = tmp_path / "copies"
    corrupted_copy(source, target, **SMALL)
    before = tree(target)

    def refused(message, **change):
        with pytest.raises(DataError, match=message):
            corrupted_copy(source, target, **(SMALL | change))

    refused("copies made with quality 85, not 50; choose another folder", quality=50)
    refused("with size 32, not 48", size=48)
    refused("with resize 32, not 40", resize=40)
    (source / "cat" / "0.png").rename(source / "cat" / "30.bmp")
    refused("of other images than these, whose random numbers would differ")
    (source / "cat" / "30.bmp").unlink()
    refused("of 10 images, where there are 9 now")
    assert tree(target) == before
    (target / RECORD).write_text("[")
    refused("corrupted.json, the record of an earlier run, cannot be read")


def test_frost_of_another_kind_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "frost_source", lambda: "procedural")
    corrupted_copy(source, tmp_path / "copies", **(SMALL | {"kinds": ["frost"]}))
    monkeypatch.setattr(copy, "frost_source", lambda: "imagecorruptions")
    with pytest.raises(DataError, match="made with procedural frost, and here it would be imagecorruptions"):
        corrupted_copy(source, tmp_path / "copies", **(SMALL | {"kinds": ["frost"]}))
    corrupted_copy(source, tmp_path / "copies", **SMALL)  # which needs no frost


def test_a_full_disk_says_so_and_can_be_gone_on_with(source, tmp_path, monkeypatch):
    replace, count = os.replace, iter(range(100))

    def full(one, two):
        if next(count) >= 12:
            raise OSError(28, "No space left on device")
        replace(one, two)

    monkeypatch.setattr(copy.os, "replace", full)
    with pytest.raises(DataError, match=r"could not be written to .*: No space left on device; once there is room"):
        corrupted_copy(source, tmp_path / "copies", **SMALL)
    monkeypatch.undo()
    assert corrupted_copy(source, tmp_path / "copies", **SMALL).kept == 11  # and the record
    corrupted_copy(source, tmp_path / "whole", **SMALL)
    assert tree(tmp_path / "copies") == tree(tmp_path / "whole")


def test_what_a_killed_run_left_behind_goes_away(source, tmp_path):
    old, young = (tmp_path / "copies" / f".unfinished-{age}" for age in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "7").write_bytes(b"part")
    os.utime(old, (time.time() - 7200,) * 2)
    corrupted_copy(source, tmp_path / "copies", **SMALL)
    assert not old.exists()
    assert young.exists()  # of another run, perhaps
