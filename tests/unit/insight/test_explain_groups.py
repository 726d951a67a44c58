"""`explain` says which pod of a waiting group does not fit, in text, JSON and on the page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

from builders import GATE, ROOM, a_container, a_device, a_node, a_pod, a_pod_group
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.names import SCHEDULING_GATE
from vgpu_operator.cli.explain import show
from vgpu_operator.cli.printing import Printer
from vgpu_operator.engine import events
from vgpu_operator.insight.explanation import Explanation, ask_nodes, from_status
from vgpu_operator.insight.live_cluster import EVERYTHING_READ
from vgpu_operator.insight.node_verdicts import every_namespace
from vgpu_operator.web import views
from vgpu_operator.web.sight import Sight
from web_world import a_mirror, a_waiter

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
TEXT = (
    "2 of 3 waiting pods of group gang would find a place now, and g-2 would not "
    "(1/1 CardInsufficientMemory); 3 must start together"
)


def a_member(number: int, mib: int = 8192, uid: str | None = None) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    container = a_container(limits=limits)
    return a_pod(f"g-{number}", uid=uid, group="gang", containers=[container])


def world(*pods: Pod, least: int | None = 3) -> Replica:
    """Return a node with one device of 16 GiB, and a group."""
    made = Replica(MemoryApi())
    made.news.node_changed(a_node("n1"))
    made.news.device_changed(a_device(uuid="GPU-0", node="n1", memory_mib=16384))
    if least is not None:
        made.news.pod_group_changed(a_pod_group("gang", least=least))
    for pod in pods:
        made.news.pod_changed(pod)
    return made


def explain(made: Replica, pod: Pod) -> Explanation:
    said = from_status(None, f"pod default/{pod.metadata.name}", NOW)
    known = made.state.cache.pod(pod.metadata.uid)
    ask_nodes(made.state, known, None, said, every_namespace, EVERYTHING_READ)
    return said


def shown(said: Explanation, *, as_json: bool) -> str:
    out = StringIO()
    show(said, Printer(out), "json" if as_json else "text")
    return out.getvalue()


def test_a_member_that_fits_is_told_which_other_does_not() -> None:
    members = [a_member(number) for number in range(3)]
    made = world(*members)
    for member in members:
        found = explain(made, member).group
        assert found is not None
        assert (found.least, found.message) == (3, TEXT)
        assert [(each.pod, each.node) for each in found.members] == [
            ("g-0", "n1"),
            ("g-1", "n1"),
            ("g-2", ""),
        ]


def test_text_has_a_line_and_json_the_fields() -> None:
    members = [a_member(number) for number in range(3)]
    said = explain(world(*members), members[0])
    assert TEXT in shown(said, as_json=False).splitlines()
    found = json.loads(shown(said, as_json=True))["group"]
    assert found["members"][2] == {
        "pod": "g-2",
        "node": "",
        "refused": "1/1 CardInsufficientMemory",
    }


def test_the_page_says_it_of_a_members_claim() -> None:
    mirror = a_mirror(nodes=1, devices=1)
    mirror.observe(events.PodGroupObserved(a_pod_group("gang", least=3)))
    waiter = a_waiter("c", memory="8Gi")
    mirror.observe(events.ClaimObserved(waiter))
    for number in range(3):
        pod = a_member(number)
        named = {"vgpu.dev/claim": "c", "vgpu.dev/slots-added": "main"} if number == 0 else {}
        metadata = pod.metadata.model_copy(update={"annotations": named})
        mirror.observe(events.PodObserved(pod.model_copy(update={"metadata": metadata})))
    admin = Sight("admin", devices=True, nodes=True, everywhere=True)
    (key,) = mirror.claims
    found = views.claim(mirror, admin, key, now=NOW)
    assert found["why"]["group"]["message"] == TEXT
    blind = Sight("blind", everywhere=True)
    assert views.claim(mirror, blind, key, now=NOW)["why"]["group"] is None


def test_pods_that_run_count_and_nothing_is_held_afterwards() -> None:
    members = [a_member(number) for number in range(2)]
    running = a_member(2, 1024)
    running = running.model_copy(
        update={"spec": running.spec.model_copy(update={"node_name": "n1"})}
    )
    made = world(*members, running)
    for _ in range(2):
        found = explain(made, members[0]).group
        assert found is not None
        assert found.standing == 1
        assert [each.node for each in found.members] == ["n1", "n1"]
    device = made.state.ledger.columns.number_of(made.state.ledger.devices("n1")[0].metadata.name)
    assert made.state.ledger.columns.used(device) == (0, 0, 0)


def test_a_group_without_a_minimum_waits_pod_by_pod() -> None:
    member = a_member(0)
    assert explain(world(member, least=1), member).group is None
    found = explain(world(member, least=None), member).group
    assert found is not None
    assert found.message.endswith("its PodGroup is not known here")


def test_behind_the_gate_a_group_of_our_annotations_is_explained_too() -> None:
    made = Replica(MemoryApi(), config=GATE)
    made.news.node_changed(a_node("n1", allocatable={**ROOM, "nvidia.com/gpumem": "99999"}))
    made.news.device_changed(a_device(uuid="GPU-0", node="n1", memory_mib=16384))
    members = []
    for number in range(3):
        pod = a_member(number)
        words = {"vgpu.dev/group": "gang", "vgpu.dev/group-min": "3"}
        spec = {"scheduling_group": None, "scheduling_gates": [{"name": SCHEDULING_GATE}]}
        members.append(
            pod.model_copy(
                update={
                    "metadata": pod.metadata.model_copy(update={"annotations": words}),
                    "spec": pod.spec.model_copy(update=spec),
                }
            )
        )
        made.news.pod_changed(members[-1])
    found = explain(made, members[0]).group
    assert found is not None
    assert found.message == TEXT
