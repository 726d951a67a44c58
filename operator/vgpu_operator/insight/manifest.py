"""Answers where all pods and claims of a manifest would go, one after another.

Objects of the manifest count in addition to those of the cluster: a pod may name a claim, a
PodGroup or a PriorityClass that the manifest creates. The pods of a group are placed together or
not at all.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ValidationError

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import PodGroup, PriorityClass
from vgpu_api.errors import BadInput, Fault, VgpuError
from vgpu_api.field_errors import describe
from vgpu_api.resources import PRIORITY_CLASSES
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim
from vgpu_operator.admission.rules import claim_named_by
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects.pod_groups import POD_GROUP_READERS, GroupKind, named_group
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.insight.device_claims import KINDS, DeviceClaims
from vgpu_operator.insight.documents import BadDocument
from vgpu_operator.insight.preemption import WouldPreempt, unknown
from vgpu_operator.insight.priorities import Priorities, PriorityUnknown
from vgpu_operator.insight.question import (
    Judge,
    Outcome,
    Question,
    Undo,
    claim_of,
    question_of,
    warnings_about,
)
from vgpu_operator.insight.workloads import holds_pods, objects_of, pods_of

Document = Mapping[str, Any]
Place = tuple[str, str]
"""A namespace and a name."""
T = TypeVar("T")
_NAMED = 3
"""Pods that a text names."""


class WholeCluster(Judge, Protocol):
    """A cluster that also knows which pods would be evicted, and which groups exist."""

    @property
    def priorities(self) -> Priorities:
        """The cluster's PriorityClasses."""

    def preemption(self, question: Question, outcome: Outcome) -> WouldPreempt:
        """Return the pods that would be evicted for a refused pod alone, without its group."""

    def preemption_of_group(
        self, group: GroupKey, questions: Sequence[Question], others: int
    ) -> WouldPreempt:
        """Return the pods that would be evicted for a group that lacks room."""

    def know_groups(self, groups: Mapping[GroupKey, PodGroup]) -> None:
        """Count these PodGroups as created."""

    def least_of(self, group: GroupKey) -> int | None:
        """Return the group's minimum number of running pods; None if it is not set."""

    def running_of(self, group: GroupKey) -> int:
        """Return how many pods of the group run, or need no devices to."""


@dataclass(frozen=True, slots=True)
class Item:
    """A pod or claim of a manifest.

    Attributes:
        name: Its name.
        document: The object.
    """

    name: str
    document: Document


class Manifest:
    """The objects of a manifest.

    Args:
        nodes: The nodes of the cluster; a DaemonSet has a pod on each.
        most: The largest number of pods in one call of `add`.

    Attributes:
        claims: The claims, as they are written.
        device_claims: The ResourceClaims and their templates.
        groups: The PodGroups.
        classes: The PriorityClasses.
    """

    def __init__(self, nodes: Sequence[str], most: int) -> None:
        self._nodes = nodes
        self._most = most
        self._items: list[Item] = []
        self.claims: dict[Place, Document] = {}
        self.device_claims = DeviceClaims()
        self.groups: dict[GroupKey, PodGroup] = {}
        self.classes: list[PriorityClass] = []

    def add(self, documents: Iterable[Document], source: str, *, keeps_all: bool = False) -> None:
        """Add the objects of documents, with the pods of workloads.

        Args:
            documents: The documents.
            source: Where they come from, for errors and for objects without a name.
            keeps_all: Keep objects that have no pods, to be refused, instead of leaving them out.

        Raises:
            BadDocument: A workload, PodGroup or PriorityClass is invalid, or there are too many
                pods.
        """
        try:
            found = (item for each in objects_of(documents) for item in self._of(each, keeps_all))
            items = list(itertools.islice(found, self._most + 1))
            if len(items) > self._most:
                raise BadInput(
                    field="pods",
                    fault=Fault.TOO_LONG,
                    detail=f"may not be more than {self._most} pods",
                )
        except BadInput as error:
            raise BadDocument(f"{source}: {error}") from error
        except ValidationError as error:
            raise BadDocument(f"{source}: {describe(error)}") from error
        for item in items:
            if item.document.get("kind") == "VGPUClaim":
                self.claims[_namespace(item.document), item.name] = item.document
        self._items += (replace(item, name=item.name or source) for item in items)

    def put(self, document: Document, source: str) -> None:
        """Add a pod or claim as it is."""
        self._items.append(Item(name_of(document) or source, document))

    def _of(self, document: Document, keeps_all: bool) -> Iterator[Item]:
        """Yield the pods and claims of an object; record what others refer to."""
        kind, version = document.get("kind"), str(document.get("apiVersion"))
        if kind == PRIORITY_CLASSES.kind:
            self.classes.append(PriorityClass.model_validate(document))
        elif kind in KINDS:
            self.device_claims.add(document, _namespace(document), name_of(document))
        elif kind == "PodGroup" and version in POD_GROUP_READERS:
            group_kind, read_group = POD_GROUP_READERS[version]
            group = read_group(document)
            self.groups[GroupKey(_namespace(document), group.metadata.name, group_kind)] = group
        elif not holds_pods(document):
            if keeps_all:
                yield Item(name_of(document), document)
        else:
            yield from (Item(name_of(pod), pod) for pod in pods_of(document, self._nodes))

    def __len__(self) -> int:
        return len(self._items)

    @property
    def namespaces(self) -> set[str]:
        """The namespaces of the pods and claims."""
        return {_namespace(item.document) for item in self._items}

    def items(self) -> list[Item]:
        """Return the pods, and the claims that are not answered with a pod.

        A claim that waits for its pod is placed with it, and a template is never placed. An
        Immediate claim is placed before the pods that name it, in whatever order they are written.
        """
        named, templates = self._named()
        first, others = [], []
        for item in self._items:
            place = _namespace(item.document), item.name
            if item.document.get("kind") != "VGPUClaim" or place not in named | templates:
                others.append(item)
            elif place in named and _is_immediate(item.document):
                first.append(item)
        return [*first, *others]

    def _named(self) -> tuple[set[Place], set[Place]]:
        """Return the claims and the templates that pods name."""
        named: tuple[set[Place], set[Place]] = set(), set()
        for item in self._items if self.claims else ():
            if _is_pod(item):
                try:
                    found = claim_named_by(dict(item.document))
                except VgpuError:
                    continue  # the pod is refused by itself
                if found is not None:
                    named[found.is_template].add((_namespace(item.document), found.name))
        return named


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """The answer if a group of pods would start.

    Attributes:
        name: The group.
        least: The least number of pods that must start together; None if nothing says it.
        pods: The number of its pods in the manifest.
        fit: How many of them fit at the same time.
        starts: True if enough of them do.
        is_mixed: True if they differ in scheduler or priority, so that none of them starts.
        do_not_fit: The names of the others.
        message: The same, for people.
    """

    name: str
    least: int | None
    pods: int
    fit: int
    starts: bool
    is_mixed: bool
    do_not_fit: tuple[str, ...]
    message: str


@dataclass(slots=True)
class Answered(Generic[T]):
    """The answer for a pod or claim.

    Attributes:
        item: The pod or claim.
        shown: What was made of the decision; None if the object was refused before it.
        question: The question; None if the object is invalid or asks for no GPU.
        outcome: The decision; None if there was none.
        refused: Why it is refused, apart from the decision: an error, or its group.
        warnings: The warnings of admission.
        preemption: The pods that would be evicted; None if it was not refused for lack of room.
        group: Its group, if it has one.
        priority_unknown: Why its priority is not known; empty if it is.
    """

    item: Item
    shown: T | None = None
    question: Question | None = None
    outcome: Outcome | None = None
    refused: str = ""
    error: VgpuError | None = None
    warnings: list[str] = field(default_factory=list)
    preemption: WouldPreempt | None = None
    group: GroupAnswer | None = None
    priority_unknown: str = ""

    @property
    def is_placed(self) -> bool:
        """True if it gets or has devices."""
        return self.outcome is not None and not self.outcome.refused and not self.refused


class Simulation(ABC, Generic[T]):
    """Places the items of a manifest one after another. Placed items keep their devices.

    Args:
        cluster: The cluster.
        manifest: The manifest.
        admit: Put pods through admission first.

    Attributes:
        most_searches: Pods for which victims are searched; a search takes a tenth of a second.
    """

    most_searches: ClassVar[int] = 256

    def __init__(self, cluster: WholeCluster, manifest: Manifest, *, admit: bool) -> None:
        self._cluster = cluster
        self._known = _WithClaims(cluster, manifest.claims)
        self._device_claims = manifest.device_claims
        self._admit = admit
        self._items = manifest.items()
        self._priorities = cluster.priorities.beside(manifest.classes)
        self._searched = 0
        self._written: dict[GroupKey, set[int]] = {}  # minimums that pods themselves name
        cluster.know_groups(manifest.groups)

    @abstractmethod
    def decide(self, question: Question) -> tuple[T, Outcome]:
        """Decide a question, and return the details to show with the decision.

        Of what comes before it in the manifest, only what has been placed is held.
        """

    def answers(self) -> Iterator[Answered[T]]:
        """Yield the answers in the order of the items."""
        groups: dict[GroupKey, list[Item]] = {}
        keys = [self._group_of(item) for item in self._items]
        for item, key in zip(self._items, keys, strict=True):
            if key is not None:
                groups.setdefault(key, []).append(item)
        found: dict[GroupKey, Iterator[Answered[T]]] = {}
        for item, key in zip(self._items, keys, strict=True):
            if key is None:
                yield self._in_turn(item)
                continue
            if key not in found:
                found[key] = iter(self._together(key, groups[key]))
            yield next(found[key])

    def _group_of(self, item: Item) -> GroupKey | None:
        """Return the group of a pod, by the fields or annotations in use in the cluster's mode."""
        if not _is_pod(item):
            return None
        try:
            named = named_group(read_pod(dict(item.document)), self._cluster.config)
        except VgpuError:
            return None  # the pod is refused by itself
        if named is None:
            return None
        key = GroupKey(_namespace(item.document), named.name, named.kind)
        if named.least is not None:
            self._written.setdefault(key, set()).add(named.least)
        elif named.kind is not GroupKind.KUBERNETES and self._cluster.least_of(key) is None:
            return None  # no PodGroup: this API may not be served, so the group is ignored
        return key

    def _least_of(self, key: GroupKey) -> int | None:
        written = self._written.get(key)
        return self._cluster.least_of(key) if written is None else max(written)

    def _in_turn(self, item: Item) -> Answered[T]:
        answer = self._asked(item)
        answer.preemption = self._preemption(answer)
        if answer.is_placed:
            self._hold(answer)
        return answer

    def _asked(self, item: Item) -> Answered[T]:
        """Answer for one item without holding its devices."""
        document = item.document
        answer: Answered[T] = Answered(item)
        try:
            if _is_pod(item):
                namespace, claims = _namespace(document), self._device_claims
                answer.warnings += claims.not_found(document, namespace)
                document = claims.asked_by(document, namespace, self._cluster.config)
            answer.warnings += warnings_about(document, self._known, admit=self._admit)
            question = question_of(document, self._known, admit=self._admit)
        except VgpuError as error:
            answer.refused, answer.error = str(error), error
            return answer
        if question is None:
            return answer
        if question.pod is not None:
            try:
                question = replace(question, pod=self._priorities.resolved(question.pod))
            except PriorityUnknown as error:
                answer.priority_unknown = str(error)
        answer.question = question
        answer.shown, answer.outcome = self.decide(question)
        return answer

    def _preemption(self, answer: Answered[T]) -> WouldPreempt | None:
        """Return the pods that would be evicted for a pod alone; None if it does not lack room."""
        question, outcome = answer.question, answer.outcome
        if question is None or outcome is None or not (outcome.refused and outcome.of_nodes):
            return None
        why_unknown = answer.priority_unknown or self._too_many(1)
        if why_unknown:
            return unknown(self._cluster.config, why_unknown)
        return self._cluster.preemption(question, outcome)

    def _too_many(self, pods: int) -> str:
        """Return why no victims are searched for further pods; empty if they may be."""
        if self._searched + pods > self.most_searches:
            return f"victims are searched for no more than {self.most_searches} pods at a time"
        self._searched += pods
        return ""

    def _hold(self, answer: Answered[T]) -> list[Undo]:
        """Hold the devices of a placed item; return what gives them back."""
        assert answer.question is not None
        assert answer.outcome is not None
        undos = [self._cluster.charge(answer.question, answer.outcome)]
        if _is_pod(answer.item):
            document, name = answer.item.document, answer.item.name
            undos.append(self._device_claims.serve(document, _namespace(document), name))
        return [*undos, self._known.serve(answer.item, answer.outcome)]

    def _together(self, key: GroupKey, items: Sequence[Item]) -> list[Answered[T]]:
        """Answer for the pods of a group: all keep their places, or none if too few have one."""
        answers, undos = [], []
        for item in items:
            answer = self._asked(item)
            answers.append(answer)
            if answer.is_placed:
                undos += self._hold(answer)
        group = self._judged(key, answers)
        for answer in answers:
            answer.group = group
        if group.starts:
            for answer in answers:
                answer.preemption = self._preemption(answer)
            return answers
        for undo in reversed(undos):
            undo()
        preemption = self._preemption_together(key, group, answers)
        for answer in answers:
            if answer.question is not None:
                own = "" if answer.outcome is None else answer.outcome.refused
                answer.refused = "; ".join(filter(None, (own, group.message)))
                answer.preemption = preemption
        return answers

    def _preemption_together(
        self, key: GroupKey, group: GroupAnswer, answers: Sequence[Answered[T]]
    ) -> WouldPreempt | None:
        """Return the pods that would be evicted for a group; None if it does not lack room."""
        questions = [each.question for each in answers if each.question is not None]
        if group.is_mixed or not questions or any(each.standing for each in questions):
            return None
        why_unknown = next((each.priority_unknown for each in answers if each.priority_unknown), "")
        if group.least is None:
            why_unknown = f"PodGroup {group.name} does not exist here"
        why_unknown = why_unknown or self._too_many(len(questions))
        if why_unknown:
            return unknown(self._cluster.config, why_unknown)
        others = sum(each.question is None and each.error is None for each in answers)
        return self._cluster.preemption_of_group(key, questions, others)

    def _judged(self, key: GroupKey, answers: Sequence[Answered[T]]) -> GroupAnswer:
        """Return whether enough pods of a group have found a place."""
        least = self._least_of(key)
        asking = [each for each in answers if each.question is not None or each.error is not None]
        do_not_fit = tuple(each.item.name for each in asking if not each.is_placed)
        fit = len(asking) - len(do_not_fit)
        running = self._cluster.running_of(key) + len(answers) - len(asking)
        mixed = _mixed(answers, self._written.get(key, set()))
        enough = not do_not_fit if least is None else fit + running >= least
        counts = f"{fit} of {len(asking)} pods of group {key.name} found a place"
        if do_not_fit:
            more = " and others" if len(do_not_fit) > _NAMED else ""
            counts += f", and {', '.join(do_not_fit[:_NAMED])}{more} did not"
        text = "; ".join((counts, *_counting(running, least)))
        return GroupAnswer(
            name=key.name,
            least=least,
            pods=len(answers),
            fit=fit,
            starts=enough and not mixed,
            is_mixed=bool(mixed),
            do_not_fit=do_not_fit,
            message=mixed or text,
        )


def _counting(running: int, least: int | None) -> Iterator[str]:
    """Yield what else is counted for a group, and how many of its pods must start together."""
    if running:
        yield f"{running} run already or need no devices"
    if least is None:
        yield "its PodGroup does not exist here, so all of them must start together"
    else:
        yield f"{least} must start together"


class _WithClaims:
    """A cluster together with the claims of a manifest."""

    def __init__(self, cluster: Judge, claims: Mapping[Place, Document]) -> None:
        self._cluster = cluster
        self._written = claims
        self._served: dict[Place, VGPUClaim] = {}

    @property
    def config(self) -> ClusterConfig:
        """The cluster's configuration."""
        return self._cluster.config

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Return a claim: one that has devices already, else as the manifest has it.

        Raises:
            Denied: The manifest's claim is invalid.
        """
        place = namespace, name
        known = self._served.get(place) or self._cluster.claim(namespace, name)
        if place not in self._written or (known is not None and known.status.allocation):
            return known
        return claim_of(dict(self._written[place]))

    def serve(self, item: Item, outcome: Outcome) -> Undo:
        """Give the item's claim, if it has one, the devices that the item gets."""
        place, user = self._claim_of(item)
        claim, before = self.claim(*place), self._served.get(place)
        if claim is None:
            return lambda: None
        update: dict[str, Any] = {"allocation": outcome.plan.allocation()}
        if user:
            update["reserved_for"] = ReservedFor(pod_name=user)
        status = claim.status.model_copy(update=update)
        self._served[place] = claim.model_copy(update={"status": status})

        def undo() -> None:
            if before is None:
                del self._served[place]
            else:
                self._served[place] = before

        return undo

    def _claim_of(self, item: Item) -> tuple[Place, str]:
        """Return the claim that is served, and the pod that then uses it."""
        namespace = _namespace(item.document)
        if item.document.get("kind") == "VGPUClaim":
            return (namespace, item.name), ""
        named = claim_named_by(dict(item.document))
        if named is None or named.is_template:
            return ("", ""), ""
        return (namespace, named.name), item.name


def _mixed(answers: Sequence[Answered[T]], written: Collection[int]) -> str:
    """Return why no scheduler starts the group as a whole; empty if one does."""
    if len(written) > 1:
        found = ", ".join(map(str, sorted(written)))
        return f"the pods of a group need one {names.ANNOTATION_GROUP_MIN}, and these have {found}"
    pods = [each.question.pod for each in answers if each.question is not None]
    traits = {(pod.spec.scheduler_name, pod.spec.priority or 0) for pod in pods if pod is not None}
    if len(traits) < 2:
        return ""
    found = ", ".join(f"{name or 'the default'} and {number}" for name, number in sorted(traits))
    return f"the pods of a group need one scheduler and one priority, and these have {found}"


def _is_pod(item: Item) -> bool:
    return item.document.get("kind") in (None, "Pod")


def _is_immediate(document: Document) -> bool:
    spec = document.get("spec")
    return isinstance(spec, dict) and spec.get("bindingMode") == "Immediate"


def name_of(document: Document) -> str:
    """Return a document's name, or an empty string if it has no valid one."""
    return _text_of(document, "name")


def _namespace(document: Document) -> str:
    return _text_of(document, "namespace") or "default"


def _text_of(document: Document, key: str) -> str:
    metadata = document.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""
