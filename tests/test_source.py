"""The region and the Fisher information: however the images come, and through a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import KINDS_OF_IMAGES, images, make
from torch.utils._python_dispatch import TorchDispatchMode

import wildtta
from wildtta.source import _batches


def expected(network: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    view = wildtta.Network(network)
    with torch.no_grad():
        feature = view.run({}, batch)[1].double()
    return feature.var(0).float(), feature.mean(0).float()


@pytest.mark.parametrize("kind", ["gn", "ln", "bn"])
@pytest.mark.parametrize("form", KINDS_OF_IMAGES)
def test_region_from_any_form_of_images(kind: str, form: str) -> None:
    network, batch = make(kind), images(70)
    region = wildtta.Region.estimate(network, KINDS_OF_IMAGES[form](batch), batch_size=16)
    variance, mean = expected(network, batch)
    torch.testing.assert_close(region.variance, variance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(region.mean, mean, rtol=1e-4, atol=1e-5)
    assert (region.count, region.classes) == (70, 10)


def test_the_limit_and_endless_loaders() -> None:
    network, batch = make("gn"), images(70)

    def endless():  # type: ignore[no-untyped-def]
        while True:
            yield batch[:30], torch.zeros(30)

    region = wildtta.Region.estimate(network, endless(), limit=50)
    assert region.count == 50
    torch.testing.assert_close(
        region.variance, expected(network, torch.cat([batch[:30], batch[:20]]))[0], rtol=1e-4, atol=1e-6
    )
    assert wildtta.Region.estimate(network, images(600)).count == 500


def groups(batch: torch.Tensor) -> list[torch.Tensor]:
    """Of many sizes, among them none and more than two batches."""
    return [*batch[:3].split(1), batch[:0], batch[3:50], batch[50:57], batch[57:]]


@pytest.mark.parametrize(("limit", "size"), [(200, 16), (70, 16), (64, 16), (1, 16), (70, 70), (60, 1), (33, 500)])
def test_batches_are_the_images_in_their_order(limit: int, size: int) -> None:
    batch = images(70)
    for form in (batch, groups(batch), list(batch)):
        found = list(_batches(form, limit, size, batch.device))
        assert torch.equal(torch.cat(found), batch[:limit])
        assert [len(part) for part in found[:-1]] == [size] * (len(found) - 1)
        assert 1 <= len(found[-1]) <= size


def test_images_are_copied_once_and_moved_by_the_batch() -> None:
    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.copied, self.moved = 0, 0

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            result = function(*arguments, **(keywords or {}))
            if "aten.cat" in str(function):
                self.copied += len(result)
            if "_to_copy" in str(function):
                self.moved = max(self.moved, len(result))
            return result

    with Watch() as watch:
        assert len(list(_batches(images(640), 640, 16, torch.device("meta")))) == 40
    assert watch.copied == 640
    assert watch.moved == 16


def test_files(tmp_path: Path) -> None:
    network = make("gn")
    region, fisher = wildtta.Region.estimate(network, images(20)), wildtta.Fisher.estimate(network, images(20))
    region.save(tmp_path / "region")
    fisher.save(tmp_path / "fisher")
    again = wildtta.Region.load(tmp_path / "region")
    assert (again.digest(), again.classes, again.count) == (region.digest(), 10, 20)
    assert wildtta.Fisher.load(tmp_path / "fisher").digest() == fisher.digest()
    with pytest.raises(ValueError, match="holds wildtta data of kind 'fisher', where 'region' was expected"):
        wildtta.Region.load(tmp_path / "fisher")


def test_bad_source_images() -> None:
    network = make("gn")
    with pytest.raises(ValueError, match=r"at least 2 source images \(500 are usual\), but got 1"):
        wildtta.Region.estimate(network, images(1))
    with pytest.raises(ValueError, match="but got 0"):
        wildtta.Region.estimate(network, [])
    with pytest.raises(TypeError, match="must be floats"):
        wildtta.Region.estimate(network, torch.zeros(4, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(TypeError, match="must be tensors, but got str"):
        wildtta.Region.estimate(network, ["a.png"])
    with pytest.raises(ValueError, match="finite"):
        wildtta.Region.estimate(network, images(4) * torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        wildtta.Fisher.estimate(network, images(4) * torch.nan)
    with pytest.raises(ValueError, match=r"batches of that, but got \(4, 4\)"):
        wildtta.Region.estimate(network, torch.zeros(4, 4))
    with pytest.raises(ValueError, match="must be at least 1, but are -5 and 64"):
        wildtta.Region.estimate(network, images(4), limit=-5)
    with pytest.raises(ValueError, match="but got none"):
        wildtta.Fisher.estimate(network, [])
