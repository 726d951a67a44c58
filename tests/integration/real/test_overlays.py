"""Every overlay, example and component of manifests/, on the real API server or in kustomize."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, OPERATOR, SCHEDULER, WEBHOOK, token
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import apply
from vgpu_local.programs import ROOT

MANIFESTS = ROOT / "manifests"
LEVELS = Resource(
    "flowcontrol.apiserver.k8s.io",
    "v1",
    "prioritylevelconfigurations",
    "PriorityLevelConfiguration",
    False,
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(Options()) as running:
        yield running


@pytest.mark.parametrize(
    "overlay",
    [
        "overlays/default",
        "overlays/demo",
        "overlays/gate",
        "overlays/claims",
        "overlays/beside-hami",
        "examples/main-scheduler",
    ],
)
def test_an_overlay_is_accepted_without_a_warning(plane: ControlPlane, overlay: str) -> None:
    apply(plane, MANIFESTS / overlay)


@pytest.mark.parametrize(
    ("account", "path", "level"),
    [
        (OPERATOR, "/api/v1/pods?limit=1", "vgpu-scheduling"),
        (WEBHOOK, "/apis/vgpu.dev/v1alpha1/vgpuclaims?limit=1", "vgpu-scheduling"),
        (SCHEDULER, "/api/v1/pods?limit=1", "vgpu-scheduling"),
        (AGENT, "/apis/vgpu.dev/v1alpha1/gpudevices?limit=1", "vgpu-agents"),
        (
            OPERATOR,
            "/apis/coordination.k8s.io/v1/namespaces/vgpu-system/leases/vgpu-operator",
            "leader-election",
        ),
    ],
)
def test_requests_of_our_accounts_have_seats_of_their_own(
    plane: ControlPlane, account: tuple[str, str], path: str, level: str
) -> None:
    apply(plane, MANIFESTS / "overlays" / "default")
    uid, bearer = asyncio.run(level_and_token(plane, level, account))
    request = urllib.request.Request(
        plane.url + path, headers={"Authorization": f"Bearer {bearer}"}
    )
    deadline = time.monotonic() + 30
    while True:  # the API server applies its own configuration with a delay
        try:
            with urllib.request.urlopen(request, context=plane.trust()) as answer:
                found = answer.headers["X-Kubernetes-PF-PriorityLevel-UID"]
        # there is no such lease yet, but the request was classified all the same
        except urllib.error.HTTPError as error:
            found = error.headers["X-Kubernetes-PF-PriorityLevel-UID"]
        if found == uid or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert found == uid


async def level_and_token(
    plane: ControlPlane, level: str, account: tuple[str, str]
) -> tuple[str, str]:
    async with Api.connect(str(plane.kubeconfig)) as api:
        found = await api.get(LEVELS, level)
        return found["metadata"]["uid"], await token(api, account)


def built(plane: ControlPlane, folder: Path, *components: str) -> list[Object]:
    """Return the default overlay with some components."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / "default", folder)],
        "components": [os.path.relpath(MANIFESTS / "components" / c, folder) for c in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [plane.programs / "kubectl", "kustomize", folder], capture_output=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def test_network_policies_and_evictions_are_accepted(plane: ControlPlane, tmp_path: Path) -> None:
    built(
        plane,
        tmp_path,
        "network-policies",
        "evict-violators",
        "preemption",
    )
    apply(plane, tmp_path)


@pytest.mark.parametrize(
    "path", sorted(MANIFESTS.rglob("config.yaml")), ids=lambda path: path.parent.name
)
def test_a_cluster_configuration_of_the_manifests_is_one(path: Path) -> None:
    read_cluster_config(yaml.safe_load(path.read_text()))
