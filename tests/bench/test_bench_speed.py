"""What `wildtta speed` measures: structure and consistency; no time is judged."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from networks import make
from reference import Reference
from torch import nn
from typer.testing import CliRunner

import wildtta
from wildtta.bench import growth, loops, speed, speed_table, timing, work
from wildtta.bench.speed import Speed, SpeedError
from wildtta.cli import app

ROOT = Path(__file__).parent.parent.parent

TINY = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(TINY)
    return f"{tmp_path / 'tiny.py'}:build"


def test_the_table_has_a_row_for_everyone(tiny: str) -> None:
    result = speed.measure(Speed([tiny], [4], 32, precisions=["float32", "bf16"], rounds=2, reference=True))
    rows = {(row["method"], row["runner"], row["precision"]): row for row in result["rows"]}
    assert len(rows) == len(result["rows"])
    for method in loops.LOOPS:
        assert (method, "plain loop", "float32") in rows
    for precision in ("float32", "bf16"):
        assert ("no adaptation", "eager", precision) in rows
        for method in {name for name, recipe in wildtta.methods().items() if not recipe.costly} - {"source"}:
            for runner in ("eager", "sparing"):
                row = rows[method, runner, precision]
                assert row["ms"][0] <= row["ms"][1] <= row["ms"][2]
                assert row["rounds"] == 2
                assert row["mib"] > 0
                assert row["selected"] == 1, row
    assert all(
        row["ratio"] == [1, 1, 1] for row in rows.values() if row["runner"] == "plain loop" and row["method"] == "tent"
    )
    passes = {
        method: (rows[method, "eager", "float32"]["forwards"], rows[method, "eager", "float32"]["backwards"])
        for method in ("tent", "sar", "deyo", "recap")
    }
    assert passes == {"tent": (1, 1), "sar": (2, 2), "deyo": (2, 1), "recap": (1, 1)}
    counted = {
        method: (row["forwards"], row["backwards"]) for (method, runner, _), row in rows.items() if "loop" in runner
    }
    assert counted == {
        "source": (1, 0), "tent": (1, 1), "eta": (1, 1), "sar": (2, 2), "deyo": (2, 1), "recap": (1, 1)
    }  # fmt: skip
    assert (
        rows["no adaptation", "eager", "bf16"]["forwards"],
        rows["no adaptation", "eager", "bf16"]["backwards"],
    ) == (1, 0)
    assert rows["recap", "eager", "float32"]["other"] == "region confidence"
    assert rows["tent", "eager", "float32"]["other"] == ""
    parts = speed_table.groups(result)
    assert sum(len(part) for _, part in parts.values()) == len(rows)
    assert [title.partition(", ")[2] for title in parts] == [
        "px 32, batch 4, precision float32",
        "px 32, batch 4, precision bf16",
    ]
    shown = speed_table.markdown(json.loads(json.dumps(result)))
    assert shown.count("\n") == len(rows) + 1
    assert all(line.count(" | ") == shown.partition("\n")[0].count(" | ") for line in shown.splitlines())


def test_a_share_of_the_images_teaches(tiny: str) -> None:
    options = Speed([tiny], [64], 16, methods=["recap", "sar"], share=0.25, rounds=2, memory=False, reference=True)
    result = speed.measure(options)
    rows = {(row["method"], row["runner"]): row for row in result["rows"]}
    assert all("mib" not in row for row in rows.values())
    for method in ("recap", "sar"):
        for runner in ("eager", "sparing"):
            assert 0.1 < rows[method, runner]["selected"] < 0.4
    assert (rows["sar", "eager"]["forwards"], rows["sar", "eager"]["backwards"]) == (2, 2)
    assert rows["sar", "sparing"]["forwards"] < 1.8
    assert rows["sar", "sparing"]["backwards"] < 1.4
    loops = {method: row for (method, runner), row in rows.items() if runner == "plain loop"}
    assert (loops["sar"]["forwards"], loops["sar"]["backwards"]) == (2, 2), "the plain loop spares nothing"
    assert (loops["deyo"]["forwards"], loops["deyo"]["backwards"]) == (1.25, 1), "it asks again about what it kept"


@pytest.mark.parametrize("what", ["classes", "batch", "streams"])
def test_how_cost_grows(tiny: str, what: str) -> None:
    options = Speed([tiny], [4], 16, methods=["recap"], runners=["eager"], rounds=2, memory=False)
    result = growth.grow(options, what, [2, 8])
    assert {row["value"] for row in result["rows"]} == {2, 8}
    assert {row["method"] for row in result["rows"]} == (
        {"tent", "recap"} | ({"no adaptation"} if what != "streams" else set())
    )
    shown = speed_table.markdown(result)
    assert "bend" in shown
    if what == "streams":
        fleet = [row for row in result["rows"] if row["runner"] == "fleet, eager"]
        assert [
            row["images_per_second"] == pytest.approx(1000 * row["value"] / row["ms"][1], rel=0.01) for row in fleet
        ] == [True] * 2


def test_where_a_curve_bends() -> None:
    assert speed_table.bend([(1, 3.0), (2, 3.1), (4, 3.2)]) is None
    assert speed_table.bend([(1, 1.0), (2, 2.0)]) == 1
    assert speed_table.bend([(10, 2.0), (1000, 2.2), (10_000, 9.0)]) == 1000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precisions": ["int8"]}, "unknown precision 'int8'"),
        ({"share": 1.5}, "between 0 and 1"),
        ({"batches": [0]}, "at least one image"),
        ({"methods": ["tant"]}, "unknown method 'tant'"),
        ({"runners": ["graph"]}, "unknown runner 'graph'"),
    ],
)
def test_what_cannot_be_asked_for(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SpeedError, match=message):
        Speed(**wrong)  # type: ignore[arg-type]


def test_one_meaning_of_precision() -> None:
    """TF32 where it is asked for alone: losses of a bf16 run are in float32, and the tables time what a benchmark runs."""
    assert speed.in_precision is work.precision
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    for device in ("cpu", torch.device("cpu")):
        for name in speed.PRECISIONS:
            with work.precision(name, device):
                assert [switch.allow_tf32 for switch in switches] == [name == "tf32"] * 2
                assert torch.is_autocast_enabled("cpu") == (name == "bf16")
            assert [switch.allow_tf32 for switch in switches] == before


def test_a_contestant_that_fails_does_not_stop_the_others(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, prediction: object) -> None:
        raise RuntimeError("out of memory, say\nand more")

    monkeypatch.setattr(wildtta.core.regional_entropy, "compute", broken)
    result = speed.measure(Speed([tiny], [4], 16, methods=["tent", "recap"], runners=["eager"], rounds=1, memory=False))
    rows = {(row["method"], row["runner"]): row for row in result["rows"]}
    assert rows["recap", "eager"]["error"] == "out of memory, say"
    assert rows["tent", "eager"]["ms"][1] > 0
    assert "out of memory, say" in speed_table.markdown(result)


@pytest.mark.parametrize("method", ["tent", "eta", "sar", "deyo"])
@pytest.mark.parametrize("kind", ["gn", "bn"])
def test_the_plain_loops_do_what_the_methods_say(method: str, kind: str) -> None:
    """Against the tests' own reference, at the paper's thresholds, from where all that is selected learns alike."""
    network = make(kind, torch.float64)
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    head = "fc" if kind == "bn" else "head"
    loop = loops.Loop(network, method, head, lr=0.01)
    names = [name for name, parameter in loop.network.named_parameters() if parameter.requires_grad]
    options = {
        "lr": 0.01,
        "margin": 0.4,
        "redundancy": 0.05,
        "rho": 0.05,
        "recovery": 0.0,
        "threshold": 0.5,
        "plpd": 0.2,
    }
    plain = Reference(network, method, names, network.get_submodule(head), **options)
    for step in range(3):
        batch = torch.randn(12, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        if method == "deyo" and step:
            break  # their patches are shuffled differently: only the first prediction is the same
        torch.testing.assert_close(loop(batch), plain.step(batch, lambda x: x), rtol=1e-8, atol=1e-8)
    if method != "deyo":
        assert not torch.equal(loop(batch), make(kind, torch.float64).eval()(batch))


def test_the_plain_loop_of_recap_has_the_librarys_loss() -> None:
    network = make("gn", torch.float64)
    loop = loops.Loop(network, "recap", "head")
    logits = torch.randn(6, 10, dtype=torch.float64)
    around = wildtta.core.Neighbourhood(loop.weight, loop.variance, 1.0)
    prediction = wildtta.core.Prediction(logits, logits, logits, torch.arange(6), lambda other: prediction)
    found, regional = loops.cubic(logits, loop.weight, loop.variance)
    torch.testing.assert_close(found, wildtta.core.region_confidence(around, 0.5)(prediction))
    torch.testing.assert_close(regional, wildtta.core.regional_entropy(around)(prediction))


def test_timing() -> None:
    calls: list[str] = []
    times = timing.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu", warm_up=1)
    assert "".join(calls) == "abbaabba"
    assert [len(values) for values in times.values()] == [3, 3]
    assert timing.in_turn({}, 2, "cpu") == {}
    assert 3.9 < timing.peak_memory(lambda: torch.ones(2**20).sum(), "cpu") < 4.2
    short = timing.in_turn({"a": lambda: sum(range(10**5))}, 10_000, "cpu", until=0.01)
    assert 3 <= len(short["a"]) < 10_000


def test_in_a_round_each_has_its_turn_and_none_always_follows_the_same() -> None:
    calls: list[str] = []
    timing.in_turn({name: partial(calls.append, name) for name in "abcd"}, 6, "cpu", warm_up=2)
    rounds = ["".join(calls[start : start + 4]) for start in range(0, 32, 4)]
    assert rounds[:5] == ["abcd", "bcda", "cdab", "dabc", "abcd"]
    before = {name: {one for one, other in pairwise(calls) if other == name} for name in "abcd"}
    assert all(len(others) > 1 for others in before.values())


def test_times_by_another_clock_belong_to_whom_they_are_of() -> None:
    """A clock that the steps themselves move on: the order of a round does not mix up their times."""
    now = [0.0]

    def works(seconds: float) -> None:
        now[0] += seconds

    turns = {name: partial(works, seconds) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    times = timing.in_turn(turns, 4, "cpu", clock=lambda: now[0])
    assert times == {"a": [1000.0] * 4, "b": [2000.0] * 4, "c": [4000.0] * 4}


def test_a_ratio_is_the_median_of_those_within_rounds() -> None:
    """The machine was slow in the second round, for both; medians of each alone would come from different rounds."""
    assert timing.ratios(TIMES, "recap", "tent") == timing.Spread(1.5, 2.0, 2.0)
    assert timing.spread(TIMES["recap"]).middle / timing.spread(TIMES["tent"]).middle == 1.0


TIMES = {"tent": [2.0, 40.0, 1.0], "recap": [2.0, 80.0, 2.0]}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script from the folder of benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def imported(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return imported


def test_the_cost_of_a_step_is_told_by_ratios_within_rounds(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = script("cost")

    def in_turn(turns: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
        for turn in turns.values():
            turn()
        return {name: TIMES[name.partition(",")[0]] for name in turns}

    monkeypatch.setattr(cost, "in_turn", in_turn)
    found = cost.step("cpu", 32, 2, 3, small_stem=False)
    assert (found["recap"], found["tent"], found["recap ÷ tent"]) == (2.0, 2.0, 2.0)
    assert "| recap | 2.0 (2.0 to 41.0) | 2.000 |" in capsys.readouterr().out


def test_the_benchmark_of_fleets_runs(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = str(torch.get_num_threads())
    asked = ["--models", "glyph-resnet", "--streams", "2", "--threads", threads, "--rounds", "2", "--cpu-time"]
    monkeypatch.setattr("sys.argv", ["fleet.py", *asked])
    script("fleet").main()
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:3] == ["glyph-resnet", threads, "2"]
    assert all(float(value) > 0 for value in row[-2:])


def test_files_are_called_what_the_page_calls_them(script: Callable[[str], ModuleType]) -> None:
    """The command in the script's docstring writes the file that the page shows, and is the page's own."""
    said = script("cpu_speed").__doc__ or ""
    names = re.findall(r"--json docs/data/speed/(\S+)\.json", said)
    assert [name for name in names if name in script("speed_page").PARTS] == ["cpu-real"]
    assert "DATA --json docs/data/speed/cpu-real.json" in (ROOT / "docs" / "speed.md").read_text()
    assert not any("_" in name for name in names)


def test_all_that_holds_captured_steps_against_eager_ones_runs_on_the_gpu(script: Callable[[str], ModuleType]) -> None:
    """Wherever a test of this name is: without CUDA it skips, and nobody would miss it."""
    files = [
        file for file in sorted((ROOT / "tests").glob("*.py")) if "def test_captured_equals_eager" in file.read_text()
    ]
    assert {file.name for file in files} == {Path(name.partition("::")[0]).name for name in script("gpu").CAPTURED}
    for name in script("gpu").CAPTURED:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text() if test else (ROOT / path).exists()


def test_the_command(tiny: str, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "out" / "speed.json"), "--markdown", str(tmp_path / "speed.md")]
    asked = ["speed", "--models", tiny, "--batch", "2", "--size", "16", "--methods", "tent,recap", "--rounds", "1"]
    done = CliRunner().invoke(app, [*asked, *files])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "speed.json").read_text())
    assert (tmp_path / "speed.md").read_text().strip() == speed_table.markdown(result)
    grown = CliRunner().invoke(app, [*asked, "--grow", "batch", "--values", "1,2", "--no-memory"])
    assert grown.exit_code == 0, grown.output
    assert "bend" in grown.output
    for flags, message in (
        (["--share", "half"], "--share takes a number"),
        (["--device", "cuda"], "no CUDA device here"),
        (["--grow", "depth"], "'depth' is none of them"),
        (["--models", "timm:resnt50"], "cannot be made"),
    ):
        if flags[0] == "--device" and torch.cuda.is_available():
            continue
        failed = CliRunner().invoke(app, ["speed", *flags])
        assert failed.exit_code == 2
        assert message in failed.output
