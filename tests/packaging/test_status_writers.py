"""The admission policy on a claim's status covers every field of the status."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from vgpu_api.v1alpha1 import VGPUClaimStatus

POLICY = Path(__file__).parents[2] / "manifests/base/policies/claim-status.yaml"
AGENTS = {"released", "initReleased", "initWanted"}


def test_an_agent_may_change_its_own_fields_of_a_claims_status_and_no_other() -> None:
    """A new field of the status has no writer until the policy names it."""
    policy = yaml.safe_load(POLICY.read_text())
    rules = " ".join(rule["expression"] for rule in policy["spec"]["validations"])
    kept = set(re.findall(r"object\.\?status\.(\w+) == oldObject\.\?status\.\1\b", rules))
    fields = {field.alias or name for name, field in VGPUClaimStatus.model_fields.items()}
    assert kept == fields - AGENTS - {"conditions"}
