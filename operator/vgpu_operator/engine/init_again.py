"""Cards for init containers that must run again after they had ended and given theirs back.

The kubelet runs them anew when it makes a pod's sandbox anew. The agent refuses that and says so;
here they are fitted once more, on the pod's node, beside what the app containers keep. Until there
is room they wait, and are tried again whenever something changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vgpu_api.config import ClusterConfig
from vgpu_api.init_part import has_init_part, init_requests
from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1 import Allocation, DeviceSelector, VGPUClaim, VGPUClaimSpec
from vgpu_operator.ask import Ask
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import ClaimWriter, Done, Key, Result
from vgpu_operator.engine.holds import Holds
from vgpu_operator.engine.moments import Moments
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.teller import Teller
from vgpu_operator.engine.writes import init_again_write
from vgpu_operator.ledger import Assumption, ClaimKey, Ledger
from vgpu_operator.placement import Plan
from vgpu_operator.placement.planning import plan_on


class InitAgain:
    """Fits init containers once more.

    Args:
        config: Defaults and policies.
        ledger: Who holds what.
        books: What was seen.
        holds: Cards held for others.
        writer: Writes claims.
        teller: Tells why there is no room.
        moments: Names the new round.
        note: Asks for a claim to be looked at again.
    """

    def __init__(
        self,
        *,
        config: ClusterConfig,
        ledger: Ledger,
        books: Books,
        holds: Holds,
        writer: ClaimWriter,
        teller: Teller,
        moments: Moments,
        note: Callable[[Key], None],
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._books = books
        self._holds = holds
        self._writer = writer
        self._teller = teller
        self._moments = moments
        self._note = note
        self._refused: dict[Key, None] = {}

    def fit(self, claim: VGPUClaim) -> None:
        """Give the claim's init containers cards, or tell why not and wait for a change."""
        allocation, key = claim.status.allocation, key_of(claim)
        assert allocation is not None
        again = allocation.model_copy(update={"init_time": self._moments.next()})
        if has_init_part(claim.spec, allocation):  # not given back yet: only the round is new
            self._writer.submit(init_again_write(claim, again))
            return
        plan = self._plan(claim, allocation)
        if plan.refused:
            self._refused[key] = None
            self._tell(claim, plan)
            return
        assumption = self._ledger.assume(ClaimKey(*key), claim.spec, plan)
        init = init_requests(claim.spec)
        planned = plan.allocation(allocated_time="").devices
        order = {request.name: number for number, request in enumerate(claim.spec.requests)}
        devices = [d for d in planned if d.request in init] + allocation.devices
        devices.sort(key=lambda device: order.get(device.request, len(order)))
        written = self._writer.submit(
            init_again_write(claim, again.model_copy(update={"devices": devices}))
        )
        written.add_done_callback(lambda done: self._settle(assumption, done))

    def something_changed(self) -> None:
        """There may be room now for those that were refused."""
        refused, self._refused = self._refused, {}
        for key in refused:
            self._note(key)

    def _plan(self, claim: VGPUClaim, allocation: Allocation) -> Plan:
        """The whole claim on its node, the app containers on the cards they have.

        Whether the node takes new pods does not matter: this one is there.
        """
        columns, name, key = self._ledger.columns, allocation.node_name, key_of(claim)
        node = columns.node_id(name)
        ask = Ask.of(_pinned(claim.spec, allocation), self._config)
        self._holds.gather()
        with self._ledger.without(ClaimKey(*key)), self._holds.lifted(key):
            outcome = (
                Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
                if node is None
                else plan_on(columns, node, ask, ask.numa, self._ledger.budget(key[0]))
            )
        if isinstance(outcome, Tally):
            return Plan(None, (), {name: outcome})
        return Plan(name, outcome)

    def _tell(self, claim: VGPUClaim, plan: Plan) -> None:
        reserved = claim.status.reserved_for
        consumer = self._books.consumer(reserved.pod_uid) if reserved is not None else None
        if consumer is not None:
            text = f"its init containers cannot run again: {plan.text}"
            self._teller.tell_pod(consumer, Refusal(plan.reason, text, {}))

    def _settle(self, assumption: Assumption, done: asyncio.Future[Result]) -> None:
        if done.cancelled():
            return
        result = done.result()
        if isinstance(result, Done):
            self._ledger.confirm(assumption, result.claim)
        else:
            self._ledger.forget(assumption)


def _pinned(spec: VGPUClaimSpec, allocation: Allocation) -> VGPUClaimSpec:
    """The spec with the app containers' requests tied to the cards that they have."""
    cards: dict[str, list[str]] = {}
    for device in allocation.devices:
        cards.setdefault(device.request, []).append(device.uuid)
    requests = []
    for request in spec.requests:
        if request.name in cards:
            selector = request.selector or DeviceSelector()
            selector = selector.model_copy(update={"uuids": cards[request.name]})
            request = request.model_copy(update={"selector": selector})
        requests.append(request)
    return spec.model_copy(update={"requests": requests})
