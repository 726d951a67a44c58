"""The files that people hand in, read with one clear line about whatever is wrong in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from vgpu_api.errors import VgpuError
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_operator.admission.wording import describe

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


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
    """What a card may be cut into."""

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
    """Multi-instance mode of a card; what is in use of the card includes its instances."""

    enabled: bool = True
    profiles: Annotated[list[MigProfileState], Field(max_length=64)] = Field(default_factory=list)
    instances: Annotated[list[MigInstanceState], Field(max_length=64)] = Field(default_factory=list)


class DeviceState(_Document):
    """A card, with what is in use of it apart from the state's claims."""

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


class PairScore(_Document):
    """How well two cards are connected; of both ways unless the other way is given too."""

    a: Name
    b: Name
    score: Annotated[int, Field(ge=0, le=1_000_000)]


class NodeEntry(_Document):
    """A node and its cards."""

    name: Name
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    devices: Annotated[list[DeviceState], Field(max_length=1024)] = Field(default_factory=list)
    pair_scores: list[PairScore] = Field(default_factory=list)


class QuotaEntry(_Document):
    """A ResourceQuota."""

    namespace: Name
    hard: dict[str, str | int]


class State(_Document):
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


def read_state(document: Any, *, source: str) -> State:
    """A state, checked.

    Raises:
        BadDocument: names the place.
    """
    try:
        state = State.model_validate(document)
    except ValidationError as error:
        raise BadDocument(f"{source}: {describe(error)}") from error
    uuids = Counter(device.uuid for node in state.nodes for device in node.devices)
    names = Counter(node.name for node in state.nodes)
    for what, counted in (("node", names), ("card", uuids)):
        twice = sorted(name for name, count in counted.items() if count > 1)
        if twice:
            raise BadDocument(f"{source}: nodes: {what} {twice[0]!r} is there more than once")
    for at, node in enumerate(state.nodes):
        for number, device in enumerate(node.devices):
            _check_mig(device, source=f"{source}: nodes[{at}].devices[{number}].mig")
        own = {device.uuid for device in node.devices}
        for number, pair in enumerate(node.pair_scores):
            if not {pair.a, pair.b} <= own or pair.a == pair.b:
                raise BadDocument(
                    f"{source}: nodes[{at}].pairScores[{number}]: {pair.a!r} and {pair.b!r} are "
                    "not two cards of the node"
                )
    return state


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
    try:
        return _json(path.read_text(), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: {error}") from error


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line of a file that is not empty: where it stands, and its document.

    Raises:
        BadDocument: the file cannot be read, or a line is no JSON.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            source = f"{path}:{number}"
            yield source, _json(line, source=source)


def manifest(path: Path, text: str | None = None) -> dict[str, Any]:
    """The one pod or claim in a YAML file.

    Raises:
        BadDocument: it cannot be read, or holds something else.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text() if text is None else text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise BadDocument(f"{path}: {' '.join(str(error).split())}") from error
    wanted = [d for d in documents if isinstance(d, dict) and d.get("kind") in ("Pod", "VGPUClaim")]
    if len(wanted) != 1:
        raise BadDocument(f"{path}: {len(wanted)} pods and claims in it; there must be one")
    return wanted[0]


def _json(text: str, *, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{source}: {error}") from error


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
