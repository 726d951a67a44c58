"""Tokens and kubeconfigs of the service accounts that manifests/ gives our programs.

The programs of a test cluster are not pods, so no kubelet mounts a token for them. The token is
requested as the kubelet would request it, and written into a kubeconfig.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)

OPERATOR = ("vgpu-system", "vgpu-operator")
WEBHOOK = ("vgpu-system", "vgpu-webhook")
AGENT = ("vgpu-node", "vgpu-nodeagent")
WEB = ("vgpu-system", "vgpu-web")
SCHEDULER = ("vgpu-system", "vgpu-scheduler")


def user(account: tuple[str, str]) -> str:
    """Return a service account's user name as the API server writes it."""
    return "system:serviceaccount:" + ":".join(account)


async def token(api: Api, account: tuple[str, str], *, node: str | None = None) -> str:
    """Return a token of a service account, bound to a node like the token of a pod there.

    Args:
        api: An administrator's client.
        account: Namespace and name.
        node: The node; None for a token that is not bound to one.
    """
    spec: Object = {"audiences": [], "expirationSeconds": 3600}
    if node is not None:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    namespace, name = account
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    }
    answer = await api.create(SERVICE_ACCOUNTS, request, subresource="token")
    return str(answer["status"]["token"])


def kubeconfig_with(of_admin: Path, path: Path, bearer: str) -> Path:
    """Write the administrator's kubeconfig with another token."""
    config = yaml.safe_load(of_admin.read_text())
    for entry in config["users"]:
        entry["user"] = {"token": bearer}
    path.write_text(yaml.safe_dump(config))
    return path


@asynccontextmanager
async def client_of(
    admin: Api,
    of_admin: Path,
    folder: Path,
    account: tuple[str, str],
    *,
    node: str | None = None,
) -> AsyncIterator[Api]:
    """Hold a client of a service account open.

    Args:
        admin: An administrator's client.
        of_admin: The administrator's kubeconfig.
        folder: The folder for the account's kubeconfig.
        account: Namespace and name.
        node: The node to which the token is bound; None for a token that is not bound to one.
    """
    path = folder / "-".join((*account, node or "any"))
    kubeconfig_with(of_admin, path, await token(admin, account, node=node))
    async with Api.connect(str(path)) as api:
        yield api
