"""HAMi's configuration documents, read as they are: each key takes effect or causes a notice.

It reads `device-config.yaml` (one section per vendor), the flat keys `nvidia.defaultMem: "1000"`,
`config.json` with `nodeconfig`, the ConfigMaps that hold any of these (`hami-scheduler-device`,
`hami-device-config`, `hami-device-plugin`), lists of ConfigMaps, and the chart's values
`scheduler.defaultSchedulerPolicy`. The result is a document in our own form, so that a single
reader validates every value. Source: HAMi v2.10, pkg/device/nvidia and charts/hami.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from vgpu_api.errors import BadInput, Fault
from vgpu_api.vendors import kinds

NVIDIA = "nvidia"
VENDOR_SECTIONS = (
    *("ascend", "vnpus", "cambricon", "hygon", "metax", "mthreads", "enflame", "kunlun"),
    *("kunlunxin", "iluvatars", "iluvatar", "amd", "awsneuron", "vastai", "biren"),
)
"""The sections that HAMi's documents have for other vendors."""

WITHOUT_EFFECT: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "enableNumaTopology": (
        (False,),
        "the kubelet gets no NUMA hints; the annotation nvidia.com/numa-bind keeps a container's "
        "GPUs on one NUMA node",
    ),
    "libCudaLogLevel": (
        (1,),
        "the variable VGPU_LOG_LEVEL of a container says how much the library logs",
    ),
    "knownMigGeometries": (
        ([], None),
        "the driver says how a device can be divided; migProfileAllowlist restricts it, and "
        "migProfiles has the profiles that pods can name",
    ),
    "operatingMode": (
        ("hami-core", ""),
        "whether a device is in MIG mode is read from its driver, and no MPS daemon runs here",
    ),
    "overwriteEnv": (
        (True,),
        "NVIDIA_VISIBLE_DEVICES is void in every container of a pod that asks for a GPU, or one "
        "beside would see all of them",
    ),
    "enableGetPreferredAllocation": (
        (False,),
        "the agent knows which pod a container belongs to; no preference is needed",
    ),
}
"""By key: the values that ask for nothing, and what to use instead of any other value."""

_NODE_KEYS = {
    "name": "name",
    "selector": "selector",
    "labelselector": "selector",
    "devicesplitcount": "deviceSplitCount",
    "devicememoryscaling": "deviceMemoryScaling",
    "devicecorescaling": "deviceCoreScaling",
    "filterdevices": "filterDevices",
    "operatingmode": "operatingMode",
    "libcudaloglevel": "libCudaLogLevel",
    "migstrategy": "migStrategy",
    "preconfigureddevicememory": "preConfiguredDeviceMemory",
    "enablenumatopology": "enableNumaTopology",
    "enablegetpreferredallocation": "enableGetPreferredAllocation",
}
"""Our spelling of each key. HAMi matches JSON keys in any case; ours are in camel case."""

_MADE_ON_DEMAND = (
    "operatingmode mig makes instances on demand; leave it out to give those that an administrator "
    "made"
)
_POLICIES = {"nodeSchedulerPolicy": "nodePolicy", "gpuSchedulerPolicy": "devicePolicy"}
_NO_DEFAULT = (0, "0", "", None)
_NO_FACTOR = (*_NO_DEFAULT, 1, "1")
_MOST_TEXT = 1 << 20
_MOST_LEVELS = 32
_MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Notice:
    """A key that was accepted but has no effect, with what to use instead."""

    field: str
    value: Any
    instead: str

    def __str__(self) -> str:
        value = json.dumps(self.value, default=str, ensure_ascii=False)
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        return f"{self.field}: {shown} has no effect: {self.instead}"


@dataclass(frozen=True, slots=True)
class Translated:
    """A document under our own keys, not validated yet, with notices about keys left out of it."""

    document: dict[str, Any]
    notices: tuple[Notice, ...]
    origins: Mapping[str, str]
    """By path in `document`: the path in the user's document, where the two differ."""

    def origin(self, field: str) -> str:
        """Return the path that a field of this document has in the user's document."""
        parts = [at.start() for at in re.finditer(r"[.\[]", field)] + [len(field)]
        for end in reversed(parts):
            if (found := self.origins.get(field[:end])) is not None:
                return found + field[end:]
        return field


@dataclass(frozen=True, slots=True)
class _Reading:
    """The parts of the documents that have been read so far."""

    sections: dict[str, Any]
    notices: list[Notice]
    origins: dict[str, str]

    def came_from(self, field: str, given: str) -> None:
        """Record the path in the user's document that one of our fields came from."""
        if field != given:
            self.origins[field] = given


def translated(given: Any) -> Translated:
    """Translate a document of HAMi's, or one of ours, into our own form.

    Raises:
        BadInput: It is not a document, or a text inside a ConfigMap cannot be read.
    """
    reading = _Reading({}, [], {})
    _refuse_endless(given, "document")
    for path, document in _documents(given, ""):
        for key, value in document.items():
            _take(f"{path}{key}", str(key), value, reading)
    return Translated(reading.sections, tuple(reading.notices), reading.origins)


def parsed(text: str, field: str) -> Any:
    """Parse one YAML document (JSON is YAML); return None for an empty one.

    Raises:
        BadInput: It is not YAML, or is longer than an object of the API server can be.
    """
    if len(text) > _MOST_TEXT:
        raise BadInput(field=field, fault=Fault.TOO_LONG, detail="may not be more than 1 MiB")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(field=field, value=_first_line(error), expected="a YAML document") from error
    except (LookupError, AttributeError, TypeError) as error:
        # The YAML library does not check what a tag such as !!int or !!bool is applied to.
        raise BadInput(field=field, value=str(error), expected="a YAML document") from error
    _refuse_endless(document, field)
    return document


def _refuse_endless(document: Any, field: str) -> None:
    """Refuse documents that never end or grow when expanded: YAML can refer to its own parts."""
    waiting = [(document, 0)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        value, level = waiting.pop()
        if isinstance(value, dict | list):
            if level == _MOST_LEVELS:
                break
            inner = value.values() if isinstance(value, dict) else value
            waiting.extend((item, level + 1) for item in inner)
    raise BadInput(
        field=field,
        fault=Fault.TOO_LONG,
        detail=f"may not have more than {_MOST_LEVELS} levels and {_MOST_VALUES} values",
    )


def _documents(given: Any, path: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Settings for one node or for nodes with some labels; unset keys keep the section's value."""
    if given is None:
        return
    if isinstance(given, list):
        for at, item in enumerate(given):
            yield from _documents(item, f"{path.rstrip('.')}[{at}].")
        return
    if not isinstance(given, dict):
        raise BadInput(
            field=path.rstrip(".") or "document", value=given, expected="a document with sections"
        )
    kind = given.get("kind")
    if kind == "ConfigMap":
        yield from _config_map(given, path)
    elif kind in ("List", "ConfigMapList"):
        yield from _documents(given.get("items"), f"{path}items")
    elif kind is not None:
        raise BadInput.unsupported(f"{path}kind", kind, ("ConfigMap",))
    else:
        yield path, given


def _config_map(given: dict[Any, Any], path: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    data = given.get("data")
    if data is None:
        return
    if not isinstance(data, dict):
        raise BadInput(field=f"{path}data", value=data, expected="an object")
    flat: dict[Any, Any] = {}
    for key, text in data.items():
        field = f"{path}data[{key}]"
        if str(key).endswith((".yaml", ".yml", ".json")):
            if not isinstance(text, str):
                raise BadInput(field=field, value=text, expected="text")
            yield from _documents(parsed(text, field), f"{field}.")
        else:
            flat[key] = text
    if flat:
        yield f"{path}data.", flat


def _take(field: str, key: str, value: Any, reading: _Reading) -> None:
    """Move one key of a document to its place in ours."""
    section, dot, rest = key.partition(".")
    if key == "nodeconfig":
        _nodes(field, value, reading)
    elif key == NVIDIA:
        _nvidia(field, value, reading)
    elif dot and section == NVIDIA:
        _nvidia(field.removesuffix(f".{rest}"), {rest: value}, reading)
    elif key in VENDOR_SECTIONS or (dot and section in VENDOR_SECTIONS):
        reading.notices.append(
            Notice(
                field,
                "…" if isinstance(value, dict | list) else value,
                "of vendors only NVIDIA's section is read; docs/vendors.md has the words of the "
                "others, which are not renamed",
            )
        )
        flat = {rest: value} if dot else value
        reading.notices.extend(_lost(field.removesuffix(f".{rest}") if dot else field, flat))
    elif key == "scheduler" and isinstance(value, dict):
        _helm(field, value, reading)
    else:
        reading.sections[key] = value
        reading.came_from(key, field)


def _lost(field: str, value: Any) -> Iterator[Notice]:
    """Report what pods would miss of another vendor's section: renamed resources and units.

    The general notice about the section does not say that pods asking by a renamed resource get
    nothing.
    """
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _lost(f"{field}[{at}]", item)
    elif isinstance(value, dict):
        for key, given in value.items():
            path, name = f"{field}.{key}", str(key).lower()
            if isinstance(given, dict | list):
                yield from _lost(path, given)
            elif name.startswith("resource") and given and given not in served_names():
                yield Notice(path, given, "no pod is served under this name; see docs/vendors.md")
            elif name.startswith("default") and given not in _NO_DEFAULT:
                instead = (
                    "a container gets what docs/vendors.md has for one that asks for no amount"
                )
                yield Notice(path, given, instead)
            elif name == "memoryfactor" and given not in _NO_FACTOR:
                instead = "amounts of memory are in the units that docs/vendors.md has"
                yield Notice(path, given, instead)


@cache
def served_names() -> frozenset[str]:
    """Return the resource names that are served, and those that are refused by name."""
    words = ((*kind.resources, *kind.unsupported.resources) for kind in kinds())
    return frozenset(name for some in words for name in some)


def _section(sections: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = sections.get(key)
    return dict(found) if isinstance(found, dict) else {}


def _nvidia(field: str, value: Any, reading: _Reading) -> None:
    """Copy the keys that take effect into the section; the others become notices."""
    kept = reading.sections[NVIDIA] = _section(reading.sections, NVIDIA)
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadInput(field=field, value=value, expected="an object")
    for key, given in value.items():
        name = str({"disablecorelimit": "disableCoreLimit"}.get(key, key))
        if not _does_nothing(f"{field}.{key}", name, given, reading.notices):
            kept[name] = given
            reading.came_from(f"{NVIDIA}.{name}", f"{field}.{key}")


def _does_nothing(field: str, name: str, given: Any, notices: list[Notice]) -> bool:
    found = WITHOUT_EFFECT.get(name)
    if found is None:
        return False
    silent, instead = found
    if not any(_same(given, value) for value in silent):
        notices.append(Notice(field, given, instead))
    return True


def _same(given: Any, value: Any) -> bool:
    """Return True if both are equal, or one is the text of the other in a flat key."""
    if isinstance(given, str) and not isinstance(value, str):
        return given.strip().lower() == json.dumps(value)
    return type(given) is type(value) and bool(given == value)


def _nodes(field: str, value: Any, reading: _Reading) -> None:
    """Append the entries of `nodeconfig` to those read so far."""
    if value is None:
        return
    if not isinstance(value, list):
        raise BadInput(field=field, value=value, expected="a list of nodes")
    nodes = reading.sections.get("nodes") or []
    if not isinstance(nodes, list):
        raise BadInput(field="nodes", value=nodes, expected="a list of nodes")
    nodes = reading.sections["nodes"] = list(nodes)
    for at, entry in enumerate(value):
        path, ours = f"{field}[{at}]", f"nodes[{len(nodes)}]"
        if not isinstance(entry, dict):
            raise BadInput(field=path, value=entry, expected="an object")
        reading.came_from(ours, path)
        kept: dict[str, Any] = {}
        made = _instances_are_made(entry)
        for key, given in entry.items():
            name = _NODE_KEYS.get(str(key).lower(), str(key))
            if name == "migStrategy" and made and given not in ("none", "", None):
                reading.notices.append(Notice(f"{path}.{key}", given, _MADE_ON_DEMAND))
                continue
            if given is None or _does_nothing(f"{path}.{key}", name, given, reading.notices):
                continue
            kept[name] = given
            reading.came_from(f"{ours}.{name}", f"{path}.{key}")
        nodes.append(kept)


def _instances_are_made(entry: Mapping[Any, Any]) -> bool:
    """Return True if HAMi itself divides the node's devices, whatever `migstrategy` says."""
    return any(
        str(key).lower() == "operatingmode" and str(given).strip().lower() == "mig"
        for key, given in entry.items()
    )


def _helm(field: str, value: dict[Any, Any], reading: _Reading) -> None:
    """Copy the chart's scheduler values: the policies and the scheduler's name."""
    scheduling = _section(reading.sections, "scheduling")
    for key, given in value.items():
        if key == "defaultSchedulerPolicy" and isinstance(given, dict):
            for name, policy in given.items():
                ours = _POLICIES.get(str(name), str(name))
                scheduling[ours] = policy
                reading.came_from(f"scheduling.{ours}", f"{field}.{key}.{name}")
        elif key == "forceOverwriteDefaultScheduler":
            if given in (False, "false"):
                scheduling["schedulerName"] = ""
        elif key == "overwriteEnv":
            _does_nothing(f"{field}.{key}", key, given, reading.notices)
        else:
            shown = "…" if isinstance(given, dict | list) else given
            instead = "it is of HAMi's chart; see manifests/ for what can be set here"
            reading.notices.append(Notice(f"{field}.{key}", shown, instead))
    if scheduling:
        reading.sections["scheduling"] = scheduling


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
