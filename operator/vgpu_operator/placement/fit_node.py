"""Places all requests of a claim on one node, or finds the reasons why that is impossible.

This exact plan decides every claim; rankings only propose nodes. For a request, `choose` takes the
best of the devices that pass all checks. The result is the same as with HAMi's loop, which walks
the ordered list from its end, but cheaper. That loop (`hami_selection`) is used to find reasons,
and on nodes with devices in MIG mode, where a device may serve a request several times. While a
claim is planned, its devices are taken in the live columns, so that its requests see each other;
they are returned before anything else reads the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy, NumaPolicy
from vgpu_api.vendors.model import NodeRule
from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.placement import topology
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import UNLIMITED, Budget, Charge
from vgpu_operator.placement.device_policies import Weights, in_order, keys_of, preferred
from vgpu_operator.placement.fit_device import (
    Taken,
    charged,
    cores_on,
    give_back,
    instance_on,
    passing,
    take,
    take_place,
)
from vgpu_operator.placement.fragmentation import best_keys, fragmentation, score_of_rise
from vgpu_operator.placement.hami_selection import too_few, walk
from vgpu_operator.placement.part_requests import on_node
from vgpu_operator.placement.plan import Grant, Plan
from vgpu_operator.placement.usage_scores import node_score
from vgpu_operator.vendors.choices import CHOICES, OF_ONE_TOO
from vgpu_operator.vendors.node_ranking import NODE_RULES


class Preferences(NamedTuple):
    """The rules that choose among the fitting devices of a node."""

    policies: tuple[DevicePolicy, ...]
    numa: NumaPolicy
    weights: Weights


def choose(
    columns: Columns,
    node: int,
    request: RequestDemand,
    preferences: Preferences,
    charge: Charge | None,
    without: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Return `request.count` distinct devices of the node, or none if too few fit.

    Reasons are computed separately, by `refusal`, because they cost more than the choice.

    Args:
        columns: The state of all devices.
        node: The number of the node.
        request: The request.
        preferences: The rules that choose among fitting devices.
        charge: The namespace's quota, if it has one.
        without: Devices that must not be chosen; ignored on nodes with MIG devices.
    """
    if columns.node_in_mig_mode[node]:
        return _choose_parts(columns, node, request, preferences, charge)
    devices, policies = columns.node_devices[node], preferences.policies
    fitting = passing(columns, devices, request, policies, charge)
    if without:
        fitting = [device for device in fitting if device not in without]
    if len(fitting) < request.count:
        return ()
    required = preferences.numa == "Require"
    together = preferences.numa == "Prefer" or "NUMAFirst" in policies
    if not (required or together):
        return _take(columns, fitting, request, preferences)
    groups: dict[int, list[int]] = {}
    for device in fitting:
        groups.setdefault(columns.numa[device], []).append(device)
    enough = [group for group in groups.values() if len(group) >= request.count]
    if enough and together:
        return _tightest(columns, devices, enough, request, preferences)
    if not required:
        return _take(columns, fitting, request, preferences)
    if not enough:
        return ()
    # HAMi sorts by NUMA node first and walks from the end, so among groups that are large enough,
    # the one with the most preferred device wins.
    last = preferred(columns, [device for group in enough for device in group], 1,
                     request=request, keys=keys_of(policies, one_numa_node=True),
                     weights=preferences.weights)[0]  # fmt: skip
    return _take(columns, groups[columns.numa[last]], request, preferences)


def _choose_parts(
    columns: Columns,
    node: int,
    request: RequestDemand,
    preferences: Preferences,
    charge: Charge | None,
) -> tuple[int, ...]:
    """Like `choose`, on a node with MIG devices, each of which may be chosen several times."""
    policies, devices = preferences.policies, columns.node_devices[node]
    required = preferences.numa == "Require"

    def gather(ordered: Sequence[int]) -> tuple[int, ...]:
        found, _ = walk(
            columns,
            ordered,
            request,
            policies,
            charge,
            one_numa_node=required,
            count=None if "Topology" in policies else request.count,
        )
        if len(found) > request.count:
            return topology.choose(columns, found, request.count)
        return tuple(found) if len(found) == request.count else ()

    if too_few(columns, node, request):
        return ()
    ordered = _ordered(columns, devices, request, preferences)
    if preferences.numa == "Prefer" or "NUMAFirst" in policies:
        found = {
            numa: gather([device for device in ordered if columns.numa[device] == numa])
            for numa in sorted({columns.numa[device] for device in devices})
        }
        whole = [numa for numa, chosen in found.items() if chosen]
        if whole:
            return found[min(whole, key=lambda numa: _free(columns, devices, numa, found[numa]))]
    return gather(ordered)


def refusal(
    columns: Columns,
    node: int,
    request: RequestDemand,
    preferences: Preferences,
    charge: Charge | None = None,
    only: Set[int] | None = None,
) -> Tally:
    """Return why the node's devices cannot serve the request, counted as in HAMi.

    With `only`, the request is tied to the device of earlier containers of the pod.
    """
    if too_few(columns, node, request):
        return Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
    devices, required = columns.node_devices[node], preferences.numa == "Require"
    resolved = on_node(columns, node, request)
    if resolved is None:
        return Tally({Reason.MODE_NOT_FIT: 1}, len(devices))
    request = resolved
    gathered, reasons = walk(
        columns,
        # Only check 4 depends on the order, so skip the sort otherwise.
        _ordered(columns, devices, request, preferences) if required else devices,
        request,
        preferences.policies,
        charge,
        one_numa_node=required,
        count=None,
    )
    if only is not None:
        fitting = len(gathered)
        gathered = [device for device in gathered if only == {device}]
        if fitting > len(gathered):
            reasons[Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE] = fitting - len(gathered)
    if gathered:
        reasons[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = len(gathered)
    return Tally(reasons, len(devices))


def _tied_to(
    columns: Columns,
    node: int,
    request: RequestDemand,
    preferences: Preferences,
    charge: Charge | None,
    only: Set[int],
) -> tuple[int, ...]:
    """Return the device that earlier containers of the pod have, if the request fits there, too.

    Return none if they have several devices, because the vendor's plugin allocates one device to
    the whole pod. Source: HAMi v2.10.0, Moore Threads.
    """
    fitting = passing(columns, columns.node_devices[node], request, preferences.policies, charge)
    return tuple(device for device in fitting if only == {device}) if request.count == 1 else ()


def _ordered(
    columns: Columns, devices: Sequence[int], request: RequestDemand, preferences: Preferences
) -> list[int]:
    return in_order(
        columns,
        devices,
        request=request,
        policies=preferences.policies,
        one_numa_node=preferences.numa == "Require",
        weights=preferences.weights,
    )


def _take(
    columns: Columns, fitting: Sequence[int], request: RequestDemand, preferences: Preferences
) -> tuple[int, ...]:
    """Return the best of the fitting devices, which may be restricted to a NUMA node."""
    if len(fitting) == 1:
        return tuple(fitting)
    keys = keys_of(preferences.policies, one_numa_node=False)
    weights = preferences.weights
    if request.choice is not None and (request.count > 1 or request.choice in OF_ONE_TOO):
        ranked = preferred(
            columns, fitting, len(fitting), request=request, keys=keys, weights=weights
        )
        return CHOICES[request.choice](columns, ranked, request.count)
    if "Topology" in preferences.policies and len(fitting) > request.count:
        ranked = preferred(
            columns, fitting, len(fitting), request=request, keys=keys, weights=weights
        )
        return topology.choose(columns, ranked, request.count)
    return preferred(columns, fitting, request.count, request=request, keys=keys, weights=weights)


def _tightest(
    columns: Columns,
    devices: Sequence[int],
    groups: Sequence[Sequence[int]],
    request: RequestDemand,
    preferences: Preferences,
) -> tuple[int, ...]:
    """Return devices of the NUMA node that keeps the fewest free ones; ties go to the lowest."""
    best: tuple[int, int, tuple[int, ...]] | None = None
    for group in groups:
        chosen = _take(columns, group, request, preferences)
        numa = columns.numa[group[0]]
        free = _free(columns, devices, numa, chosen)
        if best is None or (free, numa) < best[:2]:
            best = free, numa, chosen
    assert best is not None
    return best[2]


def _free(columns: Columns, devices: Sequence[int], numa: int, chosen: Sequence[int]) -> int:
    """Return the number of free devices that would remain on a NUMA node."""
    return sum(
        columns.numa[device] == numa and not columns.slots_used[device] and device not in chosen
        for device in devices
    )


KeyOf: TypeAlias = Callable[[int], float | None]
"""Returns the sort key of a node, or None if it cannot serve.

The smallest key is the best; names break ties.
"""

_BEHIND = 1000.0
"""More than the largest possible difference between the scores of two nodes."""
_RULED = 10_000.0
"""The weight of a vendor's rule for nodes, whose scores are integers, as in HAMi v2.10.0."""

_UNSAID = Tally({}, 0)

SEARCH_STEPS = 16
"""The choices of devices tried on one node, per request of a claim with several requests."""
DECISION_STEPS = 400
"""The choices tried on all nodes together for one decision.

kube-scheduler's calls wait for a decision. Without this limit, specially crafted pods could block
the loop for seconds on 5,000 nodes.
"""


def plan_on(
    columns: Columns,
    node: int,
    demand: Demand,
    numa: NumaPolicy,
    budget: Budget = UNLIMITED,
    *,
    explain: bool = True,
) -> tuple[Grant, ...] | Tally:
    """Return grants for all requests on one node, or the reasons of the first that does not fit."""
    outcome = _plan(columns, node, demand, numa, budget, explain=explain)
    if isinstance(outcome, Tally):
        return outcome
    grants, taken = outcome
    give_back(columns, taken)
    return grants


def plan_alone_on(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy, budget: Budget = UNLIMITED
) -> tuple[Grant, ...] | Tally:
    """Like `plan_on`, for a decision about this node only."""
    columns.search_steps = DECISION_STEPS
    return plan_on(columns, node, demand, numa, budget)


def grants_on(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy
) -> tuple[Grant, ...] | None:
    """Like `plan_on`, but without reasons, which cost more than the plan."""
    outcome = plan_on(columns, node, demand, numa, explain=False)
    return None if isinstance(outcome, Tally) else outcome


def why_not(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy, budget: Budget = UNLIMITED
) -> Tally:
    """Return why a node cannot serve the claim; empty if it now can."""
    if len(demand.requests) == 1:
        preferences = _preferences(columns, node, demand, numa)
        charge = Charge(budget) if budget.is_limited else None
        return refusal(columns, node, demand.requests[0], preferences, charge)
    outcome = plan_on(columns, node, demand, numa, budget)
    return outcome if isinstance(outcome, Tally) else _UNSAID


def keys_for(columns: Columns, demand: Demand, numa: NumaPolicy, budget: Budget) -> KeyOf:
    """Return the function that computes a node's sort key.

    Depending on the policy, the fullest node comes first, or the emptiest, or the one where F rises
    least. Fragmentation has to plan the claim on the node; with other policies, a node with a key
    may turn out not to serve.
    """
    if demand.node_rule is not None:
        return _ruled_keys(columns, demand, demand.node_rule, numa, budget)
    if demand.node_policy == "Fragmentation":
        return _fragmentation_keys(columns, demand, numa, budget)

    sign = follows_score(demand)
    if not demand.node_may_choose and demand.node_policy != "NUMAFirst":
        return lambda node: sign * node_score(columns, node)

    def by_use(node: int) -> float:
        own = _own_policy(columns, node, demand)
        key = node_score(columns, node)
        if (own or demand.node_policy) != "Spread":
            key = -key
        if own == "NUMAFirst":
            together = plan_on(columns, node, demand, "Require", budget)
            key += _BEHIND if isinstance(together, Tally) else 0.0
        return key

    return by_use


def follows_score(demand: Demand) -> int:
    """Return the sign of a node's score in its sort key.

    1 puts the emptiest node first and -1 the fullest; 0 means that the score is not used. A node
    with its own policy may have another sign.
    """
    if demand.node_policy == "Fragmentation" or demand.node_rule is not None:
        return 0
    return 1 if demand.node_policy == "Spread" else -1


def policies_on(columns: Columns, node: int, demand: Demand) -> tuple[DevicePolicy, ...]:
    """Return the claim's device policies, or else the node's."""
    if demand.device_policies:
        return demand.device_policies
    return (columns.node_labelled if demand.by_labels else columns.node_policies)[node]


def _own_policy(columns: Columns, node: int, demand: Demand) -> NodePolicy | None:
    """Return the node's own policy if the claim has none, else None.

    Each such node is ranked by its own policy: the fullest first, the emptiest first, or, with
    NUMAFirst, behind all others unless one of its NUMA nodes can serve. Fragmentation ranks all
    nodes by one measure, so it ignores their own policies.
    """
    if not demand.node_may_choose or demand.node_policy == "Fragmentation":
        return None
    return columns.node_policy[node]


def _fragmentation_keys(
    columns: Columns, demand: Demand, numa: NumaPolicy, budget: Budget
) -> KeyOf:
    """Return the function that computes how much F rises on a node, as a negated score."""
    only = ("Fragmentation",)

    def planned(node: int) -> float | None:
        before = fragmentation(columns, node)
        outcome = _plan(columns, node, demand, numa, budget, stay=True, explain=False)
        if isinstance(outcome, Tally):
            return None
        # All requests belong to the same pod, and each carries the pod's CPU request.
        after = fragmentation(columns, node, cpu_milli=demand.requests[0].cpu_milli)
        give_back(columns, outcome[1])
        return -score_of_rise(after - before)

    if numa != "None" or not _is_plain(demand, budget) or demand.device_policies not in ((), only):
        return planned
    best = best_keys(columns, demand.requests[0])
    if demand.device_policies:
        return best
    of_nodes = columns.node_labelled if demand.by_labels else columns.node_policies
    return lambda node: best(node) if of_nodes[node] == only else planned(node)


def _ruled_keys(
    columns: Columns, demand: Demand, name: NodeRule, numa: NumaPolicy, budget: Budget
) -> KeyOf:
    """Return the function that ranks nodes by a vendor's rule, with the usual key to break ties.

    The claim is planned on the node, because the rule scores the devices that it would get.
    """
    usual, rule = keys_for(columns, replace(demand, node_rule=None), numa, budget), NODE_RULES[name]

    def ruled(node: int) -> float | None:
        key = usual(node)
        if key is None:
            return None
        outcome = _plan(columns, node, demand, numa, budget, explain=False)
        if isinstance(outcome, Tally):
            return None
        grants, taken = outcome
        give_back(columns, taken)
        return key - _RULED * rule(columns, node, grants)

    return ruled


def _is_plain(demand: Demand, budget: Budget) -> bool:
    """Return True for a request for one device that depends only on the device's state."""
    request = demand.requests[0]
    return (
        len(demand.requests) == 1
        and request.count == 1
        and request.phase == "App"
        and not request.uuids
        and not request.exclude_uuids
        and not request.neighbours
        and request.part is None
        and not budget.is_limited
    )


def exceeds(columns: Columns, demand: Demand, plan: Plan, budget: Budget) -> bool:
    """Return True if check 9 refuses a device of a plan that was made without a quota.

    Otherwise, planning with the quota would give the same plan, because a quota only removes
    choices.
    """
    charge = Charge(budget)
    by_request: dict[str, list[Grant]] = {}
    for grant in plan.grants:
        by_request.setdefault(grant.request, []).append(grant)
    for request in demand.requests:
        grants = by_request[request.name]
        devices = [columns.number_of(grant.device) for grant in grants]
        for device, grant in zip(devices, grants, strict=True):
            if charge.exceeds(device, request, grant.memory_mib, grant.cores):
                return True
        for device, grant in zip(devices, grants, strict=True):
            charge.add(device, request, grant.memory_mib, grant.cores)
    return False


def _plan(
    columns: Columns,
    node: int,
    demand: Demand,
    numa: NumaPolicy,
    budget: Budget,
    *,
    stay: bool = False,
    explain: bool = True,
) -> tuple[tuple[Grant, ...], list[Taken]] | Tally:
    """Plan all requests. The devices stay taken until the caller returns them.

    Requests are planned in the order in which the pod starts its containers: an ordinary init
    container runs beside the sidecars before it, and has ended when the next container starts.

    Args:
        columns: The state of all devices.
        node: The number of the node.
        demand: The claim's requests.
        numa: The NUMA policy, which may be stricter than the claim's.
        budget: The amounts that the claim's namespace may still take.
        stay: Take the devices even for a single request, for callers that measure the node
            afterwards.
        explain: Find the reasons of a refusal.
    """
    preferences = _preferences(columns, node, demand, numa)
    charge = Charge(budget) if budget.is_limited else None
    grants: dict[str, list[Grant]] = {}
    taken: list[Taken] = []
    # For a single request the devices need not be taken, because no later request has to see that.
    # A device in MIG mode is taken anyway, because the request may get several instances of it.
    alone = len(demand.requests) == 1 and not stay and not columns.node_in_mig_mode[node]
    tied: dict[tuple[str, str], set[int]] = {}
    for requested in demand.requests:
        request = requested if requested.part is None else on_node(columns, node, requested)
        only = tied.get((requested.vendor, requested.phase)) if requested.one_device else None
        devices = () if request is None else choose(columns, node, request, preferences, charge)
        if devices and only is not None:
            devices = _tied_to(columns, node, requested, preferences, charge, only)
        if request is None or not devices:
            why = _UNSAID
            if explain:
                why = refusal(columns, node, requested, preferences, charge, only)
            give_back(columns, taken)
            return _search(columns, node, demand, preferences, budget, why) if taken else why
        if request.one_device:
            tied.setdefault((request.vendor, request.phase), set()).update(devices)
        if alone:
            return tuple([_grant(columns, device, request) for device in devices]), taken
        given = grants[request.name] = []
        for device in devices:
            grant = _grant(columns, device, request)
            given.append(grant)
            if charge is not None:
                charge.add(device, request, grant.memory_mib, grant.cores)
            # A device in MIG mode may be chosen twice, so take it before the next choice.
            taken.append((take if request.phase == "App" else take_place)(columns, device, request))
    if len(demand.requests) == 1:
        return tuple(grants[demand.requests[0].name]), taken
    return tuple(grant for request in demand.requests for grant in grants[request.name]), taken


def _search(
    columns: Columns,
    node: int,
    demand: Demand,
    preferences: Preferences,
    budget: Budget,
    why: Tally,
) -> tuple[tuple[Grant, ...], list[Taken]] | Tally:
    """Try other devices for earlier requests if the preferred ones left too little for a later one.

    Return `why` if no other choice works. Nodes with MIG devices are not searched, and neither are
    claims whose containers must share a device.
    """
    requests = [on_node(columns, node, request) for request in demand.requests]
    is_fixed = any(request is None or request.one_device for request in requests)
    if is_fixed or columns.node_in_mig_mode[node]:
        return why
    is_particular = "Topology" in preferences.policies or any(map(_is_particular, demand.requests))
    served = [each for each in requests if each is not None]
    if _is_too_much(columns, node, served, preferences.policies):
        return why
    steps = min(SEARCH_STEPS * len(served), columns.search_steps)
    found = _Search(columns, node, served, preferences, is_particular, steps)
    is_served = found.serve(0, Charge(budget) if budget.is_limited else None)
    columns.search_steps -= steps - found.steps
    if is_served:
        return tuple(found.grants), found.taken
    return why if found.steps else Tally.of_node(Reason.NODE_SEARCH_STOPPED)


def _is_particular(request: RequestDemand) -> bool:
    """Return True if a request may prefer one device over another of the same kind."""
    chooses = request.uuids or request.exclude_uuids or request.choice
    return bool(chooses or request.group_mutex)


def _is_too_much(
    columns: Columns,
    node: int,
    requests: Sequence[RequestDemand],
    policies: Sequence[DevicePolicy],
) -> bool:
    """Return True if all requests together need more than the node has, however they are placed.

    This is so on most nearly full nodes, and the check is cheaper than a search.
    """
    memory, cores, union = 0, 0, set[int]()
    for request in requests:
        fitting = passing(columns, columns.node_devices[node], request, policies)
        if len(fitting) < request.count:
            return True
        if request.phase == "App":
            memory += request.count * min(request.memory_on(columns.memory[d]) for d in fitting)
            cores += request.count * request.cores
            union.update(fitting)
    free_mib = sum(columns.memory[device] - columns.memory_used[device] for device in union)
    free_cores = sum(columns.cores[device] - columns.cores_used[device] for device in union)
    return memory > free_mib or cores > free_cores


@dataclass(slots=True)
class _Search:
    """A backtracking search for devices on a node, request by request, preferred devices first.

    Attributes:
        columns: The state of all devices.
        node: The number of the node.
        requests: All requests of the claim, resolved on this node.
        preferences: The rules that choose among devices that fit.
        is_particular: True if a request may prefer one device over another in the same condition.
        steps: The number of choices left to try.
        grants: The grants of the requests so far.
        taken: The devices taken for them.
    """

    columns: Final[Columns]
    node: Final[int]
    requests: Final[Sequence[RequestDemand]]
    preferences: Final[Preferences]
    is_particular: Final[bool]
    steps: int
    grants: list[Grant] = field(init=False, default_factory=list)
    taken: list[Taken] = field(init=False, default_factory=list)

    def serve(self, at: int, charge: Charge | None) -> bool:
        """Serve the requests from a position on, after those before it; return True if all fit."""
        if at == len(self.requests):
            return True
        request, tried, pending = self.requests[at], set[frozenset[int]](), [frozenset[int]()]
        while pending and self.steps:
            without = pending.pop()
            self.steps -= 1
            # Several devices may be charged differently, so check their sum after taking them.
            each = charge if request.count == 1 else None
            devices = choose(self.columns, self.node, request, self.preferences, each, without)
            if not devices:
                continue
            count = len(self.taken)
            charged = self._take(devices, request, charge)
            if not (charged and charged.is_over) and self.serve(at + 1, charged):
                return True
            give_back(self.columns, self.taken[count:])
            del self.taken[count:], self.grants[count:]
            others = [each for each in self._others(devices, without, charge) if each not in tried]
            tried.update(others)
            pending += reversed(others)
        return False

    def _take(
        self, devices: Sequence[int], request: RequestDemand, charge: Charge | None
    ) -> Charge | None:
        """Take devices for a request, and return the new charge."""
        columns, charge = self.columns, None if charge is None else charge.copy()
        for device in devices:
            grant = _grant(columns, device, request)
            self.grants.append(grant)
            if charge is not None:
                charge.add(device, request, grant.memory_mib, grant.cores)
            use = take if request.phase == "App" else take_place
            self.taken.append(use(columns, device, request))
        return charge

    def _others(
        self, devices: Sequence[int], without: frozenset[int], charge: Charge | None
    ) -> list[frozenset[int]]:
        """Return the sets of devices to exclude so that every different choice is tried.

        A different choice has fewer devices of some kind that was chosen here. It does not matter
        which devices of a kind it has, so each set excludes one chosen device and all unchosen ones
        like it.
        """
        kinds: dict[Hashable, list[int]] = {}
        for device in self.columns.node_devices[self.node]:
            kinds.setdefault(self._kind(device, charge), []).append(device)
        found: dict[frozenset[int], None] = {}
        for device in devices:
            alike = kinds[self._kind(device, charge)]
            unchosen = {each for each in alike if each not in devices}
            found[without | unchosen | {device}] = None
        return list(found)

    def _kind(self, device: int, charge: Charge | None) -> Hashable:
        """Return a key that is equal for devices which serve all requests equally well."""
        if self.is_particular:
            return device
        holds = charge is not None and charge.holds(device)
        columns = self.columns
        return columns.condition[device], columns.numa[device], device if holds else None


def _preferences(columns: Columns, node: int, demand: Demand, numa: NumaPolicy) -> Preferences:
    if numa == "None" and _own_policy(columns, node, demand) == "NUMAFirst":
        numa = "Prefer"
    return Preferences(policies_on(columns, node, demand), numa, demand.weights)


def _grant(columns: Columns, device: int, request: RequestDemand) -> Grant:
    instance = instance_on(columns, device, request) if columns.mode[device] == "MIG" else None
    total = columns.memory[device]
    memory, cores = charged(request, request.memory_on(total), instance)
    name, uuid, index = columns.name[device], columns.uuid[device], columns.index[device]
    of_mib = 0 if request.memory_percent is None else total
    if not request.is_marked:
        return Grant(request.name, name, uuid, index, memory, cores, instance, of_mib)
    numbered = cores_on(columns, device, request)
    return Grant(
        *(request.name, name, uuid, index, memory, cores, instance, of_mib),
        core_ids=numbered,
        neighbours=request.neighbours,
        part="" if request.part is None else request.part.name,
    )
