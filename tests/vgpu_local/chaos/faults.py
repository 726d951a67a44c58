"""What goes wrong during a campaign: a schedule made from the seed, and who carries it out.

Every entry counts only if it really hurt: an API fault that befell no request was not injected.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vgpu_local.apiserver.faults import Fault
from vgpu_local.chaos.supervisor import Supervisor
from vgpu_local.cluster import LocalCluster

_RESOURCES = (
    "*",
    "*",
    "*",
    "pods",
    "pods/binding",
    "vgpuclaims.vgpu.dev",
    "vgpuclaims.vgpu.dev/status",
    "vgpuclaims.vgpu.dev/status",
    "gpudevices.vgpu.dev/status",
    "leases.coordination.k8s.io",
)
_CODES = (409, 422, 429, 500, 503, 504)
_WATCHED = ("pods", "vgpuclaims.vgpu.dev", "gpudevices.vgpu.dev", "nodes", "*")
_OUTAGES = 2


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing that goes wrong.

    Attributes:
        at: when, in seconds.
        what: in words.
        strike: does it.
    """

    at: float
    what: str
    strike: Callable[[], None]


class Injector:
    """Strikes a cluster as the seed says.

    Attributes:
        kills: how many processes were killed, stopped or restarted, streams broken, servers
            restarted.
    """

    def __init__(
        self, cluster: LocalCluster, supervisor: Supervisor, chance: random.Random, *, lasts: float
    ) -> None:
        self.kills = 0
        self.log: list[str] = []
        self._cluster = cluster
        self._supervisor = supervisor
        self._armed: list[Fault] = []
        self._later: list[threading.Timer] = []
        self._users = [daemon.name for daemon in (*cluster.operators, *cluster.agents.values())]
        makers = (
            (85, self._api_fault),
            (8, self._broken_watch),
            (5, self._killed_operator),
            (2, self._stopped_operator),
            (5, self._killed_agent),
            (2, self._stopped_agent),
            (3, self._restarted_kubelet),
            (_OUTAGES, self._restarted_server),
        )
        self.blows = sorted(
            (
                make(chance, chance.uniform(0.5, lasts))
                for times, make in makers
                for _ in range(times)
            ),
            key=lambda blow: blow.at,
        )

    def run(self) -> None:
        """Strike every blow at its time; returns after the last."""
        began = time.monotonic()
        for blow in self.blows:
            time.sleep(max(0.0, began + blow.at - time.monotonic()))
            self.log.append(f"{time.time():.3f} {blow.what}")
            blow.strike()

    def end(self) -> None:
        """Nothing goes wrong from now on, and everything that was hurt is well again."""
        for timer in self._later:
            timer.join()
        self.befell = sum(self._cluster.server.faults.count(fault) > 0 for fault in self._armed)
        self._cluster.server.faults.clear()
        self._supervisor.mend()

    @property
    def injected(self) -> int:
        """How many blows have hurt; complete after `end`."""
        return self.kills + self.befell

    # The kinds.

    def _api_fault(self, chance: random.Random, at: float) -> Blow:
        user = chance.choice(self._users) if chance.random() < 0.8 else ""
        if chance.random() < 0.5:
            user = user.replace("operator-1", "operator-0")
        fault = Fault(
            action=chance.choices(("status", "delay", "lost", "refuse"), (4, 2, 3, 2))[0],
            verb=chance.choice(("*", "*", "update", "patch", "create", "get")),
            resource=chance.choice(_RESOURCES),
            user=user,
            times=chance.choice((2, 5, 10, 20)),
            share=chance.choice((0.3, 0.6, 1.0)),
            code=chance.choice(_CODES),
            seconds=chance.choice((0.1, 0.5, 1.5)),
        )

        def strike() -> None:
            self._armed.append(self._cluster.server.faults.add(fault))

        return Blow(at, str(fault), strike)

    def _broken_watch(self, chance: random.Random, at: float) -> Blow:
        resource = chance.choice(_WATCHED)
        frozen_s = chance.uniform(0.5, 4) if chance.random() < 0.4 else 0.0
        how = "freeze" if frozen_s else chance.choice(("drop", "gone"))

        def strike() -> None:
            server = self._cluster.server
            self.kills += bool(server.break_watches(resource, how))  # type: ignore[arg-type]
            if frozen_s:  # then the network says that nobody is there
                self._in(frozen_s, lambda: server.break_watches(resource, "drop"))

        return Blow(at, f"watches of {resource}: {how}", strike)

    def _killed_operator(self, chance: random.Random, at: float) -> Blow:
        number, away_s = chance.randrange(len(self._cluster.operators)), chance.uniform(0, 2)
        return self._killed(self._cluster.operators[number].name, away_s, at)

    def _killed_agent(self, chance: random.Random, at: float) -> Blow:
        node, away_s = chance.choice(sorted(self._cluster.agents)), chance.uniform(0, 2)
        return self._killed(self._cluster.agents[node].name, away_s, at)

    def _killed(self, name: str, away_s: float, at: float) -> Blow:
        def strike() -> None:
            self.kills += self._supervisor.kill(name, away_s=away_s)

        return Blow(at, f"{name} killed, away for {away_s:.1f} s", strike)

    def _stopped_operator(self, chance: random.Random, at: float) -> Blow:
        number = chance.randrange(len(self._cluster.operators))
        return self._stopped(self._cluster.operators[number].name, chance.uniform(0.5, 6), at)

    def _stopped_agent(self, chance: random.Random, at: float) -> Blow:
        node = chance.choice(sorted(self._cluster.agents))
        return self._stopped(self._cluster.agents[node].name, chance.uniform(0.5, 5), at)

    def _stopped(self, name: str, for_s: float, at: float) -> Blow:
        daemon = self._supervisor.daemon(name)

        def strike() -> None:
            self.kills += 1
            daemon.signal(signal.SIGSTOP)
            self._in(for_s, lambda: daemon.signal(signal.SIGCONT))

        return Blow(at, f"{name} stopped for {for_s:.1f} s", strike)

    def _restarted_kubelet(self, chance: random.Random, at: float) -> Blow:
        node = chance.choice(sorted(self._cluster.kubelets))

        def strike() -> None:
            self.kills += 1
            self._cluster.restart_kubelet(node)

        return Blow(at, f"kubelet of {node} restarted", strike)

    def _restarted_server(self, chance: random.Random, at: float) -> Blow:
        down_s = chance.uniform(0.1, 1.5)

        def strike() -> None:
            self.kills += 1
            self._cluster.server.restart(down_for=down_s)

        return Blow(at, f"API server restarted, down for {down_s:.1f} s", strike)

    def _in(self, seconds: float, what: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, what)
        self._later.append(timer)
        timer.start()


def in_words(blows: Sequence[Blow]) -> str:
    """The schedule, a line a blow."""
    return "\n".join(f"{blow.at:6.2f} {blow.what}" for blow in blows)
