"""Each decision that is carried out is logged as one line at INFO."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import pytest

from replica import Replica
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ApiError

Lines: TypeAlias = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the log lines of decisions so far."""
    caplog.set_level(logging.INFO, logger="vgpu_operator.engine.observability.decision_log")
    return lambda: [record for record in caplog.records if hasattr(record, "decision")]


def decisions(lines: list[logging.LogRecord]) -> list[str]:
    return [line.__dict__["decision"] for line in lines]


async def test_an_allocation_is_one_line_with_its_fields(replica: Replica, lines: Lines) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    await replica.bound()
    (line,) = lines()
    name = replica.claim_of(pod).metadata.name
    assert line.levelno == logging.INFO
    assert line.getMessage() == (
        f"claim default/{name} allocated on node-1 for pod pod-1: GPU-0 (8192 MiB, 0 %)"
    )
    fields = line.__dict__
    assert (fields["claim"], fields["pod"], fields["node"], fields["devices"]) == (
        f"default/{name}", "default/pod-1", "node-1", ["GPU-0"]
    )  # fmt: skip


async def test_a_refusal_is_one_line_however_often_it_is_looked_at(
    replica: Replica, lines: Lines
) -> None:
    replica.device(memory_mib=64)
    replica.offered()
    await replica.told()
    for _ in range(5):
        replica.time += 10
        await replica.settle()
    (line,) = lines()
    assert line.__dict__["decision"] == "refused"
    assert line.__dict__["reason"] in line.getMessage()


async def test_a_release_is_one_line(replica: Replica, lines: Lines) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert decisions(lines()) == ["allocated", "released"]
    assert lines()[-1].getMessage().startswith(f"claim default/{name} released: Released: its pod")


async def test_a_decision_whose_write_came_to_nothing_is_no_line(
    replica: Replica, lines: Lines
) -> None:
    replica.device()
    refused = [ApiError("not allowed", status=403)]
    replica.api.before = lambda verb, _: refused[0] if refused and "patch" in verb else None
    replica.offered()
    await replica.settle()
    assert decisions(lines()) == []


async def test_writes_that_repeat_a_decision_are_no_lines(replica: Replica, lines: Lines) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    raw["metadata"]["generation"] = 7  # the status follows the new generation
    replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))
    await replica.settle()
    assert decisions(lines()) == ["allocated"]
