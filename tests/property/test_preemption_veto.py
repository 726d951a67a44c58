"""The verb preempt keeps a node exactly if an independent count finds room without the victims.

The count reads the claims from the API server.
"""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from replica import Replica
from room_by_hand import MIB, SLOTS, has_room, limits
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_operator.extender.preempting import preempt
from vgpu_operator.extender.wire import PreemptRequest

asks = st.tuples(
    st.integers(1, 2),
    st.sampled_from((2000, 6000, 9000, 16300, 20000)),
    st.sampled_from((0, 40, 100)),
)
fleets = st.lists(st.integers(1, 2), min_size=1, max_size=3)


@given(fleet=fleets, pods=st.lists(asks, max_size=8), ask=asks, data=st.data())
def test_a_node_is_kept_exactly_if_its_victims_make_room(fleet, pods, ask, data):
    asyncio.run(_judge(fleet, pods, ask, data))


async def _judge(fleet, pods, ask, data) -> None:
    replica = Replica()
    uuids = {f"node-{n}": [f"GPU-{n}-{d}" for d in range(has)] for n, has in enumerate(fleet)}
    for node, devices in uuids.items():
        for index, uuid in enumerate(devices):
            replica.device(uuid=uuid, node=node, index=index, memory_mib=MIB, slots=SLOTS)
    for number, wanted in enumerate(pods):
        replica.offered(f"low-{number}", limits=limits(wanted))
        await replica.bound()
    stored = [o for (plural, *_), o in replica.api.objects.items() if plural == VGPU_CLAIMS.plural]
    claims = [claim for claim in stored if claim.get("status", {}).get("allocation")]
    by_node = {
        node: [
            claim["status"]["reservedFor"]["podUID"]
            for claim in claims
            if claim["status"]["allocation"]["nodeName"] == node
        ]
        for node in uuids
    }
    victims = {
        node: ["uid-of-web", *data.draw(st.lists(st.sampled_from(there), unique=True))]
        if there
        else ["uid-of-web"]
        for node, there in by_node.items()
    }
    pod = replica.pod("important", limits=limits(ask), priority=1000)
    meta = {node: {"Pods": [{"UID": uid} for uid in uids]} for node, uids in victims.items()}
    body = {"Pod": pod.to_wire(), "NodeNameToMetaVictims": meta}
    answer = await preempt(replica.engine, PreemptRequest.read(body))
    assert set(answer.victims) == {
        node for node, there in uuids.items() if has_room(ask, there, claims, set(victims[node]))
    }
