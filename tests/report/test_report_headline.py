"""The words agree with the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from synthetic_runs import cell, paper_run, write_run

from wildtta.report import headline, load_run, tables
from wildtta.report.headline import verdicts

KINDS = ("fog", "snow")


def standing(folder: Path, accuracies: dict[str, tuple[float, ...]], **more: object):  # type: ignore[no-untyped-def]
    cells = [
        cell(method, kind, top1) for method, row in accuracies.items() for kind, top1 in zip(KINDS, row, strict=False)
    ]
    run = load_run(write_run(folder, cells, **more))  # type: ignore[arg-type]
    (verdict,) = verdicts(run)
    (found,) = verdict.standings
    assert headline(run) == found.sentence()
    return found


def test_best_gain_and_losers(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "tent": (30, 40), "sar": (44.9, 50.1), "recap": (50, 52)})
    assert found.sentence() == (
        "On glyph-resnet at severity 5, ReCAP is best with 51.0 %, +6.0 points over the source model. "
        "Below source: Tent (−10.0)."
    )
    assert found.sentence(name_model=False).startswith("ReCAP is best with 51.0 %, +6.0 points over the source model. ")


def test_nobody_falls_below(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "recap": (50, 52)})
    assert found.sentence().endswith("+6.0 points over the source model. No method falls below source.")


def test_source_is_best(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "tent": (30, 40), "sar": (20, 40)})
    assert found.sentence() == (
        "On glyph-resnet at severity 5, no method is better than the source model, which has 45.0 %. "
        "Below source: SAR (−15.0) and Tent (−10.0)."
    )


def test_a_tie_with_source_is_no_win(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "tent": (40.02, 50.02)})
    assert found.best == ("Source", "Tent")
    assert "no method is better than the source model, which has 45.0 %." in found.sentence()
    assert "Below" not in found.sentence()


def test_a_tie_of_two(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "tent": (50, 50), "sar": (50, 50.04)})
    assert "Tent and SAR are best with 50.0 %, +5.0 points" in found.sentence()


def test_the_best_loses_on_one_corruption(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 50), "tent": (60, 48.5), "sar": (44, 50)})
    assert "Tent is best with 54.2 %, +9.2 points" in found.sentence()
    assert "Even so it loses on snow (−1.5)." in found.sentence()


def test_of_many_losers_the_worst_are_named(tmp_path: Path) -> None:
    losers = {method: (30 - place, 40 - place) for place, method in enumerate(["tent", "eta", "eata", "sar", "deyo"])}
    found = standing(tmp_path, {"source": (40, 50), "recap": (50, 60), **losers})
    assert found.sentence().endswith(" Below source: DeYO (−14.0), SAR (−13.0), EATA (−12.0) and 2 more.")
    assert len(found.below) == 5


def test_without_source_there_is_no_gain(tmp_path: Path) -> None:
    found = standing(tmp_path, {"tent": (40, 50), "sar": (42, 50)})
    assert found.sentence() == "On glyph-resnet at severity 5, SAR is best with 46.0 %."


def test_only_what_every_method_has_is_compared(tmp_path: Path) -> None:
    found = standing(tmp_path, {"source": (40, 90), "tent": (45,)}, missing=["tent-snow"])
    assert found.sentence() == (
        "On glyph-resnet at severity 5 over the 1 of 2 streams that every method has finished, "
        "Tent is best with 45.0 %, +5.0 points over the source model. No method falls below source."
    )


@pytest.mark.parametrize("cells", [[], [cell("tent")], [cell("source", "fog"), cell("tent", "snow")]])
def test_too_little_to_compare(tmp_path: Path, cells: list[dict]) -> None:
    run = load_run(write_run(tmp_path, cells, missing=["more"]))
    assert verdicts(run) == []
    assert headline(run) == "There are too few results yet to compare the methods."


def both_models(first: dict[str, float], second: dict[str, float]) -> list[dict]:
    models = {"glyph-resnet": first, "glyph-vit": second}
    return [cell(method, top1=top1, model=model) for model, row in models.items() for method, top1 in row.items()]


def test_over_several_settings(tmp_path: Path) -> None:
    cells = both_models({"source": 50, "tent": 40, "recap": 60}, {"source": 30, "tent": 25, "recap": 50})
    assert headline(load_run(write_run(tmp_path, cells))) == (
        "ReCAP is best in 2 of 2 settings (scenario × model), and +15.0 points over the source model on average over all of "
        "them. Below the source model somewhere: Tent (in 2, by up to 10.0 points)."
    )


def test_severities_are_settings_too(tmp_path: Path) -> None:
    rows = {5: {"source": 40, "tent": 45}, 3: {"source": 60, "tent": 61}}
    cells = [cell(name, top1=top1, severity=level) for level, row in rows.items() for name, top1 in row.items()]
    run = load_run(write_run(tmp_path, cells))
    assert headline(run).startswith(
        "Tent is best in 2 of 2 settings (scenario × model × severity), and +3.0 points over"
    )


def test_several_leaders_and_settings_that_source_wins(tmp_path: Path) -> None:
    cells = both_models({"source": 50, "tent": 60, "recap": 40}, {"source": 30, "tent": 20, "recap": 35})
    cells += [cell(method, top1=top1, scenario="mild") for method, top1 in {"source": 9, "tent": 8, "recap": 7}.items()]
    assert headline(load_run(write_run(tmp_path, cells))) == (
        "Tent and ReCAP are each best in 1 of 3 settings (scenario × model). In 1 no method is better than the source model. "
        "Below the source model somewhere: ReCAP (in 2, by up to 10.0 points) and Tent (in 2, by up to 10.0 points)."
    )


def test_nothing_helps_anywhere(tmp_path: Path) -> None:
    cells = both_models({"source": 50, "tent": 40}, {"source": 30, "tent": 25})
    assert headline(load_run(write_run(tmp_path, cells))) == (
        "In none of 2 settings (scenario × model) is a method better than the source model. "
        "Below the source model somewhere: Tent (in 2, by up to 10.0 points)."
    )


def test_several_settings_without_source(tmp_path: Path) -> None:
    cells = both_models({"sar": 50, "tent": 40}, {"sar": 30, "tent": 25})
    assert headline(load_run(write_run(tmp_path, cells))) == "SAR is best in 2 of 2 settings (scenario × model)."


def test_nobody_falls_anywhere(tmp_path: Path) -> None:
    cells = both_models({"source": 50, "tent": 60}, {"source": 30, "tent": 30})
    assert headline(load_run(write_run(tmp_path, cells))).endswith("No method falls below the source model anywhere.")


def test_the_headline_of_a_whole_run_agrees_with_its_tables(tmp_path: Path) -> None:
    run = load_run(paper_run(tmp_path, seeds=2))
    overview = tables(run)[0]
    columns = list(zip(*(row.values for row in overview.rows), strict=True))
    wins = [overview.rows[place].label for column in columns for place, value in enumerate(column) if value.best]
    falls = [
        row.label for row in overview.rows for value in row.values if value.gain is not None and value.gain < -0.05
    ]
    leader, count = re.match(r"(\S+) is best in (\d+) of 6 settings", headline(run)).groups()  # type: ignore[union-attr]
    assert wins.count(leader) == int(count) == max(map(wins.count, wins))
    assert f"Tent (in {falls.count('Tent')}, by" in headline(run)
    for verdict in verdicts(run):
        for found in verdict.standings:
            column = next(
                column
                for column, heading in zip(columns, overview.columns, strict=True)
                if heading.full.startswith(f"{verdict.setting}: {found.model}")
            )
            assert found.accuracy == max(round(value.mean, 1) for value in column if value.mean is not None)
