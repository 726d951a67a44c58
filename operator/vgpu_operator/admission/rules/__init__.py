"""The rules of admission, as pure functions.

Pods are mutated, refused or warned about. Claims and configurations are validated.

The caller passes in whatever has to be looked up, such as the claim that a pod names.
"""

from vgpu_operator.admission.rules.claim_templates import (
    NamedObjects,
    ask_by_claims,
    asks_as_described,
    objects_named_by,
)
from vgpu_operator.admission.rules.claims import claim_without_effect, mutate_claim, validate_claim
from vgpu_operator.admission.rules.claims_mode import copied_claim, resource_claim_named_by
from vgpu_operator.admission.rules.configuration import validate_configuration
from vgpu_operator.admission.rules.denial import Denied
from vgpu_operator.admission.rules.no_effect import unanswered
from vgpu_operator.admission.rules.pod_mutation import (
    claim_named_by,
    mutate_ephemeral_containers,
    mutate_pod,
)
from vgpu_operator.admission.rules.pod_validation import disables_control
from vgpu_operator.admission.rules.pod_warnings import pod_warnings
from vgpu_operator.admission.rules.raw_pod import RawPod, too_many_containers
from vgpu_operator.admission.rules.volcano_jobs import check_volcano_job
from vgpu_operator.admission.rules.warnings import misspelt, waits_for_claim

__all__ = [
    "Denied",
    "NamedObjects",
    "RawPod",
    "ask_by_claims",
    "asks_as_described",
    "check_volcano_job",
    "claim_named_by",
    "claim_without_effect",
    "copied_claim",
    "disables_control",
    "misspelt",
    "mutate_claim",
    "mutate_ephemeral_containers",
    "mutate_pod",
    "objects_named_by",
    "pod_warnings",
    "resource_claim_named_by",
    "too_many_containers",
    "unanswered",
    "validate_claim",
    "validate_configuration",
    "waits_for_claim",
]
