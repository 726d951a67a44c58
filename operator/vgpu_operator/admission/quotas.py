"""Refuses a pod beyond its namespace's quota at creation, as HAMi does (`quotaAt: Admission`).

The check is advisory. Two pods that are created at the same time may both pass; the operator then
decides them one after the other, and the second one waits. A percentage of a device's memory also
passes, because its size is unknown until a device is chosen.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodScopes, ResourceQuota
from vgpu_api.resources import PODS, RESOURCE_QUOTAS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_client.api import Api
from vgpu_operator.admission.rules import Denied
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import PodDemand, read
from vgpu_operator.ledger.quotas import Quotas
from vgpu_operator.ledger.shares import NOTHING, shares_of


class OverQuota(Denied):
    """The pod would exceed its namespace's quota; code 403, as Kubernetes uses for quotas."""

    code = 403


async def refuse_over_quota(
    raw_pod: dict[str, Any], namespace: str, *, api: Api, config: ClusterConfig
) -> None:
    """Refuse a pod that requests more than its namespace's quota has left.

    Raises:
        OverQuota: The message starts with HAMi's text; then come all exceeded limits in the format
            of Kubernetes.
        ClientError: The quotas or claims cannot be read.
    """
    with denying():
        pod = read_pod(raw_pod)
        demand = read(pod, config)
    if demand is None:
        return
    scopes, is_scoped = PodScopes.of(pod), False
    quotas = Quotas(config=config)
    for item in (await api.list(RESOURCE_QUOTAS, namespace=namespace)).items:
        quota = ResourceQuota.model_validate(item)
        quotas.apply(quota)
        is_scoped = is_scoped or quota.spec.is_scoped
    if not quotas.left(namespace, scopes).is_limited:
        return
    scopes_of = await _scopes_by_uid(api, namespace) if is_scoped else {}
    claims: dict[str, VGPUClaim] = {}
    for item in (await api.list(VGPU_CLAIMS, namespace=namespace)).items:
        try:
            claim = VGPUClaim.read(item)
        except ValidationError:
            continue  # the operator counts an unreadable claim in full
        claims[claim.metadata.name] = claim
        shares = shares_of(claim.spec, claim.status.allocation)
        reserved = claim.status.reserved_for
        of_pod = None if reserved is None else scopes_of.get(reserved.pod_uid)
        quotas.move(namespace, before=NOTHING, after=shares, scopes=of_pod)
    spec = _desired(demand, claims)
    over = (
        [] if spec is None else quotas.surely_exceeded(namespace, Demand.of(spec, config), scopes)
    )
    if over:
        raise OverQuota(f"exceeding resource quota: {'; '.join(over)}")


async def _scopes_by_uid(api: Api, namespace: str) -> dict[str, PodScopes]:
    """Return the quota scopes of each pod in a namespace, by the pod's UID."""
    found: dict[str, PodScopes] = {}
    for item in (await api.list(PODS, namespace=namespace)).items:
        try:
            pod = Pod.model_validate(item)
        except ValidationError:
            continue
        found[pod.metadata.uid] = PodScopes.of(pod)
    return found


def _desired(demand: PodDemand, claims: dict[str, VGPUClaim]) -> VGPUClaimSpec | None:
    """Return the amounts that the pod would add to its namespace; None if its claim holds them."""
    if demand.native is None:
        return demand.spec
    claim = claims.get(demand.native.name)
    if claim is None or (claim.status.allocation is not None and not demand.native.is_template):
        return None
    return claim.spec
