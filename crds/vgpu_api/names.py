"""Every name that two parties must agree on: API group, annotations, finalizers, paths, variables.

A name in a user's YAML, on disk or in another process's memory is part of the contract, so it is
defined only here.
"""

from __future__ import annotations

import hashlib
import re

GROUP = "vgpu.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

FINALIZER_IN_USE = "vgpu.dev/in-use"
"""Finalizer on every allocated claim: its devices stay allocated while a container may use them."""

# Our own pod annotations.
ANNOTATION_CLAIM = "vgpu.dev/claim"
ANNOTATION_CLAIM_TEMPLATE = "vgpu.dev/claim-template"
ANNOTATION_GROUP = "vgpu.dev/group"
ANNOTATION_GROUP_MIN = "vgpu.dev/group-min"
"""In Gate mode: the group of a pod in its namespace, and how many of its pods start together."""
ANNOTATION_SLOTS_ADDED = "vgpu.dev/slots-added"
"""Comma-separated list of the containers to which admission added a slot. The HAMi dialect ignores
these containers.
"""
LABEL_ADMITTED = "vgpu.dev/admitted"
"""Label of a pod that requests a GPU and passed our admission; its value is ADMITTED.

The policy vgpu-marks stops anyone else from setting it. It is a label and not an annotation, so
that a selector can exclude all other pods from that policy.
"""
ADMITTED = "true"
LABEL_NODE_AGENT = "vgpu.dev/nodeagent"
"""Label of a node: `off` keeps our agent away; beside HAMi, the agent runs only where it is `on`.
"""
LABEL_ADMISSION = "vgpu.dev/admission"
"""Label of a namespace: beside HAMi, our admission reads its pods only if this is `on`."""
ON = "on"
LABEL_HELD_FOR = "vgpu.dev/held-for"
"""Label of a claim that holds what a pod of another system uses; its value is the system."""
HAMI = "hami"
ANNOTATION_FROM_HAMI = "vgpu.dev/from-hami"
"""Annotation of a node that was taken over from HAMi: what giving it back restores, as JSON."""
LABEL_DISABLE_CONTROL = "vgpu.dev/disable-control"
DISABLE_CONTROL_ALLOWED = "allowed"
"""Value of a namespace's label that allows its pods to set CUDA_DISABLE_CONTROL and run without the
library.
"""
ANNOTATION_REQUEUE = "vgpu.dev/poke"
"""Annotation that is changed to make kube-scheduler or the kubelet look at a pod again.

On a running pod it makes the agent read the pod's claim: the operator changes it after a resize.
"""

ANNOTATION_RESOURCES = "vgpu.dev/resources"
"""In Gate mode: the amounts that no node lists, by container, as JSON. Admission moves them here,
because a scheduler without our extender would find no node that has them.
"""
ANNOTATION_RESOURCE_CLAIM = "vgpu.dev/resource-claim"
"""In Claims mode, of a pod that names a ResourceClaim of its author's: the entry of
`spec.resourceClaims` that admission has read, a colon, and the UID of the ResourceClaim.
"""
ANNOTATION_DEVICE_SELECTOR = "vgpu.dev/device-selector"
"""Of a pod: the devices that may serve it, as a CEL expression of Kubernetes' device selectors."""
ANNOTATION_SCHEDULER_CLAIM = "vgpu.dev/scheduler-claim"
"""In Claims mode, of a pod and its VGPUClaim whose devices kube-scheduler allocates: the entry of
the pod's `spec.resourceClaims`. Admission writes it.
"""
LABEL_ALLOCATOR = "vgpu.dev/allocator"
"""Label of a node: who allocates its devices, kube-scheduler (ALLOCATOR_SCHEDULER) or, without the
label, the operator.
"""
ALLOCATOR_SCHEDULER = "Scheduler"
ALLOCATOR_LEDGER = "Ledger"
TAINT_UNHEALTHY = "vgpu.dev/unhealthy"
"""The key of the taint, in ResourceSlices, on devices that are not healthy or not present."""
SCHEDULING_GATE = "vgpu.dev/placement"
"""A pod's scheduling gate in Gate mode, present until its devices are reserved."""

ANNOTATION_DECIDER = "vgpu.dev/decider"
"""Of a ResourceClaim: the replica that took over, so that writes of a former one fail."""
ANNOTATION_POD_UID = "vgpu.dev/pod-uid"
"""Of a ResourceClaim: the UID of the one pod that may use it. The policy vgpu-reservations lets
nobody reserve an allocated one for another pod, and vgpu-claim-marks lets nobody change it then.
"""

# HAMi's records, written for people and tools that expect them. The operator never reads them;
# `kubectl vgpu migrate hami` reads those that HAMi wrote.
HAMI_DEVICES_ALLOCATED = "hami.io/vgpu-devices-allocated"
HAMI_NODE = "hami.io/vgpu-node"
HAMI_TIME = "hami.io/vgpu-time"
HAMI_BIND_PHASE = "hami.io/bind-phase"
HAMI_BIND_TIME = "hami.io/bind-time"
HAMI_DEVICES_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
HAMI_MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
HAMI_RECORDS = (
    HAMI_DEVICES_ALLOCATED,
    HAMI_NODE,
    HAMI_TIME,
    HAMI_DEVICES_TO_ALLOCATE,
    HAMI_BIND_PHASE,
    HAMI_BIND_TIME,
    HAMI_MIG_ALLOCATIONS,
)
"""The annotations that the Binding adds to a pod for HAMi's readers, except its request."""
HAMI_NODE_POLICY = "hami.io/node-scheduler-policy"
HAMI_DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
HAMI_DEVICE_WEIGHTS = "hami.io/device-scoring-weights"
HAMI_NODE_REGISTER = "hami.io/node-nvidia-register"
HAMI_NODE_SCORE = "hami.io/node-nvidia-score"
HAMI_NODE_HANDSHAKE = "hami.io/node-handshake"
HAMI_NODE_RECORDS = (HAMI_NODE_REGISTER, HAMI_NODE_SCORE, HAMI_NODE_HANDSHAKE)
"""HAMi's annotations of a Node, which our agent writes, too."""
NODE_ANNOTATIONS = (*HAMI_NODE_RECORDS, ANNOTATION_FROM_HAMI)
"""All annotations that we write to Nodes; `kubectl vgpu uninstall` removes them."""
HAMI_DEVICE_CORDON = "hami.io/device-cordon"
HAMI_WEBHOOK_LABEL = "hami.io/webhook"
HAMI_VULKAN = "hami.io/vulkan"

NVIDIA_USE_TYPE = "nvidia.com/use-gputype"
NVIDIA_NOUSE_TYPE = "nvidia.com/nouse-gputype"
NVIDIA_USE_UUID = "nvidia.com/use-gpuuuid"
NVIDIA_NOUSE_UUID = "nvidia.com/nouse-gpuuuid"
NVIDIA_NUMA_BIND = "nvidia.com/numa-bind"
NVIDIA_MODE = "nvidia.com/vgpu-mode"
NVIDIA_MIG_RESOURCE = "nvidia.com/mig-"

# Names of Alibaba ACK.
ACK_NODE_SCHEDULE = "ack.node.gpu.schedule"
ACK_NODE_PLACEMENT = "ack.node.gpu.placement"
ACK_NUMA_SPEC = "scheduling.alibabacloud.com/numa-topology-spec"
ACK_CPUSET = "cpuset-scheduler"
ACK_RECORD_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
ACK_RECORD_POD = "ALIYUN_COM_GPU_MEM_POD"
ACK_RECORD_DEVICE = "ALIYUN_COM_GPU_MEM_DEV"
ACK_RECORD_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ACK_RECORD_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ENV_ACK_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""Annotations and variables for a pod that requests memory by ACK's resource; amounts are in GiB.

They limit nothing. The agent repeats the annotations as variables of the container.
"""
ACK_GPU_COUNT_LABEL = "aliyun.com/gpu-count"
"""Pod label with the number of devices over which each container's memory is spread."""

LIMIT_RANGER = "kubernetes.io/limit-ranger"
"""Kubernetes' record of what a LimitRange set on a pod's containers."""

# Names of Volcano.
VOLCANO_MODE = "volcano.sh/vgpu-mode"
VOLCANO_PODGROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
"""The PodGroup whose pods Volcano starts together or not at all."""

# Names of the Coscheduling scheduler plugin.
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
COSCHEDULING_FORMER_GROUP = "pod-group.scheduling.sigs.k8s.io/name"
"""Labels of a pod with its PodGroup: today's, and the one that Koordinator still reads."""
COSCHEDULING_FIRST_GROUP = "pod-group.scheduling.sigs.k8s.io"
"""The label of a former version, whose PodGroups no scheduler reads any more."""

HAMI_CHOICES = (
    NVIDIA_USE_TYPE,
    NVIDIA_NOUSE_TYPE,
    NVIDIA_USE_UUID,
    NVIDIA_NOUSE_UUID,
    NVIDIA_NUMA_BIND,
    NVIDIA_MODE,
    HAMI_NODE_POLICY,
    HAMI_DEVICE_POLICY,
    HAMI_DEVICE_WEIGHTS,
)
"""HAMi's pod annotations that select devices."""
POD_ANNOTATIONS = (
    ANNOTATION_CLAIM,
    ANNOTATION_CLAIM_TEMPLATE,
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    ANNOTATION_DEVICE_SELECTOR,
    *HAMI_CHOICES,
    HAMI_VULKAN,
    ACK_NUMA_SPEC,
    VOLCANO_MODE,
    VOLCANO_PODGROUP_POLICY,
)
"""Pod annotations that users write and that have an effect."""
POD_RECORDS = (
    ANNOTATION_SLOTS_ADDED,
    ANNOTATION_REQUEUE,
    ANNOTATION_RESOURCES,
    ANNOTATION_RESOURCE_CLAIM,
    ANNOTATION_SCHEDULER_CLAIM,
    *HAMI_RECORDS,
)
"""Pod annotations that programs write. They also occur in copied pods, where they are no typos."""

PART_OF_LABEL = "app.kubernetes.io/part-of=vgpu"
"""Label on every object of the manifests."""
OPERATOR_USER = "system:serviceaccount:vgpu-system:vgpu-operator"

SCHEDULER_NAME = "vgpu-scheduler"
SCHEDULER_ALIASES = frozenset({SCHEDULER_NAME, "hami-scheduler"})

# Paths and names inside a container.
CONTAINER_FOLDER = "/usr/local/vgpu"
CONTAINER_LIMITS = "/usr/local/vgpu/limits"
CONTAINER_USAGE = "/usr/local/vgpu/usage"
CONTAINER_REGION = "/usr/local/vgpu/usage/region"
CONTAINER_PRELOAD = "/etc/ld.so.preload"

ENV_LIMIT_PAGE = "VGPU_LIMIT_PAGE"
ENV_USAGE_REGION = "VGPU_USAGE_REGION"
ENV_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
ENV_MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
ENV_SM_LIMIT = "CUDA_DEVICE_SM_LIMIT"
ENV_TASK_PRIORITY = "CUDA_TASK_PRIORITY"
ENV_CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
ENV_DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""The spellings of true in Go, and so in HAMi's switches."""
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""The spellings of false in Go."""

FIELD_MANAGER_OPERATOR = "vgpu-operator"
FIELD_MANAGER_AGENT = "vgpu-nodeagent"
FIELD_MANAGER_LIVENESS = "vgpu-operator-liveness"
"""Writes conditions on behalf of a silent agent, which takes them over when it comes back."""
FIELD_MANAGER_REGISTERS = "vgpu-operator-registers"
"""Publishes the devices that other vendors' plugins register on the Node."""
OPERATOR_NAMESPACE = "vgpu-system"
"""The namespace of all programs but the agents."""
AGENT_NAMESPACE = "vgpu-node"
"""The agents' namespace."""
AGENT_LABELS = {"app.kubernetes.io/name": "vgpu", "app.kubernetes.io/component": "nodeagent"}
"""The labels of the agents' pods."""
AGENT_UNREADY_S = 15
"""An agent counts as silent if its pod was not ready for this long.

A restart of its container takes a third of it. The kubelet needs up to 20 s until the pod of a
hanging agent is not ready (`vgpu_nodeagent/reporting/liveness.py`): 35 s in all.
"""
AGENT_GONE_S = 300.0
"""After this long without an agent, claims on its node are released once their pods have ended.

This is kube-controller-manager's default for evicting pods from an unreachable node.
"""

_DNS_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
# of 253 characters, which leaves room for a dot and 8 digits for a second node
_DEVICE_NAME_MAX = 244
_POD_NAME_KEPT = 200
_UID_KEPT = 8


def mig_resource(profile: str) -> str:
    """Return the resource name for a MIG profile, spelled as in NVIDIA's device plugin."""
    return NVIDIA_MIG_RESOURCE + profile.replace("+", ".")


def published_model(model: str) -> str:
    """Return the device type by which pods select, as in HAMi: with the manufacturer's name.

    Drivers omit the manufacturer for devices before Ampere (`Tesla T4`).
    """
    return model if not model or model.lower().startswith("nvidia") else f"NVIDIA-{model}"


def device_object_name(uuid: str) -> str:
    """Return the name of a device's GPUDevice: its UUID in lower case, as a valid DNS name."""
    plain = uuid.lower()
    if len(plain) <= _DEVICE_NAME_MAX and _DNS_NAME.fullmatch(plain):
        return plain
    kept = re.sub(r"[^a-z0-9]+", "-", plain)[:200].strip("-") or "device"
    return f"{kept}-{hashlib.sha256(uuid.encode()).hexdigest()[:8]}"


def device_object_name_on_node(uuid: str, node_name: str) -> str:
    """Return the name to use if another live node already has an object for the same device.

    It ends with the node's name, and the policy `vgpu-devices` allows it only to that node's agent,
    so no other agent can take it. If the node's name has more than 200 characters, the device's
    part is truncated.
    """
    return f"{device_object_name(uuid)[: 252 - len(node_name)].rstrip('-.')}.{node_name}"


def pod_claim_name(pod_name: str, pod_uid: str) -> str:
    """Return the name of the claim that the operator creates for a pod; it depends on the UID."""
    digest = re.sub(r"[^0-9a-f]", "", pod_uid.lower())[:_UID_KEPT]
    if len(digest) < _UID_KEPT:  # a UID that is not hexadecimal: stay distinct and valid
        digest = hashlib.sha256(pod_uid.encode()).hexdigest()[:_UID_KEPT]
    return f"{pod_name[:_POD_NAME_KEPT].rstrip('-.')}-{digest}"
