"""kustomize builds every overlay, example and component offline, alone and together."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import read_cluster_config
from vgpu_operator.cli import uninstall

pytestmark = pytest.mark.tools

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMPONENTS = sorted(folder.name for folder in (MANIFESTS / "components").iterdir())


def built(folder: Path) -> list[Any]:
    """Return the objects of a kustomization, or raise kustomize's own error."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def default() -> list[Any]:
    """Return the objects of the default overlay."""
    return built(MANIFESTS / "overlays" / "default")


def with_components(folder: Path, *components: str) -> list[Any]:
    """Return the default overlay and these components on top of it."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / "default", folder)],
        "components": [os.path.relpath(MANIFESTS / "components" / c, folder) for c in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return built(folder)


@pytest.mark.parametrize("image", ["operator", "nodeagent"])
def test_every_image_is_labelled_with_the_version_of_the_package(image: str) -> None:
    text = (MANIFESTS.parent / image / "Dockerfile").read_text()
    project = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]
    assert f"org.opencontainers.image.version={project['version']} " in text


@pytest.mark.parametrize("overlay", sorted(f.name for f in (MANIFESTS / "overlays").iterdir()))
def test_no_image_can_come_from_a_registry_that_somebody_else_could_fill(overlay: str) -> None:
    """`vgpu/operator` would be an image of whoever has that name on Docker Hub."""
    text = yaml.safe_dump_all(built(MANIFESTS / "overlays" / overlay))
    images = {line.partition("image: ")[2] for line in text.splitlines() if "image: " in line}
    places = {image.rpartition("/")[0] for image in images}
    assert places <= {"registry.invalid/vgpu", "registry.k8s.io"}
    assert "registry.invalid/vgpu" in places


def test_every_object_is_labelled_with_the_version_of_the_package(default: list[Any]) -> None:
    project = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]
    labels = [each["metadata"]["labels"] for each in default]
    assert {each.get("app.kubernetes.io/version") for each in labels} == {project["version"]}


@pytest.mark.parametrize(
    "overlay",
    [
        "overlays/default",
        "overlays/demo",
        "overlays/gate",
        "overlays/claims",
        "examples/main-scheduler",
    ],
)
def test_an_overlay_builds(overlay: str) -> None:
    assert built(MANIFESTS / overlay)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_builds_and_changes_something(
    component: str, tmp_path: Path, default: list[Any]
) -> None:
    assert with_components(tmp_path, component) != default


def test_uninstalling_knows_every_kind_that_is_installed(tmp_path: Path) -> None:
    """Objects in our own namespaces are deleted with the namespaces."""
    objects = with_components(tmp_path, *COMPONENTS)
    ours = {found["metadata"]["name"] for found in objects if found["kind"] == "Namespace"}
    removed = {resource.kind for resource in uninstall.REMOVED}
    missing = {
        found["kind"]
        for found in objects
        if found["kind"] not in removed and found["metadata"].get("namespace") not in ours
    }
    assert missing == set()
    unmarked = [
        found["metadata"]["name"]
        for found in objects
        if (found["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of") != "vgpu"
        and found["metadata"].get("namespace") not in ours
    ]
    assert unmarked == []


def test_all_components_build_together(tmp_path: Path) -> None:
    assert with_components(tmp_path, *COMPONENTS)


def test_with_cert_manager_no_process_of_ours_reads_secrets_or_writes_webhooks(
    tmp_path: Path,
) -> None:
    objects = with_components(tmp_path, "cert-manager")
    rules = [
        rule
        for found in objects
        if found["kind"] in ("Role", "ClusterRole")
        and found["metadata"]["name"] in ("vgpu-operator", "vgpu-webhook")
        for rule in found["rules"]
    ]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert "pods" in resources
    assert not resources & {"secrets", "mutatingwebhookconfigurations"}
    assert not [found for found in objects if found["kind"] == "Secret"]


@pytest.mark.parametrize("components", [[], COMPONENTS], ids=["default", "all components"])
def test_no_agent_may_evict_a_pod_or_delete_one(components: list[str], tmp_path: Path) -> None:
    objects = with_components(tmp_path, *components)
    bound = {
        found["roleRef"]["name"]
        for found in objects
        if found["kind"] in ("ClusterRoleBinding", "RoleBinding")
        and any(s["name"] == "vgpu-nodeagent" for s in found["subjects"])
    }
    rules = [
        rule
        for found in objects
        if found["kind"] in ("ClusterRole", "Role") and found["metadata"]["name"] in bound
        for rule in found["rules"]
    ]
    assert "vgpu-nodeagent" in bound
    assert not [rule for rule in rules if "pods/eviction" in rule.get("resources", ())]
    assert not [
        rule for rule in rules if "pods" in rule.get("resources", ()) and "delete" in rule["verbs"]
    ]


def test_the_gate_overlay_runs_no_scheduler_and_says_so_to_every_process(
    default: list[Any],
) -> None:
    """Only the scheduler's Secret remains: the operator fills it together with the others."""
    objects = built(MANIFESTS / "overlays" / "gate")
    of_scheduler = [
        (found["kind"], found["metadata"]["name"])
        for found in objects
        if found["metadata"]["name"].startswith("vgpu-scheduler")
    ]
    assert of_scheduler == [("Secret", "vgpu-scheduler-tls")]
    added = {name_of(each) for each in objects} - {name_of(each) for each in default}
    assert {name for _, _, name in added} == {"vgpu-web-volumes"}
    configs = [
        found["data"]["config.yaml"]
        for found in objects
        if found["kind"] == "ConfigMap" and found["metadata"]["name"].startswith("vgpu-config")
    ]
    assert len(configs) == 2
    for config in configs:
        assert read_cluster_config(yaml.safe_load(config)).scheduling.mode == "Gate"


def test_behind_the_gate_the_page_reads_the_volumes_that_the_operator_reads(
    default: list[Any],
) -> None:
    def reads(objects: list[Any], role: str) -> set[tuple[str, str]]:
        return {
            (resource, verb)
            for found in objects
            if (found["kind"], found["metadata"]["name"]) == ("ClusterRole", role)
            for rule in found["rules"]
            if {"persistentvolumes", "csinodes"}.intersection(rule["resources"])
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    gate = built(MANIFESTS / "overlays" / "gate")
    of_page = reads(gate, "vgpu-web-volumes")
    assert of_page == reads(gate, "vgpu-operator")
    assert len(of_page) == 8
    assert reads(default, "vgpu-operator") == set()


def name_of(found: Any) -> tuple[str, str, str]:
    """Return kind, namespace and name, without the hash of a ConfigMap's content."""
    metadata = found["metadata"]
    name = metadata["name"]
    if found["kind"] == "ConfigMap":
        name = name.rpartition("-")[0]
    return found["kind"], metadata.get("namespace", ""), name


CRITICAL = {"system-node-critical", "system-cluster-critical"}


@pytest.mark.parametrize(
    "folder",
    [
        "overlays/default",
        "overlays/demo",
        "overlays/gate",
        "overlays/claims",
        "examples/main-scheduler",
        "uninstall",
    ],
)
def test_where_pods_of_a_critical_class_run_a_quota_names_that_class(folder: str) -> None:
    """GKE admits pods of a critical class only where a quota matches them."""
    objects = built(MANIFESTS / folder)
    wanted, named = set(), set()
    for found in objects:
        namespace = found["metadata"].get("namespace")
        if found["kind"] == "ResourceQuota":
            (term,) = found["spec"]["scopeSelector"]["matchExpressions"]
            assert (term["scopeName"], term["operator"]) == ("PriorityClass", "In")
            assert found["spec"]["hard"] == {"pods": "1G"}
            named |= {(namespace, value) for value in term["values"]}
        elif found["kind"] in ("Deployment", "DaemonSet"):
            pod = found["spec"]["template"]["spec"]
            wanted.add((namespace, pod.get("priorityClassName")))
    wanted = {each for each in wanted if each[1] in CRITICAL}
    assert wanted
    assert wanted <= named


def test_nobody_marks_pods_in_the_namespaces_that_the_webhooks_leave_out(
    default: list[Any],
) -> None:
    """A namespace that is excluded in only one place would be a way around admission."""
    left_out, guarded = set(), set()
    for found in default:
        name, kind = found["metadata"]["name"], found["kind"]
        if kind == "MutatingWebhookConfiguration":
            (hook,) = (h for h in found["webhooks"] if h["name"] == "mutate-pods.vgpu.dev")
            for term in hook["namespaceSelector"]["matchExpressions"]:
                assert term["operator"] == "NotIn"
                left_out |= {(term["key"], value) for value in term["values"]}
        elif kind == "ValidatingAdmissionPolicyBinding" and name.startswith("vgpu-marks-"):
            assert found["spec"]["policyName"] == "vgpu-marks"
            (term,) = found["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert term["operator"] == "In"
            guarded |= {(term["key"], value) for value in term["values"]}
    assert left_out == guarded
    assert ("hami.io/webhook", "ignore") in guarded
