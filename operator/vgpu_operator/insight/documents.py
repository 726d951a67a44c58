"""The files that people hand in, read with one clear line about whatever is wrong in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

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
"""Values of one file of manifests: more than an API server takes of one object."""


class BadDocument(VgpuError):
    """A file cannot be used; the message names the file, the place in it and what is wrong."""


class _Document(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True
    )


Slice = Annotated[int, Field(ge=0, le=63)]


class MigPlace(_Document):
    """Memory slices that an instance may lie on."""

    start: Slice
    size: Annotated[int, Field(ge=1, le=64)]


class MigProfileState(_Document):
    """What a device may be cut into."""

    name: Name
    memory_mib: Count = Field(alias="memoryMiB")
    cores: Annotated[int, Field(ge=0, le=100)] = 0
    slices: Annotated[int, Field(ge=0, le=64)] = 0
    placements: Annotated[list[MigPlace], Field(max_length=64)]


class MigInstanceState(_Document):
    """An instance that is in use apart from the state's claims."""

    profile: Name
    start: Slice


class MigState(_Document):
    """Multi-instance mode of a device; what is in use of the device includes its instances."""

    enabled: bool = True
    profiles: Annotated[list[MigProfileState], Field(max_length=64)] = Field(default_factory=list)
    instances: Annotated[list[MigInstanceState], Field(max_length=64)] = Field(default_factory=list)


class PartState(_Document):
    """A part that another vendor's device is given in."""

    name: Name
    size: Annotated[int, Field(ge=1, le=MAX_PART_SIZE)]
    memory_mib: Count = Field(alias="memoryMiB")
    cores: Annotated[int, Field(ge=1, le=100)]


class DeviceState(_Document):
    """A device, with what is in use of it apart from the state's claims."""

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
    """How well two devices are connected; of both ways unless the other way is given too."""

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
    """Lines that must all hold."""

    match_expressions: list[ScopeEntry] = Field(default_factory=list)


class QuotaEntry(_Document):
    """A ResourceQuota."""

    namespace: Name
    hard: dict[str, str | int]
    scopes: list[QuotaScope] = Field(default_factory=list)
    scope_selector: ScopeSelectorEntry | None = None

    @property
    def spec(self) -> ResourceQuotaSpec:
        """Its spec, as the cluster has it."""
        return ResourceQuotaSpec.model_validate(self.model_dump(exclude={"namespace"}))


class ClusterState(_Document):
    """All that a decision looks at."""

    config: dict[str, Any] = Field(default_factory=dict)
    quotas: list[QuotaEntry] = Field(default_factory=list)
    nodes: list[NodeEntry] = Field(default_factory=list)
    claims: list[dict[str, Any]] = Field(default_factory=list)


class Case(_Document):
    """One question of many."""

    id: str | int
    state: dict[str, Any]
    pod: dict[str, Any] | None = None
    claim: dict[str, Any] | None = None


def read_state(document: Any, *, source: str) -> ClusterState:
    """A state, checked.

    Raises:
        BadDocument: names the place.
    """
    try:
        state = ClusterState.model_validate(document)
    except ValidationError as error:
        raise BadDocument(f"{source}: {describe(error)}") from error
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


def _refuse_twins(named: Iterable[tuple[str, str]], source: str) -> None:
    """Names, each with where it stands, of which no two may be the same."""
    first: dict[str, str] = {}
    for place, name in named:
        if name in first:
            raise BadDocument(f"{source}: {place}: {name!r} stands at {first[name]} already")
        first[name] = place


def _check_mig(device: DeviceState, *, source: str) -> None:
    if device.mig is None:
        return
    places = {
        profile.name: {place.start for place in profile.placements}
        for profile in device.mig.profiles
    }
    if len(places) != len(device.mig.profiles):
        raise BadDocument(f"{source}.profiles: two of them have the same name")
    for number, instance in enumerate(device.mig.instances):
        if instance.start not in places.get(instance.profile, ()):
            raise BadDocument(
                f"{source}.instances[{number}]: no profile {instance.profile!r} may start at slice "
                f"{instance.start}"
            )


def read_case(document: Any, *, source: str) -> Case:
    """One line of a file of cases.

    Raises:
        BadDocument: names the place.
    """
    try:
        case = Case.model_validate(document)
    except ValidationError as error:
        raise BadDocument(f"{source}: {describe(error)}") from error
    if (case.pod is None) == (case.claim is None):
        raise BadDocument(f"{source}: give a pod or a claim, one of them")
    return case


def json_file(path: Path) -> Any:
    """A JSON document.

    Raises:
        BadDocument: it cannot be read, or is no JSON.
    """
    return _json(_text(path), source=str(path))


def json_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a file that is not empty: where it stands, and its text.

    Raises:
        BadDocument: the file cannot be read.
    """
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def json_text(text: str, *, source: str) -> Any:
    """A JSON document that stands in one line of a file.

    Raises:
        BadDocument: it is no JSON.
    """
    return _json(text, source=source)


def yaml_documents(path: Path) -> list[Any]:
    """The documents of a YAML file; `-` is what comes in.

    Raises:
        BadDocument: it cannot be read, or has what JSON cannot express.
    """
    return yaml_text(_text(path), source=str(path))


def yaml_text(text: str, *, source: str) -> list[Any]:
    """The documents of a text.

    Raises:
        BadDocument: it is no YAML, or has what JSON cannot have.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDocument(f"{source}: {error}") from error
    except (LookupError, AttributeError, TypeError) as error:
        # What a tag such as !!int or !!bool is given goes unchecked there.
        raise BadDocument(f"{source}: a value is not of its tag: {error}") from error
    for document in documents:
        _refuse_what_is_not_plain(document, source=source, most_values=_MOST_OF_A_MANIFEST)
    return documents


def manifests(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file that have a place in a cluster; `-` is what comes in.

    Pods, claims, workloads and lists of such; documents of other kinds are left out.

    Raises:
        BadDocument: it cannot be read, or holds none.
    """
    return _with_pods(yaml_documents(path), source=str(path))


def manifests_in(text: str, *, source: str) -> list[dict[str, Any]]:
    """As `manifests`, of a text."""
    return _with_pods(yaml_text(text, source=source), source=source)


def _with_pods(documents: list[Any], *, source: str) -> list[dict[str, Any]]:
    desired = [found for found in documents if isinstance(found, dict) and holds_pods(found)]
    if not desired:
        raise BadDocument(
            f"{source}: no pods and claims in it: give a Pod, a VGPUClaim, a workload or a list"
        )
    return desired


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
