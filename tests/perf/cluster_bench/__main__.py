"""`make bench-cluster`: start one control plane for each number of nodes.

Run plain pods, then ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from perf.cluster_bench.allocated import FILLED
from perf.cluster_bench.paper import DEVICES_PER_NODE, SLOTS
from perf.cluster_bench.stage import CLAIMS_S, LEASE_S, Load, Stage
from vgpu_local.assembly import leave_on_terminate

OUT = Path("build/bench")
STOCK = "stock"
MODES = ("gate", "claims", STOCK)


def main() -> None:
    """Measure, and write build/bench/cluster.json after each number of nodes, even if it failed."""
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 5_000])
    parser.add_argument("--pods", type=int, default=2_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one load")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="of API server and scheduler, in cluster.NODES.profiles",
    )
    parser.add_argument("--claims", type=float, default=0.0, help="Immediate ones a second, after")
    parser.add_argument("--failover", action="store_true", help="and kill the leader under load")
    parser.add_argument(
        "--mode",
        nargs="*",
        choices=MODES,
        default=[],
        help="run the same pods in these modes too; stock: they get whole devices of another DRA "
        "driver from kube-scheduler",
    )
    parser.add_argument(
        "--allocated", type=int, default=0, help="pods that have their slices before the others"
    )
    parser.add_argument(
        "--agents", action="store_true", help="and the same pods with the watches of all agents"
    )
    parser.add_argument(
        "--cold-start", action="store_true", help="and start all operators anew, at the end"
    )
    parser.add_argument(
        "--lease", type=int, default=LEASE_S, help="seconds; longer on a machine with neighbours"
    )
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--out", type=Path, default=OUT / "cluster.json")
    options = parser.parse_args()
    if min(options.sizes) < 1:
        parser.error(f"--sizes: Invalid value: {min(options.sizes)}: at least one node")
    if options.pods < 3:
        parser.error(f"--pods: Invalid value: {options.pods}: at least 3 make a rate")
    fewest = min(options.sizes)
    if options.claims < 0:
        parser.error(f"--claims: Invalid value: {options.claims:g}: 0 or more a second")
    pods = options.pods * (1 + options.failover + options.agents)
    most = fewest * DEVICES_PER_NODE * FILLED
    if not 0 <= options.allocated <= most:
        parser.error(f"--allocated: Invalid value: {options.allocated}: 0 to {most} pods")
    if STOCK in options.mode and options.pods >= fewest * DEVICES_PER_NODE:
        whole = fewest * DEVICES_PER_NODE - 1  # the first pod warms everything up
        parser.error(f"--pods: Invalid value: {options.pods}: in mode {STOCK} at most {whole}")
    wanted = options.allocated + pods
    wanted += round(options.claims * CLAIMS_S) + 1  # the first one warms everything up
    room = fewest * DEVICES_PER_NODE * SLOTS
    if wanted > room:
        parser.error(
            f"--pods, --claims, --allocated: Invalid value: {wanted}: {fewest} nodes hold {room}"
        )
    report: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "note": options.note,
        "pods": options.pods,
        "sizes": {},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        leave_on_terminate(undo)
        for nodes in options.sizes:
            profiles = options.out.with_suffix(f".{nodes}.profiles") if options.profile else None
            load = Load(
                options.pods,
                options.limit,
                profiles,
                options.claims,
                failover=options.failover,
                lease_s=options.lease,
                allocated=options.allocated,
                agents=options.agents,
                cold_start=options.cold_start,
            )
            found: dict[str, Any] = {}
            report["sizes"][str(nodes)] = found
            try:
                measure(nodes, load, found)
                for mode in options.mode:
                    measure_mode(mode, nodes, load, found)
            finally:  # figures that were measured before a failure are kept
                options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(options.out)


def measure(nodes: int, load: Load, found: dict[str, Any]) -> None:
    """Run both loads on one control plane with this many nodes; add figures to `found`."""
    found["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found["load_average"] = os.getloadavg()
    with Stage(nodes) as stage:
        say(f"{nodes} nodes")
        found["plain"] = stage.plain(load)
        say(f"{nodes} nodes, plain: {brief(found['plain'])}")
        ours = found["ours"] = {}
        stage.ours(load, ours)
        say(f"{nodes} nodes, ours: {brief(ours)}")
        if agents := ours.get("agents"):
            found["ratios"] = ratios(nodes, found["plain"], ours, agents)
            say(f"{nodes} nodes, agents: {brief(agents)}; {found['ratios']}")
        if claims := ours.get("claims"):
            times = claims["create_to_allocated_s"]
            say(f"{nodes} nodes, claims at {claims['per_s']:g}/s: {claims['allocated']}, {times} s")
        if failover := ours.get("failover"):
            say(f"{nodes} nodes, leader killed: no pod bound for {failover['failover_s']} s")
        if cold := ours.get("cold_start"):
            say(f"{nodes} nodes, all operators started anew: {cold}")


def measure_mode(mode: str, nodes: int, load: Load, found: dict[str, Any]) -> None:
    """Run the pods with devices again, on a control plane that calls no extender."""
    with Stage(nodes) as stage:
        of_mode = found[mode] = {}
        if mode == STOCK:
            of_mode |= stage.stock(load)
        else:
            stage.ours(load, of_mode, overlay=mode)
        say(f"{nodes} nodes, {mode}: {brief(of_mode)}")


def ratios(
    nodes: int, plain: dict[str, Any], ours: dict[str, Any], agents: dict[str, Any]
) -> dict[str, float]:
    """Return kube-apiserver's CPU time per pod, in plain pods, and per thousand idle agents."""
    server = "kube-apiserver"
    of_plain = plain["cpu_ms_per_pod"][server]
    at_rest = agents["idle_cores"][server] - agents["idle_cores_without"][server]
    return {
        "without_agents": round(ours["cpu_ms_per_pod"][server] / of_plain, 2),
        "with_agents": round(agents["cpu_ms_per_pod"][server] / of_plain, 2),
        "idle_cores_a_thousand": round(at_rest * 1000 / nodes, 4),
    }


def brief(found: dict[str, Any]) -> str:
    """Return the figures of one load in a line."""
    rate, middle = found["pods_per_s"], found["pods_per_s_middle_80"]
    return (
        f"{found['bound']} bound, {rate} pods/s ({middle}), {found['create_to_bound_s']} s, "
        f"{found['requests_per_pod']['total']} requests a pod, "
        f"others {found['others_cpu_share']:.0%} of the machine"
    )


def say(what: str) -> None:
    """Print a progress line for the person who waits."""
    print(time.strftime("%H:%M:%S"), what, flush=True)


if __name__ == "__main__":
    main()
