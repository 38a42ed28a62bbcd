"""Every layout is read right: labels, bits, corruptions made on the fly, source images, digests; folders and tars alike."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import data_sets
import numpy as np
import pytest
import torch
from data_sets import ARRAYS, FOLDERS, array_labels, decoded, pixels, read, stranger, wnids, write, write_classes
from PIL import Image

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt
from wildtta.data import LAYOUTS, DataError, open_data

CLEAN = ("imagenet", "tiny-imagenet", "folder")


@pytest.mark.parametrize("layout", FOLDERS)
@pytest.mark.parametrize(("packed", "memory"), [(False, 0), (True, 0), (True, 1 << 20)])
def test_labels_and_bits_of_image_files(tmp_path, monkeypatch, layout, memory, packed):
    monkeypatch.setattr("wildtta.data.pictures.MEMORY", memory)
    written = FOLDERS[layout](tmp_path / "set")
    path = (
        data_sets.tarred(written.path, tmp_path / "set.tar", "./" if layout == "visda-2021" else "top")
        if packed
        else written.path
    )
    data = open_data(f"{layout}:{path}", data_sets.model(wnids()))
    assert data.name == layout
    assert data.classes == wnids()
    assert data.outputs is None
    for (kind, severity), pairs in written.pairs.items():
        assert kind in data.kinds
        domain = data.domain(kind, severity)
        assert (domain.name, domain.severity) == (kind, severity)
        assert domain.labels.dtype == torch.int64
        assert [data.classes[label] for label in domain.labels] == [name for name, _ in pairs]
        whole = torch.stack([decoded(file) for _, file in pairs])
        assert torch.equal(read(data, kind, severity), whole)
        order = torch.tensor([7, 0, 11, 7, 3])
        assert torch.equal(domain.read(order)[0], whole[order])
        assert torch.equal(domain.read(order[1:2])[0], whole[:1])
        assert domain.unreadable == {}
        with pytest.raises(IndexError, match="images 0 to 11, asked for were 0 to 12"):
            domain.read(torch.tensor([0, 12]))


@pytest.mark.parametrize(("layout", "classes"), ARRAYS.items())
def test_labels_and_bits_of_arrays(tmp_path, layout, classes):
    data = open_data(f"{layout}:{tmp_path}", write(layout, tmp_path))
    assert (data.kinds, data.severities, data.outputs) == (("snow", "fog"), (1, 2, 3, 4, 5), None)
    assert data.classes == tuple(map(str, range(classes)))
    for place, kind in enumerate(("fog", "snow")):
        for severity in (1, 5):
            assert data.domain(kind, severity).labels.tolist() == array_labels(classes).tolist()
            first = 1000 * place + 12 * (severity - 1)
            expected = torch.stack([torch.from_numpy(pixels(first + number)) for number in range(12)])
            assert torch.equal(read(data, kind, severity), expected.permute(0, 3, 1, 2).float() / 255)


@pytest.mark.parametrize("side", [24, 64])
def test_arrays_are_resized_for_a_model_of_another_size(tmp_path, side):
    write("cifar10-c", tmp_path)
    data = open_data(f"cifar10-c:{tmp_path}", data_sets.model(10, side=side))
    expected = np.array(Image.fromarray(pixels(0)).resize((side, side), Image.Resampling.BICUBIC))
    assert torch.equal(read(data, "fog", 1)[0], torch.from_numpy(expected).permute(2, 0, 1).float() / 255)


def test_arrays_take_the_models_class_names_and_doubt_their_order(tmp_path):
    write("cifar10-c", tmp_path)
    names = tuple("abcdefghij")
    data = open_data(f"cifar10-c:{tmp_path}", data_sets.model(names))
    assert data.classes == names
    assert {finding.level for finding in data.check(["fog"], [1])} == {"ok"}
    reversed_ = open_data(f"cifar10-c:{tmp_path}", data_sets.model(names[::-1]))
    (warning,) = [finding for finding in reversed_.check(["fog"], [1]) if finding.level == "warning"]
    assert (
        "numbers its classes in alphabetical order, but the classes of tiny are in another (j, i, h and 7 more)"
        in warning.text
    )


def test_arrays_need_a_model_of_as_many_classes(tmp_path):
    write("cifar10-c", tmp_path)
    with pytest.raises(DataError, match="has 10 classes and tiny has 12 outputs; give a model of 10"):
        open_data(f"cifar10-c:{tmp_path}", data_sets.model(12))


@pytest.mark.parametrize("layout", CLEAN)
def test_corruptions_are_made_of_the_clean_images(tmp_path, layout):
    data = open_data(f"{layout}:{tmp_path}", write(layout, tmp_path))
    assert data.kinds == ("clean", *CORRUPTIONS, *EXTRA)
    assert data.severities == (1, 2, 3, 4, 5)
    clean = read(data, "clean", 5)
    numbers = torch.tensor([3, 9, 4])
    for kind, severity in (("gaussian_noise", 1), ("glass_blur", 5), ("frost", 3)):
        expected = corrupt(clean, kind, severity, seeds=torch.arange(12))
        assert torch.equal(read(data, kind, severity), expected)
        domain = data.domain(kind, severity)
        assert (domain.name, domain.severity) == (kind, severity)
        assert torch.equal(domain.read(numbers)[0], expected[numbers])


def test_seeds_stay_with_their_images_when_one_cannot_be_read(tmp_path):
    written = FOLDERS["imagenet"](tmp_path)
    clean = torch.stack([decoded(file) for _, file in written.pairs["clean", 0]])
    data_sets.truncate(written.pairs["clean", 0][0][1])
    data = open_data(f"imagenet:{tmp_path}", data_sets.model(wnids()))
    images, readable = data.domain("shot_noise", 4).read(torch.arange(12))
    assert readable.tolist() == [False] + [True] * 11
    assert torch.equal(images, corrupt(clean[1:], "shot_noise", 4, seeds=torch.arange(1, 12)))


def test_geometry(tmp_path):
    """What is resized already is cropped; photographs are resized first."""
    names = {name: name for name in wnids()}
    write_classes(tmp_path / "c" / "fog" / "1", names, side=40)
    (_, file), *_ = write_classes(tmp_path / "r", names, side=40)
    model = data_sets.model(wnids())
    model.preprocessing = data_sets.Preprocessing((32, 32), resize=36, interpolation="bilinear")
    image = Image.open(file)
    cropped = torch.from_numpy(np.array(image.crop((4, 4, 36, 36)))).permute(2, 0, 1).float() / 255
    small = np.array(image.resize((36, 36), Image.Resampling.BILINEAR).crop((2, 2, 34, 34)))
    for spec, kind in (("imagenet-c:c", "fog"), ("tiny-imagenet-c:c", "fog"), ("tiny-imagenet:r", "clean")):
        layout, _, folder = spec.partition(":")
        assert torch.equal(read(open_data(f"{layout}:{tmp_path / folder}", model), kind, 1)[0], cropped)
    for layout, kind in (("imagenet", "clean"), ("folder", "clean"), ("imagenet-r", "imagenet-r")):
        images = read(open_data(f"{layout}:{tmp_path / 'r'}", model), kind, 1)
        assert torch.equal(images[0], torch.from_numpy(small).permute(2, 0, 1).float() / 255)


def test_image_k_is_the_same_picture_at_every_severity(tmp_path):
    write("imagenet-c", tmp_path)
    data = open_data(f"imagenet-c:{tmp_path}", data_sets.model(wnids()))
    assert data.kinds == ("snow", "fog")
    assert data.severities == (1, 3, 5)
    names = {severity: data.domain("fog", severity).pictures.names for severity in data.severities}
    assert names[1] == names[3] == names[5]
    assert len(names[1]) == 12


@pytest.mark.parametrize("layout", ["imagenet-r", "imagenet-a", "imagenet-sketch", "imagenet-c", "folder"])
def test_the_head_is_cut_down_to_the_classes_that_there_are(tmp_path, layout):
    model = data_sets.model(sorted([*wnids(), stranger()])[::-1])
    write(layout, tmp_path)
    data = open_data(f"{layout}:{tmp_path}", model)
    assert data.outputs == tuple(number for number, name in enumerate(model.classes) if name != stranger())
    restricted = model.restricted(data.outputs)
    assert restricted.classes == data.classes == wnids()[::-1]
    domain = data.domain(data.kinds[-1], data.severities[-1])
    assert [data.classes[label] for label in domain.labels] == [name for name in wnids() for _ in range(4)]
    images = model.preprocessing.normalise(domain.read(torch.arange(3))[0])
    # a product with fewer rows may add in another order
    torch.testing.assert_close(restricted.network(images), model.network(images)[:, list(data.outputs)])


def test_the_published_subset_is_no_cause_for_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("wildtta.data.layouts.subset", lambda _: wnids())
    model = data_sets.model([*wnids(), stranger()])
    write("imagenet-r", tmp_path)
    findings = open_data(f"imagenet-r:{tmp_path}", model).check(["imagenet-r"], [0])
    assert {finding.level for finding in findings} == {"ok"}
    assert "has 3 of the 4 classes of tiny; its head is cut down to these" in findings[0].text


def test_a_listed_set_leaves_the_head_whole_and_counts_the_unknown(tmp_path):
    model = data_sets.model([stranger(), *wnids()])
    write("visda-2021", tmp_path)
    data = open_data(f"visda-2021:{tmp_path}", model)
    assert data.outputs is None
    assert data.classes == model.classes
    assert data.domain("visda-2021", 0).labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    texts = [finding.text for finding in data.check(["visda-2021"], [0])]
    assert f"visda-2021:{tmp_path}: 1 of 13 images are of classes that ImageNet does not have" in texts[0]


def test_folders_named_after_wordnet_ids_are_imagenet_v2_too(tmp_path):
    pairs = write_classes(tmp_path, {name: name for name in wnids()})
    data = open_data(f"imagenet-v2:{tmp_path}", data_sets.model(wnids()))
    assert torch.equal(read(data, "imagenet-v2", 0), torch.stack([decoded(file) for _, file in pairs]))


def test_class_names_that_are_not_known_are_taken_in_order(tmp_path):
    write("folder", tmp_path)
    data = open_data(f"folder:{tmp_path}", data_sets.model(3))
    assert data.classes == wnids()
    (warning,) = [finding for finding in data.check(["clean"], [1]) if finding.level == "warning"]
    assert "class names of tiny are not known; its outputs are taken for the sorted classes" in warning.text
    with pytest.raises(DataError, match=r"has 3 classes .* and tiny has 4 outputs, whose names are not known"):
        open_data(f"folder:{tmp_path}", data_sets.model(4))


def test_a_thousand_unnamed_outputs_are_imagenets(tmp_path):
    write("imagenet-sketch", tmp_path)
    data = open_data(f"imagenet-sketch:{tmp_path}", data_sets.model(1000))
    assert data.outputs == tuple(map(data_sets.number_of, wnids()))
    assert any("taken for ImageNet's" in finding.text for finding in data.check(data.kinds, [0]))


def test_one_class_is_not_enough(tmp_path):
    write_classes(tmp_path, {wnids()[0]: wnids()[0]})
    with pytest.raises(DataError, match=f"has images of the class {wnids()[0]} alone"):
        open_data(f"folder:{tmp_path}", data_sets.model(wnids()))


# -- Tiny-ImageNet, as it was published ----------------------------------------------------------------------------


def _publish(root: Path, pairs: data_sets.Pairs) -> None:
    images = root / "val" / "images"
    images.mkdir(parents=True)
    lines = []
    for number, (name, file) in enumerate(pairs):
        shutil.copy(file, images / f"val_{number:02}.JPEG")
        lines.append(f"val_{number:02}.JPEG\t{name}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(reversed(lines)))
    write_classes(root / "train", {name: f"{name}/images" for name in wnids()}, seed=5000)


def test_tiny_imagenet_as_published(tmp_path):
    pairs = write_classes(tmp_path / "classes", {name: name for name in wnids()})
    _publish(tmp_path / "tiny-imagenet-200", pairs)
    model = data_sets.model(wnids())
    whole = torch.stack([decoded(file) for _, file in pairs])
    train = str(tmp_path / "tiny-imagenet-200" / "train")
    for place in ("tiny-imagenet-200", "tiny-imagenet-200/val"):
        data = open_data(f"tiny-imagenet:{tmp_path / place}", model, source=train)
        assert data.domain("clean", 0).labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert torch.equal(read(data, "clean", 0), whole)
        assert len(data.source(100)) == 12  # train/CLASS/images/*.JPEG


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "val_annotations.txt is empty"),
        ("val_00.JPEG n01443537", "line 1: 'val_00.JPEG n01443537' is not of the form FILE<tab>CLASS"),
        ("val_77.JPEG\tn01443537", "names 1 images, of which 1 are not in .*val: images/val_77.JPEG"),
        ("val_00.JPEG\tn01443537\nval_00.JPEG\tn01443537", "names 1 images more than once: images/val_00.JPEG"),
    ],
)
def test_a_broken_list_of_tiny_imagenet(tmp_path, text, message):
    _publish(tmp_path, write_classes(tmp_path / "other", {name: name for name in wnids()}))
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "val" / "val_annotations.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        open_data(f"tiny-imagenet:{tmp_path}", data_sets.model(wnids()))


# -- source images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [*FOLDERS, *ARRAYS])
@pytest.mark.parametrize("packed", [False, True])
def test_source_images(tmp_path, layout, packed):
    names = map(str, range(10)) if layout in ARRAYS else wnids()
    pairs = write_classes(tmp_path / "source", {name: name for name in names}, seed=7000, each=6)
    source = data_sets.tarred(tmp_path / "source", tmp_path / "source.tar", "source") if packed else tmp_path / "source"
    model = write(layout, tmp_path / "set")
    data = open_data(f"{layout}:{tmp_path / 'set'}", model, source=str(source))
    images = [decoded(file) for _, file in pairs]
    drawn = data.source(2 * len(images) // 6 + 1)
    assert drawn.shape[1:] == (3, 32, 32)
    found = [next(place for place, mine in enumerate(images) if torch.equal(mine, image)) for image in drawn]
    assert len(set(found)) == len(found)
    counts = [sum(pairs[place][0] == name for place in found) for name in data.classes[: len(images) // 6]]
    assert sorted(counts)[:-1] == [2] * (len(counts) - 1)
    assert max(counts) == 3
    again = open_data(f"{layout}:{tmp_path / 'set'}", model, source=str(source))
    assert torch.equal(again.source(len(drawn)), drawn)
    assert len(data.source(10_000)) == len(images)


def test_few_source_images_are_of_classes_from_all_over(tmp_path):
    names = tuple(f"class {number:02}" for number in range(20))
    pairs = write_classes(tmp_path, {name: name for name in names}, each=2)
    images = [decoded(file) for _, file in pairs]
    drawn = open_data(f"folder:{tmp_path}", data_sets.model(names)).source(10)
    found = [pairs[place][0] for image in drawn for place, mine in enumerate(images) if torch.equal(mine, image)]
    assert len(set(found)) == 10
    assert 0 < len(set(found) & set(names[:10])) < 10


@pytest.mark.parametrize("layout", [*FOLDERS, *ARRAYS])
def test_clean_sets_are_their_own_source(tmp_path, layout):
    data = open_data(f"{layout}:{tmp_path}", write(layout, tmp_path))
    images = data.source(5)
    if layout not in CLEAN:
        assert images is None
        return
    clean = read(data, "clean", 0)
    assert len(images) == 5
    assert all(any(torch.equal(image, mine) for mine in clean) for image in images)


def test_source_images_are_of_the_classes_of_the_data(tmp_path):
    write_classes(tmp_path / "source", {name: name for name in (*wnids(), stranger())})
    write("imagenet-r", tmp_path / "set")
    model = data_sets.model([*wnids(), stranger()])
    data = open_data(f"imagenet-r:{tmp_path / 'set'}", model, source=str(tmp_path / "source"))
    assert len(data.source(100)) == 12
    assert not [finding for finding in data.check(data.kinds, [0]) if "is named after" in finding.text]
    elsewhere = write_classes(tmp_path / "other", {"cat": "cat", "dog": "dog"})
    other = open_data(f"imagenet-r:{tmp_path / 'set'}", model, source=str(tmp_path / "other"))
    assert len(other.source(100)) == len(elsewhere)
    (said,) = [finding.text for finding in other.check(other.kinds, [0]) if "is named after" in finding.text]
    assert said.startswith(
        f"source images in {tmp_path / 'other'}: none of the 2 folders (cat, dog) is named after a class of"
    )
    assert said.endswith("); all images are used")


def test_unreadable_source_images_are_replaced(tmp_path):
    pairs = write_classes(tmp_path / "source", {name: name for name in wnids()})
    write("imagenet-c", tmp_path / "set")
    for _, file in pairs[1:7]:
        data_sets.truncate(file)
    data = open_data(f"imagenet-c:{tmp_path / 'set'}", data_sets.model(wnids()), source=str(tmp_path / "source"))
    assert len(data.source(6)) == 6
    (warning,) = [finding for finding in data.check(["fog"], [5]) if finding.level == "warning"]
    assert "/source: of 12 sampled images 6 cannot be read" in warning.text
    for _, file in (pairs[0], *pairs[7:]):
        data_sets.truncate(file)
    empty = open_data(f"imagenet-c:{tmp_path / 'set'}", data_sets.model(wnids()), source=str(tmp_path / "source"))
    with pytest.raises(DataError, match=r"none of the source images in .*source can be read: n"):
        empty.source(6)


@pytest.mark.parametrize("layout", [*FOLDERS, *ARRAYS])
def test_a_source_that_is_not_there(tmp_path, layout):
    with pytest.raises(DataError, match=r"there is no folder or tar .*nowhere"):
        open_data(f"{layout}:{tmp_path}", write(layout, tmp_path), source=str(tmp_path / "nowhere"))


# -- digests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", FOLDERS)
def test_the_digest_of_files_changes_with_them(tmp_path, layout):
    written = FOLDERS[layout](tmp_path / "set")
    write_classes(tmp_path / "source", {name: name for name in wnids()}, seed=3)
    model = data_sets.model(wnids())

    def digest(source: str | None = None) -> str:
        return open_data(f"{layout}:{tmp_path / 'set'}", model, source=source).digest()

    before = digest()
    assert digest() == before
    digests = {before, digest(str(tmp_path / "source"))}
    file = next(iter(written.pairs.values()))[-1][1]
    file.write_bytes(file.read_bytes() + b"0")
    digests.add(digest())
    if layout not in ("visda-2021", "imagenet-c", "tiny-imagenet-c"):
        file.rename(file.with_name("other.JPEG"))
        digests.add(digest())
        assert len(digests) == 4
    assert len(digests) >= 3


def test_the_digest_changes_with_a_label_in_a_list(tmp_path):
    model = write("visda-2021", tmp_path)
    before = open_data(f"visda-2021:{tmp_path}", model)
    text = (tmp_path / "list.txt").read_text()
    line = f"images/{wnids()[0]}/picture_03.JPEG {data_sets.number_of(wnids()[0])}"  # the last of its class
    assert line in text
    (tmp_path / "list.txt").write_text(text.replace(line, f"{line.split()[0]} {data_sets.number_of(wnids()[1])}"))
    after = open_data(f"visda-2021:{tmp_path}", model)
    assert after.domain("visda-2021", 0).labels.tolist() == [0] * 3 + [1] * 5 + [2] * 4
    assert after.digest() != before.digest()


@pytest.mark.parametrize("layout", ARRAYS)
@pytest.mark.parametrize("name", ["fog", "labels"])
def test_the_digest_of_arrays_changes_with_them(tmp_path, layout, name):
    model = write(layout, tmp_path)
    before = open_data(f"{layout}:{tmp_path}", model).digest()
    assert open_data(f"{layout}:{tmp_path}", model).digest() == before
    array = np.load(tmp_path / f"{name}.npy")
    np.save(tmp_path / f"{name}.npy", 9 - array if name == "labels" and layout == "cifar10-c" else array // 2)
    assert open_data(f"{layout}:{tmp_path}", model).digest() != before


# -- specs ---------------------------------------------------------------------------------------------------------


def test_every_layout_is_tested():
    assert set(LAYOUTS) == {"glyphs", *FOLDERS, *ARRAYS}


@pytest.mark.parametrize("layout", ["cifar10-c", "cifar100-c", "imagenet-c", "tiny-imagenet-c", "tiny-imagenet"])
def test_layouts_that_are_certain(tmp_path, layout):
    model, side = write(layout, tmp_path / "set"), {"imagenet-c": 224, "tiny-imagenet-c": 64}.get(layout)
    if layout == "tiny-imagenet":
        _publish(tmp_path / "published", write_classes(tmp_path / "set", {name: name for name in wnids()}))
        assert open_data(str(tmp_path / "published"), model).name == layout
        return
    if side is not None:
        shutil.rmtree(tmp_path / "set")
        write_classes(tmp_path / "set" / "fog" / "5", {name: name for name in wnids()}, side=side)
        tar = data_sets.tarred(tmp_path / "set", tmp_path / "set.tar", layout)
        assert open_data(str(tar), model).name == layout
    assert open_data(str(tmp_path / "set"), model).name == layout


@pytest.mark.parametrize("layout", ["imagenet-r", "folder", "imagenet-c", "visda-2021"])
def test_layouts_that_are_not_certain(tmp_path, layout):
    model = write(layout, tmp_path)  # (corruptions of 32 × 32 are of no set that is known)
    with pytest.raises(DataError, match=rf"the layout of {tmp_path} cannot be told .* LAYOUT:{tmp_path}, .*imagenet-r"):
        open_data(str(tmp_path), model)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("imagnet-c:/x", "unknown layout of data 'imagnet-c'; did you mean 'imagenet-c'"),
        ("ImageNet-R:/x", "did you mean 'imagenet-r'"),
        ("glyph", "unknown layout of data 'glyph'; did you mean 'glyphs'"),
        ("qqq:/x", "unknown layout of data 'qqq'; choose from glyphs, imagenet-c, imagenet"),
        ("imagenet-c", "'imagenet-c' does not say where the images lie; write imagenet-c:PATH"),
        ("imagenet-c:", "write imagenet-c:PATH"),
        ("glyphs:/x", "the glyphs come with the package and take no path; write 'glyphs'"),
        ("/nowhere/at/all", "there is no folder or tar /nowhere/at/all"),
        ("", "unknown layout of data ''; choose from"),
    ],
)
def test_specs_that_name_nothing(spec, message):
    with pytest.raises(DataError, match=message):
        open_data(spec, data_sets.model(3))


@pytest.mark.parametrize("layout", [*FOLDERS, *ARRAYS])
def test_kinds_and_severities_that_are_not_there(tmp_path, layout):
    data = open_data(f"{layout}:{tmp_path}", write(layout, tmp_path))
    with pytest.raises(DataError, match="has no 'fogg'"):
        data.domain("fogg", 5)
    if len(data.severities) > 1:
        with pytest.raises(DataError, match=r"has fog at severit.*, not at 9"):
            data.domain("fog", 9)


def test_the_glyphs_are_found_by_name():
    from wildtta.data.glyphs import Glyphs

    assert isinstance(open_data("glyphs", data_sets.model(len(Glyphs.classes))), Glyphs)


def test_importing_it_loads_no_large_library():
    script = "import sys, wildtta.data; print(*[name for name in ('timm', 'torchvision', 'matplotlib') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


# -- real images ---------------------------------------------------------------------------------------------------

REAL = Path(__file__).parents[3] / "shared" / "tiny-imagenet"


@pytest.mark.skipif(not (REAL / "val.tar").exists(), reason="the photographs of Tiny-ImageNet are not here")
def test_real_photographs_in_tars():
    with tarfile.open(REAL / "val.tar") as archive:
        names = sorted({member.name.split("/")[1] for member in archive if member.isfile()})
    data = open_data(
        f"tiny-imagenet:{REAL / 'val.tar'}", data_sets.model(names, side=64), source=str(REAL / "source.tar")
    )
    assert data.outputs is None
    clean = data.domain("clean", 0)
    assert len(clean) == 10_000
    assert torch.equal(clean.labels, torch.arange(200).repeat_interleave(50))
    numbers = torch.tensor([9_999, 0, 5_000])
    images, readable = clean.read(numbers)
    assert readable.all()
    noisy = data.domain("gaussian_noise", 3).read(numbers)[0]
    assert torch.equal(noisy, corrupt(images, "gaussian_noise", 3, seeds=numbers))
    assert data.source(400).shape == (400, 3, 64, 64)
    assert {finding.level for finding in data.check(["clean", "fog"], [1, 5])} == {"ok"}
