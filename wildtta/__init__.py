"""wildtta: classifiers that go on learning from the images they meet.

>>> import wildtta
>>> sorted(wildtta.methods())
['deyo', 'eata', 'eta', 'memo', 'recap', 'recap+deyo', 'recap+sar', 'sar', 'source', 'tent']
"""

from wildtta.adapter import Adapter, Report, adapt
from wildtta.core import Method
from wildtta.network import Network
from wildtta.recipes import methods, register
from wildtta.source import Fisher, Region

__version__ = "0.1.0"

__all__ = ["Adapter", "Fisher", "Method", "Network", "Region", "Report", "adapt", "methods", "register"]
