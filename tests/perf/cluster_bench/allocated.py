"""Creates pods that already hold devices: copies of one pod and its claim, put into etcd.

The first pod goes through scheduler and operator; all others are copies of the result in the API
server, with other names, on other devices. They fill a node's devices one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perf.cluster_bench.paper import SLOTS, Etcd
from perf.cluster_bench.timed import NAMESPACE
from vgpu_api.names import device_object_name, pod_claim_name
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.nodes import device_uuid

FILLED = SLOTS - 1
"""This many claims per device: the first pod has a slot of one of them."""
_PREFIX = "before"
_CLAIMS = f"/registry/{VGPU_CLAIMS.group}/{VGPU_CLAIMS.plural}/{NAMESPACE}/"
_PODS = f"/registry/pods/{NAMESPACE}/"


async def make_allocated(
    api: Api, etcd: Path, name: str, node_uids: Mapping[str, str], count: int
) -> None:
    """Create this many running pods, each with its claim and a slice of a device.

    Args:
        api: An administrator's client.
        etcd: The Unix socket of etcd's clients.
        name: The name of a pod that is bound and has its slice.
        node_uids: The nodes' UIDs by name.
        count: The number of pods, at most `FILLED` for each
        device.
    """
    pod = await api.get(PODS, name, namespace=NAMESPACE)
    claim = pod_claim_name(name, pod["metadata"]["uid"])
    pod |= {"apiVersion": "v1", "kind": PODS.kind}
    pod["metadata"]["labels"] = {}  # no load's
    pod["status"]["phase"] = "Running"
    with contextlib.closing(Etcd(etcd)) as store:
        stored = store.get(_CLAIMS + claim)
        await asyncio.to_thread(_put, store, copies(pod, stored, node_uids, count))


def _put(store: Etcd, pairs: Iterable[tuple[str, Object]]) -> None:
    """Put one object per transaction, for watchers: no two objects may have the same version."""
    for pair in pairs:
        store.put([pair])


def copies(
    pod: Object, claim: Object, node_uids: Mapping[str, str], count: int
) -> Iterator[tuple[str, Object]]:
    """Yield copies of a pod and of its claim, each with its key in etcd.

    Args:
        pod: Bound.
        claim: The pod's own, with one device.
        node_uids: By the nodes' names.
        count: How many pods.
    """
    nodes = list(node_uids)
    allocation = claim["status"]["allocation"]
    (given,) = allocation["devices"]
    pod_text, claim_text = json.dumps(pod), json.dumps(claim)
    for number in range(count):
        node, index = nodes[number % len(nodes)], number // len(nodes) // FILLED
        name, uid = f"{_PREFIX}-{number}", str(uuid.uuid4())
        device = device_uuid(node, index)
        words = {
            claim["metadata"]["name"]: pod_claim_name(name, uid),
            claim["metadata"]["uid"]: str(uuid.uuid4()),
            pod["metadata"]["name"]: name,
            pod["metadata"]["uid"]: uid,
            allocation["id"]: str(uuid.uuid4()),
            allocation["nodeUID"]: node_uids[node],
            allocation["nodeName"]: node,
            given["name"]: device_object_name(device),
            given["uuid"]: device,
        }
        copied = json.loads(_replaced(claim_text, words))
        copied["status"]["allocation"]["devices"][0]["index"] = index
        yield _CLAIMS + copied["metadata"]["name"], copied
        yield _PODS + name, json.loads(_replaced(pod_text, words))


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text
