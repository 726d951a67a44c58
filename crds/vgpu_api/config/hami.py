"""HAMi's configuration documents, read as they are: each key acts here or is named in a notice.

What is understood: `device-config.yaml` (a section a vendor), the flat keys `nvidia.defaultMem:
"1000"`, `config.json` with `nodeconfig`, the ConfigMaps that hold any of these
(`hami-scheduler-device`, `hami-device-config`, `hami-device-plugin`), lists of ConfigMaps, and the
chart's values `scheduler.defaultSchedulerPolicy`. The result is a document of our own, so that one
reader judges every value. Source: HAMi v2.10, pkg/device/nvidia and charts/hami.
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
"""HAMi's sections of other vendors."""

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
"""By key: values that ask for nothing, and what to use instead of the others."""

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
"""HAMi matches the keys of JSON in any case; ours are in camel case."""

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
    """A key that was accepted and does nothing, and what to use instead."""

    field: str
    value: Any
    instead: str

    def __str__(self) -> str:
        value = json.dumps(self.value, default=str, ensure_ascii=False)
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        return f"{self.field}: {shown} has no effect: {self.instead}"


@dataclass(frozen=True, slots=True)
class Translated:
    """A document in our own keys, not checked yet, and what of the given one is not in it."""

    document: dict[str, Any]
    notices: tuple[Notice, ...]
    origins: Mapping[str, str]
    """By path in `document`: the path that it has in the given one, where they differ."""

    def origin(self, field: str) -> str:
        """Return the path in the given document of a field of this one."""
        parts = [at.start() for at in re.finditer(r"[.\[]", field)] + [len(field)]
        for end in reversed(parts):
            if (found := self.origins.get(field[:end])) is not None:
                return found + field[end:]
        return field


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was taken from the documents so far."""

    sections: dict[str, Any]
    notices: list[Notice]
    origins: dict[str, str]

    def came_from(self, field: str, given: str) -> None:
        """Note where a field of ours stands in the given document."""
        if field != given:
            self.origins[field] = given


def translated(given: Any) -> Translated:
    """A document of HAMi's or of ours as one of ours.

    Raises:
        BadInput: it is no document, or a text inside a ConfigMap cannot be read.
    """
    reading = _Reading({}, [], {})
    _refuse_endless(given, "document")
    for path, document in _documents(given, ""):
        for key, value in document.items():
            _take(f"{path}{key}", str(key), value, reading)
    return Translated(reading.sections, tuple(reading.notices), reading.origins)


def parsed(text: str, field: str) -> Any:
    """One YAML document (JSON is YAML); None for an empty one.

    Raises:
        BadInput: it is none, or longer than an object of the API server can be.
    """
    if len(text) > _MOST_TEXT:
        raise BadInput(field=field, fault=Fault.TOO_LONG, detail="may not be more than 1 MiB")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(field=field, value=_first_line(error), expected="a YAML document") from error
    except (LookupError, AttributeError, TypeError) as error:
        # What a tag such as !!int or !!bool is given goes unchecked there.
        raise BadInput(field=field, value=str(error), expected="a YAML document") from error
    _refuse_endless(document, field)
    return document


def _refuse_endless(document: Any, field: str) -> None:
    """YAML can name a part of itself: what never ends, or is larger than it looks, is refused."""
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
    """The documents in what was given, each with the path that its keys begin with."""
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
    """Put one key of a document where ours has it."""
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
    """Name what another vendor's section would change: words of pods, and what amounts mean.

    The general notice about the section does not show that pods with a renamed word get nothing.
    """
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _lost(f"{field}[{at}]", item)
    elif isinstance(value, dict):
        for key, given in value.items():
            path, name = f"{field}.{key}", str(key).lower()
            if isinstance(given, dict | list):
                yield from _lost(path, given)
            elif name.startswith("resource") and given and given not in _known():
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
def _known() -> frozenset[str]:
    """Return the words of vendors that pods are served by, or are refused with by name."""
    words = ((*kind.resources, *kind.unsupported.resources) for kind in kinds())
    return frozenset(name for some in words for name in some)


def _section(sections: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = sections.get(key)
    return dict(found) if isinstance(found, dict) else {}


def _nvidia(field: str, value: Any, reading: _Reading) -> None:
    """Put what acts into the section; keys that do nothing become notices."""
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
    """Equal, or the same in the text of a flat key."""
    if isinstance(given, str) and not isinstance(value, str):
        return given.strip().lower() == json.dumps(value)
    return type(given) is type(value) and bool(given == value)


def _nodes(field: str, value: Any, reading: _Reading) -> None:
    """Put the entries of `nodeconfig` after those that are there."""
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
    """Whether HAMi itself divides the node's devices, whatever `migstrategy` stands beside it."""
    return any(
        str(key).lower() == "operatingmode" and str(given).strip().lower() == "mig"
        for key, given in entry.items()
    )


def _helm(field: str, value: dict[Any, Any], reading: _Reading) -> None:
    """Put the chart's values of its scheduler: policies and the scheduler's name."""
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
