"""Fill the tables of `docs/studies.md` and `docs/results.md` from the studies' summaries, which hold every number.

    python scripts/fill_docs.py                                        # from docs/data/studies and docs/data/results
    python scripts/fill_docs.py --studies runs/studies                 # copies summaries and figures from a run first
    python scripts/fill_docs.py --results runs/gpu/published-here      # the same, from what `results_gpu.py --publish` wrote

A page says `<!-- study: NAME -->`, …, `<!-- /study -->`; what is between is written here: what was found, figures, tables, command.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from statistics import mean

from wildtta.report import published
from wildtta.report.table import markdown_text
from wildtta.studies import STUDIES, read_summary
from wildtta.studies.base import METHODS
from wildtta.studies.grid import Grid, number
from wildtta.studies.results import REGIONAL

DOCS = Path(__file__).parent.parent / "docs"
STREAMS = DOCS / "data" / "tiny_imagenet.json"
PAGES = {"studies.md": "studies", "results.md": "results"}
LARGEST = 250_000  # bytes of a figure in the repository
MISSING = "*Not run yet.*"


def part(folder: Path, page: str, name: str) -> str:
    """What stands between the marks of one study; results of several kinds are told apart by what follows a dash."""
    if name == "paper":
        return paper().markdown().strip()
    if name == "streams":
        return streams(json.loads(STREAMS.read_text()))
    summary = read_summary(folder / name)
    if summary is None:
        return MISSING
    study = STUDIES[summary["study"]]
    made = summary["made"]
    lines = [f"- {markdown_text(point)}" for point in study.findings(summary)]
    for picture in study.pictures(summary):
        file = DOCS / "images" / page / f"{name}-{picture}.svg"
        if file.exists():
            lines += ["", f"![{study.pictures(summary)[picture].describe}](images/{page}/{file.name})"]
    for grid in study.tables(summary):
        lines += ["", grid.markdown().strip()]
    failures = f"; {len(made['failures'])} streams failed" if made["failures"] else ""
    models = ", ".join(f"{model} ({digest[:8]})" for model, digest in made["models"].items())
    lines += [
        "",
        f"`{made['command']}` · seeds {', '.join(map(str, summary.get('seeds', []))) or '—'} · {models} · {made['device']}, "
        f"{made['precision']}, wildtta {made['wildtta']}, torch {made['torch']}{failures}",
    ]
    return "\n".join(lines)


def paper() -> Grid:
    """The paper's averages at severity 5."""
    tables = {
        "single images": (published.LIMITED, -1),
        "mixed": (published.MIXED, 0),
        "label shift": (published.SHIFT, -1),
    }
    columns = [(network, name) for network in ("resnet", "vit") for name in tables]
    names = {"resnet": "ResNet50-GN", "vit": "ViT-B/16"}
    rows = []
    for method in METHODS:
        cells = [tables[name][0][network].get(method) for network, name in columns]
        if any(cells):
            found = [
                None if row is None else row[tables[name][1]] for row, (_, name) in zip(cells, columns, strict=True)
            ]
            rows.append((method, *map(number, found)))
    heading = ("", *(f"{names[network]}, {name}" for network, name in columns))
    return Grid(
        "ImageNet-C, severity 5, means of 15 corruptions and 3 runs",
        heading,
        tuple(rows),
        best=tuple(range(1, len(heading))),
    )


def streams(cells: dict[str, dict[str, float]]) -> str:
    """Whole streams of 10,000 photographs at the published rates, without a guard: what was found, and a table."""
    found = {}
    for key, cell in cells.items():
        model, kind, order, method, rate, images, guard = key.split("|")
        if (rate, images, guard) == ("x1", "10000", "plain"):
            found.setdefault(model, {}).setdefault(method, {})[kind, order] = cell["accuracy"]
    lines, heading, columns = [], [""], []
    for model, by_method in found.items():
        source = by_method["source"]
        means = {method: mean(own.values()) for method, own in by_method.items() if own.keys() == source.keys()}
        ours = max((method for method in means if method in REGIONAL), key=means.__getitem__)
        rival = max((method for method in means if method not in (*REGIONAL, "source")), key=means.__getitem__)
        above = {name: sum(by_method[name][place] > source[place] for place in source) for name in (ours, rival)}
        lines.append(
            f"- {model}: {ours} {means[ours]:.1f} %, above the source on {above[ours]} of {len(source)} streams; the best entropy "
            f"method, {rival}, {means[rival]:.1f} %, on {above[rival]}; source {means['source']:.1f} %."
        )
        for kind in dict.fromkeys(kind for kind, _ in source):
            heading.append(f"{model}, {kind.replace('_', ' ')}")
            columns.append([(model, place) for place in source if place[0] == kind])
        heading.append(f"{model}, mean")
        columns.append([(model, place) for place in source])
    rows = []
    for method in (name for name in METHODS if any(name in by_method for by_method in found.values())):
        values = [[found[model].get(method, {}).get(place) for model, place in column] for column in columns]
        rows.append((method, *(number(None if None in own else mean(own)) for own in values)))
    note = "Accuracy (%), the mean of a shuffled stream and one ordered by class; no guard, published rates."
    grid = Grid("Whole streams", tuple(heading), tuple(rows), note, best=tuple(range(1, len(heading))))
    return "\n".join([*lines, "", grid.markdown().strip()])


def filled(text: str, folder: Path, page: str) -> str:
    """A page with its parts written anew."""

    def write(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{part(folder, page, found[2])}\n\n{found[3]}"

    return re.sub(r"(<!-- study: (\S+) -->).*?(<!-- /study -->)", write, text, flags=re.DOTALL)


def copy(source: Path, target: Path, images: Path) -> None:
    """Summaries and figures of a run, where they are small enough for a repository."""
    for path in sorted(source.glob("*/summary.json")):
        name = path.parent.name
        (target / name).mkdir(parents=True, exist_ok=True)
        images.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name / "summary.json")
        for figure in path.parent.glob("*.svg"):
            if figure.stat().st_size <= LARGEST:
                shutil.copyfile(figure, images / f"{name}-{figure.name}")
            else:
                print(f"{figure} has {figure.stat().st_size:,} bytes and was left out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=Path)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    for name, page in PAGES.items():
        source = getattr(arguments, page)
        if source is not None:
            copy(source, DOCS / "data" / page, DOCS / "images" / page)
        path = DOCS / name
        path.write_text(filled(path.read_text(), DOCS / "data" / page, page))


if __name__ == "__main__":
    main()
