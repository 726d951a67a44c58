"""The health rules that we publish for Argo CD, run by a Lua interpreter as Argo CD runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from builders import a_device
from example_claims import example_claims, statuses, with_status
from vgpu_api.v1alpha1 import Condition, VGPUClaim

RULES = yaml.safe_load(
    (Path(__file__).parents[3] / "manifests/examples/argo-cd/argocd-cm.yaml").read_text()
)["data"]
CLAIM_RULE = RULES["resource.customizations.health.vgpu.dev_VGPUClaim"]
DEVICE_RULE = RULES["resource.customizations.health.vgpu.dev_GPUDevice"]
EXPECTED = {
    "waits for its pod": "Healthy",
    "is a template": "Healthy",
    "finds no room": "Progressing",
    "has devices": "Healthy",
    "was expired": "Progressing",
    "was released": "Healthy",
    "is being deleted": "Progressing",
}


def health(rule: str, raw: dict[str, Any]) -> tuple[str, str | None]:
    """Return the status and the message of an object by a rule, which sees it as `obj`."""
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    lua.globals().obj = lua.table_from(raw, recursive=True)
    for library in ("os", "io", "package", "require"):  # Argo CD opens none of these
        lua.globals()[library] = None
    found = lua.execute(rule)
    return found.status, found.message


def test_every_claim_of_the_examples_has_the_health_of_its_situation() -> None:
    for claim in example_claims():
        found = {
            name: health(CLAIM_RULE, with_status(claim, desired))[0]
            for name, desired in statuses(claim).items()
        }
        assert found == EXPECTED, claim.metadata.name


def test_a_refused_claim_says_why() -> None:
    claim = next(example_claims())
    raw = with_status(claim, statuses(claim)["finds no room"])
    assert health(CLAIM_RULE, raw) == ("Progressing", "1/1 CardInsufficientMemory")


def changed(**changes: Any) -> dict[str, Any]:
    claim: VGPUClaim = next(example_claims())
    raw = with_status(claim, statuses(claim)["has devices"])
    raw["status"] |= changes
    return raw


@pytest.mark.parametrize("status", [{"observedGeneration": -1, "conditions": []}, {}])
def test_a_claim_that_the_operator_has_not_read_is_progressing(status: dict[str, Any]) -> None:
    raw = changed()
    assert health(CLAIM_RULE, {**raw, "status": status})[0] == "Progressing"


def test_a_claim_that_is_violated_is_degraded_and_says_how() -> None:
    fault = {"type": "Violated", "status": "True", "reason": "R", "message": "what is wrong"}
    raw = changed()
    raw["status"]["conditions"].append(fault)
    assert health(CLAIM_RULE, raw) == ("Degraded", "what is wrong")
    fault["status"] = "False"
    assert health(CLAIM_RULE, raw)[0] == "Healthy"


@pytest.mark.parametrize(
    ("status", "expected"), [("True", "Healthy"), ("False", "Degraded"), ("Unknown", "Degraded")]
)
def test_a_device_is_as_healthy_as_it_is_ready(status: str, expected: str) -> None:
    raw = a_device().to_wire()
    raw["status"]["conditions"] = [
        Condition(type="Ready", status=status, message="its agent is silent").to_wire()
    ]
    assert health(DEVICE_RULE, raw) == (expected, "its agent is silent")
    raw["status"]["conditions"] = []
    assert health(DEVICE_RULE, raw)[0] == "Progressing"
