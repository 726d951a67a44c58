"""What an earmark keeps, `explain` takes from the operator's text: it has no other source."""

from __future__ import annotations

from datetime import UTC, datetime

from vgpu_operator.insight.explanation import explained, held_devices
from web_world import a_holder, a_mirror, a_waiter

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
HELD = "2/2 CardInsufficientMemory; 1 on node-0 held for a request that has waited longer"


def verdicts(message: str) -> dict[str, tuple[str, bool]]:
    """Of a claim for which node-0 has room and node-1 has none."""
    full = [a_holder("full", uuid="GPU-1-0", node="node-1", memory_mib=16_384)]
    waiter = a_waiter("late", memory="4Gi", message=message)
    mirror = a_mirror(devices=1, claims=[*full, waiter])
    said = explained(mirror.state, waiter, now=NOW)
    return {node.name: (node.verdict, node.serves) for node in said.nodes}


def test_a_node_whose_room_is_kept_for_another_would_not_serve() -> None:
    kept = verdicts(HELD)["node-0"]
    assert kept == ("1 device held for a request that has waited longer", False)


def test_a_node_without_room_keeps_its_own_reason() -> None:
    assert verdicts(HELD.replace("node-0", "node-1"))["node-1"] == verdicts("")["node-1"]


def test_without_an_earmark_the_node_would_serve() -> None:
    assert verdicts("2/2 CardInsufficientMemory")["node-0"] == ("would serve", True)


def test_several_nodes_may_keep_devices() -> None:
    text = f"{HELD}; 2 on b.example.com held for a request that has waited longer"
    assert held_devices(text) == {"node-0": 1, "b.example.com": 2}
