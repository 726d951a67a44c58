"""One campaign: a cluster, a workload and faults, all derived from one seed, and the verdict."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import ceil
from pathlib import Path

from vgpu_api.names import AGENT_UNREADY_S
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_local import checker
from vgpu_local.chaos import handed_over
from vgpu_local.chaos.busyness import slowed_down_by
from vgpu_local.chaos.faults import Injector, Terms
from vgpu_local.chaos.grant_observer import GrantObserver
from vgpu_local.chaos.pods import COUNT, NAMESPACE, Box, Shape
from vgpu_local.chaos.precedence import Precedence
from vgpu_local.chaos.remains import objects, remains
from vgpu_local.chaos.scenarios import STAYING
from vgpu_local.chaos.sightings import Sightings
from vgpu_local.chaos.stage import Stage
from vgpu_local.chaos.succession import Succession
from vgpu_local.chaos.supervisor import Supervisor
from vgpu_local.chaos.verdict import Verdict
from vgpu_local.chaos.workload import encores, play, script
from vgpu_local.cluster import LocalCluster
from vgpu_local.fork_server import ForkServer
from vgpu_local.kubelet.pace import Pace
from vgpu_local.nodes import a100_node, t4_node, v100_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import DRIVER_LOADER, program_environment
from vgpu_local.readiness import plural
from vgpu_local.real_cluster import RealControlPlane
from vgpu_local.scheduler.queue import Backoff
from vgpu_local.wall_clock import a_clock, shift_clock

FEWEST_FAULTS = 40
FEWEST_PODS = 150
FEWEST_CLAIMS = 100
FEWEST_CONTAINERS = 50
FEWEST_GANGS = 3
FEWEST_TAKEN_AWAY = 50
FEWEST_LATE_WRITES = 1
RUNS_WITHIN_S = 120.0
_GONE_WITHIN_S = 60.0
_LONG_S = 20.0
_LASTS_S = 17.0
_MORE_S = 60.0
_DEVICES = 6
# The delay between a write and its event, which a real server sends over a watch.
_DELIVERED_S = {"standin": 0.0, "real": 1.0}
# Both a fifth of what they are by default, and 30 s without a leader 6 s.
_LEASE_S = 3
_UNUSED_LEASE_S = 6.0
# Operators and webhooks look at their files every 5 s.
_EXPIRED_S = 7.5
_HANGS_S = 6.0
# More than the longest outage of the API server, which silences every agent.
_AGENT_GONE_S = 15
_LONG_AWAY_S = 3600.0
_STATE_DISK_BYTES = 64 << 20
_SEEDS_WITH_AN_AGENT_GONE = 3
"""One in this many seeds also waits until an agent counts as gone, which takes a minute."""


_PREEMPTION = {"scheduling": {"preemption": {"enabled": True, "perMinute": 600}}}
_CLAIMS = {"scheduling": {"mode": "Claims"}}


def _options(pace: float, *, has_ranks: bool, in_claims: bool) -> ClusterOptions:
    return ClusterOptions(
        config=_CLAIMS if in_claims else _PREEMPTION if has_ranks else {},
        operators=2,
        lease_s=ceil(_LEASE_S * pace),
        unused_lease_s=_UNUSED_LEASE_S,
        agent_gone_s=_AGENT_GONE_S,
        state_disk_bytes=_STATE_DISK_BYTES,
        pace=Pace(first_retry=0.2, retry=1.0, first_restart=0.3, last_restart=2.0, gone_grace=1.0),
        backoff=Backoff(first=0.2, last=1.0, between=0.1),
    )


class Unsettled(Exception):
    """An expected state was not reached in time; the text names it."""


def run(seed: int, kept: Path, *, on: str = "standin", mode: str = "extender") -> Verdict:
    """Run one campaign.

    Args:
        seed: The seed of the workload and the faults.
        kept: The folder for the files that help to analyze a failure.
        on: `standin`, or `real` for a real control plane behind the fault proxy.
        mode: `extender`, or `claims` on a real control plane.
    """
    began = time.monotonic()
    verdict = Verdict(seed, pace=slowed_down_by())
    errors = _Errors(verdict.findings)
    logger = logging.getLogger()
    logger.addHandler(errors)
    nodes = [t4_node("chaos-a", 2), v100_node("chaos-b", 2), a100_node("chaos-c", 2)]
    try:
        foundation = RealControlPlane(seed=seed) if on == "real" else None
        has_ranks = on == "standin"  # a real API server wants PriorityClasses
        in_claims = mode == "claims"
        options = _options(verdict.pace, has_ranks=has_ranks, in_claims=in_claims)
        with (
            tempfile.TemporaryDirectory(prefix="vgpu-clock-") as clock,
            ForkServer(
                program_environment(kept, {**DRIVER_LOADER, **a_clock(Path(clock))})
            ) as fork_server,
            LocalCluster(nodes, options, foundation, fork_server.spawn) as cluster,
        ):
            campaign = _Campaign(
                cluster,
                verdict,
                Path(clock),
                delivery_s=_DELIVERED_S[on],
                has_ranks=has_ranks,
                in_claims=in_claims,
            )
            try:
                campaign.run()
            except Unsettled as error:
                verdict.findings.append(str(error))
            finally:
                campaign.end()
            campaign.judge()
            if verdict.findings:
                campaign.keep(kept)
                (kept / "stand-in.log").write_text("\n".join(errors.lines) + "\n")
    finally:
        logger.removeHandler(errors)
    verdict.took_s = time.monotonic() - began
    return verdict


class _Campaign:
    """The parts of a run, in the order in which they are needed."""

    def __init__(
        self,
        cluster: LocalCluster,
        verdict: Verdict,
        clock: Path,
        *,
        delivery_s: float,
        has_ranks: bool,
        in_claims: bool,
    ) -> None:
        self._cluster = cluster
        self._in_claims = in_claims
        self._verdict = verdict
        chance = random.Random(verdict.seed)
        self._lasts_s = _LASTS_S * verdict.pace
        self._script = script(
            random.Random(chance.random()),
            lasts=self._lasts_s,
            has_ranks=has_ranks,
            in_claims=in_claims,
        )
        cluster.server.faults.reseed(verdict.seed)
        folder = cluster.folder / "records"
        folder.mkdir()
        self._witness = GrantObserver(folder, delivery_s=delivery_s)
        cluster.server.subscribe(self._witness.saw)
        self._sightings = Sightings(NAMESPACE)
        cluster.server.subscribe(self._sightings.saw)
        self._succession = Succession(delivery_s=delivery_s)
        cluster.server.subscribe(self._succession.saw)
        self._stage = Stage(
            cluster.api, self._sightings, folder, has_ranks=has_ranks, pace=verdict.pace
        )
        self._precedence = Precedence(NAMESPACE, self._stage.deleted, self._stage.hopeless)
        cluster.server.subscribe(self._precedence.saw)
        self._supervisor = Supervisor(
            [*cluster.operators, *cluster.webhooks, *cluster.agents.values()]
        )
        self._injector = Injector(
            cluster,
            self._supervisor,
            random.Random(chance.random()),
            Terms(
                lasts_s=self._lasts_s,
                fewest=FEWEST_FAULTS,
                more_s=_MORE_S * verdict.pace,
                lease_s=ceil(_LEASE_S * verdict.pace),
                expired_s=_EXPIRED_S,
                hangs_s=_HANGS_S,
                in_claims=in_claims,
            ),
            partial(shift_clock, clock),
        )
        self._encores = encores(random.Random(chance.random()))

    def run(self) -> None:
        """Run workload and faults, and check that everything settles.

        Raises:
            Unsettled: It does not.
        """
        self._supervisor.start()
        playing = self._begin_to_play()
        self._injector.run(is_enough=lambda: not self._wanting())
        self._injector.end()
        self._stage.enough.set()
        last = time.monotonic()
        self._until(last + RUNS_WITHIN_S, self._stay_pending)
        self._verdict.settled_s = time.monotonic() - last
        self._played(playing)
        if self._in_claims:
            self._until(time.monotonic() + _GONE_WITHIN_S, self._disagreements)
        self._leave_nothing()
        self._fill_every_device()
        if self._verdict.seed % _SEEDS_WITH_AN_AGENT_GONE == 0:
            self._lose_an_agent()
        self._leave_nothing()

    def _begin_to_play(self) -> Future[None]:
        """Start the workload in a thread that an aborted campaign does not wait for."""
        played: Future[None] = Future()
        work = play(self._script, self._stage, more=self._encores)
        limit = self._lasts_s + _MORE_S * self._verdict.pace + RUNS_WITHIN_S

        def run() -> None:
            try:
                played.set_result(self._cluster.run(work, limit=limit))
            except BaseException as error:
                played.set_exception(error)

        threading.Thread(target=run, name="play", daemon=True).start()
        return played

    def end(self) -> None:
        """Stop everything that was started here."""
        self._supervisor.stop()
        self._count()

    def judge(self) -> None:
        """Add all findings to the verdict."""
        findings, history = self._verdict.findings, self._cluster.server.history()
        findings += [f"over capacity: {excess}" for excess in checker.excesses(history)]
        findings += checker.breaches(history)
        if self._in_claims:
            findings += handed_over.breaches(history)
        findings += self._witness.verdicts()
        findings += self._succession.findings
        # A real server's events come late: a deletion may be seen once its name is in use again.
        findings += self._precedence.findings if self._stage.has_ranks else []
        findings += self._supervisor.findings
        findings += self._stage.findings
        findings += self._injector.missed
        findings += self._wanting()

    def _count(self) -> None:
        self._verdict.pods = self._stage.pods
        self._verdict.claims = len(self._sightings.claim_uids)
        self._verdict.containers = self._witness.records()
        self._verdict.faults = self._injector.injected
        self._verdict.evicted = self._precedence.victims
        self._verdict.gangs = len(self._precedence.gangs)
        self._verdict.taken_away = self._stage.taken_away
        self._verdict.late_writes = self._cluster.server.faults.landed_late

    def _wanting(self) -> list[str]:
        """Return what the run had too little of to prove anything."""
        self._count()
        return [
            f"only {count} of at least {fewest} {what}"
            for count, fewest, what in (
                (self._verdict.faults, FEWEST_FAULTS, "faults and kills were injected"),
                (self._verdict.pods, FEWEST_PODS, "pods were created"),
                (self._verdict.claims, FEWEST_CLAIMS, "claims were created"),
                (self._verdict.containers, FEWEST_CONTAINERS, "containers ran"),
                *(
                    ((self._verdict.gangs, FEWEST_GANGS, "gangs started"),)
                    if self._stage.has_ranks
                    else ()
                ),
                *(
                    (
                        (
                            self._verdict.taken_away,
                            FEWEST_TAKEN_AWAY,
                            "allocations were taken away",
                        ),
                        (
                            self._verdict.late_writes,
                            FEWEST_LATE_WRITES,
                            "writes landed after their client had gone",
                        ),
                    )
                    if self._in_claims
                    else ()
                ),
            )
            if count < fewest
        ]

    def keep(self, folder: Path) -> None:
        """Copy the files that help to analyze a failure."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for log in self._cluster.folder.glob("*.log"):
            shutil.copy(log, folder)
        (folder / "faults").write_text("\n".join(self._injector.log) + "\n")
        (folder / "findings").write_text("\n".join(self._verdict.findings) + "\n")
        with (folder / "history").open("wb") as file:
            for write in self._cluster.server.history():
                file.write(f"{write.type} {write.resource} ".encode() + write.raw + b"\n")

    def _played(self, playing: Future[None]) -> None:
        try:
            playing.result()
        except TimeoutError:
            self._verdict.findings.append("the workload did not come to its end")

    # What must come about.

    def _stay_pending(self) -> list[str]:
        """Return the pods that fit but do not run."""
        phases = self._sightings.phases()
        if len(self._stage.staying) < STAYING:
            return ["a scenario that has not begun"]
        return [
            f"pod {name} fits, and is {phases.get(name)}"
            for name in sorted(self._stage.staying)
            if phases.get(name) != "Running"
        ]

    def _disagreements(self) -> list[str]:
        read = self._cluster.objects
        return handed_over.disagreements(
            read(plural(RESOURCE_CLAIMS)), read(plural(VGPU_CLAIMS)), read(plural(PODS))
        )

    def _leave_nothing(self) -> None:
        bound = {
            pod["metadata"]["name"]
            for pod in self._cluster.objects(plural(PODS), NAMESPACE)
            if pod["spec"].get("nodeName")
        }
        self._verdict.findings += [
            f"pod {name} has a node, and fits none" for name in sorted(bound & self._stage.hopeless)
        ]
        self._delete_all()
        self._until(time.monotonic() + _GONE_WITHIN_S, lambda: remains(self._cluster))

    def _delete_all(self) -> None:
        for resource in (PODS, VGPU_CLAIMS):
            for found in self._cluster.objects(plural(resource), NAMESPACE):
                deletion = self._stage.delete(resource, found["metadata"]["name"])
                self._cluster.run(deletion)

    def _lose_an_agent(self) -> None:
        """Stop an agent before the claims on its node end, which then get no report from it."""
        agents = sorted(daemon.name for daemon in self._cluster.agents.values())
        self._supervisor.kill(agents[self._verdict.seed % len(agents)], away_s=_LONG_AWAY_S)
        self._delete_all()
        limit = AGENT_UNREADY_S + _AGENT_GONE_S + _GONE_WITHIN_S
        self._until(time.monotonic() + limit, lambda: objects(self._cluster))
        self._supervisor.mend()

    def _fill_every_device(self) -> None:
        """Fill every device, which fails if any capacity has leaked, even in memory only."""
        whole = {COUNT: 1}
        shape = Shape((Box("prepare", whole, "exit 0", "init"), Box("main", whole)))
        names = [f"whole-{number}" for number in range(_DEVICES)]
        for name in names:
            self._cluster.run(self._stage.pod(name, shape))

        def missing() -> list[str]:
            phases = self._sightings.phases()
            return [f"pod {name} fits a card" for name in names if phases.get(name) != "Running"]

        self._until(time.monotonic() + _GONE_WITHIN_S, missing)

    def _until(self, deadline: float, left: Callable[[], list[str]]) -> None:
        began = time.monotonic()
        while found := left():
            if time.monotonic() > deadline:
                raise Unsettled("not in time: " + "; ".join(found))
            if time.monotonic() - began > _LONG_S:
                self._verdict.slow = found
            time.sleep(0.1)


class _Errors(logging.Handler):
    """A handler that keeps the stand-in's log for a failed run; each error is a finding."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self._findings = findings
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        # aiohttp's server complains about requests that were under way when it was stopped.
        if record.levelno >= logging.ERROR and record.name != "aiohttp.server":
            self._findings.append(f"{record.name}: {record.getMessage()}")
