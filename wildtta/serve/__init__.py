"""`wildtta serve`: a service whose model learns for each stream of images on its own.

    HTTP (asyncio)                         one worker thread                   one writer thread
    routes → access → images → queue  →    worker → engine (fleets)    →       storage
                                           ↘ health, metrics

Whatever a client sends is checked before it reaches the queue; the worker alone touches the models; the writer alone touches
the disk, so that a slow or full one delays nobody's prediction.
"""

from wildtta.serve.app import create_app
from wildtta.serve.run import serve
from wildtta.serve.settings import Settings

__all__ = ["Settings", "create_app", "serve"]
