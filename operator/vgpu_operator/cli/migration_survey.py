"""Finds what a move from HAMi would meet: settings, pods that are refused, nodes, obstacles.

Nothing is changed. `kubectl vgpu migrate hami` reads this first, and starts only without obstacles.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.errors import VgpuError
from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_NAMESPACE, OPERATOR_USER
from vgpu_api.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, NAMESPACES, PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, NotFound
from vgpu_client.transport import Object
from vgpu_operator.cli.hami_installation import (
    HamiConfiguration,
    HamiInstallation,
    configuration_of,
    missing_beside,
    only_on,
    place_of,
    read_installation,
    runs_beside,
)
from vgpu_operator.cli.installed import installation
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.migrate import Migration, former_of, selecting_label
from vgpu_operator.cli.printing import Printer
from vgpu_operator.cli.uninstall import DAEMON_SETS
from vgpu_operator.insight.hami_node import BothConfigs, HamiNode, used_by
from vgpu_operator.insight.question import question_of

_PAGE = "docs/operations/from-hami.md"
_AGENT = "vgpu-nodeagent"
_ADMITS_PODS = "mutate-pods.vgpu.dev"
_SCHEDULER_CONFIG = "KubeSchedulerConfiguration"


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that our admission would refuse, with all pods of its controller.

    Attributes:
        place: The first such pod.
        others: The number of the others.
        why: The refusal.
    """

    place: str
    others: int
    why: str

    def __str__(self) -> str:
        more = f" and {self.others} more of its controller" if self.others else ""
        return f"pod {self.place}{more}: {self.why}"


@dataclass(frozen=True, slots=True)
class Survey:
    """The findings about an installation of HAMi before a move.

    Attributes:
        installed: HAMi's objects.
        configs: HAMi's configuration and ours.
        left: Settings of HAMi's that are not carried over.
        refused: Running pods that could not be recreated.
        nodes: The nodes to take over or give back.
        judged: How each node would be taken over, by name; none for nodes already taken over.
        obstacles: Why nothing can be started; none if it can.
    """

    installed: HamiInstallation
    configs: BothConfigs
    left: Sequence[str]
    refused: Sequence[RefusedPod]
    nodes: Sequence[Node]
    judged: Mapping[str, HamiNode]
    obstacles: Sequence[str]


async def survey(api: Api, *, node: str = "") -> Survey:
    """Read the cluster.

    Args:
        api: An administrator's client.
        node: The only node to look at; empty for all of HAMi's.

    Raises:
        ClientError: Objects cannot be read.
        CannotAnswer: HAMi is not installed.
    """
    installed = await read_installation(api)
    if not installed.plugins:
        raise CannotAnswer("HAMi is not installed: no DaemonSet of its device plugin was found")
    hamis = configuration_of(installed)
    ours = await installation(api)
    configs = BothConfigs(hamis.config, ours.config)
    work = Migration(api, Printer(), installed, configs)
    nodes = [each for each in await work.nodes() if node in ("", each.metadata.name)]
    judged = {
        each.metadata.name: await work.judged(each)
        for each in nodes
        if (former := former_of(each)) is None or not former.done
    }
    obstacles = [
        *_of_hami(installed, hamis),
        *([f"our configuration: {ours.unknown}"] if ours.unknown else ()),
        *missing_beside(installed, hamis.config, ours.config),
        *await _beside(api, installed),
        *(line for each in judged.values() for line in each.obstacles),
    ]
    if node and not nodes:
        obstacles.append(f"node {node}: HAMi's device plugin does not serve it")
    refused = await _refused(api, configs)
    return Survey(installed, configs, hamis.left, refused, nodes, judged, obstacles)


def _of_hami(installed: HamiInstallation, hamis: HamiConfiguration) -> Iterator[str]:
    if selecting_label(installed) is None:
        names_ = ", ".join(map(place_of, installed.plugins))
        yield (
            f"DaemonSet {names_}: it has no nodeSelector, so no node can be taken from it: label "
            "its nodes gpu=on and set devicePlugin.nvidiaNodeSelector in HAMi's values"
        )
    yield from hamis.errors


async def _beside(api: Api, installed: HamiInstallation) -> list[str]:
    """Return what is missing for both to run side by side."""
    return [
        *await _of_agents(api),
        *await _of_webhooks(api),
        *await _of_schedulers(api, installed),
        *await _of_rights(api),
    ]


async def _of_rights(api: Api) -> list[str]:
    """Return a line if the user may not act as the operator, who alone writes claims' status."""
    try:
        await api.acting_as(OPERATOR_USER).list(VGPU_CLAIMS)
    except Forbidden as error:
        return [f"you may not act as {OPERATOR_USER}, who writes the claims: {error.message}"]
    except NotFound:
        return []  # vgpu is not installed, which is named
    return []


async def _of_agents(api: Api) -> list[str]:
    try:
        agents = await api.get(DAEMON_SETS, _AGENT, namespace=AGENT_NAMESPACE)
    except NotFound:
        return [f"vgpu is not installed: no DaemonSet {AGENT_NAMESPACE}/{_AGENT}; see {_PAGE}"]
    if runs_beside(agents):
        return []
    return [
        f"DaemonSet {AGENT_NAMESPACE}/{_AGENT}: it must run only on nodes with the label "
        f"{names.LABEL_NODE_AGENT}={names.ON}: apply manifests/components/beside-hami"
    ]


async def _of_webhooks(api: Api) -> list[str]:
    for configuration in (await api.list(MUTATING_WEBHOOKS)).items:
        for hook in configuration.get("webhooks") or ():
            selector = hook.get("namespaceSelector") or {}
            if hook["name"] == _ADMITS_PODS and not only_on(
                names.LABEL_ADMISSION, selector.get("matchExpressions")
            ):
                return [
                    f"webhook {_ADMITS_PODS}: it must read only namespaces with the label "
                    f"{names.LABEL_ADMISSION}={names.ON}: apply manifests/components/beside-hami"
                ]
    return []


async def _of_schedulers(api: Api, installed: HamiInstallation) -> list[str]:
    """Return a line for each kube-scheduler of ours that answers to HAMi's scheduler's name."""
    found = []
    for config_map in (await api.list(CONFIG_MAPS, namespace=OPERATOR_NAMESPACE)).items:
        for text in (config_map.get("data") or {}).values():
            document = _document(text)
            profiles = document.get("profiles") or () if isinstance(document, dict) else ()
            if (
                isinstance(document, dict)
                and document.get("kind") == _SCHEDULER_CONFIG
                and any(p.get("schedulerName") == installed.scheduler_name for p in profiles)
            ):
                found.append(
                    f"ConfigMap {place_of(config_map)}: our kube-scheduler must have no profile "
                    f"{installed.scheduler_name} while HAMi's runs: apply "
                    "manifests/components/beside-hami"
                )
    return found


def _document(text: object) -> Any:
    try:
        return yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError:
        return None


@dataclass(frozen=True, slots=True)
class _Admission:
    """Our admission, for pods that name no claim."""

    config: ClusterConfig

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Return None: HAMi's pods name no claims."""
        return None


async def _refused(api: Api, configs: BothConfigs) -> list[RefusedPod]:
    """Return the pods of HAMi that our admission would refuse, one for each controller."""
    excluded = await _left_alone(api)
    found: dict[tuple[str, str], list[RefusedPod]] = {}
    for raw in (await api.list(PODS)).items:
        if raw["metadata"].get("namespace") in excluded or not _is_hamis(raw):
            continue
        try:
            question_of(as_created(raw), _Admission(configs.ours), admit=True)
        except VgpuError as error:
            refused = RefusedPod(place_of(raw), 0, str(error))
            found.setdefault((_controller(raw), str(error)), []).append(refused)
    return [
        RefusedPod(pods[0].place, len(pods) - 1, pods[0].why)
        for pods in sorted(found.values(), key=lambda pods: pods[0].place)
    ]


async def _left_alone(api: Api) -> set[str]:
    """Return the namespaces whose pods admission leaves alone."""
    selector = f"{names.HAMI_WEBHOOK_LABEL}=ignore"
    listed = (await api.list(NAMESPACES, label_selector=selector)).items
    own = {"kube-system", OPERATOR_NAMESPACE, AGENT_NAMESPACE}
    return own | {each["metadata"]["name"] for each in listed}


def _is_hamis(raw: Object) -> bool:
    """Return True if HAMi gave the pod devices, or would."""
    metadata = raw["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if labels.get(names.LABEL_ADMITTED) == names.ADMITTED:
        return False
    if (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    return names.HAMI_DEVICES_ALLOCATED in annotations or not raw["spec"].get("nodeName")


def _controller(raw: Object) -> str:
    metadata = raw["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller")), metadata["name"])


def as_created(raw: Object) -> dict[str, Any]:
    """Return a running pod as its author created it: without a node, a state and HAMi's records."""
    pod = copy.deepcopy(dict(raw))
    pod.pop("status", None)
    pod["kind"] = "Pod"
    pod["spec"].pop("nodeName", None)
    metadata = pod["metadata"]
    metadata["annotations"] = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in (*names.HAMI_RECORDS, names.HAMI_DEVICES_TO_ALLOCATE)
    }
    return pod


def lines_of(found: Survey) -> Iterator[str]:
    """Yield the lines about a survey, but not the obstacles."""
    programs = [
        *(f"Deployment {place_of(each)}" for each in found.installed.schedulers),
        *(f"DaemonSet {place_of(each)}" for each in found.installed.plugins),
        *(f"webhook {place_of(each)}" for each in found.installed.webhooks),
        *(f"ConfigMap {place_of(each)}" for each in found.installed.config_maps),
    ]
    yield f"HAMi: {', '.join(programs) or 'not found'}"
    if found.left:
        yield "Settings that are not carried over (kubectl vgpu import hami shows the others):"
        yield from (f"  {line}" for line in found.left)
    if found.refused:
        yield "Pods that run and could not be created anew in a namespace of vgpu:"
        yield from (f"  {pod}" for pod in found.refused)
    if not found.nodes:
        yield "No node is served by HAMi's device plugin, or was taken over from it"
    for node in found.nodes:
        yield from _about(node, found.judged.get(node.metadata.name))


def _about(node: Node, judged: HamiNode | None) -> Iterator[str]:
    name = node.metadata.name
    if judged is None:
        yield f"Node {name}: taken over"
        return
    pods = [*judged.pods, *judged.starting]
    gpus = f"{len(judged.gpus)} {'GPU' if len(judged.gpus) == 1 else 'GPUs'}"
    yield f"Node {name}: {gpus}; pods of HAMi's that go on running: {len(pods)}"
    for pod in pods:
        used, _ = used_by([pod])
        for uuid, use in used.items():
            yield f"  pod {pod.place}: GPU {uuid}: {use.memory_mib} MiB, {use.cores} %"


def step_of(judged: HamiNode) -> str:
    """Return the step of the plan that takes a node over."""
    starting = len(judged.starting)
    wait = f"wait for HAMi's pods that are starting ({starting}), " if starting else ""
    pods = len(judged.pods) + starting
    return (
        f"take node {judged.name} over from HAMi: cordon it, {wait}"
        f"hold what HAMi's pods use until they end ({pods}), uncordon it"
    )
