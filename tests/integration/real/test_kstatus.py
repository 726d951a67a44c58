"""kstatus, the library of Flux and kpt, judges the claims of the examples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from example_claims import example_claims, statuses, with_status
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.api import Api

BUILD = Path(__file__).parents[2] / "cluster" / "kstatus" / "build.sh"
EXPECTED = {
    "waits for its pod": "Current",
    "is a template": "Current",
    "finds no room": "InProgress",
    "has devices": "Current",
    "was expired": "InProgress",
    "was released": "Current",
    "is being deleted": "InProgress",
}


@pytest.fixture(scope="module")
def kstatus() -> str:
    """The path of the program that runs kstatus."""
    done = subprocess.run(["bash", str(BUILD)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def judged(kstatus: str, *objects: dict[str, Any]) -> list[str]:
    done = subprocess.run(
        [kstatus], input=json.dumps(objects), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [verdict["status"] for verdict in json.loads(done.stdout)]


def test_no_claim_of_the_examples_is_waited_for_but_while_it_waits_for_devices(
    kstatus: str,
) -> None:
    claims = list(example_claims())
    assert len(claims) > 10
    for claim in claims:
        named = statuses(claim)
        found = judged(kstatus, *(with_status(claim, desired) for desired in named.values()))
        assert dict(zip(named, found, strict=True)) == EXPECTED, claim.metadata.name


def test_a_claim_that_changed_is_in_progress_until_the_operator_has_read_it(kstatus: str) -> None:
    claim = next(example_claims())
    raw = with_status(claim, statuses(claim)["has devices"])
    raw["metadata"]["generation"] += 1
    assert judged(kstatus, raw) == ["InProgress"]


async def test_a_claim_that_no_operator_has_read_is_in_progress(
    api: Api, namespace: str, kstatus: str
) -> None:
    claim = next(example_claims())
    body = {
        "apiVersion": VGPU_CLAIMS.api_version,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"namespace": namespace, "name": claim.metadata.name},
        "spec": claim.spec.to_wire(),
    }
    await api.create(VGPU_CLAIMS, body)
    stored = await api.get(VGPU_CLAIMS, claim.metadata.name, namespace=namespace)
    assert stored["status"] == {"observedGeneration": -1}
    assert judged(kstatus, stored) == ["InProgress"]
