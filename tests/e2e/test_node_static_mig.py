"""A MIG instance that an administrator created is allocated as is and never changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from real_node import AGENTS, RealNode, a_pod, a_slice, until

pytestmark = pytest.mark.timeout(300)

DEVICE = "GPU-00000007-"
MACHINE = "/var/lib/vgpu-demo/machine"
MAKE = """
import ctypes, sys
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
place = n.c_nvmlGpuInstancePlacement_t(4, 4)
made = n.nvmlDeviceCreateGpuInstanceWithPlacement(card, 9, ctypes.byref(place))
n.nvmlGpuInstanceCreateComputeInstance(made, 2)
"""
TAKE_AWAY = """
import ctypes, sys
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
count, found = ctypes.c_uint(), (n.c_nvmlGpuInstance_t * 7)()
n.nvmlDeviceGetGpuInstances(card, 9, found, ctypes.byref(count))
for made in found[: count.value]:
    inner, compute = ctypes.c_uint(), (n.c_nvmlComputeInstance_t * 7)()
    n.nvmlGpuInstanceGetComputeInstances(made, 2, compute, ctypes.byref(inner))
    for each in compute[: inner.value]:
        n.nvmlComputeInstanceDestroy(each)
    n.nvmlGpuInstanceDestroy(made)
"""
"""Profile 9 is 3g.40gb of an A100 with 80 GB, compute profile 2 the whole of it."""


@pytest.fixture
def divided(node: RealNode) -> Iterator[str]:
    """Partition a device in MIG mode for static use; yield the name of its object."""
    name = _device(node)["metadata"]["name"]
    _set_mode(node, name, "on", "Static")
    _as_the_agent(node, MAKE, _device(node)["status"]["uuid"])
    until(lambda: _instances(node), "the instance to be published")
    yield name
    _as_the_agent(node, TAKE_AWAY, _device(node)["status"]["uuid"])
    _set_mode(node, name, "off", "OnDemand")


def test_an_instance_made_by_hand_is_given_and_outlives_its_pod(
    node: RealNode, namespace: str, divided: str
) -> None:
    (before,) = _instances(node)
    pod = a_pod("static", namespace, limits=a_slice(30_000))
    pod["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "mig"}
    node.apply(pod)
    node.ready(namespace, "static")
    (claim,) = node.get("vgpuclaims", namespace=namespace)["items"]
    (device,) = claim["status"]["allocation"]["devices"]
    place = {key: device["mig"][key] for key in ("profile", "start", "size")}
    assert place == {"profile": "3g.40gb", "start": 4, "size": 4}
    seen = node.shell(namespace, "static", "printenv", "NVIDIA_VISIBLE_DEVICES").strip()
    assert seen == before
    node.clear(namespace)
    node.nothing_is_left()
    assert _instances(node) == [before]


def _device(node: RealNode) -> dict[str, Any]:
    devices = node.get("gpudevices")["items"]
    found: dict[str, Any] = next(d for d in devices if d["status"]["uuid"].startswith(DEVICE))
    return found


def _instances(node: RealNode) -> list[str]:
    """Return the UUIDs of the instances of a device that is published as static."""
    mig = _device(node)["status"].get("mig", {})
    found = mig.get("instances", []) if mig.get("static") else []
    assert isinstance(found, list)
    return found


def _set_mode(node: RealNode, device: str, mode: str, instances: str) -> None:
    """Do what `nvidia-smi -mig` and a device reset do; the agent reads the mode when it starts."""
    node.run("sed", "-i", f"/{DEVICE}/s/mig=[a-z]*/mig={mode}/", MACHINE)
    patch = json.dumps({"spec": {"migInstances": instances}})
    node.kubectl("patch", "gpudevice", device, "--type=merge", "-p", patch)
    rollout = ("-n", AGENTS, "rollout")
    node.kubectl(*rollout, "restart", "daemonset/vgpu-nodeagent")
    node.kubectl(*rollout, "status", "daemonset/vgpu-nodeagent", "--timeout=120s", limit_s=130)


def _as_the_agent(node: RealNode, program: str, uuid: str) -> None:
    """Run a program with the agent's Python and driver."""
    shell = '"$(head -n 1 "$(command -v vgpu-nodeagent)" | cut -c3-)" -c "$0" "$1"'
    run = ("-n", AGENTS, "exec", "daemonset/vgpu-nodeagent", "-c", "nodeagent", "--")
    node.kubectl(*run, "sh", "-c", shell, program, uuid)
