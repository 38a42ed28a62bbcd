"""What a run leaves on disk: complete, right, and the same however it was run; and what a failure costs."""

from __future__ import annotations

import errno
import json
import signal
from itertools import product

import pytest
import torch
from tiny_bench import KINDS, config, of, results, write_folder, write_models

import wildtta
from wildtta import register
from wildtta.bench import Listener, run, work
from wildtta.bench import store as storing
from wildtta.bench.images import Kept
from wildtta.core import Method, entropy, sgd
from wildtta.core.measures import measure
from wildtta.data import open_data
from wildtta.models import load_model
from wildtta.streams import scenario

WHOLE = {
    "scenarios": ["limited", "mild", "mixed", "shift"],
    "methods": ["source", "tent", "sar", "recap"],
    "images": 10,
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of several scenarios and methods."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, run(config(**WHOLE), folder)


def test_every_cell_of_the_plan_has_a_result(done):
    folder, summary = done
    count = 4 * (2 + 2 + 1 + 2)
    assert (summary.cells, summary.kept, summary.finished, summary.failed) == (count, 0, count, {})
    plan = json.loads((folder / "plan.json").read_text())
    assert sorted(f"{name}.json" for name in plan["cells"]) == sorted(results(folder))
    assert len(plan["cells"]) == count
    assert (plan["format"], plan["stand_in"], plan["config"]) == (1, True, config(**WHOLE).as_dict())
    assert plan["command"] == config(**WHOLE).command(folder)
    assert {path.name for path in folder.iterdir()} == {"plan.json", "cells", "gallery", "source", ".lock"}
    assert {path.name for path in (folder / "gallery").iterdir()} == {"fog.png", "contrast.png"}
    assert [path.name.split("-")[0] for path in (folder / "source").iterdir()] == ["region"]


def _by_hand(scene: str, kinds: list[str], method: str, batch: int):
    """The cell as a user of the library would write it."""
    model = load_model("glyph-resnet")
    data = open_data("glyphs", model)
    domains = tuple((kind, 5) for kind in kinds)
    images, labels = [], []
    for kind, severity in domains:
        domain = data.domain(kind, severity)
        numbers = Kept(domain, 10, torch.device("cpu"), 0).numbers
        images.append(domain.read(numbers)[0])
        labels.append(domain.labels[numbers])
    normalise = model.preprocessing.normalise
    settings = {}
    if method == "recap":
        settings["region"] = wildtta.Region.estimate(model.network, normalise(data.source(32)))
    adapter = wildtta.adapt(model.network, method, seed=2023, **settings)
    right, loss, selected, steps = [], [], [], 0
    for places, numbers in scenario(scene).order(labels, 2023, domains=domains).batches():
        chosen = torch.stack([images[p][n] for p, n in zip(places, numbers, strict=True)])
        truth = torch.stack([labels[p][n] for p, n in zip(places, numbers, strict=True)])
        logits = adapter(normalise(chosen))
        right.append(logits.argmax(-1) == truth)
        loss.append(torch.nn.functional.cross_entropy(logits, truth, reduction="none"))
        selected.append(adapter.outcome.mask)
        steps += 1
        assert len(numbers) <= batch
    means = [torch.cat(column).double().mean().item() for column in (right, loss, selected)]
    return means, torch.cat(right).tolist(), steps, adapter.report


@pytest.mark.parametrize("method", WHOLE["methods"])
@pytest.mark.parametrize(
    ("scene", "kinds", "batch"),
    [("limited", ["fog"], 1), ("mild", ["contrast"], 64), ("mixed", KINDS, 64), ("shift", ["fog"], 64)],
)
def test_a_result_is_what_the_library_gives_by_hand(done, scene, kinds, batch, method):
    found = of(done[0], scenario=scene, kind=kinds[0] if len(kinds) == 1 else "all", method=method)
    result = found["result"]
    (right, loss, selected), along, steps, report = _by_hand(scene, kinds, method, batch)
    assert result["images"] == len(along) == (20 if scene in ("mixed", "shift") else 10)
    assert result["top1"] == pytest.approx(100 * right, abs=1e-6)
    assert result["nll"] == pytest.approx(loss, abs=1e-5)
    assert result["selected"] == pytest.approx(selected, abs=1e-6)
    assert result["along"]["top1"] == [100.0 * each for each in along]
    assert (result["updates"], result["resets"], result["skipped"]) == (report.updates, report.resets, report.skipped)
    assert result["unreadable"] == 0
    forwards, backwards = {"source": (1, 0), "tent": (1, 1), "sar": (2, 2), "recap": (1, 1)}[method]
    assert (result["forwards"], result["backwards"]) == (steps * forwards, steps * backwards)
    assert {name: domain["images"] for name, domain in result["domains"].items()} == dict.fromkeys(
        kinds, len(along) // len(kinds)
    )


def test_a_result_says_where_it_comes_from(done):
    found = of(done[0], scenario="mild", kind="fog", method="recap")
    model = load_model("glyph-resnet")
    assert found["cell"] == {
        **{"model": "glyph-resnet", "data": "glyphs", "scenario": "mild", "reset": True, "domains": [["fog", 5]]},
        **{"kind": "fog", "severity": 5, "method": "recap", "guard": None, "seed": 2023, "batch": 64, "images": 10},
        **{"options": {"length": None}, "settings": {}, "calibration": 32, "weights": None, "statistics": "own"},
        **{"source": None, "device": "cpu", "precision": "float32", "threads": 1},
    }
    origin = found["provenance"]
    assert (origin["wildtta"], origin["torch"]) == (wildtta.__version__, torch.__version__)
    assert (origin["model_digest"], origin["stand_in"]) == (model.digest(), True)
    assert origin["data_digest"] == open_data("glyphs", model).digest()
    assert origin["settings"]["tau"] == 1.2
    assert len(origin["settings"]["region"]) == 32


# -- the same numbers however it is run --------------------------------------------------------------------------------


def test_another_run_gives_the_same_files(done, tmp_path):
    run(config(**WHOLE | {"methods": ["tent", "recap"]}), tmp_path / "again")
    assert len(results(tmp_path / "again")) == 14
    assert results(tmp_path / "again").items() <= results(done[0]).items()


def test_two_processes_give_the_same_files(done, tmp_path):
    part = WHOLE | {"scenarios": ["limited", "mild"], "methods": ["source", "recap"]}
    summary = run(config(**part, jobs=2), tmp_path / "two")
    assert (summary.finished, summary.failed) == (8, {})
    assert results(tmp_path / "two").items() <= results(done[0]).items()


def test_what_is_done_is_not_done_again(done):
    folder, summary = done
    before = {file: file.stat().st_mtime_ns for file in (folder / "cells").iterdir()}
    seen = []

    class Seen(Listener):
        def begin(self, cells, kept):
            seen.append((cells, kept))

        def finished(self, family):
            raise AssertionError("nothing is left to run")

    again = run(config(**WHOLE), folder, Seen())
    assert (again.kept, again.finished) == (summary.cells, 0)
    assert seen == [(summary.cells, summary.cells)]
    assert {file: file.stat().st_mtime_ns for file in (folder / "cells").iterdir()} == before


@pytest.mark.parametrize("damage", ["", '{"format": 1, "cell": {', "[]", '{"format": 99}', "\udcff"])
def test_a_result_that_is_not_whole_is_made_again(tmp_path, damage):
    small = config(kinds=["fog"], scenarios=["mild"])
    run(small, tmp_path / "run")
    before = results(tmp_path / "run")
    (spoilt,) = (tmp_path / "run" / "cells").glob("*tent*")
    spoilt.write_bytes(damage.encode("utf-8", "surrogateescape"))
    summary = run(small, tmp_path / "run")
    assert (summary.kept, summary.finished) == (1, 1)
    assert results(tmp_path / "run") == before


def test_a_run_that_grows_keeps_what_it_has(tmp_path):
    run(config(scenarios=["mild"]), tmp_path / "run")
    before = results(tmp_path / "run")
    summary = run(config(scenarios=["mild"], methods=["source", "tent", "sar"], kinds=["fog"]), tmp_path / "run")
    assert (summary.cells, summary.kept, summary.finished) == (3, 2, 1)
    assert before.items() <= results(tmp_path / "run").items()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert sorted(f"{name}.json" for name in plan["cells"]) == sorted(results(tmp_path / "run"))


def test_streams_side_by_side_that_are_done_are_not_done_again(tmp_path):
    """Neither where a plan grows, nor where one of their results is lost."""
    given = {"scenarios": ["limited"], "methods": ["tent"]}
    run(config(**given, seeds=[1]), tmp_path / "run")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "cells").iterdir()}
    summary = run(config(**given, seeds=[1, 2, 3]), tmp_path / "run")
    assert (summary.cells, summary.kept, summary.finished) == (6, 2, 4)
    files = list((tmp_path / "run" / "cells").iterdir())
    assert kept.items() <= {file: file.stat().st_mtime_ns for file in files}.items()
    assert sorted(json.loads(file.read_text())["measured"]["fleet"] for file in files) == [2, 2, 4, 4, 4, 4]
    before = results(tmp_path / "run")
    lost = max(files)
    lost.unlink()
    summary = run(config(**given, seeds=[1, 2, 3]), tmp_path / "run")
    assert (summary.kept, summary.finished) == (5, 1)
    after = results(tmp_path / "run")
    mine, other = after[lost.name]["result"], before[lost.name]["result"]
    assert mine.pop("nll") == pytest.approx(other.pop("nll"), abs=1e-5)
    assert mine.pop("ece") == pytest.approx(other.pop("ece"), abs=1e-3)
    assert after == before


def test_a_fleet_gives_what_its_cells_give_alone(tmp_path):
    several = {"scenarios": ["limited"], "methods": ["source", "tent", "sar", "deyo", "recap"], "guards": ["collapse"]}
    run(config(**several, seeds=[1, 2]), tmp_path / "fleet")
    for kind, seed in product(KINDS, [1, 2]):
        run(config(**several, kinds=[kind], seeds=[seed]), tmp_path / "alone")
    together, alone = results(tmp_path / "fleet"), results(tmp_path / "alone")
    assert together.keys() == alone.keys()
    fleets = [json.loads(file.read_text())["measured"]["fleet"] for file in (tmp_path / "fleet" / "cells").iterdir()]
    assert set(fleets) == {4}
    for name in alone:
        mine, other = together[name]["result"], alone[name]["result"]
        assert mine.pop("nll") == pytest.approx(other.pop("nll"), abs=1e-5)
        assert mine.pop("ece") == pytest.approx(other.pop("ece"), abs=1e-3)
        assert mine == other
        assert together[name]["cell"] == alone[name]["cell"]
        assert together[name]["provenance"] == alone[name]["provenance"]


def test_what_is_set_reaches_the_method(tmp_path):
    run(
        config(scenarios=["mild"], kinds=["fog"], settings={"tent.lr": 0.0, "momentum": 0.5}, batch=2),
        tmp_path / "still",
    )
    run(config(scenarios=["mild"], kinds=["fog"], settings={"tent.lr": 0.05}, batch=2), tmp_path / "fast")
    still, fast = (of(tmp_path / name, method="tent") for name in ("still", "fast"))
    assert still["result"]["nll"] == of(tmp_path / "still", method="source")["result"]["nll"]
    assert fast["result"]["nll"] != still["result"]["nll"]
    assert still["provenance"]["settings"] == {"lr": 0.0, "momentum": 0.5, "frozen_top": False}
    assert (fast["result"]["updates"], fast["result"]["forwards"]) == (4, 4)


def test_a_method_that_makes_views_knows_how_images_were_normalised(tmp_path):
    small = {"kinds": ["fog"], "methods": ["memo"], "images": 3, "settings": {"views": 2}}
    run(config(**small, scenarios=["limited", "mild"]), tmp_path / "run")
    single, batch = (of(tmp_path / "run", scenario=name) for name in ("limited", "mild"))
    assert single["provenance"]["settings"]["statistics"] == [[0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]
    assert single["cell"]["settings"] == {"views": 2}
    assert (single["result"]["forwards"], single["result"]["backwards"]) == (3 * 3, 3 * 2)
    assert (batch["result"]["forwards"], batch["result"]["backwards"]) == (3, 2)
    assert single["result"]["updates"] == batch["result"]["updates"] == 3
    assert single["result"]["nll"] == pytest.approx(batch["result"]["nll"], abs=0.1)


def test_bfloat16_is_used_where_it_is_asked_for(tmp_path):
    small = {"scenarios": ["mild"], "kinds": ["fog"], "methods": ["tent"]}
    run(config(**small), tmp_path / "run")
    run(config(**small, precision="bf16"), tmp_path / "run")
    full, half = (of(tmp_path / "run", precision=name)["result"]["nll"] for name in ("float32", "bf16"))
    assert full != half
    assert full == pytest.approx(half, rel=0.05)


# -- failures ----------------------------------------------------------------------------------------------------------


class Heard(Listener):
    def __init__(self):
        self.notes, self.ends, self.failures = [], [], []

    def note(self, text):
        self.notes.append(text)

    def finished(self, family):
        self.ends += [cell.name for cell in family]

    def failed(self, family, reason):
        self.failures += [(cell.name, reason) for cell in family]


def _register(name, value):
    @register(name)
    def compose(network):
        return Method(network.norms(), measure(value), sgd(1e-3))


def _raises(prediction):
    raise RuntimeError("out of order")


def test_a_cell_that_fails_costs_no_other(tmp_path):
    _register("broken", _raises)
    heard = Heard()
    given = config(methods=["tent", "broken", "source"])
    summary = run(given, tmp_path / "run", heard)
    assert (summary.cells, summary.finished, len(summary.failed)) == (12, 8, 4)
    assert all("__broken__" in name for name in summary.failed)
    assert set(summary.failed.values()) == {"RuntimeError: out of order"}
    assert all("_raises" in trace for trace in summary.tracebacks.values())
    assert sorted(heard.failures) == sorted(summary.failed.items())
    assert sorted(f"{name}.json" for name in heard.ends) == sorted(results(tmp_path / "run"))

    again = run(given, tmp_path / "run")  # they are tried again, and fail again
    assert (again.kept, again.finished, again.failed) == (8, 0, summary.failed)
    _register("broken", lambda prediction: -prediction.log_probabilities.logsumexp(-1))
    mended = run(given, tmp_path / "run")
    assert (mended.kept, mended.finished, mended.failed) == (8, 4, {})


def test_a_method_that_cannot_run_side_by_side_runs_one_by_one(tmp_path):
    _register("looks", lambda prediction: entropy()(prediction) * float(prediction.probabilities.max().item() > 0))
    heard = Heard()
    summary = run(config(methods=["looks"], scenarios=["limited"]), tmp_path / "run", heard)
    assert (summary.finished, summary.failed) == (2, {})
    (note,) = [text for text in heard.notes if "streams" in text]
    assert note.startswith("2 streams side by side failed, and are tried one by one (")
    cells = [json.loads(file.read_text()) for file in (tmp_path / "run" / "cells").iterdir()]
    assert [cell["measured"]["fleet"] for cell in cells] == [1, 1]
    _register("blind", lambda prediction: entropy()(prediction))
    run(config(methods=["blind"], scenarios=["limited"]), tmp_path / "run")
    for kind in KINDS:
        mine, other = (of(tmp_path / "run", method=name, kind=kind)["result"] for name in ("looks", "blind"))
        assert (mine["top1"], mine["updates"]) == (other["top1"], other["updates"])
        assert mine["nll"] == pytest.approx(other["nll"], abs=1e-5)


DEADLY = '''

class Deadly(nn.Sequential):
    """Ends the process that runs it, if that is not the first."""

    def forward(self, images):
        if multiprocessing.parent_process() is not None and not os.path.exists({marker!r}):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def deadly():
    return Model("deadly", Deadly(*_network()), Preprocessing((24, 24)), ("class0", "class1", "class2"))
'''


def test_a_process_that_is_killed_costs_its_own_cell_alone(tmp_path):
    folder, models, marker = write_folder(tmp_path / "set"), write_models(tmp_path), tmp_path / "marker"
    with open(models, "a") as file:
        file.write("import multiprocessing, os, signal\n" + DEADLY.format(marker=str(marker)))
    given = {"data": [f"folder:{folder}"], "kinds": ["fog"], "scenarios": ["mild"], "methods": ["tent"]}
    both = config(**given, models=[f"{models}:deadly", f"{models}:tiny"], jobs=2)
    summary = run(both, tmp_path / "run")
    reason = "its process was ended by SIGKILL; was there too little memory? Try fewer --jobs"
    ((name, found),) = summary.failed.items()
    assert name.startswith("models.py_deadly__")
    assert (summary.finished, found) == (1, reason)
    marker.touch()
    again = run(both, tmp_path / "run")
    assert (again.kept, again.finished, again.failed) == (1, 1, {})
    of(tmp_path / "run", model=f"{models}:deadly")


def test_a_disk_that_is_full_for_a_while_costs_what_could_not_be_written(tmp_path, monkeypatch):
    given = config(scenarios=["mild"])
    with monkeypatch.context() as patch:
        put = storing.put

        def full(path, data):
            if "tent" in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            put(path, data)

        patch.setattr(storing, "put", full)
        summary = run(given, tmp_path / "run")
    assert set(summary.failed.values()) == {"OSError: [Errno 28] No space left on device"}
    assert (summary.finished, len(summary.failed)) == (2, 2)
    assert run(given, tmp_path / "run").finished == 2


@pytest.fixture
def heeds_ctrl_c():
    """A test run in the background is started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_stops_at_once_and_the_run_goes_on_later(tmp_path):
    class Stops(Listener):
        def finished(self, family):
            signal.raise_signal(signal.SIGINT)

    given = config(scenarios=["mild"])
    for kept in range(1, 4):
        with pytest.raises(KeyboardInterrupt):
            run(given, tmp_path / "run", Stops())
        assert len(results(tmp_path / "run")) == kept
    assert run(given, tmp_path / "run").kept == 3
    run(given, tmp_path / "whole")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_what_is_estimated_on_source_images_is_estimated_once(tmp_path, monkeypatch):
    made = []
    estimate = work._estimate
    monkeypatch.setattr(work, "_estimate", lambda cell, *rest: made.append(cell.method) or estimate(cell, *rest))
    given = config(methods=["recap", "recap+sar", "eata"], scenarios=["mild"])
    run(given, tmp_path / "run")
    assert len(made) == 2  # a region and a Fisher matrix
    run(config(methods=["recap", "recap+deyo", "eata"], scenarios=["mild"]), tmp_path / "run")
    assert len(made) == 2
