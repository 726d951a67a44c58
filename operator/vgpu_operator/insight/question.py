"""Questions about where a pod or claim would go, and the interface for answering them.

`offline_cluster.Cluster` answers from a file and `live_cluster.LiveCluster` from a real cluster.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from pydantic import ValidationError

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault, VgpuError
from vgpu_api.field_errors import describe
from vgpu_api.names import OPERATOR_USER
from vgpu_api.reasons import Tally
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec
from vgpu_operator.admission.rules import (
    Denied,
    claim_named_by,
    claim_without_effect,
    mutate_pod,
    pod_warnings,
    validate_claim,
    waits_for_claim,
)
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.admission.rules.raw_pod import read_pod, without_nulls
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import containers_of_claim, read
from vgpu_operator.placement import Budget, Columns, Grant, Plan
from vgpu_operator.placement.mig_geometry import Instance


@dataclass(frozen=True, slots=True)
class Question:
    """A pod or claim to place.

    Attributes:
        spec: The requested devices.
        namespace: Its namespace.
        pod: The pod; None if the question is about a claim.
        containers: The container for each request, if the pod names a claim.
        standing: The devices that the named claim already holds.
    """

    spec: VGPUClaimSpec
    namespace: str
    pod: Pod | None
    containers: Mapping[str, str] = field(default_factory=dict)
    standing: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a question.

    Attributes:
        plan: The chosen node and devices.
        refused: The message of the refusal; empty if there is none.
        of_nodes: True if nodes were checked; some pods are refused before that.
    """

    plan: Plan
    refused: str = ""
    of_nodes: bool = True


_TOKEN = "0" * 12
"""Of the ResourceClaim that admission names in Claims mode; nobody makes it here."""

Undo: TypeAlias = Callable[[], None]
"""Gives back what was held."""


class Known(Protocol):
    """The parts of a cluster that are needed to read a question: its configuration and claims."""

    @property
    def config(self) -> ClusterConfig:
        """Return the cluster's configuration."""

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Return a claim or claim template; None if it does not exist."""


class Judge(Known, Protocol):
    """A cluster that answers questions. Only `charge` changes it."""

    @property
    def columns(self) -> Columns:
        """Return the cluster's devices."""

    @property
    def nodes(self) -> Collection[str]:
        """Return the names of the nodes with devices."""

    def decide(self, question: Question) -> Outcome:
        """Return where the pod or claim would be placed, or the refusal."""

    def refusals(self, question: Question) -> Mapping[str, Tally]:
        """Return, by name, the reasons of the nodes that cannot serve the question."""

    def not_judged(self, question: Question) -> str:
        """Return a line about checks of the operator that are skipped here; empty if none is."""

    def demand(self, question: Question) -> Demand:
        """Return the requested devices."""

    def budget(self, question: Question) -> Budget:
        """Return the amounts that the quotas of the question's namespace still allow."""

    def charge(self, question: Question, outcome: Outcome) -> Undo:
        """Hold the chosen devices until the returned function is called."""

    def utilisation(self) -> dict[str, float]:
        """Return the percentages of all slots, cores and memory that are in use."""


def question_of(document: Mapping[str, Any], cluster: Known, *, admit: bool) -> Question | None:
    """Convert a pod or claim to a question. Return None if it requests no GPU.

    Args:
        document: The object as the API server stores it.
        cluster: The cluster with the claims that pods name.
        admit: Apply admission to a pod first, as if it were being created.

    Raises:
        BadInput: The object is invalid.
        Denied: Admission refuses the pod.
    """
    raw = dict(document)
    kind = raw.get("kind")
    if kind == "VGPUClaim":
        return _of_claim(raw)
    if kind not in (None, "Pod"):
        raise BadInput.unsupported("kind", kind, ("Pod", "VGPUClaim"))
    namespace = read_pod(raw).metadata.namespace or "default"
    if admit:
        named = claim_named_by(raw)
        claim = None if named is None else cluster.claim(namespace, named.name)
        raw = applied(raw, mutate_pod(raw, cluster.config, claim, token=_TOKEN))
    pod = read_pod(_defaulted(raw))
    demand = read(pod, cluster.config)
    if demand is None:
        return None
    if demand.spec is not None:
        return Question(demand.spec, namespace, pod)
    assert demand.native is not None
    claim = cluster.claim(namespace, demand.native.name)
    if claim is None:
        raise BadInput(
            field="claim",
            value=demand.native.name,
            fault=Fault.NOT_FOUND,
            detail="the cluster has no such claim",
        )
    requests = (request.name for request in claim.spec.requests)
    containers = dict(zip(requests, containers_of_claim(pod, claim.spec), strict=True))
    return Question(claim.spec, namespace, pod, containers, _standing(claim, pod))


def plan_of(allocation: Allocation, elsewhere: Mapping[str, Tally]) -> Plan:
    """Convert an existing allocation to a plan.

    Args:
        allocation: The allocated devices.
        elsewhere: The reasons of the other nodes.
    """
    grants = tuple(
        Grant(device.request, device.name, device.uuid, device.index, device.memory_mib,
              device.cores, None if device.mig is None else Instance(
                  device.mig.profile, device.mig.start, device.mig.size,
                  device.memory_mib, device.cores), core_ids=tuple(device.core_ids or ()),
              part=device.part or "")
        for device in allocation.devices
    )  # fmt: skip
    return Plan(allocation.node_name, grants, elsewhere)


def _standing(claim: VGPUClaim, pod: Pod) -> Allocation | None:
    """Return the devices that a claim already holds for the pod that names it.

    Raises:
        BadInput: The claim belongs to another pod.
    """
    reserved = claim.status.reserved_for
    if reserved is not None and reserved.pod_name != pod.metadata.name:
        name = claim.metadata.name
        raise BadInput(field="claim", value=name, detail=f"it serves pod {reserved.pod_name}")
    return claim.status.allocation


def warnings_about(document: Mapping[str, Any], cluster: Known, *, admit: bool) -> list[str]:
    """Return the warnings that admission prints about a pod or claim; none if it is refused.

    Args:
        document: The object, as for `question_of`.
        cluster: The cluster with the claims that pods name.
        admit: Apply admission to a pod first, as if it were being created.
    """
    raw, config = dict(document), cluster.config
    try:
        if raw.get("kind") == "VGPUClaim":
            return claim_without_effect(copy.deepcopy(raw))
        namespace = read_pod(raw).metadata.namespace or "default"
        named = claim_named_by(raw)
        claim = None if named is None else cluster.claim(namespace, named.name)
        operations = mutate_pod(raw, config, claim, token=_TOKEN) if admit else []
        admitted = applied(raw, operations)
        waits = waits_for_claim(admitted) if named is not None and claim is None else []
        return [*waits, *pod_warnings(raw, admitted, config)]
    except VgpuError:
        return []


def claim_of(raw: dict[str, Any]) -> VGPUClaim:
    """Return a claim as the API server would store it.

    Raises:
        Denied: The claim is invalid.
    """
    try:
        claim = VGPUClaim.read(raw)
    except ValidationError as error:
        validate_claim(copy.deepcopy(raw))
        raise Denied(describe(error)) from error
    by_operator = any(owner.kind == "Pod" for owner in claim.metadata.owner_references)
    validate_claim(copy.deepcopy(raw), user=OPERATOR_USER if by_operator else "")
    return claim


def _of_claim(raw: dict[str, Any]) -> Question:
    claim = claim_of(raw)
    return Question(claim.spec, claim.metadata.namespace or "default", None)


def _defaulted(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with the API server's defaults for resources and host ports.

    Source: Kubernetes, SetDefaults_Pod: a missing request is set to the limit, and on the host
    network every port is a host port.
    """
    raw = without_nulls(raw)
    spec = raw.get("spec") or {}
    for container in _containers(spec):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            requests = {**resources["limits"], **(resources.get("requests") or {})}
            container["resources"] = {**resources, "requests": requests}
        if spec.get("hostNetwork"):
            container["ports"] = [
                {**port, "hostPort": port.get("hostPort") or port.get("containerPort")}
                for port in container.get("ports") or ()
            ]
    return raw


def _containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()
