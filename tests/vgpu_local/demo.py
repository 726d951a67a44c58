"""`make demo`: runs examples on two simulated GPU nodes, and shows what a user sees.

It ends with exit code 0, or with a message about the first difference. With `--keep` it keeps
running, and prints a KUBECONFIG and the address of the web page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vgpu_api.quantity import MIB
from vgpu_api.resources import GPU_DEVICES, PODS, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import a100_node, t4_node
from vgpu_local.page import Page
from vgpu_local.programs import PROBE, ROOT

EXAMPLES = ROOT / "examples"
NVIDIA_SMI = ROOT / "tests" / "workload" / "nvidia_smi.py"
CUDA_OUT_OF_MEMORY = 2
VISITOR = "visitor"
_RBAC = "rbac.authorization.k8s.io"


class Mismatch(Exception):
    """The demo saw something other than it promises."""


class Demo:
    """The steps of the demo, each of which shows something and checks it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._kubectl = Kubectl.find(cluster.kubeconfig)
        self._step = 0
        self._began = time.monotonic()

    def run(self) -> None:
        """Run all steps."""
        self.say("Two nodes: node-a has a 16 GiB card, node-b an 80 GiB card. All GPUs simulated.")
        self.kubectl("get", "gpudevices")

        self.say("Two pods ask for 8192 MiB and half of the compute each: they share one card.")
        self.apply("seeds/01-two-pods-one-card.yaml")
        for pod in ("inference-service-a", "inference-service-b"):
            self.runs(pod)
        self.kubectl("get", "pods", "-o", "wide")
        self.kubectl("get", "vgpuclaims", "-o", "wide")

        self.say("Inside the first container the card has 8192 MiB, for CUDA and for NVML.")
        self.nvidia_smi("inference-service-a")
        given = self.probe("inference-service-a", "info")["devices"][0]
        expect("memory that CUDA sees", given["cuda_total"], 8192 * MIB)
        expect("memory that NVML sees", given["nvml_total"], 8192 * MIB)

        self.say("It takes memory until the driver says no: at its limit, to the byte.")
        filled = self.probe("inference-service-a", "fill")
        expect("bytes it got", filled["filled"], 8192 * MIB)
        expect("what the next byte got", filled["result"], CUDA_OUT_OF_MEMORY)
        more = self.probe("inference-service-a", "alloc 8193M", VGPU_LOG_LEVEL="1")
        expect("more than the limit at once", more["result"], CUDA_OUT_OF_MEMORY)

        self.say("Its neighbour did not notice.")
        expect("4 GiB in the neighbour", self.probe("inference-service-b", "alloc 4G")["result"], 0)

        self.say("A pod that limits memory only; its environment says so for people.")
        self.apply("seeds/02-memory-only.yaml")
        self.runs("memory-only-isolation")
        variables = self._cluster.exec("memory-only-isolation", ["env"]).stdout.splitlines()
        for line in sorted(line for line in variables if line.startswith("CUDA")):
            print(f"    {line}")

        self.say("A pod wants a card alone. Both are in use: it waits, and says why.")
        self.apply("seeds/03-exclusive.yaml")
        claim = self.refused("training-job")
        self.kubectl("get", "vgpuclaims", claim, "-o", "wide")
        self.kubectl("get", "events", "--field-selector", "involvedObject.name=training-job")

        self.say("The two on the first card end: it gets that card, whole.")
        self.kubectl("delete", "-f", str(EXAMPLES / "seeds/01-two-pods-one-card.yaml"))
        self.runs("training-job")
        whole = self.probe("training-job", "info")["devices"][0]
        expect("memory of the card", whole["cuda_total"], 16384 * MIB)

        self.say("A claim of one's own, and a pod that names it.")
        self.apply("claim.yaml")
        self.kubectl("wait", "--for=condition=Allocated", "vgpuclaim/small", "--timeout=20s")
        self.runs("uses-small")

        self.say("All of it.")
        for device in self._cluster.server.objects("gpudevices.vgpu.dev"):
            self.shows_its_claims(device["metadata"]["name"])
        self.kubectl("get", "gpudevices,vgpuclaims,pods")
        print(f"\nDone in {time.monotonic() - self._began:.1f} s.")

    def say(self, text: str) -> None:
        """Announce a step."""
        self._step += 1
        print(f"\n{self._step}. {text}", flush=True)

    def kubectl(self, *arguments: str) -> None:
        """Run kubectl, and print the command and its output."""
        print(f"  $ kubectl {shlex.join(_short(arguments))}")
        done = self._kubectl.run(*arguments)
        for line in (done.stdout + done.stderr).splitlines():
            print(f"    {line}")
        if done.returncode:
            raise Mismatch(f"kubectl {shlex.join(arguments)} failed")

    def apply(self, example: str) -> None:
        """Apply an example."""
        self.kubectl("apply", "-f", str(EXAMPLES / example))

    def runs(self, pod: str) -> None:
        """Wait until a pod runs."""
        self._cluster.wait_for(PODS, pod, lambda found: found["status"].get("phase") == "Running")

    def shows_its_claims(self, device: str) -> None:
        """Wait until a device's status shows the claims that hold it."""
        claims = [
            claim["metadata"]["name"]
            for claim in self._cluster.server.objects("vgpuclaims.vgpu.dev")
            for given in claim["status"].get("allocation", {}).get("devices", ())
            if given["name"] == device
        ]

        def shows(found: dict[str, Any]) -> bool:
            shown = found["status"].get("claims", ())
            return sorted(claim["name"] for claim in shown) == sorted(claims)

        self._cluster.wait_for(GPU_DEVICES, device, shows)

    def refused(self, pod: str) -> str:
        """Wait until the claim of a pod shows why it is refused; return the claim's name."""
        uid = self._cluster.wait_for(PODS, pod, lambda _: True)["metadata"]["uid"]
        name = f"{pod}-{uid[:8]}"

        def says_why(claim: dict[str, Any]) -> bool:
            conditions = claim.get("status", {}).get("conditions", [])
            return any(c["type"] == "Allocated" and c["status"] == "False" for c in conditions)

        self._cluster.wait_for(VGPU_CLAIMS, name, says_why)
        return name

    def nvidia_smi(self, pod: str) -> None:
        """Show the GPUs of a container by the tests' stand-in for nvidia-smi."""
        print(f"  in pod {pod}: nvidia-smi")
        done = self._cluster.exec(pod, [sys.executable, str(NVIDIA_SMI)])
        if done.exit_code:
            raise Mismatch(f"nvidia-smi failed in {pod}: {done.stderr}")
        table, _, _ = done.stdout.partition("\n\n")  # the processes come after it
        for line in table.splitlines():
            print(f"    {line}")

    def probe(self, pod: str, commands: str, **variables: str) -> dict[str, Any]:
        """Run the probe in a container and return its report.

        It is not shown as `kubectl exec`, which this cluster's API server does not serve.
        """
        shown = "".join(f"{name}={value} " for name, value in variables.items())
        print(f"  in pod {pod}: {shown}vgpu-probe {commands}")
        command = [str(PROBE), *commands.split()]
        done = self._cluster.exec(pod, command, environment=variables)
        for line in (done.stderr + done.stdout).splitlines():
            print(f"    {line}")
        if done.exit_code:
            raise Mismatch(f"vgpu-probe {commands} failed in {pod} with {done.exit_code}")
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def expect(what: str, seen: object, promised: object) -> None:
    """Print an observation, and check that it is the promised one.

    Raises:
        Mismatch: It is not.
    """
    if seen != promised:
        raise Mismatch(f"{what}: {seen}, and not {promised}")
    print(f"  → {what}: {seen}")


def show_page(cluster: LocalCluster) -> Page:
    """Start the web page, and create an account that may see everything on it."""
    kubectl = Kubectl.find(cluster.kubeconfig)
    account = cluster.folder / "visitor.yaml"
    account.write_text(yaml.safe_dump_all(_visitor()))
    for file in (ROOT / "manifests" / "base" / "tenants" / "roles.yaml", account):
        done = kubectl.run("apply", "-f", str(file))
        if done.returncode:
            raise Mismatch(f"kubectl apply -f {file} failed: {done.stderr}")
    return cluster.start_page()


def _visitor() -> Iterator[dict[str, Any]]:
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": VISITOR}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": VISITOR}}
    for role in ("vgpu-view", "vgpu-devices-view"):
        yield {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{VISITOR}-{role}"},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }


def _short(arguments: tuple[str, ...]) -> list[str]:
    return [argument.replace(f"{ROOT}/", "") for argument in arguments]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if everything was as promised."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay up until interrupted")
    options = parser.parse_args(arguments)
    print("Starting a cluster in one process: API server, scheduler, operator, two nodes.")
    with LocalCluster([t4_node("node-a"), a100_node("node-b")]) as cluster:
        try:
            Demo(cluster).run()
        except Exception as error:
            print(f"\nThe demo failed: {error}", file=sys.stderr)
            _show_logs(cluster.folder)
            return 1
        if options.keep:
            print(f"\nexport KUBECONFIG={cluster.kubeconfig}")
            print(f"export PATH={Path(sys.executable).parent}:$PATH  # for kubectl vgpu")
            print("kubectl vgpu get slices -A")
            print("# kubectl logs and exec do not work here: make cluster has a real kubelet")
            print("bash examples/tour.sh  # breaks it, explains it, repairs it")
            page = show_page(cluster)
            print(f"kubectl create token {VISITOR}  # for the web page: {page.url}")
            print("Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    return 0


def _show_logs(folder: Path) -> None:
    for path in sorted(folder.glob("*.log")):
        print(f"\n--- {path.name}", file=sys.stderr)
        print("\n".join(path.read_text().splitlines()[-25:]), file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
