"""`explain` reads the devices that earmarks keep from a field of the claim, not from a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from vgpu_api.v1alpha1 import KeptDevices
from vgpu_operator.insight.explanation import Explanation, explained
from web_world import a_holder, a_mirror, a_waiter

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
SENTENCE = "2/2 CardInsufficientMemory; 1 on node-0 held for a request that has waited longer"
UNKNOWN = "devices kept for other requests are not known: the claim has no status.keptForOthers"


def said(kept: Mapping[str, int] | None, message: str = SENTENCE) -> Explanation:
    """Return the answer about a refused claim for which node-0 has room and node-1 has none."""
    full = [a_holder("full", uuid="GPU-1-0", node="node-1", memory_mib=16_384)]
    waiter = a_waiter("late", memory="4Gi", message=message)
    devices = (
        None
        if kept is None
        else [KeptDevices(node_name=node, devices=count) for node, count in kept.items()]
    )
    status = waiter.status.model_copy(update={"kept_for_others": devices})
    waiter = waiter.model_copy(update={"status": status})
    mirror = a_mirror(devices=1, claims=[*full, waiter])
    return explained(mirror.state, waiter, now=NOW)


def verdicts(found: Explanation) -> dict[str, tuple[str, bool]]:
    return {node.name: (node.verdict, node.serves) for node in found.nodes}


@pytest.mark.parametrize("message", [SENTENCE, "another version words it otherwise"])
def test_a_node_whose_devices_are_kept_for_another_would_not_serve(message: str) -> None:
    kept = verdicts(said({"node-0": 1}, message))["node-0"]
    assert kept == ("1 device held for a request that has waited longer", False)


def test_several_devices_of_a_node_may_be_kept() -> None:
    kept = verdicts(said({"node-0": 2, "node-1": 1}))["node-0"]
    assert kept == ("2 devices held for a request that has waited longer", False)


def test_a_node_without_room_keeps_its_own_reason() -> None:
    none_kept = verdicts(said({}))["node-1"]
    assert verdicts(said({"node-1": 1}))["node-1"] == none_kept


def test_without_kept_devices_the_node_would_serve() -> None:
    found = said({})
    assert verdicts(found)["node-0"] == ("would serve", True)
    assert found.not_judged == ""


def test_of_a_status_without_the_field_it_is_reported_that_nothing_is_known() -> None:
    found = said(None)
    assert verdicts(found)["node-0"] == ("would serve", True)
    assert found.not_judged == UNKNOWN


def test_where_no_node_would_serve_it_does_not_matter_what_is_kept() -> None:
    full = [
        a_holder(f"full-{n}", uuid=f"GPU-{n}-0", node=f"node-{n}", memory_mib=16_384)
        for n in (0, 1)
    ]
    waiter = a_waiter("late", memory="4Gi")
    status = waiter.status.model_copy(update={"kept_for_others": None})
    waiter = waiter.model_copy(update={"status": status})
    found = explained(a_mirror(devices=1, claims=[*full, waiter]).state, waiter, now=NOW)
    assert found.not_judged == ""


def test_a_claim_with_devices_is_not_said_to_lack_anything() -> None:
    holder = a_holder("served")
    found = explained(a_mirror(devices=1, claims=[holder]).state, holder, now=NOW)
    assert found.not_judged == ""
