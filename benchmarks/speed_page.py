"""The tables of docs/speed.md, from the result files in docs/data/speed.

    python benchmarks/speed_page.py          # prints the table of goals
    python benchmarks/speed_page.py --docs   # writes all tables into the page

What no file gives is "not yet measured".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wildtta.bench.speed_table import markdown  # noqa: E402

PAGE, DATA = ROOT / "docs" / "speed.md", ROOT / "docs" / "data" / "speed"
MISSING = "not yet measured"

Figures = dict[str, Any]


class Goal(NamedTuple):
    """What is to be shown: in which file it is found, how, and the limit."""

    what: str
    file: str
    find: Callable[[Figures], tuple[float, str]]
    limit: float
    at_least: bool = False

    def line(self, folder: Path) -> str:
        sign = "≥" if self.at_least else "≤"
        found, verdict = MISSING, ""
        if (results := load(folder, self.file)) is not None:
            try:
                value, note = self.find(results)
            except (KeyError, ValueError, IndexError) as error:  # a dry run, or a contestant that could not run
                found = f"not in the results ({type(error).__name__})"
            else:
                found = f"{value:.3g}{f' ({note})' if note else ''}"
                verdict = "met" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"
        return f"| {self.what} | {sign} {self.limit:g} | {found} | {verdict} |"


def load(folder: Path, name: str) -> Figures | None:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _row(results: Figures, **wanted: object) -> Figures:
    fitting = [row for row in results["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    if len(fitting) != 1 or "ms" not in fitting[0]:
        raise KeyError(f"{len(fitting)} rows for {wanted}")
    return fitting[0]


def _batches(results: Figures) -> tuple[int, int]:
    large, one = results["options"]["batches"]
    return large, one


def _over_loop(precision: str) -> Callable[[Figures], tuple[float, str]]:
    """The better runner's step over the plain Tent loop's, at the large batch."""

    def find(results: Figures) -> tuple[float, str]:
        rows = [
            _row(results, method="recap", runner=runner, precision=precision, batch=_batches(results)[0])
            for runner in results["options"]["runners"]
        ]
        best = min(rows, key=lambda row: row["ratio"][1])
        others = ", ".join(f"{row['runner']} {row['ratio'][1]:.3g}" for row in rows)
        return best["ratio"][1], f"{others}; {best['ms'][1]:.3g} ms"

    return find


def _single_over_loop(results: Figures) -> tuple[float, str]:
    row = _row(results, method="recap", runner="captured", precision="float32", batch=1)
    return row["ratio"][1], f"{row['ms'][1]:.3g} ms"


def _single_over_forward(precision: str) -> Callable[[Figures], tuple[float, str]]:
    def find(results: Figures) -> tuple[float, str]:
        mine = _row(results, method="recap", runner="captured", precision=precision, batch=1)["ms"][1]
        other = _row(results, method="no adaptation", precision=precision, batch=1)["ms"][1]
        return mine / other, f"{mine:.3g} ms over {other:.3g} ms"

    return find


def _fleet(place: int) -> Callable[[Figures], tuple[float, str]]:
    def find(results: Figures) -> tuple[float, str]:
        model = results["options"]["models"][place]
        rows = [row for row in results["rows"] if row["model"] == model and row["runner"].startswith("fleet")]
        best = max(rows, key=lambda row: row["faster"][1])
        return best["faster"][1], f"{best['runner']}, {best['precision']}: {best['images_per_second']:,.0f} images/s"

    return find


def _cpu(results: Figures) -> tuple[float, str]:
    row = {row["name"]: row for row in results["rows"]}["recap, sparing"]
    note = f"quartiles {row['ratio'][0]:.2f} to {row['ratio'][2]:.2f}; by work {row['work_ratio'][1]:.2f}; "
    return row["ratio"][1], f"{note}{row['selected']:.0%} of the {results['images']} images teach"


def _accuracy(results: Figures) -> tuple[float, str]:
    gaps = [abs(row["bf16"] - row["float32"]) for row in results["rows"] if row["method"] == "recap"]
    return max(gaps), f"the largest of {len(gaps)} differences"


def _corruptions(results: Figures) -> tuple[float, str]:
    rows = results["rows"].values()
    if any(row["theirs"] is None for row in rows):
        raise KeyError("imagecorruptions was not installed")
    return sum(row["theirs"] for row in rows) / sum(row["ours"] for row in rows), "all nineteen together"


GOALS = (
    Goal("ReCAP ÷ plain Tent loop, ResNet50-GN, batch 64, float32", "goals-resnet", _over_loop("float32"), 1.0),
    Goal("the same, bf16 ÷ the float32 loop", "goals-resnet", _over_loop("bf16"), 0.65),
    Goal("ReCAP ÷ plain Tent loop, ViT-B/16, batch 64, bf16 ÷ the float32 loop", "goals-vit", _over_loop("bf16"), 0.16),
    Goal("ReCAP captured ÷ plain Tent loop, batch 1, ResNet50-GN, float32", "goals-resnet", _single_over_loop, 0.25),
    Goal(
        "ReCAP captured ÷ eager forward without adaptation, batch 1, ResNet50-GN, float32",
        "goals-resnet",
        _single_over_forward("float32"),
        0.85,
    ),
    Goal("the same, ResNet50-GN, bf16", "goals-resnet", _single_over_forward("bf16"), 0.85),
    Goal("the same, ViT-B/16, bf16", "goals-vit", _single_over_forward("bf16"), 0.85),
    Goal("fleet of 64 streams × 1 image ÷ plain Tent loop at batch 1, ResNet50-GN", "fleet", _fleet(0), 25, True),
    Goal("the same, ViT-B/16", "fleet", _fleet(1), 25, True),
    Goal("loss share of a captured step, C = 1000", "loss", lambda found: (found["share"][1], ""), 0.005),
    Goal("on a CPU: ReCAP ÷ plain Tent loop, ResNet50-GN 64 px, batch 64", "cpu-real", _cpu, 0.95),
    Goal("accuracy, bf16 against float32, points", "accuracy", _accuracy, 0.3),
    Goal(
        "ReCAP ÷ Tent on the same layers, both eager steps of this library",
        "cost",
        lambda found: (found["step"]["recap, the same layers"] / found["step"]["tent"], ""),
        1.03,
    ),
    Goal(
        "memory of the loss over entropy's, MiB, B = 64, C = 1000",
        "cost",
        lambda found: (found["losses"]["mib_over_entropy"], ""),
        16.0,
    ),
    Goal("corruptions on the GPU ÷ imagecorruptions on its host, speed", "corruptions", _corruptions, 20, True),
)


def goals(folder: Path = DATA) -> str:
    lines = ["| what | goal | found | |", "| --- | --- | --- | --- |"]
    return "\n".join(lines + [goal.line(folder) for goal in GOALS])


def real(folder: Path) -> str:
    """What was measured on the CPU on real images."""
    if (results := load(folder, "cpu-real")) is None:
        return MISSING
    lines = ["| | ms (quartiles) | ÷ plain Tent | work, ms (quartiles) | ÷ plain Tent | images that teach |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for row in results["rows"]:
        cells = []
        for name in ("ms", "ratio", "work", "work_ratio"):
            low, middle, high = (f"{value:.2f}" if "ratio" in name else f"{value:,.0f}" for value in row[name])
            cells.append(f"{middle} ({low} to {high})")
        share = f"{row['selected']:.0%}" if "selected" in row else ""
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {share} |")
    return "\n".join([*lines, "", where(results)])


def where(results: Figures) -> str:
    busy = (
        ""
        if results.get("load") is None
        else f"; load average before and after: {results['load'][0]}, {results['load'][1]}"
    )
    rounds = results.get("rounds") or results.get("options", {}).get("rounds")
    return f"{results['machine']}, {results['threads']} threads, torch {results['torch']}, {rounds} rounds{busy}."


def table(name: str) -> Callable[[Path], str]:
    def shown(folder: Path) -> str:
        results = load(folder, name)
        return MISSING if results is None else f"{markdown(results)}\n\n{where(results)}"

    return shown


PARTS: dict[str, Callable[[Path], str]] = {
    "goals": goals,
    "cpu-real": real,
    **{name: table(name) for name in ("cpu-table", "cpu-classes", "cpu-batch", "cpu-streams")},
    **{name: table(name) for name in ("all-resnet", "all-vit", "share", "grow-classes", "grow-batch", "grow-streams")},
}


def filled(page: str, folder: Path = DATA) -> str:
    """The page with each part between its marks made anew."""
    for name, make in PARTS.items():
        start, stop = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found, rest = page.partition(start)
        if not found or stop not in rest:
            raise ValueError(f"the page has no place for {name}: {start} … {stop}")
        page = f"{before}{start}\n{make(folder)}\n{stop}{rest.partition(stop)[2]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    if parser.parse_args().docs:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print(goals())


if __name__ == "__main__":
    main()
