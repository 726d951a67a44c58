"""The measuring programs, and how several of them run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline, Started, answers, environment

BUILD = Path(__file__).resolve().parents[1] / "build"
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")
POLICY = "GPU_CORE_UTILIZATION_POLICY"


@dataclass
class Tools:
    """The built programs.

    Attributes:
        spin, measure, probe: The programs.
        library: libvgpu.so.
        scale: All windows are so many times as long; below 1 for tests of the check itself.
    """

    spin: Path = BUILD / "vgpu-spin"
    measure: Path = BUILD / "vgpu-measure"
    probe: Path = BUILD / "vgpu-probe"
    library: Path = BUILD / "libvgpu.so"
    scale: float = 1.0
    _rounds: dict[int, dict[str, Any]] = field(default_factory=dict)

    def seconds(self, seconds: float) -> str:
        """Return the length of a window as the programs read it."""
        return f"{seconds * self.scale:.3f}"

    def kernel(self, microseconds: int, own: Deadline) -> dict[str, Any]:
        """Return `rounds` and `us` of a kernel of about this length; measured once."""
        if microseconds not in self._rounds:
            found = self.one([self.spin, "calibrate", microseconds], own)
            self._rounds[microseconds] = found
        return self._rounds[microseconds]

    def rounds(self, microseconds: int, own: Deadline) -> list[str]:
        """Return the arguments that ask for kernels of about this length."""
        return ["--rounds", str(self.kernel(microseconds, own)["rounds"])]

    def work(self, microseconds: int, own: Deadline) -> list[str]:
        """Return the arguments that ask vgpu-spin for kernels of about this length."""
        return [*self.rounds(microseconds, own), "--us", str(self.kernel(microseconds, own)["us"])]

    def look(self, own: Deadline) -> dict[str, Any]:
        """Ask NVML about all processes from outside their namespaces, as the agent does."""
        return self.one([self.measure, "lists", 1], own)

    def one(self, command: Sequence[object], own: Deadline, **settings: str) -> dict[str, Any]:
        """Run one program to its end and return its last answer.

        Raises:
            CaseError: It failed, took too long, or said nothing.
        """
        env = environment(self.library, **settings)
        found = answers(command, env=env, limit_s=own.left())
        if not found:
            raise CaseError(f"{Path(str(command[0])).name}: no answer")
        return found[-1]

    def at_once(
        self, commands: Sequence[Sequence[object]], own: Deadline, *settings: dict[str, str]
    ) -> list[dict[str, Any]]:
        """Run gated programs that start together; return the last answer of each.

        Args:
            commands: The programs, without `--gate`.
            own: The time they have.
            settings: The library's settings of each; none for all: without the library.
        """
        with_settings = settings or tuple({} for _ in commands)
        programs = [
            Started([*command, "--gate", "1"], env=environment(self.library, **own_settings))
            for command, own_settings in zip(commands, with_settings)
        ]
        try:
            for program in programs:
                program.first_answer(own.left())
            for program in programs:
                program.go()
            return [program.finish(own.left())[-1] for program in programs]
        finally:
            for program in programs:
                program.kill()


def share(percent: int, policy: str = "force") -> dict[str, str]:
    """Return the settings of a stand-alone share of compute."""
    return {"CUDA_DEVICE_SM_LIMIT": str(percent), POLICY: policy}
