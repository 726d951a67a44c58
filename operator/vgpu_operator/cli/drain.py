"""`kubectl vgpu drain NODE|DEVICE`: cordon devices and evict the pods that use them.

Devices are cordoned first, so that evicted pods do not come back. Pods are evicted rather than
deleted, so PodDisruptionBudgets apply; a refused eviction is retried until the timeout. Other pods
on the node stay; use `kubectl drain` for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import Conflict, NotFound, TooManyRequests
from vgpu_client.transport import Object
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.cli.users import users_of

_POLL_S = 0.5
_AGAIN_S = 5.0
"""The pause before a refused eviction is retried; kubectl drain uses the same."""

Progress = Callable[[int, int], None]
"""Called with the number of claims that are gone and the number of all claims."""


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The devices to drain, and the claims and pods that use them.

    Attributes:
        devices: The GPUDevices.
        claims: The claims that hold all or part of these devices.
        pods: The pods of the claims that have not ended.
    """

    devices: tuple[Object, ...]
    claims: tuple[Object, ...]
    pods: tuple[Object, ...]

    def lines(self) -> list[str]:
        """Return the steps of the plan, one line each."""
        fresh = [d for d in self.devices if not d["spec"].get("cordoned")]
        cordon = [f"cordon device {_name(device)}" for device in fresh]
        evict = [f"evict pod {_place(pod)}" for pod in self.pods]
        idle = [
            f"claim {_place(claim)} holds devices without a pod: it is not changed"
            for claim in self.idle
        ]
        return [*cordon, *evict, *idle] or ["nothing to do: cordoned and not in use"]

    @property
    def idle(self) -> list[Object]:
        """Return the claims that hold devices without a pod; no eviction can free these."""
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
        subject: The name or UUID of a device, or the name of a node; `node/NAME` and `device/NAME`
            are unambiguous.
        say: Prints a line.
        clock: Waits.
    """

    def __init__(
        self,
        api: Api,
        subject: str,
        say: Callable[[str], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._subject = subject
        self._say = say
        self._clock = clock or Clock()

    async def plan(self) -> DrainPlan:
        """Read the devices and the pods that use them.

        Raises:
            CannotAnswer: The node or device does not exist.
            ClientError: Objects cannot be read.
        """
        devices = await self._devices()
        names = {_name(device) for device in devices}
        claims = [
            claim for claim in (await listed(self._api, VGPU_CLAIMS)).items if _holds(claim, names)
        ]
        users = users_of(claims, (await self._api.list(PODS)).items)
        return DrainPlan(tuple(devices), tuple(claims), users.pods)

    async def cordon(self) -> list[str]:
        """Cordon the devices and return the names of those that were not.

        Raises:
            CannotAnswer: The node or device does not exist.
            ClientError: Devices cannot be read or written.
        """
        devices = [each for each in await self._devices() if not each["spec"].get("cordoned")]
        for device in devices:
            await self._cordon(device, cordoned=True)
        return [_name(device) for device in devices]

    async def uncordon(self) -> list[str]:
        """Uncordon the devices and return the names of those that were cordoned.

        Raises:
            CannotAnswer: The node or device does not exist.
            ClientError: Devices cannot be read or written.
        """
        devices = [each for each in await self._devices() if each["spec"].get("cordoned")]
        for device in devices:
            await self._cordon(device, cordoned=False)
        return [_name(device) for device in devices]

    async def carry_out(
        self, plan: DrainPlan, *, limit_s: float, progress: Progress = lambda gone, of: None
    ) -> list[str]:
        """Cordon the devices, evict the pods, and wait until the devices are free.

        Args:
            plan: The devices with their users.
            limit_s: Seconds after which to stop evicting and waiting.
            progress: Called after each change.

        Returns:
            A sentence about each object that is left.

        Raises:
            ClientError: The API server is unreachable or refuses a request. It is safe to run the
                command again.
        """
        for device in plan.devices:
            if not device["spec"].get("cordoned"):
                await self._cordon(device, cordoned=True)
        waiting = {pod["metadata"]["uid"]: pod for pod in plan.pods}
        refused: dict[str, str] = {}
        idle = sorted(_place(claim) for claim in plan.idle)
        names, total = {_name(device) for device in plan.devices}, len(plan.claims) - len(idle)
        waited, next_try = 0.0, 0.0
        while True:
            if waiting and waited >= next_try:
                refused = await self._evict(waiting)
                next_try = waited + _AGAIN_S
            left = await self._holding(names, idle)
            progress(total - min(len(left), total), total)
            if not left or waited >= limit_s:
                return [*_left(left, refused), *_left_idle(idle)]
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S

    async def _holding(self, devices: set[str], idle: Sequence[str]) -> list[Object]:
        """Return the claims that still hold these devices, except claims without a pod."""
        claims = (await self._api.list(VGPU_CLAIMS)).items
        return [each for each in claims if _holds(each, devices) and _place(each) not in idle]

    async def _evict(self, waiting: dict[str, Object]) -> dict[str, str]:
        """Evict the pods and return the reasons of refused evictions by UID.

        Pods that are evicted or gone are removed from `waiting`.
        """
        refused = {}
        for uid, pod in list(waiting.items()):
            metadata = pod["metadata"]
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
                # A new pod may have taken the name; it must not be evicted.
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
            try:
                await self._api.create(PODS, eviction, subresource="eviction")
            except TooManyRequests as error:
                refused[uid] = error.message
                continue
            except (NotFound, Conflict):
                pass  # the pod is gone, or another pod has its name
            else:
                self._say(f"pod {_place(pod)}: evicted")
            del waiting[uid]
        return refused

    async def _devices(self) -> list[Object]:
        prefix, _, name = self._subject.rpartition("/")
        if prefix not in ("", "node", "device"):
            raise CannotAnswer(f"{self._subject}: use NAME, node/NAME or device/NAME")
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
        why = f": its pod cannot be evicted: {refused[uid]}" if uid in refused else ""
        lines.append(f"claim {_place(claim)} still holds devices{why}")
    return lines


def _left_idle(claims: Iterable[str]) -> list[str]:
    return [f"claim {name} holds devices without a pod" for name in claims]


def _holds(claim: Object, devices: Sequence[str] | set[str]) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return any(device.get("name") in devices for device in allocation.get("devices") or ())


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _place(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{_name(obj)}"
