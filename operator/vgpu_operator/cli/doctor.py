"""`kubectl vgpu doctor`: check the installation and suggest fixes.

The doctor reads the cluster once. Each check is a function that takes these objects and yields
findings. A check whose objects may not be read reports that instead of guessing. Only objects in
the API are checked; `kubectl vgpu audit` checks the agents' records on the nodes.
"""

from __future__ import annotations

import base64
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite

import yaml

from vgpu_api import dra, names
from vgpu_api.agent_pods import is_agents
from vgpu_api.conditions import HEALTHY, is_true
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_NAMESPACE, OPERATOR_USER, SCHEDULER_NAME
from vgpu_api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    ENDPOINT_SLICES,
    EVENTS,
    GPU_DEVICES,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_api.vendors import kind_of
from vgpu_client.api import Api
from vgpu_client.errors import ApiError, ClientError, Forbidden, NotFound
from vgpu_client.reviews import User, may
from vgpu_client.transport import Object
from vgpu_operator.certificates.names import (
    CERTIFICATE,
    EXTENDER_SECRET,
    SCHEDULER_SECRET,
    WEBHOOK_CONFIGURATIONS,
    WEBHOOK_SECRET,
)
from vgpu_operator.cli.certificate_end import end_of
from vgpu_operator.cli.hami_installation import (
    is_hamis_scheduler,
    is_hamis_webhook,
    runs_beside,
    scheduler_of,
)
from vgpu_operator.cli.installed import installed_config
from vgpu_operator.cli.other_plugins import is_hamis_plugin, is_nvidias_plugin
from vgpu_operator.cli.uninstall import BINDINGS, DAEMON_SETS, DEPLOYMENTS, POLICIES
from vgpu_operator.cli.users import users_of
from vgpu_operator.engine.gpu_pod import gpu_pod_of
from vgpu_operator.insight.ages import lasting
from vgpu_operator.insight.states import state_of

REQUESTS_DEVICE = "asks-for-a-device"
"""The match condition of the webhooks for pods that ask for a device."""
_READ = (
    CUSTOM_RESOURCE_DEFINITIONS,
    GPU_DEVICES,
    VGPU_CLAIMS,
    NODES,
    PODS,
    EVENTS,
    DEPLOYMENTS,
    DAEMON_SETS,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    POLICIES,
    BINDINGS,
    DEVICE_CLASSES,
)
_POLICIES = (
    "vgpu-admitted",
    "vgpu-agent-events",
    "vgpu-claim-status",
    "vgpu-claims",
    "vgpu-devices",
    "vgpu-ephemeral-containers",
    "vgpu-gates",
    "vgpu-immediate",
    "vgpu-labels",
    "vgpu-marks",
    "vgpu-nodes",
    "vgpu-pods",
)
_POLICIES_OF_CLAIMS = (
    "vgpu-allocations",
    "vgpu-claim-marks",
    "vgpu-claim-names",
    "vgpu-claim-tolerations",
    "vgpu-claim-users",
    "vgpu-reservations",
    "vgpu-slices",
    "vgpu-template-tolerations",
)
"""Those of overlays/claims."""
_MARKS_BINDINGS = ("vgpu-marks", "vgpu-marks-opted-out", "vgpu-marks-system")
"""This policy needs several bindings, because only some namespaces may write the label."""
_HAMIS_CONFIG_MAPS = ("hami-scheduler-device", "hami-device-plugin")
_OUR_CONFIG_MAP = f"config.yaml of vgpu-config in {OPERATOR_NAMESPACE}"
_READ_THERE = (
    (LEASES, OPERATOR_NAMESPACE),
    (ENDPOINT_SLICES, OPERATOR_NAMESPACE),
    (CONFIG_MAPS, OPERATOR_NAMESPACE),
)
_OPERATOR = User(
    OPERATOR_USER,
    groups=(
        "system:authenticated",
        "system:serviceaccounts",
        f"system:serviceaccounts:{OPERATOR_NAMESPACE}",
    ),
)
_DELETE = ("delete", "", "pods", "")
_RIGHTS_TO_PREEMPT = (
    ("list", "policy", "poddisruptionbudgets", ""),
    ("watch", "policy", "poddisruptionbudgets", ""),
    ("create", "", "pods", "eviction"),
    _DELETE,
)
"""Verb, group, resource and subresource; pods are deleted only if `budgets` is `Prefer`."""
_RIGHTS_TO_ALLOCATE = (
    *(
        (verb, RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.plural, "")
        for verb in ("get", "list", "watch", "create", "patch")
    ),
    ("patch", RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.plural, "status"),
    ("patch", RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.plural, "binding"),
)
"""The same for Claims mode. Kubernetes asks for `binding` of whoever writes an allocation."""
_LEAST_SERVER = (1, 31)
_LEAST_SERVER_FOR_CLAIMS = (1, 36)
_LEAST_KUBELET = (1, 29)
_LEAST_CONTAINERD = (1, 7)
_EXPIRES = timedelta(days=7)
_LEASE_SLACK_S = 60.0
"""The holder of a Lease sets its times, and its clock may differ from the API server's."""
_LONG_S = 600.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of a check.

    Attributes:
        level: `ok`, `warning`, `error`, or `unknown` if objects could not be read.
        check: The name of the check.
        message: The finding.
        remedy: The suggested fix; empty if none is needed.
    """

    level: str
    check: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects that the checks examine.

    Attributes:
        now: The time of the API server.
        version: The version of the API server; empty if it is not reported.
        config: The installed configuration.
        lists: Objects by kind and namespace (empty: all namespaces), or the API server's error.
        secrets: The Secrets with our certificates by name, or the API server's error.
        rights_missing: The rights that the operator needs to preempt and lacks, or the API server's
            error; empty while preemption is off.
        allocating_missing: The same for ResourceClaims; empty in the other modes.
    """

    now: datetime
    version: str
    config: ClusterConfig
    lists: Mapping[tuple[str, str], Sequence[Object] | ClientError]
    secrets: Mapping[str, Object | ClientError]
    rights_missing: Sequence[str] | ClientError = ()
    allocating_missing: Sequence[str] | ClientError = ()

    def of(self, resource: Resource, namespace: str = "") -> Sequence[Object]:
        """Return the objects of a kind.

        Raises:
            ClientError: The objects could not be read.
        """
        found = self.lists.get((resource.plural, namespace), ())
        if isinstance(found, ClientError):
            raise found
        return found


Check = Callable[[Snapshot], Iterator[CheckResult]]


def _ok(check: str, message: str) -> CheckResult:
    return CheckResult("ok", check, message)


def _warning(check: str, message: str, remedy: str) -> CheckResult:
    return CheckResult("warning", check, message, remedy)


def _error(check: str, message: str, remedy: str) -> CheckResult:
    return CheckResult("error", check, message, remedy)


def _unknown(check: str, message: str, remedy: str) -> CheckResult:
    return CheckResult("unknown", check, message, remedy)


async def read(api: Api) -> Snapshot:
    """Read the objects that the checks examine.

    Raises:
        ClientError: The API server is unreachable or refuses every request.
    """
    lists: dict[tuple[str, str], Sequence[Object] | ClientError] = {}
    version = str((await api.version()).get("gitVersion", ""))
    for resource, namespace in (*((kind, "") for kind in _READ), *_READ_THERE):
        try:
            found = await api.list(resource, namespace=namespace or None)
            lists[resource.plural, namespace] = found.items
        except NotFound:
            lists[resource.plural, namespace] = ()
        except ApiError as error:
            lists[resource.plural, namespace] = error
    lists[CONFIG_MAPS.plural, ""] = await _hamis_config_maps(api)
    refused = [found for found in lists.values() if isinstance(found, Forbidden)]
    if len(refused) == len(lists):
        # without this, a cluster in which nothing could be read would seem healthy
        raise refused[0]
    secrets: dict[str, Object | ClientError] = {}
    for name in (WEBHOOK_SECRET, EXTENDER_SECRET, SCHEDULER_SECRET):
        try:
            secrets[name] = await api.get(SECRETS, name, namespace=OPERATOR_NAMESPACE)
        except NotFound:
            continue
        except Forbidden as error:
            secrets[name] = error
    config = await installed_config(api)
    # Use the API server's time: with a clock that is an hour ahead, every agent would seem silent.
    now = datetime.fromtimestamp(api.unix(), UTC)
    missing = await rights_missing(api, config)
    allocating = await allocating_missing(api, config)
    return Snapshot(now, version, config, lists, secrets, missing, allocating)


async def rights_missing(api: Api, config: ClusterConfig) -> Sequence[str] | ClientError:
    """Return the rights for preemption that the operator's account lacks, if preemption is on.

    The API server is asked for the rights themselves: an overlay may grant them under other names
    than `manifests/components/preemption` does.
    """
    rules = config.scheduling.preemption
    needed = [each for each in _RIGHTS_TO_PREEMPT if rules.budgets == "Prefer" or each != _DELETE]
    return await _missing(api, needed if rules.enabled else ())


async def allocating_missing(api: Api, config: ClusterConfig) -> Sequence[str] | ClientError:
    """Return the rights on ResourceClaims that the operator's account lacks, in Claims mode."""
    return await _missing(api, _RIGHTS_TO_ALLOCATE if config.scheduling.mode == "Claims" else ())


async def _missing(
    api: Api, needed: Iterable[tuple[str, str, str, str]]
) -> Sequence[str] | ClientError:
    missing: list[str] = []
    try:
        for verb, group, resource, subresource in needed:
            attributes = {"verb": verb, "group": group, "resource": resource}
            if subresource:
                attributes["subresource"] = subresource
            if not await may(api, _OPERATOR, {"resourceAttributes": attributes}):
                missing.append(f"{verb} {'/'.join(filter(None, (resource, subresource)))}")
    except ClientError as error:
        return error
    return missing


async def _hamis_config_maps(api: Api) -> Sequence[Object] | ClientError:
    """Read HAMi's ConfigMaps by name, because listing all would also read secrets in others."""
    found: list[Object] = []
    try:
        for name in _HAMIS_CONFIG_MAPS:
            listing = await api.list(CONFIG_MAPS, field_selector=f"metadata.name={name}")
            found += listing.items
    except ApiError as error:
        return error
    return found


def findings(snapshot: Snapshot) -> list[CheckResult]:
    """Run all checks."""
    found: list[CheckResult] = []
    for name, check in CHECKS:
        try:
            found += check(snapshot)
        except ClientError as error:
            found.append(_unknown(name, str(error), "run it as an administrator"))
    return found


# Kubernetes.


def _server(seen: Snapshot) -> Iterator[CheckResult]:
    number = _numbers(seen.version)
    if number and number < _LEAST_SERVER:
        yield _error(
            "api server",
            f"{seen.version}: vgpu needs Kubernetes 1.31 or later",
            "upgrade the control plane",
        )
    else:
        yield _ok("api server", seen.version or "reports no version")


def _kinds(seen: Snapshot) -> Iterator[CheckResult]:
    ours = {
        crd["metadata"]["name"]: crd
        for crd in seen.of(CUSTOM_RESOURCE_DEFINITIONS)
        if crd["spec"]["group"] == names.GROUP
    }
    for resource in (VGPU_CLAIMS, GPU_DEVICES):
        name = f"{resource.plural}.{resource.group}"
        crd = ours.get(name)
        served = [v["name"] for v in (crd or {}).get("spec", {}).get("versions", ()) if v["served"]]
        if crd is None:
            yield _error("kinds", f"{name} is not installed", "kubectl apply -k crds")
        elif names.VERSION not in served:
            text = f"{name} is served as {', '.join(served)}, not as {names.VERSION}"
            yield _error("kinds", text, "use the kubectl vgpu of the installed version")
        elif not _has(crd, "Established"):
            yield _error("kinds", f"{name} is not established", f"kubectl describe crd {name}")
        else:
            yield _ok("kinds", f"{name} {names.VERSION}")


def _nodes(seen: Snapshot) -> Iterator[CheckResult]:
    for node in _gpu_nodes(seen):
        name, info = node["metadata"]["name"], (node.get("status") or {}).get("nodeInfo") or {}
        kubelet = _numbers(str(info.get("kubeletVersion", "")))
        runtime = str(info.get("containerRuntimeVersion", ""))
        if kubelet and kubelet < _LEAST_KUBELET:
            text = f"node {name}: kubelet {info['kubeletVersion']}; vgpu needs 1.29 or later"
            yield _error("nodes", text, "upgrade the node")
        if runtime.startswith("containerd://"):
            number = _numbers(runtime)
            if number < _LEAST_CONTAINERD:
                text = f"node {name}: {runtime} does not support CDI"
                yield _error(
                    "nodes", text, "upgrade to containerd 2, or to 1.7 with enable_cdi = true"
                )
            elif number < (2, 0) and _says(seen, "unresolvable CDI devices", on=name):
                text = f"node {name}: {runtime} cannot resolve CDI devices"
                yield _error("nodes", text, "set enable_cdi = true in its config.toml")
        if not _is_ready(node):
            yield _error("nodes", f"node {name} is not ready", f"kubectl describe node {name}")


# vgpu.


def _workloads(seen: Snapshot) -> Iterator[CheckResult]:
    kinds = ((DEPLOYMENTS, "replicas", "availableReplicas"),
             (DAEMON_SETS, "desiredNumberScheduled", "numberAvailable"))  # fmt: skip
    found = False
    for resource, desired_key, there_key in kinds:
        for obj in seen.of(resource):
            if not _is_ours(obj):
                continue
            found = True
            status = obj.get("status") or {}
            desired = (obj["spec"] if resource is DEPLOYMENTS else status).get(desired_key, 0)
            there = status.get(there_key, 0)
            what = f"{resource.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
            if there < desired:
                yield _error(
                    "programs",
                    f"{what}: {there} of {desired} available",
                    f"kubectl -n {obj['metadata']['namespace']} get pods -o wide",
                )
            else:
                yield _ok("programs", f"{what}: {there} of {desired} available")
    if not found:
        yield _warning(
            "programs",
            "no Deployment or DaemonSet of vgpu: it does not run in this cluster's pods",
            "kubectl apply -k manifests/overlays/default",
        )


def _leader(seen: Snapshot) -> Iterator[CheckResult]:
    for lease in seen.of(LEASES, OPERATOR_NAMESPACE):
        spec = lease.get("spec") or {}
        if lease["metadata"]["name"] != "vgpu-operator":
            continue
        silent = _since(spec.get("renewTime"), seen.now)
        limit = float(spec.get("leaseDurationSeconds") or 15) + _LEASE_SLACK_S
        if spec.get("holderIdentity") and silent < limit:
            yield _ok("leader", f"{spec['holderIdentity']} is the leader")
        else:
            text = f"no operator has been the leader for {lasting(silent)}: no GPUs are allocated"
            yield _error(
                "leader", text, f"kubectl -n {OPERATOR_NAMESPACE} logs deploy/vgpu-operator"
            )
        return
    yield _error(
        "leader",
        "no operator has ever been the leader",
        f"kubectl -n {OPERATOR_NAMESPACE} get pods",
    )


def _extender(seen: Snapshot) -> Iterator[CheckResult]:
    ready = _ready_endpoints(seen, "vgpu-extender")
    if ready:
        yield _ok("extender", f"the Service vgpu-extender has {ready} ready endpoint")
    else:
        text = "the Service vgpu-extender has no ready endpoint"
        yield _error("extender", text, f"kubectl -n {OPERATOR_NAMESPACE} get endpointslices,leases")
    for event in seen.of(EVENTS):
        text = event.get("message") or ""
        if _is_failed_call(event, seen.now):
            yield _error(
                "extender",
                f"kube-scheduler cannot reach the extender: {text}",
                "restart vgpu-scheduler if the CA of its certificates was replaced",
            )
            return


def _ready_endpoints(seen: Snapshot, service: str) -> int | None:
    """Return the number of ready endpoints of a Service; None if it has no EndpointSlice."""
    slices = [s for s in seen.of(ENDPOINT_SLICES, OPERATOR_NAMESPACE) if _service(s) == service]
    if not slices:
        return None
    return sum(_answers(each) for s in slices for each in s.get("endpoints") or ())


def _is_failed_call(event: Object, now: datetime) -> bool:
    """Return True for a recent event in which kube-scheduler could not reach an extender."""
    text = event.get("message") or ""
    is_failure = event.get("reason") == "FailedScheduling" and "extender" in text
    return is_failure and "Post " in text and _is_recent(event, now)


def _preemption(seen: Snapshot) -> Iterator[CheckResult]:
    """Check the configuration of vgpu-scheduler, if it is deployed."""
    mounted = _mounted_by_scheduler(seen)
    for config_map in seen.of(CONFIG_MAPS, OPERATOR_NAMESPACE):
        name = config_map["metadata"]["name"]
        extenders = _extenders_in((config_map.get("data") or {}).get("scheduler.yaml", ""))
        if name not in mounted or not extenders:
            continue
        if all(each.get("preemptVerb") for each in extenders):
            yield _ok("preemption", "kube-scheduler asks the extender before it preempts pods")
        else:
            yield _error(
                "preemption",
                f"{name} has no preemptVerb: kube-scheduler preempts pods whose GPUs do not help",
                "add preemptVerb: preempt below filterVerb, and restart vgpu-scheduler",
            )


def _rights_to_preempt(seen: Snapshot) -> Iterator[CheckResult]:
    """Find preemption that is on without the rights for it; nobody is preempted then."""
    if isinstance(seen.rights_missing, ClientError):
        raise seen.rights_missing
    if seen.rights_missing:
        yield _error(
            "preemption",
            "scheduling.preemption.enabled is true, and nobody is preempted: the operator may not "
            + ", ".join(seen.rights_missing),
            "add manifests/components/preemption to the overlay, and apply it",
        )
    elif seen.config.scheduling.preemption.enabled:
        yield _ok("preemption", "the operator may evict pods")


def _mounted_by_scheduler(seen: Snapshot) -> set[str]:
    """Return the names of the ConfigMaps that the Deployment of vgpu-scheduler mounts."""
    return {
        volume["configMap"]["name"]
        for deployment in seen.of(DEPLOYMENTS)
        if deployment["metadata"]["name"] == SCHEDULER_NAME and _is_ours(deployment)
        for volume in deployment["spec"]["template"]["spec"].get("volumes") or ()
        if "configMap" in volume
    }


def _extenders_in(text: str) -> list[Mapping[str, object]]:
    """Return the extenders of a KubeSchedulerConfiguration; empty if it is invalid."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    return (document.get("extenders") or []) if isinstance(document, dict) else []


def _resource_claims(seen: Snapshot) -> Iterator[CheckResult]:
    """In Claims mode, check what the operator and the agents need for ResourceClaims."""
    if seen.config.scheduling.mode != "Claims":
        return
    remedy = "apply manifests/overlays/claims"
    number = _numbers(seen.version)
    if number and number < _LEAST_SERVER_FOR_CLAIMS:
        yield _error(
            "resource claims",
            f"{seen.version}: mode Claims needs Kubernetes 1.36 or later",
            "use manifests/overlays/gate, or upgrade the control plane",
        )
    if isinstance(seen.allocating_missing, ClientError):
        raise seen.allocating_missing
    if seen.allocating_missing:
        text = f"no pod gets a GPU: the operator may not {', '.join(seen.allocating_missing)}"
        yield _error("resource claims", text, remedy)
    if all(found["metadata"]["name"] != dra.CLASS for found in seen.of(DEVICE_CLASSES)):
        yield _error("resource claims", f"there is no DeviceClass {dra.CLASS}", remedy)
    for agent in filter(_is_ours, seen.of(DAEMON_SETS)):
        containers = agent["spec"]["template"]["spec"]["containers"]
        if not any("--dra" in (each.get("args") or ()) for each in containers):
            text = f"DaemonSet {agent['metadata']['name']} prepares no ResourceClaims"
            yield _error("resource claims", text, remedy)


def _allocators(seen: Snapshot) -> Iterator[CheckResult]:
    """Check the nodes whose label says who allocates their devices."""
    held = _claims_by_node(seen)
    for node in seen.of(NODES):
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        value = labels.get(names.LABEL_ALLOCATOR, names.ALLOCATOR_LEDGER)
        shown = f"node {name}: {names.LABEL_ALLOCATOR}: {value}"
        mirrors = [each for each in held[name] if _is_mirror(each)]
        ours = len(held[name]) - len(mirrors)
        if value == names.ALLOCATOR_SCHEDULER:
            for why, remedy in _unscheduled(seen):
                yield _error("allocators", f"{shown}: nobody allocates its GPUs: {why}", remedy)
            if ours:
                text = f"{shown}: kube-scheduler gets its GPUs once its claims are gone ({ours})"
                yield _warning("allocators", text, f"kubectl vgpu drain {name}, or wait for them")
        elif value != names.ALLOCATOR_LEDGER:
            text = f"{shown}: no such value, so the operator allocates its GPUs"
            expected = f"{names.ALLOCATOR_SCHEDULER} or {names.ALLOCATOR_LEDGER}"
            yield _error("allocators", text, f"set it to {expected}, or remove it")
        elif mirrors:
            text = f"{shown}: claims of kube-scheduler's keep its GPUs ({len(mirrors)})"
            yield _warning("allocators", text, "none is needed: the operator allocates beside them")


def _unscheduled(seen: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield what keeps kube-scheduler from allocating devices, each with its remedy."""
    mode, apply = seen.config.scheduling.mode, "apply manifests/overlays/claims"
    if mode != "Claims":
        yield f"scheduling.mode is {mode}", f"{apply}, or take the label off"
        return
    if all(each["metadata"]["name"] != dra.SCHEDULER_CLASS for each in seen.of(DEVICE_CLASSES)):
        yield f"there is no DeviceClass {dra.SCHEDULER_CLASS}", apply
    for agent in filter(_is_ours, seen.of(DAEMON_SETS)):
        containers = agent["spec"]["template"]["spec"]["containers"]
        if not any("--resource-slices" in (each.get("args") or ()) for each in containers):
            why = f"DaemonSet {agent['metadata']['name']} publishes no ResourceSlices"
            yield why, "add manifests/components/resource-slices to the overlay, and apply it"


def _claims_by_node(seen: Snapshot) -> defaultdict[str, list[Object]]:
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for claim in seen.of(VGPU_CLAIMS):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        found[allocation.get("nodeName", "")].append(claim)
    return found


def _is_mirror(claim: Object) -> bool:
    return names.ANNOTATION_SCHEDULER_CLAIM in _annotations(claim)


def _webhooks(seen: Snapshot) -> Iterator[CheckResult]:
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        ours = [
            each
            for each in seen.of(resource)
            if each["metadata"]["name"] == WEBHOOK_CONFIGURATIONS or _is_ours(each)
        ]
        if ours:
            yield from _configured_webhooks(resource, ours, seen.config)
        else:
            text = f"no {resource.kind} of vgpu: pods get no defaults and no checks"
            yield _error("webhooks", text, "apply the manifests again")
    if _ready_endpoints(seen, "vgpu-webhook") == 0:
        text = "the Service vgpu-webhook has no ready endpoint: pods that ask for GPUs are refused"
        yield _error("webhooks", text, f"kubectl -n {OPERATOR_NAMESPACE} get pods")


def _configured_webhooks(
    resource: Resource, configurations: Sequence[Object], config: ClusterConfig
) -> Iterator[CheckResult]:
    hooks = [hook for each in configurations for hook in each.get("webhooks") or ()]
    untrusted = [hook["name"] for hook in hooks if not _is_trusted(hook["clientConfig"])]
    if untrusted:
        text = f"{', '.join(untrusted)}: no caBundle, so the API server cannot trust it"
        yield _error("webhooks", text, "check the operator's log: the leader writes it")
    else:
        yield _ok("webhooks", f"{resource.kind} {configurations[0]['metadata']['name']}")
    for hook in hooks:
        yield from _unseen(hook, config)


def _is_trusted(client_config: Mapping[str, object]) -> bool:
    return bool(client_config.get("caBundle") or client_config.get("url"))


def _unseen(hook: Object, config: ClusterConfig) -> Iterator[CheckResult]:
    """Yield configured resources that the webhook's match conditions do not include."""
    for condition in hook.get("matchConditions") or ():
        if condition["name"] != REQUESTS_DEVICE:
            continue
        requesting = sorted(config.request_resources())
        unseen = [name for name in requesting if f"'{name}'" not in condition["expression"]]
        if unseen:
            text = f"{hook['name']} does not see pods that ask for {', '.join(unseen)}"
            remedy = "add them to manifests/base/webhook/expressions.yaml and apply it"
            yield _error("webhooks", text, remedy)


def _policies(seen: Snapshot) -> Iterator[CheckResult]:
    """Check that each policy is installed and bound, because an unbound policy has no effect."""
    installed = {policy["metadata"]["name"] for policy in seen.of(POLICIES)}
    denying = {
        binding["metadata"]["name"]
        for binding in seen.of(BINDINGS)
        if "Deny" in binding["spec"].get("validationActions", ())
    }
    of_mode = _POLICIES_OF_CLAIMS if seen.config.scheduling.mode == "Claims" else ()
    wanted = (*_POLICIES, *of_mode)
    missing = [name for name in wanted if name not in installed]
    unbound = [
        binding
        for name in wanted
        if name in installed
        for binding in (_MARKS_BINDINGS if name == "vgpu-marks" else (name,))
        if binding not in denying
    ]
    for found, kind, what in (
        (missing, POLICIES.kind, "not installed"),
        (unbound, BINDINGS.kind, "missing, or does not deny"),
    ):
        if found:
            text = f"{kind} {', '.join(found)}: {what}, so what it forbids is allowed"
            yield _error("policies", text, "apply the manifests again")
    if not missing and not unbound:
        yield _ok("policies", f"{len(wanted)} policies are installed and bound")


def _certificates(seen: Snapshot) -> Iterator[CheckResult]:
    for name, secret in seen.secrets.items():
        if isinstance(secret, ClientError):
            yield _unknown("certificates", str(secret), "run it with the right to read Secrets")
            continue
        ends = _end_of(secret)
        if ends is None:
            text = f"Secret {name}: no certificate in {CERTIFICATE}"
            yield _error("certificates", text, "delete it: the operator issues another")
        elif ends - seen.now < timedelta(0):
            text = f"Secret {name}: expired {lasting((seen.now - ends).total_seconds())} ago"
            yield _error(
                "certificates", text, "check that there is a leader: it renews certificates"
            )
        elif ends - seen.now < _EXPIRES:
            text = f"Secret {name}: expires in {lasting((ends - seen.now).total_seconds())}"
            yield _warning("certificates", text, "check the operator's log: renewal is overdue")
        else:
            yield _ok("certificates", f"{name} until {ends:%Y-%m-%d}")


def _agents(seen: Snapshot) -> Iterator[CheckResult]:
    agents: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in seen.of(PODS):
        metadata = pod["metadata"]
        if is_agents(metadata.get("namespace"), metadata.get("labels") or {}):
            agents[pod["spec"].get("nodeName") or ""].append(pod)
    nodes = sorted({device["spec"]["nodeName"] for device in seen.of(GPU_DEVICES)})
    logs = f"kubectl -n {AGENT_NAMESPACE} get pods -o wide"
    ready = 0
    for node in nodes:
        if any(map(_is_ready, agents[node])):
            ready += 1
        elif agents[node]:
            lost = min(_since(_changed(pod, "Ready"), seen.now) for pod in agents[node])
            since = f" for {lasting(lost)}" if isfinite(lost) else ""
            yield _error("agents", f"node {node}: the agent is not ready{since}", logs)
        else:
            yield _error("agents", f"node {node}: no agent runs", logs)
    yield _ok("agents", f"{ready} of {len(nodes)} agents are ready")
    resource = seen.config.nvidia.resource_count_name
    offered = _slots_offered(seen)
    for node in _gpu_nodes(seen):
        name = node["metadata"]["name"]
        given = ((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")
        number = int(given) if str(given).isdigit() else 0
        if number == 0:
            text = f"node {name}: the kubelet offers no {resource}"
            yield _error(
                "agents", text, "check that the agent's device plugin is registered: " + logs
            )
        elif number < offered.get(name, 0):
            text = (
                f"node {name}: the kubelet offers {number} {resource}, its healthy GPUs have "
                f"{offered[name]}"
            )
            remedy = "check for another plugin of this resource: kubectl describe gpudevice"
            yield _error("agents", text, remedy)


def _slots_offered(seen: Snapshot) -> Mapping[str, int]:
    """Return each node's number of slots on healthy GPUs; the kubelet offers at least as many."""
    total: Counter[str] = Counter()
    for raw in seen.of(GPU_DEVICES):
        device = GPUDevice.model_validate(raw)
        amount = device.status.allocatable
        is_ours = kind_of(device.status.vendor) is None
        if is_ours and amount is not None and is_true(device.status.conditions, HEALTHY):
            total[device.spec.node_name] += amount.slots or 0
    return total


def _devices(seen: Snapshot) -> Iterator[CheckResult]:
    devices = [GPUDevice.model_validate(raw) for raw in seen.of(GPU_DEVICES)]
    out = [device for device in devices if state_of(device) not in ("Ready", "Cordoned")]
    for device in out:
        said = next(
            (
                c
                for c in device.status.conditions
                if c.type in ("Ready", "Healthy") and c.status != "True"
            ),
            None,
        )
        why = f": {said.reason}: {said.message}" if said is not None else ""
        text = f"{device.metadata.name} on {device.spec.node_name} is {state_of(device)}{why}"
        yield _error("devices", text, f"kubectl describe gpudevice {device.metadata.name}")
    if not devices:
        text = "no GPUDevice: no agent has found a GPU"
        yield _warning("devices", text, f"kubectl -n {AGENT_NAMESPACE} get pods -o wide")
        return
    drivers = sorted({device.status.driver_version for device in devices} - {""})
    yield _ok(
        "devices",
        f"{len(devices) - len(out)} of {len(devices)} usable; driver {', '.join(drivers)}",
    )


def _claims(seen: Snapshot) -> Iterator[CheckResult]:
    claims = seen.of(VGPU_CLAIMS)
    violated = [c for c in claims if _has(c, "Violated")]
    stuck = [
        c
        for c in claims
        if c["metadata"].get("deletionTimestamp")
        and _since(c["metadata"]["deletionTimestamp"], seen.now) > _LONG_S
    ]
    waiting = [c for c in claims if _waits_long(c, seen.now)]
    for kind, found, what, remedy in (
        ("error", violated, "violating limits", "kubectl vgpu get slices -A -o wide"),
        (
            "error",
            stuck,
            f"terminating for over {lasting(_LONG_S)}",
            "kubectl vgpu audit",
        ),
        (
            "warning",
            waiting,
            f"waiting for over {lasting(_LONG_S)}",
            "kubectl vgpu explain CLAIM",
        ),
    ):
        if found:
            claims_found = f"{len(found)} claim{'s' if len(found) > 1 else ''}"
            yield CheckResult(kind, "claims", f"{claims_found} {what}: {_some(found)}", remedy)
    yield _ok("claims", f"{len(claims)} claims")


def _unmarked_pods(seen: Snapshot) -> Iterator[CheckResult]:
    """Find pods that wait for GPUs in vain because they bypassed admission."""
    decided = {pod["metadata"]["uid"] for pod in users_of(seen.of(VGPU_CLAIMS), seen.of(PODS)).pods}
    hamis = {scheduler_of(each) for each in seen.of(DEPLOYMENTS) if is_hamis_scheduler(each)}
    unmarked = [
        raw
        for raw in seen.of(PODS)
        if raw["metadata"]["uid"] not in decided
        and raw["spec"].get("schedulerName") not in hamis
        and _waits_unmarked(raw, seen.config)
    ]
    if unmarked:
        text = (
            f"{len(unmarked)} wait for GPUs without the label {names.LABEL_ADMITTED} and get "
            f"none: {_some(unmarked)}"
        )
        yield _warning("pods", text, "recreate them, in a namespace that the webhook covers")
    else:
        yield _ok("pods", f"no pod waits without the label {names.LABEL_ADMITTED}")


# Other software.


def _neighbours(seen: Snapshot) -> Iterator[CheckResult]:
    for daemon_set in seen.of(DAEMON_SETS):
        if _is_ours(daemon_set):
            continue
        metadata = daemon_set["metadata"]
        if is_nvidias_plugin(daemon_set):
            text = (
                f"NVIDIA's device plugin {metadata['namespace']}/{metadata['name']} also registers "
                f"{seen.config.nvidia.resource_count_name}: the kubelet keeps one of the two"
            )
            yield _error("neighbours", text, "exclude the nodes of vgpu in its nodeSelector")
        if is_hamis_plugin(daemon_set):
            place = f"{metadata['namespace']}/{metadata['name']}"
            yield _of_hami(seen, f"HAMi's device plugin {place}")
    for hook in seen.of(MUTATING_WEBHOOKS):
        if is_hamis_webhook(hook):
            yield _of_hami(seen, f"HAMi's webhook {hook['metadata']['name']}")


def _of_hami(seen: Snapshot, program: str) -> CheckResult:
    if any(_is_ours(each) and runs_beside(each) for each in seen.of(DAEMON_SETS)):
        nodes = seen.of(NODES)
        annotated = [n for n in nodes if names.ANNOTATION_FROM_HAMI in _annotations(n)]
        text = f"{program} runs beside vgpu; {len(annotated)} nodes were taken over from HAMi"
        return _ok("neighbours", text)
    remedy = "kubectl vgpu migrate hami --dry-run; see docs/operations/from-hami.md"
    return _error("neighbours", f"{program} still runs, and nothing keeps the two apart", remedy)


def _annotations(obj: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return found


def _unread(seen: Snapshot) -> Iterator[CheckResult]:
    """Find ConfigMaps for HAMi's programs where none of them runs."""
    if any(map(is_hamis_plugin, seen.of(DAEMON_SETS))):
        return
    for config_map in seen.of(CONFIG_MAPS):
        place = f"{config_map['metadata']['namespace']}/{config_map['metadata']['name']}"
        yield _warning(
            "configuration",
            f"HAMi's ConfigMap {place} is not read: vgpu reads {_OUR_CONFIG_MAP}",
            f"copy what kubectl vgpu import hami prints to {_OUR_CONFIG_MAP}",
        )


CHECKS: tuple[tuple[str, Check], ...] = (
    ("api server", _server),
    ("kinds", _kinds),
    ("nodes", _nodes),
    ("programs", _workloads),
    ("leader", _leader),
    ("extender", _extender),
    ("preemption", _preemption),
    ("preemption", _rights_to_preempt),
    ("resource claims", _resource_claims),
    ("allocators", _allocators),
    ("webhooks", _webhooks),
    ("policies", _policies),
    ("certificates", _certificates),
    ("agents", _agents),
    ("devices", _devices),
    ("claims", _claims),
    ("pods", _unmarked_pods),
    ("neighbours", _neighbours),
    ("configuration", _unread),
)


# Reading objects.


def _gpu_nodes(seen: Snapshot) -> list[Object]:
    """Return the nodes for which our agents publish devices."""
    with_devices = {
        device["spec"]["nodeName"]
        for device in seen.of(GPU_DEVICES)
        if (device.get("status") or {}).get("vendor", "nvidia").lower() == "nvidia"
    }
    return [node for node in seen.of(NODES) if node["metadata"]["name"] in with_devices]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", version)
    return () if found is None else (int(found[1]), int(found[2]))


def _is_ours(obj: Object) -> bool:
    key, _, value = names.PART_OF_LABEL.partition("=")
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(key) == value


def _conditions(obj: Object) -> Iterable[Mapping[str, str]]:
    return (obj.get("status") or {}).get("conditions") or ()


def _has(obj: Object, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in _conditions(obj))


def _is_ready(obj: Object) -> bool:
    return _has(obj, "Ready")


def _changed(obj: Object, condition: str) -> str | None:
    """Return when a condition last changed, or None."""
    found = (c.get("lastTransitionTime") for c in _conditions(obj) if c["type"] == condition)
    return next(found, None)


def _answers(endpoint: Mapping[str, object]) -> bool:
    conditions = endpoint.get("conditions") or {}
    return not isinstance(conditions, Mapping) or conditions.get("ready") is not False


def _service(endpoint_slice: Object) -> str:
    labels: Mapping[str, str] = endpoint_slice["metadata"].get("labels") or {}
    return labels.get("kubernetes.io/service-name", "")


def _since(when: object, now: datetime) -> float:
    """Return the seconds since a time; infinity if the time is unknown."""
    if not when:
        return float("inf")
    return (now - datetime.fromisoformat(str(when))).total_seconds()


def _is_recent(event: Object, now: datetime) -> bool:
    series = event.get("series") or {}
    when = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return bool(when) and _since(when, now) < _LONG_S


def _says(seen: Snapshot, text: str, *, on: str) -> bool:
    """Return True if a recent event about a pod on a node contains the text."""
    here = {
        pod["metadata"]["uid"]
        for pod in seen.of(PODS)
        if (pod.get("spec") or {}).get("nodeName") == on
    }
    return any(
        text in (event.get("message") or "")
        and (event.get("involvedObject") or {}).get("uid") in here
        and _is_recent(event, seen.now)
        for event in seen.of(EVENTS)
    )


def _waits_long(claim: Object, now: datetime) -> bool:
    if claim["metadata"].get("deletionTimestamp"):
        return False
    for condition in _conditions(claim):
        if condition["type"] == "Allocated" and condition["status"] == "False":
            is_news = condition.get("reason") in ("WaitingForPod", "Template", "Released")
            return not is_news and _since(condition.get("lastTransitionTime"), now) > _LONG_S
    return False


def _waits_unmarked(raw: Object, config: ClusterConfig) -> bool:
    if (raw.get("spec") or {}).get("nodeName"):
        return False  # skip pods that have a node: most do, and decoding them would take long
    pod = gpu_pod_of(Pod.model_validate(raw), config)
    return pod is not None and not pod.is_admitted and (pod.wants_node or pod.is_gated)


def _end_of(secret: Object) -> datetime | None:
    try:
        text = base64.b64decode((secret.get("data") or {}).get(CERTIFICATE, ""))
        return end_of(text)
    except ValueError:  # binascii.Error included
        return None


def _place(claim: Object) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def _some(objects: Sequence[Object]) -> str:
    """Return the first five names, and the number of the others."""
    more = f" and {len(objects) - 5} more" if len(objects) > 5 else ""
    return ", ".join(map(_place, objects[:5])) + more
