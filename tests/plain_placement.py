"""The plain full scan: every rule of placement written down once more, as simply as can be.

It copies, sorts and tries everything. It is what the engine's answers are compared with, and what
its speed is measured against. It shares no code with the engine but the values it talks in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from vgpu_operator.ask import Ask, RequestAsk
from vgpu_operator.placement import DeviceFacts

Grants = tuple[tuple[str, str, int, int, str], ...]
"""(request, UUID, MiB, cores, what of a card in MIG mode, as `profile@first slice`)."""
Mix = Sequence[tuple[float, RequestAsk]]


@dataclass
class Used:
    """What of a card is in use."""

    slots: int = 0
    cores: int = 0
    memory: int = 0
    slices: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Fleet:
    """Everything that a decision looks at."""

    cards: Mapping[str, Sequence[DeviceFacts]]  # by node, each by (index, UUID, name)
    used: Mapping[str, Used]  # by UUID
    policies: Mapping[str, tuple[str, ...]]  # of a node that says something
    unwilling: Mapping[str, str]  # node → why it takes no pods
    places: Mapping[str, str]  # of a node that says where it wants to be among nodes
    mix: Mix = ()
    cpu: Mapping[str, int] = field(default_factory=dict)  # free milli-CPU by node; else no end

    @classmethod
    def of(cls, cards: Iterable[DeviceFacts], used: Mapping[str, Used], **more) -> Fleet:
        by_node: dict[str, list[DeviceFacts]] = {}
        for card in sorted(cards, key=lambda c: (c.index, c.uuid, c.name)):
            by_node.setdefault(card.node, []).append(card)
        more = {"policies": {}, "unwilling": {}, "places": {}, **more}
        return cls(by_node, {c.uuid: used.get(c.uuid, Used()) for c in cards}, **more)


@dataclass(frozen=True)
class Answer:
    """A node and grants, or for every node why not."""

    node: str | None
    grants: Grants
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Left:
    """What the namespace may still take; None is no limit."""

    memory: int | None = None
    cores: int | None = None


def decide(
    fleet: Fleet, ask: Ask, nodes: Iterable[str] | None = None, left: Left = Left()
) -> Answer:
    """The best node among `nodes`."""
    names = sorted(fleet.cards if nodes is None else set(nodes))
    passes = [ask.numa]
    if ask.node_policy == "NUMAFirst":
        passes.insert(0, "Require")
    for numa in passes:
        reasons: dict[str, str] = {}
        plans: dict[str, Grants] = {}
        for name in names:
            if name in fleet.unwilling:
                reasons[name] = f"1/1 {fleet.unwilling[name]}"
            elif name not in fleet.cards:
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


def own_place(fleet: Fleet, name: str, ask: Ask) -> str:
    """What the node says, where the claim says nothing."""
    listens = ask.node_may_choose and ask.node_policy != "Fragmentation"
    return fleet.places.get(name, "") if listens else ""


def node_rank(fleet: Fleet, name: str, ask: Ask, grants: Grants, left: Left):
    reverse_name = [-ord(letter) for letter in name] + [1]
    cards, used = fleet.cards[name], fleet.used
    if ask.node_policy == "Fragmentation":
        after = taking(used, ask, grants, {card.uuid: card for card in cards})
        return fgd_score(fleet, cards, used, after, ask.requests[0]), reverse_name
    score = 10.0 * (
        share(sum(used[c.uuid].slots for c in cards), sum(c.slots for c in cards))
        + share(sum(used[c.uuid].cores for c in cards), sum(c.cores for c in cards))
        + share(sum(used[c.uuid].memory for c in cards), sum(c.memory_mib for c in cards))
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


def on_node(fleet: Fleet, name: str, ask: Ask, left: Left) -> Grants | str:
    """All requests on one node, or why not."""
    cards = fleet.cards[name]
    policies = ask.device_policies or fleet.policies.get(name, ("Spread",))
    now = {card.uuid: replace(fleet.used[card.uuid]) for card in cards}
    grants: dict[str, Grants] = {}
    charged: list[tuple[str, str, int, int]] = []  # phase, card, memory, cores
    for request in sorted(ask.requests, key=lambda r: r.phase == "App"):
        chosen = fit(fleet, cards, now, request, policies, ask, (left, charged))
        if isinstance(chosen, str):
            return chosen
        grants[request.name] = ()
        for card in chosen:
            memory, cores, what, slices = amounts(card, now[card.uuid], request)
            grants[request.name] += ((request.name, card.uuid, memory, cores, what),)
            charged.append((request.phase, card.uuid, memory, cores))
            if request.phase == "App":
                take(now[card.uuid], card, request)
            now[card.uuid].slices |= slices
    return tuple(grant for request in ask.requests for grant in grants[request.name])


def amounts(
    card: DeviceFacts, used: Used, request: RequestAsk
) -> tuple[int, int, str, frozenset[int]]:
    """MiB and cores that the card is charged, the instance by name, and its slices."""
    cut = instance(card, used, request)
    if cut is None:
        return request.memory_on(card.memory_mib), request.cores, "", frozenset()
    profile, start, size = cut
    slices = frozenset(range(start, start + size))
    return profile.memory_mib, profile.cores, f"{profile.name}@{start}", slices


def instance(card: DeviceFacts, used: Used, request: RequestAsk):
    """The profile and the place that a card in MIG mode has for the request, if any."""
    if card.mode != "MIG":
        return None
    wanted = request.memory_on(card.memory_mib)
    for profile in card.profiles:
        for start, size in profile.places:
            named = request.mig_profile in ("", "any", profile.name)
            if (
                named
                and profile.memory_mib >= wanted
                and not used.slices & {*range(start, start + size)}
            ):
                memory, cores = used.memory + profile.memory_mib, used.cores + profile.cores
                over = memory > card.memory_mib or cores > card.cores
                return None if over else (profile, start, size)
    return None


def take(used: Used, card: DeviceFacts, request: RequestAsk) -> None:
    memory, cores, _, slices = amounts(card, used, request)
    used.slots += 1
    used.memory += memory
    used.cores += cores
    used.slices |= slices
    if cores >= 100:
        used.cores = max(used.cores, card.cores)


def taking(used, ask: Ask, grants: Grants, cards: Mapping[str, DeviceFacts]) -> dict[str, Used]:
    after = {uuid: replace(used[uuid]) for uuid in cards}
    for request in sorted(ask.requests, key=lambda r: r.phase == "App"):
        for name, uuid, *_ in grants:
            if name == request.name and request.phase == "App":
                take(after[uuid], cards[uuid], request)
            elif name == request.name:
                after[uuid].slices |= amounts(cards[uuid], after[uuid], request)[3]
    return after


def fit(
    fleet, cards, used, request: RequestAsk, policies, ask: Ask, quota
) -> list[DeviceFacts] | str:
    """The cards for one request, or the reasons."""
    mine = [card for card in cards if card.vendor == request.vendor]
    parts = request.phase == "App" and request.mode in ("Any", "MIG")
    if len(mine) < request.count and not (parts and any(card.mode == "MIG" for card in mine)):
        return "1/1 NodeInsufficientDevice"
    ordered = in_order(fleet, cards, used, request, policies, ask)
    if ask.numa == "Prefer" or "NUMAFirst" in policies:
        sets = []
        for numa in sorted({card.numa for card in cards}):
            chosen = gather(
                [c for c in ordered if c.numa == numa], cards, used, request, policies, ask, quota
            )
            if not isinstance(chosen, str):
                mates = [card for card in cards if card.numa == numa]
                free = sum(not used[c.uuid].slots for c in mates if c not in chosen)
                sets.append((free, numa, chosen))
        if sets:
            return min(sets, key=lambda item: item[:2])[2]
    return gather(ordered, cards, used, request, policies, ask, quota)


def gather(ordered, cards, used, request, policies, ask, quota) -> list[DeviceFacts] | str:
    """From the end of the list until there are enough; all that fit for Topology."""
    reasons: Counter[str] = Counter()
    gathered: list[DeviceFacts] = []
    topology = "Topology" in policies
    used = {uuid: replace(use) for uuid, use in used.items()}
    line = list(ordered)
    while line:
        card = line.pop()
        reason = kind_reason(card, request)
        if not reason:
            if ask.numa == "Require" and gathered and gathered[-1].numa != card.numa:
                if topology and len(gathered) >= request.count:
                    break
                reasons["NumaNotFit"] += len(gathered)
                gathered = []
            reason = room_reason(card, used[card.uuid], request, policies, quota)
        if reason:
            reasons[reason] += 1
            continue
        gathered.append(card)
        if len(gathered) == request.count and not topology:
            break
        if card.mode == "MIG" and request.phase == "App":  # it may serve once more
            take(used[card.uuid], card, request)
            line.append(card)
    if len(gathered) >= request.count:
        return best_linked(gathered, request.count) if topology else gathered
    if gathered:
        reasons["AllocatedCardsInsufficientRequest"] = len(gathered)
    return ", ".join(sorted(f"{n}/{len(cards)} {reason}" for reason, n in reasons.items()))


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


def kind_reason(card: DeviceFacts, request: RequestAsk) -> str:
    if card.duplicate:
        return "CardUuidDuplicate"
    if not card.healthy:
        return "CardNotHealth"
    if card.cordoned:
        return "CardCordoned"
    named = not request.models or any(model in card.model for model in request.models)
    excluded = any(model in card.model for model in request.exclude_models)
    right_mode = request.mode in ("Any", card.mode)
    if card.vendor != request.vendor or not right_mode or not named or excluded:
        return "CardTypeMismatch"
    return ""


def room_reason(card: DeviceFacts, used: Used, request: RequestAsk, policies, quota) -> str:
    listed = not request.uuids or card.uuid in request.uuids
    if not listed or card.uuid in request.exclude_uuids:
        return "CardUuidMismatch"
    if used.slots >= card.slots:
        return "CardTimeSlicingExhausted"
    if "Mutex" in policies and used.slots:
        return "ExclusiveDeviceAllocateConflict"
    memory = request.memory_on(card.memory_mib)
    if over_quota(card, request, amounts(card, used, request)[:2], *quota):
        return "ResourceQuotaNotFit"
    if memory < 1 or used.memory + memory > card.memory_mib:
        return "CardInsufficientMemory"
    if used.cores + request.cores > card.cores:
        return "CardInsufficientCore"
    if request.cores >= 100 and used.slots:
        return "ExclusiveDeviceAllocateConflict"
    if request.cores == 0 and used.cores >= card.cores:
        return "CardComputeUnitsExhausted"
    cut = card.mode != "MIG" or instance(card, used, request)
    return "" if cut else "CardMigTopologyInfeasible"


def over_quota(
    card: DeviceFacts, request: RequestAsk, much: tuple[int, int], left: Left, charged
) -> bool:
    """Whether `count` cards like this one are more than the namespace may take."""
    mine = (request.phase, card.uuid, *much)
    before, after = charge(charged), charge([*charged, mine])
    for limit, was, is_ in zip((left.memory, left.cores), before, after, strict=True):
        rise = is_ - was
        if limit is not None and rise and was + rise * request.count > limit:
            return True
    return False


def charge(charged) -> tuple[int, int]:
    """Effective (memory, cores) over all cards: the greater of init peak and app sum."""
    total = [0, 0]
    for uuid in {entry[1] for entry in charged}:
        for at in (0, 1):
            app = [entry[2 + at] for entry in charged if entry[:2] == ("App", uuid)]
            init = [entry[2 + at] for entry in charged if entry[:2] == ("Init", uuid)]
            total[at] += max(sum(app), max(init, default=0))
    return total[0], total[1]


def in_order(fleet, cards, used, request, policies, ask: Ask) -> list[DeviceFacts]:
    """From the least wanted to the most wanted."""

    def score(card: DeviceFacts) -> float:
        now, (slots, cores, memory) = used[card.uuid], ask.weights
        return 10.0 * (
            slots * share(1 + now.slots, card.slots)
            + cores * share(request.cores + now.cores, card.cores)
            + memory * share(request.memory_on(card.memory_mib) + now.memory, card.memory_mib)
        )

    def fgd(card: DeviceFacts) -> int:
        now = used[card.uuid]
        after = {**used, card.uuid: replace(now)}
        if refuses(card, now, replace(request, uuids=frozenset(), exclude_uuids=frozenset())):
            return -1
        take(after[card.uuid], card, request)
        return fgd_score(fleet, cards, used, after, request)

    def left(card: DeviceFacts) -> tuple[int, int, int]:
        now = used[card.uuid]
        memory = card.memory_mib - now.memory - request.memory_on(card.memory_mib)
        return -memory, -(card.cores - now.cores - request.cores), -card.index

    def numa(card: DeviceFacts) -> int:
        return card.numa

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
        return sorted(cards, key=(lambda c: (c.numa, mutex(c))) if required else mutex)
    sole = policies[0] if len(policies) == 1 and tokens else "" if tokens else "Spread"
    if sole == "Binpack":
        return sorted(cards, key=lambda c: (-c.numa, score(c)) if required else (score(c), c.numa))
    if sole == "Spread":
        return sorted(cards, key=lambda c: (c.numa, -score(c)) if required else (-score(c), c.numa))
    if sole == "IdleFirst" and not required:
        return sorted(cards, key=lambda c: (*keys["IdleFirst"](c), c.numa))
    chain = lambda c: [keys[token](c) for token in tokens]  # noqa: E731
    return sorted(cards, key=(lambda c: (c.numa, chain(c))) if required else chain)


# Fragmentation.


def fgd_score(fleet: Fleet, cards, before, after, request: RequestAsk) -> int:
    free = fleet.cpu.get(cards[0].node, math.inf)
    rise = fragmentation(cards, after, fleet.mix, free - request.cpu_milli) - fragmentation(
        cards, before, fleet.mix, free
    )
    return int(100.0 / (1.0 + math.exp(round(rise, 6) / 1000.0)))


def fragmentation(cards, used, mix: Mix, cpu: float) -> float:
    idles = {card.uuid: idle(card, used[card.uuid]) for card in cards}
    total = 0.0
    for frequency, request in mix:
        able = [card for card in cards if not refuses(card, used[card.uuid], request)]
        runs = len(able) >= request.count and request.cpu_milli <= max(cpu, 0)
        useful = sum(idles[card.uuid] for card in able) if runs else 0.0
        total += frequency * (sum(idles.values()) - useful)
    return total


def refuses(card: DeviceFacts, used: Used, request: RequestAsk) -> str:
    return kind_reason(card, request) or room_reason(card, used, request, (), (Left(), []))


def idle(card: DeviceFacts, used: Used) -> float:
    if not card.healthy or card.cordoned or used.slots >= card.slots:
        return 0.0
    shares = [
        part / total
        for part, total in ((used.cores, card.cores), (used.memory, card.memory_mib))
        if total
    ]
    return max(0.0, 1000.0 * (1.0 - max(shares, default=1.0)))
