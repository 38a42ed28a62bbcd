"""What is measured along a stream, checked against plain sums."""

import math

import pytest
import torch

from wildtta.bench.meter import _PARTS, Meter, calibration_error


def _stream(images: int, classes: int = 10, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(images, classes, generator=generator)
    labels = torch.randint(0, classes, (images,), generator=generator)
    logits[torch.arange(images), labels] += 1.5
    selected = torch.rand(images, generator=generator) < 0.4
    return logits, labels, selected, torch.randint(0, 3, (images,), generator=generator)


def _measured(stream, batch: int, names=("fog", "snow", "frost")):
    meter = Meter()
    for part in zip(*(column.split(batch) for column in stream), strict=True):
        meter.add(*part)
    return meter.result(list(names))


def _ece(logits, labels, bins=15):
    """Guo et al., 2017, image by image."""
    inside = [[] for _ in range(bins)]
    for row, label in zip(logits.double().softmax(-1).tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        place = next(place for place in range(bins) if confidence <= (place + 1) / bins)
        inside[place].append((confidence, row.index(confidence) == label))
    total = 0.0
    for pairs in inside:
        if pairs:
            accuracy = sum(right for _, right in pairs) / len(pairs)
            total += len(pairs) / len(labels) * abs(accuracy - sum(c for c, _ in pairs) / len(pairs))
    return 100 * total


@pytest.mark.parametrize("batch", [1, 7, 64, 300])
def test_the_whole_stream(batch):
    stream = logits, labels, selected, _ = _stream(300)
    found = _measured(stream, batch)
    ranks = (logits > logits.gather(1, labels[:, None])).sum(1)
    loss = -logits.double().log_softmax(-1)[torch.arange(300), labels]
    assert found["images"] == 300
    assert found["top1"] == round(100 * (ranks == 0).double().mean().item(), 6)
    assert found["top5"] == round(100 * (ranks < 5).double().mean().item(), 6)
    assert found["nll"] == pytest.approx(loss.mean().item(), abs=2e-6)
    assert found["selected"] == round(selected.double().mean().item(), 6)
    assert found["ece"] == pytest.approx(_ece(logits, labels), abs=1e-4)
    assert 0 < found["top1"] < found["top5"] < 100


def test_how_the_stream_was_cut_into_batches_does_not_matter():
    stream = _stream(700, seed=1)
    assert _measured(stream, 1) == _measured(stream, 700) == _measured(stream, 64)


def test_a_long_stream_of_single_images_keeps_few_tensors():
    meter, count = Meter(), 3 * _PARTS
    logits, labels, selected, domains = _stream(count)
    for place in range(count):
        meter.add(*(column[place : place + 1] for column in (logits, labels, selected, domains)))
        assert len(meter.parts) < _PARTS
    assert meter.seen == count
    assert meter.accuracy() == pytest.approx(meter.result(["a", "b", "c"])["top1"], abs=1e-4)


@pytest.mark.parametrize("images", [1, 3, 50, 51, 120])
def test_the_points_along_the_stream_add_up_to_the_whole(images):
    found = _measured(_stream(images), 16)
    along = found["along"]
    assert along["seen"] == sorted(set(along["seen"]))
    assert along["seen"][-1] == images
    assert len(along["seen"]) == len(along["top1"]) == len(along["selected"]) == min(images, 50)
    sizes = [end - start for start, end in zip([0, *along["seen"]], along["seen"], strict=False)]
    assert max(sizes) - min(sizes) <= 1
    for name in ("top1", "selected"):
        mean = sum(size * value for size, value in zip(sizes, along[name], strict=True)) / images
        assert mean == pytest.approx(found[name], abs=1e-5)


def test_the_domains_add_up_to_the_whole():
    stream = _stream(200)
    found = _measured(stream, 16)
    assert sum(domain["images"] for domain in found["domains"].values()) == 200
    mean = sum(domain["images"] * domain["top1"] for domain in found["domains"].values()) / 200
    assert mean == pytest.approx(found["top1"], abs=1e-5)
    logits, labels, _, places = stream
    for place, name in enumerate(("fog", "snow", "frost")):
        mine = places == place
        assert found["domains"][name]["images"] == mine.sum()
        right = (logits.argmax(-1) == labels)[mine].double().mean().item()
        assert found["domains"][name]["top1"] == round(100 * right, 6)


def test_a_kind_at_several_severities_is_one_domain():
    found = _measured(_stream(60), 16, ("fog", "fog", "snow"))
    places = _stream(60)[3]
    assert {name: domain["images"] for name, domain in found["domains"].items()} == {
        "fog": int((places < 2).sum()),
        "snow": int((places == 2).sum()),
    }


def test_a_domain_of_which_nothing_was_seen_is_left_out():
    logits, labels, selected, places = _stream(20)
    found = _measured((logits, labels, selected, torch.zeros_like(places)), 16)
    assert list(found["domains"]) == ["fog"]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_with_five_classes_or_fewer_one_of_the_five_best_is_right(classes):
    found = _measured(_stream(40, classes), 16)
    assert found["top5"] == 100
    assert found["top1"] < 100


def test_predictions_that_are_not_numbers_are_measured_as_such():
    logits, labels, selected, places = _stream(4)
    found = _measured((torch.full_like(logits, torch.nan), labels + 1, selected, places), 2)
    assert math.isnan(found["nll"])
    assert math.isnan(found["ece"])
    assert 0 <= found["top1"] <= 100


def test_half_precision_predictions_are_measured_in_float32():
    logits, labels, selected, places = _stream(64)
    half = logits.bfloat16()
    assert _measured((half, labels, selected, places), 16) == _measured((half.float(), labels, selected, places), 16)


def test_calibration_error_of_what_is_known():
    sure = torch.ones(10)
    assert calibration_error(sure, sure.bool()) == 0
    assert calibration_error(sure, ~sure.bool()) == 1
    # one bin holds both: a mean confidence of 0.65, and half of them right
    assert calibration_error(torch.tensor([0.64, 0.66]), torch.tensor([True, False])) == pytest.approx(0.15)
    # 0.6 is the upper end of the third of five bins, and 0.5 is in it, too
    two = torch.tensor([0.6, 0.5], dtype=torch.float64)
    assert calibration_error(two, torch.tensor([True, False]), 5) == pytest.approx(0.05)
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(100_000, generator=generator)
    right = torch.rand(100_000, generator=generator) < confidence
    assert calibration_error(confidence, right) < 0.01
