"""The verbs of the Kubernetes API on plain dictionaries, the same for every kind.

Typed models of every core kind would cost more than everything else a controller does (decoding
5,000 pods: 4 s instead of 0.4 s), so objects stay dictionaries here and each caller reads the few
fields that it needs. Writes are sent exactly once, carry a time limit for the server, and fail with
an error that says whether they took effect (`errors.py`). Reads are retried (`reads.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from vgpu_api.resources import PODS, Resource
from vgpu_client.connection import login
from vgpu_client.exchange import Http
from vgpu_client.reads import Each, Listing, Reads, selectors
from vgpu_client.transport import Manner, Object, Transport, WriteBudget

WRITE_TIMEOUT_S = 15.0
PAGE_SIZE = 500

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Api:
    """A client of one API server.

    Args:
        transport: Sends the requests.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reads = Reads(transport)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        manner: Manner | None = None,
        *,
        http: AbstractAsyncContextManager[Http] | None = None,
    ) -> AsyncIterator[Api]:
        """Log in (see `connection.login`) and hold connections open.

        Args:
            kubeconfig: Path of a kubeconfig.
            context: The context in it; None for its current one.
            manner: In whose name and for how long requests are made.
            http: Sends the requests; None: aiohttp.

        Raises:
            LoginError: No usable credentials.
        """
        if http is None:
            from vgpu_client.session import open_pooled_http  # aiohttp takes 0.2 s to load

            http = open_pooled_http()
        connection = await login(kubeconfig, context)
        async with http as opened:
            yield cls(Transport(opened, connection, manner=manner))

    def within(self, budget: WriteBudget) -> Api:
        """Return this client with a limit on writes, for a caller whose right to write may end.

        Args:
            budget: The time within which a write must land. A write that cannot make it is not sent
                (`Unreachable`); the others pass the server a time limit.
        """
        return Api(self._transport.within(budget))

    def acting_as(self, user: str) -> Api:
        """Return this client with requests made in another user's name, like `kubectl --as`.

        The server answers `Forbidden` if the caller may not impersonate that user.
        """
        return Api(self._transport.acting_as(user))

    def unix(self) -> float:
        """Return the server's Unix time in seconds, without asking the server (`ServerTime`)."""
        return self._transport.unix()

    async def version(self) -> Object:
        """Return the server's version: `gitVersion`, `major`, `minor` and more."""
        return await self._reads.document("/version", {})

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """Read the current state of one object (a quorum read)."""
        return await self._reads.document(resource.path(namespace=namespace, name=name), {})

    async def current_version(self, resource: Resource, *, namespace: str | None = None) -> int:
        """Return the server's current version of a kind, by a quorum read of at most one object."""
        path = resource.path(namespace=namespace)
        document = await self._reads.document(path, {"limit": "1"})
        return int(document["metadata"]["resourceVersion"])

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = PAGE_SIZE,
        not_older_than: str | None = None,
        each: Each = lambda item: item,
    ) -> Listing:
        """Read all objects as of one moment.

        Each item carries `apiVersion` and `kind`, which the server leaves out of lists.
        If the continuation of a list expires, the list starts again.

        Args:
            resource: The kind.
            namespace: None for all.
            label_selector: In the API server's syntax.
            field_selector: In the API server's syntax.
            page_size: Objects per page of a quorum read.
            not_older_than: None: a quorum read, page by page. A version: a read at once from the
                server's cache, of that version or any later one. "0": of any version.
            each: Called with each object as its page arrives; its results are the items, by default
                the objects themselves. Pages are not kept, so a list needs memory only for results.
        """
        return await self._reads.listing(
            resource,
            resource.path(namespace=namespace),
            selectors(label=label_selector, field=field_selector),
            page_size=page_size,
            not_older_than=not_older_than,
            each=each,
        )

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
        """Yield the events after `resource_version`: `type` and `object`.

        The type is ADDED, MODIFIED, DELETED or BOOKMARK. The generator ends without an error when
        the server closes the stream properly, at the latest after `timeout_s`. An object that no
        longer matches a selector arrives as DELETED. Use it with `aclosing`.

        Raises:
            Gone: The version is no longer kept; list again.
            StreamBroken: The stream broke, or brought no event and no bookmark for `inactivity_s`.
            Unreachable, ApiError: The stream could not be opened.
        """
        params = {
            **selectors(label=label_selector, field=field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(timeout_s)),
        }
        path = resource.path(namespace=namespace)
        return self._reads.events(path, params, inactivity_s=inactivity_s)

    async def create(
        self,
        resource: Resource,
        obj: Object,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Create an object in its namespace, or a subresource of an existing object."""
        metadata = obj["metadata"]
        path = resource.path(
            namespace=metadata.get("namespace"),
            name=metadata["name"] if subresource else None,
            subresource=subresource,
        )
        return await self._transport.write(
            "POST", path, _written_by(field_manager), obj, timeout_s=timeout_s
        )

    async def replace(
        self,
        resource: Resource,
        obj: Object,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Replace an object; raises `Conflict` if its resourceVersion is not the newest."""
        path = _path_to(resource, obj, subresource)
        return await self._transport.write(
            "PUT", path, _written_by(field_manager), obj, timeout_s=timeout_s
        )

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Apply a JSON patch; raises `PatchDoesNotFit` if one of its `test` operations fails."""
        return await self._transport.write(
            "PATCH",
            resource.path(namespace=namespace, name=name, subresource=subresource),
            _written_by(field_manager),
            list(operations),
            content_type=JSON_PATCH,
            timeout_s=timeout_s,
        )

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Merge `changes` into an object. Lists are replaced whole: never use it on conditions."""
        return await self._transport.write(
            "PATCH",
            resource.path(namespace=namespace, name=name, subresource=subresource),
            _written_by(field_manager),
            changes,
            content_type=MERGE_PATCH,
            timeout_s=timeout_s,
        )

    async def apply(
        self,
        resource: Resource,
        obj: Object,
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Apply an object server-side: `obj` has every field that `field_manager` sets on it.

        Raises:
            Conflict: Another manager owns a field with a different value, and `force` is not set.
        """
        return await self._transport.write(
            "PATCH",
            _path_to(resource, obj, subresource),
            {**_written_by(field_manager), "force": "true" if force else "false"},
            {"apiVersion": resource.api_version, "kind": resource.kind, **obj},
            content_type=APPLY_PATCH,
            timeout_s=timeout_s,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: str | None = None,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Object:
        """Delete an object; return the object (if finalizers are pending) or a Status.

        Args:
            resource: Its kind.
            name: Its name.
            namespace: Its namespace, if the kind has one.
            uid: Delete only the object with this uid; otherwise `Conflict`.
            resource_version: Delete the object only at this version; otherwise `Conflict`.
            grace_s: The seconds that a pod gets to terminate.
            propagation: The fate of dependents: Background, Foreground or Orphan.
            timeout_s: The server's time limit.
        """
        only_if = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "preconditions": {key: value for key, value in only_if.items() if value} or None,
            "gracePeriodSeconds": grace_s,
            "propagationPolicy": propagation,
        }
        body = {key: value for key, value in options.items() if value is not None}
        return await self._transport.write(
            "DELETE",
            resource.path(namespace=namespace, name=name),
            {},
            {"apiVersion": "v1", "kind": "DeleteOptions", **body},
            timeout_s=timeout_s,
        )

    async def bind_pod(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        """Bind the pod with this uid to a node; the annotations are added to the pod with it.

        Raises:
            NotFound: There is no such pod.
            Conflict: The pod has another uid, or is bound already.
        """
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.create(PODS, binding, subresource="binding", timeout_s=timeout_s)


def _written_by(field_manager: str | None) -> Mapping[str, str]:
    """Return the query parameters of a write.

    Field validation is switched off: nothing reads the warnings about unknown fields, and the
    server would have to parse the object strictly to make them.
    """
    query = {"fieldValidation": "Ignore"}
    return {**query, "fieldManager": field_manager} if field_manager else query


def _path_to(resource: Resource, obj: Object, subresource: str | None) -> str:
    metadata = obj["metadata"]
    return resource.path(
        namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource
    )
