"""The admission webhook configurations of a cluster whose webhooks run on this machine."""

from __future__ import annotations

import base64
from typing import Any

from vgpu_api.resources import PODS, VGPU_CLAIMS, Resource
from vgpu_client.transport import Object


def mutating_webhooks(url: str, ca: bytes) -> Object:
    """Compose the configuration for the webhooks that change pods and claims.

    Args:
        url: where the webhooks are served.
        ca: PEM of whom to trust.
    """
    hooks = [
        _hook("mutate-pods", PODS, ["CREATE"], url, ca),
        {**_hook("mutate-claims", VGPU_CLAIMS, ["CREATE"], url, ca), "failurePolicy": "Ignore"},
    ]
    return _configuration("MutatingWebhookConfiguration", hooks)


def validating_webhooks(url: str, ca: bytes) -> Object:
    """Compose the configuration for the webhooks that refuse pods and claims.

    Args:
        url: where the webhooks are served.
        ca: PEM of whom to trust.
    """
    hooks = [
        _hook("validate-pods", PODS, ["CREATE"], url, ca),
        {**_hook("warn-pods", PODS, ["CREATE"], url, ca), "failurePolicy": "Ignore"},
        _hook("validate-claims", VGPU_CLAIMS, ["CREATE", "UPDATE"], url, ca),
    ]
    return _configuration("ValidatingWebhookConfiguration", hooks)


def _configuration(kind: str, hooks: list[dict[str, Any]]) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "vgpu"},
        "webhooks": hooks,
    }


def _hook(
    name: str, resource: Resource, operations: list[str], url: str, ca: bytes
) -> dict[str, Any]:
    return {
        "name": f"{name}.vgpu.dev",
        "clientConfig": {"url": f"{url}/{name}", "caBundle": base64.b64encode(ca).decode()},
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": [resource.version],
                "operations": operations,
                "resources": [resource.plural],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
