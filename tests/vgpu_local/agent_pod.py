"""The pod in which a node's agent would run, with the state that the kubelet would report.

Agents run as processes of their own here. The operator learns from their pods that they are alive,
and tells them by an annotation of their pods that their devices have changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from vgpu_api.names import AGENT_LABELS, AGENT_NAMESPACE, ANNOTATION_REQUEUE
from vgpu_api.resources import GPU_DEVICES, NAMESPACES, PODS
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists, ClientError
from vgpu_client.transport import Object

PERIOD_S = 2.0
TIMEOUT_S = 5.0
FAILURES = 3
"""The readiness probe of `manifests/base/nodeagent/daemonset.yaml`."""

log = logging.getLogger(__name__)


def agent_pod(node: str) -> Object:
    """Return the agent's pod on a node."""
    return {
        "metadata": {
            "name": f"vgpu-nodeagent-{node}",
            "namespace": AGENT_NAMESPACE,
            "labels": dict(AGENT_LABELS),
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "nodeagent", "image": "registry.invalid/vgpu/nodeagent"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


async def create_agent_pod(api: Api, node: str) -> str:
    """Create the agent's pod and its namespace, unless they exist; return the pod's name."""
    pod = agent_pod(node)
    with suppress(AlreadyExists):
        await api.create(NAMESPACES, {"metadata": {"name": AGENT_NAMESPACE}})
    with suppress(AlreadyExists):
        await api.create(PODS, pod)
    return str(pod["metadata"]["name"])


async def keep_agent_pod(api: Api, node: str, port: int) -> None:
    """Create the agent's pod, and probe the agent's readiness until cancelled."""
    name, failures, shown = "", 0, ""
    while True:
        began = time.monotonic()
        try:
            if not name:
                name = await create_agent_pod(api, node)
            found = await _probe(port)
            failures = 0 if found == "True" else failures + 1
            if found == "Ended" or failures >= FAILURES or not shown:
                found = "False"
            if found != shown and found in ("True", "False"):
                await _show(api, name, found)
                shown = found
        except ClientError as error:
            log.info("pod of the agent of node %s: %s", node, error)
        await asyncio.sleep(max(0.0, began + PERIOD_S - time.monotonic()))


async def _probe(port: int) -> str:
    """Return True, False or Ended; Ended if no process listens, so its container has ended."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
                answer = await reader.readline()
            finally:
                writer.close()
    except ConnectionRefusedError:
        return "Ended"
    except (TimeoutError, OSError):
        return "Failed"
    return "True" if b" 200 " in answer else "Failed"


async def _show(api: Api, name: str, ready: str) -> None:
    """Write the pod's condition Ready; it stays Pending, because commands cannot be run in it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": now}
    changes = {"status": {"conditions": [condition]}}
    await api.merge_patch(PODS, name, changes, namespace=AGENT_NAMESPACE, subresource="status")


async def mark_agent_pod(api: Api, node: str) -> None:
    """Replace an absent operator until cancelled: mark the pod when a device changes."""
    name, marks, begun = await create_agent_pod(api, node), 0, None
    while True:
        try:
            if begun is None:
                begun = (await api.list(GPU_DEVICES)).resource_version
            async with aclosing(api.watch(GPU_DEVICES, resource_version=begun)) as events:
                async for event in events:
                    begun = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "BOOKMARK":
                        continue
                    marks += 1
                    annotations = {ANNOTATION_REQUEUE: f"devices {marks}"}
                    changes = {"metadata": {"annotations": annotations}}
                    await api.merge_patch(PODS, name, changes, namespace=AGENT_NAMESPACE)
        except ClientError as error:
            log.info("mark of the agent of node %s: %s", node, error)
            begun = None
            await asyncio.sleep(0.1)
