"""Reads the device settings in the values file of HAMi's Helm chart.

Most values of that chart configure objects that this project does not have. `import hami` and
`check` list them as left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MARKS = frozenset({"global", "devicePlugin", "devices", "admissionWebhook"})
"""Keys that occur only in a values file and never in a configuration document of HAMi."""
_NAMES: Mapping[str, str] = {
    "resourceName": "resourceCountName",
    "resourceMem": "resourceMemoryName",
    "resourceMemPercentage": "resourceMemoryPercentageName",
    "resourceCores": "resourceCoreName",
    "resourcePriority": "resourcePriorityName",
}
_OF_THE_PLUGIN = frozenset(
    {
        *("deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling", "migStrategy"),
        *("disablecorelimit", "preConfiguredDeviceMemory"),
    }
)
_OF_NVIDIA = frozenset({"gpuCorePolicy", "libCudaLogLevel"})
_KEPT = frozenset({"scheduler"})
_ELSEWHERE = "a value of HAMi's chart; see manifests/ for what can be set here"


def is_values(document: Any) -> bool:
    """Return True if the document is a values file of HAMi's chart."""
    return isinstance(document, dict) and "kind" not in document and not _MARKS.isdisjoint(document)


def read_values(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the equivalent configuration, and one line for each value that has no equivalent."""
    kept: dict[str, Any] = {key: value for key, value in document.items() if key in _KEPT}
    nvidia: dict[str, Any] = {}
    left: list[str] = []
    for key, value in document.items():
        if key in _NAMES:
            nvidia[_NAMES[key]] = value
        elif key == "devicePlugin" and isinstance(value, dict):
            left += _split(key, value, _OF_THE_PLUGIN, nvidia)
        elif key == "devices" and isinstance(value, dict):
            for vendor, of in value.items():
                if vendor == "nvidia" and isinstance(of, dict):
                    left += _split("devices.nvidia", of, _OF_NVIDIA, nvidia)
                else:
                    left += _leaves(f"devices.{vendor}", of)
        elif key not in _KEPT:
            left += _leaves(str(key), value)
    if nvidia:
        kept["nvidia"] = nvidia
    return kept, left


def _split(
    path: str, values: Mapping[str, Any], known: frozenset[str], into: dict[str, Any]
) -> Iterator[str]:
    for key, value in values.items():
        if key in known:
            into[key] = value
        else:
            yield from _leaves(f"{path}.{key}", value)


def _leaves(path: str, value: Any) -> list[str]:
    """Return one line for a section and one for each resource name in it."""
    if isinstance(value, dict):
        names = [
            line
            for key, of in value.items()
            for line in _leaves(f"{path}.{key}", of)
            if "pods that ask for" in line
        ]
        return [f"{path}: {_ELSEWHERE}", *names]
    names = value if isinstance(value, list) else [value] if "esource" in path else []
    if names and all(isinstance(each, str) and "/" in each for each in names):
        text = ", ".join(names)
        return [f"{path}: pods that ask for {text} are served under the names of docs/vendors.md"]
    return [f"{path}: {_ELSEWHERE}"]
