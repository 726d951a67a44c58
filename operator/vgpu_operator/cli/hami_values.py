"""Reads the device settings in the values file of HAMi's Helm chart.

Most values of that chart shape objects of HAMi's own. `import hami` and `check` name them in one
line, and every setting of devices that is not carried over in a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpu_api.config import SchedulingConfig
from vgpu_api.config.hami import parsed, served_names
from vgpu_api.names import HAMI_WEBHOOK_LABEL, SCHEDULER_ALIASES

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
        *("disablecorelimit", "preConfiguredDeviceMemory", "runtimeClassName"),
        "enableNumaTopology",
    }
)
_FLAGS = ("migStrategy", "disablecorelimit")
"""Values that the chart passes to the device plugin whatever `device-config.content` says."""
_OF_NVIDIA = frozenset({"gpuCorePolicy", "libCudaLogLevel"})
_OF_THE_SCHEDULER = frozenset(
    {"defaultSchedulerPolicy", "forceOverwriteDefaultScheduler", "overwriteEnv"}
)
_EXAMPLE = "your-node-name"
"""The node in the chart's own example of a node configuration."""


def is_values(document: Any) -> bool:
    """Return True if the document is a values file of HAMi's chart."""
    return isinstance(document, dict) and "kind" not in document and not _MARKS.isdisjoint(document)


def read_values(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the equivalent configuration, and the lines about what is not in it.

    Raises:
        BadInput: A text in the values is not a YAML document.
    """
    reading = _Values()
    for key, value in document.items():
        reading.take(str(key), value)
    return reading.document(), reading.lines()


class _Values:
    """The values that have been read so far."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._nvidia: dict[str, Any] = {}
        self._content: dict[str, Any] = {}
        self._left: list[str] = []
        self._charts_own: list[str] = []

    def document(self) -> dict[str, Any]:
        """Return the configuration document."""
        nvidia = self._nvidia
        if self._content:  # the chart then writes this text in place of the values' settings
            nvidia = {key: nvidia[key] for key in _FLAGS if key in nvidia}
            nvidia |= self._content.get("nvidia") or {}
        return {**self._kept, **self._content, **({"nvidia": nvidia} if nvidia else {})}

    def lines(self) -> list[str]:
        """Return the lines about what is not carried over."""
        if not self._charts_own:
            return self._left
        keys = ", ".join(self._charts_own)
        return [*self._left, f"{keys}: of HAMi's own objects; docs/install.md has what is set here"]

    def take(self, key: str, value: Any) -> None:
        """Read one value of the file."""
        if key in _NAMES:
            self._nvidia[_NAMES[key]] = value
        elif key == "schedulerName":
            self._scheduler_name(value)
        elif key == "device-config" and isinstance(value, dict):
            self._device_config(value)
        elif key == "scheduler" and isinstance(value, dict):
            self._scheduler(value)
        elif key == "devicePlugin" and isinstance(value, dict):
            self._plugin(value)
        elif key == "devices" and isinstance(value, dict):
            self._devices(value)
        elif "Resource" in key:
            self._left += _unserved(key, value)
        else:
            self._charts_own.append(key)

    def _scheduler_name(self, value: Any) -> None:
        if isinstance(value, str) and value not in ("", *SCHEDULER_ALIASES):
            aliases = [*SchedulingConfig().scheduler_aliases, value]
            self._kept["scheduling"] = {"schedulerAliases": aliases}

    def _device_config(self, value: Mapping[str, Any]) -> None:
        content = value.get("content")
        if isinstance(content, str) and content.strip():
            found = parsed(content, "device-config.content")
            if isinstance(found, dict):
                self._content = found

    def _scheduler(self, values: Mapping[str, Any]) -> None:
        known = {key: value for key, value in values.items() if key in _OF_THE_SCHEDULER}
        if known:
            self._kept["scheduler"] = known
        self._charts_own += [f"scheduler.{key}" for key in values if key not in known]
        webhook = values.get("admissionWebhook")
        excluded = webhook.get("whitelistNamespaces") if isinstance(webhook, dict) else None
        for namespace in excluded if isinstance(excluded, list) else ():
            self._left.append(
                f"scheduler.admissionWebhook.whitelistNamespaces: {namespace}: label the "
                f"namespace {HAMI_WEBHOOK_LABEL}=ignore to leave its pods alone here too"
            )

    def _plugin(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if key in _OF_THE_PLUGIN:
                self._nvidia[key] = value
            elif key == "nodeConfiguration" and isinstance(value, dict):
                self._nodes(value)
            else:
                self._charts_own.append(f"devicePlugin.{key}")

    def _nodes(self, value: Mapping[str, Any]) -> None:
        path = "devicePlugin.nodeConfiguration"
        if value.get("externalConfigName"):
            self._left.append(
                f"{path}.externalConfigName: the settings of nodes are in the ConfigMap "
                f"{value['externalConfigName']}: import it too"
            )
        text = value.get("config")
        found = parsed(text, f"{path}.config") if isinstance(text, str) else None
        nodes = found.get("nodeconfig") if isinstance(found, dict) else None
        if not isinstance(nodes, list):
            return
        own = [n for n in nodes if not (isinstance(n, dict) and n.get("name") == _EXAMPLE)]
        if len(own) < len(nodes):
            self._left.append(f"{path}.config: {_EXAMPLE}: the chart's example names no node")
        if own:
            self._kept["nodeconfig"] = own

    def _devices(self, values: Mapping[str, Any]) -> None:
        for vendor, of in values.items():
            if not isinstance(of, dict):
                continue
            for key, value in of.items():
                if vendor == "nvidia" and key in _OF_NVIDIA:
                    self._nvidia[key] = value
                elif key == "customresources":
                    self._left += _unserved(f"devices.{vendor}.{key}", value)
                else:
                    self._charts_own.append(f"devices.{vendor}.{key}")


def _unserved(path: str, value: Any) -> Iterator[str]:
    """Yield a line for each resource name of another vendor's that is not served here."""
    for name in value if isinstance(value, list) else [value]:
        if name and name not in served_names():
            yield f"{path}: {name}: no pod is served under this name; see docs/vendors.md"
