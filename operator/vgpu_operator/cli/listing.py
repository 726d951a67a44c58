"""`kubectl vgpu get`: show slices (claims), devices, and the nodes that have devices.

Unlike `kubectl get`, the tables show the allocated amounts of each device and node. These are
computed from the claims, also for JSON and YAML, so they are always current. A watch shows the
amounts from the devices' status instead, which the operator updates within five seconds. kubectl
evaluates JSONPaths. All other fields are printed as the API server returns them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml

from vgpu_api.errors import VgpuError
from vgpu_api.resources import GPU_DEVICES, NODES, VGPU_CLAIMS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import Gone, NotFound
from vgpu_client.transport import Object
from vgpu_operator.cli.printing import Printer

JSONPATH = "jsonpath="
KINDS: Mapping[str, Resource] = {
    "slices": VGPU_CLAIMS,
    "pods": VGPU_CLAIMS,
    "devices": GPU_DEVICES,
    "nodes": NODES,
}
"""The kind that is read for each kind that is shown: pods are shown by their claims."""


class CannotAnswer(VgpuError):
    """The command has no answer; the message is one sentence for the user."""


class NotInstalled(CannotAnswer):
    """The cluster does not serve a kind of vgpu's."""


@dataclass(frozen=True, slots=True)
class GetQuery:
    """The objects to show, and the output format.

    Attributes:
        kind: A key of `KINDS`.
        names: Show only objects with these names; empty: all.
        namespace: The namespace of slices and pods; None: all namespaces.
        selector: A label selector in the syntax of the API server.
        output: Empty for a table; `wide`, `json`, `yaml`, `name` or `jsonpath=TEMPLATE`.
        watch: Keep printing changes.
        kubectl: The command that evaluates JSONPaths, with its options.
    """

    kind: str
    names: Sequence[str] = ()
    namespace: str | None = None
    selector: str | None = None
    output: str = ""
    watch: bool = False
    kubectl: Sequence[str] = ("kubectl",)


@dataclass(slots=True)
class Found:
    """The objects from which the rows are made.

    Attributes:
        objects: The objects of the kind, by namespace and name.
        devices: The devices by name, if the kind is nodes.
        version: The resourceVersion to watch from: that of the devices, if the kind is nodes.
        note: A remark about the numbers for the user; empty: none.
    """

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    devices: dict[str, Object] = field(default_factory=dict)
    version: str = ""
    note: str = ""


async def get(query: GetQuery, api: Api, printer: Printer) -> None:
    """Print the objects. With `watch`, continue until interrupted.

    Raises:
        CannotAnswer: An object does not exist, or kubectl is missing.
        ClientError: The API server is unreachable or refuses the request.
    """
    found = await _read(query, api)
    if query.output.startswith(JSONPATH):
        _by_kubectl(query, found)
        return
    if found.note:
        print(f"kubectl vgpu: {found.note}", file=sys.stderr)
    _print(query, list(found.objects.values()), found, printer)
    if query.watch:
        await _watch(query, api, found, printer)


async def _read(query: GetQuery, api: Api) -> Found:
    resource, found = KINDS[query.kind], Found()
    listing = await listed(api, resource, namespace=query.namespace, selector=query.selector)
    found.version, items = listing.resource_version, listing.items
    if resource is GPU_DEVICES:
        items = await _as_claims_say(api, items, found)
    if query.kind == "pods":
        items = [obj for obj in items if _pod_of(obj)]
    found.objects = {_key(obj): obj for obj in items}
    if resource is NODES:
        with_devices = await _read_devices(api, found)
        named = with_devices | set(query.names)
        found.objects = {key: obj for key, obj in found.objects.items() if key[1] in named}
    if query.names:
        _keep_named(query, found)
    return found


async def _read_devices(api: Api, found: Found) -> set[str]:
    """Read the devices for the rows of nodes, and return the names of their nodes."""
    devices = await listed(api, GPU_DEVICES)
    found.version = devices.resource_version
    held = await _as_claims_say(api, devices.items, found)
    found.devices = {obj["metadata"]["name"]: obj for obj in held}
    return {obj["spec"]["nodeName"] for obj in devices.items}


def _keep_named(query: GetQuery, found: Found) -> None:
    """Drop the objects that the query does not name.

    Raises:
        CannotAnswer: A named object does not exist.
    """
    found.objects = {
        key: obj for key, obj in found.objects.items() if _name(query, obj) in query.names
    }
    there = {_name(query, obj) for obj in found.objects.values()}
    missing = [name for name in query.names if name not in there]
    if missing:
        where = f" in namespace {query.namespace}" if KINDS[query.kind].namespaced else ""
        what = "pod with a claim named" if query.kind == "pods" else query.kind[:-1]
        raise CannotAnswer(f"no {what} {', '.join(missing)}{where}")


async def _as_claims_say(api: Api, devices: list[Object], found: Found) -> list[Object]:
    """Return the devices with amounts from the claims, and a note if claims cannot be listed."""
    # Imported only here: the ledger takes a fifth of a second to load.
    from vgpu_operator.cli import holdings

    claims = await holdings.claims_of(api)
    if claims is None:
        found.note = holdings.NOT_ALLOWED
        return devices
    return holdings.with_holdings(devices, claims)


async def listed(
    api: Api, resource: Resource, *, namespace: str | None = None, selector: str | None = None
) -> Any:
    """List the objects of a kind.

    Raises:
        CannotAnswer: The cluster does not serve the kind; `NotInstalled` if that is one of vgpu's.
        ClientError: The API server is unreachable or refuses the request.
    """
    try:
        return await api.list(resource, namespace=namespace, label_selector=selector)
    except NotFound as error:
        if not resource.group:
            raise CannotAnswer(
                f"the server does not serve {resource.plural}: it is not a Kubernetes API server"
            ) from error
        raise NotInstalled(
            f"the cluster does not serve {resource.plural}.{resource.group}: vgpu is not "
            "installed, or another version of it"
        ) from error


def _by_kubectl(query: GetQuery, found: Found) -> None:
    if query.kind == "pods":
        raise CannotAnswer("jsonpath of pods: use kubectl get pods, or get slices")
    if shutil.which(query.kubectl[0]) is None:
        raise CannotAnswer("jsonpath needs kubectl, which is not on the PATH")
    resource = KINDS[query.kind]
    which = [f"{resource.plural}.{resource.group}".rstrip(".")]
    names = list(query.names)
    # Print nodes by name, because kubectl does not know which nodes have devices.
    if resource is NODES:
        names = sorted(name for _, name in found.objects)
        if not names:
            return
    which += names
    if query.selector and not names:
        which += ["-l", query.selector]
    if resource.namespaced:
        which += ["-A"] if query.namespace is None else ["-n", query.namespace]
    which += ["-w"] if query.watch else []
    done = subprocess.run([*query.kubectl, "get", *which, "-o", query.output], check=False)
    if done.returncode:
        raise CannotAnswer(f"kubectl get failed with status {done.returncode}")


def _print(
    query: GetQuery,
    objects: Sequence[Object],
    found: Found,
    printer: Printer,
    *,
    header: bool = True,
) -> None:
    resource = KINDS[query.kind]
    if query.output == "name":
        kind = "pod" if query.kind == "pods" else resource.kind.lower()
        group = f".{resource.group}" if resource.group and query.kind != "pods" else ""
        for obj in objects:
            printer.line(f"{kind}{group}/{_name(query, obj)}")
    elif query.output in ("json", "yaml"):
        printer.out.write(_as_document(query, [_shown(obj) for obj in objects]))
        printer.out.flush()
    elif not objects:
        printer.line(_none_found(query))
    else:
        from vgpu_operator.cli.object_tables import table  # the models are slow to load

        shown = table(query, objects, found.devices.values(), datetime.now(UTC))
        printer.table(shown, header=header, is_whole=query.output == "wide")


def _none_found(query: GetQuery) -> str:
    where = f" in namespace {query.namespace}" if query.namespace else ""
    what = "pods with claims" if query.kind == "pods" else query.kind
    return f"no {what} found{where}"


def _as_document(query: GetQuery, objects: list[Object]) -> str:
    # Like kubectl, print one named object by itself and everything else as a List.
    alone = len(objects) == 1 and (len(query.names) == 1 or query.watch)
    document = objects[0] if alone else {"apiVersion": "v1", "kind": "List", "items": objects}
    if query.output == "json":
        return json.dumps(document, indent=4, ensure_ascii=False) + "\n"
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return f"---\n{text}" if query.watch else text


def _shown(obj: Object) -> Object:
    """Return an object without the fields that kubectl hides as well."""
    metadata = {key: part for key, part in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


async def _watch(query: GetQuery, api: Api, found: Found, printer: Printer) -> None:
    # The row of a node sums up its devices, so a watch of nodes watches devices.
    resource = GPU_DEVICES if query.kind == "nodes" else KINDS[query.kind]
    while True:
        try:
            async with aclosing(
                api.watch(
                    resource,
                    resource_version=found.version,
                    namespace=query.namespace,
                    label_selector=None if query.kind == "nodes" else query.selector,
                )
            ) as events:
                async for event in events:
                    found.version = event["object"]["metadata"]["resourceVersion"]
                    changed = _changed(query, event, found)
                    if changed:
                        _print(query, changed, found, printer, header=False)
        except Gone:
            # Changes since the last version are lost, so print everything again.
            found = await _read(query, api)
            _print(query, list(found.objects.values()), found, printer, header=False)


def _changed(query: GetQuery, event: Mapping[str, Any], found: Found) -> list[Object]:
    """Return the objects to print after a watch event."""
    obj = event["object"]
    if event["type"] == "BOOKMARK":
        return []
    if query.kind != "nodes":
        if query.kind == "pods" and not _pod_of(obj):
            return []
        return [obj] if not query.names or _name(query, obj) in query.names else []
    if event["type"] == "DELETED":
        found.devices.pop(obj["metadata"]["name"], None)
    else:
        found.devices[obj["metadata"]["name"]] = obj
    node = found.objects.get(("", obj["spec"]["nodeName"]))
    return [] if node is None else [node]


def _name(query: GetQuery, obj: Object) -> str:
    """Return the name by which an object is asked for."""
    return _pod_of(obj) if query.kind == "pods" else str(obj["metadata"]["name"])


def _pod_of(obj: Object) -> str:
    """Return the pod of a claim; empty if it has none, or cannot be read."""
    from vgpu_operator.cli.object_tables import pod_of  # the models are slow to load

    return pod_of(obj)


def _key(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
