"""Which cells a benchmark is made of, what they are called, and which of them run together."""

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from tiny_bench import config, refused, write_folder, write_models

from wildtta.bench import Config, plan
from wildtta.bench.config import ConfigError
from wildtta.bench.plan import Setting, families, open_settings
from wildtta.data import DataError, open_data
from wildtta.models import Model, load_model
from wildtta.streams import SCENARIOS


@pytest.fixture(scope="module")
def opened():
    model = load_model("glyph-resnet")
    return {("glyph-resnet", "glyphs"): Setting(model, open_data("glyphs", model))}


def _cells(opened, scenario, **others):
    return plan(config(scenarios=[scenario], methods=["tent"], **others), opened)


ALONE = [(("fog", 5),), (("contrast", 5),)]
TOGETHER = [(("fog", 5), ("contrast", 5))]
STEPS = [(kind, severity) for kind in ("fog", "contrast") for severity in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("scenario", "reset", "domains"),
    [
        ("mild", None, ALONE),
        ("limited", None, ALONE),
        ("shift", None, ALONE),
        ("correlated", None, ALONE),
        ("mixed", None, TOGETHER),
        ("continual", None, TOGETHER),
        ("gradual", None, [tuple(STEPS)]),
        ("mild", False, TOGETHER),
        ("limited", False, TOGETHER),
        ("shift", False, TOGETHER),
        ("correlated", False, TOGETHER),
        ("continual", True, ALONE),
        ("gradual", True, [tuple(STEPS[:5]), tuple(STEPS[5:])]),
    ],
)
def test_each_scenario_has_its_streams(opened, scenario, reset, domains):
    cells = _cells(opened, scenario, reset=reset)
    assert [cell.domains for cell in cells] == domains
    assert {cell.reset for cell in cells} == {SCENARIOS[scenario].reset if reset is None else reset}
    assert {cell.batch for cell in cells} == {1 if scenario == "limited" else 64}
    kinds = [{kind for kind, _ in stream} for stream in domains]
    assert [cell.kind for cell in cells] == [min(here) if len(here) == 1 else "all" for here in kinds]


def test_mixed_domains_have_no_moment_for_a_reset(opened):
    with pytest.raises(ConfigError, match="scenario 'mixed': 'mixed' shuffles its 2 kinds into one stream"):
        _cells(opened, "mixed", reset=True)
    assert len(_cells(opened, "mixed", reset=True, kinds=["fog"])) == 1


def test_every_combination_is_one_cell(opened):
    found = config(
        severities=[1, 5],
        scenarios=["mild", "mixed"],
        methods=["source", "tent"],
        guards=["none", "collapse"],
        seeds=[1, 2],
    )
    cells = plan(found, opened)
    assert len(cells) == 2 * (2 + 1) * 3 * 2  # of the source, which a guard does not change, one
    assert len({cell.name for cell in cells}) == len(set(cells)) == len(cells)
    assert Counter((cell.severity, cell.kind) for cell in cells) == {
        (severity, kind): 6 for severity in (1, 5) for kind in ("fog", "contrast", "all")
    }
    assert {(cell.method, cell.guard) for cell in cells} == {("source", None), ("tent", None), ("tent", "collapse")}


@pytest.mark.parametrize("guards", [["none", "collapse", "recover"], ["collapse"]])
def test_what_learns_nothing_that_lasts_is_run_without_a_guard(opened, guards):
    cells = plan(config(methods=["source", "memo", "dda"], guards=guards, kinds=["fog"], scenarios=["mild"]), opened)
    assert [(cell.method, cell.guard) for cell in cells] == [("source", None), ("memo", None), ("dda", None)]


def test_neighbours_share_their_images(opened):
    cells = plan(config(kinds=["fog", "snow", "frost"], scenarios=["mild", "limited"]), opened)
    kinds = [cell.kind for cell in cells]
    assert sum(a != b for a, b in pairwise(kinds)) == 2


def test_a_cell_has_its_own_options_and_settings(opened):
    found = config(
        scenarios=["shift", "mild"], options={"shift.ratio": "inf"}, settings={"lr": 0.1, "tent.momentum": 0}, batch=16
    )
    for cell in plan(found, opened):
        assert dict(cell.settings) == ({"lr": 0.1, "momentum": 0} if cell.method == "tent" else {})
        assert dict(cell.options) == (
            {"ratio": 500000.0, "repeats": True, "length": None} if cell.scenario == "shift" else {"length": None}
        )
        assert cell.batch == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mild.lenght": 3}, "scenario 'mild': the scenario 'mild' has no option 'lenght'; did you mean 'length'"),
        ({"mild.length": 0}, "scenario 'mild': length must be at least 1, not 0"),
        ({"mild.length": "x"}, "scenario 'mild': length must be a whole number"),
    ],
)
def test_an_option_that_cannot_be(opened, options, message):
    with pytest.raises(ConfigError) as error:
        _cells(opened, "mild", options=options)
    assert message in str(error.value)


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_name_is_a_file_name_and_says_what_the_cell_is(opened):
    (cell,) = _cells(opened, "mild", kinds=["fog"], guards=["collapse"], seeds=[3])
    assert re.fullmatch(r"glyph-resnet__glyphs__mild__fog-5__tent__collapse__3__[0-9a-f]{10}", cell.name)


@pytest.mark.parametrize(
    "model", ["timm:vit_base_patch16_224.augreg_in21k_ft_in1k", "a b/c d.py:f", "../x.py:f", "x" * 300]
)
@pytest.mark.parametrize(
    "data", ["imagenet-c:/data/imagenet-c/", "folder:C:\\images", "folder:画像", "folder:" + "y" * 250]
)
def test_any_model_and_path_give_a_name_that_can_be_a_file(tmp_path, opened, model, data):
    found = Config(models=[model], data=[data], kinds=["fog"], scenarios=["mild"])
    for cell in plan(found, {(model, data): opened["glyph-resnet", "glyphs"]}):
        assert re.fullmatch(r"[A-Za-z0-9_.+-]+", cell.name)
        (tmp_path / f"{cell.name}.json").write_text("")


CHANGES = {
    "seeds": [5],
    "images": 9,
    "batch": 3,
    "calibration": 33,
    "statistics": "half",
    "precision": "bf16",
    "threads": 2,
    "severities": [4],
    "reset": False,
    "guards": ["collapse"],
    "settings": {"lr": 0.1},
    "options": {"mild.length": 3},
    "weights": "w",
    "source": "s",
    "device": "cuda",
}


@pytest.mark.parametrize("change", CHANGES)
def test_all_that_a_result_depends_on_is_in_its_name(opened, change):
    before = {cell.name for cell in _cells(opened, "mild", kinds=["fog"])}
    assert before.isdisjoint(cell.name for cell in _cells(opened, "mild", kinds=["fog"], **{change: CHANGES[change]}))


def test_how_many_jobs_run_is_not_in_the_name(opened):
    assert _cells(opened, "mild", jobs=4) == _cells(opened, "mild")


def test_the_same_plan_in_another_process(opened):
    script = """
import json, sys
from wildtta.bench import Config, plan
from wildtta.bench.plan import open_settings
config = Config(**json.loads(sys.argv[1]))
print(json.dumps([cell.name for cell in plan(config, open_settings(config))]))
"""
    found = config(seeds=[1, 2], settings={"lr": 0.1}, options={"mild.length": 4})
    run = [sys.executable, "-c", script, json.dumps(found.as_dict())]
    output = subprocess.run(run, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}).stdout
    assert json.loads(output) == [cell.name for cell in plan(found, opened)]


# -- data --------------------------------------------------------------------------------------------------------------


def test_data_without_severities_are_run_once(tmp_path, opened):
    data = open_data("glyphs", opened["glyph-resnet", "glyphs"].model)
    data.kinds, data.severities = ("imagenet-r",), (0,)
    single = {("glyph-resnet", "glyphs"): Setting(opened["glyph-resnet", "glyphs"].model, data)}
    cells = plan(config(kinds=[], scenarios=["mild"], methods=["tent"], severities=[3, 5]), single)
    assert [(cell.domains, cell.severity) for cell in cells] == [((("imagenet-r", 0),), 0)]
    with pytest.raises(ConfigError, match="a gradual stream needs severities to go through"):
        plan(config(kinds=[], scenarios=["gradual"]), single)


def test_models_and_data_are_opened_and_checked(tmp_path):
    folder, models = write_folder(tmp_path / "set"), write_models(tmp_path)
    found = open_settings(Config(models=[f"{models}:tiny", f"{models}:small"], data=[f"folder:{folder}"]))
    assert [setting.model.name for setting in found.values()] == ["tiny", "small"]
    with pytest.raises(DataError, match="the embedded glyphs are images of 32 × 32"):
        open_settings(Config(models=[f"{models}:tiny"]))
    assert "unknown model 'glyf-resnet'; did you mean 'glyph-resnet'?" in refused(
        "check", "--models", "glyf-resnet", "--data", "glyphs"
    )


# -- families ----------------------------------------------------------------------------------------------------------


def test_a_costly_method_runs_alone(opened):
    cells = plan(config(scenarios=["limited"], methods=["memo", "tent"]), opened)
    assert [len(family) for family in families(cells, opened) if family[0].method == "memo"] == [1, 1]
    assert [len(family) for family in families(cells, opened) if family[0].method == "tent"] == [2]


def test_streams_of_single_images_run_together(opened):
    cells = plan(config(seeds=[1, 2], guards=["none", "collapse"], scenarios=["limited", "mild"]), opened)
    groups = families(cells, opened)
    assert sorted(cell.name for family in groups for cell in family) == sorted(cell.name for cell in cells)
    for family in groups:
        alike = {(cell.scenario, cell.method, cell.guard) for cell in family}
        assert len(alike) == 1
        if family[0].scenario == "limited":
            assert {(cell.kind, cell.seed) for cell in family} == {(k, s) for k in ("fog", "contrast") for s in (1, 2)}
        else:
            assert len(family) == 1


def test_a_fleet_has_a_limit(opened):
    cells = plan(config(seeds=list(range(50)), scenarios=["limited"], methods=["tent"]), opened)
    assert [len(family) for family in families(cells, opened)] == [64, 36]


def test_a_network_that_mixes_images_has_no_fleets(opened):
    from torch import nn

    model = opened["glyph-resnet", "glyphs"].model
    mixing = Model("mixing", nn.Sequential(nn.BatchNorm2d(3), model.network), model.preprocessing, model.classes)
    cells = _cells(opened, "limited", seeds=[1, 2])
    alone = {("glyph-resnet", "glyphs"): Setting(mixing, opened["glyph-resnet", "glyphs"].data)}
    assert [len(family) for family in families(cells, alone)] == [1, 1, 1, 1]
