"""Which claim a pod may use, and what it asks for: what stands written, before any decision.

A pod's claim is its own, made from what it asks or copied from a template, or the one it names.
"""

from __future__ import annotations

from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.consumers import Consumer, is_owned_by, mismatch, serves_another
from vgpu_operator.engine.refusals import Refusal


class PodClaims:
    """Claims as pods see them.

    Args:
        books: What was seen.
    """

    def __init__(self, books: Books) -> None:
        self._books = books

    def spec_for(self, consumer: Consumer) -> VGPUClaimSpec | Refusal:
        """The spec of the claim that the pod has, or will have."""
        if isinstance(consumer.ask, BadInput):
            return Refusal(Reason.POD_UNREADABLE, str(consumer.ask), {})
        claim = self._books.claim(consumer.claim)
        for key in (consumer.claim, None if claim is not None else consumer.template):
            if key is not None and self._books.is_unreadable(key):
                text = f"claim {key[1]} cannot be read; what it holds it keeps"
                return Refusal(Reason.CLAIM_UNREADABLE, text, {})
        if claim is not None:
            return claim.spec
        if consumer.ask.spec is not None:
            return consumer.ask.spec
        if consumer.template is not None:
            return self._copy_for(consumer, consumer.template)
        text = f"claim {consumer.claim[1]} does not exist: create it first"
        return Refusal(Reason.CLAIM_NOT_FOUND, text, {})

    def _copy_for(self, consumer: Consumer, key: Key) -> VGPUClaimSpec | Refusal:
        """The spec of the claim to be made from a template, which itself is never decided."""
        template = self._books.claim(key)
        if template is None:
            text = f"claim template {key[1]} does not exist: create it first"
            return Refusal(Reason.CLAIM_NOT_FOUND, text, {})
        if template.spec.binding_mode != "WaitForFirstConsumer":
            text = f"claim {key[1]} is {template.spec.binding_mode}; a template must not be"
            return Refusal(Reason.REQUEST_MISMATCH, text, {})
        differs = mismatch(consumer, template.spec)
        return Refusal(Reason.REQUEST_MISMATCH, differs, {}) if differs else template.spec

    def refusal_of(self, claim: VGPUClaim, consumer: Consumer) -> Refusal | None:
        """Why an existing claim cannot serve the pod, whatever cards there are; None if it can."""
        name = claim.metadata.name
        if consumer.owned and not is_owned_by(claim, consumer.uid):
            text = f"claim {name} exists and is not this pod's own"
            return Refusal(Reason.CLAIM_NOT_OWNED, text, {})
        if claim.metadata.deletion_timestamp is not None:
            return Refusal(Reason.CLAIM_IN_USE, f"claim {name} is going away", {})
        if serves_another(claim, consumer):
            reserved = claim.status.reserved_for
            assert reserved is not None
            return Refusal(Reason.CLAIM_IN_USE, f"claim {name} serves {reserved.pod_name}", {})
        differs = mismatch(consumer, claim.spec)
        if differs:
            return Refusal(Reason.REQUEST_MISMATCH, differs, {})
        if claim.status.allocation is None and self._books.is_template(consumer.claim):
            text = f"claim {name} is a template: name it in the pod as one"
            return Refusal(Reason.TEMPLATE, text, {})
        return None
