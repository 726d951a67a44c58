from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgpu_local.kubelet.cdi import BindMount, CdiError, Edits, resolve
from vgpu_local.kubelet.environment import (
    ConfigError,
    command_line,
    container_environment,
    on_host,
)
from vgpu_local.kubelet.podspec import Pod, parse_pod


def a_pod(**container: object) -> Pod:
    return parse_pod(
        {
            "metadata": {"uid": "u-1", "name": "p", "namespace": "ns", "labels": {"team": "red"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", **container}]},
        }
    )


NOTHING = Edits()


def environment(
    pod: Pod, *, allocated: Edits = NOTHING, injected: Edits = NOTHING
) -> dict[str, str]:
    return container_environment(
        pod,
        pod.containers[0],
        image={"PATH": "/bin", "A": "image"},
        allocated=allocated,
        injected=injected,
    )


def write_spec(folder: Path, file: str, kind: str, *devices: dict[str, object]) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": kind, "devices": list(devices)}
    (folder / file).write_text(json.dumps(spec))


def test_cdi_wins_over_the_pods_env_which_wins_over_allocate_and_image():
    pod = a_pod(env=[{"name": "A", "value": "pod"}, {"name": "B", "value": "pod"}])
    allocated = Edits(env=(("A", "allocate"), ("C", "allocate")))
    got = environment(pod, allocated=allocated, injected=Edits(env=(("B", "cdi"),)))
    assert got == {"PATH": "/bin", "A": "pod", "B": "cdi", "C": "allocate"}


def test_a_value_under_a_mounted_path_becomes_the_hosts_path():
    mounts = (BindMount("/usr/x", "/host/x"), BindMount("/usr/x/deep", "/host/deep/"))
    assert on_host("/usr/x", mounts) == "/host/x"
    assert on_host("/usr/x/file", mounts) == "/host/x/file"
    assert on_host("/usr/x/deep/file", mounts) == "/host/deep/file"
    assert on_host("/usr/xy", mounts) == "/usr/xy"
    assert on_host("see /usr/x", mounts) == "see /usr/x"


def test_a_mounted_preload_file_becomes_ld_preload_with_host_paths(tmp_path: Path):
    (tmp_path / "preload").write_text("/opt/lib-1.so /other.so\n")
    mounts = (
        BindMount("/etc/ld.so.preload", str(tmp_path / "preload")),
        BindMount("/opt/lib-1.so", "/host/lib.so"),
    )
    got = environment(a_pod(), injected=Edits(mounts=mounts))
    assert got["LD_PRELOAD"] == "/host/lib.so:/other.so"


def test_env_may_refer_to_earlier_env_and_to_the_pod():
    pod = a_pod(
        env=[
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
            {"name": "ALL", "value": "$(NAME)-$(TEAM)-$(NOPE)-$$(NAME)"},
        ]
    )
    assert environment(pod)["ALL"] == "p-red-$(NOPE)-$(NAME)"


def test_env_from_a_secret_is_refused_by_name():
    pod = a_pod(env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])
    with pytest.raises(ConfigError, match="X: secretKeyRef"):
        environment(pod)


def test_a_container_without_a_command_sleeps_and_one_with_arguments_expands_them():
    assert command_line(a_pod().containers[0], {}) == ("sleep", "infinity")
    container = a_pod(command=["echo"], args=["$(A)"]).containers[0]
    assert command_line(container, {"A": "1"}) == ("echo", "1")


def test_a_cdi_name_resolves_to_the_edits_of_its_device(tmp_path: Path):
    edits = {
        "env": ["A=1=2"],
        "mounts": [{"hostPath": "/h", "containerPath": "/c"}],
        "deviceNodes": [{"path": "/dev/nvidia0"}],
    }
    devices = {"name": "s-1", "containerEdits": edits}, {"name": "s-2"}
    write_spec(tmp_path, "a.json", "ex.dev/gpu", *devices)
    assert resolve(["ex.dev/gpu=s-1"], [tmp_path]) == Edits(
        (("A", "1=2"),), (BindMount("/c", "/h"),), ("/dev/nvidia0",)
    )


@pytest.mark.parametrize("file", ["a.tmp", ".hidden"])
def test_a_spec_in_a_file_not_named_json_does_not_exist(tmp_path: Path, file: str):
    write_spec(tmp_path, file, "ex.dev/gpu", {"name": "s-1"})
    with pytest.raises(CdiError, match=r"unresolvable CDI devices ex.dev/gpu=s-1$"):
        resolve(["ex.dev/gpu=s-1"], [tmp_path])


def test_a_cdi_name_in_two_files_is_unresolvable(tmp_path: Path):
    write_spec(tmp_path, "a.json", "ex.dev/gpu", {"name": "s-1"})
    write_spec(tmp_path, "b.json", "ex.dev/gpu", {"name": "s-1"})
    with pytest.raises(CdiError, match="unresolvable"):
        resolve(["ex.dev/gpu=s-1"], [tmp_path])


def test_a_half_written_spec_is_passed_over(tmp_path: Path):
    write_spec(tmp_path, "a.json", "ex.dev/gpu", {"name": "s-1"})
    (tmp_path / "b.json").write_text('{"kind": "ex.dev/gp')
    assert resolve(["ex.dev/gpu=s-1"], [tmp_path]) == Edits()


def test_a_one_letter_class_anywhere_kills_the_runtime(tmp_path: Path):
    write_spec(tmp_path, "a.json", "ex.dev/gpu", {"name": "s-1"})
    write_spec(tmp_path, "b.json", "ex.dev/x", {"name": "other"})
    with pytest.raises(CdiError, match="runtime died"):
        resolve(["ex.dev/gpu=s-1"], [tmp_path])
