"""Bad input: a clear error that says what was found and what to do, and an adapter that stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import adapter, settings
from networks import images, make
from torch import nn

import wildtta
from wildtta.core import Method, entropy, measure, sgd, tree


def plain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_no_head() -> None:
    with pytest.raises(
        ValueError, match=r"no head found: the network has no Linear layer .* name its last affine layer"
    ):
        wildtta.adapt(plain(nn.GroupNorm(2, 8)), "tent")


def test_no_normalisation_layers() -> None:
    with pytest.raises(ValueError, match=r"no normalisation layer with parameters .* layers="):
        wildtta.adapt(nn.Sequential(plain(), nn.Linear(8, 5)), "tent")
    assert wildtta.adapt(nn.Sequential(plain(), nn.Linear(8, 5)), "source")(images(2)).shape == (2, 5)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("recap", {"tau": -1.0}, "tau scales a variance and cannot be -1.0"),
        (
            "tent",
            {"lr": -1.0},
            "lr must be a number that is not negative, or a function of the batch size, but is -1.0",
        ),
        ("tent", {"lr": "0.1"}, "but is '0.1'"),
        ("deyo", {"patches": 0}, "patches must be at least 1, but is 0"),
        (
            "recap",
            {"threshold": float("nan")},
            "threshold must be a number that a measure can be compared with, but is nan",
        ),
        ("sar", {"margin": float("nan")}, "threshold must be a number .*, but is nan"),
        ("eta", {"redundancy": float("nan")}, "threshold must be a number .*, but is nan"),
        ("deyo", {"plpd": "0.2"}, "threshold must be a number .*, but is '0.2'"),
        ("recap", {"lam": -1}, "lam weighs a bound that is to become small and cannot be -1"),
        ("recap+deyo", {"lam": float("nan")}, "cannot be nan"),
        ("tent", {"momentum": -2.0}, "momentum is the share of the velocity that is kept, from 0 to 1, but is -2.0"),
        ("sar", {"momentum": float("nan")}, "momentum is .* but is nan"),
        ("eta", {"redundancy_decay": 1.5}, "decay is the share of the average that is kept, from 0 to 1, but is 1.5"),
        ("sar", {"recovery_decay": -0.1}, "decay is .* but is -0.1"),
    ],
)
def test_settings_that_make_no_sense(method: str, options: dict, message: str) -> None:
    network = make("gn")
    with pytest.raises(ValueError, match=message):
        wildtta.adapt(network, method, **settings(method, network, **options))


class Answers(nn.Module):
    """Returns a dict, as some libraries' networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make("gn")

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.body(values)}


def test_networks_that_cannot_be_adapted_as_they_are() -> None:
    with pytest.raises(ValueError, match="returns a dict; wrap it in a module whose forward returns the logits alone"):
        wildtta.adapt(Answers(), "tent")(images(4))
    with pytest.raises(TypeError, match="is an adapter already; adapt the network it was made from"):
        wildtta.adapt(adapter("tent", "gn"), "tent")
    with pytest.raises(ValueError, match="gives 1 value an image; a classifier needs two or more"):
        wildtta.adapt(nn.Sequential(plain(nn.GroupNorm(2, 8)), nn.Linear(8, 1)), "tent")
    with pytest.raises(TypeError, match=r"is the string 'stem.1'; write layers=\['stem.1'\]"):
        wildtta.adapt(make("gn"), "tent", layers="stem.1")
    unused = make("gn")
    unused.aside = nn.GroupNorm(1, 2)
    with pytest.raises(ValueError, match="no parameter that adapts reaches the logits"):
        wildtta.adapt(unused, "tent", head="head", layers=["aside"])(images(4))
    flat = nn.Sequential(plain(), nn.BatchNorm1d(8), nn.Linear(8, 5))
    model = wildtta.adapt(flat, "tent")
    assert model(images(4)).shape == (4, 5)
    with pytest.raises(
        ValueError, match=r"cannot take images of shape \(1, 3, 16, 16\).* more than 1 value per channel"
    ):
        model(images(1))


def test_not_a_network() -> None:
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, but is function"):
        wildtta.adapt(lambda values: values, "tent")
    with pytest.raises(ValueError, match='kind must be "resnet" or "vit", but is \'cnn\''):
        wildtta.adapt(make("gn"), "tent", kind="cnn")


BAD_IMAGES = [
    (
        lambda: images(4).mul(10).byte(),
        TypeError,
        r"must be floats, .* torch.uint8; convert them, e.g. images.float\(\) / 255",
    ),
    (lambda: images(4).long(), TypeError, "must be floats"),
    (lambda: images(4)[0], ValueError, r"have \(3, 16, 16\); add a batch axis with images\[None\]"),
    (lambda: images(4)[:0], ValueError, r"have \(0, 3, 16, 16\)"),
    (lambda: images(4)[:, :1], ValueError, r"cannot take images of shape \(4, 1, 16, 16\) .*3 channels"),
    (lambda: torch.randn(4, 3, 32, 32), ValueError, r"cannot take images of shape \(4, 3, 32, 32\)"),
    (lambda: images(4).double(), ValueError, "type torch.float64"),
    (lambda: images(4).numpy(), TypeError, "must be a tensor, but are ndarray"),
    (lambda: [images(4)], TypeError, "must be a tensor, but are list"),
]


@pytest.mark.parametrize(("bad", "kind", "message"), BAD_IMAGES)
def test_bad_images_change_nothing(bad: object, kind: type, message: str) -> None:
    model = adapter("tent", "ln")
    model(images(4))
    before = model.state
    with pytest.raises(kind, match=message):
        model(bad())
    assert model.state is before
    assert model(images(4)).shape == (4, 10)


def test_images_on_another_device() -> None:
    with pytest.raises(ValueError, match=r"images are on meta, the adapter is on cpu; move one of them with .to"):
        adapter("tent", "gn")(images(2).to("meta"))


def test_unknown_methods_and_hyperparameters() -> None:
    with pytest.raises(
        ValueError, match=r"unknown method 'recpa' \(did you mean 'recap'.*the methods are source, tent"
    ):
        wildtta.adapt(make("gn"), "recpa")
    with pytest.raises(
        TypeError, match=r"'sar' has no hyper-parameter 'roh' \(did you mean 'rho'\?\); it takes: lr, momentum"
    ):
        wildtta.adapt(make("gn"), "sar", roh=0.1)
    with pytest.raises(TypeError, match="'source' has no hyper-parameter 'lr'; it takes: none"):
        wildtta.adapt(make("gn"), "source", lr=0.1)

    def composed(network: wildtta.Network) -> Method:
        return wildtta.methods()["tent"].compose(network)

    with pytest.raises(TypeError, match=r"\['lr'\] were given beside a composed method"):
        wildtta.adapt(make("gn"), composed, lr=0.1)
    with pytest.raises(
        TypeError, match=r"a recipe is a function \(network, \*, hyper-parameters\), but 'bad' has the signature"
    ):
        wildtta.register("bad")(lambda network, lr: None)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("recap", r"'recap' needs region: give region=wildtta.Region.estimate\(network, source_images\)"),
        ("recap+deyo", "needs region"),
        ("eata", r"'eata' needs fisher: give fisher=wildtta.Fisher.estimate\(network, source_images\)"),
    ],
)
def test_what_a_method_needs(method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wildtta.adapt(make("gn"), method)


def test_a_region_of_another_network() -> None:
    region = wildtta.Region.estimate(make("bn"), images(20))
    with pytest.raises(
        ValueError,
        match="belongs to another network: it has 12 features and 10 classes, the network has 16 features and 10",
    ):
        wildtta.adapt(make("gn"), "recap", region=region)
    other = wildtta.Region(torch.ones(16), classes=7)
    with pytest.raises(ValueError, match="16 features and 7 classes, the network has 16 features and 10"):
        wildtta.adapt(make("gn"), "recap", region=other)
    with pytest.raises(ValueError, match="must be finite and not negative"):
        wildtta.Region(torch.tensor([1.0, torch.nan]))
    with pytest.raises(ValueError, match="must be a vector of floats"):
        wildtta.Region(torch.ones(2, 2))


def test_a_fisher_of_another_network() -> None:
    fisher = wildtta.Fisher.estimate(make("bn"), images(20))
    with pytest.raises(ValueError, match=r"belongs to another network or to other layers: it lacks 'stem.1.weight'"):
        wildtta.adapt(make("gn"), "eata", fisher=fisher)
    fisher = wildtta.Fisher.estimate(make("gn"), images(20))
    fisher.importance["stem.1.weight"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"'stem.1.weight' has another shape"):
        wildtta.adapt(make("gn"), "eata", fisher=fisher)


@pytest.mark.parametrize("method", ["recap", "recap+sar", "recap+deyo", "eata"])
@pytest.mark.parametrize("given", ["region.safetensors", torch.ones(16)])
def test_something_else_than_a_region_or_a_fisher(method: str, given: object) -> None:
    name, made = ("fisher", "Fisher") if method == "eata" else ("region", "Region")
    message = (
        f"{name} must be a wildtta.{made}, but is an object of type {type(given).__name__}; make one with "
        rf"wildtta.{made}.estimate\(network, source_images\), or read a saved one with wildtta.{made}.load\(path\)"
    )
    with pytest.raises(TypeError, match=message):
        wildtta.adapt(make("gn"), method, **{name: given})


def damaged(path: Path, keep: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


def test_a_state_file_that_does_not_fit(tmp_path: Path) -> None:
    network = make("gn")
    model = wildtta.adapt(network, "sar", **settings("sar", network))
    for step in range(3):
        model(images(8, step))
    before = tree.map(torch.Tensor.clone, model.state)
    good = tmp_path / "sar.safetensors"
    model.save(good)

    def refused(name: str, message: str) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            model.load(tmp_path / name)
        after = tree.flatten(model.state)
        assert all(
            torch.equal(leaf.nan_to_num(), after[key].nan_to_num()) for key, leaf in tree.flatten(before).items()
        )

    refused("nowhere.safetensors", "no such file")
    (tmp_path / "text").write_text("not a state")
    refused("text", "not a readable safetensors file")
    for place, keep in enumerate((0.0, 0.3, 0.999)):
        path = tmp_path / f"truncated{place}"
        path.write_bytes(good.read_bytes())
        refused(damaged(path, keep).name, r"not a readable safetensors file \(truncated")
    wildtta.adapt(network, "tent").save(tmp_path / "tent")
    refused("tent", "state of another adapter: its method is 'tent', here it is 'sar'")
    wildtta.adapt(network, "sar", **settings("sar", network, rho=0.2)).save(tmp_path / "rho")
    refused("rho", "state of another adapter: rho is 0.2, here it is 0.05")
    other = make("gn", seed=1)
    wildtta.adapt(other, "sar", **settings("sar", other)).save(tmp_path / "weights")
    refused("weights", "its network is")
    wildtta.Region.estimate(network, images(20)).save(tmp_path / "region")
    refused("region", "holds wildtta data of kind 'region', where 'adapter state' was expected")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    refused("foreign", "holds no wildtta data")
    broken = tree.map(torch.Tensor.clone, model.state)
    broken["stream"]["theta"][0] = torch.nan
    model.state, kept = broken, model.state
    model.save(tmp_path / "nan")
    model.state = kept
    refused("nan", "stream/theta is not finite; it is damaged")


def test_saving_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapter("tent", "gn")
    path = tmp_path / "state"
    model.save(path)
    content = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    model(images(4))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.save(tmp_path / "nowhere" / "state")
    with pytest.raises(OSError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_usual_names_of_hyperparameters_are_understood() -> None:
    with pytest.raises(TypeError, match=r"no hyper-parameter 'learning_rate' \(did you mean 'lr'\?\); it takes"):
        wildtta.adapt(make("gn"), "tent", learning_rate=0.1)


def test_a_state_with_another_rate_says_which(tmp_path: Path) -> None:
    wildtta.adapt(make("gn"), "tent").save(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match=r"state of another adapter: lr is the default, here it is 0\.1"):
        wildtta.adapt(make("gn"), "tent", lr=0.1).load(tmp_path / "state.safetensors")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            lambda: measure(lambda prediction: prediction.probabilities),
            r"the function of a measure gave shape \(4, 10\) for 4 images; it has to give one",
        ),
        (lambda: measure(lambda prediction: prediction.probabilities.max()), r"gave shape \(\) for 4 images"),
        (lambda: measure(lambda prediction: prediction.logits.max(-1)), "gave an object of type max for 4 images"),
    ],
)
def test_a_measure_of_another_shape(objective: Callable[[], Any], message: str) -> None:
    adapter = wildtta.adapt(make("gn"), lambda network: Method(network.norms(), objective(), sgd(0.1)))
    with pytest.raises(ValueError, match=message):
        adapter(images(4))


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        (
            lambda network: Method(network, entropy(), sgd(0.1)),
            r"begins with what may change, network.norms\(\) for one, but got an object of type Network",
        ),
        (
            lambda network: Method(network.norms(), lambda _: 1, sgd(0.1)),
            r"objective must be a part of the kind Measure \(see wildtta.core\), but is of type function; wrap it: measure",
        ),
        (
            lambda network: Method(network.norms(), entropy, sgd(0.1)),
            r"but is the class entropy; make one of it: entropy\(…\)",
        ),
        (
            lambda network: Method(network.norms(), entropy(), torch.optim.SGD),
            r"update must be a part of the kind Update \(see wildtta.core\), but is the class SGD",
        ),
        (lambda network: entropy(), "must return a wildtta.Method, but returned an object of type entropy"),
    ],
)
def test_a_composition_of_other_things(compose: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wildtta.adapt(make("gn"), compose)
