"""What a campaign comes to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """How a campaign went.

    Attributes:
        pace: by how much all was slowed down on a busy machine.
        findings: everything that was not as it must be; empty means that it passed.
        slow: what took longer than most things do, though it came to be in time.
    """

    seed: int
    pods: int = 0
    claims: int = 0
    containers: int = 0
    faults: int = 0
    settled_s: float = 0.0
    took_s: float = 0.0
    pace: float = 1.0
    findings: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The verdict in one line."""
        word = "FAILED" if self.findings else "passed"
        slowed = f" ({self.pace:.1f} times slower: the machine is busy)" if self.pace > 1 else ""
        return (
            f"seed {self.seed}: {self.pods} pods, {self.claims} claims, {self.containers} "
            f"containers, {self.faults} faults, settled {self.settled_s:.1f} s after the last, "
            f"{self.took_s:.0f} s{slowed}: {word}"
        )
