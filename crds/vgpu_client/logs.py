"""Logging for all our processes: text or JSON, at a level that the configuration can change live.

A line of JSON has `time`, `level`, `logger`, `message`, and fields for its subject (`claim`, `pod`,
`node`, `decision` …), so that no program has to parse a sentence. Libraries' messages about
answered probes are not logged.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pythonjsonlogger.orjson import OrjsonFormatter

logger = logging.getLogger(__name__)

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CHATTY = (
    "aiohttp.access",  # one line per request
    "kopf.activities",  # four lines per kubelet probe
    "kopf.objects",  # one line per admission review
)


class LogFormat(StrEnum):
    """The form of log lines."""

    TEXT = "text"
    JSON = "json"


def configure(format_: LogFormat, level: str) -> None:
    """Log to stderr from now on.

    Args:
        format_: The form of the lines.
        level: The lowest logging level that is logged.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if format_ is LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def take_level(level: str) -> None:
    """Log at this level from now on."""
    root = logging.getLogger()
    if logging.getLevelName(root.level) != level:
        root.setLevel(level)
        logger.warning("logging at level %s from now on", level)


class _Json(OrjsonFormatter):
    """Formats a record as one JSON object per line."""

    def __init__(self) -> None:
        super().__init__(
            "{levelname}{name}{message}",
            style="{",
            rename_fields={"levelname": "level", "name": "logger"},
        )

    def add_fields(
        self,
        log_data: dict[str, Any],
        record: logging.LogRecord,
        message_dict: dict[str, Any],
    ) -> None:
        """Put the time first, in UTC."""
        timestamp = datetime.fromtimestamp(record.created, UTC)
        log_data["time"] = timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        super().add_fields(log_data, record, message_dict)
