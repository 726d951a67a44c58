"""A real Prometheus, configured as the Prometheus operator would, scrapes running programs.

The labels that the operator adds to each target (job, namespace, service, pod, container, endpoint,
instance) follow its documentation of ServiceMonitor; whether the labels of a series are kept is
read from our manifests. promtool, which only knows rules, cannot see that a scrape overwrites a
label.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.resources import RESOURCE_QUOTAS, SERVICE_ACCOUNTS, Resource
from vgpu_local.accounts import token
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.ports import free_ports
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod, claim, claim_name, create, reason, running, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.tools]

COMPONENTS = ROOT / "manifests" / "components"
RULES = ("alerts/alerts.yaml", "alerts/recording.yaml", "hami-records/records.yaml")
RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
(PORT,) = free_ports(1)
THIRD = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
WHOLE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16000}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(config={"web": {"prometheus": f"http://127.0.0.1:{PORT}"}})
    with whole_cluster([t4_node("one")], options) as cluster:
        yield cluster


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((COMPONENTS / name).read_text()))


def scrape_config(monitor: Mapping[str, Any], ports: list[int]) -> dict[str, Any]:
    """Return the scrape configuration that the Prometheus operator makes of a ServiceMonitor."""
    (endpoint,) = monitor["spec"]["endpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = (
        each["metadata"]
        for each in documents("monitoring/services.yaml")
        if wanted <= each["metadata"]["labels"].items()
    )
    component = service["labels"]["app.kubernetes.io/component"]
    return {
        "job_name": f"serviceMonitor/{service['namespace']}/{monitor['metadata']['name']}/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {
                    "job": service["name"],
                    "namespace": service["namespace"],
                    "service": service["name"],
                    "pod": f"vgpu-{component}-{at}",
                    "container": component,
                    "endpoint": endpoint["port"],
                },
            }
            for at, port in enumerate(ports)
        ],
    }


class Prometheus:
    """A running server that is queried over its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            targets = self.get("targets")["activeTargets"]
            return bool(targets) and all(target["health"] == "up" for target in targets)
        return False


@contextlib.contextmanager
def prometheus(cluster: LocalCluster, folder: Path) -> Iterator[Prometheus]:
    ports = cluster.metrics_ports()
    rules = []
    for name in RULES:
        (rule,) = documents(name)
        path = folder / f"{rule['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(rule["spec"]))
        rules.append(str(path))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": rules,
        "scrape_configs": [
            scrape_config(monitor, ports[monitor["metadata"]["name"].removeprefix("vgpu-")])
            for monitor in documents("monitoring/monitors.yaml")
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            found = Prometheus(PORT)
            until(cluster, found.is_ready)
            yield found
        finally:
            server.terminate()
            server.wait(timeout=30)


def labels(series: list[dict[str, Any]], *names: str) -> set[tuple[str, ...]]:
    return {tuple(each["metric"].get(name, "") for name in names) for each in series}


def amounts(server: Prometheus, metric: str) -> dict[str, float]:
    found = server.series(f'{metric}{{namespace="default",quota="full"}}')
    return {each["metric"]["resource"]: float(each["value"][1]) for each in found}


def test_scraped_series_keep_the_tenants_labels_and_every_rule_evaluates_on_them(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, a_pod("uses", a_container(limits=THIRD)))
    running(cluster, "uses")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "5000"}},
    }
    cluster.run(cluster.api.create(RESOURCE_QUOTAS, quota))
    waits = create(cluster, a_pod("waits", a_container(limits=WHOLE)))
    claim(cluster, claim_name(waits), lambda status: reason(status) == "ResourceQuotaNotFit")
    with prometheus(cluster, tmp_path) as server:
        used = "vgpu_claim_memory_limit_bytes"
        until(cluster, lambda: bool(server.series(used)))
        assert labels(server.series(used), "namespace", "pod", "container") == {
            ("default", "uses", "main")
        }
        assert labels(server.series("vgpu_build_info"), "service", "version") == {
            (f"vgpu-{program}-metrics", version("vgpu"))
            for program in ("operator", "webhook", "nodeagent")
        }
        # A series without such a label gets the label of the scraped pod.
        assert labels(server.series("vgpu_device_healthy"), "namespace", "pod") == {
            ("vgpu-node", "vgpu-nodeagent-0")
        }
        for name in ("namespace", "pod", "container"):
            hidden = server.series(f'{{__name__=~".+",exported_{name}!=""}}')
            assert hidden == [], f"a scrape overwrote the label {name}"
        until(cluster, lambda: bool(server.series('vgpu_claims_refused{namespace="default"}')))
        assert amounts(server, "vgpu_quota_used") == {"limits.nvidia.com/gpumem": 4096}
        assert amounts(server, "vgpu_quota_hard") == {"limits.nvidia.com/gpumem": 5000}

        until(cluster, lambda: all(rule["health"] != "unknown" for rule in server.rules()))
        failed = [(rule["name"], rule.get("lastError")) for rule in server.rules()]
        assert [each for each in failed if each[1]] == []
        given = 'vgpu:namespace_given_devices:sum{namespace="default"}'
        until(cluster, lambda: bool(server.series(given)))
        ((_, value),) = [each["value"] for each in server.series(given)]
        assert float(value) == pytest.approx(4096 / 16384, rel=0.05)
        recorded = {rule["name"] for rule in server.rules() if rule["type"] == "recording"}
        over_minutes = {
            "vgpu:webhook_unavailable:ratio_rate5m",
            "vgpu:webhook_duration_seconds:p99",
            "vgpu:extender_duration_seconds:p99",
            "vgpu:agent_prestart_seconds:p99",
        }
        until(
            cluster,
            lambda: {name for name in recorded - over_minutes if not server.series(name)} == set(),
        )

        def waits_for_quota() -> bool:
            found = [rule for rule in server.rules() if rule["name"] == "VGPUQuotaExhausted"]
            alerts = [alert["labels"] for rule in found for alert in rule["alerts"]]
            return {alert["namespace"] for alert in alerts} == {"default"}

        until(cluster, waits_for_quota)
    cluster.run(cluster.api.delete(RESOURCE_QUOTAS, "full", namespace="default"))


def a_viewer(cluster: LocalCluster) -> str:
    """Make an account that may see all that the page shows; return its token."""
    rule = {
        "apiGroups": ["", "vgpu.dev"],
        "resources": ["gpudevices", "nodes", "vgpuclaims"],
        "verbs": ["list"],
    }
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "viewer"}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "viewer"}
    for resource, rest in (
        (SERVICE_ACCOUNTS, {}),
        (CLUSTER_ROLES, {"rules": [rule]}),
        (CLUSTER_ROLE_BINDINGS, {"roleRef": role, "subjects": [subject]}),
    ):
        metadata = {"name": "viewer"} | ({"namespace": "default"} if resource.namespaced else {})
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        cluster.run(cluster.api.create(resource, {**kind, "metadata": metadata, **rest}))
    return cluster.run(token(cluster.api, ("default", "viewer")))


def test_the_page_shows_the_use_that_prometheus_has_and_goes_on_without_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    create(
        cluster, a_pod("shown", a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9}))
    )
    running(cluster, "shown")
    page, admin = cluster.start_page(), a_viewer(cluster)

    def get(path: str) -> Any:
        status, found = page.get(f"/api/v1{path}", admin)
        assert status == 200, found
        return found

    def used() -> Any:
        (claim,) = [each for each in get("/claims")["items"] if each["pod"] == "shown"]
        return claim["used"]

    assert used() is None
    with prometheus(cluster, tmp_path) as server:
        until(cluster, lambda: used() is not None)
        ((_, bytes_used),) = [
            each["value"] for each in server.series("vgpu_device_memory_used_bytes")
        ]
        devices = get("/fleet")["devices"]["used"]
        assert (devices["known"], devices["of"]) == (1, 1)
        assert devices["memoryMiB"] == -(-int(bytes_used) // 2**20)
        history = get("/history/fleet")
        assert (history["problem"], len(history["memoryMiB"])) == ("", 97)
        assert get("/idle")["known"]
    until(cluster, lambda: "Prometheus does not answer" in get("/fleet")["usage"]["problem"])
    assert used() is None
