"""Reads the pods of one node, impersonating the node.

RBAC ignores field selectors, so it grants `list pods` for all pods or none. The node authorizer
lets a node read the pods that name it in `spec.nodeName`. From Kubernetes 1.36 on an agent may
impersonate the node that its token is bound to, for these reads alone (constrained impersonation,
KEP-5284), so its account needs no right to read pods. If the API server refuses that, the agent
reads in its own name; manifests/components/agents-read-all-pods grants it the right
(docs/design/node-and-grants.md).
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncGenerator

from vgpu_api.resources import PODS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, Forbidden
from vgpu_client.reads import Each, Listing
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)


class NodePods:
    """The pods of a node, as a source for a reflector.

    Args:
        api: The agent's client.
        node: The node's name.
    """

    def __init__(self, api: Api, node: str) -> None:
        self._own = api
        self._as_node = api.acting_as(f"system:node:{node}")
        self._reader = self._as_node
        self._selector = f"spec.nodeName={node}"

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        not_older_than: str | None = None,
        each: Each = lambda item: item,
    ) -> Listing:
        """List as the node, else as the agent; later watches use the identity that succeeded.

        Raises:
            Forbidden: Neither may list; with the server's message about the node.
        """
        refused: Forbidden | None = None
        for reader in (self._as_node, self._own):
            try:
                listing = await reader.list(
                    resource,
                    namespace=namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    not_older_than=not_older_than,
                    each=each,
                )
            except Forbidden as error:
                refused = refused or error
                continue
            self._read_as(reader, refused)
            return listing
        assert refused is not None
        raise refused

    def _read_as(self, reader: Api, refused: Forbidden | None) -> None:
        if reader is self._reader:
            return
        self._reader = reader
        if refused is None:
            logger.info("reading pods as the node")
        else:
            logger.warning("reading pods as the agent, which may read all pods: %s", refused)

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300.0,
        inactivity_s: float = 90.0,
    ) -> AsyncGenerator[Object, None]:
        """Watch with the identity of the last list."""
        return self._reader.watch(
            resource,
            resource_version=resource_version,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_s=timeout_s,
            inactivity_s=inactivity_s,
        )

    async def is_bound(self, namespace: str, name: str, uid: str) -> bool:
        """Return False if the pod is certainly not bound to this node (a quorum read)."""
        try:
            found = await self.bound(namespace, name)
        except ClientError as error:
            logger.debug("pod %s/%s: %s", namespace, name, error)
            return True
        return any(pod["metadata"]["uid"] == uid for pod in found)

    async def bound(self, namespace: str, name: str) -> builtins.list[Object]:
        """Return the pod of that name if it is bound to the node now (a quorum read).

        Raises:
            ClientError: It could not be read.
        """
        selector = f"{self._selector},metadata.name={name}"
        return list((await self.list(PODS, namespace=namespace, field_selector=selector)).items)
