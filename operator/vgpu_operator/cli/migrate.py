"""`kubectl vgpu migrate hami`: take over nodes from HAMi one by one, while their pods run.

HAMi and vgpu run side by side (`manifests/components/beside-hami`). HAMi's own objects stay as they
are, and only nodes are changed: a node loses the label by which HAMi's device plugin selects it and
gets ours, so one of the two serves it at any time. An annotation on the node first records what an
undo must restore. HAMi's pods there keep their containers; a claim holds the amounts of each until
it ends. See docs/design/from-hami.md.

A node is cordoned while it is taken over. Each step can be repeated, so a run that was interrupted
is completed by running the command again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from uuid import uuid4

from pydantic import ValidationError

from vgpu_api import names
from vgpu_api.conditions import READY, is_true
from vgpu_api.core import Node, Pod
from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_USER
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import AlreadyExists, Conflict, NotFound
from vgpu_client.transport import Object
from vgpu_operator.cli.hami_installation import HamiInstallation, place_of
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.cli.other_plugins import COMPONENT, PLUGIN
from vgpu_operator.cli.printing import Printer
from vgpu_operator.cli.release_node import release
from vgpu_operator.cli.users import users_of
from vgpu_operator.insight.hami_node import BothConfigs, HamiNode, judge
from vgpu_operator.insight.hami_records import RecordedPod
from vgpu_operator.insight.held_claims import claim_to_hold, status_to_hold

_POLL_S = 0.5
_STARTING_S = 90.0
_PLUGIN_S = 120.0
_FORGET_S = 120.0
"""HAMi's scheduler looks at its nodes every 15 s, and former versions wait a minute for an answer
of the device plugin before they forget the node's GPUs."""
_AGENT_S = 300.0
_OPERATOR_S = 30.0
_ATTEMPTS = 5
_ASKED, _DELETED = "Requesting", "Deleted"
"""The beginnings of `hami.io/node-handshake`."""
_KUBERNETES = "kubernetes.io/"
_OUR_AGENT = f"{names.PART_OF_LABEL},{COMPONENT}=nodeagent"


@dataclass(frozen=True, slots=True)
class Former:
    """The state of a node before it was taken over, as recorded on the node.

    Attributes:
        label: The label that HAMi's device plugin selects nodes by.
        value: Its value on the node.
        cordoned: True if the node was cordoned.
        register: HAMi's register of the node's GPUs.
        done: True once the node has been taken over.
    """

    label: str
    value: str
    cordoned: bool
    register: str
    done: bool = False

    def text(self) -> str:
        """Return the value of the annotation."""
        return json.dumps(asdict(self), sort_keys=True)


def former_of(node: Node) -> Former | None:
    """Return what is written on a node that has been or is being taken over, else None.

    Raises:
        CannotAnswer: The annotation cannot be read.
    """
    text = node.metadata.annotations.get(names.ANNOTATION_FROM_HAMI)
    if text is None:
        return None
    try:
        return Former(**json.loads(text))
    except (ValueError, TypeError) as error:
        field = f"metadata.annotations[{names.ANNOTATION_FROM_HAMI}]"
        raise CannotAnswer(f"node {node.metadata.name}: {field} cannot be read: {text}") from error


def is_taken_over(node: Node) -> bool:
    """Return True if a node has been taken over."""
    former = former_of(node)
    return former is not None and former.done


def selecting_label(installed: HamiInstallation) -> tuple[str, str] | None:
    """Return the label that a node loses, so that HAMi's device plugin leaves it; None if none."""
    selector = installed.node_selector()
    own = sorted(key for key in selector if _KUBERNETES not in key)
    return (own[0], selector[own[0]]) if own else None


class Migration:
    """Takes nodes over from HAMi, and gives them back.

    Args:
        api: An administrator's client.
        printer: Prints what was done.
        installed: HAMi's objects.
        configs: HAMi's configuration and ours.
        clock: Waits.
    """

    def __init__(
        self,
        api: Api,
        printer: Printer,
        installed: HamiInstallation,
        configs: BothConfigs,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._operator = api.acting_as(OPERATOR_USER)
        self._printer = printer
        self._installed = installed
        self._configs = configs
        self._clock = clock or Clock()

    async def nodes(self) -> list[Node]:
        """Return HAMi's nodes, and those that have been taken over from it, by name.

        Raises:
            ClientError: They cannot be read.
        """
        selector = self._installed.node_selector().items()
        found = [Node.model_validate(raw) for raw in (await self._api.list(NODES)).items]
        return sorted(
            (
                node
                for node in found
                if former_of(node) is not None
                or (
                    selector <= node.metadata.labels.items()
                    and names.HAMI_NODE_REGISTER in node.metadata.annotations
                )
            ),
            key=lambda node: node.metadata.name,
        )

    async def judged(self, node: Node) -> HamiNode:
        """Return how a node would be taken over, with its pods as they are now.

        Raises:
            ClientError: Its pods cannot be read.
        """
        former = former_of(node)
        if former is not None:  # HAMi's register may be gone from the node by now
            annotations = {**node.metadata.annotations, names.HAMI_NODE_REGISTER: former.register}
            metadata = node.metadata.model_copy(update={"annotations": annotations})
            node = node.model_copy(update={"metadata": metadata})
        name = node.metadata.name
        raw = (await self._api.list(PODS, field_selector=f"spec.nodeName={name}")).items
        pods = [Pod.model_validate(each) for each in raw if _node_of(each) == name]
        return judge(node, pods, self._configs)

    async def take_over(self, name: str) -> list[str]:
        """Take one node over; return a sentence about each thing that prevents it.

        Before the node's label changes, the node is uncordoned again if it cannot be taken over.

        Raises:
            ClientError: The API server is unreachable or refuses a request. It is safe to run the
                command again.
        """
        node = await self._cordon(name)
        former = former_of(node)
        assert former is not None
        found = await self._settled(node)
        if found.obstacles:
            if former.label in node.metadata.labels:  # nothing but the cordon has changed yet
                await self._restore(node, former)
            return list(found.obstacles)
        if not await self._without_hami(node, former):
            return [
                f"node {name}: HAMi's device plugin is still there: kubectl get pods -A -o wide "
                f"-l {COMPONENT}={PLUGIN}"
            ]
        for pod in found.pods:
            await self._hold(pod, node, found)
        problems = await self._with_agent(node, found)
        if problems:
            return problems
        await self._patch(node, cordoned=former.cordoned, former=replace(former, done=True))
        self._printer.line(f"node {name}: taken over")
        return []

    async def give_back(self, name: str) -> list[str]:
        """Give one node back to HAMi; return a sentence about each thing that prevents it.

        Raises:
            CannotAnswer: The node was not taken over.
            ClientError: The API server is unreachable or refuses a request. It is safe to run the
                command again.
        """
        node = await self._node(name)
        former = former_of(node)
        if former is None:
            raise CannotAnswer(f"node {name}: it was not taken over from HAMi")
        used = await self._own_users(name)
        if used:
            return used
        await self._patch(node, cordoned=True)
        used = await self._own_users(name)  # what came before the node was cordoned
        if used:
            await self._patch(node, cordoned=former.cordoned)
            return used
        # From here on it is neither: a broken-off run can be completed in both directions.
        await self._patch(
            node, labels={names.LABEL_NODE_AGENT: None}, former=replace(former, done=False)
        )
        if not await self._left(name, _OUR_AGENT, AGENT_NAMESPACE):
            return [f"node {name}: the agent is still there: kubectl -n {AGENT_NAMESPACE} get pods"]
        left = await self._release(name)
        if left:
            return left
        for device in (await listed(self._api, GPU_DEVICES)).items:
            if device["spec"].get("nodeName") == name:
                await self._gone(GPU_DEVICES, device)
        await self._patch(node, labels={former.label: former.value})
        if not await self._is_hamis(name):
            return [
                f"node {name}: HAMi's device plugin has not registered its GPUs: kubectl get pods "
                f"-A -o wide -l {COMPONENT}={PLUGIN}"
            ]
        await self._restore(node, former)
        self._printer.line(f"node {name}: given back to HAMi")
        return []

    # Steps.

    async def _cordon(self, name: str) -> Node:
        """Cordon a node, and write on it what giving it back restores."""
        node = await self._node(name)
        former = former_of(node)
        if former is None:
            label = selecting_label(self._installed)
            assert label is not None
            register = node.metadata.annotations.get(names.HAMI_NODE_REGISTER, "")
            former = Former(*label, cordoned=node.spec.unschedulable, register=register)
        node = await self._patch(node, cordoned=True, former=former)
        self._printer.line(f"node {name}: cordoned")
        return node

    async def _restore(self, node: Node, former: Former) -> None:
        annotations = {names.ANNOTATION_FROM_HAMI: None}
        await self._patch(node, cordoned=former.cordoned, annotations=annotations)

    async def _settled(self, node: Node) -> HamiNode:
        """Return how the node would be taken over, once none of its pods is starting any more."""
        found = await self.judged(node)
        async for _ in self._polls(_STARTING_S):
            found = await self.judged(node)
            if not found.starting or found.obstacles:
                return found
        why = "it is still starting: wait until it runs, or delete it"
        return replace(found, obstacles=[f"pod {pod.place}: {why}" for pod in found.starting])

    async def _without_hami(self, node: Node, former: Former) -> bool:
        """Make HAMi's device plugin leave the node, and HAMi's scheduler forget its GPUs.

        Return False if the plugin has not left.
        """
        name = node.metadata.name
        before = node.metadata.annotations.get(names.HAMI_NODE_HANDSHAKE, "")
        await self._patch(node, labels={former.label: None})
        if not await self._left(name, f"{COMPONENT}={PLUGIN}"):
            return False
        self._printer.line(f"node {name}: HAMi's device plugin has left")
        asked = bool(self._installed.schedulers and before)
        if asked and not await self._is_forgotten(name, before):
            self._printer.line(
                f"node {name}: HAMi's scheduler does not show that it has forgotten the node; a "
                "pod that it binds there does not start, and its event says so"
            )
        await self._patch(node, annotations=dict.fromkeys(names.HAMI_NODE_RECORDS))
        return True

    async def _hold(self, pod: RecordedPod, node: Node, found: HamiNode) -> None:
        """Create the claim that holds what a pod uses, and write its allocation."""
        claim = claim_to_hold(pod)
        metadata = claim["metadata"]
        try:
            current = await self._operator.create(VGPU_CLAIMS, claim)
        except AlreadyExists:  # by a run that was interrupted
            current = await self._api.get(
                VGPU_CLAIMS, metadata["name"], namespace=metadata["namespace"]
            )
        indices = {gpu.uuid: gpu.index for gpu in found.gpus}
        for attempt in range(_ATTEMPTS):
            read = VGPUClaim.read(current)
            if read.status.allocation is not None:
                return
            status = status_to_hold(
                read,
                pod,
                node_uid=node.metadata.uid,
                indices=indices,
                allocation_id=str(uuid4()),
                unix=self._clock.unix(),
            )
            version = {"resourceVersion": current["metadata"]["resourceVersion"]}
            changes = {"metadata": version, "status": status.to_wire()}
            try:
                await self._operator.merge_patch(
                    VGPU_CLAIMS,
                    metadata["name"],
                    changes,
                    namespace=metadata["namespace"],
                    subresource="status",
                )
                break
            except Conflict:  # the operator has described the claim
                if attempt == _ATTEMPTS - 1:
                    raise
                current = await self._api.get(
                    VGPU_CLAIMS, metadata["name"], namespace=metadata["namespace"]
                )
        self._printer.line(f"pod {pod.place}: claim {metadata['name']} holds what it uses")

    async def _with_agent(self, node: Node, found: HamiNode) -> list[str]:
        """Let our agent onto the node and wait for its GPUs; return what is wrong with them."""
        name = node.metadata.name
        await self._patch(node, labels={names.LABEL_NODE_AGENT: names.ON})
        settings = self._configs.ours.on_node(name, node.metadata.labels)
        wanted = {g.uuid for g in found.gpus if not settings.leaves_out(g.uuid, g.index)}
        if not await self._serves(name, wanted):
            missing = ", ".join(sorted(wanted - await self._ready(name))) or "the resource"
            return [
                f"node {name}: the agent does not offer {missing}: see kubectl vgpu doctor and "
                f"kubectl -n {AGENT_NAMESPACE} get pods -o wide; the node stays cordoned, and "
                f"kubectl vgpu migrate hami --node {name} --undo gives it back"
            ]
        return []

    async def _release(self, name: str) -> list[str]:
        """End the claims that hold what HAMi's pods use on a node; return what is left."""
        for claim in await self._held(name):
            if await release(self._operator, claim):
                await self._gone(VGPU_CLAIMS, claim)
                self._printer.line(f"claim {place_of(claim)}: released")
        left: list[Object] = []
        async for _ in self._polls(_OPERATOR_S):
            left = await self._held(name)
            if not left:
                break
        return [
            f"claim {place_of(claim)} is still allocated; check that the operator runs"
            for claim in left
        ]

    async def _gone(self, resource: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        try:
            await self._api.delete(
                resource,
                metadata["name"],
                namespace=metadata.get("namespace"),
                uid=metadata["uid"],
            )
        except (NotFound, Conflict):
            return

    # What is there.

    async def _node(self, name: str) -> Node:
        try:
            return Node.model_validate(await self._api.get(NODES, name))
        except NotFound as error:
            raise CannotAnswer(f"node {name} does not exist") from error

    async def _own_users(self, name: str) -> list[str]:
        """Return a sentence about each claim of ours on a node, but not those that we hold."""
        claims = [each for each in await self._allocated(name) if not _is_held(each)]
        pods = users_of(claims, (await self._api.list(PODS)).items)
        served = {pod["metadata"]["uid"] for pod in pods.pods}
        return [
            *(f"pod {place_of(pod)} uses a GPU of node {name}" for pod in pods.pods),
            *(
                f"claim {place_of(claim)} holds devices of node {name}"
                for claim in claims
                if (claim["status"].get("reservedFor") or {}).get("podUID", "") not in served
            ),
        ]

    async def _allocated(self, name: str) -> list[Object]:
        return [
            claim
            for claim in (await listed(self._api, VGPU_CLAIMS)).items
            if ((claim.get("status") or {}).get("allocation") or {}).get("nodeName") == name
        ]

    async def _held(self, name: str) -> list[Object]:
        return [each for each in await self._allocated(name) if _is_held(each)]

    async def _left(self, name: str, selector: str, namespace: str | None = None) -> bool:
        """Return True once no pod of a program is on the node."""
        async for _ in self._polls(_PLUGIN_S):
            found = await self._api.list(PODS, namespace=namespace, label_selector=selector)
            if not any(_node_of(pod) == name for pod in found.items):
                return True
        return False

    async def _is_forgotten(self, name: str, before: str) -> bool:
        """Return True once HAMi's scheduler has dropped the node's GPUs.

        It then deletes its question to the device plugin, and may ask again; former versions write
        that the GPUs are deleted.
        """
        async for _ in self._polls(_FORGET_S):
            node = await self._node(name)
            now = node.metadata.annotations.get(names.HAMI_NODE_HANDSHAKE, "")
            is_new = before.startswith(_ASKED) and now.startswith(_ASKED) and now != before
            if not now or now.startswith(_DELETED) or is_new:
                return True
        return False

    async def _is_hamis(self, name: str) -> bool:
        """Return True once HAMi's device plugin has registered and offers the node's GPUs."""
        async for _ in self._polls(_AGENT_S):
            node = await self._node(name)
            registered = names.HAMI_NODE_REGISTER in node.metadata.annotations
            if registered and _offers(node, self._configs.count_resource):
                return True
        return False

    async def _serves(self, name: str, wanted: set[str]) -> bool:
        """Return True once our agent offers these GPUs."""
        resource = self._configs.ours.nvidia.resource_count_name
        async for _ in self._polls(_AGENT_S):
            if _offers(await self._node(name), resource) and wanted <= await self._ready(name):
                return True
        return False

    async def _ready(self, name: str) -> set[str]:
        """Return the UUIDs of the node's GPUs that our agent reports as ready."""
        ready = set()
        for raw in (await listed(self._api, GPU_DEVICES)).items:
            try:
                device = GPUDevice.model_validate(raw)
            except ValidationError:
                continue
            if device.spec.node_name == name and is_true(device.status.conditions, READY):
                ready.add(device.status.uuid)
        return ready

    async def _polls(self, limit_s: float) -> AsyncIterator[None]:
        """Yield now, and again after each pause until the limit."""
        waited = 0.0
        yield
        while waited < limit_s:
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S
            yield

    async def _patch(
        self,
        node: Node,
        *,
        cordoned: bool | None = None,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
        former: Former | None = None,
    ) -> Node:
        """Change a node, unless another node has taken its name."""
        written = {**(annotations or {})}
        if former is not None:
            written[names.ANNOTATION_FROM_HAMI] = former.text()
        metadata = {"uid": node.metadata.uid, "labels": labels or {}, "annotations": written}
        spec = {} if cordoned is None else {"spec": {"unschedulable": cordoned or None}}
        changed = await self._api.merge_patch(
            NODES, node.metadata.name, {"metadata": metadata, **spec}
        )
        return Node.model_validate(changed)


def _offers(node: Node, resource: str) -> bool:
    return str(node.status.allocatable.get(resource, "0")) != "0"


def _is_held(claim: Object) -> bool:
    labels: Mapping[str, str] = claim["metadata"].get("labels") or {}
    return labels.get(names.LABEL_HELD_FOR) == names.HAMI


def _node_of(pod: Object) -> str:
    return (pod.get("spec") or {}).get("nodeName") or ""
