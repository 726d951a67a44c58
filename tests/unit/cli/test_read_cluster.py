"""`explain` reads the objects that protect pods from eviction, if it may and they are served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builders import GATE, a_pod_group
from vgpu_api.config import ClusterConfig
from vgpu_api.resources import (
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    VOLCANO_POD_GROUPS,
    Resource,
)
from vgpu_client.errors import ApiError, Forbidden, NotFound
from vgpu_client.reads import Listing
from vgpu_operator.cli.read_cluster import read_evictable
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.groups import least_of
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import Ledger

NEWEST, OLDER = POD_GROUPS
EXTENDER = ClusterConfig()
BUDGET = {
    "metadata": {"name": "keep", "namespace": "default", "uid": "1"},
    "spec": {"selector": {}},
    "status": {"disruptionsAllowed": 0},
}


class Server:
    """An API server that has these objects of these kinds, and serves no others."""

    def __init__(self, has: Mapping[Resource, Sequence[Any] | ApiError]) -> None:
        self.has = has

    async def list(self, resource: Resource, **_: Any) -> Listing:
        found = self.has.get(resource, NotFound("not served", status=404))
        if isinstance(found, ApiError):
            raise found
        return Listing(list(found), "1")


async def read(
    has: Mapping[Resource, Sequence[Any] | ApiError], config: ClusterConfig = EXTENDER
) -> State:
    state = State(config, Ledger(config=config), lambda: "id")
    await read_evictable(Server(has), state)  # type: ignore[arg-type]
    return state


async def test_budgets_and_groups_of_the_older_version_are_read() -> None:
    group = a_pod_group("gang", least=2).to_wire()
    state = await read({POD_DISRUPTION_BUDGETS: [BUDGET], OLDER: [group]})
    assert state.preemptions.budgets.are_listed
    assert least_of(state, GroupKey("default", "gang")) == 2


async def test_in_mode_gate_the_groups_of_other_schedulers_are_read_too() -> None:
    group = {"metadata": {"name": "gang", "namespace": "default"}, "spec": {"minMember": 3}}
    has = {POD_DISRUPTION_BUDGETS: [BUDGET], VOLCANO_POD_GROUPS: [group]}
    key = GroupKey("default", "gang", GroupKind.VOLCANO)
    assert least_of(await read(has, GATE), key) == 3
    assert least_of(await read(has), key) is None


async def test_a_server_without_pod_groups_has_none() -> None:
    state = await read({POD_DISRUPTION_BUDGETS: [BUDGET]})
    assert state.preemptions.budgets.are_listed


async def test_what_may_not_be_listed_is_not_known() -> None:
    no = Forbidden("forbidden", status=403)
    assert not (await read({POD_DISRUPTION_BUDGETS: no})).preemptions.budgets.are_listed
    assert not (await read({})).preemptions.budgets.are_listed
    refused = await read({POD_DISRUPTION_BUDGETS: [], NEWEST: no})
    assert not refused.preemptions.budgets.are_listed
