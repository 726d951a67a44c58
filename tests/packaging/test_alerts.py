"""Every alert fires when it should and stays silent otherwise, as judged by promtool.

The rules come from the PrometheusRules that are installed. A case has series for which the alert
fires at a given time, and series for which it does not. Values are in promtool's notation, one a
minute: `0x10` repeats 0 ten more times, `0+60x10` grows by 60 a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from manual.words import ROOT, metrics
from promtool import promtool, rule_file, run_cases

pytestmark = pytest.mark.tools

COMPONENT = ROOT / "manifests" / "components" / "alerts"
MONITORING = ROOT / "manifests" / "components" / "monitoring"
PAGE = ROOT / "docs" / "operations" / "monitoring.md"
ANCHORS = set(re.findall(r"^### (\S+)$", PAGE.read_text().lower(), re.MULTILINE))
(SITE,) = re.findall(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
JOBS = ("vgpu-operator-metrics", "vgpu-webhook-metrics", "vgpu-nodeagent-metrics")

Series = Mapping[str, str]

DEVICE = '{node="n",device_uuid="u"}'
OTHER = '{node="n",device_uuid="v"}'
OF_A = '{namespace="a",node="n",device_uuid="u"}'
CONTAINER = '{node="n",device_uuid="u",namespace="a",claim="c",pod="p",container="m"}'
BUCKET = 'vgpu_extender_duration_seconds_bucket{verb="filter",le='
STARTS = "vgpu_agent_prestart_duration_seconds_bucket{le="


@dataclass(frozen=True, slots=True)
class Case:
    """Series for which an alert fires, and series for which it is silent, after some minutes."""

    fires: Series
    silent: Series
    minutes: int = 60


CASES: Mapping[str, Case] = {
    "VGPUNoLeader": Case(
        {'vgpu_leader{pod="a"}': "0x60", 'vgpu_leader{pod="b"}': "0x60"},
        {'vgpu_leader{pod="a"}': "1x60", 'vgpu_leader{pod="b"}': "0x60"},
    ),
    "VGPUTwoLeaders": Case(
        {'vgpu_leader{pod="a"}': "1x60", 'vgpu_leader{pod="b"}': "1x60"},
        {'vgpu_leader{pod="a"}': "1x60", 'vgpu_leader{pod="b"}': "0x60"},
    ),
    "VGPULeaderChanges": Case(
        {'vgpu_leader{pod="a"}': "0 1 " * 30},
        {'vgpu_leader{pod="a"}': "0x40 1x20", 'vgpu_leader{pod="b"}': "1x40 0x20"},
    ),
    "VGPUExtenderErrors": Case(
        {'vgpu_extender_errors_total{verb="bind",reason="NotLeading"}': "0+60x60"},
        {'vgpu_extender_errors_total{verb="bind",reason="NotLeading"}': "0x30 1x30"},
    ),
    "VGPUExtenderSlow": Case(
        {BUCKET + '"0.01"}': "0x60", BUCKET + '"5"}': "0+60x60", BUCKET + '"+Inf"}': "0+60x60"},
        {BUCKET + '"0.01"}': "0+60x60", BUCKET + '"5"}': "0+60x60", BUCKET + '"+Inf"}': "0+60x60"},
    ),
    "VGPUWebhookUnavailable": Case(
        {
            'vgpu_webhook_requests_total{code="200"}': "0+60x60",
            'vgpu_webhook_requests_total{code="503"}': "0+30x60",
        },
        {
            'vgpu_webhook_requests_total{code="200"}': "0+60x60",
            'vgpu_webhook_requests_total{code="403"}': "0+30x60",
        },
    ),
    "VGPUWebhookDown": Case(
        {'up{job="vgpu-webhook-metrics",pod="a"}': "0x60"},
        {
            'up{job="vgpu-webhook-metrics",pod="a"}': "0x60",
            'up{job="vgpu-webhook-metrics",pod="b"}': "1x60",
        },
    ),
    "VGPUWatchRestarts": Case(
        {'vgpu_watch_restarts_total{kind="Pod",reason="broken"}': "0+30x60"},
        {'vgpu_watch_restarts_total{kind="Pod",reason="gone"}': "0x30 1x30"},
    ),
    "VGPUEventsDropped": Case(
        {"vgpu_events_dropped_total": "0x55 3x5"}, {"vgpu_events_dropped_total": "3x60"}
    ),
    "VGPUCertificateExpires": Case(
        {'vgpu_certificate_expiry_timestamp_seconds{name="w"}': f"{5 * 86400}x120"},
        {'vgpu_certificate_expiry_timestamp_seconds{name="w"}': f"{9 * 86400}x120"},
        minutes=90,
    ),
    "VGPUClaimsRefused": Case(
        {'vgpu_claims_refused_seconds{namespace="a",reason="r"}': "0+60x60"},
        {'vgpu_claims_refused_seconds{namespace="a",reason="r"}': "600x60"},
    ),
    "VGPUNodeRejectsPods": Case(
        {'vgpu_node_rejected_controllers{node="n",pod="a"}': "0x50 2x10"},
        {'vgpu_node_rejected_controllers{node="n",pod="a"}': "0x50 2x3 _x10"},
    ),
    "VGPUPreemptionLoop": Case(
        {'vgpu_preemptions_total{result="served"}': "0+5x60"},
        {'vgpu_preemptions_total{result="served"}': "0+1x60"},
    ),
    "VGPUQuotaExhausted": Case(
        {'vgpu_claims_refused{namespace="a",reason="ResourceQuotaNotFit"}': "2x60"},
        {'vgpu_claims_refused{namespace="a",reason="CardInsufficientMemory"}': "2x60"},
    ),
    "VGPUFragmented": Case(
        {
            "vgpu_device_memory_allocatable_bytes" + DEVICE: "100x60",
            "vgpu_device_healthy" + DEVICE: "1x60",
            "vgpu_allocated_memory_bytes" + OF_A: "10x60",
            'vgpu_claims_refused{namespace="a",reason="X"}': "1x60",
        },
        {  # another device is completely free
            "vgpu_device_memory_allocatable_bytes" + DEVICE: "100x60",
            "vgpu_device_memory_allocatable_bytes" + OTHER: "100x60",
            "vgpu_device_healthy" + DEVICE: "1x60",
            "vgpu_device_healthy" + OTHER: "1x60",
            "vgpu_allocated_memory_bytes" + OF_A: "10x60",
            'vgpu_claims_refused{namespace="a",reason="X"}': "1x60",
        },
    ),
    "VGPUClaimViolates": Case(
        {"vgpu_claim_violations_total" + OF_A: "0x50 1x10"},
        {"vgpu_claim_violations_total" + OF_A: "0x10 1x50"},
    ),
    "VGPUClaimMemoryHigh": Case(
        {
            "vgpu_claim_memory_used_bytes" + CONTAINER: "97x60",
            "vgpu_claim_memory_limit_bytes" + CONTAINER: "100x60",
        },
        {
            "vgpu_claim_memory_used_bytes" + CONTAINER: "90x60",
            "vgpu_claim_memory_limit_bytes" + CONTAINER: "100x60",
        },
    ),
    "VGPUClaimOutOfMemory": Case(
        {"vgpu_claim_oom_rejections_total" + CONTAINER: "0x50 4x10"},
        {"vgpu_claim_oom_rejections_total" + CONTAINER: "4x60"},
    ),
    "VGPUAgentDown": Case(
        {'up{job="vgpu-nodeagent-metrics",instance="i"}': "0x60"},
        {'up{job="vgpu-nodeagent-metrics",instance="i"}': "0x57 1x3"},
    ),
    "VGPUDeviceUnhealthy": Case(
        {"vgpu_device_healthy" + DEVICE: "1x50 0x10"}, {"vgpu_device_healthy" + DEVICE: "1x60"}
    ),
    "VGPUDeviceIdle": Case(
        {
            "vgpu_device_memory_allocatable_bytes" + DEVICE: "100x200",
            "vgpu_allocated_memory_bytes" + OF_A: "80x200",
            "vgpu_device_utilization_ratio" + DEVICE: "0x200",
        },
        {
            "vgpu_device_memory_allocatable_bytes" + DEVICE: "100x200",
            "vgpu_allocated_memory_bytes" + OF_A: "80x200",
            "vgpu_device_utilization_ratio" + DEVICE: "0x100 0.9x5 0x95",
        },
        minutes=190,
    ),
    "VGPUUnclaimedProcesses": Case(
        {"vgpu_device_unclaimed_processes" + DEVICE: "1x60"},
        {"vgpu_device_unclaimed_processes" + DEVICE: "0x60"},
    ),
    "VGPUPrestartFailures": Case(
        {'vgpu_agent_prestart_failures_total{reason="ClaimMissing",instance="i"}': "0+60x60"},
        {'vgpu_agent_prestart_failures_total{reason="ClaimMissing",instance="i"}': "0x30 2x30"},
    ),
    "VGPUPrestartSlow": Case(
        {STARTS + '"1"}': "0x60", STARTS + '"30"}': "0+60x60", STARTS + '"+Inf"}': "0+60x60"},
        {STARTS + '"1"}': "0+60x60", STARTS + '"30"}': "0+60x60", STARTS + '"+Inf"}': "0+60x60"},
    ),
    "VGPUPluginLost": Case(
        {'vgpu_agent_plugin_connected{instance="i"}': "1x5 0x55"},
        {
            'vgpu_agent_plugin_connected{instance="i"}': "1x20 0 1x40",
            'vgpu_agent_plugin_losses_total{instance="i",state="Replaced"}': "0x20 1x41",
        },
    ),
    "VGPUReregistrations": Case(
        {'vgpu_agent_registrations_total{instance="i"}': "0+1x60"},
        {'vgpu_agent_registrations_total{instance="i"}': "1x40 2x20"},
    ),
}


def documents() -> dict[str, dict[str, Any]]:
    """Return the PrometheusRules by name."""
    files = sorted(COMPONENT.glob("*.yaml"))
    loaded = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return {d["metadata"]["name"]: d for d in loaded if d["kind"] == "PrometheusRule"}


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Return the rules that are an `alert` or a `record`, by name."""
    return {
        rule[kind]: rule
        for document in documents().values()
        for group in document["spec"]["groups"]
        for rule in group["rules"]
        if kind in rule
    }


ALERTS = rules("alert")


@pytest.fixture(scope="module")
def rule_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the rules in the form of Prometheus' own rule files."""
    folder = tmp_path_factory.mktemp("rules")
    return [rule_file(folder, document) for document in documents().values()]


def series(given: Series) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in given.items()]


def test_prometheus_accepts_the_rules(rule_files: list[str]):
    promtool("check", "rules", *rule_files)


def test_every_alert_has_a_case_and_every_case_an_alert():
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_alert_fires_when_it_should_and_then_alone(
    name: str, tmp_path: Path, rule_files: list[str]
):
    case = CASES[name]
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    tests = [
        {
            "name": word,
            "interval": "1m",
            "input_series": series(given),
            "promql_expr_test": [
                {"expr": firing, "eval_time": f"{case.minutes}m", "exp_samples": expected}
            ],
        }
        for word, given, expected in (
            ("fires", case.fires, [{"labels": "{}", "value": 1}]),
            ("silent", case.silent, []),
        )
    ]
    run_cases(tmp_path, rule_files, tests)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_says_what_it_means_and_where_to_read_what_to_do(name: str):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url.startswith(SITE)
    page = (ROOT / "docs" / url.removeprefix(SITE)).with_suffix(".md")
    assert page == PAGE
    assert anchor in ANCHORS
    assert anchor == name.lower()


def test_an_overlay_as_the_manual_has_it_names_another_address_in_every_alert(tmp_path: Path):
    text = PAGE.read_text().split("### Runbooks at another address", 1)[1]
    patch = yaml.safe_load(text.split("```yaml\n", 1)[1].split("```", 1)[0])
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(COMPONENT / "alerts.yaml", tmp_path)],
        **patch,
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = [o for o in yaml.safe_load_all(done.stdout) if o]
    urls = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in built["spec"]["groups"]
        for rule in group["rules"]
    }
    base = "https://wiki.example.org/vgpu/monitoring#"
    assert urls == {name: base + name.lower() for name in ALERTS}


def test_the_page_has_no_alert_that_is_not_there():
    assert set(re.findall(r"^### (VGPU\w+)$", PAGE.read_text(), re.MULTILINE)) == ALERTS.keys()


def test_rules_read_metrics_that_exist_and_records_that_are_made():
    known = metrics().keys() | {f"{name}_bucket" for name in metrics()} | {"up"}
    known |= rules("record").keys()
    for rule in (*ALERTS.values(), *rules("record").values()):
        named = set(re.findall(r"\bvgpu[_:][a-z0-9_:]+", rule["expr"]))
        assert named <= known, rule


def test_jobs_are_those_of_the_services_that_are_scraped():
    text = (MONITORING / "services.yaml").read_text()
    services = {document["metadata"]["name"] for document in yaml.safe_load_all(text)}
    assert services == set(JOBS)
    used = {job for rule in ALERTS.values() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert used <= services


# The rules about cost.

FLEET: Series = {
    "vgpu_device_memory_allocatable_bytes" + DEVICE: "100x60",
    "vgpu_device_memory_allocatable_bytes" + OTHER: "200x60",
    "vgpu_device_healthy" + DEVICE: "1x60",
    "vgpu_device_healthy" + OTHER: "1x60",
    "vgpu_allocated_memory_bytes" + OF_A: "25x60",
    'vgpu_allocated_memory_bytes{namespace="b",node="n",device_uuid="u"}': "75x60",
    'vgpu_allocated_memory_bytes{namespace="b",node="n",device_uuid="v"}': "50x60",
    "vgpu_claim_memory_used_bytes" + CONTAINER: "20x60",
}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("vgpu:namespace_given_devices:sum", {"a": 0.25, "b": 1.0}),
        ("vgpu:namespace_used_devices:sum", {"a": 0.2}),
        ("vgpu:namespace_idle_devices:sum", {"a": 0.05, "b": 1.0}),
    ],
)
def test_namespaces_are_given_parts_of_devices_that_sum_to_what_is_given_away(
    expr: str, expected: Mapping[str, float], tmp_path: Path, rule_files: list[str]
):
    test = {"expr": f"round({expr}, 0.0001)", "eval_time": "30m"}
    samples = [
        {"labels": f'{{namespace="{name}"}}', "value": value} for name, value in expected.items()
    ]
    case = {
        "interval": "1m",
        "input_series": series(FLEET),
        "promql_expr_test": [{**test, "exp_samples": samples}],
    }
    run_cases(tmp_path, rule_files, [case])


def test_given_shares_of_a_device_sum_to_its_allocated_part(tmp_path: Path, rule_files: list[str]):
    checks = {
        "sum(vgpu:namespace_given_devices:sum)": 1.25,
        "sum(vgpu:device_memory_allocated:ratio)": 1.25,
        "vgpu:fragmentation:ratio": 1.0,  # 150 are free, all on a device that is partly used
    }
    tests = [
        {
            "interval": "1m",
            "input_series": series(FLEET),
            "promql_expr_test": [
                {
                    "expr": f"sum({expr})",
                    "eval_time": "30m",
                    "exp_samples": [{"labels": "{}", "value": value}],
                }
            ],
        }
        for expr, value in checks.items()
    ]
    run_cases(tmp_path, rule_files, tests)


def test_the_scrape_config_of_the_manual_keeps_labels_and_makes_the_jobs_that_alerts_name() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    (config,) = yaml.safe_load(page.split("```yaml\n", 1)[1].split("```", 1)[0])["scrape_configs"]
    assert config["honor_labels"] is True
    (rename,) = (each for each in config["relabel_configs"] if each.get("target_label") == "job")
    jobs = {
        rename["replacement"].replace("$1", component)
        for component in ("operator", "webhook", "nodeagent")
    }
    alerts = (ROOT / "manifests/components/alerts/alerts.yaml").read_text()
    assert set(re.findall(r'job="([^"]+)"', alerts)) <= jobs
