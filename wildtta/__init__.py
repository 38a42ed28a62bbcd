"""wildtta: classifiers that go on learning from the images they meet.

>>> import wildtta
>>> sorted(wildtta.methods())
['dda', 'deyo', 'eata', 'eta', 'memo', 'recap', 'recap+deyo', 'recap+eta', 'recap+sar', 'sar', 'source', 'tent']
"""

from wildtta.adapter import Adapter, adapt
from wildtta.common import Report
from wildtta.core import Method
from wildtta.fleets import Fleet, fleet
from wildtta.network import Network
from wildtta.recipes import methods, register
from wildtta.source import Fisher, Region

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Fisher",
    "Fleet",
    "Method",
    "Network",
    "Region",
    "Report",
    "adapt",
    "fleet",
    "methods",
    "register",
]
