"""Bind: write the claim's status first, then post the Binding with the pod's UID.

So a pod that has a node always has an allocation there, or none of its containers starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from vgpu_api.errors import BadInput
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound
from vgpu_client.object_writer import (
    Bind,
    Conflicted,
    ObjectWriter,
    Outcome,
    Rejected,
    Target,
    Unresolved,
    Unsent,
    Write,
    Written,
)
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.events import BindingEnded
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.hami.records import records_of
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.extender.filtering import read_pod
from vgpu_operator.extender.wire import BindRequest

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 8.0
"""kube-scheduler waits 10 s (`httpTimeout` in our configuration). A Bind that takes longer
continues, and kube-scheduler tries the pod again."""
_READ_ATTEMPTS = 5

PodState = Literal["bound here", "unbound", "elsewhere", "gone", "unknown"]


class Binder:
    """Carries out Bind calls.

    Args:
        api: Reads pods.
        writer: Posts Bindings.
        engine: Knows the reservations.
        unix: Unix time, for the time in HAMi's annotations.
        sleep: Waits between reads; replaced in tests.
    """

    def __init__(
        self,
        api: Api,
        writer: ObjectWriter,
        engine: Engine,
        *,
        unix: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._writer = writer
        self._engine = engine
        self._unix = unix
        self._sleep = sleep
        self._under_way: set[asyncio.Task[str]] = set()

    async def bind(self, request: BindRequest) -> str:
        """Bind the pod; return the error, or an empty text if it is bound.

        Raises:
            NotLeading: Another replica decides.
        """
        self._engine.must_lead()
        task = asyncio.create_task(self._bind(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_WITHIN_S)
        if done:
            return task.result()
        return f"no answer from the API server within {ANSWER_WITHIN_S:.0f} s; its Binding goes on"

    async def drain(self) -> None:
        """Wait until every Bind in progress has ended."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    async def _bind(self, request: BindRequest) -> str:
        try:
            pod = await self._pod(request)
        except NotFound:
            return f"pod {request.namespace}/{request.name} is gone"
        except ClientError as error:
            return f"pod {request.namespace}/{request.name} cannot be read: {error}"
        if isinstance(pod, str):
            return pod
        if pod is None:
            return _why(await self._post(request, {}))
        outcome: Reservation | Refusal | None = None
        if pod.group is not None:
            outcome = await self._engine.begin_group_bind(pod, request.node)
        before = self._engine.waits_for_plugin(pod, request.node)
        if before:
            if isinstance(outcome, Reservation):
                self._engine.end_bind(BindingEnded(pod.uid, outcome.allocation_id, "refused"))
            return f"the device plugin of node {request.node} serves pod {before} first"
        if outcome is None:
            outcome = self._engine.begin_bind(pod, request.node)
        if isinstance(outcome, Refusal):
            return f"{outcome.reason}: {outcome.on(request.node)}"
        return await self._bind_reserved(request, pod, outcome)

    async def _pod(self, request: BindRequest) -> GPUPod | str | None:
        """Return the pod; None if it asks for no GPU; an error text if it is another pod."""
        known = self._engine.pod(request.uid)
        if known is not None:
            return known
        raw = await self._api.get(PODS, request.name, namespace=request.namespace)
        if raw["metadata"].get("uid") != request.uid:
            return f"pod {request.namespace}/{request.name} is not the one that was scheduled"
        return self._engine.observe_now(read_pod(raw))

    async def _bind_reserved(
        self, request: BindRequest, pod: GPUPod, reservation: Reservation
    ) -> str:
        claim = await self._engine.written(reservation)
        if claim is None:
            return "the claim was not written"
        allocation = claim.status.allocation
        if allocation is None or allocation.node_name != request.node:
            return f"the claim's GPUs are not on {request.node}"
        now = int(self._unix())
        state = self._engine.state
        try:
            annotations = records_of(state, pod, claim.spec, allocation, unix_time=now)
        except BadInput as error:
            self._engine.end_bind(BindingEnded(pod.uid, allocation.id, "refused"))
            return str(error)
        outcome = await self._post(request, annotations)
        ended = await self._ended(request, outcome)
        if ended is not None:
            self._engine.end_bind(BindingEnded(pod.uid, allocation.id, ended))
        return "" if ended == "bound" else _why(outcome)

    async def _post(self, request: BindRequest, annotations: dict[str, str]) -> Outcome:
        bind = Bind(request.uid, request.node, annotations)
        target = Target(PODS, request.namespace, request.name)
        outcome = await self._writer.submit(Write(target, (bind,)))
        if not isinstance(outcome, Written):
            logger.warning("binding %s/%s: %s", request.namespace, request.name, _why(outcome))
        return outcome

    async def _ended(
        self, request: BindRequest, outcome: Outcome
    ) -> Literal["bound", "refused", "elsewhere", "gone", "unknown"] | None:
        """Return the outcome of the Binding; None if only the watch and the agent can tell."""
        if isinstance(outcome, Written):
            return "bound"
        is_definite = not isinstance(outcome, Unresolved)
        match await self._state_of(request):
            case "bound here":
                return "bound"
            case "elsewhere":
                return "elsewhere"
            case "gone":
                return "gone" if is_definite else None  # it may have been bound, and have run
            case "unbound" if is_definite:
                return "refused"
            case "unknown" if isinstance(outcome, Unsent):
                return "refused"  # a busy server answers no read either, but has not bound the pod
        return "unknown"

    async def _state_of(self, request: BindRequest) -> PodState:
        """Return the pod's state; ask until there is a response."""
        for attempt in range(_READ_ATTEMPTS):
            try:
                raw: dict[str, Any] = await self._api.get(
                    PODS, request.name, namespace=request.namespace
                )
            except NotFound:
                return "gone"
            except ClientError:
                await self._sleep(0.1 * 2**attempt)
                continue
            if raw["metadata"].get("uid") != request.uid:
                return "gone"
            node = raw["spec"].get("nodeName", "")
            if not node:
                return "unbound"
            return "bound here" if node == request.node else "elsewhere"
        return "unknown"


def _why(outcome: Outcome) -> str:
    """Return why a Binding was not posted; empty if it was."""
    match outcome:
        case Written():
            return ""
        case Unsent(reason):
            return reason
        case Conflicted(error) | Rejected(error) | Unresolved(error):
            return str(error)
