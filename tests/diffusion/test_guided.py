"""Checkpoints of guided-diffusion, against its UNet written plainly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_diffusion import GuidedUNet

from wildtta.diffusion import DiffusionError, load, load_guided

PUBLIC = {"multiples": (1, 1, 2, 2, 4, 4), "attends": {3, 4, 5}}
"""The layout of 256x256_diffusion_uncond.pt: six levels, attention in the last three (32, 16 and 8 pixels)."""


def checkpoint(path: Path, seed: int = 0, **others) -> GuidedUNet:
    torch.manual_seed(seed)
    network = GuidedUNet(**{"width": 8, **PUBLIC} | others).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))  # so that no two norms and biases are alike
    torch.save(network.state_dict(), path)
    return network


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"out": 3},
        {"multiples": (1, 2), "attends": {1}, "blocks": 1},
        {"multiples": (1, 2, 3), "attends": {0, 2}, "blocks": 3, "head": 4},
    ],
)
def test_a_converted_checkpoint_gives_what_the_plain_network_gives(tmp_path: Path, layout: dict) -> None:
    plain = checkpoint(tmp_path / "model.pt", **layout)
    found = load_guided(tmp_path / "model.pt", size=32, head_channels=layout.get("head", 8), groups=4)
    x, times = torch.randn(3, 3, 32, 32), torch.tensor([0, 417, 999])
    with torch.no_grad():
        expected, answer = plain(x, times), found.network(x, times).sample
    assert expected.std() > 0.1
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in found.network.parameters()) == sum(p.numel() for p in plain.parameters())
    assert found.variance == ("fixed_large" if layout.get("out") == 3 else "learned_range")
    assert found.size == (32, 32)
    assert (found.betas[0], found.betas[-1], len(found.betas)) == pytest.approx((1e-4, 0.02, 1000))


def test_a_converted_checkpoint_can_be_written_as_diffusers_does_and_read_again(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model.pt", multiples=(1, 2), attends={1})
    found = load_guided(tmp_path / "model.pt", size=16, head_channels=8, groups=4)
    found.save(tmp_path / "folder")
    again = load(tmp_path / "folder")
    assert again.digest == found.digest
    assert (again.size, again.variance) == ((16, 16), "learned_range")
    from diffusers import UNet2DModel

    theirs = UNet2DModel.from_pretrained(tmp_path / "folder" / "unet", local_files_only=True)
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(theirs(x, 10).sample, again.network(x, 10).sample)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    network = checkpoint(path, multiples=(1, 2), attends={1})
    whole = network.state_dict()
    with pytest.raises(DiffusionError, match="heads of 64"):
        load_guided(path)
    with pytest.raises(DiffusionError, match="heads of 5; give the model's num_head_channels"):
        load_guided(path, head_channels=5, groups=4)

    def changed(**others: torch.Tensor | None) -> None:
        kept = {name: value for name, value in (whole | others).items() if value is not None}
        torch.save(kept, path)

    changed(**{"label_emb.weight": torch.zeros(1000, 32)})
    with pytest.raises(DiffusionError, match="conditioned on classes"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{"middle_block.0.emb_layers.1.weight": None})
    with pytest.raises(DiffusionError, match=r"has no middle_block\.0\.emb_layers\.1\.weight"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{"another.weight": torch.zeros(1)})
    with pytest.raises(DiffusionError, match="1 tensors that such a UNet does not have"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{"out.2.weight": None})
    with pytest.raises(DiffusionError, match="not a guided-diffusion UNet"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{"middle_block.0.emb_layers.1.weight": torch.zeros(16, 32)})  # without use_scale_shift_norm
    with pytest.raises(DiffusionError, match="does not hold the weights of its config"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{name: None for name in whole if name.startswith("output_blocks.")})  # as in a classifier
    with pytest.raises(DiffusionError, match=r"not a guided-diffusion UNet .*: it has no 'output_blocks'"):
        load_guided(path, head_channels=8, groups=4)
    changed(**{name: None for name in whole if name.startswith("output_blocks.1.")})
    with pytest.raises(DiffusionError, match=r"has no output_blocks\.1\.0|not a guided-diffusion UNet"):
        load_guided(path, head_channels=8, groups=4)
