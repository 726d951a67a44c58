"""`make bench-admission`: reviews of 200 pods a second, answered by one process of the webhooks.

The measured process is the deployed program. This process runs the stand-in API server behind it,
and also sends the reviews as an API server would: one for each pod, over TLS on connections that
are kept. Pods come at fixed instants, whether or not earlier ones have been answered, so a queue
would show. They are the pods of the documents in `examples/`, and one in twenty names a claim,
which the webhook then reads from the API server.

    review_ms_p99      from the request to the whole answer; it has the bar
    late_ms_p99        how late this process asked: above a millisecond or two the asker, not the
                       asked, was short of CPU
    cpu_percent        of one CPU, of the webhooks' process, by /proc
    cpu_ms_a_review    of that process; the best measure on a machine with other work
    rss_mib            resident, afterwards

Written to build/bench/admission.json with the bar beside the figures.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import ssl
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from perf.bench_report import report
from vgpu_api.resources import CUSTOM_RESOURCE_DEFINITIONS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer
from vgpu_local.daemon import Daemon
from vgpu_local.pki import Authority
from vgpu_local.programs import ROOT, free_webhook_replica, webhook_command
from vgpu_operator.insight.workloads import pods_of

PODS_A_SECOND, WARM_S, MEASURED_S = 200, 5, 30
READY_S = 30
NATIVE_IN = 20
"""One of this many pods names a claim."""
CLAIM = "bench"
BARS = {"review_ms_p99": 10.0}
OUT = Path("build/bench/admission.json")
FOLDERS = ("hami-guide", "hami-configuration", "ack", "dialects", "seeds")
REFUSED = ("6.5-mode-mps.yaml", "6.5-disable-control.yaml")


def documented_pods() -> list[dict[str, Any]]:
    """Return the pods of the examples that are admitted."""
    files = [path for name in FOLDERS for path in sorted((ROOT / "examples" / name).glob("*.yaml"))]
    return [
        dict(pod)
        for path in files
        if path.name not in REFUSED and "other-vendors" not in path.name
        for document in yaml.safe_load_all(path.read_text())
        for pod in pods_of(document, ["node"])
    ]


def a_native_pod() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "native", "annotations": {"vgpu.dev/claim": CLAIM}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }


def arrivals() -> Iterator[dict[str, Any]]:
    """Yield pods in the order of their arrival, without end."""
    documented = cycle(documented_pods())
    number = 0
    while True:
        number += 1
        pod = a_native_pod() if number % NATIVE_IN == 0 else copy.deepcopy(next(documented))
        pod["metadata"] |= {"name": f"{pod['metadata']['name']}-{number}", "namespace": "default"}
        yield pod


@dataclass
class Measured:
    """The milliseconds of each review, and the delay of each request."""

    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Asker:
    """Plays the API server: sends a review and reads its answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.measured = Measured()

    async def admit(self, pod: dict[str, Any], due: float) -> None:
        """Send the review of a pod."""
        self.measured.late.append((time.perf_counter() - due) * 1000)
        request = {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod["metadata"]["name"],
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "bench"},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        }
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": request,
        }
        body = json.dumps(review).encode()
        began = time.perf_counter()
        async with self._session.post(f"{self._url}/mutate-pods", data=body) as response:
            content = await response.read()
        self.measured.took.append((time.perf_counter() - began) * 1000)
        answer: dict[str, Any] = json.loads(content)["response"]
        if not answer["allowed"]:
            self.measured.refused.append(f"{pod['metadata']['name']}: {answer['status']}")


async def load(url: str, trust: ssl.SSLContext, seconds: float) -> Measured:
    """Send reviews for this many seconds, one pod at each fixed instant."""
    connector = aiohttp.TCPConnector(ssl=trust, limit=64)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        asker, pods = Asker(session, url), arrivals()
        began, asked = time.perf_counter(), []
        for number in range(int(seconds * PODS_A_SECOND)):
            due = began + number / PODS_A_SECOND
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            asked.append(asyncio.create_task(asker.admit(next(pods), due)))
        await asyncio.gather(*asked)
    if asker.measured.refused:
        raise AssertionError(f"refused: {asker.measured.refused[:3]}")
    return asker.measured


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def figures_of(found: Measured) -> dict[str, float]:
    """Return medians and 99th percentiles."""
    return {
        "review_ms_median": statistics.median(found.took),
        "review_ms_p99": percentile(found.took, 0.99),
        "late_ms_p99": percentile(found.late, 0.99),
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


async def furnish(kubeconfig: Path) -> None:
    """Create our kinds and the claim that native pods name."""
    async with Api.connect(str(kubeconfig)) as api:
        for path in sorted((ROOT / "crds").glob("vgpu.dev_*.yaml")):
            await api.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(path.read_text()))
        claim = {
            "apiVersion": "vgpu.dev/v1alpha1",
            "kind": "VGPUClaim",
            "metadata": {"name": CLAIM, "namespace": "default"},
            "spec": {"requests": [{"memory": "1Gi"}]},
        }
        await api.create(VGPU_CLAIMS, claim)


async def ready(url: str, trust: ssl.SSLContext, daemon: Daemon) -> None:
    connector = aiohttp.TCPConnector(ssl=trust)
    async with asyncio.timeout(READY_S), aiohttp.ClientSession(connector=connector) as session:
        while True:
            daemon.check()
            try:
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, ssl.SSLContext, Daemon]]:
    """Start one webhook process on an API server with our kinds; yield address, CA and process."""
    authority = Authority()
    (folder / "ca.crt").write_bytes(authority.certificate)
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with ApiServer(bookmark_every=1.0) as server:
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        asyncio.run(furnish(kubeconfig))
        replica = free_webhook_replica(0)
        config = folder / "config.yaml"
        config.write_text("")
        command = webhook_command(
            replica,
            kubeconfig=kubeconfig,
            config=config,
            authority=authority,
            folder=folder,
            drain_s=0,
            log_level="WARNING",
        )
        daemon = Daemon("webhook", command, os.environ, folder / "webhook.log")
        url = f"https://127.0.0.1:{replica.webhook}"
        daemon.start()
        try:
            asyncio.run(ready(url, trust, daemon))
            yield url, trust, daemon
        finally:
            daemon.stop()


def measure(folder: Path, *, warm_s: float, measured_s: float) -> dict[str, float]:
    """Return all figures of one run."""
    with served(folder) as (url, trust, daemon):
        asyncio.run(load(url, trust, warm_s))
        before, began = cpu_s(daemon.pid), time.monotonic()
        found = asyncio.run(load(url, trust, measured_s))
        used, took_s = cpu_s(daemon.pid) - before, time.monotonic() - began
        return {
            **figures_of(found),
            "cpu_percent": 100 * used / took_s,
            "cpu_ms_a_review": 1000 * used / len(found.took),
            "rss_mib": rss_mib(daemon.pid),
        }


def main() -> int:
    """Measure, write the results, and fail if a figure is above its bar."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder:
        figures = measure(Path(folder), warm_s=WARM_S, measured_s=MEASURED_S)
    shape = {"pods_a_second": PODS_A_SECOND, "seconds": MEASURED_S, "native_one_in": NATIVE_IN}
    return report(figures, bars=BARS, shape=shape, out=OUT)


if __name__ == "__main__":
    raise SystemExit(main())
