"""Every query of every dashboard returns data from the metrics that the programs expose.

promtool evaluates the queries on series made from the metrics' own definitions. A panel that uses a
label the metric does not have, or a metric that no longer exists, has no data here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from manual.dashboards import DASHBOARDS, FOLDER, Dashboard, document
from manual.words import ROOT, Series, metrics
from promtool import rule_file, run_cases

pytestmark = pytest.mark.tools

RULES = ROOT / "manifests" / "components" / "alerts" / "recording.yaml"
LABELS = {"le": "+Inf", "code": "200", "result": "refused"}
MINUTES = 90
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[a-z0-9-]+$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["row", "timeseries", "stat", "bargauge", "table"]},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "additionalProperties": {"type": "integer", "minimum": 0},
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "object", "required": ["refId", "expr", "datasource"]},
                    },
                },
            },
        },
    },
}


def queries(dashboard: Dashboard) -> Iterator[str]:
    """Yield every query, with values in place of Grafana's variables."""
    for panels in dashboard.rows.values():
        for panel in panels:
            for query in panel.drawn.values():
                text = query.replace("$__rate_interval", "5m")
                yield re.sub(r"\$(node|namespace|claim)\b", ".*", text)


def samples(name: str, series: Series) -> Iterator[dict[str, str]]:
    """Yield the samples of a metric as two scrapes of a program would show them."""
    labels = {label: LABELS.get(label, label[:1]) for label in series.labels}
    values = f"0+1x{MINUTES}" if series.kind in ("counter", "histogram") else f"1x{MINUTES}"
    if series.kind == "histogram":
        name, labels = f"{name}_bucket", {**labels, "le": "+Inf"}
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    yield {"series": f"{name}{{{shown}}}", "values": values}
    if series.kind == "histogram":
        yield {"series": f"{name}{{{shown}}}".replace("+Inf", "0.1"), "values": values}


def every_series() -> list[dict[str, str]]:
    found = [each for name, series in metrics().items() for each in samples(name, series)]
    # A second device that is free.
    free = '{node="n",device_uuid="w"}'
    for name in ("vgpu_device_memory_allocatable_bytes", "vgpu_device_healthy"):
        found.append({"series": name + free, "values": f"1x{MINUTES}"})
    return found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_every_query_returns_data(dashboard: Dashboard, tmp_path: Path):
    rules = rule_file(tmp_path, yaml.safe_load(RULES.read_text()))
    case = {
        "interval": "1m",
        "input_series": every_series(),
        "promql_expr_test": [
            {
                "expr": f"clamp_max(count({query}), 1)",
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for query in queries(dashboard)
        ],
    }
    run_cases(tmp_path, [rules], [case])


def of_a_fleet(objects: int) -> list[dict[str, str]]:
    """Return every series once for each node, device, namespace, claim and pod of a fleet."""
    found = []
    for each in every_series():
        name, labels = each["series"].rstrip("}").split("{")
        if name.startswith("vgpu_agent_"):
            labels += ',instance="i"' if labels else 'instance="i"'
        for number in range(objects):
            own = re.sub(
                r'\b(node|device_uuid|namespace|claim|pod|container|instance)="(\w+)"',
                rf'\1="\g<2>{number}"',
                labels,
            )
            found.append({"series": f"{name}{{{own}}}", "values": each["values"]})
    return list({each["series"]: each for each in found}.values())


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_no_panel_draws_a_line_for_each_object_of_a_fleet(dashboard: Dashboard, tmp_path: Path):
    rules = rule_file(tmp_path, yaml.safe_load(RULES.read_text()))
    tables = {
        query
        for panels in dashboard.rows.values()
        for panel in panels
        if panel.kind == "table"
        for query in panel.queries.values()
    }
    case = {
        "interval": "1m",
        "input_series": of_a_fleet(30),
        "promql_expr_test": [
            {
                "expr": f"count({query}) > bool 20",
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": 0}],
            }
            for query in queries(dashboard)
            if not any(query.startswith(table.split("{")[0]) for table in tables)
        ],
    }
    run_cases(tmp_path, [rules], [case])


def test_of_too_many_devices_those_that_are_not_healthy_are_drawn():
    (healthy,) = (p for d in DASHBOARDS for ps in d.rows.values() for p in ps if p.lowest)
    assert healthy.title == "Healthy"
    assert all(query.startswith("bottomk(20, ") for query in healthy.drawn.values())


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_a_dashboard_is_valid_and_no_panel_covers_another(dashboard: Dashboard):
    shown = document(dashboard)
    jsonschema.validate(shown, SCHEMA)
    cells: set[tuple[int, int]] = set()
    for panel in shown["panels"]:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not mine & cells, panel["title"]
        cells |= mine
    ids = [panel["id"] for panel in shown["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_variables_are_those_that_queries_use(dashboard: Dashboard):
    used = {
        name
        for panels in dashboard.rows.values()
        for panel in panels
        for query in panel.queries.values()
        for name in re.findall(r"\$(\w+)", query)
    }
    assert used - {"__rate_interval"} == dashboard.variables.keys()


def test_a_query_on_a_label_that_is_not_there_has_no_data(tmp_path: Path):
    """This shows that the check of the queries can fail."""
    odd = DASHBOARDS[0].rows["Now"][0]
    wrong = Dashboard("x", "x", "x", {"r": [type(odd)("t", {"": 'vgpu_leader{node="n"}'})]}, {})
    with pytest.raises(AssertionError, match="exp"):
        test_every_query_returns_data(wrong, tmp_path)


def test_the_component_has_every_file_and_no_other():
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    names = {path.name for path in FOLDER.glob("*.json")}
    assert set(listed[0]["files"]) == names == {f"{each.name}.json" for each in DASHBOARDS}
    for name in names:
        json.loads((FOLDER / name).read_text())
