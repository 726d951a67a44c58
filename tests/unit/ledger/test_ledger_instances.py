"""The ledger counts the places of instances on devices in MIG mode."""

from __future__ import annotations

from builders import (
    a_claim,
    a_device,
    a_node,
    a_request,
    a_spec,
    an_allocated_device,
    an_allocation,
    an_ask,
)
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import AllocatedDevice
from vgpu_api.v1alpha1.gpudevice import MigPlacement, MigProfile, MigStatus
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Plan, place

CUT = MigStatus(
    enabled=True,
    profiles=[
        MigProfile(
            name="3g.20gb",
            memory="19968Mi",
            cores=42,
            slices=3,
            placements=[MigPlacement(start=0, size=4), MigPlacement(start=4, size=4)],
        )
    ],
)
SPEC = a_spec([a_request(memory="15Gi")])


def a_ledger(mig: MigStatus | None = CUT) -> Ledger:
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_node(a_node())
    ledger.apply_device(a_device(memory_mib=40_960, mig=mig))
    return ledger


def a_plan(ledger: Ledger) -> Plan:
    return place(ledger.columns, an_ask(*SPEC.requests))


def a_part(start: int | None, request: str = "") -> AllocatedDevice:
    """Return an instance that begins there, or for None a share without a recorded place."""
    device = an_allocated_device(memory_mib=19_968, cores=42, request=request)
    mig = None if start is None else MigAllocation(profile="3g.20gb", start=start, size=4)
    return device.model_copy(update={"mig": mig})


def held(ledger: Ledger, name: str, *devices: AllocatedDevice) -> None:
    ledger.apply_claim(a_claim(name, requests=SPEC.requests, allocation=an_allocation(*devices)))


def starts(plan: Plan) -> list[int]:
    return [grant.instance.start for grant in plan.grants if grant.instance is not None]


def test_a_claims_instance_keeps_its_place_until_the_claim_is_gone():
    ledger = a_ledger()
    assert starts(a_plan(ledger)) == [4]
    held(ledger, "one", a_part(4))
    assert starts(a_plan(ledger)) == [0]
    held(ledger, "two", a_part(0))
    assert a_plan(ledger).refused
    ledger.remove_claim("uid-of-one")
    assert starts(a_plan(ledger)) == [4]


def test_an_instance_that_is_being_written_keeps_its_place():
    ledger = a_ledger()
    first = ledger.assume(("default", "one"), SPEC, a_plan(ledger).allocation())
    second = ledger.assume(("default", "two"), SPEC, a_plan(ledger).allocation())
    assert a_plan(ledger).refused
    ledger.forget(first)
    assert starts(a_plan(ledger)) == [4]
    ledger.forget(second)


def test_a_share_of_a_cut_device_that_names_no_place_fills_the_device():
    ledger = a_ledger()
    held(ledger, "one", a_part(None))
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"


def test_one_part_without_a_place_is_enough_to_fill_the_device():
    ledger = a_ledger()
    held(ledger, "one", a_part(0), a_part(None, request="other"))
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"


def test_an_instance_on_a_device_that_is_not_in_mig_mode_any_more_fills_it():
    ledger = a_ledger(mig=None)
    held(ledger, "one", a_part(0))
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"


def test_profiles_count_only_while_the_device_is_in_mig_mode():
    ledger = a_ledger(mig=CUT.model_copy(update={"enabled": False}))
    assert [grant.instance for grant in a_plan(ledger).grants] == [None]
