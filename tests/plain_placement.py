"""The plain full scan: every rule of placement written down once more, as simply as possible.

It copies, sorts and tries everything. The engine's answers are compared with its answers, and the
engine's speed with its speed. It shares no code with the engine except the types of the values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from vgpu_operator.demand import Demand, KindDemand, RequestDemand
from vgpu_operator.placement import DeviceFacts

Grants = tuple[tuple[str, str, int, int, str], ...]
"""(request, UUID, MiB, cores, what of a device in MIG mode, as `profile@first slice`)."""
Mix = Sequence[tuple[float, RequestDemand]]


@dataclass
class Used:
    """The used part of a device."""

    slots: int = 0
    cores: int = 0
    memory: int = 0
    slices: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Fleet:
    """Everything that a decision depends on."""

    devices: Mapping[str, Sequence[DeviceFacts]]  # by node, each by (index, UUID, name)
    used: Mapping[str, Used]  # by UUID
    policies: Mapping[str, tuple[str, ...]]  # only nodes that have some
    unwilling: Mapping[str, str]  # node → the reason why it takes no pods
    places: Mapping[str, str]  # only nodes with a policy for their place among nodes
    mix: Mix = ()
    # free milli-CPU by node; unlimited if missing
    cpu: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, devices: Iterable[DeviceFacts], used: Mapping[str, Used], **more) -> Fleet:
        by_node: dict[str, list[DeviceFacts]] = {}
        for device in sorted(devices, key=lambda c: (c.index, c.uuid, c.name)):
            by_node.setdefault(device.node, []).append(device)
        more = {"policies": {}, "unwilling": {}, "places": {}, **more}
        return cls(by_node, {c.uuid: used.get(c.uuid, Used()) for c in devices}, **more)


@dataclass(frozen=True)
class Answer:
    """A node and grants, or the reason for each node."""

    node: str | None
    grants: Grants
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Left:
    """The amount that the namespace may still take; None is no limit."""

    memory: int | None = None
    cores: int | None = None


def decide(
    fleet: Fleet, ask: Demand, nodes: Iterable[str] | None = None, left: Left = Left()
) -> Answer:
    """Return the best node among `nodes`."""
    names = sorted(fleet.devices if nodes is None else set(nodes))
    passes = [ask.numa]
    if ask.node_policy == "NUMAFirst":
        passes.insert(0, "Require")
    for numa in passes:
        reasons: dict[str, str] = {}
        plans: dict[str, Grants] = {}
        for name in names:
            if name in fleet.unwilling:
                reasons[name] = f"1/1 {fleet.unwilling[name]}"
            elif name not in fleet.devices:
                reasons[name] = "1/1 NodeInsufficientDevice"
            else:
                soft = own_place(fleet, name, ask) == "NUMAFirst" and numa == "None"
                here = replace(ask, numa="Prefer" if soft else numa)
                outcome = on_node(fleet, name, here, left)
                if isinstance(outcome, str):
                    reasons[name] = outcome
                else:
                    plans[name] = outcome
        if plans:
            best = max(plans, key=lambda name: node_rank(fleet, name, ask, plans[name], left))
            return Answer(best, plans[best], reasons)
    return Answer(None, (), reasons)


def own_place(fleet: Fleet, name: str, ask: Demand) -> str:
    """Return the node's policy, if the claim has none."""
    listens = ask.node_may_choose and ask.node_policy != "Fragmentation"
    return fleet.places.get(name, "") if listens else ""


def node_rank(fleet: Fleet, name: str, ask: Demand, grants: Grants, left: Left):
    reverse_name = [-ord(letter) for letter in name] + [1]
    devices, used = fleet.devices[name], fleet.used
    if ask.node_policy == "Fragmentation":
        after = taking(used, ask, grants, {device.uuid: device for device in devices})
        return fgd_score(fleet, devices, used, after, ask.requests[0]), reverse_name
    score = 10.0 * (
        share(sum(used[c.uuid].slots for c in devices), sum(c.slots for c in devices))
        + share(sum(used[c.uuid].cores for c in devices), sum(c.cores for c in devices))
        + share(sum(used[c.uuid].memory for c in devices), sum(c.memory_mib for c in devices))
    )
    own = own_place(fleet, name, ask)
    score = -score if (own or ask.node_policy) == "Spread" else score
    if own == "NUMAFirst" and isinstance(
        on_node(fleet, name, replace(ask, numa="Require"), left), str
    ):
        score -= 1000
    return score, reverse_name


def share(part: int, total: int) -> float:
    return part / total if total else 0.0


def on_node(fleet: Fleet, name: str, ask: Demand, left: Left) -> Grants | str:
    """Place all requests on one node, or return the reason why not."""
    devices = fleet.devices[name]
    policies = ask.device_policies or fleet.policies.get(name, ("Spread",))
    now = {device.uuid: replace(fleet.used[device.uuid]) for device in devices}
    grants: dict[str, Grants] = {}
    charged: list[tuple[str, str, int, int]] = []  # phase, device, memory, cores
    for request in ask.requests:
        chosen = fit(fleet, devices, now, request, policies, ask, (left, charged))
        if isinstance(chosen, str):
            return chosen
        grants[request.name] = ()
        for device in chosen:
            memory, cores, what, slices = amounts(device, now[device.uuid], request)
            grants[request.name] += ((request.name, device.uuid, memory, cores, what),)
            charged.append((request.phase, device.uuid, memory, cores))
            if request.phase == "App":
                take(now[device.uuid], device, request)
            now[device.uuid].slices |= slices
    return tuple(grant for request in ask.requests for grant in grants[request.name])


def memory_on(request: RequestDemand, total: int) -> int:
    """Return the MiB that a request means on a device: a size, or a percentage rounded down.

    A request for a whole device (`Exclusive`) is charged all of it, if the device has the requested
    amount.
    """
    if request.mode == "Exclusive":
        return max(total, request.memory_mib or 0)
    if request.memory_percent is not None:
        return total * request.memory_percent // 100
    return total if request.memory_mib is None else request.memory_mib


def amounts(
    device: DeviceFacts, used: Used, request: RequestDemand
) -> tuple[int, int, str, frozenset[int]]:
    """Return MiB and cores charged for the device, the instance by name, and its slices."""
    cut = instance(device, used, request)
    if cut is None:
        return memory_on(request, device.memory_mib), request.cores, "", frozenset()
    profile, start, size = cut
    slices = frozenset(range(start, start + size))
    return profile.memory_mib, profile.cores, f"{profile.name}@{start}", slices


def instance(device: DeviceFacts, used: Used, request: RequestDemand):
    """Return profile and place for the request on a device in MIG mode, or None."""
    if device.mode != "MIG":
        return None
    wanted = memory_on(request, device.memory_mib)
    for profile in device.profiles:
        for start, size in profile.places:
            named = request.mig_profile in ("", "any", profile.name)
            if (
                named
                and profile.memory_mib >= wanted
                and not used.slices & {*range(start, start + size)}
            ):
                memory, cores = used.memory + profile.memory_mib, used.cores + profile.cores
                over = memory > device.memory_mib or cores > device.cores
                return None if over else (profile, start, size)
    return None


def take(used: Used, device: DeviceFacts, request: RequestDemand) -> None:
    memory, cores, _, slices = amounts(device, used, request)
    used.slots += 1
    used.memory += memory
    used.cores += cores
    used.slices |= slices
    if cores >= 100:
        used.cores = max(used.cores, device.cores)


def taking(
    used, ask: Demand, grants: Grants, devices: Mapping[str, DeviceFacts]
) -> dict[str, Used]:
    after = {uuid: replace(used[uuid]) for uuid in devices}
    for request in ask.requests:
        for name, uuid, *_ in grants:
            if name == request.name and request.phase == "App":
                take(after[uuid], devices[uuid], request)
            elif name == request.name:
                after[uuid].slices |= amounts(devices[uuid], after[uuid], request)[3]
    return after


def fit(
    fleet, devices, used, request: RequestDemand, policies, ask: Demand, quota
) -> list[DeviceFacts] | str:
    """Return the devices for one request, or the reasons why there are none."""
    mine = [device for device in devices if device.vendor == request.vendor]
    parts = request.phase == "App" and request.mode in ("Any", "MIG")
    if len(mine) < request.count and not (parts and any(device.mode == "MIG" for device in mine)):
        return "1/1 NodeInsufficientDevice"
    ordered = in_order(fleet, devices, used, request, policies, ask)
    if ask.numa == "Prefer" or "NUMAFirst" in policies:
        sets = []
        for numa in sorted({device.numa for device in devices}):
            chosen = gather(
                [c for c in ordered if c.numa == numa], devices, used, request, policies, ask, quota
            )
            if not isinstance(chosen, str):
                mates = [device for device in devices if device.numa == numa]
                free = sum(not used[c.uuid].slots for c in mates if c not in chosen)
                sets.append((free, numa, chosen))
        if sets:
            return min(sets, key=lambda item: item[:2])[2]
    return gather(ordered, devices, used, request, policies, ask, quota)


def gather(ordered, devices, used, request, policies, ask, quota) -> list[DeviceFacts] | str:
    """Take devices from the end of the list until there are enough; for Topology, all that fit."""
    reasons: Counter[str] = Counter()
    gathered: list[DeviceFacts] = []
    topology = "Topology" in policies
    used = {uuid: replace(use) for uuid, use in used.items()}
    line = list(ordered)
    while line:
        device = line.pop()
        reason = kind_reason(device, request)
        if not reason:
            if ask.numa == "Require" and gathered and gathered[-1].numa != device.numa:
                if topology and len(gathered) >= request.count:
                    break
                reasons["NumaNotFit"] += len(gathered)
                gathered = []
            reason = room_reason(device, used[device.uuid], request, policies, quota)
        if reason:
            reasons[reason] += 1
            continue
        gathered.append(device)
        if len(gathered) == request.count and not topology:
            break
        if device.mode == "MIG" and request.phase == "App":  # it may serve once more
            take(used[device.uuid], device, request)
            line.append(device)
    if len(gathered) >= request.count:
        return best_linked(gathered, request.count) if topology else gathered
    if gathered:
        reasons["AllocatedCardsInsufficientRequest"] = len(gathered)
    return ", ".join(sorted(f"{n}/{len(devices)} {reason}" for reason, n in reasons.items()))


def best_linked(gathered: list[DeviceFacts], count: int) -> list[DeviceFacts]:
    if len(gathered) == count:
        return gathered
    if count == 1:
        return [min(gathered, key=lambda c: sum(pair(c, peer) for peer in gathered if peer != c))]
    return list(
        max(
            combinations(gathered, count),
            key=lambda chosen: sum(pair(a, b) for a, b in combinations(chosen, 2)),
        )
    )


def pair(one: DeviceFacts, other: DeviceFacts) -> int:
    there, back = dict(one.links).get(other.uuid, 0), dict(other.links).get(one.uuid, 0)
    return there if there == back else 0


def kind_reason(device: DeviceFacts, request: RequestDemand) -> str:
    if device.duplicate:
        return "CardUuidDuplicate"
    if not device.healthy:
        return "CardNotHealth"
    if device.cordoned:
        return "CardCordoned"
    named = not request.models or any(model in device.model for model in request.models)
    excluded = any(model in device.model for model in request.exclude_models)
    right_mode = request.mode in ("Any", device.mode)
    if request.kinds and not any(is_of(device, kind) for kind in request.kinds):
        return "CardTypeMismatch"
    if device.vendor != request.vendor or not right_mode or not named or excluded:
        return "CardTypeMismatch"
    return ""


def is_of(device: DeviceFacts, kind: KindDemand) -> bool:
    if kind.models and device.product not in kind.models:
        return False
    if device.product in kind.exclude_models or device.memory_mib < kind.least_mib:
        return False
    return kind.most_mib is None or device.memory_mib <= kind.most_mib


def room_reason(device: DeviceFacts, used: Used, request: RequestDemand, policies, quota) -> str:
    listed = not request.uuids or device.uuid in request.uuids
    if not listed or device.uuid in request.exclude_uuids:
        return "CardUuidMismatch"
    if used.slots >= device.slots:
        return "CardTimeSlicingExhausted"
    if "Mutex" in policies and used.slots:
        return "ExclusiveDeviceAllocateConflict"
    memory = memory_on(request, device.memory_mib)
    if over_quota(device, request, amounts(device, used, request)[:2], *quota):
        return "ResourceQuotaNotFit"
    if memory < 1 or used.memory + memory > device.memory_mib:
        return "CardInsufficientMemory"
    if used.cores + request.cores > device.cores:
        return "CardInsufficientCore"
    if request.cores >= 100 and used.slots:
        return "ExclusiveDeviceAllocateConflict"
    if request.cores == 0 and used.cores >= device.cores:
        return "CardComputeUnitsExhausted"
    cut = device.mode != "MIG" or instance(device, used, request)
    return "" if cut else "CardMigTopologyInfeasible"


def over_quota(
    device: DeviceFacts, request: RequestDemand, much: tuple[int, int], left: Left, charged
) -> bool:
    """Return True if `count` devices like this one are more than the namespace may take."""
    mine = (request.phase, device.uuid, *much)
    before, after = charge(charged), charge([*charged, mine])
    for limit, was, is_ in zip((left.memory, left.cores), before, after, strict=True):
        rise = is_ - was
        if limit is not None and rise and was + rise * request.count > limit:
            return True
    return False


def charge(charged) -> tuple[int, int]:
    """Return memory and cores over all devices, for each the maximum at any moment.

    A moment is the start of a container; earlier containers that are not init containers still run.
    """
    total = [0, 0]
    for uuid in {entry[1] for entry in charged}:
        here = [entry for entry in charged if entry[1] == uuid]
        for at in (0, 1):
            total[at] += max(
                entry[2 + at] + sum(e[2 + at] for e in here[:turn] if e[0] == "App")
                for turn, entry in enumerate(here)
            )
    return total[0], total[1]


def in_order(fleet, devices, used, request, policies, ask: Demand) -> list[DeviceFacts]:
    """Order devices from the least preferred to the most preferred."""

    def score(device: DeviceFacts) -> float:
        now, (slots, cores, memory) = used[device.uuid], ask.weights
        return 10.0 * (
            slots * share(1 + now.slots, device.slots)
            + cores * share(request.cores + now.cores, device.cores)
            + memory * share(memory_on(request, device.memory_mib) + now.memory, device.memory_mib)
        )

    def fgd(device: DeviceFacts) -> int:
        now = used[device.uuid]
        after = {**used, device.uuid: replace(now)}
        if refuses(device, now, replace(request, uuids=frozenset(), exclude_uuids=frozenset())):
            return -1
        take(after[device.uuid], device, request)
        return fgd_score(fleet, devices, used, after, request)

    def left(device: DeviceFacts) -> tuple[int, int, int]:
        now = used[device.uuid]
        memory = device.memory_mib - now.memory - memory_on(request, device.memory_mib)
        return -memory, -(device.cores - now.cores - request.cores), -device.index

    def numa(device: DeviceFacts) -> int:
        return device.numa

    keys = {
        "Binpack": lambda c: (score(c),),
        "Spread": lambda c: (-score(c),),
        "NUMA": lambda c: (c.numa,),
        "BestFit": left,
        "IdleFirst": lambda c: (not used[c.uuid].slots, -score(c)),
        "Fragmentation": lambda c: (fgd(c), -c.index),
    }
    required = ask.numa == "Require"
    tokens = [token for token in policies if token in keys]
    if tuple(policies) == ("Mutex",):
        mutex = lambda c: (-used[c.uuid].slots, c.numa)  # noqa: E731
        return sorted(devices, key=(lambda c: (c.numa, mutex(c))) if required else mutex)
    sole = policies[0] if len(policies) == 1 and tokens else "" if tokens else "Spread"
    if sole == "Binpack":
        return sorted(
            devices, key=lambda c: (-c.numa, score(c)) if required else (score(c), c.numa)
        )
    if sole == "Spread":
        return sorted(
            devices, key=lambda c: (c.numa, -score(c)) if required else (-score(c), c.numa)
        )
    if sole == "IdleFirst" and not required:
        return sorted(devices, key=lambda c: (*keys["IdleFirst"](c), c.numa))
    chain = lambda c: [keys[token](c) for token in tokens]  # noqa: E731
    return sorted(devices, key=(lambda c: (c.numa, chain(c))) if required else chain)


# Fragmentation.


def fgd_score(fleet: Fleet, devices, before, after, request: RequestDemand) -> int:
    free = fleet.cpu.get(devices[0].node, math.inf)
    rise = fragmentation(devices, after, fleet.mix, free - request.cpu_milli) - fragmentation(
        devices, before, fleet.mix, free
    )
    return int(100.0 / (1.0 + math.exp(round(rise, 6) / 1000.0)))


def fragmentation(devices, used, mix: Mix, cpu: float) -> float:
    idles = {device.uuid: idle(device, used[device.uuid]) for device in devices}
    total = 0.0
    for frequency, request in mix:
        able = [device for device in devices if not refuses(device, used[device.uuid], request)]
        runs = len(able) >= request.count and request.cpu_milli <= max(cpu, 0)
        useful = sum(idles[device.uuid] for device in able) if runs else 0.0
        total += frequency * (sum(idles.values()) - useful)
    return total


def refuses(device: DeviceFacts, used: Used, request: RequestDemand) -> str:
    return kind_reason(device, request) or room_reason(device, used, request, (), (Left(), []))


def idle(device: DeviceFacts, used: Used) -> float:
    if not device.healthy or device.cordoned or used.slots >= device.slots:
        return 0.0
    shares = [
        part / total
        for part, total in ((used.cores, device.cores), (used.memory, device.memory_mib))
        if total
    ]
    return max(0.0, 1000.0 * (1.0 - max(shares, default=1.0)))
