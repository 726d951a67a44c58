"""The agent writes `Prepared` on a pod's own claim only if a running container does not show it.

When the containers of 300 pods start at once, the API server receives no such write
(docs/design/node-and-grants.md).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from builders import a_claim, allocation_id, an_allocation
from set_clock import SetClock
from vgpu_api.v1alpha1 import (
    Condition,
    OwnerReference,
    Released,
    ReservedFor,
    VGPUClaim,
    VGPUClaimStatus,
)
from vgpu_client.errors import Unreachable
from vgpu_nodeagent.reporting.reports import SLOW_S, Reports
from vgpu_nodeagent.state.node_view import NodeView

POD = ReservedFor(pod_name="p1", pod_uid="uid-of-p1")
OWNER = OwnerReference(api_version="v1", kind="Pod", name="p1", uid=POD.pod_uid, controller=True)
SAID = "limits are in place"


def its_own(**status: Any) -> VGPUClaim:
    """Return a claim that the operator made for the pod."""
    return the_claim(metadata={"owner_references": [OWNER]}, **status)


def the_claim(metadata: dict[str, Any] | None = None, **status: Any) -> VGPUClaim:
    """Return a claim that serves the pod."""
    status.setdefault("conditions", [])
    allocated = VGPUClaimStatus(allocation=an_allocation(), reserved_for=POD, **status)
    return a_claim("c1", metadata=metadata or {}, status=allocated)


def condition(status: str, reason: str = "OverCapacity", type_: str = "Prepared") -> Condition:
    return Condition(type=type_, status=status, reason=reason)


class Agent:
    """An agent's reports on one claim, delivered to an API server that fails at first."""

    def __init__(self, claim: VGPUClaim, *, failures: int = 0) -> None:
        self.claim = claim
        self.applied: list[dict[str, Any]] = []
        self.created: list[dict[str, Any]] = []
        self._failures = failures
        view = NodeView("node-1")
        view.claims.added(claim)
        api: Any = self
        self.reports = Reports(api, view, clock=SetClock())

    async def apply(self, _: Any, obj: dict[str, Any], **__: Any) -> dict[str, Any]:
        if self._failures:
            self._failures -= 1
            raise Unreachable("no connection")
        self.applied.append(obj["status"])
        return obj

    async def create(self, _: Any, obj: dict[str, Any], **__: Any) -> dict[str, Any]:
        self.created.append(obj)
        return obj

    def prepared(self, took_s: float = 0.1) -> None:
        self.reports.prepared(self.claim, SAID, took_s=took_s)

    def refused(self) -> None:
        self.reports.not_prepared(self.claim, "OverCapacity", "no room")

    async def delivers(self) -> None:
        """Deliver all pending reports, as far as the API server accepts them."""
        task = asyncio.create_task(self.reports.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def said(self) -> list[tuple[str, str]]:
        """Return status and reason of `Prepared` in each write."""
        return [
            (each["status"], each["reason"])
            for status in self.applied
            for each in status["conditions"]
            if each["type"] == "Prepared"
        ]


IN_PLACE = ("True", "LimitsInPlace")


async def test_of_a_pods_own_claim_nothing_is_written_when_its_container_starts() -> None:
    agent = Agent(its_own())
    for _ in range(3):  # its containers in turn
        agent.prepared()
    await agent.delivers()
    assert agent.applied == []


async def test_of_a_claim_that_a_user_made_it_is_written() -> None:
    agent = Agent(the_claim())
    agent.prepared()
    await agent.delivers()
    assert agent.said() == [IN_PLACE]


async def test_a_claim_that_another_pod_owns_is_not_the_pods_own() -> None:
    other = OwnerReference(api_version="v1", kind="Pod", name="p0", uid="uid-of-p0")
    agent = Agent(the_claim(metadata={"owner_references": [other]}))
    agent.prepared()
    await agent.delivers()
    assert agent.said() == [IN_PLACE]


@pytest.mark.parametrize(("took_s", "count"), [(SLOW_S, 0), (SLOW_S + 0.01, 1)])
async def test_a_container_that_waited_long_for_its_limits_is_reported(
    took_s: float, count: int
) -> None:
    agent = Agent(its_own())
    agent.prepared(took_s)
    await agent.delivers()
    assert agent.said() == [IN_PLACE] * count


async def test_a_refusal_is_written_and_so_is_its_end_before_the_watch_shows_the_refusal() -> None:
    agent = Agent(its_own())
    agent.refused()
    await agent.delivers()
    agent.prepared()  # the claim in the agent's cache has no condition yet
    await agent.delivers()
    assert agent.said() == [("False", "OverCapacity"), IN_PLACE]
    agent.prepared()  # the next container
    await agent.delivers()
    assert len(agent.applied) == 2


async def test_a_refusal_that_could_not_be_delivered_is_not_delivered_after_its_end() -> None:
    agent = Agent(its_own(), failures=1)
    agent.refused()
    agent.prepared()
    await agent.delivers()
    assert agent.said() == [IN_PLACE]


async def test_an_agent_that_was_restarted_withdraws_what_the_former_one_said() -> None:
    agent = Agent(its_own(conditions=[condition("False")]))
    agent.prepared()
    await agent.delivers()
    assert agent.said() == [IN_PLACE]


async def test_a_release_that_is_reported_too_early_is_withdrawn() -> None:
    """An agent that cannot see a container any more may have taken it for gone."""
    gone = condition("True", "ContainersGone", "Released")
    agent = Agent(its_own(released=Released(allocation_id=allocation_id(7)), conditions=[gone]))
    agent.prepared()
    await agent.delivers()
    (status,) = agent.applied
    assert [each["type"] for each in status["conditions"]] == ["Prepared"]
    assert "released" not in status


async def test_after_a_resize_prepared_is_about_the_new_version_and_names_no_amounts() -> None:
    """The claim was prepared with 8Gi at version 1 and resized to 2Gi at version 3."""
    old = Condition(
        type="Prepared",
        status="True",
        reason="LimitsInPlace",
        message="limits are in place: 1 × 8Gi",
        observed_generation=1,
    )
    claim = the_claim(conditions=[old])
    metadata = claim.metadata.model_copy(update={"generation": 3})
    agent = Agent(claim.model_copy(update={"metadata": metadata}))
    agent.reports.resized(agent.claim, "limits are in place: 2Gi and 0 % of GPU GPU-0")
    await agent.delivers()
    found = {c["type"]: c for c in agent.applied[-1]["conditions"]}
    assert {c["observedGeneration"] for c in found.values()} == {3}
    assert "8Gi" not in found["Prepared"]["message"]
    assert found["Prepared"]["status"] == "True"


async def test_a_resize_does_not_write_prepared_where_it_was_not() -> None:
    agent = Agent(its_own())
    agent.reports.resized(agent.claim, "limits are in place: 2Gi and 0 % of GPU GPU-0")
    await agent.delivers()
    assert [c["type"] for c in agent.applied[-1]["conditions"]] == ["Resized"]


async def test_a_resize_that_is_not_done_is_an_event_of_the_claim() -> None:
    agent = Agent(the_claim())
    agent.reports.not_resized(agent.claim, "WaitingForRoom", "16Gi asked, 1Gi held")
    await agent.delivers()
    (event,) = agent.created
    about = event["involvedObject"]
    assert (about["kind"], about["name"], event["type"]) == ("VGPUClaim", "c1", "Warning")
    assert (event["reason"], event["message"]) == ("ResizeNotDone", "16Gi asked, 1Gi held")
    assert event["metadata"]["namespace"] == agent.claim.metadata.namespace
