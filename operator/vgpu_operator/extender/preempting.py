"""Preempt: keep the nodes where ending the victims that kube-scheduler chose frees the devices.

Other nodes are dropped, so that no pod is evicted in vain. Victims are never removed, because
kube-scheduler has counted its own resources with all of them. Where preemption is enabled, the pods
whose devices are needed as well are added.
"""

from __future__ import annotations

import asyncio

from vgpu_operator.engine.engine import Engine
from vgpu_operator.extender.filtering import known_or_read
from vgpu_operator.extender.wire import PreemptAnswer, PreemptRequest, Victims

_AT_ONCE = 8
"""Nodes to judge before other requests get a turn; each takes up to a millisecond."""


async def preempt(engine: Engine, request: PreemptRequest) -> PreemptAnswer:
    """Answer a Preempt call."""
    pod = known_or_read(engine, request.pod)
    kept: dict[str, Victims] = {}
    names = list(request.victims)
    for start in range(0, len(names), _AT_ONCE):
        uids = {node: request.victims[node].uids for node in names[start : start + _AT_ONCE]}
        for node, added in engine.preempt(pod, uids).items():
            kept[node] = request.victims[node].with_more(added)
        await asyncio.sleep(0)
    return PreemptAnswer(kept)
