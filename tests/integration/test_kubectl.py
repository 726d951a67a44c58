"""kubectl as a user types it, against the stand-in or a real cluster."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vgpu_api.attribute_docs import field_docs
from vgpu_api.v1alpha1 import VGPUClaimSpec

if TYPE_CHECKING:
    from conftest import RunningCluster

CLAIM = """
apiVersion: vgpu.dev/v1alpha1
kind: VGPUClaim
metadata:
  name: small
spec:
  requests:
  - memory: {memory}
    cores: 50
"""
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: uses-small
  labels: {app: x}
spec:
  automountServiceAccountToken: false
  containers:
  - name: app
    image: none.invalid/none:1
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4000}
"""
NODE = """
apiVersion: v1
kind: Node
metadata:
  name: %s
"""
FULL_CLAIM = """
apiVersion: vgpu.dev/v1alpha1
kind: VGPUClaim
metadata:
  name: full
spec:
  requests:
  - name: fetch
    phase: Init
    memoryPercent: 5
  - name: train
    count: 2
    memory: 8192Mi
    cores: 50
    computePriority: 1
    selector:
      models: [A100]
      excludeUUIDs: [GPU-0]
  placement:
    device: [Binpack, NUMA]
    weights:
      memory: 3
"""
BARE_CLAIM = """
apiVersion: vgpu.dev/v1alpha1
kind: VGPUClaim
metadata:
  name: bare
spec:
  requests:
  - {}
"""
DEVICE = """
apiVersion: vgpu.dev/v1alpha1
kind: GPUDevice
metadata:
  name: gpu-kubectl
spec:
  nodeName: n1
"""
ALLOCATED = {
    "status": {
        "observedGeneration": 1,
        "state": "Allocated",
        "summary": "1 × 8Gi, 50 %",
        "conditions": [
            {
                "type": "Allocated",
                "status": "True",
                "reason": "Allocated",
                "message": "on n1",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
}


class Kubectl:
    """kubectl with a kubeconfig and a namespace, its caches in a folder of its own."""

    def __init__(self, kubeconfig: str, home: Path, namespace: str) -> None:
        self._environment = {**os.environ, "KUBECONFIG": kubeconfig, "HOME": str(home)}
        self._flags = ["--cache-dir", str(home / "cache"), "--namespace", namespace]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *self._flags, *arguments],
            input=stdin,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def refused(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["kubectl", *self._flags, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def kubectl(cluster: RunningCluster, home: Path) -> Iterator[Kubectl]:
    namespace = f"kubectl-{secrets.token_hex(4)}"
    kubectl = Kubectl(cluster.kubeconfig, home, namespace)
    kubectl("create", "namespace", namespace)
    yield kubectl
    kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def claim(kubectl: Kubectl) -> Kubectl:
    """Return kubectl in a namespace with the claim `small`."""
    kubectl("apply", "-f", "-", stdin=CLAIM.format(memory="8Gi"))
    return kubectl


def allocate(kubectl: Kubectl) -> None:
    kubectl(
        "patch", "vgc", "small", "--subresource=status", "--type=merge", "-p", json.dumps(ALLOCATED)
    )


def test_apply_creates_then_changes_nothing_then_what_is_new(kubectl: Kubectl):
    seen = []
    for memory in ("8Gi", "8Gi", "16Gi"):
        kubectl("apply", "-f", "-", stdin=CLAIM.format(memory=memory))
        path = "jsonpath={.metadata.resourceVersion} {.spec.requests[0].memory}"
        seen.append(kubectl("get", "vgc", "small", "-o", path).split())
    assert [memory for _, memory in seen] == ["8Gi", "8Gi", "16Gi"]
    versions = [version for version, _ in seen]
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize(
    "manifest", [CLAIM.format(memory="8Gi"), FULL_CLAIM, BARE_CLAIM, DEVICE], ids=len
)
def test_what_is_applied_again_is_unchanged_and_has_no_difference(
    kubectl: Kubectl, manifest: str
) -> None:
    kubectl("apply", "-f", "-", stdin=manifest)
    assert kubectl("apply", "-f", "-", stdin=manifest).endswith(" unchanged\n")
    assert kubectl("diff", "-f", "-", stdin=manifest) == ""
    kubectl("delete", "-f", "-", stdin=manifest)


@pytest.mark.parametrize(
    "manifest", [CLAIM.format(memory="8Gi"), FULL_CLAIM, BARE_CLAIM, DEVICE], ids=len
)
def test_what_is_applied_again_on_the_server_changes_nothing(
    kubectl: Kubectl, manifest: str
) -> None:
    """The first write after a creation may store the status's default, and nothing else."""
    seen = []
    for _ in range(3):
        kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
        found = json.loads(kubectl("get", "-f", "-", "-o", "json", stdin=manifest))
        seen.append(found["items"][0])
    assert seen[1] == seen[2]
    for each in seen:
        del each["metadata"]["resourceVersion"]
    assert seen[0] == seen[1]
    assert kubectl("diff", "--server-side", "-f", "-", stdin=manifest) == ""
    kubectl("delete", "-f", "-", stdin=manifest)


def test_apply_on_the_server_merges_and_names_who_is_in_the_way(kubectl: Kubectl):
    apply = ("apply", "--server-side", "-f", "-")
    said = kubectl(*apply, stdin=CLAIM.format(memory="8Gi"))
    assert said == "vgpuclaim.vgpu.dev/small serverside-applied\n"
    patch = [{"op": "replace", "path": "/spec/requests/0/memory", "value": "4Gi"}]
    kubectl("patch", "vgc", "small", "--type=json", "-p", json.dumps(patch))
    refused = kubectl.refused(*apply, stdin=CLAIM.format(memory="8Gi"))
    assert 'conflict with "kubectl-patch"' in refused
    kubectl(*apply, "--force-conflicts", stdin=CLAIM.format(memory="8Gi"))


def test_an_applied_claim_can_be_applied_on_the_server_afterwards(claim: Kubectl):
    claim("apply", "--server-side", "-f", "-", stdin=CLAIM.format(memory="8Gi"))
    managers = claim(
        "get", "vgc", "small", "--show-managed-fields",
        "-o", "jsonpath={.metadata.managedFields[*].manager}",
    )  # fmt: skip
    assert "kubectl" in managers.split()


def test_get_prints_our_columns_and_more_of_them_when_wide(claim: Kubectl):
    allocate(claim)
    head, row = claim("get", "vgpuclaims").splitlines()
    assert head.split() == [
        "NAME",
        "STATE",
        "REQUEST",
        "NODE",
        "POD",
        "PREPARED",
        "REASON",
        "RESIZE",
        "AGE",
    ]
    assert row.startswith("small   Allocated   1 × 8Gi, 50 %")
    head, row = claim("get", "vgc", "-o", "wide").splitlines()
    assert head.split()[-2:] == ["DEVICES", "MESSAGE"]
    assert row.endswith("on n1")


def test_our_kinds_are_found_by_short_name_and_category(claim: Kubectl):
    assert "vgpuclaim.vgpu.dev/small" in claim("get", "vgpu", "-o", "name").splitlines()
    assert claim("get", "vgc", "-o", "name") == "vgpuclaim.vgpu.dev/small\n"
    claim("get", "gpudev", "-o", "name")


def test_get_prints_yaml_json_and_jsonpath(claim: Kubectl):
    as_yaml = claim("get", "vgc", "small", "-o", "yaml")
    assert "kind: VGPUClaim" in as_yaml
    assert "managedFields" not in as_yaml
    listed = json.loads(claim("get", "vgc", "-o", "json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["small"]
    assert claim("get", "vgc", "-o", "jsonpath={.items[0].spec.requests[0].cores}") == "50"


def test_get_watches(claim: Kubectl):
    with claim.begin("get", "vgc", "-w") as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline(), watching.stdout.readline()]
        allocate(claim)
        lines.append(watching.stdout.readline())
        watching.terminate()
    assert [line.split()[:2] for line in lines][::2] == [["NAME", "STATE"], ["small", "Allocated"]]


def test_describe_shows_a_claim_with_its_events(claim: Kubectl):
    uid = claim("get", "vgc", "small", "-o", "jsonpath={.metadata.uid}")
    namespace = claim("get", "vgc", "small", "-o", "jsonpath={.metadata.namespace}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "small.1", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "vgpu.dev/v1alpha1",
            "kind": "VGPUClaim",
            "name": "small",
            "namespace": namespace,
            "uid": uid,
        },
        "reason": "Unplaced",
        "message": "no card has room",
        "type": "Warning",
        "source": {"component": "vgpu-operator"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    claim("create", "-f", "-", stdin=json.dumps(event))
    described = claim("describe", "vgc", "small")
    assert "Memory:  8Gi" in " ".join(described.split()).replace("Memory: ", "Memory:  ")
    assert "no card has room" in described
    assert "Unplaced" in claim("get", "events")


def test_describe_shows_a_pod_and_a_node(kubectl: Kubectl):
    kubectl("apply", "-f", "-", stdin=POD)
    described = kubectl("describe", "pod", "uses-small")
    assert "nvidia.com/gpumem:  4k" in described
    name = f"node-{secrets.token_hex(4)}"
    kubectl("apply", "-f", "-", stdin=NODE % name)
    try:
        assert kubectl("describe", "node", name).startswith(f"Name:               {name}\n")
    finally:
        kubectl("delete", "node", name)


def test_explain_prints_our_docstrings(kubectl: Kubectl):
    explained = kubectl("explain", "vgpuclaim.spec")
    assert "GROUP:      vgpu.dev" in explained
    described = field_docs(VGPUClaimSpec)["placement"]
    assert described in " ".join(explained.split())
    assert "requests\t<[]Object> -required-" in explained
    below = kubectl("explain", "vgpuclaim.spec.requests.memoryPercent")
    assert "<integer>" in below


def test_label_annotate_and_select(claim: Kubectl):
    claim("label", "vgc", "small", "team=a")
    claim("annotate", "vgc", "small", "example.dev/note=x")
    assert claim("get", "vgc", "-l", "team=a", "-o", "name").strip()
    assert not claim("get", "vgc", "-l", "team!=a", "-o", "name").strip()
    claim("label", "vgc", "small", "team-")
    assert not claim("get", "vgc", "-l", "team", "-o", "name").strip()


def test_a_selectable_field_selects(claim: Kubectl):
    selector = ("--field-selector", "status.allocation.nodeName=n1", "-o", "name")
    assert claim("get", "vgc", *selector) == ""
    refused = claim.refused("get", "vgc", "--field-selector", "spec.bindingMode=Immediate")
    assert "field label not supported" in refused


def test_a_pod_is_applied_patched_labelled_and_replaced(kubectl: Kubectl):
    kubectl("apply", "-f", "-", stdin=POD)
    patch = '{"metadata":{"labels":{"b":"2"}},"spec":{"containers":[{"name":"app","image":"a:2"}]}}'
    kubectl("patch", "pod", "uses-small", "-p", patch)
    kubectl("label", "pod", "uses-small", "c=3")
    labels = json.loads(kubectl("get", "pod", "uses-small", "-o", "jsonpath={.metadata.labels}"))
    assert labels == {"app": "x", "b": "2", "c": "3"}
    assert kubectl("get", "pod", "uses-small", "-o", "jsonpath={..image}") == "a:2"
    kubectl("replace", "-f", "-", stdin=POD)
    labels = json.loads(kubectl("get", "pod", "uses-small", "-o", "jsonpath={.metadata.labels}"))
    assert labels == {"app": "x"}


def test_wait_for_a_condition_a_field_and_a_deletion(claim: Kubectl):
    with claim.begin("wait", "--for=condition=Allocated", "vgc/small", "--timeout=20s") as waiting:
        allocate(claim)
        assert waiting.wait(timeout=20) == 0
    claim("wait", "--for=jsonpath={.status.state}=Allocated", "vgc/small", "--timeout=20s")
    claim("delete", "vgc", "small", "--wait=false")
    claim("wait", "--for=delete", "vgc/small", "--timeout=20s")


def test_delete_waits_for_the_finalizer(claim: Kubectl):
    add = '{"metadata":{"finalizers":["vgpu.dev/in-use"]}}'
    claim("patch", "vgc", "small", "--type=merge", "-p", add)
    with claim.begin("delete", "vgc", "small") as deleting:
        claim("wait", "--for=jsonpath={.metadata.deletionTimestamp}", "vgc/small", "--timeout=20s")
        assert deleting.poll() is None
        claim("patch", "vgc", "small", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        assert deleting.wait(timeout=20) == 0
    assert "NotFound" in claim.refused("get", "vgc", "small")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("    count: 0", "spec.requests[0].count: Invalid value: 0"),
        ("    phase: Sometimes", 'spec.requests[0].phase: Unsupported value: "Sometimes"'),
        ("    colour: red", 'unknown field "spec.requests[0].colour"'),
    ],
)
def test_a_wrong_claim_is_refused_naming_the_field(kubectl: Kubectl, change: str, says: str):
    assert says in kubectl.refused("apply", "-f", "-", stdin=CLAIM.format(memory="8Gi") + change)


def test_config_maps_and_secrets_are_created_from_literals(kubectl: Kubectl):
    kubectl("create", "configmap", "c", "--from-literal=k=v")
    kubectl("create", "secret", "generic", "s", "--from-literal=k=v")
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data.k}") == "v"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.k}") == "dg=="


def test_a_server_side_dry_run_stores_nothing(kubectl: Kubectl):
    claim = CLAIM.format(memory="8Gi")
    said = kubectl("apply", "--dry-run=server", "-f", "-", stdin=claim)
    assert said.endswith("created (server dry run)\n")
    assert kubectl("get", "vgc", "-o", "name") == ""
