"""`kubectl vgpu import hami`: our configuration for HAMi's documents, and what is not in it."""

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
    assert imported("hami-configuration/6.1.1-nvidia.yaml") == (0, "{}\n", "")


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
