"""A cluster that is described by a file, for `simulate`: its devices, quotas and claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_

from pydantic import ValidationError

from vgpu_api import names, quantity
from vgpu_api.conditions import READY
from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.core import Node, PodScopes, ResourceQuota
from vgpu_api.core.node import NodeStatus
from vgpu_api.errors import BadInput, QuantityError
from vgpu_api.field_errors import describe
from vgpu_api.host import PODS
from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1 import Allocation, Condition, Metadata, VGPUClaim
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import follows_labels
from vgpu_operator.dialects.ack import node_kinds
from vgpu_operator.dialects.hami_annotations import DEVICE_POLICIES, NODE_POLICIES
from vgpu_operator.dialects.reading import dialects
from vgpu_operator.insight.documents import (
    BadDocument,
    ClusterState,
    DeviceState,
    NodeEntry,
    QuotaEntry,
)
from vgpu_operator.insight.question import Outcome, Question, Undo, plan_of
from vgpu_operator.ledger.device_facts import cordoned_uuids, numa_of, state_of, type_of
from vgpu_operator.ledger.quotas import Quotas
from vgpu_operator.ledger.shares import NOTHING, ClaimShares, shares_of
from vgpu_operator.node_filter import HostDemand, NodeFilters, NodeRules
from vgpu_operator.placement import (
    EVERY_NODE,
    Budget,
    Columns,
    DeviceFacts,
    Fleet,
    NodeFilter,
    place,
    refusals_on,
)
from vgpu_operator.placement.mig_geometry import Instance, Offer, geometry
from vgpu_operator.vendors.neighbours import joined
from vgpu_operator.vendors.parts import Part, in_order

_POLICY_WORDS: Mapping[str, Collection[str]] = {
    names.HAMI_DEVICE_POLICY: DEVICE_POLICIES,
    names.HAMI_NODE_POLICY: NODE_POLICIES,
}


class Cluster:
    """The cluster that a state file describes.

    Args:
        state: The content of the file.
        source: The name of the file, for errors.

    Raises:
        BadDocument: The configuration, a claim or a node's policy is invalid.
    """

    def __init__(self, state: ClusterState, *, source: str) -> None:
        try:
            self.config: ClusterConfig = read_cluster_config(state.config)
        except BadInput as error:
            raise BadDocument(f"{source}: config.{error}") from error
        self.columns = Fleet()
        self.nodes: dict[str, Node] = {}
        self.claims: dict[tuple[str, str], VGPUClaim] = {}
        self.all_claims: list[VGPUClaim] = []  # also those without a name
        self._filters = NodeFilters()
        self._numbers: dict[str, int] = {}  # by UUID
        self._quotas = Quotas(config=self.config)
        for at, entry in enumerate(state.nodes):
            self._add_node(entry, f"{source}: nodes[{at}]")
        for at, quota in enumerate(state.quotas):
            self._check_quota(quota, f"{source}: quotas[{at}]")
            metadata = Metadata(name=str(at), namespace=quota.namespace, resource_version="1")
            self._quotas.apply(ResourceQuota(metadata=metadata, spec=quota.spec))
        for at, raw in enumerate(state.claims):
            self._add_claim(raw, at, source)

    # Questions.

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Return a claim or claim template; None if it does not exist."""
        return self.claims.get((namespace, name))

    def decide(self, question: Question) -> Outcome:
        """Return where the pod or claim would be placed, or the refusal; nothing is reserved."""
        if question.standing is not None:
            return Outcome(plan_of(question.standing, self.refusals(question)))
        plan = place(
            self.columns,
            self.demand(question),
            self.nodes,
            nodes=self._nodes_for(question),
            budget=self.budget(question),
        )
        return Outcome(plan, plan.text if plan.refused else "")

    def refusals(self, question: Question) -> Mapping[str, Tally]:
        """Return, by name, the reasons of the nodes that cannot serve the question."""
        if question.standing is not None:
            elsewhere = Tally.of_node(Reason.RESERVED_ELSEWHERE)
            return {n: elsewhere for n in self.nodes if n != question.standing.node_name}
        return refusals_on(
            self.columns,
            self.demand(question),
            self.nodes,
            nodes=self._nodes_for(question),
            budget=self.budget(question),
        )

    def not_judged(self, question: Question) -> str:
        """Return a line about demands of gated pods that a state file cannot describe."""
        pod = question.pod
        if not self.config.scheduling.decides_first or pod is None or question.standing is not None:
            return ""
        besides = ", ".join(_besides_devices(HostDemand.of(pod), self.config))
        return (
            f"{besides}: not judged, because a state file does not describe them" if besides else ""
        )

    def demand(self, question: Question) -> Demand:
        """Return the requested devices."""
        pod = question.pod
        by_labels = pod is not None and follows_labels(pod, self.config)
        return Demand.of(question.spec, self.config, by_labels=by_labels)

    def budget(self, question: Question) -> Budget:
        """Return the amounts that the quotas of the question's namespace still allow."""
        return self._quotas.left(question.namespace, _scopes(question))

    def charge(self, question: Question, outcome: Outcome) -> Undo:
        """Hold the chosen devices until the returned function is called.

        Already allocated devices are held anyway.
        """
        if question.standing is not None:
            return lambda: None
        shares = shares_of(question.spec, outcome.plan.allocation())
        numbers = [self._numbers[uuid] for uuid in shares.devices]
        before = [(number, self.columns.in_use(number)) for number in numbers]
        self._charge(question.namespace, shares, _scopes(question))

        def undo() -> None:
            for number, (slots, cores, memory, slices) in before:
                self.columns.set_used(
                    number, slots=slots, cores=cores, memory=memory, slices=slices
                )
            self._quotas.move(
                question.namespace, before=shares, after=NOTHING, scopes=_scopes(question)
            )

        return undo

    def utilisation(self) -> dict[str, float]:
        """Return the percentages of all slots, cores and memory that are in use."""
        return utilisation(self.columns, list(self._numbers.values()))

    def _nodes_for(self, question: Question) -> NodeFilter:
        pod = question.pod
        if pod is None:
            return EVERY_NODE
        return self._filters.of(NodeRules.of(pod, kinds=node_kinds(pod, self.config)))

    def _check_quota(self, quota: QuotaEntry, source: str) -> None:
        """Refuse an invalid quota, because a real cluster would let nothing through."""
        nvidia = self.config.nvidia
        for name in (nvidia.resource_memory_name, nvidia.resource_core_name):
            written = quota.hard.get(f"limits.{name}", 0)
            try:
                is_amount = quantity.parse(written) >= 0
            except QuantityError:
                is_amount = False
            if not is_amount:
                field = f"{source}.hard[limits.{name}]"
                raise _bad(field, written, "a quantity, 0 or more")

    def _add_node(self, entry: NodeEntry, source: str) -> None:
        node = Node(
            metadata=Metadata(name=entry.name, labels=entry.labels, annotations=entry.annotations),
            # A state file has no node conditions, so its nodes count as ready.
            status=NodeStatus(conditions=[Condition(type=READY, status="True")]),
        )
        for key, known in _POLICY_WORDS.items():
            written = entry.annotations.get(key, "")
            for word in filter(None, (part.strip().lower() for part in written.split(","))):
                if word not in known:
                    raise _bad(f"{source}.annotations[{key}]", word, f"one of {', '.join(known)}")
        self.nodes[entry.name] = node
        cordoned = cordoned_uuids(node)
        links = links_of(entry)
        for at, device in enumerate(entry.devices):
            facts = self._facts(entry.name, at, device, links[device.uuid], cordoned)
            number = self.columns.put_device(facts)
            self._numbers[device.uuid] = number
            slots, cores, memory, slices = used_of(device)
            self.columns.set_used(number, slots=slots, cores=cores, memory=memory, slices=slices)
        number = self.columns.put_node(entry.name, state_of(node, config=self.config))
        self._filters.put(number, node)

    def _facts(
        self,
        node: str,
        at: int,
        device: DeviceState,
        links: dict[str, int],
        cordoned: frozenset[str],
    ) -> DeviceFacts:
        slots = self.config.nvidia.device_split_count if device.slots is None else device.slots
        in_mig_mode = device.mig is not None and device.mig.enabled
        index = at if device.index is None else device.index
        return DeviceFacts(
            name=device.uuid,
            node=node,
            uuid=device.uuid,
            index=index,
            vendor=device.vendor.lower(),
            model=type_of(device.vendor, device.model),
            product=device.model,
            mode="MIG" if in_mig_mode else device.mode,
            numa=numa_of(device.numa, index=index),
            slots=1 if device.mode == "Exclusive" else slots,
            cores=device.cores,
            memory_mib=device.memory_mib,
            healthy=device.healthy,
            cordoned=device.cordoned or device.uuid in cordoned,
            links=dict(sorted(links.items())),
            profiles=geometry(_offers(device)) if in_mig_mode else (),
            parts=in_order(
                Part(part.name, part.size, part.memory_mib, part.cores) for part in device.parts
            ),
        )

    def _add_claim(self, raw: dict[str, object], at: int, source: str) -> None:
        try:
            claim = VGPUClaim.read(dict(raw))
            allocation: Allocation | None = claim.status.allocation
            shares = shares_of(claim.spec, allocation)
        except ValidationError as error:
            raise BadDocument(f"{source}: {describe(error, within=('claims', at))}") from error
        except BadInput as error:
            raise BadDocument(f"{source}: claims[{at}]: {error}") from error
        namespace = claim.metadata.namespace or "default"
        name = claim.metadata.name
        if name and (namespace, name) in self.claims:
            text = f"claim {namespace}/{name} occurs more than once"
            raise BadDocument(f"{source}: claims[{at}]: {text}")
        self.claims[namespace, name] = claim
        self.all_claims.append(claim)
        self._charge(namespace, shares, self.scopes_of(claim))

    def scopes_of(self, claim: VGPUClaim) -> PodScopes | None:
        """Return the properties of a claim's pod that quota scopes select by; None: no pod."""
        return None

    def _charge(self, namespace: str, shares: ClaimShares, scopes: PodScopes | None = None) -> None:
        columns = self.columns
        for uuid, share in shares.devices.items():
            number = self._numbers.get(uuid)
            if number is None:
                continue
            slots, cores, memory, slices = columns.in_use(number)
            cores += share.use.cores
            if share.alone:
                cores = max(cores, columns.cores[number])
            columns.set_used(
                number,
                slots=slots + share.use.slots,
                cores=cores,
                memory=memory + share.use.memory_mib,
                slices=joined(slices | share.slices, share.marks, share.use.slots),
            )
            if share.contradicts(in_mig_mode=columns.mode[number] == "MIG"):
                self._fill(number)
        # the claim holds some device of the node, but which one is unknown
        for name in shares.full_nodes:
            node = columns.node_id(name)
            for number in columns.node_devices[node] if node is not None else ():
                self._fill(number)
        self._quotas.move(namespace, before=NOTHING, after=shares, scopes=scopes)

    def _fill(self, number: int) -> None:
        """Count the whole device as used, because the used amount is unknown."""
        columns = self.columns
        slots, cores, memory, slices = columns.in_use(number)
        columns.set_used(
            number,
            slots=max(slots, columns.slots[number]),
            cores=max(cores, columns.cores[number]),
            memory=max(memory, columns.memory[number]),
            slices=slices,
        )


def _scopes(question: Question) -> PodScopes | None:
    """Return the pod's properties that quota scopes select by; None for a claim."""
    return None if question.pod is None else PodScopes.of(question.pod)


def _besides_devices(requested: HostDemand, config: ClusterConfig) -> list[str]:
    """Name the demands on a node other than devices."""
    ours = {name for dialect in dialects() for name in dialect.resource_names(config)}
    found = [name for name, _ in requested.amounts if name not in (*ours, PODS)]
    peers = requested.peers
    besides = {
        "host ports": requested.ports,
        "rules about pods": peers.together or peers.apart or peers.spread,
        "volumes": requested.volumes,
    }
    return found + [words for words, there in besides.items() if there]


def utilisation(columns: Columns, devices: Sequence[int]) -> dict[str, float]:
    """Return the percentages of the devices' slots, cores and memory that are in use."""
    totals = {
        "slots": (columns.slots_used, columns.slots),
        "cores": (columns.cores_used, columns.cores),
        "memory": (columns.memory_used, columns.memory),
    }
    return {
        name: round(100 * sum(used[c] for c in devices) / (sum(all_[c] for c in devices) or 1), 2)
        for name, (used, all_) in totals.items()
    }


def _bad(field: str, value: object, expected: str) -> BadDocument:
    return BadDocument(str(BadInput(field=field, value=value, expected=expected)))


def _offers(device: DeviceState) -> list[Offer]:
    profiles = [] if device.mig is None else device.mig.profiles
    return [
        Offer(
            name=profile.name,
            memory_mib=profile.memory_mib,
            cores=profile.cores,
            compute_slices=profile.slices,
            places=tuple((place.start, place.size) for place in profile.placements),
        )
        for profile in profiles
    ]


def used_of(device: DeviceState) -> tuple[int, int, int, int]:
    """Return the slots, cores, MiB and slices that are in use besides the state's claims."""
    instances = _instances(device)
    # The used amounts may or may not include the instances, so take the larger number.
    return (
        max(device.slots_used, len(instances)),
        max(device.cores_used, sum(instance.cores for instance in instances)),
        max(device.memory_used_mib, sum(instance.memory_mib for instance in instances)),
        reduce(or_, (instance.slices for instance in instances), 0),
    )


def _instances(device: DeviceState) -> list[Instance]:
    """Return the instances in use. Their places were validated when the document was read."""
    if device.mig is None:
        return []
    desired = {(instance.profile, instance.start) for instance in device.mig.instances}
    return [
        Instance(offer.name, start, size, offer.memory_mib, offer.cores)
        for offer in _offers(device)
        for start, size in offer.places
        if (offer.name, start) in desired
    ]


def links_of(entry: NodeEntry) -> dict[str, dict[str, int]]:
    """Return each device's link scores to the others."""
    links: dict[str, dict[str, int]] = {device.uuid: {} for device in entry.devices}
    for pair in entry.pair_scores:
        links[pair.b].setdefault(pair.a, pair.score)
    for pair in entry.pair_scores:
        links[pair.a][pair.b] = pair.score
    return links
