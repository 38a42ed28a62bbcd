"""The outermost layer: turns requests away when there are too many, counts and logs the others."""

from __future__ import annotations

import json
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wildtta.serve.metrics import Metrics
from wildtta.serve.problems import busy

__all__ = ["Gate"]

_log = logging.getLogger("wildtta.serve.access")
_ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})  # whoever watches the service is answered even then
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Gate:
    """At most `most` requests are inside; those beyond cost next to nothing, so that the others go on."""

    def __init__(self, app: ASGIApp, metrics: Metrics, most: int) -> None:
        self.app, self.metrics, self.most = app, metrics, most
        self.inside = 0
        full = busy()
        self._full = json.dumps(full.content).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.inside >= self.most and scope["path"] not in _ALWAYS:
            self.metrics.request("turned away", 503, 0.0)
            await self._turn_away(send)
            return
        begun, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        self.inside += 1
        try:
            await self.app(scope, receive, watched)
        finally:
            self.inside -= 1
            seconds = time.perf_counter() - begun
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.request(route, status, seconds)
            if route not in _ALWAYS:
                level = logging.ERROR if status == 500 else logging.INFO
                extra = {"method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 1)}
                _log.log(level, "request", extra=extra)

    async def _turn_away(self, send: Send) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._full)).encode()),
            (b"retry-after", b"1"),
            *_HEADERS,
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": self._full})
