"""Fills the README's tables of results, from kept figures.

wildtta demo --out runs/demo && python scripts/readme_tables.py --keep runs/demo     # keeps the demo's averages
python scripts/readme_tables.py                                                      # writes the tables
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DEMO, REAL, README = ROOT / "docs/data/demo.json", ROOT / "docs/data/tiny_imagenet.json", ROOT / "README.md"
SCENARIOS = {"limited": "one by one", "mixed": "mixed", "shift": "label shift"}
METHODS = {"source": "not adapting", "tent": "Tent", "eta": "ETA", "eata": "EATA", "sar": "SAR", "deyo": "DeYO", "recap": "ReCAP",
           "recap+eta": "ReCAP+ETA", "recap+sar": "ReCAP+SAR", "recap+deyo": "ReCAP+DeYO"}  # fmt: skip


def averages(run: Path) -> dict[str, Any]:
    """Over the corruptions of a run: "scenario|model|method" → accuracy."""
    found = defaultdict(list)
    for path in (run / "cells").glob("*.json"):
        cell = json.loads(path.read_text())
        place = cell["cell"]
        result = cell["result"]
        shown = [entry["top1"] for entry in result["domains"].values()]
        found[f"{place['scenario']}|{place['model']}|{place['method']}"] += shown
    return {key: round(sum(shown) / len(shown), 4) for key, shown in sorted(found.items())}


def demo(kept: dict[str, float]) -> str:
    models = ("glyph-resnet", "glyph-vit")
    columns = [(scenario, model) for scenario in SCENARIOS for model in models]
    rows = [
        "| | "
        + " | ".join(f"{SCENARIOS[scenario]}, {model.removeprefix('glyph-')}" for scenario, model in columns)
        + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for method, name in METHODS.items():
        shown = [f"{kept[f'{scenario}|{model}|{method}']:.1f}" for scenario, model in columns]
        rows.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(rows)


def real(results: dict[str, Any]) -> str:
    """ResNet50-GN on Tiny-ImageNet, shuffled streams, without and with the guard."""
    kinds = {"gaussian_noise": "noise", "defocus_blur": "blur", "contrast": "contrast"}
    rows = ["| | " + " | ".join(kinds.values()) + " |", "| --- |" + " --- |" * len(kinds)]
    for method, name in METHODS.items():
        shown = []
        for kind in kinds:
            pair = [
                results.get(f"resnet50_gn_64|{kind}|shuffled|{method}|x1|10000|{guard}") for guard in ("plain", "guard")
            ]
            texts = [f"{cell['accuracy']:.1f}" for cell in pair if cell]
            shown.append(" / ".join(texts))
        if all(shown):
            rows.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(rows)


def filled(page: str, name: str, table: str) -> str:
    before, _, rest = page.partition(f"<!-- {name} -->")
    _, found, after = rest.partition(f"<!-- /{name} -->")
    if not found:
        raise SystemExit(f"the README lacks <!-- {name} --> or <!-- /{name} -->")
    return f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"


def tables(page: str) -> str:
    page = filled(page, "demo", demo(json.loads(DEMO.read_text())))
    return filled(page, "real", real(json.loads(REAL.read_text())))


if __name__ == "__main__":
    if "--keep" in sys.argv:
        DEMO.write_text(json.dumps(averages(Path(sys.argv[-1])), indent=1) + "\n")
    else:
        README.write_text(tables(README.read_text()))
