"""Fleets of any size for the web page, and a server that shows one.

Everything follows from the size, so that two runs show the same models, namespaces, holders, faults
and waiting claims.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from builders import a_claim, a_device, a_node, a_request, an_allocated_device, an_allocation
from vgpu_api.conditions import ALLOCATED
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import Condition, GPUDevice, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_client.clock import Clock
from vgpu_client.listen import listen
from vgpu_local.background import BackgroundLoop
from vgpu_local.started import Started
from vgpu_operator.engine import events
from vgpu_operator.engine.events import Event
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web.history import History
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.server import WebServer
from vgpu_operator.web.sight import Visitors
from vgpu_operator.web.usage import FleetUsage, Used, WantedSeries
from web_world import EVERYTHING, Reviews

DEVICES_PER_NODE = 8
MODELS = (
    ("NVIDIA H100 80GB HBM3", 81_559),
    ("NVIDIA A100-SXM4-80GB", 81_920),
    ("NVIDIA L40S", 46_068),
    ("Tesla T4", 15_360),
)
WAITING: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"memory": "160Gi"}, "CardInsufficientMemory", "asked 163,840 MiB; no device has so much"),
    ({"memory": "8Gi", "count": 16}, "NodeInsufficientDevice", "asked 16 devices on one node"),
    ({"selector": {"models": ["B200"]}}, "CardTypeMismatch", "asked a model with B200"),
)
"""Requests that no fleet can serve, and why."""
TEAMS = ("vision", "speech", "search", "ranking", "robotics", "chem", "fraud", "maps")
WORK = ("train", "serve", "batch", "notebook", "eval")
NOW = "2026-03-02T12:00:00Z"
"""When a fleet is observed; nothing of it is younger."""
RIGHTS: Mapping[str, set[str]] = {
    "admin": EVERYTHING,
    "tenant": {"gpudevices", "vgpuclaims in vision"},
    "stranger": set(),
}
"""The accounts that visit, by their tokens."""
_EVERY_WAITING = 12
"""One in this many claims waits."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a fleet."""

    nodes: int
    claims: int


def name_of(node: int) -> str:
    """Return the name of the node with that number."""
    return f"gpu-{'abcd'[node % 4]}-{node:04d}"


def uuid_of(node: int, index: int) -> str:
    """Return the UUID of the device."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}"


def a_fleet(nodes: int, claims: int) -> Iterator[Event]:
    """Yield a whole fleet, as informers report it."""
    for node in range(nodes):
        name = name_of(node)
        yield events.NodeObserved(
            a_node(name, ready=node % 40 != 17, unschedulable=node % 40 == 23)
        )
        for index in range(DEVICES_PER_NODE):
            yield events.DeviceObserved(_device(node, index))
    for number in range(claims):
        waits = number % _EVERY_WAITING == 5
        yield events.ClaimObserved(a_waiter(number) if waits else a_holder(number, nodes))


def _device(node: int, index: int) -> GPUDevice:
    model, memory_mib = MODELS[node % len(MODELS)]
    at = node * DEVICES_PER_NODE + index
    return a_device(
        uuid=uuid_of(node, index),
        node=name_of(node),
        index=index,
        memory_mib=memory_mib,
        model=model,
        healthy=at % 97 != 11,
        cordoned=at % 131 == 29,
    )


def a_holder(number: int, nodes: int) -> VGPUClaim:
    """Return a claim that holds a part of a device; three in a row share one."""
    at = number // 3 * 7
    node, index = at % nodes, at // nodes % DEVICES_PER_NODE
    total = MODELS[node % len(MODELS)][1]
    memory_mib, cores = total // (3 + number % 4), (0, 10, 20, 30)[number % 4]
    device = an_allocated_device(
        uuid=uuid_of(node, index), index=index, memory_mib=memory_mib, cores=cores
    )
    name = _name(number)
    return a_claim(
        f"{name}-gpu",
        namespace=_namespace(number),
        uid=f"uid-{number}",
        requests=[a_request(memory=f"{memory_mib}Mi", cores=cores)],
        status=VGPUClaimStatus(
            allocation=an_allocation(device, node=name_of(node)),
            reserved_for=ReservedFor(pod_name=name, pod_uid=f"pod-{number}"),
            state="InUse",
            conditions=[_allocated("True", number)],
        ),
    )


def a_waiter(number: int) -> VGPUClaim:
    """Return a claim that was refused."""
    request, reason, message = WAITING[number // _EVERY_WAITING % len(WAITING)]
    return a_claim(
        f"{_name(number)}-gpu",
        namespace=_namespace(number),
        uid=f"uid-{number}",
        requests=[a_request(**request)],
        status=VGPUClaimStatus(
            kept_for_others=[],
            state="Pending",
            conditions=[_allocated("False", number, reason, message)],
        ),
    )


def usage_of(nodes: int, claims: int) -> FleetUsage:
    """Return what a fleet uses: a sixth of the claims idle, a few of them and a node unknown."""
    holders = [number for number in range(claims) if number % _EVERY_WAITING != 5]
    of_claims: dict[ClaimKey, Used] = {}
    of_devices = {
        uuid_of(node, index): Used(512, 0.0)
        for node in range(nodes)
        if node % 40 != 17
        for index in range(DEVICES_PER_NODE)
    }
    for number in holders:
        claim = a_holder(number, nodes)
        assert claim.status.allocation is not None
        (allocated,) = claim.status.allocation.devices
        busy = 0.0 if number % 6 == 0 else (number * 37 % 90 + 5) / 100
        memory = int(allocated.memory_mib * (0.04 if number % 6 == 0 else 0.4 + busy / 2))
        used = Used(memory, round((allocated.cores or 30) * busy, 1))
        device = of_devices.get(allocated.uuid)
        if device is None or number % 29 == 3:
            continue
        of_claims[ClaimKey(claim.metadata.namespace or "", claim.metadata.name)] = used
        of_devices[allocated.uuid] = Used(
            device.memory_mib + used.memory_mib, (device.cores or 0.0) + (used.cores or 0.0)
        )
    peaks = {key: 1.3 * (used.cores or 0.0) for key, used in of_claims.items()}
    return FleetUsage(of_devices, of_claims, peaks=peaks)


class LastDay(History):
    """A history without a Prometheus: use that follows office hours, with a gap."""

    def __init__(self, size: Size) -> None:
        super().__init__(None, Clock())
        self._size = size

    async def of(self, wanted: WantedSeries) -> dict[str, Any]:
        """Return 24 hours until `NOW`."""
        of = {"node": 1, "claim": 1}
        nodes = next((of[name] for name, _ in wanted.labels if name in of), self._size.nodes)
        parts = [
            0.4 + 0.2 * math.sin((at - 60) / 15) + 0.03 * math.sin(at * 1.7) for at in range(97)
        ]
        known = [None if 40 <= at < 44 else part for at, part in enumerate(parts)]
        end = int(datetime.fromisoformat(NOW).timestamp())
        memory, cores = nodes * 74_000, nodes * 90
        return {
            "problem": "",
            "start": end - 96 * 900,
            "stepS": 900,
            "memoryMiB": [None if part is None else part * memory for part in known],
            "cores": [None if part is None else part * cores for part in known],
        }


def _allocated(status: str, number: int, reason: str = "", message: str = "") -> Condition:
    hours, minutes = number * 7 % 9, number * 11 % 60
    return Condition(
        type=ALLOCATED,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=f"2026-03-02T{hours:02d}:{minutes:02d}:00Z",
    )


def _namespace(number: int) -> str:
    return TEAMS[number * number % 13 % len(TEAMS)]


def _name(number: int) -> str:
    return f"{WORK[number % len(WORK)]}-{number:05d}"


class ServedFleet(Started):
    """A fleet on a page, over plain HTTP on loopback, in a thread; a context manager.

    Args:
        size: Of the fleet.

    Attributes:
        reviews: Who may see what; change its rights at will.
        url: Of the page.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        self.reviews = Reviews(dict(RIGHTS))
        self.url = ""
        self._undo = ExitStack()

    def start(self) -> None:
        """Fill the server, and serve."""
        self._loop = BackgroundLoop("page")
        self._undo.callback(self._loop.stop)
        self._mirror = Mirror(ClusterConfig(), Clock())
        for event in a_fleet(self.size.nodes, self.size.claims):
            self._mirror.observe(event)
        self._mirror.take_usage(usage_of(self.size.nodes, self.size.claims))
        listening = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        visitors, synced = Visitors(self.reviews), asyncio.Event()  # type: ignore[arg-type]
        synced.set()
        server = WebServer(
            self._mirror, visitors, LastDay(self.size), listening, tls=None, synced=synced
        )
        self._loop.enter(server, self._undo)

    def stop(self) -> None:
        """End the thread."""
        self._undo.close()

    def observe(self, event: Event) -> None:
        """Apply a change of the cluster."""
        self._do(lambda: self._mirror.observe(event))

    def _do(self, act: Callable[[], None]) -> None:
        async def done() -> None:
            act()

        self._loop.run(done(), limit=30.0)
