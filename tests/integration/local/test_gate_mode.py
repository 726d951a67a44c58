"""Gate mode: GPU pods run without a scheduler extender, even if programs are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_objects import LOCAL, a_local_class, a_volume, a_volume_claim, using
from vgpu_api.names import PART_OF_LABEL, SCHEDULING_GATE
from vgpu_api.resources import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Resource,
)
from vgpu_client.errors import NotFound
from vgpu_local import steps
from vgpu_local.accounts import SERVICE_ACCOUNTS, token
from vgpu_local.apiserver import Fault
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.command import in_files
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.page import Page
from vgpu_local.steps import a_container, a_pod, delete_pod, running

pytestmark = pytest.mark.timeout(240)

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
CONFIG = {"scheduling": {"mode": "Gate"}}
LIFTS = Fault(action="status", verb="patch", resource="pods", code=503, times=None)
"""The request that lifts a gate fails."""
MADE_HERE = "made-by-the-test"
MADE = (
    *(PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, CONFIG_MAPS),
    *(CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS),
)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(config=CONFIG, lease_s=4)
    with whole_cluster([t4_node("one"), t4_node("two")], options) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, from which everything that a test has made goes again."""
    yield module_cluster
    module_cluster.server.faults.clear()
    steps.empty(module_cluster)
    steps.forget_events(module_cluster)
    for resource in MADE:
        steps.until(module_cluster, partial(none_is_left, module_cluster, resource))


def none_is_left(cluster: LocalCluster, resource: Resource) -> bool:
    """Delete what `make` has made of a kind; return True once none is left."""
    space, label = "default" if resource.namespaced else None, f"{MADE_HERE}=true"
    found = cluster.run(cluster.api.list(resource, namespace=space, label_selector=label)).items
    for each in found:
        with suppress(NotFound):
            cluster.run(cluster.api.delete(resource, each["metadata"]["name"], namespace=space))
    return not found


def create(cluster: LocalCluster, name: str, **spec: Any) -> None:
    steps.create(cluster, a_pod(name, a_container(limits=HALF), **spec))


def make(cluster: LocalCluster, resource: Resource, obj: dict[str, Any]) -> None:
    """Create an object of a kind in MADE."""
    labels = {**obj["metadata"].get("labels", {}), MADE_HERE: "true"}
    metadata = {**obj["metadata"], "labels": labels}
    cluster.run(cluster.api.create(resource, {**obj, "metadata": metadata}))


@pytest.fixture
def page(cluster: LocalCluster) -> Iterator[Page]:
    """The web page."""
    page = cluster.start_page()
    yield page
    page.daemon.stop()


def claim_of(cluster: LocalCluster, name: str) -> dict[str, Any] | None:
    """Return the claim that is allocated for a pod."""
    for claim in cluster.server.objects("vgpuclaims.vgpu.dev", "default"):
        status = claim.get("status", {})
        if status.get("allocation") and status.get("reservedFor", {}).get("podName") == name:
            return claim
    return None


def until(holds: Callable[[], object], limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.1)


def is_gated(cluster: LocalCluster, name: str) -> bool:
    pod = cluster.wait_for(PODS, name, lambda _: True)
    return {"name": SCHEDULING_GATE} in pod["spec"].get("schedulingGates", [])


def test_pods_run_without_a_scheduler_of_ours(cluster: LocalCluster) -> None:
    for number in range(4):
        create(cluster, f"pod-{number}")
    for number in range(4):
        pod = running(cluster, f"pod-{number}")
        claim = claim_of(cluster, f"pod-{number}")
        assert claim is not None
        assert claim["status"]["allocation"]["nodeName"] == pod["spec"]["nodeName"]
        assert pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"
        assert pod["metadata"]["annotations"]["hami.io/vgpu-node"] == pod["spec"]["nodeName"]
    create(cluster, "fifth")  # four halves of two devices are allocated
    until(lambda: events(cluster, "fifth"))
    assert is_gated(cluster, "fifth")
    delete_pod(cluster, "pod-0")
    running(cluster, "fifth")


def events(cluster: LocalCluster, name: str) -> list[str]:
    return [
        event["reason"]
        for event in cluster.server.objects("events", "default")
        if event["involvedObject"]["name"] == name and event["type"] == "Warning"
    ]


def test_a_node_without_cpu_is_passed_over(cluster: LocalCluster) -> None:
    big = a_container(command=["sleep", "infinity"])
    node = cluster.server.objects("nodes")[0]
    cpu = node["status"]["allocatable"]["cpu"]
    big["resources"] = {"requests": {"cpu": cpu}}
    selector = {"kubernetes.io/hostname": node["metadata"]["name"]}
    steps.create(cluster, a_pod("big", big, nodeSelector=selector))
    running(cluster, "big")
    for number in range(2):
        small = a_container(limits=HALF)
        small["resources"]["requests"] = {"cpu": "100m"}
        steps.create(cluster, a_pod(f"pod-{number}", small))
    found = {running(cluster, f"pod-{number}")["spec"]["nodeName"] for number in range(2)}
    assert node["metadata"]["name"] not in found


@pytest.mark.parametrize("after_patch", [False, True])
def test_an_operator_that_is_killed_between_the_two_steps_loses_nothing(
    cluster: LocalCluster, *, after_patch: bool
) -> None:
    """If it is killed before the patch, its successor lifts the gate.

    After it, the pod needs no operator.
    """
    if not after_patch:
        cluster.server.faults.add(LIFTS)
    create(cluster, "patient")
    until(lambda: claim_of(cluster, "patient") is not None)
    if after_patch:
        until(lambda: not is_gated(cluster, "patient"))
    claim = claim_of(cluster, "patient")
    assert claim is not None
    cluster.operator.kill()
    cluster.server.faults.clear()
    if after_patch:
        running(cluster, "patient")
    cluster.operator.start()
    cluster.wait_ready()
    running(cluster, "patient")
    again = claim_of(cluster, "patient")
    assert again is not None
    assert again["status"]["allocation"]["id"] == claim["status"]["allocation"]["id"]


def test_a_pod_goes_to_the_node_of_its_volume_and_waits_for_a_claim_that_is_missing(
    cluster: LocalCluster,
) -> None:
    node = max(found["metadata"]["name"] for found in cluster.server.objects("nodes"))
    make(cluster, STORAGE_CLASSES, a_local_class())
    make(cluster, PERSISTENT_VOLUMES, a_volume("v", class_name=LOCAL, nodes=[node]))
    create(cluster, "patient", **using("data"))
    until(lambda: "VolumeClaimNotReady" in events(cluster, "patient"))
    assert is_gated(cluster, "patient")
    make(cluster, PERSISTENT_VOLUME_CLAIMS, a_volume_claim(class_name=LOCAL))
    assert running(cluster, "patient")["spec"]["nodeName"] == node


def test_explain_judges_a_pods_volumes_as_its_condition_does(cluster: LocalCluster) -> None:
    """First the pod has no volume claim, then one whose volume is on a node that does not exist."""
    install_config(cluster)
    make(cluster, STORAGE_CLASSES, a_local_class())
    create(cluster, "patient", **using("data"))
    for reason in ("VolumeClaimNotReady", "NodeVolumeMismatch"):
        until(lambda reason=reason: refused(cluster)[0] == reason)
        said = explained(cluster)
        assert (said["reason"], said["now"]) == refused(cluster)
        assert said["not_judged"] == ""
        if reason == "VolumeClaimNotReady":
            make(cluster, PERSISTENT_VOLUMES, a_volume("v", class_name=LOCAL, nodes=["away"]))
            make(cluster, PERSISTENT_VOLUME_CLAIMS, a_volume_claim(class_name=LOCAL))
        else:
            assert {node["verdict"] for node in said["nodes"]} == {"1/1 NodeVolumeMismatch"}


def test_without_the_right_to_read_volumes_explain_leaves_them_out_in_one_line(
    cluster: LocalCluster,
) -> None:
    install_config(cluster)
    make(cluster, STORAGE_CLASSES, a_local_class())
    create(cluster, "patient", **using("data"))
    until(lambda: refused(cluster)[0] == "VolumeClaimNotReady")
    reader = forbidden(cluster, "persistentvolumes")
    said = explained(cluster, reader)
    assert said["not_judged"].startswith("volumes are not judged: ")
    assert (said["reason"], said["message"]) == refused(cluster)
    assert {node["verdict"] for node in said["nodes"]} == {"would serve"}
    shown = in_files(reader, "explain", "patient", spawn=cluster.spawn)
    assert f"\n{said['not_judged']}\n" in shown.stdout


def test_without_the_right_to_the_configuration_explain_takes_the_gate_as_a_sign_of_the_mode(
    cluster: LocalCluster,
) -> None:
    install_config(cluster)
    create(cluster, "patient", **using("data"))
    until(lambda: refused(cluster)[0] == "VolumeClaimNotReady")
    said = explained(cluster, forbidden(cluster, "configmaps"))
    assert (said["reason"], said["now"]) == refused(cluster)
    assert said["not_judged"].startswith(
        "the operator's configuration is not known; the defaults are assumed, with scheduling.mode"
        " Gate: "
    )


def test_simulate_refuses_a_pod_in_the_words_that_its_condition_gets(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """First the pod has no volume claim, then one whose volume is on a node that does not exist.

    Another pod asks for too much CPU.
    """
    install_config(cluster)
    make(cluster, STORAGE_CLASSES, a_local_class())
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(a_pod("patient", a_container(limits=HALF), **using("data"))))
    before = simulated(cluster, file)
    create(cluster, "patient", **using("data"))
    until(lambda: refused(cluster)[0] == "VolumeClaimNotReady")
    assert before["refused"] == refused(cluster)[1]
    make(cluster, PERSISTENT_VOLUMES, a_volume("v", class_name=LOCAL, nodes=["away"]))
    make(cluster, PERSISTENT_VOLUME_CLAIMS, a_volume_claim(class_name=LOCAL))
    until(lambda: refused(cluster)[0] == "NodeVolumeMismatch")
    now = simulated(cluster, file)
    assert now["refused"] == refused(cluster)[1]
    assert {node["reasons"] for node in now["nodes"].values()} == {"1/1 NodeVolumeMismatch"}
    assert "notJudged" not in now
    delete_pod(cluster, "patient")
    big = a_pod("patient", a_container(limits={**HALF, "cpu": "4000"}))
    file.write_text(json.dumps(big))
    before = simulated(cluster, file)
    steps.create(cluster, big)
    until(lambda: refused(cluster)[0] == "NodeInsufficientResources")
    assert before["refused"] == refused(cluster)[1]


def test_simulate_reads_what_it_may_and_names_what_it_could_not_read(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    install_config(cluster)
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(a_pod("patient", a_container(limits=HALF), **using("data"))))
    said = simulated(cluster, file, forbidden(cluster, "csinodes.storage.k8s.io"))
    assert said["notJudged"].startswith("volumes are not judged: ")
    assert said["node"] in ("one", "two")
    file.write_text(json.dumps(a_pod("patient", a_container(limits=HALF))))
    reader = forbidden(cluster, "pods")
    said = simulated(cluster, file, reader)
    assert said["notJudged"].startswith("resources that other pods use, and rules about pods, are")
    assert said["node"] is not None
    done = in_files(reader, "simulate", "-f", str(file), "--admit", spawn=cluster.spawn)
    assert done.stdout.splitlines()[1] == said["notJudged"]
    said = simulated(cluster, file, forbidden(cluster, "configmaps"))
    assert said["notJudged"].startswith(
        "the operator's configuration is not known; the defaults are assumed, with scheduling.mode"
        " Extender: "
    )


def test_the_page_refuses_a_pod_in_the_words_of_its_condition(
    cluster: LocalCluster, page: Page
) -> None:
    """This holds for the waiting claim, and for the pod as if it were created now."""
    visitor = a_visitor(cluster)
    make(cluster, STORAGE_CLASSES, a_local_class())
    patient = a_pod("patient", a_container(limits=HALF), **using("data"))
    steps.create(cluster, patient)
    for reason in ("VolumeClaimNotReady", "NodeVolumeMismatch"):
        until(lambda reason=reason: refused(cluster)[0] == reason)
        until(lambda: asked(page, visitor, patient)["refused"] == refused(cluster)[1])
        assert asked(page, visitor, patient)["notJudged"] == ""
        (claim,) = cluster.server.objects("vgpuclaims.vgpu.dev", "default")
        _, found = page.get(f"/api/v1/claims/default/{claim['metadata']['name']}", visitor)
        assert (found["why"]["now"], found["why"]["not_judged"]) == (refused(cluster)[1], "")
        if reason == "VolumeClaimNotReady":
            make(cluster, PERSISTENT_VOLUMES, a_volume("v", class_name=LOCAL, nodes=["away"]))
            make(cluster, PERSISTENT_VOLUME_CLAIMS, a_volume_claim(class_name=LOCAL))
    big = a_pod("big", a_container(limits={**HALF, "cpu": "4000"}))
    assert asked(page, visitor, big)["refused"].startswith("2/2 NodeInsufficientResources")


def forbidding(resource: str, user: str) -> Fault:
    return Fault(action="status", verb="list", resource=resource, user=user, code=403, times=None)


REFUSING = forbidding("persistentvolumes", "vgpu-web")


@pytest.fixture
def may_not_list_volumes(cluster: LocalCluster) -> None:
    """From now on the page's account may not."""
    cluster.server.faults.add(REFUSING)


def test_a_page_whose_account_may_not_list_volumes_names_them_until_it_may(
    cluster: LocalCluster, may_not_list_volumes: None, page: Page
) -> None:
    visitor = a_visitor(cluster)
    patient = a_pod("patient", a_container(limits=HALF), **using("data"))
    line = "volumes are not judged: this page has not listed persistentvolumes"
    until(lambda: asked(page, visitor, patient)["notJudged"] == line)
    assert asked(page, visitor, patient)["node"] != ""
    cluster.server.faults.remove(REFUSING)
    until(lambda: asked(page, visitor, patient)["notJudged"] == "")
    assert asked(page, visitor, patient)["refused"] == (
        "PersistentVolumeClaim data does not exist yet"
    )


def install_config(cluster: LocalCluster) -> None:
    """Install the operator's ConfigMap, which the commands read."""
    key, _, value = PART_OF_LABEL.partition("=")
    metadata = {"name": "vgpu-config", "namespace": "default", "labels": {key: value}}
    data = {"config.yaml": json.dumps(CONFIG)}
    make(cluster, CONFIG_MAPS, {"metadata": metadata, "data": data})


def forbidden(cluster: LocalCluster, resource: str) -> Path:
    """Return the kubeconfig of an account that may list everything except this resource."""
    user = f"no-{resource.partition('.')[0]}"
    cluster.server.faults.add(forbidding(resource, user))
    return cluster.kubeconfig_of(user)


def a_visitor(cluster: LocalCluster) -> str:
    """Return a token of an account that may list what the page shows, and volume claims."""
    kinds = {
        "vgpu.dev": ["vgpuclaims", "gpudevices"],
        "": ["nodes", "persistentvolumeclaims"],
    }
    rules = [{"apiGroups": [g], "resources": r, "verbs": ["list"]} for g, r in kinds.items()]
    make(cluster, CLUSTER_ROLES, {"metadata": {"name": "visitor"}, "rules": rules})
    account = {"namespace": "default", "name": "visitor"}
    make(cluster, SERVICE_ACCOUNTS, {"metadata": account})
    role = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": "visitor"}
    subject = {"kind": "ServiceAccount", **account}
    binding = {"metadata": {"name": "visitor"}, "roleRef": role, "subjects": [subject]}
    make(cluster, CLUSTER_ROLE_BINDINGS, binding)
    return cluster.run(token(cluster.api, ("default", "visitor")))


def asked(page: Page, visitor: str, pod: dict[str, Any]) -> Any:
    """Return the page's answer about one pod."""
    status, found = page.get("/api/v1/what-if", visitor, body=json.dumps(pod))
    assert status == 200, found
    (answer,) = found["pods"]
    return answer


def simulated(cluster: LocalCluster, file: Path, kubeconfig: Path | None = None) -> Any:
    """Return the answer of `simulate` about the pod in a file, by default as an administrator."""
    arguments = ("simulate", "-f", str(file), "--admit", "-o", "json")
    done = in_files(kubeconfig or cluster.kubeconfig, *arguments, spawn=cluster.spawn)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused(cluster: LocalCluster) -> tuple[str, str]:
    """Return reason and message of the only claim if it was refused."""
    for claim in cluster.server.objects("vgpuclaims.vgpu.dev", "default"):
        for condition in claim.get("status", {}).get("conditions", []):
            if (condition["type"], condition["status"]) == ("Allocated", "False"):
                return condition["reason"], condition["message"]
    return "", ""


def explained(cluster: LocalCluster, kubeconfig: Path | None = None) -> Any:
    """Return the answer of `explain` about the pod, by default as an administrator."""
    done = in_files(
        kubeconfig or cluster.kubeconfig, "explain", "patient", "-o", "json", spawn=cluster.spawn
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)
