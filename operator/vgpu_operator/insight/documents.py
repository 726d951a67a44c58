"""Reads the files that users pass, and reports anything invalid in one clear line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from vgpu_api.core.quota import ResourceQuotaSpec
from vgpu_api.errors import BadInput, VgpuError
from vgpu_api.field_errors import describe
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import MAX_PART_SIZE
from vgpu_operator.insight.plainness import refuse_what_is_not_plain
from vgpu_operator.insight.workloads import holds_pods

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
QuotaScope = Literal[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
]
_MOST_OF_A_MANIFEST = 100_000
"""The most values in a manifest file; no object with more would be accepted by an API server."""


class BadDocument(VgpuError):
    """A file is invalid; the message names the file, the place in it, and the reason."""


class _Document(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True
    )


_Read = TypeVar("_Read", bound=_Document)


Slice = Annotated[int, Field(ge=0, le=63)]


class MigPlace(_Document):
    """The memory slices that an instance may occupy."""

    start: Slice
    size: Annotated[int, Field(ge=1, le=64)]


class MigProfileState(_Document):
    """A MIG profile of a device."""

    name: Name
    memory_mib: Count = Field(alias="memoryMiB")
    cores: Annotated[int, Field(ge=0, le=100)] = 0
    slices: Annotated[int, Field(ge=0, le=64)] = 0
    placements: Annotated[list[MigPlace], Field(max_length=64)]


class MigInstanceState(_Document):
    """A MIG instance that belongs to none of the state's claims."""

    profile: Name
    start: Slice


class MigState(_Document):
    """The MIG mode of a device. The device's used amounts include its instances."""

    enabled: bool = True
    profiles: Annotated[list[MigProfileState], Field(max_length=64)] = Field(default_factory=list)
    instances: Annotated[list[MigInstanceState], Field(max_length=64)] = Field(default_factory=list)


class PartState(_Document):
    """A part into which another vendor's device can be divided."""

    name: Name
    size: Annotated[int, Field(ge=1, le=MAX_PART_SIZE)]
    memory_mib: Count = Field(alias="memoryMiB")
    cores: Annotated[int, Field(ge=1, le=100)]


class DeviceState(_Document):
    """A device, with the amounts that are in use in addition to the state's claims."""

    uuid: Name
    index: Annotated[int, Field(ge=0, le=1023)] | None = None
    vendor: str = "nvidia"
    model: str = ""
    memory_mib: Count = Field(alias="memoryMiB")
    memory_used_mib: Count = Field(default=0, alias="memoryUsedMiB")
    cores: Count = 100
    cores_used: Count = 0
    slots: Count | None = None
    slots_used: Count = 0
    numa: Annotated[int, Field(ge=-1, le=1023)] = -1
    healthy: bool = True
    cordoned: bool = False
    mode: DeviceMode = "Shared"
    mig: MigState | None = None
    parts: Annotated[list[PartState], Field(max_length=64)] = Field(default_factory=list)


class PairScore(_Document):
    """The score of the link between two devices, in both directions unless both are given."""

    a: Name
    b: Name
    score: Annotated[int, Field(ge=0, le=1_000_000)]


class NodeEntry(_Document):
    """A node and its devices."""

    name: Name
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    devices: Annotated[list[DeviceState], Field(max_length=1024)] = Field(default_factory=list)
    pair_scores: list[PairScore] = Field(default_factory=list)


class ScopeEntry(_Document):
    """One line of a quota's scope selector."""

    scope_name: QuotaScope
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)


class ScopeSelectorEntry(_Document):
    """Expressions, all of which must match."""

    match_expressions: list[ScopeEntry] = Field(default_factory=list)


class QuotaEntry(_Document):
    """A ResourceQuota."""

    namespace: Name
    hard: dict[str, str | int]
    scopes: list[QuotaScope] = Field(default_factory=list)
    scope_selector: ScopeSelectorEntry | None = None

    @property
    def spec(self) -> ResourceQuotaSpec:
        """Return the spec of the ResourceQuota."""
        return ResourceQuotaSpec.model_validate(self.model_dump(exclude={"namespace"}))


class ClusterState(_Document):
    """The parts of a cluster that decide where a pod is placed and which pods would be evicted.

    Pods, disruption budgets, PodGroups and PriorityClasses are objects as in the API server.
    Without `pods`, as in the files of older versions, the pods that would be evicted are unknown.
    """

    config: dict[str, Any] = Field(default_factory=dict)
    quotas: list[QuotaEntry] = Field(default_factory=list)
    nodes: list[NodeEntry] = Field(default_factory=list)
    claims: list[dict[str, Any]] = Field(default_factory=list)
    pods: list[dict[str, Any]] | None = None
    disruption_budgets: list[dict[str, Any]] = Field(default_factory=list)
    pod_groups: list[dict[str, Any]] = Field(default_factory=list)
    priority_classes: list[dict[str, Any]] = Field(default_factory=list)


class Case(_Document):
    """A question with its own cluster state: one line of a file of test cases."""

    id: str | int
    state: dict[str, Any]
    pod: dict[str, Any] | None = None
    claim: dict[str, Any] | None = None


def read_state(document: Any, *, source: str) -> ClusterState:
    """Read and validate a state.

    Raises:
        BadDocument: The state is invalid; the message names the place.
    """
    state = _validated(ClusterState, document, source)
    _refuse_twins(((f"nodes[{at}].name", n.name) for at, n in enumerate(state.nodes)), source)
    _refuse_twins(
        (
            (f"nodes[{at}].devices[{number}].uuid", device.uuid)
            for at, node in enumerate(state.nodes)
            for number, device in enumerate(node.devices)
        ),
        source,
    )
    for at, node in enumerate(state.nodes):
        for number, device in enumerate(node.devices):
            _check_mig(device, source=f"{source}: nodes[{at}].devices[{number}].mig")
        own = {device.uuid for device in node.devices}
        for number, pair in enumerate(node.pair_scores):
            if not {pair.a, pair.b} <= own or pair.a == pair.b:
                raise BadDocument(
                    f"{source}: nodes[{at}].pairScores[{number}]: {pair.a!r} and {pair.b!r} are "
                    "not two GPUs of the node"
                )
    return state


def _validated(model: type[_Read], document: Any, source: str) -> _Read:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise BadDocument(f"{source}: {describe(error)}") from error


def _refuse_twins(named: Iterable[tuple[str, str]], source: str) -> None:
    """Refuse duplicate names; each name comes with its place in the document."""
    first: dict[str, str] = {}
    for place, name in named:
        if name in first:
            raise BadDocument(
                f"{source}: {place}: Duplicate value: {name!r}: first at {first[name]}"
            )
        first[name] = place


def _check_mig(device: DeviceState, *, source: str) -> None:
    if device.mig is None:
        return
    places = {
        profile.name: {place.start for place in profile.placements}
        for profile in device.mig.profiles
    }
    if len(places) != len(device.mig.profiles):
        raise BadDocument(f"{source}.profiles: two profiles have the same name")
    for number, instance in enumerate(device.mig.instances):
        if instance.start not in places.get(instance.profile, ()):
            raise BadDocument(
                f"{source}.instances[{number}]: no profile {instance.profile!r} may start at slice "
                f"{instance.start}"
            )


def read_case(document: Any, *, source: str) -> Case:
    """Read one line of a file of test cases.

    Raises:
        BadDocument: The line is invalid; the message names the place.
    """
    case = _validated(Case, document, source)
    if (case.pod is None) == (case.claim is None):
        raise BadDocument(f"{source}: a case needs either a pod or a claim")
    return case


def json_file(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        BadDocument: The file cannot be read, or is not valid JSON.
    """
    return _json(_text(path), source=str(path))


def json_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line that is not empty.

    Raises:
        BadDocument: The file cannot be read.
    """
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def json_text(text: str, *, source: str) -> Any:
    """Read a JSON document from a line of a file.

    Raises:
        BadDocument: The text is not valid JSON.
    """
    return _json(text, source=source)


def yaml_documents(path: Path) -> list[Any]:
    """Read the documents of a YAML file; `-` is standard input.

    Raises:
        BadDocument: The file cannot be read, or has values that JSON cannot express.
    """
    return yaml_text(_text(path), source=str(path))


def yaml_text(text: str, *, source: str) -> list[Any]:
    """Read the documents of a YAML text.

    Raises:
        BadDocument: The text is not valid YAML, or has values that JSON cannot express.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDocument(f"{source}: {error}") from error
    except (LookupError, AttributeError, TypeError) as error:
        # PyYAML does not catch an invalid value of a tag such as !!int or !!bool.
        raise BadDocument(f"{source}: a value does not match its tag: {error}") from error
    for document in documents:
        _refuse_what_is_not_plain(document, source=source, most_values=_MOST_OF_A_MANIFEST)
    return documents


def manifests(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a YAML file that has pods or claims; `-` is standard input.

    Raises:
        BadDocument: The file cannot be read, or has no pods, claims, workloads and lists of them.
    """
    return _with_pods(yaml_documents(path), source=str(path))


def manifests_in(text: str, *, source: str) -> list[dict[str, Any]]:
    """Read a text the same way `manifests` reads a file."""
    return _with_pods(yaml_text(text, source=source), source=source)


def _with_pods(documents: list[Any], *, source: str) -> list[dict[str, Any]]:
    found = [document for document in documents if isinstance(document, dict)]
    if not any(map(holds_pods, found)):
        raise BadDocument(
            f"{source}: no pods or claims found: must have a Pod, a VGPUClaim, a workload or a list"
        )
    return found


def _text(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return content.decode()
    except (OSError, ValueError) as error:
        raise BadDocument(f"{path}: {error}") from error


def _json(text: str, *, source: str) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{source}: {error}") from error
    _refuse_what_is_not_plain(document, source=source)
    return document


def _refuse_what_is_not_plain(document: Any, *, source: str, **how: int) -> None:
    try:
        refuse_what_is_not_plain(document, **how)
    except BadInput as error:
        raise BadDocument(f"{source}: {error}") from error
