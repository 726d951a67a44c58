"""Asks the agents for the use of devices and claims: what Prometheus would scrape, without it.

The agents' certificates name nothing that could be checked, so whoever holds the address of an
agent's pod gets the token that is shown. It is therefore a token of an account of its own, which
may read metrics and nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_NAMESPACE
from vgpu_api.resources import PODS, SERVICE_ACCOUNTS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError
from vgpu_client.transport import Object
from vgpu_operator.web.usage import METRICS, FleetUsage, Sample, UsageUnread, usage_of

ACCOUNT = "vgpu-web-metrics"
"""The ServiceAccount whose token the agents are shown."""
MOST_AGENTS = 256
"""With more, the page asks none: that is the work of a Prometheus."""
TIMEOUT_S = 5.0
LARGEST_ANSWER = 8 << 20
_AT_ONCE = 16
_TOKEN_S = 3600
_LABELS = "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=nodeagent"


@dataclass(frozen=True, slots=True)
class _Agent:
    """A running agent: its node, and the address of its metrics."""

    node: str
    address: str


class AgentMetrics:
    """Reads the metrics of all agents of a small fleet.

    Args:
        api: A client that may list pods and create tokens of the account.
        session: Sends the requests.
        clock: The time.
    """

    def __init__(self, api: Api, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._api = api
        self._session = session
        self._clock = clock
        self._token = ""
        self._renew_at = 0.0
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    async def usage(self) -> FleetUsage:
        """Return the current usage.

        Raises:
            UsageUnread: There are no agents, or too many, or they cannot be queried.
        """
        agents, token = await self._reached()
        answers = await asyncio.gather(*(self._scraped(each, token) for each in agents))
        failed = [each for each in answers if isinstance(each, str)]
        samples = [each for each in answers if not isinstance(each, str)]
        problem = ""
        if failed:
            problem = f"{len(failed)} of {len(agents)} agents do not answer; {failed[0]}"
        return usage_of(
            {name: [one for each in samples for one in each[name]] for name in METRICS},
            problem=problem,
        )

    async def _reached(self) -> tuple[Sequence[_Agent], str]:
        """Return the running agents, and the token to show them."""
        try:
            found = await self._api.list(
                PODS,
                namespace=AGENT_NAMESPACE,
                label_selector=_LABELS,
                not_older_than="0",
                each=_agent,
            )
            agents = [each for each in found.items if each is not None]
            if not agents:
                raise UsageUnread(f"no agent runs in namespace {AGENT_NAMESPACE}")
            if len(agents) > MOST_AGENTS:
                raise UsageUnread(
                    f"more than {MOST_AGENTS} agents: set web.prometheus in the configuration"
                )
            return agents, await self._current_token()
        except ClientError as error:
            raise UsageUnread(f"the agents cannot be asked: {error}") from error

    async def _current_token(self) -> str:
        now = self._clock.monotonic()
        if now >= self._renew_at:
            request: Object = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "metadata": {"namespace": OPERATOR_NAMESPACE, "name": ACCOUNT},
                "spec": {"audiences": [], "expirationSeconds": _TOKEN_S},
            }
            answer = await self._api.create(SERVICE_ACCOUNTS, request, subresource="token")
            self._token = answer["status"]["token"]
            self._renew_at = now + _TOKEN_S / 2
        return self._token

    async def _scraped(self, agent: _Agent, token: str) -> Mapping[str, list[Sample]] | str:
        """Return the samples of an agent, or why there are none."""
        headers = {"Authorization": f"Bearer {token}"}
        url = f"https://{agent.address}/metrics"
        try:
            async with (
                self._room,
                asyncio.timeout(TIMEOUT_S),
                self._session.get(
                    url, headers=headers, ssl=self._tls, allow_redirects=False
                ) as answer,
            ):
                if answer.status != 200:
                    return f"{agent.node}: status {answer.status}"
                body = bytearray()
                async for some in answer.content.iter_any():
                    body += some
                    if len(body) > LARGEST_ANSWER:
                        return f"{agent.node}: more than {LARGEST_ANSWER >> 20} MiB"
            return await asyncio.to_thread(_samples, body.decode())
        except TimeoutError:
            return f"{agent.node}: no answer within {TIMEOUT_S:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{agent.node}: {error}"


def _agent(pod: Object) -> _Agent | None:
    """Return the agent of a pod; None if it does not run."""
    status, spec = pod.get("status") or {}, pod["spec"]
    port = next(
        (
            port["containerPort"]
            for container in spec["containers"]
            for port in container.get("ports") or ()
            if port.get("name") == "metrics"
        ),
        None,
    )
    address = status.get("podIP")
    if status.get("phase") != "Running" or not address or port is None:
        return None
    host = f"[{address}]" if ":" in address else address
    return _Agent(spec.get("nodeName") or "", f"{host}:{port}")


def _samples(text: str) -> Mapping[str, list[Sample]]:
    """Return the samples of our metrics.

    Raises:
        ValueError: The text is not in Prometheus' format.
    """
    found: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for family in text_string_to_metric_families("\n".join(_ours(text.split("\n"))) + "\n"):
        found[family.name] += (Sample(each.labels, each.value) for each in family.samples)
    return found


def _ours(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of our metrics: a tenth of an agent's, and parsing is slow."""
    wanted = tuple(name + "{" for name in METRICS)
    return (line for line in lines if line.startswith(wanted))
