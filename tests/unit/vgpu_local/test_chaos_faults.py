"""The faults that a campaign injects, and those that count."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vgpu_local.apiserver.faults import Fault, Faults
from vgpu_local.chaos.api_faults import draw
from vgpu_local.chaos.faults import Injector, Terms
from vgpu_local.chaos.leader import LEASES
from vgpu_local.pki import LIFETIME


class Named:
    """A process that only notes its signals."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


class Cluster:
    """The targets of an injector; the operator of number 1 leads. Watches are never open."""

    def __init__(self) -> None:
        self.operators = [Named("operator-0"), Named("operator-1")]
        self.webhooks = [Named("webhook-0")]
        self.agents = {"one": Named("agent-one")}
        self.kubelets = {"one": object()}
        self.server = self
        self.faults = Faults()
        self.rebooted: list[str] = []
        self.slowed: list[int] = []
        self.filled: list[tuple[str, bool]] = []
        self.good_for: list[dt.timedelta] = []
        self.clock: list[int] = []
        self._renewals = itertools.count()

    def objects(self, resource: str, namespace: str) -> list[dict[str, Any]]:
        assert resource == LEASES
        spec = {"holderIdentity": "operator-1_x", "renewTime": str(next(self._renewals))}
        return [{"spec": spec}]

    def break_watches(self, resource: str, how: str) -> int:
        return 0

    def restart(self, *, down_for: float) -> None:
        pass

    def restart_kubelet(self, node: str) -> None:
        pass

    def reboot_node(self, node: str, *, away_s: float) -> None:
        self.rebooted.append(node)

    def slow_driver(self, node: str, milliseconds: int) -> None:
        self.slowed.append(milliseconds)

    @contextmanager
    def full_disk(self, node: str) -> Iterator[bool]:
        self.filled.append((node, True))
        yield True
        self.filled.append((node, False))

    def renew_certificates(self, good_for: dt.timedelta = LIFETIME) -> None:
        self.good_for.append(good_for)


class Supervised:
    """The process that is to be killed has ended already."""

    def __init__(self, cluster: Cluster) -> None:
        self._all = [*cluster.operators, *cluster.webhooks, *cluster.agents.values()]
        self.mended = False
        self.without_room: list[str] = []

    def daemon(self, name: str) -> Named:
        return next(daemon for daemon in self._all if daemon.name == name)

    def kill(self, name: str, *, away_s: float) -> bool:
        return False

    def ask_to_end(self, name: str, *, away_s: float) -> bool:
        return False

    def has_no_room(self, name: str) -> None:
        self.without_room.append(name)

    def mend(self) -> None:
        self.mended = True


TERMS = Terms(lasts_s=0.0, fewest=1000, more_s=60.0, lease_s=0.0, expired_s=0.0, hangs_s=0.0)


def an_injector(cluster: Cluster) -> Injector:
    supervised: Any = Supervised(cluster)
    whole: Any = cluster
    return Injector(whole, supervised, random.Random(7), TERMS, cluster.clock.append)


def test_only_what_hurt_counts() -> None:
    cluster = Cluster()
    injector = an_injector(cluster)
    injector.run(is_enough=lambda: True)
    stops_and_restarts = injector.injected
    cluster.faults.take("patch", "vgpuclaims.vgpu.dev/status", "c", "operator-1")
    befallen = injector.injected - stops_and_restarts
    assert befallen > 0
    injector.end()
    assert injector.injected >= stops_and_restarts + befallen
    assert cluster.faults.take("patch", "pods", "p", "operator-1") == []


def test_more_is_struck_until_it_is_enough() -> None:
    cluster = Cluster()
    injector = an_injector(cluster)
    asked = itertools.count()
    injector.run(is_enough=lambda: next(asked) == 3)
    planned = an_injector(Cluster())
    planned.run(is_enough=lambda: True)
    for one in (injector, planned):
        one.end()
    assert len(injector.log) == len(planned.log) + 3


def test_the_leader_is_stopped_and_woken_and_cut_off_from_its_lease() -> None:
    cluster = Cluster()
    injector = an_injector(cluster)
    injector.run(is_enough=lambda: True)
    injector.end()
    assert injector.missed == []
    leads = [line for line in injector.log if "operator-1 leads" in line]
    assert len(leads) == 2
    stops = cluster.operators[1].signals
    assert signal.SIGSTOP in stops
    assert stops.count(signal.SIGSTOP) == stops.count(signal.SIGCONT)


def test_what_outlasts_a_blow_is_well_again_in_the_end() -> None:
    cluster = Cluster()
    injector = an_injector(cluster)
    injector.run(is_enough=lambda: True)
    injector.end()
    assert cluster.rebooted == ["one"]
    assert cluster.filled == [("one", True), ("one", False)]
    assert min(cluster.good_for) < dt.timedelta() < cluster.good_for[-1]
    assert len(cluster.slowed) == 2
    assert cluster.slowed[-1] == 0
    assert len(cluster.clock) == 3
    assert cluster.clock[-1] == 0
    assert all(cluster.clock[:-1])


def test_the_faults_of_a_seed_are_always_the_same_and_befall_requests_that_are_made() -> None:
    one, two = ([draw(random.Random(n)) for n in range(200)] for _ in range(2))
    assert one == two
    assert {who for who, _ in one} == {"", "leader", "operator", "agent"}
    for _, fault in one:
        assert isinstance(fault, Fault)
        if fault.action in ("drop", "gone"):
            assert fault.verb == "watch"
