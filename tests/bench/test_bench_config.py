"""A benchmark is described by flags, by a TOML file or in Python: the same words, the same plan, the same errors."""

import dataclasses
import shlex

import pytest
from tiny_bench import asked, refused

from wildtta import methods, register
from wildtta.bench import Config
from wildtta.bench.config import ConfigError, read_toml
from wildtta.core import Method

FLAGS = """bench --out runs/it --models glyph-vit,glyph-resnet --data glyphs,folder:/x --kinds fog,snow --severities 3,5
    --scenarios mild,shift,correlated --no-reset --methods source,recap,sar --guards none,collapse --seeds 1,2 --images 20
    --batch 32 --option shift.ratio=1000 --option correlated.concentration=0.5 --option shift.repeats=false
    --set lr=1e-4 --set recap.tau=1.0 --set sar.lr=x10 --calibration 64 --weights w.safetensors --statistics half
    --source /clean --device cuda --precision bf16 --threads 3 --jobs 4 --engine ray --address head:6379 --gpus 0.25
    --sample 10"""

TOML = """
out = "runs/it"
models = ["glyph-vit", "glyph-resnet"]
data = ["glyphs", "folder:/x"]
kinds = ["fog", "snow"]
severities = [3, 5]
scenarios = ["mild", "shift", "correlated"]
reset = false
methods = ["source", "recap", "sar"]
guards = ["none", "collapse"]
seeds = [1, 2]
images = 20
sample = 10
batch = 32
calibration = 64
weights = "w.safetensors"
statistics = "half"
source = "/clean"
device = "cuda"
precision = "bf16"
threads = 3
jobs = 4
engine = "ray"
address = "head:6379"
gpus = 0.25
[options]
"shift.ratio" = 1000
"shift.repeats" = false
correlated.concentration = 0.5
[settings]
lr = 1e-4
[settings.recap]
tau = 1.0
[settings.sar]
lr = "x10"
"""


def test_flags_and_a_file_describe_the_same(monkeypatch, tmp_path):
    (tmp_path / "it.toml").write_text(TOML)
    by_flags = asked(monkeypatch, *FLAGS.split())
    by_file = asked(monkeypatch, "bench", "--config", str(tmp_path / "it.toml"))
    assert by_flags == by_file
    usual = Config()
    same = [
        entry.name
        for entry in dataclasses.fields(Config)
        if getattr(by_flags[0], entry.name) == getattr(usual, entry.name)
    ]
    assert same == []  # nothing was left out


def test_flags_go_before_the_file(monkeypatch, tmp_path):
    (tmp_path / "it.toml").write_text(TOML)
    flags = ["--seeds", "7", "--set", "recap.tau=2", "--reset", "--out", "elsewhere", "--kinds", "fog"]
    config, out = asked(monkeypatch, "bench", "--config", str(tmp_path / "it.toml"), *flags)
    assert (config.seeds, config.reset, str(out), config.kinds) == ([7], True, "elsewhere", ["fog"])
    assert config.settings == {"lr": 1e-4, "recap.tau": 2, "sar.lr": "x10"}
    assert config.severities == [3, 5]


def test_the_command_of_a_config_gives_that_config_again(monkeypatch, tmp_path):
    (tmp_path / "it.toml").write_text(TOML)
    for arguments in (
        FLAGS.split(),
        ["bench", "--out", "o"],
        ["bench", "--out", "o", "--reset", "--models", "a b/c.py:f"],
    ):
        config, out = asked(monkeypatch, *arguments)
        words = shlex.split(config.command(out))
        assert words[0] == "wildtta"
        assert asked(monkeypatch, *words[1:]) == (config, out)


def test_a_path_with_a_space_is_one_word_of_the_command():
    assert shlex.split(Config().command("my runs/a")) == ["wildtta", "bench", "--out", "my runs/a"]


def test_all_methods_but_the_costly_are_run_where_none_is_named():
    assert Config().methods == Config(methods=[]).methods == [name for name in methods() if name not in ("memo", "dda")]
    assert Config(methods=["all"]).methods == list(methods())
    assert {"memo", "dda"} <= set(methods())


def test_all_is_a_word_of_its_own():
    with pytest.raises(ConfigError, match="unknown method 'all'"):
        Config(methods=["all", "tent"])


def test_what_is_given_for_one_method_goes_before_what_is_given_for_all():
    config = Config(methods=["source", "tent", "recap"], settings={"lr": 1.0, "tent.lr": 2.0, "recap.tau": 3.0})
    assert config.settings_of("source") == {}
    assert config.settings_of("tent") == {"lr": 2.0}
    assert config.settings_of("recap") == {"lr": 1.0, "tau": 3.0}


def test_the_benchmarks_fifteen_are_the_default_kinds():
    assert len(Config().kinds_of(("clean", *(f"x{n}" for n in range(3)), "fog", "snow"))) == 2
    assert Config().kinds_of(("imagenet-r",)) == ("imagenet-r",)
    assert Config(kinds=["speckle_noise"]).kinds_of(("fog", "speckle_noise")) == ("speckle_noise",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": []}, "models is empty; give at least one"),
        ({"data": []}, "data is empty"),
        ({"severities": []}, "severities is empty"),
        ({"scenarios": []}, "scenarios is empty"),
        ({"guards": []}, "guards is empty"),
        ({"seeds": []}, "seeds is empty"),
        ({"models": ["a", "b", "a"]}, "models names something twice: a, b, a"),
        ({"seeds": [1, 1]}, "seeds names something twice: 1, 1"),
        ({"kinds": ["fog", "fog"]}, "kinds names something twice"),
        ({"methods": ["tent", "tent"]}, "methods names something twice"),
        ({"methods": ["recapp"]}, "unknown method 'recapp'; did you mean recap"),
        ({"methods": ["xyz"]}, "unknown method 'xyz'; choose from source, tent"),
        ({"scenarios": ["mixd"]}, "unknown scenario 'mixd'; did you mean mixed"),
        ({"guards": ["colapse"]}, "unknown guard 'colapse'; did you mean collapse"),
        ({"precision": "float16"}, "unknown precision 'float16'; did you mean"),
        ({"severities": [0]}, "severities go from 1 to 5, but 0 was given"),
        ({"severities": [5, 6]}, "severities go from 1 to 5, but 6 was given"),
        ({"seeds": [-1]}, "seeds go from 0 to 4294967295, but -1 was given"),
        ({"seeds": [1 << 32]}, "seeds go from 0 to 4294967295"),
        ({"images": 0}, "images must be at least 1, but is 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"gpus": 0.25}, "gpus, a share of 0.25, is for the engine ray; add --engine ray"),
        ({"calibration": -5}, "calibration must be at least 1, but is -5"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"options": {"ratio": 3}}, "the option 'ratio' does not say of which scenario; write limited.ratio"),
        ({"options": {"mild.length": 3}}, "'mild.length' is for the scenario 'mild', which is not among limited, mixed, shift"),
        ({"settings": {"nope": 3}, "methods": ["tent"]}, "no hyper-parameter 'nope' in tent; there are frozen_top, lr, momentum"),
        ({"settings": {"tent.momentun": 3}}, "no hyper-parameter 'momentun' in tent; did you mean momentum?"),
        ({"settings": {"source.lr": 3}}, "no hyper-parameter 'lr' in source; there are none"),
        ({"settings": {"recap.region": "x"}}, "no hyper-parameter 'region' in recap; there are"),
        ({"settings": {"recap.tau": 3}, "methods": ["tent"]}, "'recap.tau' is for the method 'recap', which is not among tent"),
        ({"settings": {"lr": [1.0]}}, "lr must be a number, a word, true or false, but is [1.0]"),
        ({"options": {"shift.ratio": {"a": 1}}}, "shift.ratio must be a number, a word, true or false, but is {'a': 1}"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_at_once(settings, message):
    with pytest.raises(ConfigError) as error:
        Config(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 'glyph-vit'", "models must be a list of strings, but is 'glyph-vit'"),
        ("models = [3]", "models must be a list of strings, but is [3]"),
        ("seeds = 3", "seeds must be a list of whole numbers, but is 3"),
        ("seeds = ['a']", "seeds must be a list of whole numbers, but is ['a']"),
        ("severities = [5.0]", "severities must be a list of whole numbers"),
        ("severities = [true]", "severities must be a list of whole numbers"),
        ("reset = 1", "reset must be true or false, but is 1"),
        ("images = 2.5", "images must be a whole number, but is 2.5"),
        ("images = true", "images must be a whole number, but is True"),
        ("images = '20'", "images must be a whole number, but is '20'"),
        ("device = 1", "device must be a string, but is 1"),
        ("weights = []", "weights must be a string, but is []"),
        ("out = 1", "out must be a string, but is 1"),
        ("settings = 3", "settings must be a table, but is 3"),
        ("severites = [5]", "unknown key in"),
        ("severites = [5]", "'severites'; did you mean severities"),
        ("models = [", "is not readable TOML"),
        ("[settings.recap.tau]\na = 1", "recap.tau must be a number, a word, true or false"),
        ("[settings]\nbetas = [1, 2]", "betas must be a number, a word, true or false"),
    ],
)  # fmt: skip
def test_a_file_with_something_wrong_is_refused(tmp_path, text, message):
    path = tmp_path / "it.toml"
    path.write_text(text)
    assert message in refused("bench", "--config", str(path), "--out", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file .*nowhere\.toml"):
        read_toml(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml is not readable TOML"):
        read_toml(tmp_path / "binary.toml")
    with pytest.raises(ConfigError, match="is not readable TOML"):
        read_toml(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds", "1,two"], "--seeds takes whole numbers with commas between them, but 'two' was given"),
        (["--severities", "5.5"], "--severities takes whole numbers with commas between them, but '5.5' was given"),
        (["--set", "lr"], "--set takes NAME=VALUE, but 'lr' was given"),
        (["--option", "=3"], "--option takes NAME=VALUE, but '=3' was given"),
        (["--models", ","], "models is empty; give at least one"),
    ],
)
def test_a_flag_that_cannot_be_read_is_refused(tmp_path, flags, message):
    assert refused("bench", "--out", str(tmp_path / "runs"), *flags) == message


def test_where_the_results_go_must_be_said():
    assert refused("bench") == 'say where the results go: --out FOLDER, or out = "FOLDER" in the config file'


def test_values_of_flags_are_numbers_where_they_look_like_it(monkeypatch):
    @register("plain")
    def plain(network, *, a=0, b=0, c=0, d=0, e=0):
        return Method(network.nothing())

    given = {"a": "3", "b": "1e-4", "c": "True", "d": "x10", "e": "-2"}
    flags = [word for name, value in given.items() for word in ("--set", f"plain.{name}={value}")]
    config, _ = asked(monkeypatch, "bench", "--out", "o", "--methods", "plain", *flags)
    found = config.settings_of("plain")
    assert found == {"a": 3, "b": 1e-4, "c": True, "d": "x10", "e": -2}
    assert [type(value) for value in found.values()] == [int, float, bool, str, int]
