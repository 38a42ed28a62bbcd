"""Real networks: the right head, the right layers, the right number of parameters."""

from __future__ import annotations

import warnings

import pytest
import torch
from networks import images, make
from torch import Tensor, nn

import wildtta

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

# library, name, head, d, kind, all normalisation parameters, below the top (layers and numbers)
REAL = [
    ("timm", "resnet50_gn", "fc", 2048, "resnet", 53_120, 43, 30_592),
    ("timm", "vit_base_patch16_224", "head", 768, "vit", 38_400, 18, 27_648),
    ("timm", "convnext_tiny", "head.fc", 768, "vit", 16_320, 18, 9_408),
    ("timm", "resnet18", "fc", 512, "resnet", 9_600, 15, 4_480),
    ("torchvision", "vit_b_16", "heads.head", 768, "vit", 38_400, 18, 27_648),
    ("torchvision", "swin_t", "head", 768, "vit", 24_768, 24, 17_088),
]


def create(library: str, name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name) if library == "timm" else torchvision.models.get_model(name)


@pytest.mark.parametrize(("library", "name", "head", "features", "kind", "everything", "layers", "below"), REAL)
def test_real_networks(
    library: str, name: str, head: str, features: int, kind: str, everything: int, layers: int, below: int
) -> None:
    module = create(library, name)
    view = wildtta.Network(module)
    assert (view.head_name, view.classes, view.features, view.kind) == (head, 1000, features, kind)
    lower, whole = view.norms(frozen_top=True), view.norms()
    assert (sum(whole.sizes), sum(lower.sizes)) == (everything, below)
    assert len({name.rpartition(".")[0] for name in lower.names}) == layers
    assert whole.names[: len(lower.names)] == lower.names, "the frozen part is the end of the network"
    batch = torch.randn(2, 3, 224, 224)
    model = wildtta.adapt(module, "recap", region=wildtta.Region(torch.full((features,), 1e-3)), threshold=2.0)
    with torch.no_grad():
        expected = module.eval()(batch) if name != "resnet18" else None
    found = model(batch)
    assert model.report.updates == 1
    if expected is not None:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_larger_networks_are_cut_by_position() -> None:
    """Names would mislead: "blocks.9" is not the top of 24 blocks, and torchvision's ViT has no "blocks" at all."""
    for depth, kept in ((24, 18), (16, 12), (12, 9), (5, 4)):
        view = wildtta.Network(timm.create_model("vit_tiny_patch16_224", depth=depth))
        assert view.norms(frozen_top=True).names[-1] == f"blocks.{kept - 1}.norm2.bias"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, last in (("resnet101", "layer3.22.bn3.bias"), ("densenet121", "features.transition3.norm.bias")):
            assert wildtta.Network(torchvision.models.get_model(name)).norms(frozen_top=True).names[-1] == last


def test_a_stem_with_layers_of_its_own_is_not_a_stage() -> None:
    for name, kept in (("resnetv2_50d_gn", 41), ("tiny_vit_5m_224", 38)):
        view = wildtta.Network(timm.create_model(name, num_classes=10))
        assert len({parameter.rpartition(".")[0] for parameter in view.norms(frozen_top=True).names}) == kept, name


def test_a_shared_parameter_adapts_once() -> None:
    torch.manual_seed(0)
    first, second = nn.GroupNorm(2, 8), nn.GroupNorm(2, 8)
    second.weight = first.weight
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), first, nn.Conv2d(8, 8, 3), second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    model = wildtta.adapt(module, "tent", lr=0.1)
    model(images(8))
    assert model.method.layout.names == ("1.weight", "1.bias", "3.bias")
    assert model.report.updates == 1
    plain = model.export()
    assert torch.equal(plain[1].weight, plain[3].weight)
    with model.frozen(), torch.no_grad():
        assert torch.equal(model(images(8, 1)), plain(images(8, 1))), "both layers run with what was learnt"


def test_a_shared_layer_stays_what_it_was_at_the_source() -> None:
    """torch would put a replaced parameter back under the layer's second name, and leave what was learnt in the network."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 8)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 8, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    model = wildtta.adapt(module, "tent", lr=0.1)
    first = model(images(8))
    model(images(8, 1))
    assert model.report.updates == 2
    assert torch.equal(model.network.module[3].weight, norm.weight)
    with model.frozen(), torch.no_grad():
        assert torch.equal(model(images(8, 1)), model.export()(images(8, 1)))
    model.reset()
    assert torch.equal(model(images(8)), first)


def test_a_forward_pass_does_not_walk_over_all_parameters() -> None:
    view = wildtta.Network(make("gn"))
    layout = view.norms()

    def walked(*_: object, **__: object) -> None:
        raise AssertionError("on a large network this takes longer than its launch")

    view.module.named_parameters = view.module.named_buffers = walked
    parameters = {name: value + 1 for name, value in layout.unpack(layout.initial).items()}
    assert not torch.equal(view.run(parameters, images(2))[0], view.run({}, images(2))[0])


class OwnPrecision(nn.Module):
    """Runs its head in float32, whatever the caller's autocast says."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.body = make("gn")
        with torch.no_grad():
            self.body.head.weight.mul_(scale)

    def forward(self, values: Tensor) -> Tensor:
        feature = self.body.stages(self.body.stem(values)).mean((2, 3))
        with torch.autocast("cpu", enabled=False):
            return self.body.head(feature.float())


def test_a_head_of_higher_precision_than_the_rest() -> None:
    model = wildtta.adapt(OwnPrecision(1000.0), "tent")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model(images(8))
    assert answer.dtype == torch.float32
    assert answer.abs().amax() > 100


class Cosine(nn.Linear):
    """No affine map, though it looks like one."""

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.normalize(values), nn.functional.normalize(self.weight))


def test_a_layer_that_only_looks_like_a_head_is_not_its_own_remedy() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Cosine(8, 5))
    with pytest.raises(ValueError, match=r"not an affine function .*The layer '4' does give them, but not as") as found:
        wildtta.adapt(module, "tent")(images(4))
    assert "head=" not in str(found.value)


class InPlace(nn.Module):
    """Normalises the images in place, as some published networks do."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        self.body = make("gn")

    def forward(self, values: Tensor) -> Tensor:
        return self.body(values.sub_(0.1).div_(0.9) if self.changes else (values - 0.1) / 0.9)


def test_a_network_that_changes_its_input_does_not_change_the_callers() -> None:
    for method in ("sar", "deyo"):
        options = {"lr": 0.01, "margin": 0.7}
        changing = wildtta.adapt(InPlace(True), method, **options)
        plain = wildtta.adapt(InPlace(False), method, **options)
        for step in range(3):
            batch = images(8, step)
            found = changing(batch)
            assert torch.equal(batch, images(8, step))
            torch.testing.assert_close(found, plain(batch), rtol=1e-5, atol=1e-5)


class RootMeanSquare(nn.Module):
    """A hand-written normalisation layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, values: Tensor) -> Tensor:
        scale = self.scale.view(-1, *(1,) * (values.ndim - 2))
        return scale * values * (values.square().mean(1, keepdim=True) + self.eps).rsqrt()


class ChannelScale(nn.Module):
    """One-dimensional parameters, but no normalisation."""

    def __init__(self, width: int, num_steps: int = 1) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return self.gamma * values


def test_every_kind_of_normalisation_is_found_and_nothing_else() -> None:
    from timm.layers import BatchNormAct2d, GroupNormAct, LayerNorm2d, RmsNorm

    norms = {
        "bn": nn.BatchNorm1d(8), "in": nn.InstanceNorm1d(8, affine=True), "gn": nn.GroupNorm(2, 8), "ln": nn.LayerNorm(8),
        "rms": nn.RMSNorm(8), "own": RootMeanSquare(8), "timm_bn": BatchNormAct2d(8), "timm_gn": GroupNormAct(8, 2),
        "timm_ln": LayerNorm2d(8), "timm_rms": RmsNorm(8), "sync": nn.SyncBatchNorm(8),
    }  # fmt: skip
    others = {
        "scale": ChannelScale(8), "steps": ChannelScale(8, num_steps=3), "prelu": nn.PReLU(8),
        "plain": nn.LayerNorm(8, elementwise_affine=False), "in_plain": nn.InstanceNorm1d(8),
        "linear": nn.Linear(8, 8), "conv": nn.Conv2d(8, 8, 1), "head": nn.Linear(8, 5),
    }  # fmt: skip
    module = nn.ModuleDict({**norms, **others})
    assert set(wildtta.Network(module).norm_names) == set(norms)


def test_kinds_of_normalisation_adapt() -> None:
    for layer in (nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8), RootMeanSquare(8)):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 8, 3), layer, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        )
        model = wildtta.adapt(module, "tent", lr=0.1)
        model(images(8))
        assert not torch.equal(model.state["stream"]["theta"], model.method.layout.initial), layer


def test_a_convolutional_head() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten()
    )
    region = wildtta.Region.estimate(module, images(20))
    model = wildtta.adapt(module, "recap", region=region, threshold=3.0)
    with torch.no_grad():
        torch.testing.assert_close(model(images(4)), module(images(4)))
    assert model.network.head[0].shape == (5, 8)
    assert model.report.updates == 1


class Unordered(nn.Module):
    """Registers its head first, and an auxiliary layer last."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 5)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU())
        self.aside = nn.Linear(8, 8)

    def forward(self, values: Tensor) -> Tensor:
        feature = self.body(values).mean((2, 3))
        return self.classifier(feature + 0.1 * self.aside(feature))


def test_the_user_can_name_the_head() -> None:
    with pytest.raises(ValueError, match="The layer 'classifier' gives the logits: pass head='classifier'"):
        wildtta.adapt(Unordered(), "tent")(images(4))
    model = wildtta.adapt(Unordered(), "tent", head="classifier")
    assert model(images(4)).shape == (4, 5)
    with pytest.raises(
        ValueError, match=r"no layer 'fc' to be its head; its last affine layers are \['classifier', 'aside'\]"
    ):
        wildtta.adapt(Unordered(), "tent", head="fc")
    with pytest.raises(ValueError, match="must be a Linear layer or a 1 × 1 convolution, but 'body' is a Sequential"):
        wildtta.adapt(Unordered(), "tent", head="body")


def test_the_user_can_name_the_layers() -> None:
    network = make("gn")
    model = wildtta.adapt(network, "sar", layers=["stem.1", "stem.0"], lr=0.1, margin=2.0)
    model(images(8))
    moved = {
        name
        for name, parameter in model.export().named_parameters()
        if not torch.equal(parameter, network.get_parameter(name))
    }
    assert moved == {"stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"}
    with pytest.raises(ValueError, match=r"no layer 'stem.9'; its normalisation layers are"):
        wildtta.adapt(network, "sar", layers=["stem.9"])
    with pytest.raises(ValueError, match=r"'stem.2' \(ReLU\) has no parameters"):
        wildtta.adapt(network, "sar", layers=["stem.2"])


def test_batch_statistics() -> None:
    """BatchNorm normalises with the batch's own statistics, except for the source; the export keeps them."""
    network, batch = make("bn"), 2 * images(16) + 1
    with torch.no_grad():
        running, own = network(batch), network.train()(batch)
    network = make("bn")
    torch.testing.assert_close(wildtta.adapt(network, "source")(batch), running)
    model = wildtta.adapt(network, "tent")
    torch.testing.assert_close(model(batch), own, rtol=1e-4, atol=1e-4)
