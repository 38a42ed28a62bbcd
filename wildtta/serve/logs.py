"""Logs as JSON, a line each: what happened, when, and to which stream; never a token or an image."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

__all__ = ["set_up"]

_USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        content: dict[str, Any] = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        content |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def set_up(level: str = "info") -> None:
    """Send the logs of the service and of its server to the standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    for name in ("wildtta", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
