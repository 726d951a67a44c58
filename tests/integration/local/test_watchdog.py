"""The node's agent finds a program that gets around the library."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim_name,
    create,
    delete_pod,
    empty,
    forget_events,
    running,
    until,
)

# Allocate half the limit through the library; then allocate more than the rest in a mount namespace
# that has no shadow of the driver either. Free the second part on request.
ESCAPE = """
    import ctypes, os, signal
    MIB = 1 << 20
    def take(driver, mib):
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        assert driver.cuInit(0) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert driver.cuCtxSetCurrent(context) == 0
        result = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB))
        return result, address
    held = ctypes.CDLL("libcuda.so.1")
    assert take(held, 2000)[0] == 0
    assert take(held, 2001)[0] == 2
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = ctypes.c_void_p
    handle = libc.dlmopen(ctypes.c_long(-1), b"libcuda.so.1", ctypes.c_int(2))
    escaped = ctypes.CDLL("escaped", handle=handle)
    result, address = take(escaped, 6000)
    assert result == 0
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print(os.getpid(), flush=True)
    signal.pause()
    assert escaped.cuMemFree_v2(address) == 0
    signal.pause()
"""


PERIODS = (1, 3, 10)


@pytest.fixture(scope="module")
def running_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("n1", devices=len(PERIODS))]) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield running_cluster
    empty(running_cluster)
    forget_events(running_cluster)


def is_violated(status: str) -> Any:
    def holds(claim: dict[str, Any]) -> bool:
        conditions = (claim.get("status") or {}).get("conditions") or []
        return any(c["type"] == "Violated" and c["status"] == status for c in conditions)

    return holds


def test_a_claim_above_its_limit_is_violated_until_it_obeys_again(cluster: LocalCluster) -> None:
    pod = a_pod(
        "escapee",
        a_container(
            limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000},
            command=[sys.executable, "-c", textwrap.dedent(ESCAPE)],
        ),
    )
    name = claim_name(create(cluster, pod))
    claim = cluster.wait_for(VGPU_CLAIMS, name, is_violated("True"), limit=60)
    (told,) = (c for c in claim["status"]["conditions"] if c["type"] == "Violated")
    assert told["reason"] == "MemoryLimitViolated"
    assert "held up to 8000 MiB" in told["message"]
    assert "2000 MiB by its own ledger; its limit is 4000 MiB" in told["message"]

    os.kill(int(cluster.logs("escapee")), signal.SIGUSR1)
    cluster.wait_for(VGPU_CLAIMS, name, is_violated("False"), limit=60)
    events = [e for e in cluster.objects("events") if e["reason"] == "MemoryLimitViolated"]
    assert [event["involvedObject"]["name"] for event in events] == ["escapee"]


def test_the_operator_evicts_a_violator_where_that_is_wanted_and_no_other_pod(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}
    escape = [sys.executable, "-c", textwrap.dedent(ESCAPE)]
    with whole_cluster([t4_node("n1")], ClusterOptions(on_violation="Evict")) as cluster:
        create(cluster, a_pod("obeys", a_container(limits=limits)))
        running(cluster, "obeys")
        create(cluster, a_pod("escapee", a_container(limits=limits, command=escape)))
        until(
            cluster,
            lambda: "escapee" not in {p["metadata"]["name"] for p in cluster.objects("pods")},
            limit=60,
        )
        running(cluster, "obeys")
        until(cluster, lambda: evictions(cluster))
        (event,) = evictions(cluster)
        assert event["involvedObject"]["name"] == "escapee"
        assert "held up to 8000 MiB" in event["message"]


def evictions(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Return the events about evictions of the pod."""
    return [event for event in cluster.objects("events") if event["reason"] == "Evicted"]


# Allocate a little through the library, which records whose process it is where pods have no
# cgroups; then use a driver in a namespace of its own, where nothing is hooked.
UNHOOKED = """
    import ctypes, sys, time
    hooked = ctypes.CDLL("libcuda.so.1")
    context, address, entry = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    assert hooked.cuInit(0) == 0
    assert hooked.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert hooked.cuCtxSetCurrent(context) == 0
    assert hooked.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = ctypes.c_void_p
    handle = libc.dlmopen(ctypes.c_long(-1), b"libcuda.so.1", ctypes.c_int(2))
    driver = ctypes.CDLL("unhooked", handle=handle)
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    period = float(sys.argv[1])
"""
PULSES_OF_MEMORY = (
    UNHOOKED
    + """
    while True:
        size = ctypes.c_size_t(12000 << 20)
        assert driver.cuMemAlloc_v2(ctypes.byref(address), size) == 0
        time.sleep(period / 2)
        assert driver.cuMemFree_v2(address) == 0
        time.sleep(period / 2)
"""
)
PULSES_OF_COMPUTE = (
    UNHOOKED
    + """
    text = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry busy_20ms() { ret; }"
    assert driver.cuModuleLoadData(ctypes.byref(address), text) == 0
    module = ctypes.c_void_p(address.value)
    assert driver.cuModuleGetFunction(ctypes.byref(entry), module, b"busy_20ms") == 0
    while True:
        end = time.monotonic() + period / 2
        while time.monotonic() < end:
            assert driver.cuLaunchKernel(entry, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
            assert driver.cuCtxSynchronize() == 0
        time.sleep(period / 2)
"""
)
FORCE = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "reason"),
    [(PULSES_OF_MEMORY, "MemoryLimitViolated"), (PULSES_OF_COMPUTE, "ComputeLimitViolated")],
)
def test_pulses_of_one_three_and_ten_seconds_are_violations(
    cluster: LocalCluster, program: str, reason: str
) -> None:
    """Each has 4000 MiB and a tenth of a device of its own, and uses all of it half of the time."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 10}
    spread = {"hami.io/gpu-scheduler-policy": "spread"}
    names = {}
    for period in PERIODS:
        command = [sys.executable, "-c", textwrap.dedent(program), str(period)]
        pod = a_pod(
            f"pulses-{period}",
            a_container(limits=limits, command=command, env=FORCE),
            annotations=spread,
        )
        names[period] = claim_name(create(cluster, pod))
    for name in names.values():
        claim = cluster.wait_for(VGPU_CLAIMS, name, is_violated("True"), limit=150)
        (told,) = (c for c in claim["status"]["conditions"] if c["type"] == "Violated")
        assert told["reason"] == reason
    events = [
        e["involvedObject"]["name"] for e in cluster.objects("events") if e["reason"] == reason
    ]
    assert set(events) == {f"pulses-{period}" for period in PERIODS}


STRANGER = UNHOOKED.replace(
    "period = float(sys.argv[1])",
    """assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(14999 << 20)) == 0
    time.sleep(600)""",
)


def test_a_process_of_no_claim_is_reported_on_its_device_until_it_ends(
    cluster: LocalCluster,
) -> None:
    def unclaimed(status: str) -> Callable[[dict[str, Any]], bool]:
        def holds(device: dict[str, Any]) -> bool:
            conditions = (device.get("status") or {}).get("conditions") or []
            return any(
                c["type"] == "UnclaimedProcesses" and c["status"] == status for c in conditions
            )

        return holds

    command = [sys.executable, "-c", textwrap.dedent(STRANGER)]
    devices = cluster.objects("gpudevices.vgpu.dev")
    (name,) = (each["metadata"]["name"] for each in devices if each["status"]["index"] == 0)
    create(cluster, a_pod("stranger", a_container(command=command)))
    device = cluster.wait_for(GPU_DEVICES, name, unclaimed("True"), limit=60)
    (told,) = (c for c in device["status"]["conditions"] if c["type"] == "UnclaimedProcesses")
    assert "holds 15000 MiB" in told["message"]
    delete_pod(cluster, "stranger")
    cluster.wait_for(GPU_DEVICES, name, unclaimed("False"), limit=60)
    assert "UnclaimedProcess" in {e["reason"] for e in cluster.objects("events")}
