"""Running the service: logs, the server, signals."""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from wildtta.bench.config import ConfigError
from wildtta.serve.app import create_app
from wildtta.serve.logs import set_up
from wildtta.serve.settings import Settings

__all__ = ["serve"]

_GRACE = 30  # seconds that requests under way have after SIGTERM
_SWITCH = 0.0005  # seconds a thread may keep the interpreter: the worker must not wait for the event loop, nor it for the worker


def serve(settings: Settings) -> None:
    """Listen until SIGTERM or Ctrl-C; then finish what was begun, and put every stream on disk."""
    app = create_app(settings)
    service = app.state.service
    if settings.operator_key is None:
        print(f"operator key (made for this run): {service.operator_key}", file=sys.stderr, flush=True)
    listening = _listen(settings)
    set_up()
    sys.setswitchinterval(_SWITCH)
    log = logging.getLogger("wildtta.serve")
    host, port = listening.getsockname()[:2]
    log.info("listening", extra={"host": host, "port": port, "streams": len(service.records)})
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=_connections(settings),
        h11_max_incomplete_event_size=64 * 2**10,
    )
    uvicorn.Server(config).run([listening])


def _connections(settings: Settings) -> int:
    """How many may be open. Requests are turned away more politely long before."""
    return 4 * settings.max_waiting + 64


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
    return found
