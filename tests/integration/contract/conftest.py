"""Requests to the API server of this run, as an administrator, with a namespace for each test."""

from __future__ import annotations

import base64
import secrets
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from rest import CRDS, NAMESPACES, THINGS, Json, Rest, thing_definition
from vgpu_client.session import open_session


class Running(Protocol):
    """The cluster of the whole run."""

    kubeconfig: str
    url: str


@pytest.fixture
def kubeconfig(bare_cluster: Running) -> Json:
    content: Json = yaml.safe_load(Path(bare_cluster.kubeconfig).read_text())
    return content


@pytest.fixture
async def rest(bare_cluster: Running, kubeconfig: Json) -> AsyncIterator[Rest]:
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]
    data = cluster.get("certificate-authority-data")
    trust = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(data).decode() if data else None,
    )
    headers = {"Authorization": f"Bearer {user['user']['token']}"}
    async with open_session(tls=trust, headers=headers) as session:
        namespace = f"test-{secrets.token_hex(4)}"
        rest = Rest(bare_cluster.url, session, namespace=namespace, user=user["name"])
        await rest.create(NAMESPACES, {"metadata": {"name": rest.namespace}})
        yield rest


@pytest.fixture
async def things(rest: Rest) -> Rest:
    """A client as above, on a server that also has the kind Thing."""
    if "things.example.dev" not in await rest.names(CRDS):
        await rest.create(CRDS, thing_definition())
    await rest.until_served(THINGS)
    return rest
