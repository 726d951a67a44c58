"""The pod's own subresources: the Binding, by which a scheduler gives it a node, and eviction."""

from __future__ import annotations

import orjson

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.admission import Attempt
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.deletes import DeleteOptions, Deleter
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.storage import Stored
from vgpu_local.apiserver.writes import Draft, Writer, uid_mismatch


async def bind(
    writer: Writer, pods: Resource, namespace: str, name: str, binding: Obj, call: Call
) -> None:
    """Give a pod its node; the Binding's annotations are copied onto the pod.

    Raises:
        StatusError: 400 for a Binding of another name; 404; 409 for another UID, a pod that has
            a node, is being deleted or is gated; 500, as the real one, for one without target.
    """
    meta = binding.get("metadata") or {}
    if meta.get("name") != name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise errors.StatusError(500, "", "target.name: Required value")
    uid = meta.get("uid")
    attempt = Attempt(pods, "binding", "CREATE", namespace, name, binding, None, call)
    await writer.admission.mutate(attempt)
    await writer.admission.validate(attempt)

    def refused(why: str) -> errors.StatusError:
        return errors.conflict(pods, name, why, subresource="binding")

    def change(stored: Stored) -> Draft:
        pod: Obj = orjson.loads(stored.raw)
        if uid and uid != pod["metadata"]["uid"]:
            raise uid_mismatch(pods, name, uid, pod["metadata"]["uid"])
        if "deletionTimestamp" in pod["metadata"]:
            raise refused(f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise refused(f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        if pod["spec"].get("schedulingGates"):
            raise refused(f"pod {name} has non-empty .spec.schedulingGates")
        pod["spec"]["nodeName"] = node
        for key in ("annotations", "labels"):
            if meta.get(key):
                pod["metadata"].setdefault(key, {}).update(meta[key])
        conditions = pod["status"].setdefault("conditions", [])
        conditions[:] = [item for item in conditions if item["type"] != "PodScheduled"]
        conditions.append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": writer.now()}
        )
        return Draft(pod)

    await writer.change(pods, namespace, name, "binding", change, call)


async def evict(
    deleter: Deleter, pods: Resource, namespace: str, name: str, eviction: Obj, call: Call
) -> None:
    """Delete a pod as its eviction asks; disruption budgets are not kept here.

    Raises:
        StatusError: 404, 409.
    """
    options = DeleteOptions.of(eviction.get("deleteOptions"), {})
    await deleter.delete(pods, namespace, name, options, call)
