"""Checks the library as a container has it: the agent's page, fixed paths, shadow, ld.so.preload.

The files are where the agent puts them, in a mount namespace of their own, so nothing of this
machine is changed. The page and the region are written by the agent's own code, the processes run
in a PID namespace, and the agent writes their PIDs, as on a node.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_agent import Agent
from gpu_case import CaseError, Deadline, NotRun, Started, answers, case, environment
from gpu_pids import child_of
from gpu_tools import BUILD, UNSHARE, Tools

INSIDE = "/usr/local/vgpu"
SHADOW = BUILD / "shadow" / "libcuda.so.1"
NAME = "gpu-check"
START_S, WINDOW_S, WARM_S = 30.0, 5.0, 1.0
KERNEL_US, PERCENT, BAR_POINTS = 5_000, 25, 3.0
SLACK = 64 << 20
MEMORY = "The memory of a container stays within its limit"
COMPUTE = "A share of compute is kept."
# The namespace has `/usr/local` with one more folder and our `/etc` over the real ones, the driver
# under its name in containers, and the shadow in its place; all of it vanishes with the namespace.
ENTER = """
set -e
root=$1 driver=$2 shadow=$3; shift 3
mount --make-rprivate /
for entry in /usr/local/*; do
    if [ -d "$entry" ] && [ ! -L "$entry" ]; then
        mkdir -p "$root$entry"
        mount --rbind "$entry" "$root$entry"
    elif [ -e "$entry" ] || [ -L "$entry" ]; then
        cp -a "$entry" "$root/usr/local/"
    fi
done
mount --bind "$driver" "$root/usr/local/vgpu/libcuda-driver.so.1"
mount --rbind "$root/usr/local" /usr/local
mount --rbind "$root/etc" /etc
mount --bind "$shadow" "$driver"
exec "$@"
"""


# Prints the file that the loader finds as libcuda.so.1.
FIND = """
import ctypes
ctypes.CDLL("libcuda.so.1")
for line in open("/proc/self/maps"):
    if "libcuda.so" in line:
        print(line.split(None, 5)[5].strip())
        break
"""


def driver_file(env: dict[str, str], limit_s: float) -> Path:
    """Return the driver's file.

    Raises:
        CaseError: The loader finds none.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIND],
        env=env,
        capture_output=True,
        text=True,
        timeout=max(limit_s, 0.1),
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        raise CaseError(f"the driver's file cannot be found: {done.stderr.strip()[-200:]}")
    return Path(done.stdout.strip()).resolve()


class Container:
    """A container's environment on this machine.

    Args:
        tools: The programs.
        uuid: The first device.
        total: Its memory in bytes.
    """

    def __init__(self, tools: Tools, uuid: str, total: int) -> None:
        self._tools, self._uuid, self._total = tools, uuid, total

    def rows(self, deadline: Deadline, *, may_unshare: bool) -> list[dict[str, Any]]:
        """Return the rows: a page that denies, memory, and a share."""

        def inside(what: str) -> dict[str, Any]:
            def body(own: Deadline) -> dict[str, Any]:
                if not may_unshare:
                    raise NotRun("this user may not mount in a namespace (root may)")
                with TemporaryDirectory() as folder:
                    root = self._build(Path(folder))
                    found: dict[str, Any] = getattr(self, what)(root, own)
                    return found

            name = f"in a container's place: {what.strip('_')}"
            return case(name, body, limit_s=START_S + WINDOW_S + WARM_S, deadline=deadline)

        return [inside("_denial"), inside("_memory"), inside("_share")]

    # The checks.

    def _denial(self, root: Path, own: Deadline) -> dict[str, Any]:
        (refused,) = self._answers(root, "alloc 1M", own)
        wrong = [] if refused.get("result") == 2 else [f"a page that denies: {refused}"]
        return {"wrong": wrong, "limits": [MEMORY]}

    def _memory(self, root: Path, own: Deadline) -> dict[str, Any]:
        limit = self._total // 4 // (2 << 20) * (2 << 20)
        self._grant(root, limit, 0, "DEFAULT")
        script = f"info; alloc {limit + (4 << 20)}; fill --step 64M"
        info, refused, filled = self._answers(root, script, own)
        device = info["devices"][0]
        wrong = []
        if (device["cuda_total"], device["nvml_total"]) != (limit, limit):
            wrong.append(f"views show {device['cuda_total']} and {device['nvml_total']}")
        if refused["result"] != 2:
            wrong.append(f"more than the limit is answered with {refused['result']}")
        if not device["cuda_free"] - SLACK <= filled["filled"] <= limit:
            wrong.append(f"filled to {filled['filled']} of {device['cuda_free']}")
        used = Agent().read_region(self._region(root))
        return {
            "limit_bytes": limit,
            "filled_bytes": filled["filled"],
            "peak_in_region": [use.peak_bytes for use in used],
            "wrong": wrong,
            "limits": [MEMORY],
        }

    def _share(self, root: Path, own: Deadline) -> dict[str, Any]:
        words = self._tools.work(KERNEL_US, own)
        run = ["run", self._tools.seconds(WARM_S + WINDOW_S), *words]
        run += ["--warm", self._tools.seconds(WARM_S)]
        direct = self._tools.one([self._tools.spin, *run], own)
        self._grant(root, self._total // 4, PERCENT, "FORCE")
        program = self._start(root, [*UNSHARE, self._tools.spin, *run, "--gate", "1"], own)
        try:
            program.first_answer(own.left())
            # unshare for mounts became the shell, which became unshare for PIDs.
            outer = child_of(program.pid)
            written = Agent().write_host_pids(self._region(root), [outer])
            self._tools.look(own)
            program.go()
            done = program.finish(own.left())[-1]
        finally:
            program.kill()
        got = 100 * done["per_second"] / direct["per_second"]
        wrong = [] if done["library"] else ["the library was not loaded"]
        if abs(got - PERCENT) > BAR_POINTS:
            wrong.append(f"{got:.1f} % instead of {PERCENT}")
        return {
            "share_percent": round(got, 2),
            "host_pids_written": written,
            "wrong": wrong,
            "limits": [COMPUTE],
        }

    # The environment.

    def _build(self, root: Path) -> Path:
        local = root / INSIDE[1:]
        (local / "usage").mkdir(parents=True)
        shutil.copyfile(self._tools.library, local / "libvgpu.so")
        (local / "libvgpu.so").chmod(0o755)
        (local / "libcuda-driver.so.1").touch()
        shutil.copytree("/etc", root / "etc", symlinks=True)
        preload = root / "etc" / "ld.so.preload"
        preload.write_text(f"{INSIDE}/libvgpu.so\n")
        preload.chmod(0o644)
        agent = Agent()
        agent.make_page(local / "limits", NAME)
        agent.make_region(self._region(root))
        return root

    @staticmethod
    def _region(root: Path) -> Path:
        return root / INSIDE[1:] / "usage" / "region"

    def _grant(self, root: Path, memory_bytes: int, cores: int, policy: str) -> None:
        page = root / INSIDE[1:] / "limits"
        Agent().grant(page, NAME, self._uuid, memory_bytes, cores, policy)

    def _command(
        self, root: Path, command: Sequence[object], env: dict[str, str], own: Deadline
    ) -> list[object]:
        driver = driver_file(env, own.left())
        return ["unshare", "--mount", "sh", "-c", ENTER, "sh", root, driver, SHADOW, *command]

    def _start(self, root: Path, command: Sequence[object], own: Deadline) -> Started:
        env = environment(self._tools.library)
        return Started(self._command(root, command, env, own), env=env)

    def _answers(self, root: Path, script: str, own: Deadline) -> list[dict[str, Any]]:
        env = environment(self._tools.library)
        command = self._command(root, [*UNSHARE, self._tools.probe, "run", script], env, own)
        return answers(command, env=env, limit_s=own.left())
