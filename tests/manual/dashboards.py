"""Grafana's dashboards: fleet, node, namespace and claim, from the tables below.

`make reference` writes them into `manifests/components/dashboards`. A panel is a title, a unit and
queries; everything else (sizes, places, ids) follows. The output is plain dictionaries, because the
four dashboards use only a dozen of Grafana's fields, and a library that knows all of them is larger
than this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manual.words import ROOT

FOLDER = ROOT / "manifests" / "components" / "dashboards"
Kind = Literal["timeseries", "stat", "bargauge", "table"]
_SCHEMA = 39
"""The version is that of Grafana 11; later versions read it and convert it."""
_WIDTH = 24
LINES = 20
"""The most lines that a query draws for objects of which a fleet has thousands."""
_MANY = {"node", "device_uuid", "instance", "namespace", "claim", "pod", "container"}
"""Labels with a value for each object."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: The title above the panel.
        queries: PromQL by legend; a legend may name labels as `{{node}}`.
        unit: Grafana's word: `bytes`, `percentunit`, `s`, `short`, `ops`.
        kind: The type of the drawing.
        width: The width in columns, of 24.
        about: The meaning and the remedy, shown beside the title.
        most: The end of the scale, or None to follow the data.
        stacked: Whether series are drawn on top of each other.
        lowest: If there are too many series, draw the lowest instead of the highest.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    about: str = ""
    most: float | None = None
    stacked: bool = False
    lowest: bool = False

    @property
    def is_cut(self) -> bool:
        """True if a query may return a line for each object of the cluster."""
        named = {label for legend in self.queries for label in re.findall(r"{{(\w+)}}", legend)}
        return self.kind != "table" and bool(named & _MANY)

    @property
    def drawn(self) -> Mapping[str, str]:
        """The queries as Grafana runs them; one line for each of 5,000 devices is unreadable."""
        if not self.is_cut:
            return self.queries
        word = "bottomk" if self.lowest else "topk"
        return {legend: f"{word}({LINES}, {query})" for legend, query in self.queries.items()}

    @property
    def description(self) -> str:
        """The text that Grafana shows beside the title."""
        if not self.is_cut:
            return self.about
        end = "lowest" if self.lowest else "highest"
        return f"{self.about} At any time the {LINES} {end} values.".lstrip()


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard.

    Attributes:
        name: The name of its file, and part of its uid.
        title: Its title.
        about: Its description.
        rows: Panels by the title of their row.
        variables: Query variables by name; each takes the values of a label of a metric.
    """

    name: str
    title: str
    about: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Mapping[str, str]


_NODES = {"node": "label_values(vgpu_device_info, node)"}
_NAMESPACES = {"namespace": "label_values(vgpu_claims, namespace)"}
_OF_NODE = '{node=~"$node"}'
_OF_NAMESPACE = '{namespace=~"$namespace"}'
_OF_CLAIM = '{namespace=~"$namespace",claim=~"$claim"}'
_DEVICE = "{{node}} {{device_uuid}}"
_CONTAINER = "{{pod}}/{{container}} {{device_uuid}}"

FLEET = Dashboard(
    "fleet",
    "vgpu / fleet",
    "What the cluster's GPUs are given to, who waits, and whether the operator keeps up.",
    {
        "Now": (
            Panel("Devices", {"": "vgpu:fleet_devices:count"}, kind="stat", width=4),
            Panel(
                "Given away",
                {"": "sum(vgpu:namespace_given_devices:sum) / scalar(vgpu:fleet_devices:count)"},
                "percentunit",
                "stat",
                4,
                most=1,
            ),
            Panel(
                "Given and idle",
                {"": "sum(vgpu:namespace_idle_devices:sum)"},
                kind="stat",
                width=4,
                about="Devices that claims hold and their containers do not use.",
            ),
            Panel(
                "Fragmentation",
                {"": "vgpu:fragmentation:ratio"},
                "percentunit",
                "stat",
                4,
                about="Of the free memory, the part on devices that are partly used: no request "
                "for a whole device can have it.",
                most=1,
            ),
            Panel("Claims that wait", {"": "sum(vgpu_claims_refused)"}, kind="stat", width=4),
            Panel("Leaders", {"": "sum(vgpu_leader)"}, kind="stat", width=4),
        ),
        "Namespaces": (
            Panel(
                "Devices given, by namespace",
                {"{{namespace}}": "vgpu:namespace_given_devices:sum"},
                width=12,
                stacked=True,
            ),
            Panel(
                "Device-hours of the last day",
                {"{{namespace}}": "vgpu:namespace_given_devices:avg1d * 24"},
                "h",
                "bargauge",
                12,
            ),
            Panel(
                "Claims that wait, by reason",
                {"{{reason}}": "sum by (reason) (vgpu_claims_refused)"},
                width=12,
                stacked=True,
            ),
            Panel(
                "Longest wait",
                {"{{namespace}} {{reason}}": "vgpu_claims_refused_seconds"},
                "s",
                width=12,
            ),
            Panel(
                "Quotas used",
                {"{{namespace}} {{quota}} {{resource}}": "vgpu_quota_used / (vgpu_quota_hard > 0)"},
                "percentunit",
                width=12,
            ),
        ),
        "Devices": (
            Panel(
                "Memory given away, by device",
                {_DEVICE: "vgpu:device_memory_allocated:ratio"},
                "percentunit",
                width=12,
                most=1,
            ),
            Panel(
                "Compute in use, by device",
                {_DEVICE: "vgpu_device_utilization_ratio"},
                "percentunit",
                width=12,
                most=1,
            ),
        ),
        "Operator": (
            Panel(
                "Decisions",
                {
                    "{{result}} {{reason}}": "sum by (result, reason) "
                    "(rate(vgpu_scheduling_attempts_total[$__rate_interval]))"
                },
                "ops",
            ),
            Panel("Extender, 99 %", {"{{verb}}": "vgpu:extender_duration_seconds:p99"}, "s"),
            Panel("Webhooks, 99 %", {"{{webhook}}": "vgpu:webhook_duration_seconds:p99"}, "s"),
            Panel(
                "Reviews",
                {"{{code}}": "sum by (code) (rate(vgpu_webhook_requests_total[$__rate_interval]))"},
                "ops",
            ),
            Panel(
                "Watches replaced by a new list",
                {"{{kind}}": "sum by (kind) (increase(vgpu_watch_restarts_total[1h]))"},
            ),
            Panel(
                "Certificates end in",
                {"{{name}}": "min by (name) (vgpu_certificate_expiry_timestamp_seconds) - time()"},
                "s",
                "bargauge",
            ),
        ),
    },
    {},
)
NODE = Dashboard(
    "node",
    "vgpu / node",
    "The devices of nodes: what is given away, what is used, and how the agent is.",
    {
        "Devices": (
            Panel(
                "Memory: given away and used",
                {
                    f"given {_DEVICE}": "sum by (node, device_uuid) "
                    f"(vgpu_allocated_memory_bytes{_OF_NODE})",
                    f"used {_DEVICE}": f"vgpu_device_memory_used_bytes{_OF_NODE}",
                },
                "bytes",
                width=12,
            ),
            Panel(
                "Compute: given away and used",
                {
                    f"given {_DEVICE}": "sum by (node, device_uuid) "
                    f"(vgpu_allocated_cores_ratio{_OF_NODE})",
                    f"used {_DEVICE}": f"vgpu_device_utilization_ratio{_OF_NODE}",
                },
                "percentunit",
                width=12,
            ),
            Panel(
                "Healthy",
                {_DEVICE: f"vgpu_device_healthy{_OF_NODE}"},
                kind="stat",
                most=1,
                lowest=True,
            ),
            Panel(
                "Processes without a claim",
                {_DEVICE: f"vgpu_device_unclaimed_processes{_OF_NODE}"},
                about="Anything but 0 needs a look: they are not limited.",
            ),
            Panel(
                "Devices",
                {"": f"vgpu_device_info{_OF_NODE}"},
                kind="table",
                about="Model and driver.",
            ),
        ),
        "Agent": (
            Panel(
                "Slots of all nodes",
                {"{{state}}": "sum by (state) (vgpu_agent_slots)"},
                stacked=True,
            ),
            Panel("PreStartContainer, 99 %", {"": "vgpu:agent_prestart_seconds:p99"}, "s"),
            Panel(
                "Containers refused",
                {
                    "{{reason}}": "sum by (reason) "
                    "(increase(vgpu_agent_prestart_failures_total[$__rate_interval]))"
                },
            ),
        ),
    },
    _NODES,
)
NAMESPACE = Dashboard(
    "namespace",
    "vgpu / namespace",
    "What a namespace has of the GPUs, what it uses of that, and what it waits for.",
    {
        "Now": (
            Panel(
                "Devices given",
                {"{{namespace}}": f"vgpu:namespace_given_devices:sum{_OF_NAMESPACE}"},
                kind="stat",
                width=6,
            ),
            Panel(
                "Devices used",
                {"{{namespace}}": f"vgpu:namespace_used_devices:sum{_OF_NAMESPACE}"},
                kind="stat",
                width=6,
            ),
            Panel(
                "Claims by state",
                {"{{state}}": f"sum by (state) (vgpu_claims{_OF_NAMESPACE})"},
                kind="stat",
                width=6,
            ),
            Panel(
                "Claims that wait",
                {"{{reason}}": f"sum by (reason) (vgpu_claims_refused{_OF_NAMESPACE})"},
                kind="stat",
                width=6,
            ),
        ),
        "Use": (
            Panel(
                "Given, used and idle",
                {
                    "given {{namespace}}": f"vgpu:namespace_given_devices:sum{_OF_NAMESPACE}",
                    "used {{namespace}}": f"vgpu:namespace_used_devices:sum{_OF_NAMESPACE}",
                    "idle {{namespace}}": f"vgpu:namespace_idle_devices:sum{_OF_NAMESPACE}",
                },
                width=12,
                about="In devices: a quarter of a device's memory is 0.25.",
            ),
            Panel(
                "Memory in use, by claim",
                {"{{claim}}": f"sum by (claim) (vgpu_claim_memory_used_bytes{_OF_NAMESPACE})"},
                "bytes",
                width=12,
                stacked=True,
            ),
            Panel(
                "Compute in use, by claim",
                {"{{claim}}": f"sum by (claim) (vgpu_claim_cores_used_ratio{_OF_NAMESPACE})"},
                "percentunit",
                width=12,
                stacked=True,
            ),
            Panel(
                "Allocations that limits refused",
                {
                    "{{claim}}": "sum by (claim) "
                    f"(increase(vgpu_claim_oom_rejections_total{_OF_NAMESPACE}[1h]))"
                },
                width=12,
            ),
        ),
    },
    _NAMESPACES,
)
CLAIM = Dashboard(
    "claim",
    "vgpu / claim",
    "One claim: its limits, what its containers use, and how often a limit held them.",
    {
        "Memory": (
            Panel(
                "Limit and use",
                {
                    f"limit {_CONTAINER}": f"vgpu_claim_memory_limit_bytes{_OF_CLAIM}",
                    f"used {_CONTAINER}": f"vgpu_claim_memory_used_bytes{_OF_CLAIM}",
                    f"peak {_CONTAINER}": f"vgpu_claim_memory_peak_bytes{_OF_CLAIM}",
                },
                "bytes",
                width=12,
            ),
            Panel(
                "Allocations refused",
                {
                    _CONTAINER: "increase(vgpu_claim_oom_rejections_total"
                    f"{_OF_CLAIM}[$__rate_interval])"
                },
                width=12,
            ),
        ),
        "Compute": (
            Panel(
                "Limit and use",
                {
                    f"limit {_CONTAINER}": f"vgpu_claim_cores_limit_ratio{_OF_CLAIM}",
                    f"used {_CONTAINER}": f"vgpu_claim_cores_used_ratio{_OF_CLAIM}",
                },
                "percentunit",
                width=12,
            ),
            Panel(
                "Time that launches were held back",
                {
                    _CONTAINER: "rate(vgpu_claim_throttled_seconds_total"
                    f"{_OF_CLAIM}[$__rate_interval])"
                },
                "percentunit",
                width=12,
            ),
        ),
        "Violations": (
            Panel(
                "Times that the driver counted more than the limit",
                {
                    "{{reason}} {{device_uuid}}": "increase(vgpu_claim_violations_total"
                    f"{_OF_CLAIM}[1h])"
                },
                width=12,
            ),
            Panel(
                "Most that the driver counted in a minute",
                {"{{device_uuid}}": f"vgpu_claim_memory_driver_peak_bytes{_OF_CLAIM}"},
                "bytes",
                width=12,
            ),
        ),
    },
    {**_NAMESPACES, "claim": f"label_values(vgpu_claim_memory_used_bytes{_OF_NAMESPACE}, claim)"},
)
DASHBOARDS = (FLEET, NODE, NAMESPACE, CLAIM)


def pages() -> dict[Path, str]:
    """Return every dashboard's file with its content."""
    return {
        FOLDER / f"{each.name}.json": json.dumps(document(each), indent=1) + "\n"
        for each in DASHBOARDS
    }


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": f"vgpu-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["vgpu"],
        "schemaVersion": _SCHEMA,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), *_variables(dashboard)]},
        "links": [{"type": "dashboards", "title": "vgpu", "tags": ["vgpu"], "asDropdown": True}],
        "panels": list(_panels(dashboard)),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    for name, query in dashboard.variables.items():
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    y, number = 0, 0
    for title, panels in dashboard.rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            height = 4 if panel.kind == "stat" else 8
            if x + panel.width > _WIDTH:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            place = {"x": x, "y": y, "w": panel.width, "h": height}
            yield _panel(panel, number, place)
            x, tallest = x + panel.width, max(tallest, height)
        y += tallest


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.stacked:
        defaults["custom"] = {"fillOpacity": 20, "stacking": {"mode": "normal"}}
    is_table = panel.kind == "table"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": query,
                "legendFormat": legend or "__auto",
                "datasource": _SOURCE,
                **({"format": "table", "instant": True} if is_table else {}),
            }
            for at, (legend, query) in enumerate(panel.drawn.items())
        ],
    }
