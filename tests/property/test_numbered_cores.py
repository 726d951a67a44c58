"""Numbered cores are never allocated twice, whichever pods come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_pod
from vendor_vectors import CONFIG, a_claim_of, a_ledger, in_use
from vgpu_api.core import Node, Pod
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read
from vgpu_operator.placement import place

pytestmark = pytest.mark.usefixtures("in_turn")

DEVICES = 4
EACH = 2
CORE, DEVICE = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"


def a_neuron_node(instance_type: str) -> Node:
    amounts = {DEVICE: str(DEVICES), CORE: str(DEVICES * EACH)}
    return Node.model_validate(
        {
            "metadata": {
                "name": "node-1",
                "labels": {"node.kubernetes.io/instance-type": instance_type},
            },
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def of_containers(amounts: list[dict[str, str | int]], *, init: int) -> Pod:
    """Return a pod with this number of init containers and at least one other container."""
    made = [a_container(f"c{at}", limits=limits) for at, limits in enumerate(amounts)]
    init = min(init, len(made) - 1)
    return a_pod(containers=made[init:], init_containers=made[:init])


by_cores = st.sampled_from((1, 1, 1, 2, 4)).map(lambda count: {CORE: count})
whole = st.sampled_from((1, 2, 4)).map(lambda count: {DEVICE: count})
some_amounts = st.one_of(st.lists(by_cores, min_size=1, max_size=3), st.lists(whole, min_size=1))
pods = st.builds(
    lambda amounts, init: of_containers(amounts[:3], init=init), some_amounts, st.integers(0, 2)
)
steps = st.lists(st.one_of(pods, st.integers(0, 20)), max_size=25)


@given(steps=steps, instance_type=st.sampled_from(("inf2.48xlarge", "trn1.32xlarge")))
def test_a_core_is_one_claims_at_a_time_also_after_a_restart(
    steps: list[Pod | int], instance_type: str
) -> None:
    """Containers that run at the same time share no core with each other or with another claim; the
    bits in use agree with the percentages; and objects alone give the same state again.
    """
    node, claims = a_neuron_node(instance_type), dict[int, VGPUClaim]()
    ledger = a_ledger([node])
    for number, step in enumerate(steps):
        if isinstance(step, int):
            gone = claims.pop(step, None)
            if gone is not None:
                ledger.remove_claim(gone.metadata.uid or "")
            continue
        demand = read(step, CONFIG)
        assert demand is not None
        assert demand.spec is not None
        plan = place(ledger.columns, Demand.of(demand.spec, CONFIG))
        if plan.refused:
            continue
        claims[number] = a_claim_of(demand.spec, plan, number)
        ledger.apply_claim(claims[number])
        check(claims)
        for slots, cores, memory, bits in in_use(ledger).values():
            assert memory == 0
            assert slots <= EACH
            assert cores == bits.bit_count() * 100 // EACH
    assert in_use(a_ledger([node], claims.values())) == in_use(ledger)


def check(claims: dict[int, VGPUClaim]) -> None:
    held = dict[tuple[str, int], int]()
    for number, claim in claims.items():
        assert claim.status.allocation is not None
        of_apps = set[tuple[str, int]]()
        for device in claim.status.allocation.devices:
            cores = {(device.uuid, core) for core in device.core_ids or ()}
            assert len(cores) == device.cores * EACH // 100 > 0
            assert not any(held.get(core, number) != number for core in cores)
            held |= dict.fromkeys(cores, number)
            if phase_of(claim.spec, device.request) == "App":
                assert not cores & of_apps
                of_apps |= cores


def phase_of(spec: VGPUClaimSpec, name: str) -> str:
    return next(request.phase for request in spec.requests if request.name == name)
