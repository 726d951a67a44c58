"""A pod on a real node gets exactly its slice and cannot bypass its limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from real_node import RealNode, a_pod, a_slice

MIB = 1 << 20
LIMITS = "/usr/local/vgpu/limits"


@dataclass(frozen=True, slots=True)
class Sliced:
    """A running pod with a slice of 3000 MiB."""

    node: RealNode
    namespace: str
    name: str = "sliced"

    def shell(self, *command: str) -> str:
        return self.node.shell(self.namespace, self.name, *command)

    def fails(self, script: str) -> str:
        """Return the output of a script in a shell of the pod; the script must fail."""
        done = self.node.attempt(
            *("kubectl", "-n", self.namespace, "exec", self.name, "--", "sh", "-c", script)
        )
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture(scope="module")
def sliced(node: RealNode) -> Iterator[Sliced]:
    with node.namespace() as namespace:
        node.apply(a_pod("sliced", namespace, limits=a_slice(3000, cores=30)))
        node.ready(namespace, "sliced")
        yield Sliced(node, namespace)


def _probe(text: str) -> dict[str, Any]:
    answer = json.loads(text)
    assert isinstance(answer, dict)
    return answer


def test_a_pod_in_hamis_words_fills_its_slice_to_the_exact_byte(sliced: Sliced) -> None:
    assert _probe(sliced.shell("vgpu-probe", "fill"))["filled"] == 3000 * MIB


def test_nvidia_smi_shows_the_slice_as_the_device(sliced: Sliced) -> None:
    asked = ("nvidia-smi", "--query-gpu=memory.total,uuid", "--format=csv,noheader")
    total, uuid = sliced.shell(*asked).strip().split(", ")
    assert total == "3000 MiB"
    claims = sliced.node.get("vgpuclaims", namespace=sliced.namespace)["items"]
    assert [d["uuid"] for d in claims[0]["status"]["allocation"]["devices"]] == [uuid]
    assert "/   3000MiB" in sliced.shell("nvidia-smi")


@pytest.mark.parametrize(
    "escape",
    [
        "unset LD_PRELOAD; env -i /usr/local/bin/vgpu-probe fill",
        "LD_PRELOAD= VGPU_LIMIT_PAGE=/nowhere VGPU_USAGE_REGION=/nowhere vgpu-probe fill",
        "NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=0,1,2,3 vgpu-probe fill",
        "CUDA_DISABLE_CONTROL=true CUDA_DEVICE_MEMORY_LIMIT_0=9999999M vgpu-probe fill",
        "cp /usr/local/bin/vgpu-probe /tmp/mine; cd /tmp; exec -a sh env -i ./mine fill",
    ],
)
def test_a_shell_with_another_environment_is_still_limited(sliced: Sliced, escape: str) -> None:
    assert _probe(sliced.shell("bash", "-c", escape))["filled"] == 3000 * MIB


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (f"printf x > {LIMITS}", "Read-only file system"),
        (f"rm {LIMITS}", "busy"),
        (f"mv {LIMITS} /tmp/", "busy"),
        (f"mount -o remount,rw {LIMITS}", LIMITS),
        (f"mount --bind /etc/passwd {LIMITS}", LIMITS),
        (f"umount {LIMITS}", LIMITS),
        ("printf x > /etc/ld.so.preload", "Read-only file system"),
        ("rm /etc/ld.so.preload", "busy"),
        ("for f in /usr/local/vgpu/libvgpu-*; do printf x > $f; done", "Read-only file system"),
    ],
)
def test_root_in_a_container_cannot_change_its_own_page(
    sliced: Sliced, attack: str, said: str
) -> None:
    assert said in sliced.fails(attack)
    assert _probe(sliced.shell("vgpu-probe", "fill"))["filled"] == 3000 * MIB


def test_a_container_sees_its_own_page_and_device_alone(sliced: Sliced) -> None:
    other = a_pod("other", sliced.namespace, limits=a_slice(5000))
    sliced.node.apply(other)
    sliced.node.ready(sliced.namespace, "other")
    find = "find / -xdev -name limits -o -path '*/slots/*' 2>/dev/null; grep -c limits /proc/mounts"
    pages = sliced.shell("sh", "-c", find).split()
    assert pages == ["1"] or pages == [LIMITS, "1"]
    mine = sliced.shell("sha256sum", LIMITS).split()[0]
    assert sliced.node.shell(sliced.namespace, "other", "sha256sum", LIMITS).split()[0] != mine
    devices = sliced.shell("sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
    assert devices.strip() == "1"


def test_root_in_a_container_cannot_open_devices_that_it_makes_nodes_of(sliced: Sliced) -> None:
    (own,) = sliced.shell("sh", "-c", "ls /dev | grep '^nvidia[0-9]'").split()
    for device in range(8):
        script = f"mknod /dev/mine{device} c 195 {device} && cat /dev/mine{device}"
        is_own = own == f"nvidia{device}"
        said = "No such device or address" if is_own else "Operation not permitted"
        answer = sliced.fails(script)
        rules = "/sys/fs/cgroup/devices/devices.list"
        assert said in answer, (device, answer, sliced.shell("cat", rules))


def test_a_pod_without_a_slice_finds_no_device(node: RealNode, namespace: str) -> None:
    node.apply(a_pod("plain", namespace))
    node.ready(namespace, "plain")
    assert node.shell(namespace, "plain", "sh", "-c", "ls /dev | grep -c nvidia; true") == "0\n"


@pytest.mark.parametrize("file", ["region", "another"])
def test_no_user_of_a_container_fills_the_nodes_disk_by_its_usage_region(
    node: RealNode, namespace: str, file: str
) -> None:
    node.apply(a_pod("filler", namespace, limits=a_slice(1000)))
    node.ready(namespace, "filler")
    usage = "/usr/local/vgpu/usage"
    size = node.shell(namespace, "filler", "stat", "-f", "-c", "%b %S", usage).split()
    assert int(size[0]) * int(size[1]) < 3 * MIB
    script = f"dd if=/dev/zero of={usage}/{file} bs=1M seek=1 count=64 conv=notrunc"
    done = node.attempt("kubectl", "-n", namespace, "exec", "filler", "--", "sh", "-c", script)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


def test_a_container_has_the_nodes_that_compute_needs_and_no_other(sliced: Sliced) -> None:
    nodes = sliced.shell("sh", "-c", "ls /dev | grep nvidia").split()
    assert len([name for name in nodes if name[6:].isdigit()]) == 1
    assert {name for name in nodes if not name[6:].isdigit()} <= {"nvidiactl", "nvidia-uvm"}
