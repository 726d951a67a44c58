"""A cluster in a file that also has its pods, to find out which of them would be evicted.

`insight.offline_cluster` decides from the file alone. The search for victims is the engine's own,
so the file is turned into an engine state the first time it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from vgpu_api import conditions
from vgpu_api.core import (
    Pod,
    PodDisruptionBudget,
    PodGroup,
    PodScopes,
    PriorityClass,
    ResourceQuota,
)
from vgpu_api.effective import Use
from vgpu_api.errors import BadInput
from vgpu_api.field_errors import describe
from vgpu_api.v1alpha1 import Amount, Condition, GPUDevice, Metadata, VGPUClaim
from vgpu_api.v1alpha1.base import ApiModel
from vgpu_api.v1alpha1.gpudevice import (
    DeviceMetadata,
    DevicePart,
    GPUDeviceSpec,
    GPUDeviceStatus,
    Link,
    MigPlacement,
    MigProfile,
    MigStatus,
)
from vgpu_operator.engine import events
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.state import State
from vgpu_operator.insight.documents import BadDocument, ClusterState, DeviceState
from vgpu_operator.insight.live_cluster import LiveCluster
from vgpu_operator.insight.offline_cluster import Cluster, links_of, used_of
from vgpu_operator.insight.preemption import WouldPreempt, unknown
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.insight.question import Outcome, Question, Undo
from vgpu_operator.ledger import Ledger
from vgpu_operator.ledger.shares import ClaimKey, ClaimShares, DeviceShare

_NO_PODS = "the state has no pods"
_Model = TypeVar("_Model", bound=BaseModel)
_Object = TypeVar("_Object", Pod, PodDisruptionBudget, PodGroup, PriorityClass)


class _Expression(ApiModel):
    """An expression of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)


class _LabelSelector(ApiModel):
    """A label selector, which the API server has checked of the objects that it returns."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[_Expression] = Field(default_factory=list)


class PaperCluster(Cluster):
    """The cluster that a state file describes, with its pods.

    Args:
        state: The content of the file.
        source: The name of the file, for errors.

    Attributes:
        priorities: The PriorityClasses of the file.

    Raises:
        BadDocument: The file has an invalid object.
    """

    def __init__(self, state: ClusterState, *, source: str) -> None:
        self._state, self._source = state, source
        self._pods = self._read_pods()  # first: the quotas count claims by their pods
        super().__init__(state, source=source)
        self._charged: dict[int, _Charged] = {}
        self._number = 0
        self._budgets = self._read_budgets()
        self._groups = {
            GroupKey(group.metadata.namespace or "default", group.metadata.name): group
            for group in self._read(PodGroup, state.pod_groups, "podGroups")
        }
        self.priorities = Priorities(
            self._read(PriorityClass, state.priority_classes, "priorityClasses")
        )
        if state.pods is not None:
            self._check_claims()

    # Questions.

    def charge(self, question: Question, outcome: Outcome) -> Undo:
        """See `Cluster.charge`."""
        self._number += 1
        number, charged = self._number, _Charged(question, outcome)
        charged.undos.append(super().charge(question, outcome))
        if "_engine" in self.__dict__:
            charged.undos.append(self._engine.charge(question, outcome))
        self._charged[number] = charged

        def undo() -> None:
            for each in self._charged.pop(number).undos:
                each()

        return undo

    def preemption(self, question: Question, outcome: Outcome) -> WouldPreempt:
        """Return the pods that would be evicted for a refused pod, or why none would be."""
        if self._state.pods is None:
            return unknown(self.config, _NO_PODS)
        return self._engine.preemption(question, outcome)

    def preemption_of_group(
        self, group: GroupKey, questions: Sequence[Question], others: int
    ) -> WouldPreempt:
        """Return the pods that must be evicted so that enough pods of a group fit."""
        if self._state.pods is None:
            return unknown(self.config, _NO_PODS)
        return self._engine.preemption_of_group(group, questions, others)

    def know_groups(self, groups: Mapping[GroupKey, PodGroup]) -> None:
        """Count PodGroups as created; existing ones stay as they are."""
        self._groups = {**groups, **self._groups}

    def least_of(self, group: GroupKey) -> int | None:
        """Return the group's minimum number of running pods; None if it is not set."""
        return self._engine.least_of(group)

    def running_of(self, group: GroupKey) -> int:
        """Return how many pods of the group run, or need no devices to."""
        return self._engine.running_of(group)

    def scopes_of(self, claim: VGPUClaim) -> PodScopes | None:
        """See `Cluster.scopes_of`."""
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self._pods.get(reserved.pod_uid)
        return None if pod is None else PodScopes.of(pod)

    # The engine's state.

    @cached_property
    def _engine(self) -> LiveCluster:
        """The same cluster as an engine state, which the first question makes."""
        # A file has no capacity of nodes but devices, and Gate mode would have the ledger judge it.
        scheduling = self.config.scheduling.model_copy(update={"mode": "Extender"})
        ledger = Ledger(config=self.config.model_copy(update={"scheduling": scheduling}))
        state = State(self.config, ledger, lambda: "")
        for event in self._events():
            apply(event, state)
        for number, used in enumerate(self._used()):
            # No claim and no pod holds these amounts, so nobody's end frees them.
            state.ledger.assume_shares(ClaimKey("", f"in-use/{number}"), used)
        state.outbox.clear()
        engine = LiveCluster(state)
        for charged in self._charged.values():
            charged.undos.append(engine.charge(charged.question, charged.outcome))
        return engine

    def _events(self) -> Iterator[events.Event]:
        for node in self.nodes.values():
            yield events.NodeObserved(node)
        for entry in self._state.nodes:
            links = links_of(entry)
            for at, device in enumerate(entry.devices):
                yield events.DeviceObserved(_device(entry.name, at, device, links[device.uuid]))
        for at, quota in enumerate(self._state.quotas):
            metadata = Metadata(name=str(at), namespace=quota.namespace, resource_version="1")
            yield events.QuotaObserved(ResourceQuota(metadata=metadata, spec=quota.spec))
        for key, group in self._groups.items():
            yield events.PodGroupObserved(group, key.kind)
        yield from map(events.BudgetObserved, self._budgets)
        yield events.BudgetsListed()
        yield from map(events.PodObserved, self._pods.values())
        for number, claim in enumerate(self.all_claims):
            found = _numbered(claim.metadata, number)
            yield events.ClaimObserved(claim.model_copy(update={"metadata": found}))

    def _used(self) -> Iterator[ClaimShares]:
        """Yield what is in use on devices besides the claims."""
        for entry in self._state.nodes:
            for device in entry.devices:
                slots, cores, memory, slices = used_of(device)
                is_cut = device.mig is not None and device.mig.enabled
                share = DeviceShare(Use(memory, cores, slots), slices=slices, uncut=not is_cut)
                if slots or cores or memory:
                    yield ClaimShares({device.uuid: share})

    # The file.

    def _read_pods(self) -> dict[str, Pod]:
        """Return the pods by UID."""
        pods: dict[str, Pod] = {}
        for at, pod in enumerate(self._read(Pod, self._state.pods or [], "pods")):
            metadata, field = pod.metadata, f"pods[{at}].metadata"
            if not metadata.uid:
                raise self._bad(BadInput.required(f"{field}.uid", "claims name pods by it"))
            if metadata.uid in pods:
                first = list(pods).index(metadata.uid)
                text = f"{field}.uid: Duplicate value: {metadata.uid!r}: first at pods[{first}]"
                raise BadDocument(f"{self._source}: {text}")
            _check_time(self._source, f"{field}.deletionTimestamp", metadata.deletion_timestamp)
            update = {"namespace": metadata.namespace or "default", "resource_version": "1"}
            stored = metadata.model_copy(update=update)
            pods[metadata.uid] = pod.model_copy(update={"metadata": stored})
        return pods

    def _read_budgets(self) -> list[PodDisruptionBudget]:
        budgets = []
        found = self._read(PodDisruptionBudget, self._state.disruption_budgets, "disruptionBudgets")
        for at, budget in enumerate(found):
            metadata = budget.metadata
            if budget.spec.selector is not None:
                field = ("disruptionBudgets", at, "spec", "selector")
                self._validated(_LabelSelector, budget.spec.selector, field)
            update = {
                "namespace": metadata.namespace or "default",
                "name": metadata.name or str(at),
            }
            budgets.append(
                budget.model_copy(update={"metadata": metadata.model_copy(update=update)})
            )
        return budgets

    def _read(
        self, model: type[_Object], raw: Sequence[Mapping[str, Any]], field: str
    ) -> list[_Object]:
        return [self._validated(model, each, (field, at)) for at, each in enumerate(raw)]

    def _validated(
        self, model: type[_Model], raw: Mapping[str, Any], within: tuple[int | str, ...]
    ) -> _Model:
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            raise BadDocument(f"{self._source}: {describe(error, within=within)}") from error

    def _check_claims(self) -> None:
        """Refuse an allocated claim that does not name the pod whose end frees its devices."""
        for at, claim in enumerate(self.all_claims):
            reserved = claim.status.reserved_for
            waits = claim.spec.binding_mode != "Immediate"
            if claim.status.allocation and waits and not (reserved and reserved.pod_uid):
                field = f"claims[{at}].status.reservedFor.podUID"
                raise self._bad(BadInput.required(field, "the state has pods, so name the claim's"))

    def _bad(self, error: BadInput) -> BadDocument:
        return BadDocument(f"{self._source}: {error}")


@dataclass(slots=True)
class _Charged:
    """A question for which devices are held, and the actions that release them."""

    question: Question
    outcome: Outcome
    undos: list[Undo] = field(default_factory=list)


def _check_time(source: str, where: str, time: str | None) -> None:
    if time is None:
        return
    try:
        datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        bad = BadInput(field=where, value=time, expected="a time in RFC 3339")
        raise BadDocument(f"{source}: {bad}") from error


def _numbered(metadata: Metadata, number: int) -> Metadata:
    """Return the metadata of a claim with the fields that the API server would have filled."""
    return metadata.model_copy(
        update={
            "namespace": metadata.namespace or "default",
            "name": metadata.name or f"unnamed/{number}",
            "uid": f"claim/{number}",
            "resource_version": "1",
        }
    )


def _device(node: str, at: int, device: DeviceState, links: Mapping[str, int]) -> GPUDevice:
    """Return the object that an agent would publish for a device.

    It is made without validation: a file may have longer names and larger numbers than an API
    server stores.
    """
    status = GPUDeviceStatus.model_construct(
        vendor=device.vendor,
        index=at if device.index is None else device.index,
        uuid=device.uuid,
        model=device.model,
        numa_node=device.numa,
        links=[Link.model_construct(peer=peer, score=score) for peer, score in links.items()],
        allocatable=Amount.model_construct(
            memory=f"{device.memory_mib}Mi", cores=device.cores, slots=0
        ),
        mig=_mig(device),
        parts=[
            DevicePart.model_construct(
                name=part.name, size=part.size, memory=f"{part.memory_mib}Mi", cores=part.cores
            )
            for part in device.parts
        ],
        conditions=[
            Condition(type=conditions.HEALTHY, status=_true(device.healthy and device.slots != 0))
        ],
    )
    spec = GPUDeviceSpec.model_construct(
        node_name=node, cordoned=device.cordoned, mode=device.mode, slots=device.slots or None
    )
    metadata = DeviceMetadata(name=device.uuid, uid=device.uuid, resource_version="1")
    return GPUDevice.model_construct(metadata=metadata, spec=spec, status=status)


def _mig(device: DeviceState) -> MigStatus | None:
    if device.mig is None:
        return None
    profiles = [
        MigProfile.model_construct(
            name=profile.name,
            memory=f"{profile.memory_mib}Mi",
            cores=profile.cores,
            slices=profile.slices,
            placements=[
                MigPlacement.model_construct(start=place.start, size=place.size)
                for place in profile.placements
            ],
        )
        for profile in device.mig.profiles
    ]
    return MigStatus.model_construct(enabled=device.mig.enabled, profiles=profiles)


def _true(holds: bool) -> str:
    return "True" if holds else "False"
