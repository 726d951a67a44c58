"""The overlay beside-hami leaves alone the nodes and namespaces that were not handed over."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import ClusterConfig, read_cluster_config
from vgpu_operator.cli.hami_installation import (
    HamiInstallation,
    missing_beside,
    only_on,
    runs_beside,
)

MANIFESTS = Path(__file__).parents[2] / "manifests"
ADMISSION = "vgpu.dev/admission"
BESIDE = {"key": ADMISSION, "operator": "In", "values": ["on"]}
HAMI = HamiInstallation((), (), (), ())


def built(overlay: str) -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", str(MANIFESTS / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return built("beside-hami")


def of_kind(objects: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (obj for obj in objects if obj["kind"] == kind)


def scheduler_configs(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        yaml.safe_load(obj["data"]["scheduler.yaml"])
        for obj in of_kind(objects, "ConfigMap")
        if "scheduler.yaml" in obj.get("data", {})
    ]


def test_agents_run_only_where_the_node_was_handed_over(objects: list[dict[str, Any]]):
    (agents,) = of_kind(objects, "DaemonSet")
    assert runs_beside(agents)
    (everywhere,) = of_kind(built("default"), "DaemonSet")
    assert not runs_beside(everywhere)


def test_each_webhook_and_policy_about_pods_reads_only_namespaces_with_the_label(
    objects: list[dict[str, Any]],
):
    selectors = [
        (hook["name"], (hook.get("namespaceSelector") or {}).get("matchExpressions"))
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for configuration in of_kind(objects, kind)
        for hook in configuration["webhooks"]
        if any(r.startswith("pods") for rule in hook["rules"] for r in rule["resources"])
    ]
    selectors += [
        (policy["metadata"]["name"], selector["matchExpressions"])
        for policy in of_kind(objects, "ValidatingAdmissionPolicy")
        if (selector := policy["spec"]["matchConstraints"].get("namespaceSelector"))
    ]
    assert {"mutate-pods.vgpu.dev", "warn-pods.vgpu.dev", "vgpu-admitted"} <= {
        name for name, _ in selectors
    }
    assert [name for name, found in selectors if not only_on(ADMISSION, found)] == []


def test_nobody_may_mark_a_pod_as_admitted_in_another_namespace(objects: list[dict[str, Any]]):
    selectors = [
        binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        for binding in of_kind(objects, "ValidatingAdmissionPolicyBinding")
        if binding["spec"]["policyName"] == "vgpu-marks"
        and "namespaceSelector" in binding["spec"].get("matchResources", {})
    ]
    assert [{**BESIDE, "operator": "NotIn"}] in selectors


def test_our_scheduler_leaves_hamis_name_to_hami_and_is_as_usual_otherwise(
    objects: list[dict[str, Any]],
):
    (beside,), (usual,) = scheduler_configs(objects), scheduler_configs(built("default"))
    assert beside["profiles"] == [{"schedulerName": "vgpu-scheduler"}]
    assert {**usual, "profiles": beside["profiles"]} == beside


def test_its_configuration_lacks_nothing_and_the_usual_one_does(objects: list[dict[str, Any]]):
    configs = [
        read_cluster_config(yaml.safe_load(obj["data"]["config.yaml"]))
        for obj in of_kind(objects, "ConfigMap")
        if "config.yaml" in obj.get("data", {})
    ]
    assert len(configs) == 2
    for config in configs:
        assert list(missing_beside(HAMI, ClusterConfig(), config)) == []
    lacking = list(missing_beside(HAMI, ClusterConfig(), ClusterConfig()))
    assert [line.split(" must ")[0].removeprefix("our configuration: ") for line in lacking] == [
        "scheduling.schedulerAliases",
        "views.hamiNodeRegister",
        "vendors.leaveAlone",
    ]
