"""Queues the agent's reports on claims and pods, and writes them when the API server is reachable.

PreStart and releases never wait for the API server: they queue their reports here, and a worker
writes them as soon as it can. Conditions (for people) and fields (for programs) are applied
server-side by one field manager, always the full set of the agent's own, based on the newest known
version of the claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from vgpu_api import conditions, init_part, names
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import InitRound
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import (
    Condition,
    GPUDevice,
    InitReleased,
    InitWanted,
    Released,
    VGPUClaim,
    VGPUClaimStatus,
)
from vgpu_client.api import Api
from vgpu_client.clock import Clock, rfc3339
from vgpu_client.errors import ClientError, Conflict, Forbidden, Invalid, NotFound
from vgpu_client.event import create_event
from vgpu_nodeagent.state.node_view import NodeView, Place

logger = logging.getLogger(__name__)

_OWN_TYPES = (
    conditions.PREPARED,
    conditions.INIT_RELEASED,
    conditions.RELEASED,
    conditions.VIOLATED,
    conditions.RESIZED,
)
_OWN_FIELDS = ("released", "init_released", "init_wanted")
_Field: TypeAlias = Released | InitReleased | InitWanted
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 15.0
_MESSAGE_KEPT = 1024
_IN_PLACE = "limits are in place"
_KINDS: Mapping[type[object], tuple[str, str]] = {
    Pod: ("v1", "Pod"),
    GPUDevice: (names.API_VERSION, "GPUDevice"),
    VGPUClaim: (names.API_VERSION, "VGPUClaim"),
}
SLOW_S = 2.0
"""Report a container start that took longer than this.

See docs/design/node-and-grants.md.
"""


@dataclass(slots=True)
class _Pending:
    place: Place
    conditions: dict[str, Condition | None] = field(default_factory=dict)
    fields: dict[str, _Field | None] = field(default_factory=dict)


class Reports:
    """Queues claims' statuses, events and touches, and delivers them.

    Args:
        api: The API server.
        view: The newest known claims.
        clock: The time, and the waits between attempts.
    """

    def __init__(
        self,
        api: Api,
        view: NodeView,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._view = view
        self._clock = clock or Clock()
        self._pending: dict[str, _Pending] = {}
        self._due = asyncio.Event()
        self._once: set[asyncio.Task[None]] = set()
        self._said: dict[str, str] = {}
        self._init_wanted: dict[str, InitRound] = {}  # by claim UID
        self._refused: set[str] = set()  # claim UIDs; the watch may not have shown the refusal yet

    def prepared(self, claim: VGPUClaim, message: str, *, took_s: float) -> None:
        """Report that the claim's limits are in place, and withdraw an earlier release.

        For a pod's own claim, the running container already shows this. So it is reported only if
        the start took long, or after a refusal or another report (docs/design/node-and-grants.md).

        Args:
            claim: The claim.
            message: The message of the condition.
            took_s: Seconds from the kubelet's call until the limits were in place.
        """
        if claim.is_pods_own and took_s <= SLOW_S and not self._was_reported_on(claim):
            return
        self._refused.discard(claim.metadata.uid)
        self._condition(claim, conditions.PREPARED, "True", "LimitsInPlace", message)
        if claim.status.released is not None:
            self._field(claim, "released", None)
        if conditions.find(claim.status.conditions, conditions.RELEASED) is not None:
            self._pending_of(claim).conditions[conditions.RELEASED] = None

    def not_prepared(self, claim: VGPUClaim, reason: str, message: str) -> None:
        """Report that a container of the claim's pod was refused."""
        self._refused.add(claim.metadata.uid)
        self._condition(claim, conditions.PREPARED, "False", reason, message)

    def released(self, claim: VGPUClaim, allocation_id: str) -> None:
        """Report that no part of this allocation is in use any more."""
        prepared = conditions.find(claim.status.conditions, conditions.PREPARED)
        if prepared is not None and prepared.status == "True":
            self._condition(
                claim, conditions.PREPARED, "False", "Released", "the pod's containers are gone"
            )
        self._init_wanted.pop(claim.metadata.uid, None)
        self._refused.discard(claim.metadata.uid)
        self._condition(
            claim,
            conditions.RELEASED,
            "True",
            "ContainersGone",
            "the pod's containers are gone, and nothing can use the GPUs any more",
        )
        released = Released(allocation_id=allocation_id, time=self._stamp())
        self._field(claim, "released", released)

    def not_released(self, claim: VGPUClaim, reason: str, message: str) -> None:
        """Report that the pod is gone, but the allocation may still be in use."""
        self._condition(claim, conditions.RELEASED, "False", reason, message)

    def init_ended(self, claim: VGPUClaim, init_round: InitRound) -> None:
        """Report that nothing of the init containers of this round is in use any more.

        Not reported once the init containers must run again after this round.
        """
        desired = self._init_wanted.get(claim.metadata.uid) == init_round
        if desired or init_part.init_part_rerun(claim):
            return
        self._condition(
            claim,
            conditions.INIT_RELEASED,
            "True",
            init_part.ENDED,
            "the init containers have ended, and nothing can use what only they had",
        )
        ended = InitReleased(
            allocation_id=init_round.allocation_id, round=init_round.number, time=self._stamp()
        )
        self._field(claim, "init_released", ended)
        self._field(claim, "init_wanted", None)

    def init_wanted(self, claim: VGPUClaim, init_round: InitRound) -> None:
        """Report that the init containers must run again after this round and need devices."""
        self._init_wanted[claim.metadata.uid] = init_round
        self._condition(
            claim,
            conditions.INIT_RELEASED,
            "False",
            init_part.WANTED,
            "the init containers must run again and need GPUs first",
        )
        again = InitWanted(allocation_id=init_round.allocation_id, round=init_round.number)
        self._field(claim, "init_wanted", again)
        self._field(claim, "init_released", None)

    def violated(self, claim: VGPUClaim, reason: str, message: str) -> None:
        """Report that the claim's processes exceed a limit."""
        self._condition(claim, conditions.VIOLATED, "True", reason, message)

    def obeys(self, claim: VGPUClaim) -> None:
        """Report that they no longer do; the condition stays as a trace."""
        self._condition(
            claim, conditions.VIOLATED, "False", "WithinLimit", "no more is taken than was given"
        )

    def resized(self, claim: VGPUClaim, message: str) -> None:
        """Report that the pages hold no more than this version of the claim requests.

        If `Prepared` is true, it is updated to this version as well.
        """
        self._condition(claim, conditions.RESIZED, "True", "LimitsInPlace", message)
        if conditions.is_true(claim.status.conditions, conditions.PREPARED):
            self._condition(claim, conditions.PREPARED, "True", "LimitsInPlace", _IN_PLACE)

    def not_resized(self, claim: VGPUClaim, reason: str, message: str) -> None:
        """Report that the resize cannot be done yet, with an event on the claim."""
        self._condition(claim, conditions.RESIZED, "False", reason, message)
        self._do_once(self._event(claim, "ResizeNotDone", message))

    def warning(self, pod: Pod, reason: str, message: str) -> None:
        """Create an event on a pod."""
        self._do_once(self._event(pod, reason, message))

    def device_warning(self, device: GPUDevice, reason: str, message: str) -> None:
        """Create an event on a device."""
        self._do_once(self._event(device, reason, message))

    def refusal(self, pod: Pod, reason: str, message: str) -> None:
        """Create an event on a pod with a refused container, unless the last one was the same."""
        uid = pod.metadata.uid
        if self._said.get(uid) == message:
            return
        self._said[uid] = message
        self._do_once(self._event(pod, reason, message))

    def pod_gone(self, uid: str) -> None:
        """Forget the reports on a pod."""
        self._said.pop(uid, None)

    def touch(self, pod: Pod) -> None:
        """Change the pod, so that the kubelet retries its containers at once."""
        self._do_once(self._touch(pod))

    async def run(self) -> None:
        """Write the statuses of claims, until cancelled."""
        wait_s = _FIRST_RETRY_S
        while True:
            await self._due.wait()
            self._due.clear()
            failed = False
            for uid in list(self._pending):
                failed |= not await self._deliver(uid)
            if not failed:
                wait_s = _FIRST_RETRY_S
                continue
            self._due.set()
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)

    async def close(self) -> None:
        """Cancel events and touches that are not written yet."""
        for task in self._once:
            task.cancel()
        await asyncio.gather(*self._once, return_exceptions=True)

    def _was_reported_on(self, claim: VGPUClaim) -> bool:
        """True if the claim shows, or will show, something that limits in place make untrue."""
        said = (conditions.PREPARED, conditions.RELEASED)
        return (
            claim.metadata.uid in self._refused
            or claim.status.released is not None
            or any(condition.type in said for condition in claim.status.conditions)
        )

    def _condition(
        self, claim: VGPUClaim, type_: str, status: str, reason: str, message: str
    ) -> None:
        condition = Condition.model_validate(
            {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message[:_MESSAGE_KEPT],
                "observedGeneration": claim.metadata.generation,
                "lastTransitionTime": self._stamp(),
            }
        )
        self._pending_of(claim).conditions[type_] = condition
        self._due.set()

    def _field(self, claim: VGPUClaim, name: str, value: _Field | None) -> None:
        self._pending_of(claim).fields[name] = value
        self._due.set()

    def _pending_of(self, claim: VGPUClaim) -> _Pending:
        place = (claim.metadata.namespace or "", claim.metadata.name)
        return self._pending.setdefault(claim.metadata.uid, _Pending(place))

    async def _deliver(self, uid: str) -> bool:
        """Apply the pending reports of a claim; return False to be tried again."""
        pending = self._pending.pop(uid)
        claim = self._view.claims.objects.get(pending.place)
        if claim is None or claim.metadata.uid != uid:
            return True  # gone, or no longer allocated here: nothing to report
        desired = _merged(claim, pending)
        if desired is None:
            return True
        try:
            written = await self._api.apply(
                VGPU_CLAIMS,
                {
                    "metadata": {
                        "namespace": pending.place[0],
                        "name": pending.place[1],
                        "uid": uid,
                    },
                    "status": desired,
                },
                field_manager=names.FIELD_MANAGER_AGENT,
                force=True,
                subresource="status",
            )
            self._view.take_claim(written)
        except (NotFound, Conflict) as error:
            logger.info("claim %s/%s was deleted meanwhile: %s", *pending.place, error)
        except (Invalid, Forbidden) as error:
            # The admission policy refuses writes to a claim that is not allocated to the agent's
            # node any more.
            level = logging.ERROR if await self._is_ours(pending.place, claim) else logging.INFO
            logger.log(level, "cannot write the status of claim %s/%s: %s", *pending.place, error)
        except ClientError as error:
            logger.warning(
                "cannot write the status of claim %s/%s, retrying: %s", *pending.place, error
            )
            newer = self._pending.get(uid)
            if newer is not None:
                pending.conditions.update(newer.conditions)
                pending.fields.update(newer.fields)
            self._pending[uid] = pending
            return False
        return True

    async def _is_ours(self, place: Place, claim: VGPUClaim) -> bool:
        """Read the claim; return True if it still has the same allocation here, or may have."""
        namespace, name = place
        try:
            self._view.take_claim(await self._api.get(VGPU_CLAIMS, name, namespace=namespace))
        except NotFound:
            self._view.drop_claim(place)
        except ClientError as error:
            logger.info("claim %s/%s not read: %s", *place, error)
        newest = self._view.claims.objects.get(place)
        return newest is not None and newest.status.allocation == claim.status.allocation

    async def _event(
        self, regarding: Pod | GPUDevice | VGPUClaim, reason: str, message: str
    ) -> None:
        metadata = regarding.metadata
        version, kind = _KINDS[type(regarding)]
        await create_event(
            self._api,
            {
                "apiVersion": version,
                "kind": kind,
                "metadata": {
                    **({"namespace": metadata.namespace} if kind != "GPUDevice" else {}),
                    "name": metadata.name,
                    "uid": metadata.uid,
                    "resourceVersion": metadata.resource_version,
                },
            },
            type="Warning",
            reason=reason,
            message=message,
            component=names.FIELD_MANAGER_AGENT,
            now=datetime.fromtimestamp(self._clock.unix(), UTC),
        )

    async def _touch(self, pod: Pod) -> None:
        change = {
            "metadata": {
                "uid": pod.metadata.uid,
                "annotations": {names.ANNOTATION_REQUEUE: self._stamp()},
            }
        }
        await self._api.merge_patch(
            PODS, pod.metadata.name, change, namespace=pod.metadata.namespace
        )

    def _do_once(self, work: Awaitable[None]) -> None:
        """Try once, in the background; nothing depends on it, as the kubelet retries anyway."""

        async def attempt() -> None:
            try:
                await work
            except ClientError as error:
                logger.warning("%s", error)

        task = asyncio.ensure_future(attempt())
        self._once.add(task)
        task.add_done_callback(self._once.discard)

    def _stamp(self) -> str:
        return rfc3339(self._clock.unix())


def _merged(claim: VGPUClaim, changes: _Pending) -> dict[str, Any] | None:
    """Return the agent's full part of the status after the changes; None without a change."""
    before = [c for c in claim.status.conditions if c.type in _OWN_TYPES]
    after = list(before)
    for type_, change in changes.conditions.items():
        if change is None:
            after = [condition for condition in after if condition.type != type_]
        else:
            after = conditions.with_condition(after, change)
    had: dict[str, _Field | None] = {name: getattr(claim.status, name) for name in _OWN_FIELDS}
    fields = had | {n: _since(had[n], change) for n, change in changes.fields.items()}
    if (after, fields) == (before, had):
        return None
    status = VGPUClaimStatus.model_validate({"conditions": after, **fields})
    own = {"conditions", *_OWN_FIELDS}
    return status.model_dump(by_alias=True, exclude_none=True, mode="json", include=own)


def _since(old: _Field | None, new: _Field | None) -> _Field | None:
    """Return the new value, or the old one if only the time differs."""
    if isinstance(old, Released | InitReleased) and isinstance(new, Released | InitReleased):
        return old if new.model_copy(update={"time": old.time}) == old else new
    return new
