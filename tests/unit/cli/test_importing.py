"""`kubectl vgpu import hami` prints our configuration for HAMi's, and lists what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from vgpu_api.config import read_cluster_config
from vgpu_operator.cli.__main__ import main

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Imports files or texts; returns status, standard output and standard error."""

    def imported(*sources: str) -> Callable[..., tuple[int, str, str]]:
        arguments = ["import", "hami"]
        for at, source in enumerate(sources):
            file = EXAMPLES / source
            if not source.endswith(".yaml"):
                file = tmp_path / f"{at}.yaml"
                file.write_text(source)
            arguments += ["-f", str(file)]
        status = main(arguments)
        out, error = capsys.readouterr()
        places = ((f"{tmp_path}/", ""), (f"{EXAMPLES}/", ""))
        for folder, nothing in places:
            out, error = out.replace(folder, nothing), error.replace(folder, nothing)
        return status, out, error

    return imported


def test_flat_keys_become_a_section_without_what_is_the_default(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    assert imported("hami-guide/5.1-device-config.yaml") == (
        0,
        "nvidia:\n  defaultMem: 1000\n",
        "",
    )


def test_what_says_nothing_but_defaults_is_an_empty_document(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    assert imported("hami-configuration/6.1.1-nvidia.yaml") == (
        0,
        "# every setting that is carried over has its default here\n{}\n",
        "",
    )


def test_node_configuration_and_what_is_not_carried_over(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, _ = imported("hami-configuration/6.2-nodes.yaml")
    file = "hami-configuration/6.2-nodes.yaml: data[config.json].nodeconfig"
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("#")] == [
        f"# not carried over: {file}[1].libcudaloglevel: 0 has no effect: the variable "
        "VGPU_LOG_LEVEL of a container says how much the library logs",
        f'# not carried over: {file}[2].operatingmode: "mig" has no effect: whether a device is in '
        "MIG mode is read from its driver, and no MPS daemon runs here",
        f'# not carried over: {file}[2].migstrategy: "mixed" has no effect: operatingmode mig '
        "makes instances on demand; leave it out to give those that an administrator made",
    ]
    assert yaml.safe_load(out)["nodes"][1] == {
        "name": "node2",
        "deviceSplitCount": 5,
        "deviceMemoryScaling": 1.5,
        "deviceCoreScaling": 1.2,
        "filterDevices": {
            "uuid": ["GPU-12345678-1234-1234-1234-123456789012"],
            "index": [0, 1],
        },
    }


def test_several_files_make_one_document_that_reads_back_as_what_they_say(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    files = [
        "hami-guide/5.1-device-config.yaml",
        "hami-configuration/6.1.6-mixed.yaml",
        "hami-configuration/6.2-nodes.yaml",
    ]
    _, out, _ = imported(*files)
    documents = [yaml.safe_load((EXAMPLES / file).read_text()) for file in files]
    assert read_cluster_config(yaml.safe_load(out)) == read_cluster_config(documents)
    assert "6.1.6-mixed.yaml: data[device-config.yaml].ascend" in out


def test_a_later_file_wins_key_by_key(imported: Callable[..., tuple[int, str, str]]) -> None:
    first = "nvidia: {defaultCores: 10, deviceSplitCount: 5}"
    _, out, _ = imported(first, "nvidia.defaultCores: 20")
    assert yaml.safe_load(out) == {"nvidia": {"defaultCores": 20, "deviceSplitCount": 5}}


def test_objects_that_are_no_configuration_are_named_and_left_out(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    _, out, _ = imported("kind: Deployment\n---\nnvidia: {defaultCores: 10}")
    assert out == (
        "# not carried over: 0.yaml[0]: a Deployment is not a configuration\n"
        "nvidia:\n  defaultCores: 10\n"
    )


A_LIST = """
apiVersion: v1
kind: List
items:
- kind: ConfigMap
  metadata: {name: coredns, namespace: kube-system}
  data: {Corefile: ".:53 {}"}
- kind: ConfigMap
  metadata: {name: kube-root-ca.crt}
  data: {ca.crt: "-----BEGIN CERTIFICATE-----"}
- kind: ConfigMap
  metadata: {name: kubeadm-config}
  data: {ClusterConfiguration: "apiServer: {}"}
- kind: ConfigMap
  metadata: {name: kube-proxy}
  data: {config.conf: "mode: iptables", kubeconfig.conf: "{"}
- kind: ConfigMap
  metadata: {name: grafana}
  data: {dashboard.json: "{}}", settings.yaml: "log: debug", notes.yaml: "just text"}
- kind: ConfigMap
  metadata: {name: hami-scheduler}
  data:
    config.yaml: |
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: KubeSchedulerConfiguration
      profiles: [{schedulerName: hami-scheduler}]
- kind: ConfigMap
  metadata: {name: hami-scheduler-device}
  data:
    device-config.yaml: |
      nvidia: {deviceSplitCount: 4}
      hygon: {resourceCountName: acme.com/dcunum, resourceMemoryName: hygon.com/dcumem}
- kind: ConfigMap
  metadata: {name: hami-device-plugin}
  data:
    config.json: '{"nodeconfig": [{"name": "n1", "devicememoryscaling": 1.5}]}'
- kind: ConfigMap
  metadata: {name: empty}
"""
"""The output of `kubectl get configmaps -A -o yaml` in a cluster with HAMi and others."""


def test_a_list_of_all_config_maps_is_read_and_foreign_ones_are_named(
    imported: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, error = imported(A_LIST)
    assert (status, error) == (0, "")
    assert yaml.safe_load(out) == {
        "nvidia": {"deviceSplitCount": 4},
        "nodes": [{"name": "n1", "deviceMemoryScaling": 1.5}],
    }
    left = [line.removeprefix("# not carried over: 0.yaml: ") for line in out.splitlines()]
    for line in (
        "items[0]: ConfigMap coredns: it has no configuration of HAMi's",
        "items[1]: ConfigMap kube-root-ca.crt: it has no configuration of HAMi's",
        "items[4]: ConfigMap grafana: data[dashboard.json]: it is not a configuration",
        "items[4]: ConfigMap grafana: data[settings.yaml]: it is not a configuration of HAMi's",
        "items[4]: ConfigMap grafana: data[notes.yaml]: it is not a configuration",
        "items[5]: ConfigMap hami-scheduler: data[config.yaml]: a KubeSchedulerConfiguration is "
        "not a configuration",
        'items[6].data[device-config.yaml].hygon.resourceCountName: "acme.com/dcunum" has no '
        "effect: no pod is served under this name; see docs/vendors.md",
    ):
        assert line in left


@pytest.mark.parametrize(
    "broken",
    ["device-config.yaml: 'nvidia: ['", "config.json: '{\"nodeconfig\": ['"],
)
def test_a_broken_document_of_hamis_in_a_list_is_refused_with_its_place(
    imported: Callable[..., tuple[int, str, str]], broken: str
) -> None:
    config_map = f"kind: ConfigMap\n  metadata: {{name: x}}\n  data:\n    {broken}"
    status, out, error = imported(f"kind: List\nitems:\n- {config_map}\n")
    assert (status, out) == (2, "")
    key = broken.partition(":")[0]
    assert error.startswith(f"kubectl vgpu: 0.yaml: items[0].data[{key}]: Invalid value: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvidia: {defaultCores: 101}", "0.yaml: nvidia.defaultCores: Invalid value: 101"),
        ("nvidia: {defaultCoars: 1}", "unknown key; did you mean defaultCores?"),
        ("nvidia: [", "0.yaml: while parsing"),
        ("&a [*a]", "levels deep"),
        ("3", "0.yaml: document: Invalid value: 3: must be a document with sections"),
    ],
)
def test_what_cannot_be_meant_ends_with_status_2_and_one_line(
    imported: Callable[..., tuple[int, str, str]], text: str, said: str
) -> None:
    status, out, error = imported(text)
    assert (status, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
