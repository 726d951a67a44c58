"""Reads a live cluster once, to answer questions about pods that do not exist yet."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from uuid import uuid4

from vgpu_api.core import Node
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli.installed import installation
from vgpu_operator.cli.listing import listed
from vgpu_operator.dialects.pod_groups import POD_GROUP_APIS, GroupKind, pod_group_kinds
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.events import BudgetsListed, Event, NodeObserved
from vgpu_operator.engine.informers import (
    STORAGE,
    current_events,
    priority_classes,
)
from vgpu_operator.engine.state import State
from vgpu_operator.insight.live_cluster import LiveCluster, Unread
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.ledger import Ledger

_ALWAYS = (NODES, GPU_DEVICES, RESOURCE_QUOTAS, VGPU_CLAIMS)


async def read_cluster(api: Api) -> LiveCluster:
    """Read the objects that decide where a pod is placed. Nothing is written to the cluster.

    These are nodes, devices, quotas and claims; and, if that is allowed, pods, disruption budgets,
    PodGroups and PriorityClasses, which decide who may be evicted. In Gate mode the operator also
    checks a pod's other demands on a node, so volumes are read as well.

    Raises:
        ClientError: The API server is unreachable, or refuses nodes, devices, quotas or claims.
        NotInstalled: vgpu is not installed in the cluster.
    """
    installed = await installation(api)
    config = installed.config
    state = State(config, Ledger(config=config), lambda: str(uuid4()))
    pods, running = "", list[Event]()
    try:
        running = await current_events(api, (PODS,))
    except Forbidden as error:
        pods = error.message
    try:
        await _read(api, state, _ALWAYS, pods_are_known=not pods)
    except NotFound:
        for kind in _ALWAYS:
            # raises an error that names the kind if the cluster does not serve it
            await listed(api, kind)
        raise
    for event in running:
        apply(event, state)
    volumes = ""
    if config.scheduling.decides_first:
        volumes = await read_volumes(api, state)
    if config.scheduling.mode == "Claims":
        await read_resource_claims(api, state)
    await read_evictable(api, state)
    priorities = await read_priorities(api)
    unread = Unread(installed.unknown, pods, volumes)
    return LiveCluster(state, lambda _: unread, priorities)


async def read_priorities(api: Api) -> Priorities:
    """Read the PriorityClasses, if allowed."""
    try:
        return Priorities(await priority_classes(api))
    except (Forbidden, NotFound) as error:
        return Priorities(unread=error.message)


async def read_volumes(api: Api, state: State) -> str:
    """Read the objects that volume checks need; return the API server's refusal if there is one."""
    return await _read_if_allowed(api, state, STORAGE)


async def read_resource_claims(api: Api, state: State) -> None:
    """Read ResourceClaims, if allowed; without them, no pod counts as handed over."""
    await _read_if_allowed(api, state, (RESOURCE_CLAIMS,))


async def read_evictable(api: Api, state: State) -> None:
    """Read the objects that say which pods may be evicted, and which end together, if allowed.

    The state then counts as knowing them. A server that serves no PodGroups has none.
    """
    try:
        if await _read_if_allowed(api, state, (POD_DISRUPTION_BUDGETS,)):
            return
    except NotFound:  # Kubernetes 1.20 and older serve no policy/v1
        return
    for kind in pod_group_kinds(state.config):
        is_refused = await _read_pod_groups(api, state, kind)
        if is_refused and kind is GroupKind.KUBERNETES:
            return
    apply(BudgetsListed(), state)


async def _read_pod_groups(api: Api, state: State, kind: GroupKind) -> bool:
    """Read the PodGroups of an API in the newest version served; return True if that is refused."""
    for version in POD_GROUP_APIS[kind]:
        with suppress(NotFound):
            return bool(await _read_if_allowed(api, state, (version,)))
    return False


async def _read_if_allowed(api: Api, state: State, kinds: Collection[Resource]) -> str:
    try:
        await _read(api, state, kinds)
    except Forbidden as error:
        return error.message
    return ""


async def _read(
    api: Api, state: State, kinds: Collection[Resource], *, pods_are_known: bool = True
) -> None:
    """Apply the objects of all these kinds to the state, or of none if one cannot be listed."""
    for event in await current_events(api, kinds):
        hides_room = not pods_are_known and state.ledger.filters.room is None
        if isinstance(event, NodeObserved) and hides_room:
            event = NodeObserved(_of_unknown_room(event.node))
        apply(event, state)


def _of_unknown_room(node: Node) -> Node:
    """Return a node without its capacity, which would all seem free if pods are not known."""
    status = node.status.model_copy(update={"allocatable": {}})
    return node.model_copy(update={"status": status})
