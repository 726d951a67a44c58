"""Turns the state of a former leader into that of a standby with the same observed objects.

All writes of the former leader have an outcome by then, and no decision of it may be carried on:
another replica may have decided since. What is dropped is rebuilt when this replica leads again, as
by any other standby.
"""

from __future__ import annotations

from dataclasses import replace

from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.event_handlers.agents import note_devices
from vgpu_operator.engine.event_handlers.claims import note_immediate, note_scopes
from vgpu_operator.engine.event_handlers.pods import note_pod
from vgpu_operator.engine.preemption.open_preemptions import Preemptions
from vgpu_operator.engine.resource_claims.known import resource_key
from vgpu_operator.engine.scheduling.places import unreserve
from vgpu_operator.engine.state import ClaimWork, InFlight, PodWork, State, Unsettled


def as_standby(state: State) -> State:
    """Return a new state with everything that was observed, and nothing that was decided.

    Cache and ledger are those of the former state, without the ledger's assumptions. A field that
    is not named here begins anew, so that a decision is not kept by mistake. One kind of
    reservation stays: the devices of a running pod whose claim has vanished, which standbys keep as
    well.

    Args:
        state: The former state; every write that was sent has an outcome. It must not be used any
            more.
    """
    kept = [each for each in state.reservations if each.is_bound and each.assumption is not None]
    for reservation in state.reservations:
        if reservation not in kept:
            unreserve(state, reservation)
    # The fence makes writes without a response fail; the others were decided in the last round, and
    # were not sent.
    writes: list[InFlight | Unsettled] = list(state.claims.writing.values())
    for late in state.claims.unsettled.values():
        writes.extend(late)
    for write in writes:
        if write.assumption is not None:
            state.ledger.forget(write.assumption)
    former = state.preemptions
    found = State(
        state.config,
        state.ledger,
        state.new_id,
        cache=state.cache,
        now=state.now,
        unix=state.unix,
        pods=PodWork(owed=state.pods.owed, ended=state.pods.ended, listed=state.pods.listed),
        claims=ClaimWork(violated=state.claims.violated),
        avoidance=state.avoidance,
        preemptions=Preemptions(budgets=former.budgets, times=former.times, results=former.results),
        agents={node: replace(agent, reported=False) for node, agent in state.agents.items()},
        agents_back_at=state.agents_back_at,
        agent_nodes=state.agent_nodes,
        crowded=state.crowded,
        evicts=state.evicts,
        evictions=state.evictions,
        agent_gone_s=state.agent_gone_s,
    )
    for reservation in kept:
        found.reservations.put(reservation)
    _observe_again(found)
    return found


def _observe_again(state: State) -> None:
    """Queue what the event handlers queue for the objects that are known."""
    nodes = dict.fromkeys(state.ledger.nodes())
    state.devices, state.links = dict(nodes), dict(nodes)
    for node in nodes:
        note_devices(node, state)
    for claim in state.cache.claims():
        key = key_of(claim)
        note_scopes(state, key)
        note_immediate(state, key)
        state.claims.look_at(key)
    for pod in list(state.cache.pods()):
        note_pod(state, pod)
    state.resource_claims.due.update(
        (resource_key(each), None) for each in state.cache.resource_claims
    )
