"""What several tests of the real control plane share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import install

collect_ignore = [] if "VOLCANO" in os.environ else ["test_volcano.py"]
"""What needs more than a real control plane is not even collected without it."""
UNSERVED = 1
"""A port on which no webhook of ours answers."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with controllers and everything of manifests/, without our programs."""
    with ControlPlane(Options(controllers=True)) as running:
        install(running, tmp_path_factory.mktemp("install"), webhook_port=UNSERVED)
        yield running
