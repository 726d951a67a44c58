"""The command line adds up claims; a device's own view of them may be late."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_device, a_request, an_allocated_device, an_allocation
from vgpu_operator.cli.holdings import with_holdings


def a_late_device(uuid: str = "GPU-0") -> dict[str, Any]:
    """Return a device of 16 GiB whose status still shows a claim that has ended."""
    wire = a_device(uuid=uuid, memory_mib=16384).to_wire()
    wire["status"]["allocated"] = {"memory": "8Gi", "cores": 0, "slots": 1}
    wire["status"]["claims"] = [{"namespace": "default", "name": "ended", "memory": "8Gi"}]
    return wire


def shown(claims: list[dict[str, Any]], uuid: str = "GPU-0") -> tuple[dict[str, Any], list[str]]:
    (device,) = with_holdings([a_late_device(uuid)], claims)
    names = [f"{each['namespace']}/{each['name']}" for each in device["status"]["claims"]]
    return device["status"]["allocated"], names


def a_holder(name: str, mib: int, cores: int = 0) -> dict[str, Any]:
    part = an_allocated_device(memory_mib=mib, cores=cores)
    return a_claim(name, allocation=an_allocation(part)).to_wire()


def test_what_is_held_is_what_the_claims_say_and_not_the_devices_own_view() -> None:
    allocated, names = shown([a_holder("b", 3072, 30), a_holder("a", 1024)])
    assert allocated == {"memory": "4Gi", "cores": 30, "slots": 2}
    assert names == ["default/a", "default/b"]


def test_a_device_that_no_claim_holds_shows_zeros() -> None:
    assert shown([]) == ({"memory": "0", "cores": 0, "slots": 0}, [])
    assert shown([a_holder("elsewhere", 1024)], "GPU-7")[0]["memory"] == "0"


def test_init_containers_and_the_containers_after_them_count_once() -> None:
    requests = [a_request(name="fetch", phase="Init"), a_request(name="train")]
    parts = [
        an_allocated_device(request="fetch", memory_mib=4096),
        an_allocated_device(request="train", memory_mib=1024),
    ]
    claim = a_claim("c", requests=requests, allocation=an_allocation(*parts)).to_wire()
    assert shown([claim])[0] == {"memory": "4Gi", "cores": 0, "slots": 1}


def test_a_claim_that_cannot_be_read_counts_to_the_full_as_the_operator_counts_it() -> None:
    claim = a_holder("from-a-later-version", 1024)
    claim["status"]["allocation"]["devices"][0]["memory"] = ["1Gi"]
    allocated, names = shown([claim])
    assert (allocated["memory"], names) == ("16Gi", ["default/from-a-later-version"])
