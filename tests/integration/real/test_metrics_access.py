"""Scrapers may read metrics if Kubernetes lets them, with the rights of manifests/."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.scrapers import Scrapers
from vgpu_local.accounts import (
    AGENT,
    OPERATOR,
    SCHEDULER,
    SERVICE_ACCOUNTS,
    WEBHOOK,
    kubeconfig_with,
    token,
)
from vgpu_local.control_plane import ControlPlane

BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
PROMETHEUS, TENANT = ("default", "prometheus"), ("default", "tenant")


@pytest.fixture(scope="module")
async def admin(plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api.connect(str(plane.kubeconfig)) as api:
        for namespace, name in (PROMETHEUS, TENANT):
            await api.create(SERVICE_ACCOUNTS, {"metadata": {"namespace": namespace, "name": name}})
        await api.create(
            BINDINGS,
            {
                "metadata": {"name": "prometheus-reads-vgpu"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "vgpu-metrics-reader",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "namespace": PROMETHEUS[0], "name": PROMETHEUS[1]}
                ],
            },
        )
        yield api


@pytest.mark.parametrize("account", [OPERATOR, WEBHOOK, AGENT], ids=lambda account: account[1])
async def test_each_process_may_review_scrapers_and_lets_those_in_who_have_the_role(
    plane: ControlPlane, admin: Api, account: tuple[str, str], tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        path = kubeconfig_with(plane.kubeconfig, tmp_path / "own", await token(admin, account))
        own = await stack.enter_async_context(Api.connect(str(path)))
        scrapers = Scrapers(own)
        for scraper, status in ((PROMETHEUS, 200), (TENANT, 403), (SCHEDULER, 403)):
            bearer = await token(admin, scraper)
            answer = await scrapers.review(f"Bearer {bearer}")
            assert answer.status == status, answer.text
        assert (await scrapers.review("Bearer forged")).status == 401
