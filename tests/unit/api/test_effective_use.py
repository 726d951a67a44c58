"""A claim's use of a device at its worst moment, from the containers that run together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_pod
from vgpu_api.effective import Use, effective_use, out_of_order
from vgpu_api.v1alpha1 import AllocatedDevice, VGPUClaimSpec


def a_device(request: str, mib: int, cores: int = 0, uuid: str = "GPU-1") -> AllocatedDevice:
    return AllocatedDevice(request=request, uuid=uuid, memory=f"{mib}Mi", cores=cores)


def a_spec(**phases: str) -> VGPUClaimSpec:
    requests: list[dict[str, Any]] = [{"name": n, "phase": p} for n, p in phases.items()]
    return VGPUClaimSpec.model_validate({"requests": requests})


def test_app_containers_on_a_device_add_up() -> None:
    devices = [a_device("a", 100, 10), a_device("b", 200, 20)]
    assert effective_use(a_spec(a="App", b="App"), devices) == {"GPU-1": Use(300, 30, 2)}


def test_an_init_container_counts_by_its_peak() -> None:
    devices = [a_device("i", 500, 5), a_device("j", 400, 50), a_device("a", 100, 10)]
    spec = a_spec(i="Init", j="Init", a="App")
    assert effective_use(spec, devices) == {"GPU-1": Use(500, 50, 1)}


def test_an_init_container_alone_takes_one_slot() -> None:
    assert effective_use(a_spec(i="Init"), [a_device("i", 7)]) == {"GPU-1": Use(7, 0, 1)}


def test_devices_are_counted_apart() -> None:
    devices = [a_device("a", 100), a_device("a", 50, uuid="GPU-2")]
    assert effective_use(a_spec(a="App"), devices) == {
        "GPU-1": Use(100, 0, 1),
        "GPU-2": Use(50, 0, 1),
    }


def test_a_device_of_an_unknown_request_counts_beside_all_others() -> None:
    devices = [a_device("i", 100), a_device("a", 90), a_device("ghost", 30)]
    assert effective_use(a_spec(i="Init", a="App"), devices) == {"GPU-1": Use(130, 0, 2)}


def test_an_init_container_counts_with_the_sidecar_that_was_started_before_it() -> None:
    devices = [a_device("side", 3000, 30), a_device("prep", 9000, 10), a_device("main", 1000, 50)]
    spec = a_spec(side="App", prep="Init", main="App")
    assert effective_use(spec, devices) == {"GPU-1": Use(12_000, 80, 2)}


def test_an_init_container_does_not_count_with_a_sidecar_that_starts_after_it() -> None:
    devices = [a_device("prep", 9000, 10), a_device("side", 3000, 30), a_device("main", 1000, 50)]
    spec = a_spec(prep="Init", side="App", main="App")
    assert effective_use(spec, devices) == {"GPU-1": Use(9_000, 80, 2)}


def test_the_order_of_the_devices_does_not_matter() -> None:
    devices = [a_device("prep", 9000), a_device("side", 3000)]
    assert effective_use(a_spec(side="App", prep="Init"), devices) == {"GPU-1": Use(12_000, 0, 2)}


def test_kubernetes_own_example_of_sidecars_is_counted_as_there() -> None:
    """Two sidecars and two init containers: max(9, 1 + 5, 1 + 2 + 4, 1 + 2 + 3) per device."""
    spec = a_spec(first="Init", s1="App", second="Init", s2="App", third="Init", main="App")
    sizes = {"first": 9, "s1": 1, "second": 5, "s2": 2, "third": 4, "main": 3}
    assert effective_use(spec, [a_device(*each) for each in sizes.items()]) == {
        "GPU-1": Use(9, 0, 3)
    }
    sizes["first"] = 1
    assert effective_use(spec, [a_device(*each) for each in sizes.items()]) == {
        "GPU-1": Use(7, 0, 3)
    }


def test_requests_that_stand_in_another_order_than_containers_start_are_found() -> None:
    pod = a_pod(
        init_containers=[a_container("side", restart_policy="Always"), a_container("prep")],
        containers=[a_container("main")],
    )
    right = a_spec(side="App", prep="Init", main="App")
    assert out_of_order(right, [r.name for r in right.requests], pod) is None
    apps_swapped = a_spec(side="App", main="App")
    assert out_of_order(apps_swapped, ["main", "side"], pod) is None
    for wrong, first in (
        (a_spec(prep="Init", side="App"), ("side", "prep")),
        (a_spec(main="App", prep="Init"), ("prep", "main")),
    ):
        assert out_of_order(wrong, [r.name for r in wrong.requests], pod) == first


sizes = st.integers(min_value=1, max_value=10_000)


@given(app=st.lists(sizes, max_size=4), init=st.lists(sizes, max_size=4))
def test_use_is_between_the_largest_part_and_the_sum_of_all(
    app: list[int], init: list[int]
) -> None:
    """Invariant without sidecars: use = max(init peak, app sum)."""
    phases = {f"i{i}": "Init" for i in range(len(init))} | {f"a{i}": "App" for i in range(len(app))}
    if not phases:
        return
    devices = [a_device(name, mib) for name, mib in zip(phases, init + app, strict=True)]
    use = effective_use(a_spec(**phases), devices)["GPU-1"]
    assert use.memory_mib == max([sum(app), *init])
    assert use.slots == max(len(app), 1 if init else 0)


def test_uses_add_and_subtract_field_by_field() -> None:
    assert Use(3, 2, 1) + Use(1, 1, 1) == Use(4, 3, 2)
    assert Use(3, 2, 1) - Use(1, 1, 1) == Use(2, 1, 0)
    assert Use(3, 0, 1).peak(Use(1, 5, 1)) == Use(3, 5, 1)
