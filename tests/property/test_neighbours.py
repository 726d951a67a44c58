"""Pods with a class and a policy for sharing devices are placed as by a plain model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_pod
from vendor_vectors import CONFIG, a_claim_of, a_ledger, in_use
from vgpu_api.core import Node, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read
from vgpu_operator.placement import place

pytestmark = pytest.mark.usefixtures("in_turn")

COUNT, CORES, MEMORY = "metax-tech.com/sgpu", "metax-tech.com/vcore", "metax-tech.com/vmemory"
CLASS, POLICY = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
LINKS = "metax-tech.com/sgpu-topology-aware"
NODES = ("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy")
GIB = 16
"""The memory of each device in GiB."""


@dataclass
class ADevice:
    """A device of the model with the containers that it serves."""

    id: str
    index: int
    slots: int
    zone: int
    held: list[tuple[str, str, int, int]] = field(default_factory=list)
    """A container's class, policy (empty: any), Gi and percent."""

    def of(self, app_class: str) -> int:
        return sum(held[0] == app_class for held in self.held)

    @property
    def memory(self) -> int:
        return sum(held[2] for held in self.held)

    @property
    def cores(self) -> int:
        return sum(held[3] for held in self.held)

    def takes(self, app_class: str, policy: str, gib: int, cores: int) -> bool:
        """Return True if the device passes HAMi's checks, made in HAMi's order."""
        classed = self.of("online") + self.of("offline") > 0
        if self.held and classed != (app_class != ""):
            return False
        if app_class == "offline" and self.of("online"):
            return False
        policies = {held[1] for held in self.held if held[1]}
        if app_class != "online" and cores != 100 and policies - {policy}:
            return False
        if len(self.held) >= self.slots or self.memory + gib > GIB:
            return False
        if app_class == "online":
            return True
        if self.cores + cores > 100 or (cores == 100 and self.held):
            return False
        return cores > 0 or self.cores < 100

    def score(self, gib: int, cores: int) -> float:
        slots = (1 + len(self.held)) / self.slots
        return 10.0 * (slots + (cores + self.cores) / 100 + (gib + self.memory) / GIB)


@dataclass
class ANode:
    """A node of the model."""

    name: str
    devices: list[ADevice]

    def plan(self, pod: APod) -> list[list[ADevice]] | None:
        """Return the devices that each container would get, without changing the model."""
        given: list[list[ADevice]] = []
        for count, gib, cores in pod.containers:
            cores = 0 if pod.app_class == "online" else cores
            fitting = [d for d in self.devices if d.takes(pod.app_class, pod.policy, gib, cores)]
            ranked = sorted(fitting, key=lambda device: device.score(gib, cores))
            wanted = ranked if pod.policies[1] == "binpack" else _emptiest(fitting, gib, cores)
            wanted = wanted[::-1]
            if len(wanted) < count:
                given = [[], *given]
                break
            if pod.app_class == "online":
                chosen = sorted(wanted, key=_fewest_online)[:count]
            elif not pod.app_class and cores == 100:
                chosen = _by_zones(self.devices, wanted, count)
            else:
                chosen = wanted[:count]
            for device in chosen:
                device.held.append(pod.share(gib, cores))
            given.append(chosen)
        is_whole = all(given)
        for device in (device for container in given for device in container):
            device.held.pop()
        return given if is_whole else None

    def key(self, pod: APod, given: list[list[ADevice]]) -> float:
        """Return the node's sort key; the node with the smallest key is preferred."""
        slots = sum(device.slots for device in self.devices)
        held = sum(len(device.held) for device in self.devices)
        cores = sum(device.cores for device in self.devices)
        memory = sum(device.memory for device in self.devices)
        size = len(self.devices)
        use = 10.0 * (held / slots + cores / (100 * size) + memory / (GIB * size))
        own = {id(device): device for container in given for device in container}
        return (use if pod.policies[0] == "spread" else -use) - 10_000 * self.rule(pod, own)

    def rule(self, pod: APod, own: dict[int, ADevice]) -> int:
        """Return the amount that HAMi's MetaX rule adds to the score of the node."""
        if pod.app_class == "online":
            scores = ((d.of("online"), d.of("offline")) for d in own.values())
            return sum(-20 * on - 2 * off if on else -100 * off for on, off in scores)
        if not pod.links_first or not any(cores == 100 for _, _, cores in pod.containers):
            return 0
        alone = [
            device
            for (_, _, cores), container in zip(pod.containers, pod.last, strict=True)
            for device in container
            if cores == 100
        ]
        free = [device for device in self.devices if not device.held]
        rest = [device for device in free if all(device is not other for other in alone)]
        lost = _links(free) - _links(alone) - _links(rest)
        return 10 * _links(alone) - lost


@dataclass
class APod:
    """A pod of the model, whose containers have a number of devices, Gi (0: all) and percent."""

    app_class: str
    policy: str
    links_first: bool
    policies: tuple[str, str]
    containers: list[tuple[int, int, int]]
    last: list[list[ADevice]] = field(default_factory=list)

    def share(self, gib: int, cores: int) -> tuple[str, str, int, int]:
        has_policy = self.app_class != "online" and cores != 100
        return self.app_class, self.policy if has_policy else "", gib, cores

    @property
    def is_denied(self) -> bool:
        """Return True if HAMi's webhook refuses the pod."""
        if self.app_class not in ("", "online", "offline"):
            return True
        if self.app_class and any(count != 1 for count, _, _ in self.containers):
            return True
        policies = ("best-effort", "fixed-share", "burst-share")
        return self.app_class != "online" and self.policy not in policies

    def choose(self, nodes: list[ANode]) -> tuple[ANode, list[list[ADevice]]] | None:
        best: tuple[float, str] | None = None
        found = None
        for node in nodes:
            plan = node.plan(self)
            if plan is None:
                continue
            self.last = plan
            key = node.key(self, plan), node.name
            if best is None or key < best:
                best, found = key, (node, plan)
        return found


def _emptiest(devices: list[ADevice], gib: int, cores: int) -> list[ADevice]:
    return sorted(devices, key=lambda device: -device.score(gib, cores))


def _fewest_online(device: ADevice) -> tuple[bool, int, int]:
    online, offline = device.of("online"), device.of("offline")
    return online == 0 and offline > 0, online, offline


def _by_zones(devices: list[ADevice], wanted: list[ADevice], count: int) -> list[ADevice]:
    """Return devices of few zones; a device that is alone in its zone on its node has no zone."""
    if len(wanted) <= count:
        return wanted
    zones = [device.zone for device in devices]
    groups: dict[int, list[ADevice]] = {}
    for device in wanted:
        is_linked = device.zone > 0 and zones.count(device.zone) > 1
        groups.setdefault(device.zone if is_linked else 0, []).append(device)
    others = groups.pop(0, [])
    found = sorted(groups.values(), key=len)
    for group in found:
        if len(group) >= count:
            return group[:count]
    return [*(device for group in found for device in group), *others][:count]


def _links(devices: list[ADevice]) -> int:
    """Return a score of 10 for each two devices of one zone."""
    pairs = combinations(devices, 2)
    return 10 * sum(one is not other and one.zone == other.zone > 0 for one, other in pairs)


def raw_node(node: ANode) -> Node:
    """Return the node as its plugin registers it, with a policy that no program reads."""
    register = [
        {
            "uuid": device.id,
            "totalDevCount": device.slots,
            "totalCompute": 100,
            "totalVRam": GIB * 1024,
            "healthy": True,
            "qosPolicy": "burst-share",
            "linkZone": device.zone,
        }
        for device in node.devices
    ]
    annotations = {"metax-tech.com/node-gpu-devices": json.dumps(register)}
    return Node.model_validate(
        {
            "metadata": {"name": node.name, "annotations": annotations},
            "status": {
                "allocatable": {COUNT: "16"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def raw_pod(pod: APod) -> Pod:
    said = dict(zip(NODES, pod.policies, strict=True)) | {POLICY: pod.policy}
    if pod.app_class:
        said[CLASS] = pod.app_class
    if pod.links_first:
        said[LINKS] = "true"
    containers = []
    for at, (count, gib, cores) in enumerate(pod.containers):
        limits: dict[str, str | int] = {COUNT: count, MEMORY: gib}
        if cores != 100:  # the default policy
            limits[CORES] = cores
        containers.append(a_container(f"c{at}", limits=limits))
    return a_pod(annotations=said, containers=containers)


def a_fleet(chance: Random) -> list[ANode]:
    return [
        ANode(
            f"node-{at}",
            [
                ADevice(
                    f"SGPU-{at}-{number}",
                    number,
                    slots=chance.choice((1, 2, 4, 4, 8)),
                    zone=chance.choice((0, 1, 1, 2, 2)),
                )
                for number in range(chance.randint(1, 6))
            ],
        )
        for at in range(chance.randint(1, 3))
    ]


def some_pod(chance: Random) -> APod:
    app_class = chance.choice(("", "", "", "online", "online", "online", "offline", "offline"))
    containers = [
        (
            chance.choice((1, 1, 1, 1, 2, 3)) if not app_class or chance.random() < 0.1 else 1,
            chance.choice((1, 1, 2, 4, 8, 16)),
            chance.choice((0, 10, 30, 50, 60, 100, 100)),
        )
        for _ in range(1 if app_class else chance.choice((1, 1, 2)))
    ]
    return APod(
        "both" if chance.random() < 0.03 else app_class,
        chance.choice(("best-effort", "best-effort", "best-effort", "fixed-share", "none")),
        chance.random() < 0.5,
        (chance.choice(("binpack", "spread")), chance.choice(("binpack", "spread"))),
        containers,
    )


def some_steps(chance: Random) -> Iterator[APod | int]:
    """Yield pods to create, and the step numbers of pods that end."""
    for number in range(40):
        yield chance.randrange(number) if number and chance.random() < 0.25 else some_pod(chance)


@given(seed=st.integers(0, 1 << 32))
def test_each_pod_is_denied_refused_or_placed_as_by_the_model(seed: int) -> None:
    """Denied by the webhook, refused by all nodes, or on the same devices of the same node; and
    objects alone give the same state again. Source of the model's rules: HAMi v2.10.0, MetaX sGPU;
    two containers of a pod with a class are left out, since HAMi takes a device of the first one
    for one of no class. A seed stands for 40 steps: lists of steps that hypothesis draws are short,
    and devices that serve several classes rare in them.
    """
    chance = Random(seed)
    fleet = a_fleet(chance)
    ledger, claims = a_ledger(map(raw_node, fleet)), dict[int, VGPUClaim]()
    placed = dict[int, tuple[APod, list[list[ADevice]]]]()
    for number, step in enumerate(some_steps(chance)):
        if isinstance(step, int):
            if step in claims:
                ledger.remove_claim(claims.pop(step).metadata.uid or "")
                _take_off(*placed.pop(step))
            continue
        try:
            demand = read(raw_pod(step), CONFIG)
        except BadInput:
            assert step.is_denied
            continue
        assert not step.is_denied
        assert demand is not None
        assert demand.spec is not None
        plan = place(ledger.columns, Demand.of(demand.spec, CONFIG))
        expected = step.choose(fleet)
        assert plan.refused == (expected is None)
        if expected is None:
            continue
        node, chosen = expected
        assert plan.node == node.name
        given_here = [
            [grant.uuid for grant in plan.grants if grant.request == f"c{at}"]
            for at in range(len(step.containers))
        ]
        assert given_here == [[device.id for device in container] for container in chosen]
        claims[number] = a_claim_of(demand.spec, plan, number)
        ledger.apply_claim(claims[number])
        placed[number] = step, chosen
        _put_on(step, chosen)
    assert in_use(a_ledger(map(raw_node, fleet), claims.values())) == in_use(ledger)


def _shares(pod: APod, given: list[list[ADevice]]) -> list[tuple[ADevice, Any]]:
    return [
        (device, pod.share(gib, 0 if pod.app_class == "online" else cores))
        for (_, gib, cores), container in zip(pod.containers, given, strict=True)
        for device in container
    ]


def _put_on(pod: APod, given: list[list[ADevice]]) -> None:
    for device, share in _shares(pod, given):
        device.held.append(share)


def _take_off(pod: APod, given: list[list[ADevice]]) -> None:
    for device, share in _shares(pod, given):
        device.held.remove(share)
