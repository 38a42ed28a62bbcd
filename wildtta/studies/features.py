"""How the features of some classes come apart (Fig. 5 and 9): t-SNE, with numbers beside it."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wildtta.adapter import Adapter
from wildtta.bench.config import ConfigError
from wildtta.studies.base import Bench, Trial, rounded, trial
from wildtta.studies.draw import Ink, Picture, grid_of, panel
from wildtta.studies.grid import Grid, number
from wildtta.studies.study import Study, Summary

__all__ = ["STUDY", "separation"]

METHODS = ("deyo", "recap")
CLASSES, NEIGHBOURS = 8, 10


def run(bench: Bench) -> Summary:
    kind = bench.kinds(("fog",), all_of=("snow",))[0]
    images, each = bench.images(2000, 10_000), 40
    seed = bench.seeds()[0]
    rows: list[dict[str, Any]] = []
    maps: list[dict[str, Any]] = []
    for model in bench.models:
        name = bench.name_of(model)
        for method in METHODS:
            one = trial(method, method, "shift")
            about = {
                "model": model,
                "kind": kind,
                "images": images,
                "seed": seed,
                "each": each,
                "classes": CLASSES,
                "settings": bench.settings_of(one, model),
                "method": method,
            }
            found = bench.part(
                "features",
                f"{name}-{method}",
                about,
                partial(_follow, bench, one, model, kind, images, seed, each),
            )
            rows += [
                {"model": name, "method": method, "lr": bench.settings_of(one, model).get("lr"), **point}
                for point in found["numbers"]
            ]
            maps.append(
                {
                    "model": name,
                    "method": method,
                    "labels": found["labels"],
                    "maps": found["maps"],
                    "seen": [point["seen"] for point in found["numbers"]],
                }
            )
    return {"rows": rows, "maps": maps, "kind": kind, "images": images, "seeds": [seed]}


def separation(features: Tensor, labels: Tensor) -> dict[str, Any]:
    """The silhouette of the true classes, and how often most of the nearest others have an image's class (percent)."""
    from sklearn.metrics import silhouette_score

    features = features.double()
    distances = torch.cdist(features, features)
    distances.fill_diagonal_(torch.inf)
    nearest = distances.topk(min(NEIGHBOURS, len(features) - 1), largest=False).indices
    answers = torch.mode(labels[nearest], dim=-1).values
    return {
        "silhouette": rounded(silhouette_score(features.numpy(), labels.numpy())),
        "neighbours": rounded(100 * (answers == labels).double().mean()),
    }


def _follow(
    bench: Bench, one: Trial, model: str, kind: str, images: int | None, seed: int, each: int
) -> dict[str, Any]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ConfigError("the study of features needs scikit-learn: pip install 'wildtta[studies]'") from error

    probe, labels = bench.probe(model, kind, each * CLASSES, CLASSES)
    numbers: list[dict[str, Any]] = []
    found: list[Tensor] = []

    def look(adapter: Adapter, seen: int) -> None:
        state = adapter.state["stream"]["theta"]
        with torch.no_grad():
            parameters = adapter.method.layout.unpack(state)
            parts = [adapter.network.run(parameters, part) for part in probe.split(64)]
        logits = torch.cat([part[0] for part in parts]).float().cpu()
        features = torch.cat([part[1] for part in parts]).float().cpu()
        right = (logits.argmax(-1) == labels).float().mean()
        numbers.append({"seen": seen, "accuracy": rounded(100 * right), **separation(features, labels)})
        found.append(features)

    bench.follow(one, model, kind, images=images, seed=seed, points=2, look=look)
    maps = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for features in found:
            plane = TSNE(
                perplexity=min(30.0, (len(features) - 1) / 4), init="pca", random_state=0, n_jobs=1
            ).fit_transform(features.numpy())
            maps.append([[round(float(x), 2), round(float(y), 2)] for x, y in plane])
    return {"numbers": numbers, "maps": maps, "labels": labels.tolist()}


# -- showing it --------------------------------------------------------------------------------------------------------

_COLOURS = (4, 7, 3, 8, 1, 6, 9, 10)
_MARKS = "os^DvP<>"


def pictures(summary: Summary) -> dict[str, Picture]:
    models = list(dict.fromkeys(each["model"] for each in summary["maps"]))
    found = {}
    for model in models:
        mine = [each for each in summary["maps"] if each["model"] == model]
        name = "features" if len(models) == 1 else f"features-{model}"
        found[name] = Picture(
            (7.8, 0.4 + 2.6 * len(mine)),
            f"Features of {CLASSES} classes, {model}",
            partial(_draw, summary, mine),
            f"Features of {CLASSES} classes, {model}. t-SNE before, in the middle of and after a stream of "
            f"{summary['kind']} with label "
            "shift; a colour and a mark a class. The distances of t-SNE mean little: see the numbers.",
        )
    return found


def _draw(summary: Summary, maps: list[dict[str, Any]], figure: Any, ink: Ink) -> None:
    # a stream of a batch or two has no middle
    plots = grid_of(figure, len(maps), max(len(each["maps"]) for each in maps))
    for line, each in zip(plots, maps, strict=True):
        numbers = [row for row in summary["rows"] if (row["model"], row["method"]) == (each["model"], each["method"])]
        for axes, plane, row in zip(line, each["maps"], numbers, strict=False):
            panel(axes, ink, title=f"{each['method']}, {row['seen']:,} seen", grid=None)
            for place in range(CLASSES):
                mine = [point for point, label in zip(plane, each["labels"], strict=True) if label == place]
                axes.scatter(
                    [x for x, _ in mine],
                    [y for _, y in mine],
                    s=10,
                    linewidths=0,
                    alpha=0.85,
                    color=ink.line(_COLOURS[place]),
                    marker=_MARKS[place],
                )
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines["bottom"].set_visible(False)
            axes.set_xlabel(
                f"silhouette {number(row['silhouette'], 2)}, k-NN {number(row['neighbours'])} %",
                color=ink.text,
                fontsize=8.5,
            )


def tables(summary: Summary) -> list[Grid]:
    rows = [
        (
            row["model"],
            row["method"],
            f"{row['seen']:,}",
            number(row["silhouette"], 3),
            number(row["neighbours"]),
            number(row["accuracy"]),
        )
        for row in summary["rows"]
    ]
    return [
        Grid(
            "Separation of the classes, in the feature space itself",
            ("", "method", "images seen", "silhouette", f"{NEIGHBOURS}-NN accuracy, %", "accuracy of the head, %"),
            tuple(rows),
            f"{len(summary['maps'][0]['labels'])} images of {CLASSES} classes; the nearest others vote, each "
            "image left out itself.",
        )
    ]


def findings(summary: Summary) -> list[str]:
    found = []
    for each in summary["maps"]:
        rows = [row for row in summary["rows"] if (row["model"], row["method"]) == (each["model"], each["method"])]
        first, last = rows[0], rows[-1]
        found.append(
            f"{each['model']}, {each['method']}: silhouette {number(first['silhouette'], 3)} → "
            f"{number(last['silhouette'], 3)}, "
            f"k-NN accuracy {first['neighbours']:.1f} → {last['neighbours']:.1f} %, accuracy of the head on these "
            "images "
            f"{first['accuracy']:.1f} → {last['accuracy']:.1f} %."
        )
    return found


STUDY = Study(
    "features",
    "Do the classes come apart?",
    "A few classes' features before, in the middle of and after a stream: do they form tighter and better "
    "separated groups?",
    "more compact and more distinct classes with ReCAP than with DeYO, and sooner, shown by t-SNE alone (Fig. 5 "
    "and 9, snow, ResNet50-GN).",
    run,
    pictures,
    tables,
    findings,
)
