"""Bind: the claim's status first, then the Binding with the pod's UID.

So at every moment a pod that has a node has an allocation there, or none will start. What the API
server's answer means for the allocation: design, Life of a claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ApiError, ClientError, NotFound
from vgpu_operator.dialects import binding_annotations
from vgpu_operator.engine.claim_writer import Done, Failed, Result
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.extender.filtering import read_pod
from vgpu_operator.extender.wire import BindRequest

logger = logging.getLogger(__name__)

# kube-scheduler gives an extender 30 s (our configuration's httpTimeout); what is left of them
# goes to the Binding itself.
_WRITTEN_WITHIN_S = 20.0
_BIND_TIMEOUT_S = 8.0
_READ_ATTEMPTS = 5

PodState = Literal["bound here", "unbound", "elsewhere", "gone", "unknown"]


class Binder:
    """Carries out Bind calls.

    Args:
        api: Where Bindings go.
        engine: Knows the reservations.
        unix: Unix time, for HAMi's record of the moment.
        sleep: Waits between reads; swapped in tests.
    """

    def __init__(
        self,
        *,
        api: Api,
        engine: Engine,
        unix: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._engine = engine
        self._unix = unix
        self._sleep = sleep

    async def bind(self, request: BindRequest) -> str:
        """Bind the pod; returns the error, empty when it is bound."""
        try:
            consumer = await self._consumer(request)
        except NotFound:
            return f"pod {request.namespace}/{request.name} is gone"
        except ClientError as error:
            return f"pod {request.namespace}/{request.name} cannot be read: {error}"
        if isinstance(consumer, str):
            return consumer
        if consumer is None:
            refused = await self._post(request, {})
            return "" if refused is None else str(refused)
        return await self._bind_consumer(request, consumer)

    async def _consumer(self, request: BindRequest) -> Consumer | str | None:
        """The pod as a consumer; None if it asks for no GPU; a text if it is another pod."""
        known = self._engine.books.consumer(request.uid)
        if known is not None:
            return known
        raw = await self._api.get(PODS, request.name, namespace=request.namespace)
        if raw["metadata"].get("uid") != request.uid:
            return f"pod {request.namespace}/{request.name} is not the one that was scheduled"
        return self._engine.intake.pod_changed(read_pod(raw))

    async def _bind_consumer(self, request: BindRequest, consumer: Consumer) -> str:
        scheduler = self._engine.scheduler
        outcome = scheduler.reserve(consumer, candidates={request.node})
        if isinstance(outcome, Refusal):
            return f"{outcome.reason}: {outcome.on([request.node])[request.node]}"
        reservation = outcome
        if reservation.wish.reserved_for != consumer.reserved_for:
            scheduler.reserve_for(reservation, consumer)
        reservation.binding = True  # from here on it does not expire
        error = await self._write_and_post(request, consumer, reservation)
        if error:
            reservation.binding = False
            reservation.asked = self._engine.now()
        return error

    async def _write_and_post(
        self, request: BindRequest, consumer: Consumer, reservation: Reservation
    ) -> str:
        result = await self._written(reservation)
        if not isinstance(result, Done):
            return f"the claim was not written: {result.why}"
        claim = result.claim
        allocation = claim.status.allocation
        is_current = self._engine.scheduler.reservations.is_current(reservation)
        if not is_current or allocation is None or allocation.node_name != request.node:
            return f"the claim's cards are not on {request.node}"
        annotations = binding_annotations(
            consumer.pod, claim.spec, allocation, unix_time=int(self._unix())
        )
        refused = await self._post(request, annotations)
        if refused is None:
            return ""
        match await self._state_of(request):
            case "bound here":
                return ""
            case "elsewhere":
                self._engine.tending.release_reservation(reservation)
            case "gone" if _is_definite(refused):
                self._engine.tending.release_reservation(reservation)
            case "gone":
                pass  # it may have been bound and run: the watch and the agent tell
            case "unbound" | "unknown":
                reservation.pinned = True  # Filter offers this node only, until it expires
        return str(refused)

    async def _written(self, reservation: Reservation) -> Result:
        try:
            async with asyncio.timeout(_WRITTEN_WITHIN_S):
                return await asyncio.shield(reservation.written)
        except TimeoutError:
            return Failed(f"no answer from the API server within {_WRITTEN_WITHIN_S:.0f} s")

    async def _post(self, request: BindRequest, annotations: dict[str, str]) -> ClientError | None:
        """Post the Binding; returns why it failed, None when it did not."""
        try:
            await self._api.bind_pod(
                namespace=request.namespace,
                name=request.name,
                uid=request.uid,
                node=request.node,
                annotations=annotations,
                timeout_s=_BIND_TIMEOUT_S,
            )
        except ClientError as error:
            logger.warning("binding %s/%s: %s", request.namespace, request.name, error)
            return error
        return None

    async def _state_of(self, request: BindRequest) -> PodState:
        """Where the pod is, asked until there is an answer."""
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


def _is_definite(error: ClientError) -> bool:
    """Whether the server has said that it did not bind the pod."""
    return isinstance(error, ApiError) and error.status < 500
