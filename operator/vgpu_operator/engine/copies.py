"""The copies of the cluster that a replica keeps: one reflector a kind, bringing in what it sees.

Every kind that decisions rest on stands in the table below, and nowhere else. A leader trusts its
copies only after all of them have been listed anew (`leadership.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from vgpu_api.core import Node, Pod, ResourceQuota
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, RESOURCE_QUOTAS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.api import Api
from vgpu_client.reflector import Reflector
from vgpu_client.transport import Object
from vgpu_operator.engine.intake import Intake
from vgpu_operator.engine.sinks import NoteSink
from vgpu_operator.metrics import WATCH_RESTARTS

T = TypeVar("T")


def copies(api: Api, intake: Intake) -> list[Reflector[Any]]:
    """All of them: nodes, devices and quotas first, so that claims find their cards and limits."""
    return [
        _copy(
            api,
            NODES,
            Node.model_validate,
            NoteSink(
                intake.node_changed,
                lambda identity: intake.node_gone(identity.name),
                lambda identity, _: intake.node_unreadable(identity.name, identity.uid),
            ),
        ),
        _copy(
            api,
            GPU_DEVICES,
            GPUDevice.model_validate,
            NoteSink(intake.device_changed, lambda identity: intake.device_gone(identity.name)),
        ),
        _copy(
            api,
            RESOURCE_QUOTAS,
            ResourceQuota.model_validate,
            NoteSink(
                intake.quota_changed,
                lambda identity: intake.quota_gone(identity.namespace, identity.name),
            ),
        ),
        _copy(
            api,
            VGPU_CLAIMS,
            VGPUClaim.read,
            NoteSink(
                intake.claim_changed,
                lambda identity: intake.claim_gone(
                    (identity.namespace, identity.name), identity.uid
                ),
                lambda identity, raw: intake.claim_unreadable(identity.uid, raw),
            ),
        ),
        _copy(
            api,
            PODS,
            Pod.model_validate,
            NoteSink(
                intake.pod_changed,
                lambda identity: intake.pod_gone(identity.uid, was_seen=identity.was_seen),
            ),
            on_list=intake.pods_listed,
        ),
    ]


def _copy(
    api: Api,
    resource: Resource,
    decode: Callable[[Object], T],
    sink: NoteSink[T],
    *,
    on_list: Callable[[int, Iterable[str]], object] = lambda version, uids: None,
) -> Reflector[T]:
    def restarted(reason: str) -> None:
        WATCH_RESTARTS.labels(kind=resource.kind, reason=reason).inc()

    return Reflector(api, resource, sink, decode=decode, on_restart=restarted, on_list=on_list)
