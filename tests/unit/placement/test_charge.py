"""The amounts that a plan charges a claim with, which check 9 compares with the quota."""

from __future__ import annotations

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.reasons import Reason
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement import Budget
from vgpu_operator.placement.constraints import UNLIMITED, Charge
from vgpu_operator.placement.fit_device import refusal_of_room


def asking(**fields) -> RequestDemand:
    return an_ask(a_request(**{"memory": "1Mi", **fields})).requests[0]


@pytest.mark.parametrize(
    ("budget", "limited"),
    [(UNLIMITED, False), (Budget(0), True), (Budget(None, 0), True), (Budget(1, 1), True)],
)
def test_a_limit_of_zero_is_a_limit(budget, limited):
    assert budget.is_limited == limited


@pytest.mark.parametrize(
    ("budget", "count", "exceeds"),
    [
        (Budget(200), 2, False),
        (Budget(199), 2, True),
        (Budget(None, 60), 2, False),
        (Budget(None, 59), 2, True),
        (Budget(200, 59), 2, True),
        (Budget(199, 60), 2, True),
        (UNLIMITED, 64, False),
    ],
)
def test_memory_and_cores_are_charged_times_the_count(budget, count, exceeds):
    assert Charge(budget).exceeds(0, asking(count=count, cores=30), 100) == exceeds


def test_who_is_over_the_limit_already_may_take_what_costs_nothing_more():
    charge = Charge(Budget(-5, -5))
    assert charge.exceeds(0, asking(cores=1), 0)
    assert charge.exceeds(0, asking(), 1)
    assert not charge.exceeds(0, asking(), 0)


def test_app_containers_add_up_over_all_devices():
    charge = Charge(Budget(250, 100))
    charge.add(0, asking(cores=40), 100)
    charge.add(1, asking(cores=20), 50)
    assert not charge.exceeds(0, asking(cores=40), 100)
    assert charge.exceeds(0, asking(cores=40), 101)
    assert charge.exceeds(2, asking(cores=41), 100)


def test_init_containers_count_by_the_greatest_of_them_and_only_beyond_the_app_containers():
    charge = Charge(Budget(300, 80))
    assert not charge.exceeds(0, asking(phase="Init", cores=80), 300)
    assert charge.exceeds(0, asking(phase="Init", cores=81), 300)
    init = asking(phase="Init", cores=60)
    charge.add(0, init, 200)
    charge.add(
        0, asking(phase="Init", cores=50), 150
    )  # they run one after the other, so no more than that
    assert not charge.exceeds(1, asking(cores=20), 100)
    assert charge.exceeds(1, asking(cores=21), 100)
    assert charge.exceeds(1, asking(cores=20), 101)
    charge.add(0, asking(cores=60), 200)  # as much as init containers had on the device
    assert not charge.exceeds(1, asking(cores=20), 100)
    charge.add(0, asking(cores=10), 60)
    assert not charge.exceeds(1, asking(cores=10), 40)
    assert charge.exceeds(1, asking(cores=10), 41)
    assert charge.exceeds(1, asking(cores=11), 40)


def test_an_init_container_is_charged_beside_the_sidecars_that_were_started_before_it():
    charge = Charge(Budget(300, 80, 2))
    charge.add(0, asking(name="side", cores=30), 100)
    assert not charge.exceeds(0, asking(name="prepare", phase="Init", cores=50), 200)
    assert charge.exceeds(0, asking(name="prepare", phase="Init", cores=51), 200)
    assert charge.exceeds(0, asking(name="prepare", phase="Init", cores=50), 201)
    assert charge.exceeds(1, asking(name="prepare", phase="Init", count=2), 1)
    charge.add(1, asking(name="prepare", phase="Init", cores=50), 200)
    assert not charge.exceeds(
        1, asking(name="main", cores=50), 200
    )  # this container runs after `prepare`
    assert charge.exceeds(0, asking(name="main"), 1)


def test_each_amount_peaks_on_its_own():
    charge = Charge(Budget(150, 50))
    charge.add(0, asking(phase="Init", cores=10), 150)
    charge.add(0, asking(phase="Init", cores=40), 10)
    assert not charge.exceeds(0, asking(cores=50), 150)
    assert charge.exceeds(0, asking(cores=50), 151)
    assert charge.exceeds(0, asking(cores=51), 150)


def test_a_device_on_which_init_containers_held_more_already_is_not_too_dear():
    columns = some_columns(device_facts("x"), device_facts("y", index=1))
    charge = Charge(Budget(3_072))
    charge.add(0, asking(memory="3Gi", phase="Init"), 3_072)
    main = asking(memory="1Gi")
    assert refusal_of_room(columns, 0, main, (), charge) is None
    assert refusal_of_room(columns, 1, main, (), charge) is Reason.RESOURCE_QUOTA_NOT_FIT
