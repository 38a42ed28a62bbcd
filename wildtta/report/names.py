"""How things are called and ordered in a report: as in the paper."""

from __future__ import annotations

from collections.abc import Iterable

from wildtta.corruptions import CORRUPTIONS, EXTRA, FAMILIES

__all__ = ["CLEAN", "family", "in_order", "method_name", "method_order", "scenario_name", "short", "title"]

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


def scenario_name(scenario: str) -> str:
    return _SCENARIOS.get(scenario, scenario)
