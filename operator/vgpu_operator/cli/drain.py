"""`kubectl vgpu drain NODE|DEVICE`: lets nothing new onto devices, and ends what is on them.

Devices are cordoned first, so what is evicted does not come back. Pods are evicted, not deleted: a
PodDisruptionBudget is asked each time, and an eviction that it refuses is tried again until time is
up. Other pods of the node are left alone; `kubectl drain` is for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import Conflict, NotFound, TooManyRequests
from vgpu_client.transport import Object
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.cli.users import users_of

_POLL_S = 0.5
_AGAIN_S = 5.0
"""An eviction that a budget refused is tried again, as kubectl drain does."""

Progress = Callable[[int, int], None]
"""Takes how many claims have gone, of how many."""


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What is on the devices.

    Attributes:
        devices: The GPUDevices.
        claims: Those that hold a part of them.
        pods: Their pods that have not ended.
    """

    devices: tuple[Object, ...]
    claims: tuple[Object, ...]
    pods: tuple[Object, ...]

    def lines(self) -> list[str]:
        """What will be done, for people."""
        fresh = [d for d in self.devices if not d["spec"].get("cordoned")]
        cordon = [f"cordon device {_name(device)}" for device in fresh]
        evict = [f"evict pod {_place(pod)}" for pod in self.pods]
        idle = [
            f"claim {_place(claim)} holds devices without a pod: it is not touched"
            for claim in self.idle
        ]
        return [*cordon, *evict, *idle] or ["nothing is on it, and it is cordoned"]

    @property
    def idle(self) -> list[Object]:
        """Claims that hold devices for no pod, which an eviction does not end."""
        served = {pod["metadata"]["uid"] for pod in self.pods}
        return [
            claim
            for claim in self.claims
            if (claim["status"].get("reservedFor") or {}).get("podUID", "") not in served
        ]


class Drain:
    """Drains one device, or all devices of one node.

    Args:
        api: An administrator's client.
        subject: A device's name or UUID, or a node's name; `node/NAME` and `device/NAME`
            distinguish them.
        say: Takes lines for people.
        sleep: Waits.
    """

    def __init__(
        self,
        api: Api,
        subject: str,
        say: Callable[[str], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._subject = subject
        self._say = say
        self._sleep = sleep

    async def plan(self) -> DrainPlan:
        """Read what there is.

        Raises:
            CannotAnswer: There is no such node or device.
            ClientError: It cannot be read.
        """
        devices = await self._devices()
        names = {_name(device) for device in devices}
        claims = [
            claim for claim in (await listed(self._api, VGPU_CLAIMS)).items if _holds(claim, names)
        ]
        users = users_of(claims, (await self._api.list(PODS)).items)
        return DrainPlan(tuple(devices), tuple(claims), users.pods)

    async def uncordon(self) -> list[str]:
        """Let new claims onto the devices again; returns their names.

        Raises:
            CannotAnswer: There is no such node or device.
            ClientError: It cannot be read or written.
        """
        devices = [each for each in await self._devices() if each["spec"].get("cordoned")]
        for device in devices:
            await self._cordon(device, cordoned=False)
        return [_name(device) for device in devices]

    async def carry_out(
        self, plan: DrainPlan, *, limit_s: float, progress: Progress = lambda gone, of: None
    ) -> list[str]:
        """Cordon, evict, and wait until the devices are free.

        Args:
            plan: What there is.
            limit_s: How long evictions are tried and their ends waited for.
            progress: Called whenever something has changed.

        Returns:
            What is left, as sentences.

        Raises:
            ClientError: The API server is away, or refuses us something; run it again.
        """
        for device in plan.devices:
            if not device["spec"].get("cordoned"):
                await self._cordon(device, cordoned=True)
        waiting = {pod["metadata"]["uid"]: pod for pod in plan.pods}
        refused: dict[str, str] = {}
        idle = {_place(claim) for claim in plan.idle}
        names, total = {_name(device) for device in plan.devices}, len(plan.claims) - len(idle)
        waited, next_try = 0.0, 0.0
        while True:
            if waiting and waited >= next_try:
                refused = await self._evict(waiting)
                next_try = waited + _AGAIN_S
            claims = (await self._api.list(VGPU_CLAIMS)).items
            held = [claim for claim in claims if _holds(claim, names)]
            left = [claim for claim in held if _place(claim) not in idle]
            progress(total - min(len(left), total), total)
            if not left:
                return [f"claim {place} holds devices without a pod" for place in sorted(idle)]
            if waited >= limit_s:
                return [*_left(left, refused), *(f"claim {p} holds devices" for p in sorted(idle))]
            await self._sleep(_POLL_S)
            waited += _POLL_S

    async def _evict(self, waiting: dict[str, Object]) -> dict[str, str]:
        """Ask for the eviction of each; returns why some are refused, by pod UID.

        What was accepted is taken out of `waiting`.
        """
        refused = {}
        for uid, pod in list(waiting.items()):
            metadata = pod["metadata"]
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
            try:
                await self._api.create(PODS, eviction, subresource="eviction")
            except TooManyRequests as error:
                refused[uid] = error.message
                continue
            except (NotFound, Conflict):
                pass  # it has gone, or another has its name
            else:
                self._say(f"pod {_place(pod)}: evicted")
            del waiting[uid]
        return refused

    async def _devices(self) -> list[Object]:
        prefix, _, name = self._subject.rpartition("/")
        if prefix not in ("", "node", "device"):
            raise CannotAnswer(f"{self._subject}: give a name, node/NAME or device/NAME")
        devices = (await listed(self._api, GPU_DEVICES)).items
        named = [
            each
            for each in devices
            if prefix != "node"
            and name in (_name(each), (each.get("status") or {}).get("uuid", ""))
        ]
        if named or prefix == "device":
            if not named:
                raise CannotAnswer(f"no device {name}")
            return named
        on_node = [each for each in devices if each["spec"]["nodeName"] == name]
        if on_node:
            return sorted(on_node, key=_name)
        try:
            await self._api.get(NODES, name)
        except NotFound:
            what = "node" if prefix else "node and no device"
            raise CannotAnswer(f"no {what} {name}") from None
        raise CannotAnswer(f"node {name} has no devices")

    async def _cordon(self, device: Object, *, cordoned: bool) -> None:
        name = _name(device)
        await self._api.merge_patch(GPU_DEVICES, name, {"spec": {"cordoned": cordoned}})
        self._say(f"device {name}: {'cordoned' if cordoned else 'uncordoned'}")


def _left(claims: Iterable[Object], refused: dict[str, str]) -> list[str]:
    lines = []
    for claim in claims:
        uid = (claim["status"].get("reservedFor") or {}).get("podUID", "")
        why = f": its pod is not evicted: {refused[uid]}" if uid in refused else ""
        lines.append(f"claim {_place(claim)} still holds devices{why}")
    return lines


def _holds(claim: Object, devices: Sequence[str] | set[str]) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return any(device.get("name") in devices for device in allocation.get("devices") or ())


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _place(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{_name(obj)}"
