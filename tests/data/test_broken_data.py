"""Every layout, broken in every way that is seen on disks: what is said, and whether it stops a run."""

from __future__ import annotations

import gzip
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import data_sets
import numpy as np
import pytest
import torch
from data_sets import number_of, preflight, stranger, truncate, wnids, write, write_image

from wildtta.corruptions import CORRUPTIONS
from wildtta.data import DataError, open_data

Break = Callable[[Path], object]


def remove(pattern: str) -> Break:
    """The files and folders of this pattern; "." is the whole set."""

    def apply(root: Path) -> None:
        for path in [root] if pattern == "." else list(root.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def to_file(pattern: str) -> Break:
    """Folders become files."""

    def apply(root: Path) -> None:
        for path in [root] if pattern == "." else list(root.glob(pattern)):
            shutil.rmtree(path)
            path.write_text("a file")

    return apply


def rename(pattern: str, name: str) -> Break:
    return lambda root: [path.rename(path.with_name(name)) for path in list(root.glob(pattern))]


def cut(pattern: str) -> Break:
    return lambda root: [truncate(path) for path in root.glob(pattern)]


def edit(old: str, new: str, whole: bool = False) -> Break:
    """A text in the list file becomes another; of the `whole` file only the old text stays."""

    def apply(root: Path) -> None:
        text = (root / "list.txt").read_text()
        assert old in text
        (root / "list.txt").write_text(old if whole else text.replace(old, new))

    return apply


def save(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Break:
    """An array becomes another."""
    return lambda root: np.save(root / name, change(np.load(root / name)))


A = wnids()[0]  # a class
N, M = str(number_of(A)), str(number_of(stranger()))  # its number, and that of a class that the model does not have

CORRUPTED = ("imagenet-c", "tiny-imagenet-c")
CLASSES = ("imagenet", "tiny-imagenet", "folder", "imagenet-r", "imagenet-a", "imagenet-sketch")
NUMBERED = ("imagenet-v2",)
LISTED = ("visda-2021",)
ARRAYS = ("cifar10-c", "cifar100-c")

# For some layouts: what is broken, how, and the one thing that is then said ({} is the set's path).
# fmt: off
TABLE: dict[tuple[str, ...], list[tuple[str, Break, str]]] = {
    CORRUPTED: [
        ("no fog", remove("fog"), "error: {} has no 'fog'; it has snow; unpack it there"),
        ("truncated", cut(f"fog/5/{A}/*_00.JPEG"), f"warning: 1 cannot be read: fog/5/{A}/picture_00.JPEG: image file is trunc"),
        ("other classes", rename(f"*/*/{A}", "n9"), "error: 1 of 3 classes are not among the 3 of tiny: n9"),
        ("no images", remove(f"fog/5/{A}/*.JPEG"), f"error: {{}}/fog/5 has no images in 1 of its 3 class folders: {A}"),
        ("file for folder", to_file(f"fog/5/{A}"), f"error: {{}}/fog/5 lacks 1 of the 3 class folders that the others have: {A}"),
        ("no class folder", remove(f"fog/3/{A}"), f"error: {{}}/fog/3 lacks 1 of the 3 class folders that the others have: {A}"),
        ("no image", remove(f"fog/3/{A}/*_01.JPEG"), "error: {}/fog/3 and {}/fog/1 do not have the same images (1 are in one"),
        ("no severity", remove("fog/3"), "error: has fog at severity 1, 5, not at 3"),
        ("packed still", to_file("*"), "error: {} has no folders CORRUPTION/SEVERITY/CLASS (fog/5/n01440764, say), only fog, snow"),
        ("no classes", remove("*/*/*"), "error: {} has no class folders below its corruptions and severities"),
    ],
    CLASSES: [
        ("missing", remove("."), "error: there is no folder or tar {}; "),
        ("truncated", cut(f"{A}/*_00.JPEG"), f"warning: 1 cannot be read: {A}/picture_00.JPEG: image file is truncated"),
        ("other classes", rename(A, "n9"), "error: 1 of 3 classes are not among the 3 of tiny: n9, where it has such as n"),
        ("no images", remove(f"{A}/*.JPEG"), f"error: {{}} has no images in 1 of its 3 class folders: {A}"),
        ("file for folder", to_file("."), "error: {} is not a whole, uncompressed tar"),
        ("no class folder", remove(A), "warning: {} has 2 of the 3 classes of tiny; its head is cut down to these"),
        ("nothing", remove("*"), "error: the folder {} is empty"),
        ("files for classes", to_file("*"), f"error: {{}} has no folders, where one for each class is needed; it has {A}"),
        ("all truncated", cut("*/*.JPEG"), "error: of 12 sampled images 12 cannot be read: "),
    ],
    NUMBERED: [
        ("missing", remove("."), "error: there is no folder or tar {}; "),
        ("truncated", cut(f"{N}/*_00.JPEG"), f"warning: 1 cannot be read: {N}/picture_00.JPEG: image file is truncated"),
        ("other classes", rename(N, M), f"error: 1 of 3 classes are not among the 3 of tiny: {stranger()}"),
        ("no images", remove(f"{N}/*.JPEG"), f"error: {{}} has no images in 1 of its 3 class folders: {N}"),
        ("file for folder", to_file(N), "warning: {} has 2 of the 3 classes of tiny; its head is cut down to these"),
    ],
    LISTED: [
        ("no images", remove("images"), "error: {}/list.txt names 13 images, of which 13 are not in {}: images/"),
        ("truncated", cut(f"images/{A}/*_00.JPEG"), f"warning: 1 cannot be read: images/{A}/picture_00.JPEG: image file is trunc"),
        ("other classes", edit(f" {N}\n", f" {M}\n"), f"error: 1 of 3 classes are not among the 3 of tiny: {stranger()}"),
        ("empty list", edit("", "", whole=True), "error: {}/list.txt is empty"),
        ("no label", edit("1.JPEG 1000", "1.JPEG"), "error: {}/list.txt, line 2: 'images/unknown 1.JPEG' is not of the form PATH"),
        ("no path", edit("images/unknown 1.JPEG ", ""), "error: {}/list.txt, line 2: '1000' is not of the form PATH LABEL"),
        ("outside", edit("images/unknown", "../outside/unknown"), "error: 1 are not in {}: ../outside/unknown 1.JPEG"),
        ("twice", edit("unknown 1", f"{A}/picture_00"), f"error: names 1 images more than once: images/{A}/picture_00.JPEG"),
        ("no list", remove("list.txt"), "error: must hold one list of its images (a .txt of lines PATH LABEL), but has only"),
        ("two lists", lambda root: (root / "b.txt").write_text("x 1"), "error: but has b.txt, list.txt"),
        ("no class known", edit("images/unknown 1.JPEG 1000", "", whole=True), "error: no label from 0 to 999"),
    ],
    ARRAYS: [
        ("no fog", remove("fog.npy"), "error: {} has no 'fog'; it has snow; put fog.npy there"),
        ("truncated", cut("fog.npy"), "error: {}/fog.npy is not a whole .npy file ("),
        ("other classes", save("labels.npy", lambda labels: labels + 100), "error: {}/labels.npy must hold labels from 0 to "),
        ("nothing", remove("*"), "error: {} has no labels.npy; it has nothing"),
        ("shape", save("fog.npy", lambda images: images[:, :9]), "error: 32 × 32 × 3 bytes, but it holds 60 × 9 × 32 × 3 of uint8"),
        ("missing", remove("."), "error: {} must be a folder of .npy files, but there is none"),
        ("packed still", to_file("."), "error: {} must be a folder of .npy files, but it is a file"),
        ("floats", save("fog.npy", lambda images: images / 255), "error: but it holds 60 × 32 × 32 × 3 of float64"),
        ("few images", save("fog.npy", lambda images: images[:59]), "error: fog.npy has 59 images where labels.npy has 60 labels"),
        ("few labels", save("labels.npy", lambda labels: labels[:10]), "error: the same labels five times over"),
        ("columns", save("labels.npy", lambda labels: labels[:, None]), "error: it holds 60 × 1 of uint8"),
        ("labels truncated", cut("labels.npy"), "error: {}/labels.npy is not a whole .npy file ("),
        ("objects", save("fog.npy", lambda images: images.astype(object)), "error: {}/fog.npy is not a whole .npy file ("),
        ("pickle", lambda root: (root / "fog.npy").write_bytes(pickle.dumps({})), "error: {}/fog.npy is not a whole .npy file ("),
        ("archive", lambda root: np.savez((root / "fog.npy").open("wb"), 1), "error: {}/fog.npy is an archive of arrays, where"),
        ("labels alone", remove("[fs]*.npy"), "error: {} has no arrays of images (fog.npy, …); it has labels.npy"),
    ],
}
# fmt: on

CASES = [
    pytest.param(layout, apply, said, id=f"{layout}, {what}")
    for layouts, rows in TABLE.items()
    for layout in layouts
    for what, apply, said in rows
]


@pytest.mark.parametrize(("layout", "apply", "said"), CASES)
def test_what_is_said_of_a_broken_set(tmp_path, layout, apply, said):
    root = tmp_path / "set"
    model = write(layout, root)
    write_image(tmp_path / "outside" / "unknown 1.JPEG", 0)
    kinds = ("fog",) if layout in (*CORRUPTED, *ARRAYS) else ()
    assert preflight(f"{layout}:{root}", model, kinds) == []
    apply(root)
    findings = preflight(f"{layout}:{root}", model, kinds)
    level, _, message = said.replace("{}", str(root)).partition(": ")
    worst = [text for found, text in findings if found == level]
    assert len(worst) == 1, findings
    assert message in worst[0]
    assert level == "error" or "error" not in dict(findings)


def test_every_layout_is_broken_in_five_ways():
    ways = {layout: {what for what, *_ in rows} for layouts, rows in TABLE.items() for layout in layouts}
    assert set(ways) == {*data_sets.FOLDERS, *data_sets.ARRAYS}
    assert min(map(len, ways.values())) >= 5


@pytest.mark.parametrize("layout", data_sets.FOLDERS)
@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_unreadable_images_are_left_out_and_named(tmp_path, monkeypatch, layout, memory):
    monkeypatch.setattr("wildtta.data.pictures.MEMORY", memory)
    written = data_sets.FOLDERS[layout](tmp_path)
    (kind, severity), pairs = next(iter(written.pairs.items()))
    truncate(pairs[2][1])
    pairs[5][1].write_text("no picture")
    domain = open_data(f"{layout}:{tmp_path}", data_sets.model(wnids())).domain(kind, severity)
    images, readable = domain.read(torch.tensor([2, 1, 5, 0, 2]))
    assert readable.tolist() == [False, True, False, True, False]
    assert torch.equal(images, torch.stack([data_sets.decoded(pairs[number][1]) for number in (1, 0)]))
    assert set(domain.unreadable) == {2, 5}
    assert "picture_02.JPEG: image file is truncated" in domain.unreadable[2]
    assert "picture_01.JPEG: not an image, or damaged at its start" in domain.unreadable[5]
    nothing, readable = domain.read(torch.tensor([5]))
    assert nothing.shape == (0, 3, 32, 32)
    assert readable.tolist() == [False]


def test_a_deep_check_looks_at_every_image(tmp_path):
    pairs = data_sets.write_classes(tmp_path, {name: name for name in wnids()}, each=20)
    truncate(pairs[1][1])  # not one of the sample
    spec, model = f"imagenet-r:{tmp_path}", data_sets.model(wnids())
    assert preflight(spec, model) == []
    ((level, text),) = preflight(spec, model, deep=True)
    assert level == "warning"
    assert f"of all 60 images 1 cannot be read: {A}/picture_01.JPEG: image file is truncated" in text


def test_images_smaller_than_the_model_are_warned_of(tmp_path):
    write("imagenet-r", tmp_path)
    ((level, text),) = preflight(f"imagenet-r:{tmp_path}", data_sets.model(wnids(), side=48))
    assert level == "warning"
    assert "12 of 12 sampled images are smaller than the model's 48 × 48 (one is 32 × 32); they are enlarged" in text


def test_images_are_too_small_to_corrupt(tmp_path):
    write("imagenet", tmp_path)
    said = preflight(f"imagenet:{tmp_path}", data_sets.model(wnids(), side=8), ["fog"])
    assert [level for level, _ in said] == ["error"]
    assert "images of 8 × 8 are too small to corrupt" in said[0][1]


@pytest.mark.parametrize("damage", ["within an image", "between two images", "compressed", "empty"])
def test_a_tar_that_is_not_whole_is_refused(tmp_path, damage):
    write("imagenet", tmp_path / "set")
    tar = data_sets.tarred(tmp_path / "set", tmp_path / "set.tar", "val")
    with tarfile.open(tar) as archive:
        middle = [member for member in archive if member.isfile()][8]
    content = tar.read_bytes()
    changed = {
        "within an image": content[: middle.offset_data + 10],
        "between two images": content[: middle.offset],
        "compressed": gzip.compress(content),
        "empty": b"",
    }
    tar.write_bytes(changed[damage])
    with pytest.raises(DataError, match=f"{tar} is not a whole, uncompressed tar .*; decompress it"):
        open_data(f"imagenet:{tar}", data_sets.model(wnids()))


def test_a_tar_without_files_is_refused(tmp_path):
    (tmp_path / "set").mkdir()
    tar = data_sets.tarred(tmp_path / "set", tmp_path / "set.tar", "val")
    with pytest.raises(DataError, match=f"{tar} is an empty tar"):
        open_data(f"imagenet:{tar}", data_sets.model(wnids()))


def test_a_set_that_lies_under_another_layout_is_refused(tmp_path):
    data_sets.write_classes(tmp_path, {stranger(): stranger(), A: A})
    ((level, text),) = preflight(f"imagenet-r:{tmp_path}", data_sets.model([A, stranger()]))
    assert level == "error"
    assert f"is not imagenet-r: 1 of its 2 classes are not among the 200 of that set: {stranger()}" in text


@pytest.mark.parametrize("layout", ["imagenet-c", "cifar10-c"])
def test_corruptions_of_the_benchmark_that_are_not_there_are_known(tmp_path, layout):
    data = open_data(f"{layout}:{tmp_path}", write(layout, tmp_path))
    assert data.lacking == tuple(kind for kind in CORRUPTIONS if kind not in data.kinds)
    assert 0 < len(data.lacking) < len(CORRUPTIONS)
