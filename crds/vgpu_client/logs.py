"""How every process of ours logs: as text or JSON, at a level that the configuration changes live.

A line of JSON has `time`, `level`, `logger`, `message`, and the fields of what it is about
(`claim`, `pod`, `node`, `decision` …), so that no program has to parse a sentence. That a library
answered a probe is not logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pythonjsonlogger.orjson import OrjsonFormatter

from vgpu_api.config import load_cluster_config
from vgpu_api.errors import BadInput

logger = logging.getLogger(__name__)

LOOK_S = 5.0
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CHATTY = (
    "aiohttp.access",  # a line for every request that is answered
    "kopf.activities",  # four for every probe of the kubelet's
    "kopf.objects",  # one for every admission review
)


class LogFormat(StrEnum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


def configure(format_: LogFormat, level: str) -> None:
    """Log to stderr from now on.

    Args:
        format_: How.
        level: Name of a logging level: what is logged at least.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if format_ is LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class LiveLevel:
    """Keeps the level as the configuration file says, for as long as the process runs.

    A file that cannot be used changes nothing, and is reported once: who edits a ConfigMap sees the
    mistake in the log, and the process goes on.

    Args:
        path: The cluster's configuration.
        default: The level where it names none.
        sleep: Waits between looks.
    """

    def __init__(
        self,
        path: Path,
        default: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._default = default
        self._sleep = sleep
        self._content: bytes | None = None

    async def run(self) -> NoReturn:
        """Look again and again: the kubelet replaces a mounted ConfigMap's files."""
        while True:
            self.look()
            await self._sleep(LOOK_S)

    def look(self) -> None:
        """Take up what the file says, if it has changed."""
        try:
            content = self._path.read_bytes()
            if content == self._content:
                return
            is_first, self._content = self._content is None, content
            level = load_cluster_config(self._path).logging.level or self._default
        except (BadInput, OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            logger.warning("configuration %s is not taken up: %s", self._path, error)
            return
        root = logging.getLogger()
        if logging.getLevelName(root.level) != level:
            root.setLevel(level)
            logger.warning("logging at level %s from now on", level)
        elif not is_first:
            logger.warning("configuration %s has changed: all but logging.level counts from the "
                           "next start on", self._path)  # fmt: skip


class _Json(OrjsonFormatter):
    """One object a line."""

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
        """Put the time in front, in UTC."""
        moment = datetime.fromtimestamp(record.created, UTC)
        log_data["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        super().add_fields(log_data, record, message_dict)
