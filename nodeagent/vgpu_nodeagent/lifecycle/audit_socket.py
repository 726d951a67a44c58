"""A socket on which the agent answers audits and shows usage; only root on the node can open it.

Whoever may exec into the agent's pod may use it, so the API server authenticates and authorizes
each question, and no port of the node is open for it. The question is one line: `audit` or `usage`.
For an audit the agent looks twice, a moment apart, and answers with what it found both times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import orjson

from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.lifecycle.audit import Finding, findings, gather
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.usage import Usage

logger = logging.getLogger(__name__)

SOCKET = "audit.sock"
AUDIT = "audit"
USAGE = "usage"
_TWICE_S = 2.0
"""Seconds between the two looks: a container start or a pod's end is over by then."""
_LIMIT = 16 << 20
_QUESTION_S = 5.0


class Reading(Protocol):
    """Holds the last reading of usage; the metrics' collector."""

    @property
    def usage(self) -> Usage:
        """Return the last reading."""


class AuditSocket:
    """Serves audits and the last usage reading of this node.

    Args:
        node: The node's records.
        path: The path of the socket.
        reading: Holds the last usage reading; None if nothing is measured.
        between_s: Seconds between the two looks of an audit.
    """

    def __init__(
        self,
        node: LocalNode,
        path: Path,
        *,
        reading: Reading | None = None,
        between_s: float = _TWICE_S,
    ) -> None:
        self._node = node
        self._path = path
        self._reading = reading
        self._between_s = between_s
        self._answering: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Serve until cancelled. If the socket cannot be created, log it and return.

        From Python 3.12 on, closing a server waits for its clients. A client that reads nothing
        would keep this agent from ending and its successor from serving, so it is disconnected.
        """
        try:
            server = await self.listen()
        except OSError as error:
            logger.warning("audits are not available: %s: %s", self._path, error)
            return
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for writer in self._answering:
                writer.transport.abort()

    async def listen(self) -> asyncio.Server:
        """Create the socket, replacing one that a killed agent left behind.

        Raises:
            OSError: It cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        former = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._answer, self._path)
        finally:
            os.umask(former)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.add(writer)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_QUESTION_S):
                    question = (await reader.readline()).decode(errors="replace").strip()
                answer = self.usage() if question == USAGE else await self.audit()
                writer.write(orjson.dumps(answer))
                await writer.drain()
        finally:
            self._answering.discard(writer)
            writer.close()

    def usage(self) -> dict[str, Any]:
        """Return the node's name and the last reading of its devices and containers."""
        usage = Usage() if self._reading is None else self._reading.usage
        return {
            "node": self._node.name,
            "devices": {uuid: asdict(used) for uuid, used in usage.devices.items()},
            "containers": [asdict(used) for used in usage.containers],
        }

    async def audit(self) -> dict[str, Any]:
        """Return the node's name, the number of records compared, and the findings."""
        try:
            first = findings(gather(self._node))
            if first:
                await asyncio.sleep(self._between_s)
            evidence = gather(self._node)
        except KubeletUnavailable as error:
            return {"node": self._node.name, "error": str(error)}
        both: Sequence[Finding] = [found for found in findings(evidence) if found in first]
        return {
            "node": self._node.name,
            "leases": len(evidence.state.slot_allocations),
            "claims": sum(not held.closed for held in evidence.state.claim_allocations.values()),
            "findings": [asdict(found) for found in both],
        }


async def query(path: Path, question: str = AUDIT) -> dict[str, Any]:
    """Ask the agent `AUDIT` or `USAGE` and return its response.

    Raises:
        OSError: No agent listens on the socket.
        ValueError: The response cannot be read.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=_LIMIT)
    try:
        writer.write(f"{question}\n".encode())
        await writer.drain()
        answer: dict[str, Any] = orjson.loads(await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer
