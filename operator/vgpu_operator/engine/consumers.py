"""A pod that asks for GPUs, as the engine knows it: its ask, and which claim serves it."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.names import pod_claim_name
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimSpec
from vgpu_operator.dialects import PodAsk, containers_of_claim, read
from vgpu_operator.engine.claim_writer import Key


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod and its ask.

    `ask` is what is wrong with it where it could not be read. `claim` is the claim that serves
    the pod: its own (`owned`), made from the ask or copied from a template, or the one it names.
    """

    pod: Pod
    ask: PodAsk | BadInput
    claim: Key
    owned: bool

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return self.pod.metadata.uid

    @property
    def template(self) -> Key | None:
        """The claim to copy, for a pod that names a template."""
        named = None if isinstance(self.ask, BadInput) else self.ask.native
        if named is None or not named.is_template:
            return None
        return (self.pod.metadata.namespace or "", named.name)

    @property
    def reserved_for(self) -> ReservedFor:
        """How a claim's status names this pod."""
        return ReservedFor(pod_name=self.pod.metadata.name, pod_uid=self.uid)

    @property
    def wants_node(self) -> bool:
        """Whether it waits to be placed: neither bound, nor ended, nor going, nor gated."""
        pod = self.pod
        return not (
            pod.is_bound
            or pod.is_terminal
            or pod.metadata.deletion_timestamp is not None
            or pod.spec.scheduling_gates
        )

    @property
    def lacks_grant(self) -> bool:
        """Whether it may run on its node, if only it had an allocation there."""
        pod = self.pod
        return pod.is_bound and not pod.is_terminal and pod.metadata.deletion_timestamp is None


def consumer_of(pod: Pod, config: ClusterConfig) -> Consumer | None:
    """The pod as a consumer; None when it asks for no GPU."""
    namespace = pod.metadata.namespace or ""
    own = (namespace, pod_claim_name(pod.metadata.name, pod.metadata.uid))
    try:
        ask = read(pod, config)
    except BadInput as error:
        return Consumer(pod, error, own, owned=True)
    if ask is None:
        return None
    if ask.native is not None and not ask.native.is_template:
        return Consumer(pod, ask, (namespace, ask.native.name), owned=False)
    return Consumer(pod, ask, own, owned=True)


def mismatch(consumer: Consumer, spec: VGPUClaimSpec) -> str:
    """What keeps this claim from serving the pod's containers; empty when they match.

    The containers that admission recorded must be those the claim's requests name, each of the
    kind its request's phase says.
    """
    if isinstance(consumer.ask, BadInput):
        return ""
    try:
        wanted = containers_of_claim(consumer.pod, spec)
    except BadInput as error:
        return str(error)
    if set(wanted) != set(consumer.ask.containers):
        recorded = ", ".join(consumer.ask.containers) or "none"
        return f"the claim asks for {', '.join(wanted)}; the pod was admitted with {recorded}"
    return ""


def is_owned_by(claim: VGPUClaim, pod_uid: str) -> bool:
    """Whether the claim is that pod's own."""
    return any(owner.uid == pod_uid for owner in claim.metadata.owner_references)


def serves_another(claim: VGPUClaim, consumer: Consumer) -> bool:
    """Whether the claim is reserved for another pod."""
    reserved = claim.status.reserved_for
    return (
        claim.status.allocation is not None
        and reserved is not None
        and bool(reserved.pod_uid)
        and reserved.pod_uid != consumer.uid
    )
