"""How things are called and ordered in a report: as in the paper."""

from __future__ import annotations

from collections.abc import Iterable

from wildtta.corruptions import CORRUPTIONS, EXTRA, FAMILIES

__all__ = [
    "CLEAN",
    "family",
    "in_order",
    "method_name",
    "method_order",
    "model_names",
    "scenario_in_short",
    "scenario_name",
    "short",
    "title",
]

CLEAN = "clean"

_SHORT = {
    "gaussian_noise": "Gauss.",
    "shot_noise": "Shot",
    "impulse_noise": "Impul.",
    "defocus_blur": "Defoc.",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Brit.",
    "contrast": "Contr.",
    "elastic_transform": "Elastic",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
    "speckle_noise": "Speckle",
    "gaussian_blur": "G. blur",
    "spatter": "Spatter",
    "saturate": "Satur.",
    CLEAN: "Clean",
}
_METHODS = {
    "source": "Source",
    "memo": "MEMO",
    "dda": "DDA",
    "tent": "Tent",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "deyo": "DeYO",
    "recap": "ReCAP",
    "recap+eta": "ReCAP+ETA",
    "recap+sar": "ReCAP+SAR",
    "recap+deyo": "ReCAP+DeYO",
}
_SCENARIOS = {
    "mild": "Mild",
    "limited": "Limited data: one image at a time",
    "mixed": "Mixed domains",
    "shift": "Imbalanced label shift",
    "continual": "Continual",
    "gradual": "Gradual",
    "correlated": "Correlated labels",
}
_FAMILY = {kind: name.capitalize() for name, kinds in FAMILIES.items() for kind in kinds}


def short(kind: str) -> str:
    """The paper's short name of a corruption."""
    return _SHORT.get(kind, kind)


def title(kind: str) -> str:
    """A corruption's name in words."""
    return kind.replace("_", " ").replace("jpeg", "JPEG")


def family(kind: str) -> str:
    """The heading that a corruption's column stands under."""
    return _FAMILY.get(kind, "Further" if kind in EXTRA else "")


def in_order(kinds: Iterable[str]) -> list[str]:
    """The paper's order; then the four further corruptions, others as they come, and clean images last."""
    known = [*CORRUPTIONS, *EXTRA]
    found = list(dict.fromkeys(kinds))
    others = [kind for kind in found if kind not in known and kind != CLEAN]
    return [*(kind for kind in known if kind in found), *others, *(kind for kind in found if kind == CLEAN)]


def method_name(method: str) -> str:
    return _METHODS.get(method, method)


def method_order(method: str) -> int:
    """The paper's order; unknown methods come last, in the order given."""
    order = list(_METHODS)
    return order.index(method) if method in order else len(order)


def model_names(specs: Iterable[str]) -> dict[str, str]:
    """Models as headings: without library and tag of weights, where that leaves them apart.

    >>> model_names(["timm:resnet50_gn.a1h_in1k", "torchvision:resnet50"])
    {'timm:resnet50_gn.a1h_in1k': 'resnet50_gn', 'torchvision:resnet50': 'resnet50'}
    """
    specs = sorted(set(specs))
    tagged = [spec.removeprefix("timm:").removeprefix("torchvision:") for spec in specs]
    bare = [
        name.partition(".")[0] if spec.startswith("timm:") else name for spec, name in zip(specs, tagged, strict=True)
    ]
    return {
        spec: next(names[place] for names in (bare, tagged, specs) if names.count(names[place]) == 1)
        for place, spec in enumerate(specs)
    }


def scenario_in_short(scenario: str) -> str:
    return scenario_name(scenario).partition(":")[0]


def scenario_name(scenario: str) -> str:
    return _SCENARIOS.get(scenario, scenario)
