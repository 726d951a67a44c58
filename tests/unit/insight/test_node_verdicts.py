"""Of many nodes those are shown that help, the best first; equal ones are counted."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from builders import a_claim, a_request
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.cli.explain import show
from vgpu_operator.cli.printing import Printer
from vgpu_operator.engine import events
from vgpu_operator.insight.explanation import Explanation, explained
from vgpu_operator.insight.node_verdicts import MOST_ALIKE, MOST_NODES
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.web.sight import Sight
from vgpu_operator.web.what_if import documents, what_if
from web_world import a_holder, a_mirror, a_waiter

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
ALL_MIB = 16_384
POD = """
apiVersion: v1
kind: Pod
metadata: {name: asks}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 12000}}}
"""


def on(
    number: int, name: str, memory_mib: int = ALL_MIB, *, namespace: str = "default"
) -> VGPUClaim:
    return a_holder(
        name,
        namespace=namespace,
        uuid=f"GPU-{number}-0",
        node=f"node-{number}",
        memory_mib=memory_mib,
    )


def said(claims: Iterable[VGPUClaim], *, nodes: int, memory: str = "12Gi") -> Explanation:
    """Return the explanation of a claim that waits on nodes with one GPU of 16 GiB each."""
    waiter = a_waiter("late", memory=memory)
    mirror = a_mirror(nodes=nodes, devices=1, claims=[*claims, waiter])
    return explained(mirror.state, waiter, now=NOW)


def text_of(found: Explanation) -> list[str]:
    out = io.StringIO()
    show(found, Printer(out), "text")
    return out.getvalue().splitlines()


def test_the_node_where_the_fewest_claims_must_end_is_first() -> None:
    two = [on(0, f"a{number}", 8192) for number in range(2)]
    found = said([*two, on(1, "b", 8192)], nodes=2, memory="16Gi")
    assert [(node.name, node.end_first) for node in found.nodes] == [
        ("node-1", ["default/b"]), ("node-0", ["default/a0", "default/a1"])
    ]  # fmt: skip


def test_a_node_that_helps_is_first_however_late_its_name_comes() -> None:
    small = on(99, "small", 8192)
    # what holds all of a device with a lower number would have to end as well
    others = [on(number, f"c{number}-{part}", 8192) for number in range(99) for part in range(2)]
    found = said([*others, small], nodes=100)
    assert found.nodes[0].name == "node-99"
    assert found.nodes[0].end_first == ["default/small"]


def test_nodes_that_serve_come_before_those_that_do_not() -> None:
    found = said([on(number, f"c{number}") for number in (0, 2)], nodes=4)
    assert [node.name for node in found.nodes] == ["node-1", "node-3", "node-0", "node-2"]
    assert found.way_out == ""


def test_equal_verdicts_of_nodes_that_nothing_helps_are_counted() -> None:
    found = said([], nodes=30, memory="64Gi")
    assert len(found.nodes) == MOST_ALIKE
    (alike,) = found.alike
    assert (alike.count, alike.verdict) == (27, "1/1 CardInsufficientMemory")
    assert found.nodes_hidden == 27
    assert any(line.startswith("27 more nodes: 1/1 CardInsuff") for line in text_of(found))


def test_nodes_beyond_those_shown_that_serve_are_counted() -> None:
    found = said([], nodes=25)
    assert len(found.nodes) == MOST_NODES
    assert [(each.count, each.verdict) for each in found.alike] == [(5, "would serve")]


def test_the_node_of_a_claim_comes_first() -> None:
    mine = on(7, "mine")
    mirror = a_mirror(nodes=9, devices=1, claims=[mine])
    found = explained(mirror.state, mine, now=NOW)
    assert (found.nodes[0].name, found.nodes[0].verdict) == ("node-7", "holds it")
    assert found.way_out == ""


def test_what_if_shows_the_chosen_node_first() -> None:
    mirror = a_mirror(
        nodes=40, devices=1, claims=[on(number, f"c{number}") for number in range(30)]
    )
    sight = Sight("admin", devices=True, nodes=True, everywhere=True)
    found = what_if(mirror, sight, documents(POD), Priorities())
    first = found["nodes"][0]
    assert first["name"] == found["pods"][0]["node"]
    assert first["verdict"] == "would be chosen"


def test_the_way_out_names_the_most_that_fits_and_who_would_have_to_end() -> None:
    found = said([on(0, "half", 6144), on(1, "most", 12288)], nodes=2)
    assert found.way_out == (
        "fits if you ask for at most 10,240 MiB per GPU, or when default/half ends"
    )
    assert f"F{found.way_out[1:]}" in text_of(found)


@pytest.mark.parametrize("mib", [10_240, 10_241])
def test_what_the_way_out_promises_is_so_and_nothing_more(mib: int) -> None:
    holders = [on(0, "half", 6144), on(1, "most", 12288)]
    smaller = said(holders, nodes=2, memory=f"{mib}Mi")
    assert any(node.serves for node in smaller.nodes) == (mib == 10_240)


def test_no_smaller_amount_is_promised_where_memory_is_not_what_lacks() -> None:
    waiter = a_claim("late", requests=[a_request(memory="8Gi", cores=90)])
    mirror = a_mirror(nodes=1, devices=1, claims=[on(0, "busy", 1024)])
    mirror.observe(events.ClaimObserved(waiter))
    found = explained(mirror.state, waiter, now=NOW)
    assert found.way_out == "fits when default/busy ends"


def test_where_nothing_helps_nothing_is_promised() -> None:
    waiter = a_claim("late", requests=[a_request(memory="1Gi", count=2)])
    mirror = a_mirror(nodes=1, devices=1)
    mirror.observe(events.ClaimObserved(waiter))
    assert explained(mirror.state, waiter, now=NOW).way_out == ""


def test_claims_that_may_not_be_named_are_counted_in_the_way_out() -> None:
    waiter = a_waiter("late", memory="16Gi")
    claims = [on(0, f"c{number}", 8000, namespace="secret") for number in range(2)]
    mirror = a_mirror(nodes=1, devices=1, claims=[*claims, waiter])
    found = explained(mirror.state, waiter, now=NOW, reads=lambda space: space == "default")
    assert found.way_out.endswith("when 2 claims of other namespaces end")
    assert "secret" not in " ".join(text_of(found))
