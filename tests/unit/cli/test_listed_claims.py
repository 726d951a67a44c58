"""`kubectl vgpu get slices` and `explain` about a claim that waits, or that is being deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from builders import a_claim, a_node, an_allocation
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import Condition, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_operator.cli.listing import GetQuery
from vgpu_operator.cli.object_tables import table
from vgpu_operator.engine import events
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.state import State
from vgpu_operator.insight.explanation import explained
from vgpu_operator.ledger import Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(claim: VGPUClaim) -> dict[str, Any]:
    query = GetQuery("slices", namespace="default")
    shown = table(query, [claim.to_wire()], [], NOW)
    return dict(zip(shown.header, shown.rows[0], strict=True))


def waiting() -> VGPUClaim:
    condition = Condition(type="Allocated", status="False", reason="CardInsufficientMemory")
    return a_claim("mine", status=VGPUClaimStatus(pod="train-0", conditions=[condition]))


def going() -> VGPUClaim:
    """Return a claim that was deleted a moment ago; the operator has not recorded it yet."""
    condition = Condition(type="Allocated", status="True", reason="Allocated")
    status = VGPUClaimStatus(
        allocation=an_allocation(),
        reserved_for=ReservedFor(pod_name="train-0", pod_uid="u"),
        state="Allocated",
        pod="train-0",
        conditions=[condition],
    )
    metadata = {"deletion_timestamp": "2026-01-01T00:00:00Z"}
    return a_claim("mine", status=status, metadata=metadata)


def test_a_claim_that_waits_is_listed_with_its_pod() -> None:
    assert (row(waiting())["STATE"], row(waiting())["POD"]) == ("Pending", "train-0")


def test_a_claim_that_is_being_deleted_is_listed_as_terminating() -> None:
    assert (row(going())["STATE"], row(going())["POD"]) == ("Terminating", "train-0")


def test_explain_says_that_a_claim_is_being_deleted() -> None:
    config = ClusterConfig()
    state = State(config, Ledger(config=config), lambda: "")
    for event in (events.NodeObserved(a_node("node-1")), events.ClaimObserved(going())):
        apply(event, state)
    assert explained(state, going(), now=NOW).state == "Terminating"
