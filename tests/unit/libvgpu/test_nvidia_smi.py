"""The stand-in for nvidia-smi, on the simulated driver: plain, and inside a slice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Stage

PROGRAM = Path(__file__).resolve().parents[2] / "workload" / "nvidia_smi.py"
A100 = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
T4 = "GPU-6f3c1c2e-0000-4000-8000-000000000001"


def smi(
    stage: Stage, *words: str, limited: bool = False, **extra: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        env=stage.environment(limited=limited, extra=extra),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_list_has_a_line_for_each_device(stage: Stage) -> None:
    assert smi(stage, "-L").stdout.splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {A100})",
        f"GPU 1: NVIDIA T4 (UUID: {T4})",
    ]


def test_the_table_has_every_line_of_one_width_and_the_memory_of_each_device(stage: Stage) -> None:
    lines = smi(stage).stdout.splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}
    assert [m for line in lines for m in re.findall(r"(\d+)MiB /\s+(\d+)MiB", line)] == [
        ("0", "81920"),
        ("0", "16384"),
    ]
    assert "|  No running processes found" in "\n".join(lines)


def test_a_slice_shows_its_limit_as_the_devices_memory(stage: Stage) -> None:
    stage.grant({T4: 4096 << 20})
    done = smi(stage, "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits",
               limited=True, NVIDIA_VISIBLE_DEVICES=T4)  # fmt: skip
    assert done.stdout == f"{T4}, 4096\n"


def test_a_query_names_its_columns_with_their_units_unless_told_otherwise(stage: Stage) -> None:
    query = "--query-gpu=index,memory.total,mig.mode.current"
    assert smi(stage, query, "--format=csv").stdout.splitlines() == [
        "index, memory.total [MiB], mig.mode.current",
        "0, 81920 MiB, Disabled",
        "1, 16384 MiB, [N/A]",
    ]
    assert smi(stage, query, "--format=csv,noheader,nounits", "-i", "1").stdout == (
        "1, 16384, [N/A]\n"
    )


def test_the_processes_of_a_device_are_named_with_what_they_use(stage: Stage) -> None:
    hold = [str(stage.probe_path), "run", "alloc 1G; sleep 30"]
    with subprocess.Popen(
        hold, env=stage.environment(limited=False), stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        query = "--query-compute-apps=pid,process_name,gpu_uuid,used_memory"
        apps = smi(stage, query, "--format=csv,noheader,nounits").stdout
        in_table = smi(stage).stdout
        holder.kill()
    assert {len(line) for line in in_table.splitlines()[1:] if line} == {91}
    assert apps == f"{holder.pid}, {stage.probe_path}, {A100}, 1024\n"
    assert re.search(rf"\|\s+0\s+N/A\s+N/A\s+{holder.pid}\s+C\s+.*1024MiB \|", in_table)


def test_the_matrix_says_what_joins_the_devices_and_their_numa_nodes(stage: Stage) -> None:
    assert smi(stage, "topo", "-m").stdout.splitlines() == [
        "\tGPU0\tGPU1\tNUMA Affinity",
        "GPU0\tX\tNV2\t0",
        "GPU1\tNV2\tX\t1",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--query-gpu=colour", "--format=csv"], 'Field "colour" is not a valid field to query.'),
        (["--query-gpu=uuid"], '"--format=" must be csv, with noheader and nounits if you like.'),
        (["-i", "7"], "No devices were found"),
    ],
)
def test_what_there_is_not_is_exit_2(stage: Stage, words: list[str], said: str) -> None:
    done = smi(stage, *words)
    assert (done.stdout.strip(), done.returncode) == (said, 2)


def test_no_devices_and_no_driver_are_told_apart(stage: Stage) -> None:
    hidden = smi(stage, "-L", NVIDIA_VISIBLE_DEVICES="void")
    assert (hidden.stdout, hidden.returncode) == ("No devices were found\n", 6)
    missing = smi(stage, "-L", VGPU_FAKE_MACHINE="")
    assert missing.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in missing.stdout
