"""Models by name: what they are, how their images are prepared, and what is said of those that cannot be had."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from wildtta.models import STATISTICS, Model, ModelError, Preprocessing, imagenet_classes, load_model

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

SMALL = "test_vit"  # 0.4 M parameters, images of 160 × 160


def picture(width=230, height=190, mode="RGB", seed=0):
    """Coloured noise over a slope: resizing it in another way gives other bytes."""
    noise = np.random.default_rng(seed).integers(0, 120, (height, width, 3))
    slope = np.linspace(0, 135, width)[None, :, None]
    return Image.fromarray((noise + slope).astype(np.uint8)).convert(mode)


def answers(model):
    """To a fixed picture."""
    with torch.no_grad():
        return model.network(model.preprocessing.normalise(model.preprocessing.picture(picture())[None].float() / 255))


@pytest.fixture(scope="module")
def vit():
    """A small network of timm's with random weights."""
    torch.manual_seed(0)
    network = timm.create_model(SMALL).eval()
    nn.init.normal_(network.head.weight)
    return network


@pytest.fixture(scope="module")
def weights(vit, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(vit.state_dict(), path)
    return path


# -- by name -----------------------------------------------------------------------------------------------------------


def test_timm_by_name_with_a_file(vit, weights):
    model = load_model(f"timm:{SMALL}", weights=weights)
    assert model.name == f"timm:{SMALL}"
    assert model.preprocessing == Preprocessing((160, 160), 168, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert (model.outputs, len(model.classes), model.classes[0], model.stand_in) == (1000, 1000, "n01440764", False)
    assert not model.network.training
    prepared = timm.data.create_transform(**timm.data.resolve_model_data_config(vit))(picture())
    with torch.no_grad():
        torch.testing.assert_close(answers(model), vit(prepared[None]))


def test_torchvision_by_name_with_a_file(tmp_path):
    torch.manual_seed(0)
    network = torchvision.models.shufflenet_v2_x0_5().eval()
    torch.save(network.state_dict(), tmp_path / "shuffle.pth")
    model = load_model("torchvision:shufflenet_v2_x0_5", weights=tmp_path / "shuffle.pth")
    assert (model.outputs, model.classes[999]) == (1000, "n15075141")
    prepared = torchvision.models.ShuffleNet_V2_X0_5_Weights.DEFAULT.transforms()(picture())
    with torch.no_grad():
        torch.testing.assert_close(answers(model), network(prepared[None]))


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
def test_torchvisions_networks_that_change_the_statistics_themselves_do_so(tmp_path):
    """Their pretrained weights expect it; a network that is built without them does not do it."""
    network = torchvision.models.googlenet(init_weights=False)
    torch.save(network.state_dict(), tmp_path / "google.pth")
    assert not network.transform_input
    assert load_model("torchvision:googlenet", weights=tmp_path / "google.pth").network.transform_input


def test_a_file_with_other_classes_makes_a_head_of_that_size(tmp_path):
    save_file(timm.create_model(SMALL, num_classes=7).state_dict(), tmp_path / "seven.safetensors")
    model = load_model(f"timm:{SMALL}", weights=tmp_path / "seven.safetensors")
    assert (model.outputs, model.classes) == (7, None)
    assert answers(model).shape == (1, 7)
    torch.save(torchvision.models.shufflenet_v2_x0_5(num_classes=3).state_dict(), tmp_path / "three.pth")
    assert load_model("torchvision:shufflenet_v2_x0_5", weights=tmp_path / "three.pth").classes is None


@pytest.mark.parametrize(
    "wrap", [dict, lambda state: {"state_dict": state, "epoch": 3}, lambda state: {"model": state}]
)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_as_training_scripts_save_them(vit, tmp_path, wrap, prefix):
    torch.save(wrap({prefix + name: value for name, value in vit.state_dict().items()}), tmp_path / "w.pth")
    loaded = load_model(f"timm:{SMALL}", weights=tmp_path / "w.pth").network.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in vit.state_dict().items())


def test_safetensors_are_known_by_their_content_and_half_precision_becomes_single(vit, tmp_path):
    halves = {name: value.half() for name, value in vit.state_dict().items()}
    save_file(halves, tmp_path / "weights.bin")
    loaded = load_model(f"timm:{SMALL}", weights=str(tmp_path / "weights.bin")).network.state_dict()
    assert all(torch.equal(loaded[name], value.float()) for name, value in halves.items())


def test_pretrained_weights_that_cannot_be_downloaded(monkeypatch):
    def unreachable(*_arguments, **options):
        assert options["pretrained"]
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(ModelError, match=rf"timm:{SMALL} could not be had \(OSError: no route to host\); .*--weights"):
        load_model(f"timm:{SMALL}")


def test_pretrained_weights_are_the_default(monkeypatch, vit):
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: vit if pretrained else None)
    assert load_model(f"timm:{SMALL}").network is vit


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("glyph-resnt", "unknown model 'glyph-resnt'; did you mean 'glyph-resnet'"),
        (
            "resnet50",
            r"unknown model 'resnet50'; choose glyph-resnet, glyph-vit, or write timm:NAME, torchvision:NAME, path",
        ),
        ("timm:", "unknown model 'timm:'; choose"),
        ("timm:resnet_50_gn", "timm has no model 'resnet_50_gn'; did you mean 'resnet50_gn'"),
        ("timm:qqqq", r"timm has no model 'qqqq'; timm.list_models\(\) lists"),
        ("torchvision:resnet5", "torchvision has no classifier 'resnet5'; did you mean 'resnet50'"),
        ("torchvision:qqqq", "torchvision has no classifier 'qqqq'; it has alexnet, "),
        ("models.py", "'models.py' does not name a function; write path/to/file.py:function"),
        ("models.py:a b", "does not name a function"),
        ("nowhere/models.py:build", "there is no file nowhere/models.py"),
    ],
)
def test_unknown_names(spec, message):
    with pytest.raises(ModelError, match=message):
        load_model(spec)


def test_a_tag_that_timm_does_not_know(weights):
    with pytest.raises(
        ModelError, match=rf"timm:{SMALL}.foo cannot be built \(RuntimeError: Invalid pretrained tag \(foo\)"
    ):
        load_model(f"timm:{SMALL}.foo", weights=weights)


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"timm is needed for this: pip install 'wildtta\[timm\]'"):
        load_model(f"timm:{SMALL}")


def test_imagenet_classes(monkeypatch):
    classes = imagenet_classes()
    assert (len(classes), len(set(classes)), classes[0], classes[-1]) == (1000, 1000, "n01440764", "n15075141")
    assert list(classes) == sorted(classes)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert imagenet_classes() is None


# -- from a file of the user's -----------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
from wildtta.models import Model, Preprocessing

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)).double().train()

def whole():
    return Model("mine", build(), Preprocessing((8, 8), mean=(0, 0, 0), std=(1, 1, 1)), tuple("abcde"))

def timms():
    import timm
    return timm.create_model("test_vit", num_classes=3)

def broken():
    raise RuntimeError("no luck")

def headless():
    return nn.Conv2d(3, 8, 3)

def number():
    return 3

_private = len
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_module_from_a_file(own):
    model = load_model(f"{own}:build")
    assert (model.name, model.outputs, model.classes) == ("own:build", 5, None)
    assert model.preprocessing == Preprocessing((224, 224), 256, "bilinear")
    assert model.network[1].weight.dtype == torch.float32
    assert not model.network.training


def test_a_model_from_a_file_with_weights(own, tmp_path):
    save_file({"1.weight": torch.ones(5, 192), "1.bias": torch.arange(5.0)}, tmp_path / "w.safetensors")
    model = load_model(f"{own}:whole", weights=tmp_path / "w.safetensors")
    assert (model.name, model.classes, model.preprocessing.size) == ("mine", tuple("abcde"), (8, 8))
    assert torch.equal(model.network(torch.zeros(1, 3, 8, 8)), torch.arange(5.0)[None])


def test_a_network_of_timms_from_a_file_has_its_preprocessing(own):
    model = load_model(f"{own}:timms")
    assert model.preprocessing == Preprocessing((160, 160), 168, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert model.classes is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("bild", "has no function 'bild'; it has .*build, whole, timms"),
        ("broken", "own.py:broken failed: RuntimeError: no luck"),
        ("number", "own.py:number returned a int, where an nn.Module or a wildtta.models.Model is needed"),
        ("headless", "a Conv2d is no classifier that can be used: it has no Linear layer"),
    ],
)
def test_functions_that_give_no_model(own, function, message):
    with pytest.raises(ModelError, match=message):
        load_model(f"{own}:{function}")


def test_a_file_that_cannot_be_imported(tmp_path):
    (tmp_path / "bad.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(ModelError, match=r"bad.py cannot be imported: ModuleNotFoundError: No module named 'a_module"):
        load_model(f"{tmp_path / 'bad.py'}:build")


# -- weights -----------------------------------------------------------------------------------------------------------


class Ran:
    """Sets a flag when it is unpickled."""

    flag = False

    def __reduce__(self):
        return (setattr, (Ran, "flag", True))


def refused(weights, match):
    with pytest.raises(ModelError, match=match):
        load_model(f"timm:{SMALL}", weights=weights)


@pytest.mark.parametrize("save", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing, 2))])
def test_code_in_a_file_of_weights_is_not_run(tmp_path, save):
    save({"weight": Ran()}, tmp_path / "evil.pth")
    refused(tmp_path / "evil.pth", r"evil.pth holds \S*setattr besides tensors, which is not loaded: it could run code")
    assert not Ran.flag


def test_a_whole_pickled_network_is_refused(vit, tmp_path):
    torch.save(vit, tmp_path / "whole.pth")
    refused(tmp_path / "whole.pth", r"holds timm\.\S+ besides tensors.*torch.save\(model.state_dict\(\), …\)")


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "w.pth"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_files(vit, tmp_path, name, share):
    path = tmp_path / name
    torch.save(vit.state_dict(), path) if name == "w.pth" else save_file(vit.state_dict(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, r"w\.\w+ is not a readable .*file.* \(truncated, or another format")


@pytest.mark.parametrize("content", [b"", b"hello", b"a text of more than nine bytes", bytes(range(256)) * 4])
def test_files_that_are_something_else(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    refused(tmp_path / "w.pth", "w.pth (is not a readable file of weights|holds something besides tensors)")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([1, 2], "holds list"),
        ({}, "holds a dict of , "),
        ({"epoch": 3, "lr": 0.1}, "holds a dict of epoch, lr, "),
        ({0: torch.ones(2)}, "holds a dict of 0, "),
    ],
)
def test_files_without_weights(tmp_path, content, found):
    torch.save(content, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", f"{found}.*where a dict of tensors by name was expected")


def test_there_is_no_such_file(tmp_path):
    refused(tmp_path / "none.pth", "there is no weights file .*none.pth")
    refused(tmp_path, "there is no weights file")


def test_weights_of_another_network(vit, tmp_path):
    state = vit.state_dict()
    del state["norm.weight"]
    state["extra"] = torch.ones(1)
    state["norm.bias"] = torch.ones(3)
    save_file(state, tmp_path / "w.safetensors")
    refused(
        tmp_path / "w.safetensors",
        rf"w.safetensors does not fit timm:{SMALL}; missing: norm.weight; not in the network: extra; of another shape: norm.bias "
        r"is 3, the network has 64. Give the weights of this very architecture",
    )
    save_file({"head.weight": torch.ones(1000, 64)}, tmp_path / "few.safetensors")
    refused(tmp_path / "few.safetensors", r"missing: cls_token, pos_embed, (\S+, )?\S+ and \d+ more")


def test_weights_that_are_not_finite(vit, tmp_path):
    state = {name: value.clone() for name, value in vit.state_dict().items()}
    state["norm.bias"][3] = torch.nan
    save_file(state, tmp_path / "w.safetensors")
    refused(tmp_path / "w.safetensors", "norm.bias has values that are not finite; the file is damaged")


# -- preprocessing -----------------------------------------------------------------------------------------------------

few = settings(max_examples=12, deadline=None)
sides = st.integers(20, 120)


@few
@given(sides, sides, st.sampled_from(["RGB", "L", "RGBA", "P", "1", "CMYK"]), st.sampled_from(["bilinear", "bicubic"]))
def test_pictures_are_prepared_as_torchvision_does(width, height, mode, interpolation):
    image = picture(width, height, mode)
    transforms = torchvision.transforms
    expected = transforms.Compose(
        [
            transforms.Resize(48, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(40),
            transforms.PILToTensor(),
        ]
    )(image.convert("RGB"))
    assert torch.equal(Preprocessing((40, 40), 48, interpolation).picture(image), expected)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"crop_pct": 0.875, "interpolation": "bilinear"},
        {"crop_pct": 1.0},
        {"crop_mode": "squash", "crop_pct": 0.9},
        {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
    ],
)
@pytest.mark.parametrize("size", [(230, 190), (97, 301)])
def test_pictures_are_prepared_as_timm_does(tmp_path, weights, monkeypatch, config, size):
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *names, **options: create(*names, pretrained_cfg_overlay=config, **options)
    )
    preprocessing = load_model(f"timm:{SMALL}", weights=weights).preprocessing
    network = create(SMALL, pretrained_cfg_overlay=config)
    expected = timm.data.create_transform(**timm.data.resolve_model_data_config(network))(picture(*size))
    found = preprocessing.normalise(preprocessing.picture(picture(*size))[None].float() / 255)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # of the normalisation alone


def test_a_mode_of_cropping_that_is_not_supported(weights, monkeypatch):
    create = timm.create_model
    overlay = {"pretrained_cfg_overlay": {"crop_mode": "border"}}
    monkeypatch.setattr(timm, "create_model", lambda *names, **options: create(*names, **overlay, **options))
    with pytest.raises(ModelError, match="cropped in timm's mode 'border', which is not supported; build it in a file"):
        load_model(f"timm:{SMALL}", weights=weights)


def test_a_network_built_for_another_size_gets_images_of_that_size(tmp_path):
    (tmp_path / "own.py").write_text("import timm\ndef build(): return timm.create_model('test_vit', img_size=96)")
    assert load_model(f"{tmp_path / 'own.py'}:build").preprocessing.size == (96, 96)


def test_exact_pictures_are_only_cropped_or_enlarged():
    preprocessing = Preprocessing((40, 40), 64)
    image = picture(50, 40)
    assert torch.equal(
        preprocessing.picture(image, exact=True), torch.from_numpy(np.array(image)[:, 5:45]).permute(2, 0, 1)
    )
    same = picture(40, 40)
    assert torch.equal(preprocessing.picture(same, exact=True), torch.from_numpy(np.array(same)).permute(2, 0, 1))
    enlarged = preprocessing.picture(picture(20, 30), exact=True)
    assert enlarged.shape == (3, 40, 40)
    assert enlarged.float().std() > 10
    assert Preprocessing((40, 40)).picture(picture(20, 30)).shape == (3, 40, 40)


def test_statistics_by_name(weights):
    own, imagenet, half = (
        load_model(f"timm:{SMALL}", weights=weights, statistics=statistics)
        for statistics in ("own", "imagenet", "half")
    )
    assert half.preprocessing == own.preprocessing
    assert (imagenet.preprocessing.mean, imagenet.preprocessing.std) == STATISTICS["imagenet"]
    assert imagenet.preprocessing.resize == own.preprocessing.resize
    image = torch.rand(2, 3, 4, 5)
    expected = torchvision.transforms.Normalize(*STATISTICS["imagenet"])(image)
    torch.testing.assert_close(imagenet.preprocessing.normalise(image), expected, rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match="unknown statistics 'cifar'; choose from own, imagenet, half"):
        load_model(f"timm:{SMALL}", weights=weights, statistics="cifar")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interpolation": "cubic"}, "no interpolation 'cubic'; choose from nearest, .*bicubic"),
        ({"size": (0, 3)}, r"size must be \(height, width\), not \(0, 3\)"),
        ({"size": (3,)}, r"not \(3,\)"),
        ({"std": (1, 0, 1)}, "mean and std must be three numbers each, std positive"),
        ({"mean": (1, 0)}, "mean and std must be three numbers each"),
    ],
)
def test_preprocessing_that_makes_no_sense(wrong, message):
    with pytest.raises(ModelError, match=message):
        Preprocessing(**{"size": (8, 8), **wrong})


# -- heads and names ---------------------------------------------------------------------------------------------------


def linear(outputs=5, **options):
    torch.manual_seed(0)
    return Model(
        "mine", nn.Sequential(nn.Flatten(), nn.Linear(12, outputs, **options)), Preprocessing((2, 2)), tuple("abcde")
    )


@pytest.mark.parametrize("bias", [True, False])
def test_a_restricted_model_gives_the_same_logits_in_the_order_asked_for(bias):
    model, images = linear(bias=bias), torch.randn(4, 3, 2, 2)
    few = model.restricted([4, 0, 2])
    torch.testing.assert_close(few.network(images), model.network(images)[:, [4, 0, 2]])
    assert (few.outputs, few.classes, few.network[1].out_features) == (3, ("e", "a", "c"), 3)
    assert (model.outputs, model.network[1].out_features) == (5, 5)


def test_a_restricted_network_of_timms_and_one_with_a_convolution_for_its_head(vit, weights):
    model = load_model(f"timm:{SMALL}", weights=weights)
    few = model.restricted(range(10))
    assert few.network.num_classes == 10
    torch.testing.assert_close(answers(few), answers(model)[:, :10])
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 6, 1), nn.Flatten())
    model, images = Model("convolution", head, Preprocessing((2, 2))), torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(model.restricted([1, 5]).network(images), model.network(images)[:, [1, 5]])


@pytest.mark.parametrize("outputs", [[], [1], [1, 1], [0, 5], [-1, 0]])
def test_outputs_that_cannot_be_kept(outputs):
    with pytest.raises(ModelError, match="two or more different numbers from 0 to 4, not"):
        linear().restricted(outputs)


def test_class_names_that_do_not_fit():
    with pytest.raises(ModelError, match="mine: 5 class names for a network of 4 outputs; give one an output, or None"):
        linear(4)
    with pytest.raises(ModelError, match="mine: the class name 'a' stands for more than one output"):
        Model("mine", nn.Linear(3, 2), Preprocessing((2, 2)), ("a", "a"))


def test_the_digest_is_that_of_the_weights():
    model, other = linear(), linear()
    assert model.digest() == other.digest()
    with torch.no_grad():
        other.network[1].weight[0, 0] += 1e-6
    assert model.digest() != other.digest()
