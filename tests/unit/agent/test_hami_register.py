"""The agent writes the node's devices in HAMi's format."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from set_clock import SetClock
from vgpu_api.config import NvidiaConfig
from vgpu_client.errors import Forbidden, NotFound
from vgpu_nodeagent.discovery.drivers.base import DeviceLink, InstanceProfile, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import capacity_of
from vgpu_nodeagent.reporting.hami_register import Entry, HamiRegister, register_text, score_text

DEVICE = PhysicalDevice(index=0, uuid="GPU-0", model="Tesla T4", memory_mib=16384, minor=0)


def an_entry(device: PhysicalDevice = DEVICE, **fields: Any) -> Entry:
    terms = capacity_of(device, None, fields.pop("config", NvidiaConfig()))
    return Entry(device, terms, **{"mode": "Shared", "healthy": True, **fields})


def words(*entries: Entry) -> list[dict[str, Any]]:
    return json.loads(register_text(entries))  # type: ignore[no-any-return]


def test_a_device_is_described_with_every_field_of_the_format() -> None:
    assert register_text([an_entry(replace(DEVICE, numa_node=1))]) == (
        '[{"id":"GPU-0","index":0,"count":10,"devmem":16384,"devcore":100,'
        '"type":"NVIDIA-Tesla T4","numa":1,"mode":"hami-core","health":true}]'
    )


def test_amounts_are_what_may_be_given_away() -> None:
    config = NvidiaConfig(device_memory_scaling=1.5, device_core_scaling=2, device_split_count=4)
    (device,) = words(an_entry(config=config))
    assert (device["count"], device["devmem"], device["devcore"]) == (4, 24576, 200)


def test_a_model_that_names_its_vendor_is_not_named_twice() -> None:
    (device,) = words(an_entry(replace(DEVICE, model="NVIDIA A100-SXM4-80GB")))
    assert device["type"] == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("entry", "mode"),
    [
        (an_entry(mode="Exclusive"), "hami-core"),
        (an_entry(replace(DEVICE, mig_enabled=True)), "mig"),
    ],
)
def test_modes_are_hamis(entry: Entry, mode: str) -> None:
    assert words(entry)[0]["mode"] == mode


def test_devices_are_listed_by_index() -> None:
    second = replace(DEVICE, uuid="GPU-1", index=1)
    assert [device["id"] for device in words(an_entry(second), an_entry())] == ["GPU-0", "GPU-1"]


class Server:
    """An API server that accepts patches or answers with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.patches: list[Any] = []

    async def merge_patch(self, resource: Any, name: str, changes: Any, **_: Any) -> None:
        self.patches.append(changes)
        if self.error is not None:
            raise self.error


def a_register(server: Server) -> HamiRegister:
    return HamiRegister(server, node="n1")  # type: ignore[arg-type]


async def test_it_is_written_when_it_changes_and_for_a_node_made_anew() -> None:
    server = Server()
    register = a_register(server)
    for healthy in (True, True, False):
        await register.write([an_entry(healthy=healthy)])
    assert len(server.patches) == 2
    register.forget()
    await register.write([an_entry(healthy=False)])
    assert len(server.patches) == 3


async def test_without_the_right_to_write_it_the_agent_goes_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register = a_register(Server(Forbidden("no", status=403)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await register.write([an_entry()])
    assert len(caplog.records) == 1


async def test_a_node_that_is_gone_is_no_failure() -> None:
    server = Server(NotFound("gone", status=404))
    register = a_register(server)
    await register.write([an_entry()])
    await register.write([an_entry()])
    assert len(server.patches) == 2


PROFILE = InstanceProfile("1g.5gb", 4864, 14, 1, ((0, 1), (4, 1)))


def test_a_device_in_mig_mode_lists_what_it_can_be_divided_into_and_counts_its_instances() -> None:
    claim_instance = replace(DEVICE, mig_enabled=True, mig_profiles=(PROFILE,))
    (device,) = words(an_entry(claim_instance))
    assert list(device)[-3:] == ["mode", "migProfiles", "health"]
    assert device["migProfiles"] == [
        {
            "name": "1g.5gb",
            "memoryMB": 4864,
            "core": 14,
            "sliceCount": 1,
            "placements": [{"start": 0, "size": 1}, {"start": 4, "size": 1}],
        }
    ]
    assert device["count"] == 2
    assert (
        words(an_entry(claim_instance, config=NvidiaConfig(device_split_count=1)))[0]["count"] == 1
    )


def test_scores_of_pairs_are_listed_where_devices_are_linked() -> None:
    first = replace(DEVICE, links=(DeviceLink("GPU-1", "NV4", 400),))
    second = replace(DEVICE, uuid="GPU-1", index=1, links=(DeviceLink("GPU-0", "NV4", 400),))
    assert score_text([an_entry(second), an_entry(first)]) == (
        '[{"uuid":"GPU-0","score":{"GPU-1":400}},{"uuid":"GPU-1","score":{"GPU-0":400}}]'
    )
    assert score_text([an_entry()]) == ""


async def test_scores_are_written_beside_the_devices() -> None:
    server = Server()
    register = a_register(server)
    linked = replace(DEVICE, links=(DeviceLink("GPU-1", "NV4", 400),))
    await register.write([an_entry()])
    await register.write([an_entry(linked)])
    keys = [set(patch["metadata"]["annotations"]) for patch in server.patches]
    assert keys == [
        {"hami.io/node-handshake", "hami.io/node-nvidia-register"},
        {"hami.io/node-handshake", "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"},
    ]


async def test_the_handshake_says_when_the_register_was_written_last() -> None:
    server, clock = Server(), SetClock()
    register = HamiRegister(server, node="n1", clock=clock)  # type: ignore[arg-type]
    for clock.time, healthy in ((0.0, True), (1.0, True), (1_700_000_000.0, False)):
        await register.write([an_entry(healthy=healthy)])
    said = [patch["metadata"]["annotations"]["hami.io/node-handshake"] for patch in server.patches]
    assert said == ["Reported_1970-01-01 00:00:00", "Reported_2023-11-14 22:13:20"]
