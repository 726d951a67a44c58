"""`kubectl vgpu` with the token of an account that may edit one namespace and nothing else.

It shows what is the account's own. Where a right is missing, one line names it and what to use.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from vgpu_api.names import pod_claim_name
from vgpu_api.resources import (
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_local.accounts import SERVICE_ACCOUNTS, kubeconfig_with, token
from vgpu_local.command import in_files
from vgpu_local.control_plane import ControlPlane
from vgpu_local.steps import a_claim, a_container, a_pod

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True)
OURS, OTHERS = "team-a", "team-b"
ACCOUNT = (OURS, "developer")
USER = 'User "system:serviceaccount:team-a:developer" cannot list resource'
A_POD = {**a_pod("new", a_container(limits={"nvidia.com/gpu": 1})), "kind": "Pod"}


@pytest.fixture(scope="module")
def tenant(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of the account. Its namespace has a claim that waits, another's has one, too.

    No process answers the webhooks here, so they are removed.
    """
    path = tmp_path_factory.mktemp("tenant") / "kubeconfig"
    bearer = asyncio.run(_prepared(plane))
    return kubeconfig_with(plane.kubeconfig, path, bearer)


async def _prepared(plane: ControlPlane) -> str:
    async with Api.connect(str(plane.kubeconfig)) as admin:
        for webhooks in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await admin.delete(webhooks, "vgpu")
        await admin.create(NODES, {"metadata": {"name": "node"}})
        for namespace in (OURS, OTHERS):
            await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
            claim = a_claim("slice", {"memory": "1Gi"})
            claim["metadata"]["namespace"] = namespace
            await admin.create(VGPU_CLAIMS, claim)
        namespace, name = ACCOUNT
        await admin.create(SERVICE_ACCOUNTS, {"metadata": {"namespace": namespace, "name": name}})
        account = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        metadata = {"name": name, "namespace": namespace}
        binding = {"metadata": metadata, "roleRef": role, "subjects": [account]}
        await admin.create(ROLE_BINDINGS, binding)
        await _create_pod_with_claim(admin)
        return await token(admin, ACCOUNT)


async def _create_pod_with_claim(admin: Api) -> None:
    """Create a pod, and a claim by the name that the operator would give it."""
    pod = a_pod("user", a_container(), serviceAccountName=ACCOUNT[1])
    pod["metadata"]["namespace"] = OURS
    uid = (await admin.create(PODS, pod))["metadata"]["uid"]
    claim = a_claim(pod_claim_name("user", uid), {"memory": "1Gi"})
    claim["metadata"]["namespace"] = OURS
    await admin.create(VGPU_CLAIMS, claim)


@pytest.mark.parametrize("kind", ["slices", "claims"])
def test_it_lists_the_claims_of_its_namespace(tenant: Path, kind: str) -> None:
    done = in_files(tenant, "get", kind, "-n", OURS)
    assert (done.returncode, done.stderr) == (0, "")
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"NAME", "slice"} < names
    assert len(names) == 3


@pytest.mark.parametrize("subject", ["pod/user", "claim/slice"])
def test_it_explains_its_pod_and_says_that_nodes_are_not_shown(tenant: Path, subject: str) -> None:
    done = in_files(tenant, "explain", subject, "-n", OURS, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["asks"] == "1 × 1Gi"
    assert "nodes are not shown: " in said["not_shown"]
    assert USER in said["not_shown"]


def refused(tenant: Path, *arguments: str) -> str:
    done = in_files(tenant, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kubectl vgpu: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "missing", "instead"),
    [
        (("get", "devices"), f'{USER} "gpudevices"', "ClusterRole vgpu-devices-view"),
        (("get", "nodes"), f'{USER} "nodes"', "get slices shows the nodes of your pods"),
        (("get", "slices", "-A"), f'{USER} "vgpuclaims"', "with -n"),
        (("get", "slices", "-n", OTHERS), f'{USER} "vgpuclaims"', 'in the namespace "team-b"'),
        (("top", "-n", OURS), "may not list pods in namespace vgpu-node", "-- nvidia-smi"),
        (("top", "devices"), "may not list pods in namespace vgpu-node", "get slices"),
    ],
)
def test_a_missing_right_is_named_in_one_line_with_what_to_use(
    tenant: Path, arguments: tuple[str, ...], missing: str, instead: str
) -> None:
    line = refused(tenant, *arguments)
    assert missing in line
    assert instead in line


def test_simulate_names_the_right_and_two_other_ways(tenant: Path, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(A_POD))
    line = refused(tenant, "simulate", "-f", str(file))
    assert USER in line
    assert "kubectl create --dry-run=server -f FILE" in line
    assert "kubectl vgpu web" in line
