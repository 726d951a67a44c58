"""The simulated agents of the bench follow their watches as the real ones do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from perf.cluster_bench.agents import SimulatedAgents, Watch
from vgpu_api.names import pod_claim_name
from vgpu_client.connection import Connection


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture
def agents() -> SimulatedAgents:
    connection = Connection("https://127.0.0.1:1", cast("Any", object()), None, None, None)  # type: ignore[arg-type]
    return SimulatedAgents(connection, "Bearer t", 1)


def a_chunk(event: dict[str, Any]) -> bytes:
    line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


def an_event(version: int, name: str = "ours-1", *, of_load: bool = True) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
    metadata |= {"resourceVersion": str(version)}
    metadata |= {"labels": {"bench": "ours"}} if of_load else {}
    return {"type": "MODIFIED", "object": {"kind": "Pod", "metadata": metadata}}


def test_the_claim_of_a_new_pod_is_read_once_however_its_events_are_cut(
    agents: SimulatedAgents, ends: tuple[socket.socket, socket.socket]
) -> None:
    watch = Watch("node-00000", cast("Any", ends[0]))
    stream = a_chunk(an_event(7)) + a_chunk(an_event(8)) + a_chunk(an_event(9, of_load=False))
    for at in range(len(stream)):
        agents._take(watch, stream[at : at + 1])
    assert (watch.version, agents.counts["events"]) == ("9", 3)
    claim = pod_claim_name("ours-1", "uid-of-ours-1")
    path = f"namespaces/default/vgpuclaims/{claim}"
    assert [agents._claims.get_nowait() for _ in range(agents._claims.qsize())] == [path]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_watch_that_the_server_ends_goes_on_from_its_version(
    agents: SimulatedAgents, ends: tuple[socket.socket, socket.socket], size: int
) -> None:
    watch = Watch("node-00000", cast("Any", ends[0]))
    stream = a_chunk(an_event(7)) + b"0\r\n\r\n"
    for at in range(0, len(stream), size):
        agents._take(watch, stream[at : at + size])
    asked = ends[1].recv(4096).decode()
    assert "fieldSelector=spec.nodeName%3Dnode-00000&resourceVersion=7&" in asked
    assert agents.counts["watches"] == 1


def test_a_watch_that_is_refused_ends_the_bench(
    agents: SimulatedAgents, ends: tuple[socket.socket, socket.socket]
) -> None:
    watch = Watch("node-00000", cast("Any", ends[0]))
    with pytest.raises(RuntimeError, match="410 Gone"):
        agents._take(watch, b"HTTP/1.1 410 Gone\r\n\r\n")
