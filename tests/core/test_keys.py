import pytest
import torch

from wildtta.core import keys


def test_numbers_depend_on_the_key_alone() -> None:
    many = keys.fold(torch.tensor(3), torch.arange(10))
    alone = keys.fold(torch.tensor(3), torch.tensor(7))
    assert torch.equal(many[7], alone)
    for draw in (keys.uniform, keys.normal):
        assert torch.equal(draw(many, (5, 2))[7], draw(alone, (5, 2)))
    assert torch.equal(keys.permutation(many, 16)[7], keys.permutation(alone, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distributions(dtype: torch.dtype) -> None:
    key = keys.fold(torch.tensor(0), torch.arange(20))
    uniform, normal = keys.uniform(key, (20_000,), dtype), keys.normal(key, (20_000,), dtype)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert torch.isfinite(normal).all()
    assert abs(uniform.mean() - 0.5) < 0.003
    assert abs(12 * uniform.var() - 1) < 0.01
    assert abs(normal.mean()) < 0.006
    assert abs(normal.var() - 1) < 0.012
    assert abs((normal**4).mean() - 3) < 0.1
    correlation = torch.corrcoef(uniform) - torch.eye(20, dtype=dtype)
    assert correlation.abs().max() < 0.04, "streams of neighbouring keys are unrelated"
    histogram = torch.histc(uniform.float(), 50, 0, 1) / uniform.numel()
    assert (histogram - 0.02).abs().max() < 0.001


def test_permutations_are_fair() -> None:
    drawn = keys.permutation(keys.fold(torch.tensor(1), torch.arange(8_000)), 4)
    assert torch.equal(drawn.sort(-1).values, torch.arange(4).expand(8_000, 4))
    counts = torch.stack([(drawn == value).float().mean(0) for value in range(4)])
    assert (counts - 0.25).abs().max() < 0.02


def test_folding_different_numbers_gives_different_keys() -> None:
    found = keys.fold(keys.fold(torch.tensor(0), torch.arange(300))[:, None], torch.arange(300))
    assert found.unique().numel() == 300 * 300
    assert torch.equal(keys.fold(torch.tensor(5), 9), keys.fold(torch.tensor(5), torch.tensor(9)))
