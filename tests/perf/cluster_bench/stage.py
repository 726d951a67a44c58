"""A control plane with simulated nodes, and the loads on it.

No controllers run, so nodes without a kubelet are not tainted, and no garbage is collected. Pods of
another DRA driver get only the controller that makes their ResourceClaims.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf.cluster_bench import measures
from perf.cluster_bench.allocated import make_allocated
from perf.cluster_bench.check import promises
from perf.cluster_bench.load import LABEL
from perf.cluster_bench.paper import (
    UNTAINTED,
    kinds_are_served,
    make_agent_pods,
    make_devices,
    make_nodes,
)
from perf.cluster_bench.stock import CONTROLLER, TEMPLATE, make_stock_devices
from perf.cluster_bench.timed import NAMESPACE
from vgpu_api.resources import LEASES, PODS
from vgpu_client.api import Api
from vgpu_local.background import BackgroundLoop
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import apply
from vgpu_local.installed import InstalledCluster
from vgpu_local.programs import NAMESPACE as OURS
from vgpu_local.programs import ROOT
from vgpu_local.started import Started

SCHEDULER_CLIENT = {"qps": 1_000, "burst": 2_000}
"""High limits of kube-scheduler's client for both loads; the defaults are 50 and 100."""
_PROFILED = ("kube-apiserver", "kube-scheduler")
LEASE_S = 9
"""The operator's default."""
CLAIMS_S = 10.0
_PROFILE_S = 5
_SETTLED_S = 3.0
_SETTLED_SHARE = 0.05
_AGENT_SHARE = 2e-5
"""The most that one agent's watch costs the API server at rest, in cores."""
_SETTLE_LIMIT_S = 900.0
_READY_LIMIT_S = 600.0
_STILL_LIMIT_S = 60.0
_IDLE_S = 60.0
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Load:
    """The load for either scheduler.

    Attributes:
        pods: The number of pods that are created at once.
        limit_s: Give up after so long.
        profiles: The folder for CPU profiles of API server and kube-scheduler under our load, or
            None.
        claims_per_s: The number of Immediate claims a second after the pods, or 0.
        failover: Then run the same pods again, and kill the leader while they start.
        lease_s: The duration of the operator's Lease.
        allocated: The number of pods that already have their slices.
        agents: Run the same pods again with the watches of all agents, and measure these at rest.
        cold_start: At the end, end all replicas of the operator at once and start them again.
    """

    pods: int
    limit_s: float
    profiles: Path | None = None
    claims_per_s: float = 0.0
    failover: bool = False
    lease_s: int = LEASE_S
    allocated: int = 0
    agents: bool = False
    cold_start: bool = False


class Stage(Started):
    """A control plane with nodes, as a context manager.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._undo = contextlib.ExitStack()
        self._plane = ControlPlane(Options(profiling=True, apiserver_args=UNTAINTED))

    def start(self) -> None:
        """Start the control plane and make the nodes."""
        self._undo.callback(self._plane.stop)
        self._plane.start()
        self._loop = BackgroundLoop("bench")
        self._undo.callback(self._loop.stop)
        self._api = self._loop.enter(Api.connect(str(self._plane.kubeconfig)), self._undo)
        self._node_uids = self._loop.run(make_nodes(self._api, self._nodes))

    def stop(self) -> None:
        """End every process and remove their files."""
        self._undo.close()

    def plain(self, load: Load) -> dict[str, Any]:
        """Run pods without devices through kube-scheduler with its default configuration."""
        self._plane.start_scheduler({"clientConnection": SCHEDULER_CLIENT})
        settle(self._plane.pids())
        found = self._measure("plain", load, self._plane.pids())
        self._loop.run(self._delete_pods("plain"))
        self._plane.stop_scheduler()
        return found

    def stock(self, load: Load) -> dict[str, Any]:
        """Run pods with devices of another DRA driver, which plain kube-scheduler allocates."""
        self._loop.run(make_stock_devices(self._api, list(self._node_uids)))
        self._plane.start_controllers(CONTROLLER)
        self._plane.start_scheduler({"clientConnection": SCHEDULER_CLIENT})
        settle(self._plane.pids())
        given = ("--template", TEMPLATE)
        self._measure("warm", Load(1, 60.0), self._plane.pids(), given)
        return self._measure("stock", load, self._plane.pids(), given)

    def ours(
        self, load: Load, found: dict[str, Any], *, overlay: str = "default"
    ) -> dict[str, Any]:
        """Run pods with devices through the project as an overlay of manifests/ installs it.

        Args:
            load: The load to run.
            found: Receives each figure as soon as it is known.
            overlay: The name of a folder of manifests/overlays.

        Raises:
            DaemonDied: A process of ours ended; with the end of its log.
        """
        apply(self._plane, ROOT / "crds")
        self._loop.run(kinds_are_served(self._api))
        self._loop.run(make_devices(self._api, self._plane.etcd_socket, self._node_uids))
        began = time.monotonic()
        with InstalledCluster(
            [],
            lease_s=load.lease_s,
            ready_s=_READY_LIMIT_S,
            plane=self._plane,
            scheduler_client=SCHEDULER_CLIENT,
            overlay=overlay,
        ) as cluster:
            start = found["start"] = {"leads_after_s": round(time.monotonic() - began, 1)}
            try:
                settle(self._plane.pids() | cluster.pids())
                start["quiet_after_s"] = round(time.monotonic() - began, 1)
                if load.agents:
                    making = make_agent_pods(self._api, self._plane.etcd_socket, self._node_uids)
                    self._loop.run(making)
                    settle(self._plane.pids() | cluster.pids())  # the operator marks each of them
                with self._child("agent") as agent:
                    self._measure_ours(load, found, cluster, agent.pid)
            except Exception:
                cluster.check()
                raise
        found["promises"] = self._loop.run(promises(self._api))
        return found

    def _measure_ours(
        self, load: Load, found: dict[str, Any], cluster: InstalledCluster, agent: int
    ) -> None:
        pids = self._plane.pids() | cluster.pids() | {"played agent": agent}
        self._measure("warm", Load(1, 60.0), pids, ("--with-devices",))
        if load.allocated:
            socket = self._plane.etcd_socket
            making = make_allocated(self._api, socket, "warm-0", self._node_uids, load.allocated)
            self._loop.run(making, limit=_READY_LIMIT_S)
            settle(pids)
        found |= self._measure("ours", load, pids, ("--with-devices",))
        found["leader"] = cluster.leader().name
        if load.agents:
            found["agents"] = self._measure_agents(load, pids)
        if load.claims_per_s:
            found["claims"] = self._measure_claims(load, pids)
        if load.failover:
            took_s = found["bound"] / found["pods_per_s"]
            found["failover"] = self._measure_failover(load, cluster, took_s / 3)
        if load.cold_start:
            found["cold_start"] = self._measure_cold_start(cluster)

    def _measure(
        self, run: str, load: Load, pids: Mapping[str, int], arguments: Sequence[str] = ()
    ) -> dict[str, Any]:
        given = ("--run", run, "--pods", str(load.pods), "--limit", str(load.limit_s), *arguments)
        profiles = load.profiles / "pods" if run == "ours" and load.profiles else None
        times, spent = self._observed("load", given, pids, profiles)
        sent, bound = times["sent"], times["bound"]
        return {
            "pods": load.pods,
            "bound": len(bound),
            "refused": times["refused"][:3],
            **(measures.rates(list(bound.values())) if len(bound) > 2 else {}),
            "create_to_bound_s": measures.summarized([at - sent[n] for n, at in bound.items()]),
            **spent,
        }

    def _measure_claims(self, load: Load, pids: Mapping[str, int]) -> dict[str, Any]:
        """Create Immediate claims at this rate per second."""
        rate = load.claims_per_s
        profiles = load.profiles / "claims" if load.profiles else None
        count = round(rate * CLAIMS_S)
        given = ("--count", str(count), "--rate", str(rate), "--limit", str(10 * CLAIMS_S))
        times, spent = self._observed("claims", given, pids, profiles)
        sent, bound = times["sent"], times["bound"]
        return {
            "claims": count,
            "per_s": rate,
            "allocated": len(bound),
            "refused": times["refused"][:3],
            "create_to_allocated_s": measures.summarized([at - sent[n] for n, at in bound.items()]),
            **{key.replace("per_pod", "per_claim"): found for key, found in spent.items()},
        }

    def _measure_agents(self, load: Load, pids: Mapping[str, int]) -> dict[str, Any]:
        """Run the pods with an agent per node, and measure idle CPU use with and without agents."""
        settle(pids)
        alone = _idle(pids)
        with self._child("agents", "--count", str(self._nodes)) as agents:
            _await_ready(agents)
            settle(pids, share=_SETTLED_SHARE + self._nodes * _AGENT_SHARE)
            connected = _idle(pids)
            found = self._measure(
                "agents", load, {**pids, "agents": agents.pid}, ("--with-devices",)
            )
            return {
                **found,
                "idle_cores": connected,
                "idle_cores_without": alone,
                "asked": _asked(agents, pids),
            }

    def _measure_failover(
        self, load: Load, cluster: InstalledCluster, killed_after_s: float
    ) -> dict[str, Any]:
        """Run the pods once more, and kill the leader while they start."""
        given = ("--run", "failover", "--pods", str(load.pods), "--limit", str(load.limit_s))
        with self._child("load", *given, "--with-devices") as process:
            _await_ready(process)
            _begin(process)
            time.sleep(killed_after_s)
            cluster.leader().kill()
            times = _end(process, self._plane.pids())
        gap_s, since_s = measures.longest_gap(list(times["bound"].values()))
        return {
            "pods": load.pods,
            "bound": len(times["bound"]),
            "refused": times["refused"][:3],
            "killed_after_s": round(killed_after_s, 1),
            "failover_s": gap_s,
            "since_s": since_s,
        }

    def _measure_cold_start(self, cluster: InstalledCluster) -> dict[str, Any]:
        """Start all replicas while none runs; the Lease of the dead leader must expire first."""
        for operator in cluster.operators:
            operator.kill()
        began = time.monotonic()
        for operator in cluster.operators:
            operator.start()
        leader = cluster.await_leader(_READY_LIMIT_S)
        leads_after_s, now = time.monotonic() - began, datetime.now(UTC)
        lease = self._loop.run(self._api.get(LEASES, "vgpu-operator", namespace=OURS))
        since = datetime.fromisoformat(lease["spec"]["acquireTime"])
        settle(self._plane.pids() | cluster.pids())
        return {
            "leads_after_s": round(leads_after_s, 1),
            "leads_after_lease_s": round((now - since).total_seconds(), 1),
            "peak_mib": measures.peaks_mib({each.name: each.pid for each in cluster.operators}),
            "leader": leader.name,
        }

    def _observed(
        self,
        module: str,
        arguments: Sequence[str],
        pids: Mapping[str, int],
        profiles: Path | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a load; return its times, and the usage of each process during it."""
        pids = {**pids, "bench": os.getpid()}
        with self._child(module, *arguments) as process:
            _await_ready(process)
            measures.reset_peaks(pids)
            requests, before = self._requests(), measures.used(pids)
            began = time.monotonic()
            with self._profiled(profiles):
                _begin(process)
                times = _end(process, pids)
                wall_s = time.monotonic() - began
                after = measures.used(pids)
        count = len(times["bound"]) or 1
        cpu = measures.cpu_per_pod(before, after, count)
        cpu["load"] = round(1000 * times["cpu_s"] / count, 2)
        cpu["others"] = round(max(0.0, cpu["others"] - cpu["load"]), 2)
        available = wall_s * (os.cpu_count() or 1)
        return times, {
            "requests_per_pod": measures.per_pod(requests, self._still(), count),
            "cpu_ms_per_pod": cpu,
            "peak_mib": measures.peaks_mib(pids),
            "wall_s": round(wall_s, 1),
            "machine_busy_share": round((after.machine - before.machine) / available, 3),
            "others_cpu_share": round(cpu["others"] * count / 1000 / available, 3),
        }

    @contextlib.contextmanager
    def _child(self, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process of this package that ends with the block, and with this process."""
        process = subprocess.Popen(
            [
                *(
                    "setpriv",
                    "--pdeathsig=KILL",
                    sys.executable,
                    "-m",
                    f"perf.cluster_bench.{module}",
                ),
                *("--kubeconfig", str(self._plane.kubeconfig), *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def _profiled(self, folder: Path | None) -> Iterator[None]:
        """Take CPU profiles during the block, `PROGRAM.NUMBER.pprof`.

        The last ends seconds later.
        """
        if folder is None:
            yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.pprof"):
            old.unlink()
        over = threading.Event()

        def take(program: str) -> None:
            for number in itertools.count():
                if over.is_set():
                    return
                found = self._plane.cpu_profile(program, _PROFILE_S)
                (folder / f"{program}.{number:02}.pprof").write_bytes(found)

        with ThreadPoolExecutor() as pool:
            taken = [pool.submit(take, program) for program in _PROFILED]
            try:
                yield
            finally:
                over.set()
        for profiles in taken:
            profiles.result()

    def _requests(self) -> measures.Requests:
        return measures.requests(self._plane.get("/metrics", timeout_s=60.0).decode())

    def _still(self) -> measures.Requests:
        """Return the requests once the pods cause no more; those after the Binding are included."""
        deadline = time.monotonic() + _STILL_LIMIT_S
        before = self._requests()
        while True:
            time.sleep(2.0)
            after = self._requests()
            made = measures.per_pod(before, after, 1)["total"]
            if made < 5 or time.monotonic() > deadline:
                return after
            before = after

    async def _delete_pods(self, run: str) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def delete(name: str) -> None:
            async with gate:
                await self._api.delete(PODS, name, namespace=NAMESPACE)

        found = await self._api.list(PODS, namespace=NAMESPACE, label_selector=f"{LABEL}={run}")
        await asyncio.gather(*(delete(pod["metadata"]["name"]) for pod in found.items))


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    """Return once a load watches its objects."""
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the load ended before it began; its error is above")


def _begin(process: subprocess.Popen[bytes]) -> None:
    """Start a load."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def _asked(agents: subprocess.Popen[bytes], pids: Mapping[str, int]) -> dict[str, Any]:
    """Return the numbers of the agents' requests and events so far."""
    _begin(agents)
    return _end(agents, pids)


def _idle(pids: Mapping[str, int]) -> dict[str, float]:
    """Return how many cores each process uses while nothing is asked of it."""
    before, began = measures.used(pids).processes, time.monotonic()
    time.sleep(_IDLE_S)
    after, wall_s = measures.used(pids).processes, time.monotonic() - began
    return {name: round((after[name] - before[name]) / wall_s, 4) for name in pids}


def _end(process: subprocess.Popen[bytes], pids: Mapping[str, int]) -> dict[str, Any]:
    """Return the times of a load, once it has ended.

    Args:
        process: The load.
        pids: Processes without which it never ends.

    Raises:
        RuntimeError: One of them has ended, or the load itself.
    """
    assert process.stdout is not None
    while not select.select([process.stdout], [], [], 1.0)[0]:
        if gone := measures.ended(pids):
            raise RuntimeError(f"ended under load: {', '.join(gone)}")
    said = process.stdout.readline()
    if not said:
        raise RuntimeError("the load ended before it was done; its error is above")
    found: dict[str, Any] = json.loads(said)
    return found


def settle(
    pids: Mapping[str, int],
    *,
    share: float = _SETTLED_SHARE,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once all processes are nearly idle, with their caches filled.

    Args:
        pids: The processes.
        share: The most that each may use of a core.
        sleep: Waits.

    Raises:
        TimeoutError: One of them stays busy for too long.
    """
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    while time.monotonic() < deadline:
        before = measures.used(pids).processes
        sleep(_SETTLED_S)
        after = measures.used(pids).processes
        busiest = max(after, key=lambda name: after[name] - before[name])
        if after[busiest] - before[busiest] < share * _SETTLED_S:
            return
    raise TimeoutError(f"{busiest} is still busy after {_SETTLE_LIMIT_S:.0f} s")
