"""Programs that have nothing to do with CUDA do not notice the library that is loaded into them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

# Everything a library could leave behind in its host, as the host sees it.
SELF_PORTRAIT = """
import os, resource
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
mask = os.umask(0o22)
answer = {
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "threads": status["Threads"],
    "umask": mask,
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "environment": {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "VGPU_"))},
    "limits": [resource.getrlimit(n) for n in range(10)],
    "folder": os.getcwd(),
}
"""


def done(stage: Stage, command: list[str], *, limited: bool) -> tuple[int, str, str]:
    ended = subprocess.run(
        command,
        env=stage.environment(limited=limited),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return ended.returncode, ended.stdout, ended.stderr


def portrait(stage: Stage, *, limited: bool) -> Any:
    return stage.python(SELF_PORTRAIT, limited=limited)


def test_a_program_looks_the_same_to_itself(stage: Stage) -> None:
    stage.grant({})
    assert portrait(stage, limited=True) == portrait(stage, limited=False)


@pytest.mark.parametrize(
    "script",
    [
        "exit 7",
        "echo out; echo err >&2; kill -TERM $$",
        "trap 'echo caught' USR1; kill -USR1 $$; echo after",
        "trap 'echo two' USR2; (kill -USR2 $$); wait; umask; ulimit -n",
        "for i in 1 2 3; do (exec sh -c 'exit 3'); echo $?; done",
        "no-such-program",
        "ls /proc/self/fd | wc -l",
    ],
)
@pytest.mark.parametrize("shell", [shell for shell in ("sh", "bash") if shutil.which(shell)])
def test_shells_do_what_they_do_without_it(stage: Stage, shell: str, script: str) -> None:
    stage.grant({})
    command = [shell, "-c", script]
    assert done(stage, command, limited=True) == done(stage, command, limited=False)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, b"\xff" * 16384], ids=["empty", "cut", "noise"]
)
def test_nor_when_its_page_is_broken(stage: Stage, content: bytes) -> None:
    stage.grant({})
    (stage.folder / "limits").write_bytes(content)
    assert portrait(stage, limited=True) == portrait(stage, limited=False)


def test_a_program_that_looks_for_cuda_where_there_is_none_finds_none(stage: Stage) -> None:
    stage.grant({})
    look = """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
    answer = "driver"
except OSError:
    answer = hasattr(ctypes.CDLL(None), "cuMemAlloc_v2")
"""
    assert stage.python(look, limited=True, extra={"LD_LIBRARY_PATH": ""}) is False
