"""Pods that request parts of devices get the parts of a plain model, and none is overcommitted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_pod
from vendor_vectors import CONFIG, a_claim_of, a_ledger, in_use
from vgpu_api.core import Node, Pod
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read
from vgpu_operator.placement import place

pytestmark = pytest.mark.usefixtures("in_turn")

SIZE, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
SETS = (
    {(1, 6): "0", (3, 20): "1", (6, 40): "2"},
    {(1, 10): "19", (1, 20): "15", (2, 20): "14", (4, 40): "5", (7, 80): "0"},
    {(1, 8): "0", (2, 16): "1", (4, 32): "2"},
)


@dataclass
class ADevice:
    """A device of the model with its kinds of parts (size and GiB) and its allocated parts."""

    id: str
    parts: list[tuple[int, int]]
    capacity: int
    held: list[tuple[int, int]] = field(default_factory=list)

    @property
    def largest(self) -> int:
        return max(size for size, _ in self.parts)

    def cores(self, size: int) -> int:
        return -(-100 * size // self.largest)

    def meant(self, wanted: tuple[int, int, int]) -> tuple[int, int] | None:
        """Return the part that a size, or memory and compute, selects. Source: HAMi v2.10.0."""
        size, memory, percent = wanted
        parts = sorted(self.parts)
        if size:
            return next((part for part in parts if part[0] == size), None)
        gib = memory if memory <= 2 * parts[-1][1] else -(-memory // 1024)
        fitting = (part for part in parts if part[1] >= gib and self.cores(part[0]) >= percent)
        return next(fitting, None)

    def takes(self, part: tuple[int, int]) -> bool:
        gib = sum(held[1] for held in self.held) + part[1]
        cores = sum(self.cores(held[0]) for held in self.held) + self.cores(part[0])
        most = max(part[1] for part in self.parts)
        return len(self.held) < self.capacity and gib <= most and cores <= 100


def a_fleet(chance: Random) -> dict[str, list[ADevice]]:
    fleet = {}
    for at in range(chance.randint(1, 3)):
        name, parts = f"node-{at}", sorted(chance.choice(SETS))
        most = max(size for size, _ in parts)
        fleet[name] = [
            ADevice(f"{name}-enflame-drs-{index}", parts, most + chance.choice((0, 0, 2)))
            for index in range(chance.randint(1, 3))
        ]
    return fleet


def raw_node(name: str, devices: list[ADevice]) -> Node:
    register = {
        "devices": [
            {"index": str(index), "capacity": device.capacity}
            for index, device in enumerate(devices)
        ],
        "profiles": {f"{size}g.{gib}gb": "0" for size, gib in devices[0].parts},
    }
    return Node.model_validate(
        {
            "metadata": {
                "name": name,
                "annotations": {"enflame.com/gcu-drs-capacity": json.dumps(register)},
            },
            "status": {
                "allocatable": {SIZE: "6"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def a_wish(chance: Random) -> tuple[int, int, int]:
    """Draw a size, or memory and compute."""
    if chance.random() < 0.5:
        return chance.choice((1, 1, 1, 2, 3, 4, 5, 6, 7)), 0, 0
    return (
        0,
        chance.choice((1, 6, 8, 10, 20, 40, 64, 90, 8192, 20_480)),
        chance.choice((1, 16, 34, 60)),
    )


def raw_pod(wishes: list[tuple[int, int, int]], policy: str) -> Pod:
    containers = [
        a_container(f"c{at}", limits={SIZE: size} if size else {MEMORY: memory, CORES: percent})
        for at, (size, memory, percent) in enumerate(wishes)
    ]
    return a_pod(containers=containers, annotations={"hami.io/gpu-scheduler-policy": policy})


def fits(devices: list[ADevice], wishes: list[tuple[int, int, int]]) -> bool:
    """Return True if the node serves all containers in turn, each on some device."""
    if not wishes:
        return True
    for device in devices:
        part = device.meant(wishes[0])
        if part is not None and device.takes(part):
            device.held.append(part)
            found = fits(devices, wishes[1:])
            device.held.pop()
            if found:
                return True
    return False


@given(seed=st.integers(0, 1 << 32))
def test_a_pod_gets_the_parts_that_its_requests_mean_on_its_node_and_none_is_given_twice(
    seed: int,
) -> None:
    """Each container has the smallest part that serves it there; parts of a device never take more
    slots, memory or compute than it has; a pod of one container waits only where no node has room;
    and objects alone give the same state again.
    """
    chance = Random(seed)
    fleet = a_fleet(chance)
    nodes = [raw_node(name, devices) for name, devices in fleet.items()]
    by_id = {device.id: device for devices in fleet.values() for device in devices}
    ledger, claims = a_ledger(nodes), dict[int, VGPUClaim]()
    placed = dict[int, list[tuple[ADevice, tuple[int, int]]]]()
    for number in range(30):
        if claims and chance.random() < 0.3:
            gone = chance.choice(sorted(claims))
            ledger.remove_claim(claims.pop(gone).metadata.uid or "")
            for device, part in placed.pop(gone):
                device.held.remove(part)
            continue
        wishes = [a_wish(chance) for _ in range(chance.choice((1, 1, 2)))]
        found = read(raw_pod(wishes, chance.choice(("binpack", "spread"))), CONFIG)
        assert found is not None
        assert found.spec is not None
        plan = place(ledger.columns, Demand.of(found.spec, CONFIG))
        if plan.refused:
            assert len(wishes) > 1 or not any(fits(devices, wishes) for devices in fleet.values())
            continue
        placed[number] = []
        for grant, wish in zip(plan.grants, wishes, strict=True):
            device = by_id[grant.uuid]
            part = device.meant(wish)
            assert part is not None
            assert grant.part == f"{part[0]}g.{part[1]}gb"
            assert (grant.memory_mib, grant.cores) == (part[1] * 1024, device.cores(part[0]))
            assert device.takes(part)
            device.held.append(part)
            placed[number].append((device, part))
            assert sum(size for size, _ in device.held) <= device.capacity
        claims[number] = a_claim_of(found.spec, plan, number)
        ledger.apply_claim(claims[number])
    assert in_use(a_ledger(nodes, claims.values())) == in_use(ledger)
