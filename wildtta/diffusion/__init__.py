"""Diffusion models, for DDA: images go back to the source domain, and the classifier stays as it is.

Importing this needs nothing but torch; loading a model needs diffusers (`pip install "wildtta[dda]"`).
"""

from wildtta.diffusion.guided import load_guided
from wildtta.diffusion.model import GLYPHS, Diffusion, DiffusionError, Settings, load
from wildtta.diffusion.restore import OnDisk, diffuse_back

__all__ = ["GLYPHS", "Diffusion", "DiffusionError", "OnDisk", "Settings", "diffuse_back", "load", "load_guided"]
