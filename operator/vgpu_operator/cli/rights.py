"""Says what to use instead where a user's rights do not suffice, as those of a namespace's editor.

GPUs and nodes belong to no namespace, and the agents' pods are privileged: a tenant reads none of
them unless somebody binds a role to it.
"""

from __future__ import annotations

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import SELF_SUBJECT_ACCESS_REVIEWS
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli.listing import CannotAnswer

_DEVICES_VIEW = "ClusterRole vgpu-devices-view"
INSTEAD_OF_DEVICES = (
    f"the {_DEVICES_VIEW} has this right; get slices shows the GPUs that your pods have"
)
INSTEAD_OF_NODES = (
    "a ClusterRole bound to you must list nodes; get slices shows the nodes of your pods"
)
INSTEAD_OF_ALL_NAMESPACES = "name one of your namespaces with -n"
INSTEAD_OF_SIMULATE = (
    "simulate counts what all namespaces use; kubectl create --dry-run=server -f FILE shows what "
    "admission refuses and warns of, and the web page (kubectl vgpu web) answers the same question "
    f"with the {_DEVICES_VIEW} alone"
)
_INSTEAD_OF_AGENTS = (
    "top asks the agents in their pods; kubectl exec POD -- nvidia-smi shows what a pod of yours "
    "uses, and kubectl vgpu get slices what it may use"
)


def lacking(error: Forbidden, instead: str) -> CannotAnswer:
    """Return the error for a user who may not read something, with what to use instead."""
    return CannotAnswer(f"{error.message}; {instead}")


async def require_agents(api: Api) -> None:
    """Check that the user may run commands in the agents' pods.

    Raises:
        CannotAnswer: The user may not.
        ClientError: The API server is unreachable.
    """
    for verb, resource, subresource in (("list", "pods", ""), ("create", "pods", "exec")):
        attributes = {
            "namespace": AGENT_NAMESPACE,
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
        }
        if not await _may(api, attributes):
            what = "/".join(filter(None, (resource, subresource)))
            raise CannotAnswer(
                f"forbidden: you may not {verb} {what} in namespace {AGENT_NAMESPACE}; "
                f"{_INSTEAD_OF_AGENTS}"
            )


async def _may(api: Api, attributes: dict[str, str]) -> bool:
    """Return True if the user has a right, or if the server does not answer such questions."""
    resource = SELF_SUBJECT_ACCESS_REVIEWS
    review = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await api.create(resource, review)
    except (Forbidden, NotFound):
        return True  # then the request itself is refused, with a message of its own
    return bool((answer.get("status") or {}).get("allowed"))
