"""Finds the pod or claim that a command is about: NAME, pod/NAME or claim/NAME."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_CLAIM, SCHEDULING_GATE, pod_claim_name
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.dialects.resource_claims import claim_of_pod

_PLACES = {"pod": PODS, "pods": PODS, "claim": VGPU_CLAIMS, "slice": VGPU_CLAIMS,
           "vgpuclaim": VGPU_CLAIMS, "vgc": VGPU_CLAIMS}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedPod:
    """A pod that a command is about.

    Attributes:
        mode: The mode that the pod was admitted in, if it shows that; else empty.
    """

    name: str
    uid: str
    mode: str


async def subject_of(
    api: Api, subject: str, namespace: str
) -> tuple[NamedPod | None, VGPUClaim | None]:
    """Return the pod, if the subject is a pod, and the claim, if it exists.

    Args:
        api: Reads the cluster.
        subject: `pod/NAME`, `claim/NAME`, or a name, which is looked up as a pod first.
        namespace: The namespace of the pod or the claim.

    Raises:
        CannotAnswer: The pod or claim does not exist.
        ClientError: The API server is unreachable, or the pod or claim may not be read.
    """
    prefix, _, name = subject.rpartition("/")
    if prefix and prefix.lower() not in _PLACES:
        raise CannotAnswer(f"{subject}: use NAME, pod/NAME or claim/NAME")
    desired = _PLACES.get(prefix.lower())
    if desired is not VGPU_CLAIMS:
        try:
            raw = await api.get(PODS, name, namespace=namespace)
        except NotFound:
            if desired is PODS:
                raise CannotAnswer(f"no pod {name} in namespace {namespace}") from None
        else:
            pod = Pod.model_validate(raw)
            gates = [gate.get("name") for gate in pod.spec.scheduling_gates]
            mode = "Gate" if SCHEDULING_GATE in gates else ""
            found = NamedPod(name, pod.metadata.uid, "Claims" if claim_of_pod(pod) else mode)
            return found, await _claim_of(api, pod)
    claim = await _claim(api, name, namespace)
    if claim is None:
        what = "claim" if desired is VGPU_CLAIMS else "pod and no claim"
        raise CannotAnswer(f"no {what} {name} in namespace {namespace}")
    return None, claim


async def claim_of(api: Api, subject: str, namespace: str) -> VGPUClaim:
    """Return the claim that a command is about.

    Raises:
        CannotAnswer: The pod or claim does not exist, or the pod has no claim yet.
        ClientError: The API server is unreachable, or the pod or claim may not be read.
    """
    pod, claim = await subject_of(api, subject, namespace)
    if claim is None:
        name = "" if pod is None else pod.name
        raise CannotAnswer(
            f"pod {namespace}/{name} has no claim: it asks for no GPU, or has no place yet"
        )
    return claim


async def _claim(api: Api, name: str, namespace: str) -> VGPUClaim | None:
    try:
        return VGPUClaim.read(await api.get(VGPU_CLAIMS, name, namespace=namespace))
    except NotFound:
        return None
    except ValidationError as error:
        raise CannotAnswer(f"claim {namespace}/{name} cannot be read: {error}") from error


async def _claim_of(api: Api, pod: Pod) -> VGPUClaim | None:
    """Return the claim that belongs to the pod or that the pod names."""
    namespace = pod.metadata.namespace or ""
    claims = (await listed(api, VGPU_CLAIMS, namespace=namespace)).items
    for raw in claims:
        if ((raw.get("status") or {}).get("reservedFor") or {}).get("podUID") == pod.metadata.uid:
            return VGPUClaim.read(raw)
    own = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    named = pod.metadata.annotations.get(ANNOTATION_CLAIM, own)
    return next((VGPUClaim.read(raw) for raw in claims if raw["metadata"]["name"] == named), None)
