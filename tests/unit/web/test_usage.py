"""The use of memory and compute is read from Prometheus or from the agents, and never guessed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from prometheus_api import PrometheusApi, of_claim, of_device, serving_prometheus
from set_clock import SetClock
from vgpu_api.resources import PODS, SERVICE_ACCOUNTS, Resource
from vgpu_client.credentials import TokenFile
from vgpu_client.listen import listen
from vgpu_client.own_certificate import own_certificate
from vgpu_client.reads import Listing
from vgpu_client.session import open_session
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web import agent_metrics, prometheus, usage_reader
from vgpu_operator.web.agent_metrics import AgentMetrics
from vgpu_operator.web.history import REFUSED_S, History
from vgpu_operator.web.prometheus import Prometheus
from vgpu_operator.web.usage import UNREAD, FleetUsage, UsageUnread, Used, WantedSeries
from vgpu_operator.web.usage_reader import FleetUsageReader
from web_world import a_mirror

GIB = 1 << 30
A, B = ClaimKey("default", "a"), ClaimKey("default", "b")


@asynccontextmanager
async def a_client(api: PrometheusApi, **rest: Any) -> AsyncIterator[Prometheus]:
    async with serving_prometheus(api), open_session() as session:
        yield Prometheus(session, api.url, **{"labels": {}, **rest})


def some_use() -> PrometheusApi:
    return PrometheusApi(
        {
            "vgpu_device_memory_used_bytes": [(of_device("GPU-0-0"), str(6 * GIB))],
            "vgpu_device_utilization_ratio": [(of_device("GPU-0-0"), "0.425")],
            "vgpu_claim_memory_used_bytes": [
                (of_claim("a"), str(2 * GIB)),
                (of_claim("a", container="side"), str(GIB)),
                (of_claim("b"), "3.5e+09"),
            ],
            "vgpu_claim_cores_used_ratio": [
                (of_claim("a"), "0.3"),
                (of_claim("a", container="side"), "0.1"),
            ],
        }
    )


async def test_prometheus_is_asked_for_the_use_of_devices_and_claims() -> None:
    async with a_client(some_use()) as client:
        usage = await client.usage()
    assert usage.devices == {"GPU-0-0": Used(6144, 42.5)}
    assert usage.claims == {A: Used(3072, 40.0), B: Used(3338, None)}
    assert usage.problem == ""


async def test_compute_that_one_container_of_a_claim_lacks_is_unknown_and_not_a_part() -> None:
    api = some_use()
    api.vectors["vgpu_claim_cores_used_ratio"] = [(of_claim("a"), "0.3")]
    async with a_client(api) as client:
        assert (await client.usage()).claims[A] == Used(3072, None)


async def test_of_a_device_that_two_agents_report_the_larger_use_counts() -> None:
    api = some_use()
    device = of_device("GPU-0-0")
    twice = [({**device, "instance": f"10.0.0.{at}:9394"}, str(at * GIB)) for at in (1, 2)]
    api.vectors["vgpu_device_memory_used_bytes"] = twice
    async with a_client(api) as client:
        assert (await client.usage()).devices["GPU-0-0"].memory_mib == 2048


async def test_a_value_that_is_no_number_is_unknown() -> None:
    api = some_use()
    api.vectors["vgpu_device_memory_used_bytes"] = [(of_device("GPU-0-0"), "NaN")]
    async with a_client(api) as client:
        assert (await client.usage()).devices == {}


async def test_every_query_has_the_labels_of_the_cluster() -> None:
    api = some_use()
    async with a_client(api, labels={"cluster": 'a"b'}) as client:
        await client.usage()
    assert len(api.asked) == 5
    assert all('{cluster="a\\"b"}' in each["query"] for each in api.asked)


async def test_prometheus_is_shown_the_token_of_the_file(tmp_path: Path) -> None:
    file, api = tmp_path / "token", some_use()
    file.write_text("secret\n")
    async with a_client(api, token=TokenFile(file)) as client:
        await client.usage()
    assert api.headers["Authorization"] == "Bearer secret"


async def test_a_prometheus_that_knows_no_agents_is_named() -> None:
    async with a_client(PrometheusApi()) as client:
        usage = await client.usage()
    assert usage.problem == "Prometheus has no series vgpu_device_memory_used_bytes"


async def test_a_refusal_of_prometheus_is_told_in_its_words() -> None:
    api = some_use()
    api.error = (422, "query processing would load too many samples")
    async with a_client(api) as client:
        with pytest.raises(UsageUnread, match="refuses: query processing would load too many"):
            await client.usage()


async def test_a_prometheus_that_is_not_there_or_silent_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with open_session() as session:
            client = Prometheus(session, f"http://127.0.0.1:{port}", labels={})
            with pytest.raises(UsageUnread, match="Prometheus does not answer within 0 s"):
                await client.usage()
    monkeypatch.setattr(prometheus, "TIMEOUT_S", 10.0)
    async with open_session() as session:
        client = Prometheus(session, f"http://127.0.0.1:{port}", labels={})
        with pytest.raises(UsageUnread, match="Prometheus does not answer: ") as refused:
            await client.usage()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        '{"status": "success"}',
        '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        '{"status": "success", "data": {"resultType": "vector", "result": [{"metric": 1}]}}',
        '{"status": "success", "data": {"resultType": "vector", "result": 3}}',
    ],
)
async def test_another_server_than_prometheus_is_an_error_in_one_line(body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    async with served(answer, "/api/v1/query") as port, open_session() as session:
        client = Prometheus(session, f"http://127.0.0.1:{port}", labels={})
        with pytest.raises(UsageUnread, match=r"^Prometheus [^\n]*$"):
            await client.usage()


async def test_an_answer_of_any_size_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "LARGEST_ANSWER", 20)
    async with a_client(some_use()) as client:
        with pytest.raises(UsageUnread, match="answers more than"):
            await client.usage()


# Idle claims and the last day.


async def test_the_peaks_of_an_hour_are_asked_for_claims_that_ran_an_hour_ago() -> None:
    api = some_use()
    metric = api.vectors.pop("vgpu_claim_cores_used_ratio")
    ran = {"namespace": "default", "claim": "a"}
    api.vectors = {
        "max_over_time(vgpu_claim_cores_used_ratio{}[1h])": [(ran, "0.0123")],
        **api.vectors,
        "vgpu_claim_cores_used_ratio": metric,
    }
    async with a_client(api) as client:
        assert (await client.usage()).peaks == {A: 1.2}
        asked = len(api.asked)
        assert (await client.usage()).peaks == {A: 1.2}
    (peaks,) = [each["query"] for each in api.asked if "[1h]" in each["query"]]
    assert "offset 1h" in peaks
    assert len(api.asked) == 2 * asked - 1, "the peaks are kept for a while"


async def test_the_last_day_has_a_point_for_each_quarter_of_an_hour_and_gaps() -> None:
    now = 1_772_452_800.0 + 100  # a quarter of an hour, and a bit
    last = 1_772_452_800
    api = PrometheusApi(
        matrices={
            "vgpu_claim_memory_used_bytes": [({}, {last: str(2 * GIB), last - 900: "NaN"})],
            "vgpu_claim_cores_used_ratio": [({}, {last - 900: "0.5"})],
        }
    )
    wanted = WantedSeries(of_claims=True, labels=(("claim", "a"), ("namespace", 'x"y')))
    async with a_client(api) as client:
        history = History(client, SetClock(now))
        found = await history.of(wanted)
        assert (found["start"], found["stepS"], found["problem"]) == (last - 86_400, 900, "")
        assert found["memoryMiB"] == [*[None] * 96, 2048.0]
        assert found["cores"] == [*[None] * 95, 50.0, None]
        assert len(api.asked) == 2
        await history.of(wanted)
        assert len(api.asked) == 2, "an answer is kept for some minutes"
    assert all('{claim="a",namespace="x\\"y"}' in each["query"] for each in api.asked)


async def test_a_last_day_that_prometheus_refuses_is_asked_for_again_after_a_while() -> None:
    api, clock = PrometheusApi(error=(503, "query timed out")), SetClock(1e9)
    async with a_client(api) as client:
        history = History(client, clock)
        wanted = WantedSeries(of_claims=False)
        assert (await history.of(wanted))["problem"] == "Prometheus refuses: query timed out"
        api.error = None
        assert "timed out" in (await history.of(wanted))["problem"]
        clock.time += REFUSED_S
        assert (await history.of(wanted))["problem"] == ""


# The agents.

METRICS = """\
# HELP vgpu_device_memory_used_bytes Memory in use, by the driver.
# TYPE vgpu_device_memory_used_bytes gauge
vgpu_device_memory_used_bytes{device_uuid="GPU-0-0",node="node-0"} 1.073741824e+09
# HELP vgpu_device_utilization_ratio Compute in use, by the driver.
# TYPE vgpu_device_utilization_ratio gauge
vgpu_device_utilization_ratio{device_uuid="GPU-0-0",node="node-0"} 0.5
vgpu_claim_memory_used_bytes{claim="a",container="main",device_uuid="GPU-0-0",\
namespace="default",node="node-0",pod="p"} 5.24288e+08
hami_host_gpu_memory_used_bytes{node="node-0",device_uuid="GPU-0-0"} 1
"""


class Agents:
    """An API server with agents' pods; it makes tokens, and counts them."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self.tokens = 0
        self.pods = [a_pod_of_agent(node, port) for node, port in ports.items()]

    async def list(self, resource: Resource, *, each: Any, **selects: Any) -> Any:
        assert (resource, selects["namespace"]) == (PODS, "vgpu-node")
        assert selects["label_selector"] == (
            "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=nodeagent"
        )
        return Listing([each(pod) for pod in self.pods], "1")

    async def create(self, resource: Resource, obj: Any, **rest: Any) -> Any:
        assert (resource, rest["subresource"]) == (SERVICE_ACCOUNTS, "token")
        assert obj["metadata"] == {"namespace": "vgpu-system", "name": "vgpu-web-metrics"}
        self.tokens += 1
        return {"status": {"token": f"token-{self.tokens}"}}


def a_pod_of_agent(node: str, port: int) -> dict[str, Any]:
    container = {"name": "nodeagent", "ports": [{"name": "metrics", "containerPort": port}]}
    return {
        "metadata": {"namespace": "vgpu-node", "name": f"agent-{node}"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"},
    }


@asynccontextmanager
async def served(answer: Any, path: str, *, tls: Any = None) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", path, answer)
    runner, listening = web.AppRunner(app, access_log=None), listen("127.0.0.1", 0)
    await runner.setup()
    await web.SockSite(runner, listening, ssl_context=tls).start()
    try:
        yield listening.getsockname()[1]
    finally:
        await runner.cleanup()


async def metrics(request: web.Request) -> web.Response:
    if request.headers.get("Authorization") != "Bearer token-1":
        return web.Response(status=401)
    return web.Response(text=METRICS)


async def test_without_prometheus_the_agents_are_asked_with_a_token_for_metrics_alone() -> None:
    async with (
        served(metrics, "/metrics", tls=own_certificate("agent")) as port,
        open_session() as session,
    ):
        api, clock = Agents({"node-0": port}), SetClock(0.0)
        client = AgentMetrics(api, session, clock)  # type: ignore[arg-type]
        usage = await client.usage()
        assert usage == FleetUsage({"GPU-0-0": Used(1024, 50.0)}, {A: Used(500, None)})
        await client.usage()
        assert api.tokens == 1
        clock.time += 1800
        usage = await client.usage()
        assert (api.tokens, usage.problem) == (
            2, "1 of 1 agents do not answer; node-0: status 401"
        )  # fmt: skip


async def test_agents_that_do_not_answer_are_counted_and_one_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    async with (
        served(metrics, "/metrics", tls=own_certificate("agent")) as port,
        open_session() as session,
    ):
        api = Agents({"node-0": port, "node-1": closed})
        usage = await AgentMetrics(api, session, SetClock(0.0)).usage()  # type: ignore[arg-type]
    assert set(usage.devices) == {"GPU-0-0"}
    assert usage.problem.startswith("1 of 2 agents do not answer; node-1: ")
    assert "\n" not in usage.problem


async def test_agents_that_do_not_run_or_are_too_many_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_session() as session:
        api = Agents({})
        client = AgentMetrics(api, session, SetClock(0.0))  # type: ignore[arg-type]
        api.pods = [{**a_pod_of_agent("node-0", 1), "status": {"phase": "Pending"}}]
        with pytest.raises(UsageUnread, match="no agent runs in namespace vgpu-node"):
            await client.usage()
        monkeypatch.setattr(agent_metrics, "MOST_AGENTS", 1)
        api.pods = [a_pod_of_agent(node, 1) for node in ("node-1", "node-2")]
        with pytest.raises(UsageUnread, match=r"more than 1 agents: set web\.prometheus"):
            await client.usage()


# Reading again and again.


class Source:
    """Returns one answer after the other."""

    def __init__(self, *answers: FleetUsage | UsageUnread) -> None:
        self.left = list(answers)
        self.asked = 0

    async def usage(self) -> FleetUsage:
        self.asked += 1
        answer = self.left.pop(0)
        if isinstance(answer, UsageUnread):
            raise answer
        return answer


async def test_usage_is_read_while_somebody_looks_and_what_is_gone_is_unknown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_reader, "EVERY_S", 0.0)
    mirror = a_mirror()
    known = FleetUsage({"GPU-0-0": Used(1, 1.0)})
    source = Source(known, UsageUnread("it is away"), known)
    reading = asyncio.create_task(FleetUsageReader(mirror, source, SetClock(0.0)).run())
    try:
        assert (mirror.usage, source.asked) == (UNREAD, 0)
        for expected in (known, FleetUsage(problem="it is away")):
            version = mirror.version
            mirror.note_look()
            await mirror.changed(version, within_s=10)
            assert mirror.usage == expected
        assert source.asked == 2, "nobody has looked since"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def test_a_usage_that_is_the_same_changes_no_document() -> None:
    mirror = a_mirror()
    mirror.take_usage(FleetUsage({"GPU-0-0": Used(1, 1.0)}))
    version = mirror.version
    mirror.take_usage(FleetUsage({"GPU-0-0": Used(1, 1.0)}))
    assert mirror.version == version
