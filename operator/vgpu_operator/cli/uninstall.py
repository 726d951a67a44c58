"""`kubectl vgpu uninstall`: remove vgpu from a cluster, in an order in which nothing can hang.

Claims could hang, because only the operator removes their finalizer, and only after an agent has
reported that the devices are unused. So claims are deleted while both still run. Then both are
stopped, and the command removes the remaining finalizers itself. Webhooks are removed before that;
otherwise each of these writes would wait for them. Every wait has a limit, after which the command
lists the objects that are left. It can be run again, on a cluster in any state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vgpu_api.dra import DRIVER
from vgpu_api.names import (
    ANNOTATION_FROM_HAMI,
    FINALIZER_IN_USE,
    HAMI_NODE_RECORDS,
    LABEL_HELD_FOR,
    LABEL_NODE_AGENT,
    NODE_ANNOTATIONS,
    PART_OF_LABEL,
)
from vgpu_api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    GPU_DEVICES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from vgpu_client.transport import Object
from vgpu_operator.cli.cleaner import CLEANER, cleaner_of
from vgpu_operator.cli.other_plugins import is_hamis_plugin, is_nvidias_plugin
from vgpu_operator.cli.users import Users, delete_pods, users_of

_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_FLOW = "flowcontrol.apiserver.k8s.io"
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
POLICIES = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False
)
BINDINGS = Resource(
    _ADMISSION,
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
)
_WEBHOOKS = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
OTHERS = (
    POLICIES,
    DEVICE_CLASSES,
    RESOURCE_SLICES,  # kubelets delete those of their nodes, but one that is off does not
    Resource(_FLOW, "v1", "flowschemas", "FlowSchema", False),
    Resource(_FLOW, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", False),
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True),
    Resource(_RBAC, "v1", "roles", "Role", True),
)
"""Kinds of cluster-scoped or foreign-namespace objects that may be removed at any time."""
REMOVED = (
    *_WEBHOOKS, BINDINGS, DEPLOYMENTS, DAEMON_SETS, *OTHERS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
)  # fmt: skip
"""The kinds of which all objects with vgpu's label are removed."""

_DOCUMENT = "docs/operations/uninstall.md"
_POLL_S = 0.5
_NODES_POLL_S = 5.0
_RELEASE_S = 60.0
"""Time that the operator and the agents have to release claims themselves."""
_END_S = 90.0
_POLICY_S = 30.0
"""Time until all API servers have noticed that a policy was deleted."""
_CLEAN_S = 180.0
_CAPACITY_S = 420.0
"""A kubelet keeps the capacity of a stopped device plugin for five minutes, then sets it to 0."""
_CAPACITY_STEADY_S = 25.0
"""A kubelet writes a changed node status every ten seconds."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OthersNodes:
    """The nodes on which another program's device plugin has a pod.

    Attributes:
        hamis: HAMi's. HAMi's annotations of these nodes are its own.
        nvidias: NVIDIA's.
        is_hami_installed: True if HAMi's device plugin is installed, whether on a node or not.
    """

    hamis: frozenset[str] = frozenset()
    nvidias: frozenset[str] = frozenset()
    is_hami_installed: bool = False

    def annotations(self, node: Object) -> list[str]:
        """Return the annotations of a node that are ours to remove."""
        own = [key for key in NODE_ANNOTATIONS if _annotated(node["metadata"], key)]
        if _name(node) in self.hamis:
            return [key for key in own if key not in HAMI_NODE_RECORDS]
        return own

    def amounts(self, node: Object, resource: str) -> list[str]:
        """Return where a node's status has a capacity that is ours to remove."""
        if _name(node) in self.hamis | self.nvidias:
            return []
        status = node.get("status") or {}
        return [key for key in ("capacity", "allocatable") if resource in (status.get(key) or {})]


@dataclass(slots=True)
class Removal:
    """The objects to remove.

    Attributes:
        objects: Installed objects by kind, as `namespace/name` or `name`.
        claims: All claims, as `namespace/name`.
        users: Pods that use devices, or may.
        devices: GPUDevices.
        nodes: Nodes with vgpu's annotations or the resource's capacity.
        others: Nodes whose capacity stays, because another device plugin serves them.
        from_hami: Nodes that were taken over from a HAMi that is still installed.
        agents: The agents' DaemonSets, from which the cleaners are derived.
    """

    objects: dict[str, list[str]] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)
    users: Users = field(default_factory=Users)
    devices: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    from_hami: list[str] = field(default_factory=list)
    agents: list[Object] = field(default_factory=list)

    def lines(self, resource: str) -> list[str]:
        """Return the steps of the plan in order."""
        objects = self.objects
        names = [agent["metadata"]["name"] for agent in self.agents]
        clean = (
            f"clean the nodes of DaemonSet {', '.join(names)}: CDI specs, mounts, state"
            if self.agents
            else f"hosts are not cleaned: there is no DaemonSet of agents ({_DOCUMENT})"
        )
        kinds = {resource.kind for resource in (*_WEBHOOKS, DEPLOYMENTS, DAEMON_SETS)}
        rest = [
            f"{kind} {', '.join(found)}" for kind, found in objects.items() if kind not in kinds
        ]
        return [
            f"remove webhooks: {_listed(_of(objects, *_WEBHOOKS))}",
            f"delete {len(self.users)} pods that use GPUs" if self.users else "no pod uses a GPU",
            f"delete {len(self.claims)} claims and wait until they are released",
            f"stop operator, webhooks and schedulers: {_listed(_of(objects, DEPLOYMENTS))}",
            "remove the finalizers of the remaining claims, and ResourceClaims' allocations",
            f"stop agents: {_listed(_of(objects, DAEMON_SETS))}",
            clean,
            f"delete {len(self.devices)} GPUDevices",
            f"remove {resource} and {', '.join(NODE_ANNOTATIONS)} from {len(self.nodes)} nodes",
            *(
                [f"leave {resource} on nodes of another device plugin: {', '.join(self.others)}"]
                if self.others
                else ()
            ),
            *(f"delete {line}" for line in rest),
        ]


class Uninstall:
    """A command that removes vgpu from a cluster.

    Args:
        api: An administrator's client.
        say: Prints a line.
        resource: The extended resource whose capacity is removed.
        delete_pods: Delete pods that use devices; otherwise they are obstacles.
        wait_for_capacity: Wait until kubelets have dropped the resource, about five minutes.
        clock: Waits.
    """

    def __init__(
        self,
        api: Api,
        say: Say,
        *,
        resource: str,
        delete_pods: bool = False,
        wait_for_capacity: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._say = say
        self._resource = resource
        self._delete_pods = delete_pods
        self._wait_for_capacity = wait_for_capacity
        self._clock = clock or Clock()
        self._left: list[str] = []

    async def plan(self) -> Removal:
        """Read the objects to remove.

        Raises:
            ClientError: Objects cannot be read.
        """
        plan = Removal()
        for kind in REMOVED:
            found = await self._ours(kind)
            if found:
                plan.objects[kind.kind] = [_name(obj) for obj in found]
            if kind is DAEMON_SETS:
                plan.agents = [obj for obj in found if _is_agent(obj)]
        claims = await self._list(VGPU_CLAIMS)
        plan.claims = [_name(claim) for claim in claims]
        # A pod that another program gave its devices keeps running without us.
        own = [claim for claim in claims if not _is_held(claim)]
        plan.users = users_of(own, await self._list(PODS))
        plan.devices = [_name(device) for device in await self._list(GPU_DEVICES)]
        others = await self._others_nodes()
        nodes = await self._list(NODES)
        plan.nodes = [_name(node) for node in nodes if self._is_marked(node, others)]
        plan.others = sorted(others.hamis | others.nvidias)
        if others.is_hami_installed:
            taken = [node for node in nodes if _annotated(node["metadata"], ANNOTATION_FROM_HAMI)]
            plan.from_hami = [name for node in taken if (name := _name(node)) not in others.hamis]
        return plan

    def obstacles(self, plan: Removal) -> list[str]:
        """Return the reasons not to start."""
        used = () if self._delete_pods else plan.users.names()
        return [
            *(f"pod {user} uses a GPU" for user in used),
            *(
                f"node {node} was taken over from HAMi, and neither would serve it: give it back "
                f"with kubectl vgpu migrate hami --node {node} --undo"
                for node in plan.from_hami
            ),
        ]

    async def carry_out(self, plan: Removal) -> list[str]:
        """Remove everything and return a sentence about each object that is left.

        Raises:
            ClientError: The API server is unreachable or refuses a request. It is safe to run the
                command again.
        """
        for title, step in (
            ("webhooks", self._remove_webhooks),
            ("pods", self._remove_pods),
            ("claims", self._remove_claims),
            ("operator", self._end_operator),
            ("finalizers", self._remove_finalizers),
            ("agents", self._end_agents),
            ("hosts", self._clean_hosts),
            ("nodes", self._clear_nodes),
            ("objects", self._remove_rest),
        ):
            self._say(f"{title} ...")
            await step(plan)
        return self._left

    # Steps.

    async def _remove_webhooks(self, _: Removal) -> None:
        for kind in _WEBHOOKS:
            await self._delete(kind, await self._ours(kind))

    async def _remove_pods(self, plan: Removal) -> None:
        if plan.users:
            self._left += await delete_pods(
                self._api, plan.users, limit_s=_END_S, clock=self._clock
            )

    async def _remove_claims(self, _: Removal) -> None:
        claims = await self._list(VGPU_CLAIMS)
        await self._delete(VGPU_CLAIMS, claims)
        operators = await self._ours(DEPLOYMENTS)
        # Without a running operator nothing releases claims, so do not wait for that.
        answers = any((found.get("status") or {}).get("readyReplicas") for found in operators)
        if claims and answers:
            await self._until_gone(lambda: self._list(VGPU_CLAIMS), _RELEASE_S)

    async def _end_operator(self, _: Removal) -> None:
        found = await self._ours(DEPLOYMENTS)
        await self._delete(DEPLOYMENTS, found)
        await self._pods_end(found)

    async def _remove_finalizers(self, _: Removal) -> None:
        await self._delete(BINDINGS, await self._ours(BINDINGS))

        async def held() -> list[tuple[Resource, Object]]:
            return [
                (kind, claim)
                for kind in (VGPU_CLAIMS, RESOURCE_CLAIMS)
                for claim in await self._list(kind)
                if _has_finalizer(claim) or _shows_ours(claim)
            ]

        refused = "a pod has it reserved"
        waited = 0.0
        while claims := await held():
            for kind, claim in claims:
                try:
                    await self._release(kind, claim)
                # an API server has not yet noticed that the policy is gone
                except (Forbidden, Invalid) as error:
                    refused = str(error)
                except (Conflict, NotFound):
                    continue
            if waited >= _POLICY_S:
                self._left += [
                    f"{_word(kind)} {_name(claim)} keeps its "
                    f"{'finalizer' if _has_finalizer(claim) else 'devices'}: {refused}"
                    for kind, claim in await held()
                ]
                return
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S

    async def _end_agents(self, plan: Removal) -> None:
        found = await self._ours(DAEMON_SETS)
        # Read the DaemonSets again, because they may have changed since the plan was made.
        plan.agents = [obj for obj in found if _is_agent(obj)] or plan.agents
        await self._delete(DAEMON_SETS, found)
        await self._pods_end(found)

    async def _clean_hosts(self, plan: Removal) -> None:
        """Run a cleaner on each node of the agents; it is ready once the host is clean."""
        for cleaner in map(cleaner_of, plan.agents):
            await self._delete(DAEMON_SETS, [cleaner])
            await self._until_gone(partial(self._there, DAEMON_SETS, cleaner), _END_S)
            await self._api.create(DAEMON_SETS, cleaner)
            unready = await self._until_gone(partial(self._uncleaned, cleaner), _CLEAN_S)
            self._left += [f"the host of node {node} is not clean" for node in unready]
            await self._delete(DAEMON_SETS, [cleaner])
            await self._pods_end([cleaner])
        if not plan.agents:
            self._left.append(
                f"hosts were not cleaned: there was no DaemonSet of agents ({_DOCUMENT})"
            )

    async def _clear_nodes(self, _: Removal) -> None:
        """Remove annotations and capacity until kubelets stop writing the capacity back."""
        await self._delete(GPU_DEVICES, await self._list(GPU_DEVICES))
        steady = waited = 0.0
        while True:
            others = await self._others_nodes()
            nodes = await self._list(NODES)
            marked = [node for node in nodes if self._is_marked(node, others)]
            for node in marked:
                await self._unmark(node, others)
            # The kubelet of a node that is not Ready does not write anything back.
            alive = [node for node in marked if _is_ready(node)]
            steady = 0.0 if alive else steady + _NODES_POLL_S
            if not self._wait_for_capacity or steady >= _CAPACITY_STEADY_S:
                return
            if waited >= _CAPACITY_S:
                self._left += [f"node {_name(node)} still has {self._resource}" for node in alive]
                return
            await self._clock.sleep(_NODES_POLL_S)
            waited += _NODES_POLL_S

    async def _remove_rest(self, _: Removal) -> None:
        for kind in (CUSTOM_RESOURCE_DEFINITIONS, *OTHERS, NAMESPACES):
            await self._delete(kind, await self._ours(kind))
        for kind in (CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES):
            left = await self._until_gone(partial(self._ours, kind), _END_S)
            self._left += [f"{kind.kind} {_name(obj)} still exists" for obj in left]

    # Parts.

    async def _release(self, kind: Resource, claim: Object) -> None:
        if _has_finalizer(claim):
            await self._remove_finalizer(kind, claim)
        elif not (claim.get("status") or {}).get("reservedFor"):
            # Of a ResourceClaim that a user has made, and which does not go with its pod.
            metadata = claim["metadata"]
            version = metadata["resourceVersion"]
            operations = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "remove", "path": "/status/allocation"},
            ]
            await self._api.json_patch(
                kind,
                metadata["name"],
                operations,
                namespace=metadata["namespace"],
                subresource="status",
            )
            self._say(f"  {_word(kind)} {_name(claim)}: allocation removed")

    async def _remove_finalizer(self, kind: Resource, claim: Object) -> None:
        metadata = claim["metadata"]
        at = metadata["finalizers"].index(FINALIZER_IN_USE)
        path = f"/metadata/finalizers/{at}"
        operations = [
            # Test the value, because another finalizer may have moved to this index since.
            {"op": "test", "path": path, "value": FINALIZER_IN_USE},
            {"op": "remove", "path": path},
        ]
        await self._api.json_patch(
            kind, metadata["name"], operations, namespace=metadata["namespace"]
        )
        self._say(f"  {_word(kind)} {_name(claim)}: finalizer removed")

    async def _others_nodes(self) -> OthersNodes:
        daemon_sets = await self._list(DAEMON_SETS)
        plugins = list(filter(is_hamis_plugin, daemon_sets))
        hamis = await self._pods_of(plugins)
        nvidias = await self._pods_of(filter(is_nvidias_plugin, daemon_sets))
        return OthersNodes(_nodes_of(hamis), _nodes_of(nvidias), bool(plugins))

    async def _unmark(self, node: Object, others: OthersNodes) -> None:
        name = _name(node)
        annotations = dict.fromkeys(others.annotations(node))
        # A node that was taken over from HAMi has the label from `kubectl vgpu migrate`. On other
        # nodes the label is the administrator's, such as `off`, and stays.
        labels = {LABEL_NODE_AGENT: None} if ANNOTATION_FROM_HAMI in annotations else {}
        if annotations:
            written = {"metadata": {"annotations": annotations, "labels": labels}}
            await self._api.merge_patch(NODES, name, written)
        amounts = others.amounts(node, self._resource)
        if amounts:
            shown = {each: {self._resource: None} for each in amounts}
            await self._api.merge_patch(NODES, name, {"status": shown}, subresource="status")

    def _is_marked(self, node: Object, others: OthersNodes) -> bool:
        return bool(others.annotations(node) or others.amounts(node, self._resource))

    async def _uncleaned(self, cleaner: Object) -> Sequence[str]:
        """Return the nodes that are not clean yet, or a placeholder while they are unknown."""
        metadata = cleaner["metadata"]
        found = await self._api.get(DAEMON_SETS, metadata["name"], namespace=metadata["namespace"])
        status = found.get("status") or {}
        if status.get("observedGeneration", 0) < found["metadata"].get("generation", 1):
            return ["(not scheduled yet)"]
        if status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0):
            return []
        pods = await self._pods_of([cleaner])
        unready = [pod["spec"].get("nodeName", "(none yet)") for pod in pods if not _is_ready(pod)]
        return unready or ["(not scheduled yet)"]

    async def _pods_end(self, owners: Iterable[Object]) -> None:
        left = await self._until_gone(lambda: self._pods_of(owners), _END_S)
        self._left += [
            f"pod {_name(pod)} on node {pod['spec'].get('nodeName', '(none)')} has not ended"
            for pod in left
        ]

    async def _pods_of(self, owners: Iterable[Object]) -> list[Object]:
        found = []
        for owner in owners:
            labels = owner["spec"]["selector"]["matchLabels"]
            found += await self._list(
                PODS,
                namespace=owner["metadata"]["namespace"],
                label_selector=",".join(f"{key}={value}" for key, value in labels.items()),
            )
        return found

    async def _there(self, kind: Resource, obj: Object) -> list[Object]:
        try:
            metadata = obj["metadata"]
            return [await self._api.get(kind, metadata["name"], namespace=metadata["namespace"])]
        except NotFound:
            return []

    async def _until_gone(
        self, look: Callable[[], Awaitable[Sequence[Any]]], limit_s: float
    ) -> Sequence[Any]:
        """Poll until nothing is found or `limit_s` has passed, and return the last result."""
        waited = 0.0
        while (found := await look()) and waited < limit_s:
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S
        return found

    async def _ours(self, kind: Resource) -> list[Object]:
        return await self._list(kind, label_selector=PART_OF_LABEL)

    async def _list(self, kind: Resource, **which: Any) -> list[Object]:
        """Return the objects of a kind; empty if the API server does not serve it."""
        try:
            return list((await self._api.list(kind, **which)).items)
        except NotFound:
            return []

    async def _delete(self, kind: Resource, objects: Iterable[Object]) -> None:
        for obj in objects:
            metadata = obj["metadata"]
            try:
                await self._api.delete(
                    kind,
                    metadata["name"],
                    namespace=metadata.get("namespace"),
                    propagation="Background",
                )
            except NotFound:
                continue
            except ApiError as error:
                self._left.append(f"{kind.kind} {_name(obj)} could not be deleted: {error}")


def _has_finalizer(claim: Object) -> bool:
    return FINALIZER_IN_USE in (claim["metadata"].get("finalizers") or ())


def _shows_ours(claim: Object) -> bool:
    """Return True for a ResourceClaim that is allocated a device of our driver."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    shown = allocation.get("devices")
    results = shown.get("results") or () if isinstance(shown, dict) else ()  # else a VGPUClaim
    return any(each.get("driver") == DRIVER for each in results)


def _word(kind: Resource) -> str:
    return "claim" if kind is VGPU_CLAIMS else kind.kind


def _is_agent(daemon_set: Object) -> bool:
    labels = daemon_set["metadata"].get("labels") or {}
    return (
        labels.get("app.kubernetes.io/component") == "nodeagent"
        and daemon_set["metadata"]["name"] != CLEANER
    )


def _nodes_of(pods: Iterable[Object]) -> frozenset[str]:
    return frozenset(node for pod in pods if (node := pod["spec"].get("nodeName")))


def _is_held(claim: Object) -> bool:
    return LABEL_HELD_FOR in (claim["metadata"].get("labels") or {})


def _annotated(metadata: Mapping[str, Any], key: str) -> bool:
    return key in (metadata.get("annotations") or {})


def _is_ready(obj: Object) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _name(obj: Object) -> str:
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _of(objects: Mapping[str, list[str]], *kinds: Resource) -> list[str]:
    return sorted({name for kind in kinds for name in objects.get(kind.kind, ())})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"
