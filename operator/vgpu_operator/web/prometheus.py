"""Asks a Prometheus for the use of devices and claims, over its HTTP API."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from vgpu_client.credentials import TokenFile
from vgpu_client.errors import LoginError
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web.usage import (
    CLAIM_CORES,
    CLAIM_MEMORY,
    DEVICE_CORES,
    DEVICE_MEMORY,
    FleetUsage,
    Sample,
    UsageUnread,
    usage_of,
)

TIMEOUT_S = 10.0
LARGEST_ANSWER = 64 << 20
"""The largest response in bytes; 40,000 devices take 8 MiB."""
_LARGEST_ERROR = 200
_DEVICE = "device_uuid"
_PART = "namespace, claim, pod, container, device_uuid"
# During an update, two agents may report the same device, so the maximum of each series is taken
# before anything is summed.
_BY = {DEVICE_MEMORY: _DEVICE, DEVICE_CORES: _DEVICE, CLAIM_MEMORY: _PART, CLAIM_CORES: _PART}
_PEAKS_S = 120.0
"""The peaks of an hour are read less often than the rest: they cost more, and change slowly."""


class Prometheus:
    """A client of a Prometheus, or of anything that serves its HTTP API.

    Args:
        session: Sends the requests.
        url: The URL, without `/api/v1`.
        labels: Labels that the cluster's series have there.
        token: The file with a bearer token, or None.
        tls: The trusted authorities; None: those of the system.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        labels: Mapping[str, str],
        token: TokenFile | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._session = session
        self._url = url
        self._labels = labels
        self._token = token
        self._tls = tls
        self._peaks: Mapping[ClaimKey, float] = {}
        self._peaks_until = 0.0

    async def usage(self) -> FleetUsage:
        """Return the current usage.

        Raises:
            UsageUnread: Prometheus does not answer, or refuses.
        """
        queries = (f"max by ({by}) ({self.series(name)})" for name, by in _BY.items())
        found = await asyncio.gather(*map(self.query, queries))
        samples = dict(zip(_BY, found, strict=True))
        problem = "" if samples[DEVICE_MEMORY] else f"Prometheus has no series {DEVICE_MEMORY}"
        peaks = await self._current_peaks()
        usage = await asyncio.to_thread(usage_of, samples, problem=problem)
        return replace(usage, peaks=peaks)

    async def _current_peaks(self) -> Mapping[ClaimKey, float]:
        now = asyncio.get_running_loop().time()
        if now >= self._peaks_until:
            self._peaks = await self._read_peaks()
            self._peaks_until = now + _PEAKS_S
        return self._peaks

    async def _read_peaks(self) -> Mapping[ClaimKey, float]:
        # The sum of the containers' peaks is at least the peak of their sum. What did not run an
        # hour ago has had no hour to be idle.
        cores = self.series(CLAIM_CORES)
        found = await self.query(
            f"sum by (namespace, claim) (max by ({_PART}) (max_over_time({cores}[1h]))) "
            f"and on (namespace, claim) count by (namespace, claim) ({cores} offset 1h)"
        )
        return {
            ClaimKey(each.labels.get("namespace", ""), each.labels.get("claim", "")): round(
                100 * each.value, 1
            )
            for each in found
        }

    def summed(self, name: str, **labels: str) -> str:
        """Return the expression for the sum of a metric over the series that have these labels."""
        return f"sum(max by ({_BY[name]}) ({self.series(name, **labels)}))"

    def series(self, name: str, **labels: str) -> str:
        """Return the selector of a metric's series that have these labels."""
        wanted = {**self._labels, **labels}.items()
        matchers = (f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in wanted)
        return f"{name}{{{','.join(matchers)}}}"

    async def query(self, expression: str) -> list[Sample]:
        """Return the current value of each series of an expression.

        Raises:
            UsageUnread: Prometheus does not answer, or refuses.
        """
        found = await self._result("query", {"query": expression}, "vector")
        try:
            return [Sample(dict(each["metric"]), float(each["value"][1])) for each in found]
        except (LookupError, TypeError, ValueError) as error:
            raise UsageUnread(f"Prometheus answers something else: {error!r}") from error

    async def query_range(
        self, expression: str, *, start: int, end: int, step_s: int
    ) -> Mapping[int, float]:
        """Return the values of an expression that has one series, by Unix time.

        Raises:
            UsageUnread: Prometheus does not answer, or refuses.
        """
        span = {"start": str(start), "end": str(end), "step": str(step_s)}
        found = await self._result("query_range", {"query": expression, **span}, "matrix")
        try:
            values = [(int(at), float(value)) for each in found for at, value in each["values"]]
        except (LookupError, TypeError, ValueError) as error:
            raise UsageUnread(f"Prometheus answers something else: {error!r}") from error
        return {at: value for at, value in values if value >= 0}

    async def _result(
        self, path: str, parameters: Mapping[str, str], kind: str
    ) -> Sequence[Mapping[str, Any]]:
        try:
            headers = {} if self._token is None else await self._token.headers()
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._session.post(
                    f"{self._url}/api/v1/{path}",
                    data=parameters,
                    headers=headers,
                    allow_redirects=False,  # the token is for this address alone
                    ssl=True if self._tls is None else self._tls,
                ) as answer,
            ):
                status, body = answer.status, await _read(answer)
        except TimeoutError as error:
            raise UsageUnread(f"Prometheus does not answer within {TIMEOUT_S:.0f} s") from error
        except (aiohttp.ClientError, OSError, LoginError) as error:
            raise UsageUnread(f"Prometheus does not answer: {error}") from error
        document = await asyncio.to_thread(_parsed, body)
        if status != 200 or document.get("status") != "success":
            said = str(document.get("error") or f"status {status}")[:_LARGEST_ERROR]
            raise UsageUnread(f"Prometheus refuses: {said}")
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType") == kind:
            found = data.get("result")
            if isinstance(found, list):
                return found
        raise UsageUnread(f"Prometheus answers something else than a {kind}")


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for some in answer.content.iter_any():
        body += some
        if len(body) > LARGEST_ANSWER:
            raise UsageUnread(f"Prometheus answers more than {LARGEST_ANSWER >> 20} MiB")
    return bytes(body)


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
