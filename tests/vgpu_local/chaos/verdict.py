"""The verdict of a campaign."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """The verdict of a campaign.

    Attributes:
        taken_away: How often an allocation was taken from a ResourceClaim, in Claims mode.
        late_writes: How many writes landed after their client had gone.
        pace: The factor by which it was slowed down on a busy machine.
        findings: A text for each fault that was found; empty if the campaign passed.
        slow: A text for each step that was slow but in time.
    """

    seed: int
    pods: int = 0
    claims: int = 0
    containers: int = 0
    evicted: int = 0
    gangs: int = 0
    faults: int = 0
    taken_away: int = 0
    late_writes: int = 0
    settled_s: float = 0.0
    took_s: float = 0.0
    pace: float = 1.0
    findings: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the verdict in one line."""
        word = "FAILED" if self.findings else "passed"
        of_claims = (
            f"{self.taken_away} allocations taken away, {self.late_writes} late writes, "
            if self.taken_away
            else ""
        )
        slowed = f" ({self.pace:.1f} times slower: the machine is busy)" if self.pace > 1 else ""
        return (
            f"seed {self.seed}: {self.pods} pods, {self.claims} claims, {self.containers} "
            f"containers, {self.evicted} evicted, {self.gangs} gangs, {self.faults} faults, "
            f"{of_claims}"
            f"settled {self.settled_s:.1f} s after the last, "
            f"{self.took_s:.0f} s{slowed}: {word}"
        )
