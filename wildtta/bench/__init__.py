"""The benchmark: a plan of cells → results on disk, one file a cell.

from wildtta.bench import Config, run
run(Config(models=["glyph-resnet"], data=["glyphs"], methods=["source", "recap"]), "runs/first")
"""

from wildtta.bench.config import Config
from wildtta.bench.engine import Listener, Summary, preflight, run
from wildtta.bench.plan import Cell, plan

__all__ = ["Cell", "Config", "Listener", "Summary", "plan", "preflight", "run"]
