"""Import the package `imagecorruptions` with what today's numpy, scipy, setuptools and scikit-image took from it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import Any


def imagecorruptions() -> Any:
    """The module, or None where it (or something it needs) is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("imagecorruptions", "cv2", "skimage", "scipy")):
        return None
    import numpy as np
    import scipy.ndimage
    import skimage.filters

    if not hasattr(np, "float_"):
        np.float_ = np.float64  # type: ignore[attr-defined]
    missing = []
    if "pkg_resources" not in sys.modules:  # new setuptools have none, and an old one's fails on new Pythons
        resources: Any = types.ModuleType("pkg_resources")
        resources.resource_filename = lambda name, path: os.path.join(os.path.dirname(sys.modules[name].__file__), path)
        sys.modules["pkg_resources"] = resources
        missing.append("pkg_resources")
    if "scipy.ndimage.interpolation" not in sys.modules:
        interpolation: Any = types.ModuleType("scipy.ndimage.interpolation")
        interpolation.map_coordinates = scipy.ndimage.map_coordinates
        sys.modules["scipy.ndimage.interpolation"] = interpolation
        missing.append("scipy.ndimage.interpolation")
    try:
        package = importlib.import_module("imagecorruptions")
        functions = importlib.import_module("imagecorruptions.corruptions")
    finally:
        for name in missing:  # leave no pretence behind for others to find
            del sys.modules[name]

    def gaussian(image: Any, sigma: Any, multichannel: bool = False, **options: Any) -> Any:
        return skimage.filters.gaussian(image, sigma=sigma, channel_axis=-1 if multichannel else None, **options)

    functions.gaussian = gaussian
    return package
