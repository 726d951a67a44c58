"""Carries out effects: the only place where the engine writes to the API server.

Each outcome that matters becomes an event. If the outcome of a write is unknown, the object is
read. If a write fails because the object has changed, the event contains the current claim, and the
engine decides again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import ValidationError

from vgpu_api.core import Pod, ResourceClaim
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_POD_UID,
    ANNOTATION_REQUEUE,
    FIELD_MANAGER_LIVENESS,
    FIELD_MANAGER_OPERATOR,
    FIELD_MANAGER_REGISTERS,
    FINALIZER_IN_USE,
)
from vgpu_api.resources import GPU_DEVICES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.backoff import Backoff
from vgpu_client.clock import Clock, rfc3339
from vgpu_client.errors import ClientError, Conflict, NotFound, TooManyRequests
from vgpu_client.object_writer import (
    Apply,
    Conflicted,
    Create,
    Delete,
    Merge,
    ObjectWriter,
    Outcome,
    Patch,
    Rejected,
    Request,
    Target,
    Unresolved,
    Unsent,
    Write,
    Written,
)
from vgpu_client.recorder import Recorder
from vgpu_operator.engine import effects, events
from vgpu_operator.engine.claims.status_patch import status_patch
from vgpu_operator.engine.observability.decision_log import DecisionLog
from vgpu_operator.metrics import RESOURCE_CLAIM_WRITES

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 2.0
_REQUEUE_ATTEMPTS = 4
_REQUEUES_AT_ONCE = 16
_MARKS_AT_ONCE = 8
"""Limited because a failing zone has thousands of devices, and claims and Bindings must not wait
behind them.
"""


class Effector:
    """The writer of the engine's effects.

    Args:
        api: Reads claims and pods.
        writer: Writes objects, in order per object, within the rest of the lease.
        recorder: Records events.
        clock: Provides the time for requeues, and waits between attempts.
        observe: Receives the outcomes of effects as events.
        leads: Returns True while this replica may write. After that, claims are not read again,
            because the successor reads them anyway.
    """

    def __init__(
        self,
        api: Api,
        writer: ObjectWriter,
        recorder: Recorder,
        clock: Clock,
        *,
        observe: Callable[[events.Event], None],
        leads: Callable[[], bool],
    ) -> None:
        self._api = api
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._observe = observe
        self._leads = leads
        self._background = Background()
        self._requeues = asyncio.Semaphore(_REQUEUES_AT_ONCE)
        self._marks = asyncio.Semaphore(_MARKS_AT_ONCE)
        self._marking: set[str] = set()
        self._decisions = DecisionLog()

    def submit(self, desired: Iterable[effects.Effect]) -> None:
        """Start carrying out effects, and return at once."""
        for effect in desired:
            match effect:
                case effects.WriteClaim() | effects.DeleteClaim() | effects.WriteResourceClaim():
                    self._background.start(self._change_claim(effect))
                case effects.WriteDevice():
                    self._background.start(self._write_device(effect))
                case effects.PublishDevice():
                    self._background.start(self._publish_device(effect))
                case effects.MarkDevice():
                    # if there is one, a mark for the device is already in flight
                    if effect.name not in self._marking:
                        self._marking.add(effect.name)
                        self._background.start(self._mark_device(effect))
                case effects.ReadPod():
                    self._background.start(self._read_pod(effect))
                case effects.Requeue() | effects.MarkPod() | effects.EvictPod():
                    self._background.start(self._touch_pod(effect))
                case effects.LiftGate() | effects.DeletePod():
                    self._background.start(self._write_pod(effect))
                case effects.RecordEvent():
                    self._record(effect)

    async def drain(self) -> None:
        """Wait until all submitted effects have ended."""
        await self._background.drain()

    # Claims.

    async def _change_claim(
        self, effect: effects.WriteClaim | effects.DeleteClaim | effects.WriteResourceClaim
    ) -> None:
        """Carry out an effect that applies to a specific version of a claim."""
        match effect:
            case effects.WriteClaim():
                await self._write_claim(effect)
            case effects.DeleteClaim():
                await self._delete_claim(effect)
            case effects.WriteResourceClaim():
                await self._write_resource_claim(effect)

    async def _write_claim(self, effect: effects.WriteClaim) -> None:
        outcome = await self._writer.submit(
            Write(_claim(effect), _requests(effect), effect.version)
        )
        match outcome:
            case Written(obj):
                self._decisions.log(effect)
                ended = events.ClaimWritten(effect, "done", _decoded(obj))
            case Rejected(error) if error.status == 404:
                # 404: the claim was deleted before the write. That is a conflict with a claim that
                # is gone, not a refusal of the write.
                ended = events.ClaimWritten(effect, "conflict", None, str(error))
            case Rejected(error):
                logger.warning("claim %s/%s not written: %s", *effect.key, error)
                ended = events.ClaimWritten(effect, "refused", None, str(error))
            case Unsent(reason):
                logger.warning("claim %s/%s not written: %s", *effect.key, reason)
                ended = events.ClaimWritten(effect, "unsent", None, reason)
            case Conflicted(error):
                ended = events.ClaimWritten(
                    effect, "conflict", await self._read_claim(effect), str(error)
                )
            case Unresolved(error, tested):
                logger.warning("claim %s/%s: %s; reading it again", *effect.key, error)
                found = await self._read_claim(effect)
                ended = events.ClaimWritten(effect, "unknown", found, str(error), tested)
        self._observe(ended)

    async def _read_claim(self, effect: effects.WriteClaim) -> VGPUClaim | None:
        """Return the current claim; None if it is gone or invalid, or if leadership is lost."""
        namespace, name = effect.key
        backoff = Backoff(_FIRST_WAIT_S, _LAST_WAIT_S)
        # The write's assumption stays until the claim is read, so keep trying while this replica
        # leads.
        while self._leads():
            try:
                return _decoded(await self._api.get(VGPU_CLAIMS, name, namespace=namespace))
            except NotFound:
                return None
            except ClientError as error:
                logger.warning("claim %s/%s not read: %s", namespace, name, error)
                await self._clock.sleep(backoff.failed())
        return None

    async def _delete_claim(self, effect: effects.DeleteClaim) -> None:
        target = Target(VGPU_CLAIMS, *effect.key)
        logger.info("claim %s/%s: unused for long enough", *effect.key)
        outcome = await self._writer.submit(Write(target, (Delete(effect.uid),), effect.version))
        why = "" if isinstance(outcome, Written) else str(outcome)
        if why:
            logger.info("claim %s/%s not deleted: %s", *effect.key, why)
        self._observe(events.ClaimDeletionEnded(effect, why))

    async def _write_resource_claim(self, effect: effects.WriteResourceClaim) -> None:
        if effect.nominate is not None:
            await self._requeue(effect.nominate)
        target = Target(RESOURCE_CLAIMS, effect.namespace, effect.name)
        outcome = await self._writer.submit(
            Write(target, _resource_claim_requests(effect), effect.version)
        )
        if isinstance(outcome, Written):
            found = ResourceClaim.model_validate(outcome.obj)
            ended = events.ResourceClaimWritten(effect, "done", found)
        else:
            ended = await self._read_resource_claim(effect, outcome)
        labels = {"purpose": effect.purpose, "outcome": ended.outcome}
        RESOURCE_CLAIM_WRITES.labels(**labels).inc()
        self._observe(ended)

    async def _read_resource_claim(
        self, effect: effects.WriteResourceClaim, outcome: Outcome
    ) -> events.ResourceClaimWritten:
        """Return the outcome of a write that was not done, with the current ResourceClaim."""
        name = f"{effect.namespace}/{effect.name}"
        logger.warning("ResourceClaim %s not written: %s", name, outcome)
        # An unresolved write may still land, so the version that was just read is not final.
        is_open = isinstance(outcome, Unresolved)
        ended: Literal["refused", "unknown"] = "unknown" if is_open else "refused"
        why = str(outcome)
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, effect.name, namespace=effect.namespace)
        except NotFound:
            return events.ResourceClaimWritten(effect, ended, is_gone=True, why=why)
        except ClientError as error:
            logger.warning("ResourceClaim %s not read: %s", name, error)
            return events.ResourceClaimWritten(effect, ended, why=why)
        found = ResourceClaim.model_validate(raw)
        return events.ResourceClaimWritten(effect, ended, found, why=why)

    # Devices and pods.

    async def _write_device(self, effect: effects.WriteDevice) -> None:
        obj = {"metadata": {"name": effect.name}, "status": effect.status}
        apply_ = Apply(obj, FIELD_MANAGER_OPERATOR, subresource="status")
        outcome = await self._writer.submit(
            Write(Target(GPU_DEVICES, None, effect.name), (apply_,))
        )
        if not isinstance(outcome, Written):
            logger.info("device %s not written: %s", effect.name, outcome)
        self._observe(_device_written(effect, outcome))

    async def _publish_device(self, effect: effects.PublishDevice) -> None:
        """Write a registered device, with another field manager than the device's holders."""
        obj = {"metadata": {"name": effect.name}, "status": effect.status}
        requests: list[Request] = [] if effect.create is None else [Create(effect.create)]
        requests.append(Apply(obj, FIELD_MANAGER_REGISTERS, subresource="status"))
        async with self._marks:
            outcome = await self._writer.submit(
                Write(Target(GPU_DEVICES, None, effect.name), tuple(requests))
            )
        if not isinstance(outcome, Written):
            logger.warning("device %s not published: %s", effect.name, outcome)
        self._observe(_device_written(effect, outcome))

    async def _mark_device(self, effect: effects.MarkDevice) -> None:
        """Mark a device. A field manager of its own keeps our other fields."""
        status = {"conditions": [effect.condition.to_wire()]}
        obj = {"metadata": {"name": effect.name}, "status": status}
        apply_ = Apply(obj, FIELD_MANAGER_LIVENESS, subresource="status")
        try:
            async with self._marks:
                outcome = await self._writer.submit(
                    Write(Target(GPU_DEVICES, None, effect.name), (apply_,))
                )
        finally:
            self._marking.discard(effect.name)
        # the device is marked again while its agent stays silent
        if not isinstance(outcome, Written):
            logger.warning("device %s not marked: %s", effect.name, outcome)

    async def _read_pod(self, effect: effects.ReadPod) -> None:
        try:
            raw = await self._api.get(PODS, effect.name, namespace=effect.namespace)
        except NotFound:
            self._observe(events.PodRead(effect, "gone"))
            return
        except ClientError as error:
            logger.warning("pod %s/%s not read: %s", effect.namespace, effect.name, error)
            self._observe(events.PodRead(effect, "unknown"))
            return
        # A pod with another UID is another pod: the intended pod is gone.
        if raw["metadata"].get("uid") != effect.uid:
            self._observe(events.PodRead(effect, "gone"))
            return
        self._observe(events.PodRead(effect, "there", Pod.model_validate(raw)))

    async def _touch_pod(
        self, effect: effects.Requeue | effects.MarkPod | effects.EvictPod
    ) -> None:
        """Carry out an effect that applies to any version of a pod."""
        match effect:
            case effects.Requeue():
                await self._requeue(effect)
            case effects.MarkPod():
                await self._mark_pod(effect)
            case effects.EvictPod():
                await self._evict_pod(effect)

    async def _write_pod(self, effect: effects.LiftGate | effects.DeletePod) -> None:
        """Carry out an effect that applies to a specific version of a pod."""
        match effect:
            case effects.LiftGate():
                await self._lift_gate(effect)
            case effects.DeletePod():
                await self._delete_pod(effect)

    async def _lift_gate(self, effect: effects.LiftGate) -> None:
        """Lift a gate with one conditional request; if that fails, read the pod."""
        target = Target(PODS, effect.namespace, effect.name)
        outcome = await self._writer.submit(
            Write(target, (Patch(effect.operations),), effect.version)
        )
        if isinstance(outcome, Written):
            pod = Pod.model_validate(outcome.obj)
            self._observe(events.GateEnded(effect, "lifted", pod))
            return
        logger.warning("gate of pod %s/%s not lifted: %s", effect.namespace, effect.name, outcome)
        is_open = isinstance(outcome, Unresolved)
        found: Pod | None = None
        try:
            raw = await self._api.get(PODS, effect.name, namespace=effect.namespace)
            if raw["metadata"].get("uid") == effect.uid:
                found = Pod.model_validate(raw)
        except NotFound:
            pass  # the watch will report it if the pod was bound
        except ClientError as error:
            logger.warning("pod %s/%s not read: %s", effect.namespace, effect.name, error)
        if found is not None and not found.spec.scheduling_gates:
            ended = events.GateEnded(effect, "lifted", found)
        else:
            ended = events.GateEnded(
                effect, "unknown" if is_open else "refused", found, str(outcome)
            )
        self._observe(ended)

    async def _delete_pod(self, effect: effects.DeletePod) -> None:
        """Try once to delete a pod; the engine retries while there is no room for the pod."""
        target = Target(PODS, effect.namespace, effect.name)
        outcome = await self._writer.submit(Write(target, (Delete(effect.uid),), effect.version))
        if not isinstance(outcome, Written):
            logger.info("pod %s/%s not deleted: %s", effect.namespace, effect.name, outcome)

    async def _mark_pod(self, effect: effects.MarkPod) -> None:
        """Try once to mark a pod; the engine marks it again while the pod does not show it."""
        annotations = {ANNOTATION_REQUEUE: effect.mark}
        changes = Merge({"metadata": {"uid": effect.uid, "annotations": annotations}})
        target = Target(PODS, effect.namespace, effect.name)
        outcome = await self._writer.submit(Write(target, (changes,)))
        if not isinstance(outcome, Written):
            logger.info("pod %s/%s not marked: %s", effect.namespace, effect.name, outcome)

    async def _evict_pod(self, effect: effects.EvictPod) -> None:
        """Try once to evict a pod, and report the outcome if it is evicted for another pod.

        A pod whose claim violates limits is tried again by the engine, which sees it still run.
        """
        outcome, error = await self._evicted(effect)
        pod, because = effect.regarding, f"because {effect.why}"
        name = f"{pod.namespace}/{pod.name}"
        if error is not None:
            logger.warning("pod %s not evicted: %s", name, error)
            note = f"should be evicted {because}: {error}"
            self._record(effects.RecordEvent(pod, "Warning", "NotEvicted", "Evicting", note))
        elif outcome == "evicted":
            fields = {"pod": name, "decision": effect.reason.lower()}
            logger.info("pod %s evicted %s", name, because, extra=fields)
            note = f"evicted {because}"
            self._record(effects.RecordEvent(pod, "Warning", effect.reason, "Evicting", note))
        if effect.preemptor is not None:
            self._observe(events.EvictionEnded(effect, outcome))

    async def _evicted(
        self, effect: effects.EvictPod
    ) -> tuple[Literal["evicted", "gone", "protected", "failed"], ClientError | None]:
        """Send the eviction; return its outcome, and the error if the pod stays."""
        pod = effect.regarding
        if effect.force:
            target = Target(PODS, pod.namespace, pod.name)
            ended = await self._writer.submit(Write(target, (Delete(pod.uid),)))
            match ended:
                case Written():
                    return "evicted", None
                case Conflicted():
                    return "gone", None  # another pod has its name
                case Rejected(error) | Unresolved(error):
                    return ("gone", None) if isinstance(error, NotFound) else ("failed", error)
            return "failed", None
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.create(PODS, eviction, subresource="eviction")
        except (NotFound, Conflict):
            return "gone", None
        except ClientError as error:
            return ("protected" if _is_of_a_budget(error) else "failed"), error
        return "evicted", None

    def _record(self, effect: effects.RecordEvent) -> None:
        self._recorder.record(
            effect.regarding,
            type=effect.type,
            reason=effect.reason,
            action=effect.action,
            note=effect.note,
        )

    async def _requeue(self, effect: effects.Requeue) -> None:
        """Requeue a pod with one request: a write of its status may change annotations, too."""
        # With the UID, the request fails if another pod has taken the name.
        changes: dict[str, Any] = {"metadata": {"uid": effect.uid}}
        if effect.wake:
            stamp = rfc3339(self._clock.unix())
            changes["metadata"]["annotations"] = {ANNOTATION_REQUEUE: stamp}
        subresource = None
        if effect.node != "":
            subresource = "status"
            changes["status"] = {"nominatedNodeName": effect.node}
        target = Target(PODS, effect.namespace, effect.name)
        backoff = Backoff(_FIRST_WAIT_S, _LAST_WAIT_S)
        why = ""
        async with self._requeues:
            for _ in range(_REQUEUE_ATTEMPTS):
                outcome = await self._writer.submit(Write(target, (Merge(changes, subresource),)))
                why = "" if isinstance(outcome, Written) else str(outcome)
                if isinstance(outcome, (Written, Rejected, Conflicted)):
                    break  # done, or the pod is gone, bound or replaced
                await self._clock.sleep(backoff.failed())
        if why:
            logger.info("pod %s/%s not requeued: %s", effect.namespace, effect.name, why)
        self._observe(events.RequeueEnded(effect, why))


def _claim(effect: effects.WriteClaim) -> Target:
    return Target(VGPU_CLAIMS, *effect.key)


def _requests(effect: effects.WriteClaim) -> list[Request]:
    """Return the requests in order: create, add our finalizer, write the status, remove it."""
    requests: list[Request] = []
    if effect.create is not None:
        requests.append(Create(effect.create))
    finalizers = effect.finalizers
    if effect.add_finalizer:
        # The API server omits an empty list, and a patch cannot append to a missing one.
        path = "/metadata/finalizers/-" if finalizers else "/metadata/finalizers"
        value: Any = FINALIZER_IN_USE if finalizers else [FINALIZER_IN_USE]
        requests.append(Patch([{"op": "add", "path": path, "value": value}]))
    status = status_patch(effect.before, effect.status)
    if status or not effect.let_go:
        requests.append(Patch(status, subresource="status"))
    if effect.let_go:
        at = finalizers.index(FINALIZER_IN_USE)
        requests.append(Patch([{"op": "remove", "path": f"/metadata/finalizers/{at}"}]))
    return requests


def _resource_claim_requests(effect: effects.WriteResourceClaim) -> list[Request]:
    """Return the requests in order: create, add our finalizer, write the status, remove it."""
    requests: list[Request] = []
    if effect.create is not None:
        requests.append(Create(effect.create))
    if effect.allocation is not None:
        if effect.create is None and effect.finalizers is not None:
            # A merge patch, because there may be no annotations; with the version it is refused if
            # the claim has changed.
            marks = {
                "resourceVersion": effect.version,
                "finalizers": [*effect.finalizers, FINALIZER_IN_USE],
                "annotations": {
                    ANNOTATION_CLAIM: effect.claim.name,
                    ANNOTATION_POD_UID: effect.pod_uid,
                },
            }
            requests.append(Merge({"metadata": marks}))
        requests.append(Patch([_allocated(effect)], subresource="status"))
        return requests
    if effect.purpose != "let go":
        remove = {"op": "remove", "path": "/status/allocation"}
        requests.append(Patch([remove], subresource="status"))
    if effect.finalizers is not None:
        at = effect.finalizers.index(FINALIZER_IN_USE)
        requests.append(Patch([{"op": "remove", "path": f"/metadata/finalizers/{at}"}]))
    return requests


def _allocated(effect: effects.WriteResourceClaim) -> dict[str, Any]:
    """Return the operation that adds the allocation, alone or with the status around it."""
    if effect.is_status_empty:
        return {"op": "add", "path": "/status", "value": {"allocation": effect.allocation}}
    return {"op": "add", "path": "/status/allocation", "value": effect.allocation}


def _device_written(
    effect: effects.WriteDevice | effects.PublishDevice, outcome: Outcome
) -> events.DeviceWritten:
    if isinstance(outcome, Written):
        return events.DeviceWritten(effect, version=outcome.obj["metadata"]["resourceVersion"])
    return events.DeviceWritten(effect, str(outcome))


def _decoded(raw: dict[str, Any]) -> VGPUClaim | None:
    try:
        return VGPUClaim.read(raw)
    except ValidationError as error:
        metadata = raw["metadata"]
        logger.error("claim %s/%s cannot be read: %s", metadata.get("namespace"),
                     metadata["name"], error)  # fmt: skip
        return None


def _is_of_a_budget(error: ClientError) -> bool:
    """Return True if a disruption budget refuses an eviction; a busy server answers 429, too."""
    if not isinstance(error, TooManyRequests):
        return False
    causes = error.details.get("causes") or ()
    return any(cause.get("reason") == "DisruptionBudget" for cause in causes)
