"""A program that gets past the library is seen by the node's agent all the same."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.resources import VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod, claim_name, create

pytestmark = pytest.mark.xdist_group("local-cluster")

# Half the limit through the library; then, in a namespace of its own where there is no shadow of
# the driver either, more than the rest. Frees that when told to.
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


def is_violated(status: str) -> Any:
    def holds(claim: dict[str, Any]) -> bool:
        conditions = (claim.get("status") or {}).get("conditions") or []
        return any(c["type"] == "Violated" and c["status"] == status for c in conditions)

    return holds


def test_a_claim_above_its_limit_is_violated_until_it_obeys_again(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    pod = a_pod(
        "escapee",
        a_container(
            limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000},
            command=[sys.executable, "-c", textwrap.dedent(ESCAPE)],
        ),
    )
    with whole_cluster([t4_node("n1")]) as cluster:
        name = claim_name(create(cluster, pod))
        claim = cluster.wait_for(VGPU_CLAIMS, name, is_violated("True"), limit=60)
        (told,) = (c for c in claim["status"]["conditions"] if c["type"] == "Violated")
        assert told["reason"] == "AboveLimit"
        assert "holds 8000 MiB" in told["message"]
        assert "2000 MiB of them by its own word; its limit is 4000 MiB" in told["message"]

        os.kill(int(cluster.logs("escapee")), signal.SIGUSR1)
        cluster.wait_for(VGPU_CLAIMS, name, is_violated("False"), limit=60)
        events = [e for e in cluster.objects("events") if e["reason"] == "MemoryLimitViolated"]
        assert [event["involvedObject"]["name"] for event in events] == ["escapee"]
