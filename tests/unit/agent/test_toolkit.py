"""The agent detects that NVIDIA's runtime gives devices to containers without a claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import a_device
from vgpu_api.conditions import find
from vgpu_nodeagent.enforcement.toolkit import KEY, TOOLKIT_CONFIGS, Exposure, exposure
from vgpu_nodeagent.reporting.device_status import isolated

REFUSES = f"{KEY} = false\n[nvidia-container-cli]\n"
ACCEPTS = f"{KEY} = true\n"
SILENT = f"#{KEY} = true\n[nvidia-container-cli]\nload-kmods = true\n"
CONTAINERD_1 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{name}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
BinaryName = "{program}"
"""
CONTAINERD_2 = CONTAINERD_1.replace("grpc.v1.cri", "cri.v1.runtime").replace("= 2", "= 3")
CRIO = """
[crio.runtime]
default_runtime = "{name}"
[crio.runtime.runtimes.{name}]
runtime_path = "{program}"
"""
NVIDIA = "/usr/bin/nvidia-container-runtime"


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, name: str, text: str) -> Host:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def reason(self) -> str:
        found = exposure(self.root)
        return "" if found is None else found.reason


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_nvidias_toolkit_nothing_is_open(host: Host) -> None:
    runc = CONTAINERD_2.format(name="runc", program="runc")
    assert host.has("etc/containerd/config.toml", runc).reason() == ""


@pytest.mark.parametrize("path", TOOLKIT_CONFIGS)
@pytest.mark.parametrize(
    ("config", "reason"), [(REFUSES, ""), (ACCEPTS, "EnvVarAccepted"), (SILENT, "EnvVarAccepted")]
)
def test_the_toolkit_must_refuse_the_variable_and_by_default_does_not(
    host: Host, path: str, config: str, reason: str
) -> None:
    assert host.has(path, config).reason() == reason


@pytest.mark.parametrize("template", [CONTAINERD_1, CONTAINERD_2])
@pytest.mark.parametrize("name", ["nvidia", "gpu"])
def test_as_containerds_default_it_opens_every_container(
    host: Host, template: str, name: str
) -> None:
    host.has(TOOLKIT_CONFIGS[0], SILENT)
    host.has("etc/containerd/config.toml", template.format(name=name, program=NVIDIA))
    assert host.reason() == "EnvVarAcceptedByDefault"


def test_a_configuration_that_is_imported_counts_and_the_later_one_wins(host: Host) -> None:
    host.has(TOOLKIT_CONFIGS[0], SILENT)
    main = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
    runc = CONTAINERD_2.format(name="runc", program="runc")
    host.has("etc/containerd/config.toml", main + runc)
    assert host.reason() == "EnvVarAccepted"
    nvidia = CONTAINERD_2.format(name="nvidia", program=NVIDIA)
    host.has("etc/containerd/conf.d/99-nvidia.toml", nvidia)
    assert host.reason() == "EnvVarAcceptedByDefault"


def test_as_crios_default_it_opens_every_container(host: Host) -> None:
    host.has(TOOLKIT_CONFIGS[0], ACCEPTS)
    host.has("etc/crio/crio.conf.d/10-runc.conf", CRIO.format(name="crun", program="/bin/crun"))
    assert host.reason() == "EnvVarAccepted"
    host.has("etc/crio/crio.conf.d/99-nvidia.conf", CRIO.format(name="nvidia", program=NVIDIA))
    assert host.reason() == "EnvVarAcceptedByDefault"


def test_one_that_refuses_does_not_excuse_one_that_accepts(host: Host) -> None:
    host.has(TOOLKIT_CONFIGS[0], REFUSES).has(TOOLKIT_CONFIGS[1], ACCEPTS)
    found = exposure(host.root)
    assert found is not None
    assert f"set {KEY} = false in /{TOOLKIT_CONFIGS[1]} and restart" in found.message


@pytest.mark.parametrize("text", ["not TOML = = =", '\x00"', "[unfinished"])
def test_what_cannot_be_read_is_no_all_clear(host: Host, text: str) -> None:
    found = exposure(host.has(TOOLKIT_CONFIGS[0], text).root)
    assert found is not None
    assert (found.reason, found.is_certain) == ("ToolkitUnreadable", False)
    assert TOOLKIT_CONFIGS[0] in found.message


def test_the_condition_says_what_is_open_and_that_it_is_closed_again() -> None:
    device = a_device()
    assert isolated(device, None) == []  # nothing is reported about a node that was never open
    (said,) = isolated(device, Exposure("EnvVarAccepted", "set it"))
    assert (said.type, said.status, said.reason) == ("Isolated", "False", "EnvVarAccepted")
    (doubt,) = isolated(device, Exposure("ToolkitUnreadable", "not TOML"))
    assert doubt.status == "Unknown"
    status = device.status.model_copy(update={"conditions": [said]})
    (closed,) = isolated(device.model_copy(update={"status": status}), None)
    assert (closed.status, closed.reason) == ("True", "EnvVarRefused")
    assert find([closed], "Isolated") is not None
