"""The step as one compiled graph."""

from __future__ import annotations
from wildtta.runners.eager import Eager


class Compiled(Eager):
    pass
