"""A claim on one node: the devices of all its requests together, or why there are none.

The exact judge of every decision. For one request, `choose` takes the best of the devices that pass
all checks, which is what taking devices from the end of the ordered list until there are enough
comes to; `refusal` walks that list, and so does everything on a node with devices in MIG mode, of
which one may serve several times. Devices are taken in the live columns while a claim is planned,
so that its requests see each other, and given back before anything else looks.
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
    """What decides among devices that fit, for one node: policies, NUMA, weights of the score."""

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
    """Choose `request.count` distinct devices of the node as they are now; none if too few fit.

    `refusal` has the reasons; it is apart because they cost more than the choice.

    Args:
        columns: The state of all devices.
        node: The number of the node.
        request: What the claim asks of each device.
        preferences: The order among devices that fit.
        charge: The namespace's quota, if it has one.
        without: Devices that are not to be chosen; on a node with MIG devices all may be.
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
    # The order is by NUMA node first, so the last group that is large enough is met first.
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
    """As `choose`, on a node with MIG devices: a device comes once for each of its parts."""
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
    """Why the node's devices do not serve the request, counted as HAMi does.

    With `only`, each device must be the one that an earlier container of the pod has.
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
        # Only check 4 looks at what came before.
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
    """The device that earlier containers of the pod have, if the request fits there, too.

    Where they have several there is none: a vendor's plugin that serves one device for a whole pod
    reads one of them. Source: HAMi v2.10.0, Moore Threads.
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
    """The best of devices that all fit; where NUMA nodes matter, they are all of one."""
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
    """Devices of the NUMA node that keeps the fewest free devices; the lowest of equals."""
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
    """How many free devices a NUMA node is left with."""
    return sum(
        columns.numa[device] == numa and not columns.slots_used[device] and device not in chosen
        for device in devices
    )


KeyOf: TypeAlias = Callable[[int], float | None]
"""From a node to its key: the least is the best, names decide ties; None: it does not serve."""

_BEHIND = 1000.0
"""More than any two scores of nodes are apart."""
_RULED = 10_000.0
"""Of a table's rule for nodes, whose scores are whole numbers: as in HAMi v2.10.0."""

_UNSAID = Tally({}, 0)

SEARCH_STEPS = 16
"""So many choices of devices are tried on a node for each request of a claim that has several."""
DECISION_STEPS = 400
"""So many are tried on all nodes together for one decision: kube-scheduler's calls wait meanwhile.

Without that bound, pods made for it would hold the loop for seconds where there are 5,000 nodes.
"""


def plan_on(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy, budget: Budget = UNLIMITED
) -> tuple[Grant, ...] | Tally:
    """All requests on one node, or the reasons of the first that does not fit."""
    outcome = _plan(columns, node, demand, numa, budget)
    if isinstance(outcome, Tally):
        return outcome
    grants, taken = outcome
    give_back(columns, taken)
    return grants


def plan_alone_on(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy, budget: Budget = UNLIMITED
) -> tuple[Grant, ...] | Tally:
    """As `plan_on`, for a decision about this node only."""
    columns.search_steps = DECISION_STEPS
    return plan_on(columns, node, demand, numa, budget)


def grants_on(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy
) -> tuple[Grant, ...] | None:
    """As `plan_on`, without the reasons, which cost more than the plan."""
    outcome = _plan(columns, node, demand, numa, UNLIMITED, explain=False)
    if isinstance(outcome, Tally):
        return None
    grants, taken = outcome
    give_back(columns, taken)
    return grants


def why_not(
    columns: Columns, node: int, demand: Demand, numa: NumaPolicy, budget: Budget = UNLIMITED
) -> Tally:
    """The reasons of a node that is known not to serve; none if it would serve by now."""
    if len(demand.requests) == 1:
        preferences = _preferences(columns, node, demand, numa)
        charge = Charge(budget) if budget.is_limited else None
        return refusal(columns, node, demand.requests[0], preferences, charge)
    outcome = plan_on(columns, node, demand, numa, budget)
    return outcome if isinstance(outcome, Tally) else _UNSAID


def keys_for(columns: Columns, demand: Demand, numa: NumaPolicy, budget: Budget) -> KeyOf:
    """The function of a node's place among nodes; what all of them share is computed once.

    The fullest is first, or the emptiest, or where F rises least. For Fragmentation the claim is
    planned on the node to know; otherwise it is unchecked whether it serves.
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
    """How a node's key follows its score, but for nodes with a policy of their own.

    1: the emptiest is first; -1: the fullest is; 0: it does not.
    """
    if demand.node_policy == "Fragmentation" or demand.node_rule is not None:
        return 0
    return 1 if demand.node_policy == "Spread" else -1


def policies_on(columns: Columns, node: int, demand: Demand) -> tuple[DevicePolicy, ...]:
    """Which devices of a node are preferred: by the claim, or else by the node."""
    if demand.device_policies:
        return demand.device_policies
    return (columns.node_labelled if demand.by_labels else columns.node_policies)[node]


def _own_policy(columns: Columns, node: int, demand: Demand) -> NodePolicy | None:
    """The node's own policy, where the claim has none.

    Each node then has its place by its own: the fullest first, the emptiest first, or, for
    NUMAFirst, behind all others unless one NUMA node serves. Fragmentation compares what nodes
    become, and knows no other policy beside it.
    """
    if not demand.node_may_choose or demand.node_policy == "Fragmentation":
        return None
    return columns.node_policy[node]


def _fragmentation_keys(
    columns: Columns, demand: Demand, numa: NumaPolicy, budget: Budget
) -> KeyOf:
    """The function of how much F rises on a node, as a negated score."""
    only = ("Fragmentation",)

    def planned(node: int) -> float | None:
        before = fragmentation(columns, node)
        outcome = _plan(columns, node, demand, numa, budget, stay=True, explain=False)
        if isinstance(outcome, Tally):
            return None
        # All requests are of one pod, so each knows of the CPU that it asks for.
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
    """The function of what a table's rule thinks of a node; what decides ties is its usual key.

    The claim is planned on the node, since the rule is about the devices that it would get.
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
    """One request of one container for one device, which a device's state alone decides."""
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
    """Whether a plan that was made without a quota has a device that check 9 refuses.

    If none has, the same plan comes out with the quota: it only takes away other choices.
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
    """Plan all requests; what is taken for it stays taken until `_give_back`.

    Requests follow the order in which the pod starts its containers: an ordinary init container
    is fitted beside the sidecars before it, and has ended when the next one starts.

    A sole request takes its devices only if they are to `stay`, or are cut: no request comes after
    it. A refusal has reasons if it is to `explain`.
    """
    preferences = _preferences(columns, node, demand, numa)
    charge = Charge(budget) if budget.is_limited else None
    grants: dict[str, list[Grant]] = {}
    taken: list[Taken] = []
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
            # A device in MIG mode may come again, and is then cut further.
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
    """Plan with other devices for some requests: those preferred leave too little for a later one.

    Returns `why` where there is no other way. A node with MIG devices is not searched, nor one for
    containers that must share a device.
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
    """Return True if a request may tell devices of one kind apart."""
    chooses = request.uuids or request.exclude_uuids or request.choice
    return bool(chooses or request.group_mutex)


def _is_too_much(
    columns: Columns,
    node: int,
    requests: Sequence[RequestDemand],
    policies: Sequence[DevicePolicy],
) -> bool:
    """Return True if a node has less than all requests together need, however they are placed.

    Of most nodes that are nearly full that is so, and it costs less than a search.
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
    """Tries the devices of a node for each request in turn, those that are preferred first.

    Attributes:
        columns: The state of all devices.
        node: The number of the node.
        requests: All requests of the claim, as they are on this node.
        preferences: The order among devices that fit.
        is_particular: Devices may differ for them though they are of one kind and equally used.
        steps: So many more choices are tried.
        grants: What the requests so far get.
        taken: What is taken for them.
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
        """Serve the requests from a position on, beside what is taken for those before it."""
        if at == len(self.requests):
            return True
        request, tried, pending = self.requests[at], set[frozenset[int]](), [frozenset[int]()]
        while pending and self.steps:
            without = pending.pop()
            self.steps -= 1
            # Of several devices each may be charged differently: they are judged together below.
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
        """Take devices for a request; returns what the claim is charged then."""
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
        """Return what to leave out so that all choices but this one, and those like it, come.

        Each other choice has fewer devices of one kind among those chosen here. Of devices that are
        alike it does not matter which.
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
        """Devices of one kind serve all requests alike."""
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
