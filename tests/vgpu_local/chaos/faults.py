"""The schedule of faults of a campaign, made from the seed, and the injector that follows it.

A fault counts only if it had an effect: an API fault that met no request does not. If there were
too few faults or too few containers that ran under them, more faults follow after the schedule,
until there are enough or the time is over.
"""

from __future__ import annotations

import datetime as dt
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from vgpu_local.apiserver.faults import Action, Fault
from vgpu_local.apiserver.watches import Break
from vgpu_local.chaos.api_faults import WRITES_OF_CLAIMS, draw
from vgpu_local.chaos.leader import LEASES, holder_of, live_leader
from vgpu_local.chaos.supervisor import Supervisor
from vgpu_local.cluster import LocalCluster

_WATCHED = ("pods", "vgpuclaims.vgpu.dev", "gpudevices.vgpu.dev", "nodes", "*")
_API_FAULTS = 60
_MORE_EVERY_S = 0.25
_LEADER_WITHIN_S = 60.0
_EXPIRED = dt.timedelta(minutes=-1)
_WRITES_WITHIN_S = 30.0
"""The time in which a leader of a busy cluster writes some ResourceClaim."""
_HANGS_MS = 10_000
"""The delay of every answer of a hanging NVML."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault in the schedule.

    Attributes:
        at: The time in seconds.
        what: A description.
        strike: Injects the fault.
    """

    at: float
    what: str
    strike: Callable[[], None]


Maker = Callable[[random.Random, float], Blow]


@dataclass(frozen=True, slots=True)
class Terms:
    """The amount and durations of faults.

    Attributes:
        lasts_s: The time over which the schedule is spread.
        fewest: The least number of faults with an effect.
        more_s: The time after the schedule for more faults, if some are missing.
        lease_s: The duration of the operators' Lease.
        expired_s: The time for which certificates stay expired.
        hangs_s: The time for which NVML hangs.
        in_claims: True in Claims mode, which has faults of ResourceClaims.
    """

    lasts_s: float
    fewest: int
    more_s: float
    lease_s: float
    expired_s: float
    hangs_s: float
    in_claims: bool = False


class Injector:
    """An injector of faults into a cluster, as the seed decides.

    Attributes:
        log: The injected faults with their times.
        missed: The faults that had to be injected but could not be.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        supervisor: Supervisor,
        chance: random.Random,
        terms: Terms,
        set_clock: Callable[[int], None],
    ) -> None:
        """Draw the schedule.

        Args:
            cluster: The cluster.
            supervisor: The supervisor of its processes.
            chance: The source of all random choices.
            terms: The amount and durations of faults.
            set_clock: Shifts the clock of our programs to this many seconds from the true time.
        """
        self.log: list[str] = []
        self.missed: list[str] = []
        self._cluster = cluster
        self._supervisor = supervisor
        self._chance = chance
        self._terms = terms
        self._set_clock = set_clock
        self._armed: list[Fault] = []
        self._later: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._losing = threading.Lock()
        self._struck = 0
        self._operators = [daemon.name for daemon in cluster.operators]
        self._webhooks = [daemon.name for daemon in cluster.webhooks]
        self._agents = [daemon.name for daemon in cluster.agents.values()]
        # Rates and times of the agents' faults; without a leader little else happens.
        makers: tuple[tuple[int, float, float, Maker], ...] = (
            (_API_FAULTS, 0.03, 1.0, self._api_fault),
            (8, 0.03, 1.0, self._broken_watch),
            (1, 0.03, 0.5, self._killed_operator),
            (1, 0.5, 1.0, self._killed_operator),
            (1, 0.03, 1.0, self._ended_operator),
            (1, 0.03, 1.0, self._stopped_operator),
            (1, 0.1, 0.25, self._stopped_leader),
            (1, 0.5, 0.65, self._leader_without_lease),
            (1, 0.03, 1.0, self._busy_server),
            (2, 0.03, 1.0, self._killed_webhook),
            (1, 0.03, 1.0, self._ended_webhook),
            (4, 0.03, 1.0, self._killed_agent),
            (1, 0.03, 1.0, self._ended_agent),
            (2, 0.03, 1.0, self._stopped_agent),
            (3, 0.03, 1.0, self._restarted_kubelet),
            (2, 0.03, 1.0, self._restarted_server),
            (1, 0.2, 0.9, self._no_webhook),
            (1, 0.4, 0.6, self._long_outage),
            (1, 0.1, 0.7, self._expired_certificates),
            (1, 0.03, 1.0, self._new_certificates),
            (1, 0.2, 0.9, self._rebooted_node),
            (1, 0.03, 1.0, self._hanging_driver),
            (2, 0.1, 1.0, self._clock_jump),
            (1, 0.1, 0.9, self._full_disk),
        )
        blows = [
            make(chance, chance.uniform(first, last) * terms.lasts_s)
            for times, first, last, make in makers
            for _ in range(times)
        ]
        if terms.in_claims:
            blows += self._of_claims(chance)
        self._blows = sorted(blows, key=lambda blow: blow.at)

    def run(self, *, is_enough: Callable[[], bool]) -> None:
        """Inject every fault at its time, and more until there are enough."""
        began = time.monotonic()
        for blow in self._blows:
            time.sleep(max(0.0, began + blow.at - time.monotonic()))
            self._strike(blow)
        more, until = self._more(), began + self._terms.lasts_s + self._terms.more_s
        while not is_enough() and time.monotonic() < until:
            self._strike(next(more))
            # Once enough have hurt, what is wanting is that something runs.
            seldom_s = self._terms.lease_s / 2
            time.sleep(_MORE_EVERY_S if self.injected < self._terms.fewest else seldom_s)

    def end(self) -> None:
        """Stop injecting faults, and repair everything."""
        while self._later:  # one may have begun another
            self._later.pop().join()
        with self._lock:
            self._struck = self._struck + self._befallen()
            self._armed.clear()
        self._cluster.server.faults.clear()
        self._set_clock(0)
        self._supervisor.mend()

    @property
    def injected(self) -> int:
        """Return the number of faults that have had an effect."""
        with self._lock:
            return self._struck + self._befallen()

    def _befallen(self) -> int:
        return sum(self._cluster.server.faults.count(fault) > 0 for fault in self._armed)

    def _strike(self, blow: Blow) -> None:
        self.log.append(f"{time.time():.3f} {blow.what}")
        blow.strike()

    def _more(self) -> Iterator[Blow]:
        # Those that end at once: what lasts would keep the others from hurting.
        while True:
            make = self._chance.choices((self._api_fault, self._broken_watch), (4, 1))[0]
            yield make(self._chance, 0.0)

    def _hurt(self, times: int = 1) -> None:
        with self._lock:
            self._struck += times

    def _arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(self._cluster.server.faults.add(fault))

    # The kinds.

    def _of_claims(self, chance: random.Random) -> Iterator[Blow]:
        """Yield the faults of each write of a ResourceClaim."""
        lasts_s, lease_s = self._terms.lasts_s, self._terms.lease_s
        for verb, resource in WRITES_OF_CLAIMS:
            yield self._answered(verb, resource, chance.uniform(0.03, 0.9) * lasts_s)
        for (verb, resource), late_s in (
            (WRITES_OF_CLAIMS[0], 0.5),  # the VGPUClaim is written, and nothing else
            (WRITES_OF_CLAIMS[1], 0.5),  # the ResourceClaim is there, and not allocated
            (WRITES_OF_CLAIMS[0], 2 * lease_s),  # both land when another leads
            (WRITES_OF_CLAIMS[1], 2 * lease_s),
        ):
            yield self._leader_lost_at(verb, resource, late_s, chance.uniform(0.03, 0.9) * lasts_s)

    def _answered(self, verb: str, resource: str, at: float) -> Blow:
        """Return a fault of writes that are done, and answered with 500."""
        fault = Fault(action="answered", verb=verb, resource=resource, code=500, times=10)
        return Blow(
            at, f"{verb} of {resource} is done and answered with 500", partial(self._arm, fault)
        )

    def _leader_lost_at(self, verb: str, resource: str, late_s: float, at: float) -> Blow:
        """Return a fault that kills the leader at a write, which lands some time later."""
        what = f"the leader killed at its {verb} of {resource}, which lands {late_s:.1f} s later"

        def lose() -> None:
            with self._losing:  # one after the other: each needs a leader
                name = live_leader(self._cluster, within_s=_LEADER_WITHIN_S)
                if name is None:
                    self.missed.append(f"nobody led for {_LEADER_WITHIN_S:.0f} s: {what}")
                    return
                fault = Fault(
                    action="delay", verb=verb, resource=resource, user=name, seconds=late_s
                )
                if self._is_met(fault, name):
                    self.log.append(f"{time.time():.3f} {name} leads: {what}")
                    self._hurt(self._supervisor.kill(name, away_s=0.5))
                self._disarm(fault)

        return Blow(at, what, lambda: self._in(0, lose))

    def _is_met(self, fault: Fault, name: str) -> bool:
        """Arm a fault; return True once it has befallen a request of the leader, if that leads."""
        self._arm(fault)
        until = time.monotonic() + _WRITES_WITHIN_S
        while not self._cluster.server.faults.count(fault):
            if time.monotonic() > until or not self._supervisor.is_up(name):
                return False
            time.sleep(0.01)
        return True

    def _api_fault(self, chance: random.Random, at: float) -> Blow:
        who, fault = draw(chance, in_claims=self._terms.in_claims)
        users = {"agent": chance.choice(self._agents), "operator": chance.choice(self._operators)}
        user = users.get(who, "")

        def strike() -> None:
            holder = holder_of(self._cluster) if who == "leader" else None
            self._arm(replace(fault, user=holder.name if holder is not None else user))

        return Blow(at, f"API: {who or 'anybody'}, {fault}", strike)

    def _broken_watch(self, chance: random.Random, at: float) -> Blow:
        resource = chance.choice(_WATCHED)
        frozen_s = chance.uniform(0.5, 4) if chance.random() < 0.4 else 0.0
        how: Break = "freeze" if frozen_s else chance.choice(("drop", "gone"))

        def strike() -> None:
            server = self._cluster.server
            self._hurt(bool(server.break_watches(resource, how)))
            if frozen_s:  # then a connection is refused
                self._in(frozen_s, lambda: server.break_watches(resource, "drop"))

        return Blow(at, f"watches of {resource}: {how} {frozen_s:.1f} s", strike)

    def _killed_operator(self, chance: random.Random, at: float) -> Blow:
        return self._killed(chance.choice(self._operators), chance.uniform(0, 2), at)

    def _killed_webhook(self, chance: random.Random, at: float) -> Blow:
        return self._killed(chance.choice(self._webhooks), chance.uniform(0, 2), at)

    def _ended_webhook(self, chance: random.Random, at: float) -> Blow:
        return self._ended(chance.choice(self._webhooks), chance.uniform(0, 1), at)

    def _killed_agent(self, chance: random.Random, at: float) -> Blow:
        return self._killed(chance.choice(self._agents), chance.uniform(0, 2), at)

    def _killed(self, name: str, away_s: float, at: float) -> Blow:
        def strike() -> None:
            self._hurt(self._supervisor.kill(name, away_s=away_s))

        return Blow(at, f"{name} killed, away for {away_s:.1f} s", strike)

    def _ended_operator(self, chance: random.Random, at: float) -> Blow:
        return self._ended(chance.choice(self._operators), chance.uniform(0, 1), at)

    def _ended_agent(self, chance: random.Random, at: float) -> Blow:
        return self._ended(chance.choice(self._agents), chance.uniform(0, 1), at)

    def _ended(self, name: str, away_s: float, at: float) -> Blow:
        def strike() -> None:
            self._hurt(self._supervisor.ask_to_end(name, away_s=away_s))

        return Blow(at, f"{name} asked to end, away for {away_s:.1f} s", strike)

    def _stopped_operator(self, chance: random.Random, at: float) -> Blow:
        name, for_s = chance.choice(self._operators), chance.uniform(0.5, 2 * self._terms.lease_s)
        return Blow(at, f"{name} stopped for {for_s:.1f} s", lambda: self._stop(name, for_s))

    def _stopped_agent(self, chance: random.Random, at: float) -> Blow:
        name, for_s = chance.choice(self._agents), chance.uniform(0.5, 5)
        return Blow(at, f"{name} stopped for {for_s:.1f} s", lambda: self._stop(name, for_s))

    def _stop(self, name: str, for_s: float) -> None:
        daemon = self._supervisor.daemon(name)
        self._hurt()
        daemon.signal(signal.SIGSTOP)
        self._in(for_s, lambda: daemon.signal(signal.SIGCONT))

    def _stopped_leader(self, chance: random.Random, at: float) -> Blow:
        for_s = 2 * self._terms.lease_s  # as 30 s are to a lease of 15 s
        what = f"the leader stopped for {for_s:.1f} s"
        return Blow(at, what, lambda: self._to_leader(what, lambda name: self._stop(name, for_s)))

    def _leader_without_lease(self, chance: random.Random, at: float) -> Blow:
        for_s = self._terms.lease_s * chance.uniform(1.0, 1.5)
        action: Action = chance.choice(("refuse", "lost", "status"))
        what = f"the leader cut off from the Lease for {for_s:.1f} s: {action}"

        def cut(name: str) -> None:
            fault = Fault(action=action, resource=LEASES, user=name, times=None)
            self._arm(fault)
            self._in(for_s, lambda: self._disarm(fault))

        return Blow(at, what, lambda: self._to_leader(what, cut))

    def _busy_server(self, chance: random.Random, at: float) -> Blow:
        """Return a fault that answers every request with 429; open watches continue."""
        for_s, share = chance.uniform(0.5, 2.0) * self._terms.lease_s, chance.choice((0.3, 0.6))
        after_s = chance.choice((0.1, 1.0))
        what = f"{share:.0%} of all requests get 429 for {for_s:.1f} s, Retry-After {after_s} s"

        def strike() -> None:
            fault = Fault(action="status", code=429, share=share, seconds=after_s, times=None)
            self._hurt()
            self._arm(fault)
            self._in(for_s, lambda: self._disarm(fault))

        return Blow(at, what, strike)

    def _disarm(self, fault: Fault) -> None:
        with self._lock:
            self._struck += self._cluster.server.faults.count(fault) > 0
            self._armed = [armed for armed in self._armed if armed is not fault]
        self._cluster.server.faults.remove(fault)

    def _to_leader(self, what: str, strike: Callable[[str], None]) -> None:
        """Apply `strike` to the leader as soon as there is one, without delaying other faults."""

        def work() -> None:
            name = live_leader(self._cluster, within_s=_LEADER_WITHIN_S)
            if name is None:
                self.missed.append(f"nobody led for {_LEADER_WITHIN_S:.0f} s: {what}")
                return
            self.log.append(f"{time.time():.3f} {name} leads: {what}")
            strike(name)

        self._in(0, work)

    def _restarted_kubelet(self, chance: random.Random, at: float) -> Blow:
        node = chance.choice(sorted(self._cluster.kubelets))

        def strike() -> None:
            self._hurt()
            self._cluster.restart_kubelet(node)

        return Blow(at, f"kubelet of {node} restarted", strike)

    def _restarted_server(self, chance: random.Random, at: float) -> Blow:
        down_s = chance.uniform(0.1, 1.5)

        def strike() -> None:
            self._hurt()
            self._cluster.server.restart(down_for=down_s)

        return Blow(at, f"API server restarted, down for {down_s:.1f} s", strike)

    def _no_webhook(self, chance: random.Random, at: float) -> Blow:
        away_s = chance.uniform(1, 3)

        def strike() -> None:
            killed = [self._supervisor.kill(name, away_s=away_s) for name in self._webhooks]
            self._hurt(all(killed))

        return Blow(at, f"no webhook for {away_s:.1f} s", strike)

    def _long_outage(self, chance: random.Random, at: float) -> Blow:
        # Every Lease runs out, as in ten minutes without an API server.
        down_s = self._terms.lease_s * chance.uniform(2, 3)

        def strike() -> None:
            self._hurt()
            self._cluster.server.restart(down_for=down_s)

        return Blow(at, f"no API server for {down_s:.1f} s", strike)

    def _expired_certificates(self, chance: random.Random, at: float) -> Blow:
        for_s = self._terms.expired_s * chance.uniform(0.8, 1.2)

        def strike() -> None:
            self._hurt()
            self._cluster.renew_certificates(_EXPIRED)
            self._in(for_s, self._cluster.renew_certificates)

        return Blow(at, f"certificates expired, and renewed after {for_s:.1f} s", strike)

    def _new_certificates(self, chance: random.Random, at: float) -> Blow:
        def strike() -> None:
            self._hurt()
            self._cluster.renew_certificates()

        return Blow(at, "certificates renewed", strike)

    def _rebooted_node(self, chance: random.Random, at: float) -> Blow:
        node, away_s = chance.choice(sorted(self._cluster.kubelets)), chance.uniform(0.5, 2)

        def strike() -> None:
            self._hurt()
            self._supervisor.kill(self._cluster.agents[node].name, away_s=away_s)
            self._cluster.reboot_node(node, away_s=away_s)

        return Blow(at, f"{node} rebooted, away for {away_s:.1f} s", strike)

    def _hanging_driver(self, chance: random.Random, at: float) -> Blow:
        node, for_s = (
            chance.choice(sorted(self._cluster.kubelets)),
            self._terms.hangs_s * chance.random(),
        )

        def strike() -> None:
            self._hurt()
            self._cluster.slow_driver(node, _HANGS_MS)
            self._in(for_s, lambda: self._cluster.slow_driver(node, 0))

        return Blow(at, f"NVML of {node} hangs for {for_s:.1f} s", strike)

    def _full_disk(self, chance: random.Random, at: float) -> Blow:
        node, for_s = chance.choice(sorted(self._cluster.kubelets)), chance.uniform(1, 4)

        def strike() -> None:
            disk = ExitStack()
            self._supervisor.has_no_room(self._cluster.agents[node].name)
            self._hurt(disk.enter_context(self._cluster.full_disk(node)))
            self._in(for_s, disk.close)

        return Blow(at, f"the disk of {node}'s agent is full for {for_s:.1f} s", strike)

    def _clock_jump(self, chance: random.Random, at: float) -> Blow:
        seconds = chance.choice((-3600, -60, 60, 3600))

        def strike() -> None:
            self._hurt()
            self._set_clock(seconds)

        return Blow(at, f"clocks set to {seconds:+d} s beside the true time", strike)

    def _in(self, seconds: float, what: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()
        self._later.append(timer)  # `end` joins what is here, from another thread
