"""Fixtures that several tests of the real control plane share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from vgpu_local.control_plane import MINOR_VERSIONS, ControlPlane, MinorVersion, Options
from vgpu_local.installation import install
from vgpu_local.pod_groups import BY_VERSION, PodGroups

collect_ignore = [] if "VOLCANO" in os.environ else ["test_volcano.py"]
"""Tests that need more than a real control plane are not even collected without it."""
if os.geteuid() != 0:
    collect_ignore += ["test_claims_kubelet.py", "test_dra_kubelet.py"]  # a kubelet runs as root
UNSERVED = 1
"""A port on which no webhook of ours answers."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with controllers and all of manifests/, without our programs."""
    with ControlPlane(Options(controllers=True)) as running:
        install(running, tmp_path_factory.mktemp("install"), webhook_port=UNSERVED)
        yield running


@pytest.fixture(scope="module", params=MINOR_VERSIONS)
def kubernetes_version(request: pytest.FixtureRequest) -> MinorVersion:
    """Each version of Kubernetes in turn, for a control plane with `Options(version=...)`."""
    version: MinorVersion = request.param
    return version


@pytest.fixture(scope="module")
def pod_groups(kubernetes_version: MinorVersion) -> PodGroups:
    """Kubernetes' own pod groups on each version in turn; see `vgpu_local.pod_groups`."""
    return BY_VERSION[kubernetes_version]
