"""Fixtures for modules whose tests share one cluster; each test finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.steps import empty


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The module's own `module_cluster`, without pods and claims."""
    yield module_cluster
    empty(module_cluster)
