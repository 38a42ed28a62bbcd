"""The embedded set: images that are functions of their number, and networks that can read them."""

from __future__ import annotations

from importlib.resources import as_file, files
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wildtta.corruptions import CORRUPTIONS, EXTRA, corrupt
from wildtta.data.base import DataError
from wildtta.data.glyphs import NETWORKS, PREPROCESSING, TEST_IMAGES, Glyphs, glyph_batches, load_network
from wildtta.models import Model, Preprocessing, load_model
from wildtta.network import Network

CLASSES = Glyphs.classes
few = settings(max_examples=15, deadline=None)
some_numbers = st.lists(st.integers(0, TEST_IMAGES - 1), min_size=1, max_size=6)


def untrained(outputs=40, size=(32, 32)):
    return Model("mine", nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, outputs)), Preprocessing(size))


@pytest.fixture(scope="module")
def glyphs():
    return Glyphs(untrained())


def rows(images):
    return {image.numpy().tobytes() for image in (images * 255).round().to(torch.uint8)}


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clean", "shot_noise", "frost"])
@few
@given(some_numbers)
def test_an_image_has_the_same_bits_in_any_batch_and_order(kind, numbers):
    domain = Glyphs(untrained()).domain(kind, 4)
    together, readable = domain.read(torch.tensor(numbers))
    assert readable.tolist() == [True] * len(numbers)
    alone = torch.cat([domain.read(torch.tensor([number]))[0] for number in numbers])
    assert torch.equal(together, alone)


@few
@given(st.integers(1, 7), st.integers(8, 60))
def test_a_stream_has_the_same_images_in_batches_of_any_size(size, count):
    def first(size):
        batches = list(islice(glyph_batches(3, size), -(-count // size)))
        return tuple(torch.cat(parts)[:count] for parts in zip(*batches, strict=True))

    for one, other in zip(first(size), first(count), strict=True):
        assert torch.equal(one, other)


def test_images_are_rgb_in_eight_bits(glyphs):
    images, _ = glyphs.domain("clean", 0).read(torch.arange(40))
    assert images.shape == (40, 3, 32, 32)
    assert images.dtype == torch.float32
    assert torch.equal(images, (images * 255).round() / 255)
    assert 0 <= images.min() < 0.2
    assert 0.8 < images.max() <= 1
    assert not torch.equal(images[:, 0], images[:, 1])


def test_no_image_serves_two_purposes(glyphs):
    test = glyphs.domain("clean", 0).read(torch.arange(500))[0]
    training = [torch.cat([images for images, _ in islice(glyph_batches(seed, 50), 10)]) for seed in (0, 1)]
    sets = [rows(images) for images in (test, glyphs.source(500), *training)]
    assert len(set().union(*sets)) == 4 * 500


def test_every_class_is_there_equally_often(glyphs):
    labels = glyphs.domain("clean", 0).labels
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [TEST_IMAGES // 40] * 40
    trained = torch.cat([labels for _, labels in islice(glyph_batches(0, 64), 5)])
    assert trained.bincount().tolist() == [8] * 40


def test_images_of_a_class_differ_and_share_their_label_with_the_stream(glyphs):
    """A nearest-class rule learnt from the stream does much better than chance on the test images."""
    images, labels = next(glyph_batches(0, 2_000))
    test, answers = glyphs.domain("clean", 0).read(torch.arange(400))[0], glyphs.domain("clean", 0).labels[:400]

    def edges(images):  # what is left of a glyph without its colours
        grey = images.mean(1)
        return nn.functional.avg_pool2d((grey[:, 1:, 1:] - grey[:, :-1, :-1]).abs()[:, None], 4).flatten(1)

    means = torch.stack([edges(images[labels == label]).mean(0) for label in range(40)])
    right = torch.cdist(edges(test), means).argmin(1) == answers
    assert right.float().mean() > 3 / 40


# -- domains -----------------------------------------------------------------------------------------------------------


def test_kinds_are_the_corruptions_and_clean(glyphs):
    assert glyphs.kinds == ("clean", *CORRUPTIONS, *EXTRA)
    assert len(glyphs.kinds) == 20
    assert glyphs.severities == (1, 2, 3, 4, 5)
    assert glyphs.stand_in


@pytest.mark.parametrize("kind", [*CORRUPTIONS, *EXTRA])
def test_a_domain_is_corrupted_as_corrupt_does(glyphs, kind):
    numbers = torch.tensor([1_999, 3, 700])
    domain = glyphs.domain(kind, 3)
    clean = glyphs.domain("clean", 0).read(numbers)[0]
    assert (domain.name, domain.severity, len(domain)) == (kind, 3, TEST_IMAGES)
    assert torch.equal(domain.read(numbers)[0], corrupt(clean, kind, 3, seeds=numbers, reference=32))


def test_clean_images_have_no_severity(glyphs):
    domain = glyphs.domain("clean", 5)
    assert domain.severity == 0
    assert torch.equal(domain.read(torch.arange(9))[0], glyphs.domain("clean", 0).read(torch.arange(9))[0])
    assert domain.unreadable == {}


def test_no_numbers_give_no_images(glyphs):
    for kind in ("clean", "fog"):
        images, readable = glyphs.domain(kind, 1).read(torch.empty(0, dtype=torch.int64))
        assert images.shape == (0, 3, 32, 32)
        assert readable.shape == (0,)


def test_source_gives_as_many_as_asked_for(glyphs):
    assert glyphs.source(0).shape == (0, 3, 32, 32)
    assert torch.equal(glyphs.source(300)[:70], glyphs.source(70))


def test_the_digest_is_that_of_the_images(glyphs, monkeypatch):
    assert glyphs.digest() == Glyphs(untrained()).digest()
    from wildtta.data import glyphs as module

    other = module._test_images().clone()
    other[7, 0, 0, 0] ^= 1
    before = glyphs.digest()
    monkeypatch.setattr(module, "_test_images", lambda: other)
    assert glyphs.digest() != before


def test_what_is_not_there_is_an_error(glyphs):
    with pytest.raises(DataError, match=r"glyphs has no 'frog'; did you mean 'frost'|did you mean 'fog'"):
        glyphs.domain("frog", 1)
    with pytest.raises(DataError, match="severities 1 to 5, not 6"):
        glyphs.domain("fog", 6)
    with pytest.raises(IndexError, match="images 0 to 1999, asked for were 5 to 2000"):
        glyphs.domain("fog", 1).read(torch.tensor([5, 2_000]))
    with pytest.raises(IndexError, match="asked for were -1 to 5"):
        glyphs.domain("clean", 1).read(torch.tensor([5, -1]))
    with pytest.raises(DataError, match="from 0 to 16777215, not -1"):
        next(glyph_batches(-1, 2))


def test_a_model_that_was_not_made_for_them_is_rejected():
    with pytest.raises(
        DataError, match=r"32 × 32 in 40 classes, but mine takes 32 × 32 and has 10 outputs; use glyph-"
    ):
        Glyphs(untrained(outputs=10))
    with pytest.raises(DataError, match="mine takes 48 × 32 and has 40 outputs"):
        Glyphs(untrained(size=(32, 48)))


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "norms", "below_top"), [("glyph-resnet", "resnet", 13, 9), ("glyph-vit", "vit", 13, 10)]
)
def test_networks_are_found_by_structure(name, kind, norms, below_top):
    network = Network(NETWORKS[name](40))
    network.check(torch.rand(2, 3, 32, 32))
    assert (network.kind, network.head_name, network.classes, network.features) == (kind, "head", 40, 128)
    assert len(network.norm_names) == norms
    first_of_top = {"glyph-resnet": "stages.2.0.norm1", "glyph-vit": "blocks.5.norm1"}[name]
    assert network.norm_names[below_top] == first_of_top
    assert len(network.norms(frozen_top=True).names) == 2 * below_top


@pytest.mark.parametrize("name", NETWORKS)
def test_images_do_not_influence_each_other(name):
    network = NETWORKS[name](40).eval()
    images = next(glyph_batches(0, 6))[0]
    with torch.no_grad():
        alone = torch.cat([network(image[None]) for image in images])
        torch.testing.assert_close(network(images), alone, rtol=1e-4, atol=1e-5)


def test_the_weights_are_small_and_in_half_precision():
    size = 0
    for name in NETWORKS:
        with as_file(files("wildtta.data") / f"{name.replace('-', '_')}.safetensors") as path:
            size += path.stat().st_size
        weights = load_network(name).network.state_dict()
        assert all(value.dtype == torch.float32 and value.isfinite().all() for value in weights.values())
        assert all(torch.equal(value, value.half().float()) for value in weights.values())
    assert size <= 4e6


@pytest.mark.parametrize("name", NETWORKS)
def test_shipped_networks_know_the_clean_images(name):
    model = load_model(name)
    assert (model.name, model.classes, model.stand_in) == (name, CLASSES, True)
    assert model.preprocessing == PREPROCESSING
    assert not model.network.training
    domain = Glyphs(model).domain("clean", 0)
    images, _ = domain.read(torch.arange(500))
    with torch.no_grad():
        answers = model.network(model.preprocessing.normalise(images)).argmax(-1)
    assert (answers == domain.labels[:500]).float().mean() >= 0.9
