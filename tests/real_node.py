"""A real Kubernetes node for tests, started by `tests/cluster/node.sh`, and kubectl in it.

Everything goes through `kubectl`, as a user's requests would; the node has its own network, so
every command runs in its namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from node_overlay import CLUSTER, adapted_beside_hami, adapted_claims

Json = dict[str, Any]
T = TypeVar("T")

WORKLOAD = "registry.invalid/vgpu/workload:dev"
SYSTEM, AGENTS = "vgpu-system", "vgpu-node"


class RealNode:
    """One node, including its control plane.

    Args:
        folder: The folder for its disk; no other node may use it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "VGPU_NODE": str(folder), "VGPU_OWNER": str(os.getpid())}
        self._inside = ""

    def install(self) -> None:
        """Start the node with the project on it; build what it needs."""
        self._script("cluster.sh", "up", limit_s=3600)

    def install_claims(self) -> None:
        """Start the node with the project in Claims mode, and with ResourceSlices."""
        self._script("cluster.sh", "build", limit_s=3600)
        self.on()
        self._roll_out(adapted_claims(_kubectl()), "operator", "webhook")
        self._wait_for_rollout(AGENTS, "daemonset/vgpu-nodeagent")

    def install_beside_hami(self) -> None:
        """Install the project on the running node, beside a HAMi."""
        self._roll_out(adapted_beside_hami(_kubectl()), "operator", "webhook", "scheduler")

    def _roll_out(self, manifests: str, *deployments: str) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", given=manifests, limit_s=120)
        for name in deployments:
            self._wait_for_rollout(SYSTEM, f"deployment/vgpu-{name}")

    def _wait_for_rollout(self, namespace: str, workload: str) -> None:
        status = ("-n", namespace, "rollout", "status", workload, "--timeout=180s")
        self.kubectl(*status, limit_s=190)

    def off(self) -> None:
        """Cut the node's power."""
        self._script("node.sh", "off")
        self._inside = ""

    def on(self) -> None:
        """Switch the node on again; return when its kubelet is ready."""
        self._script("node.sh", "up", limit_s=180)

    def remove(self) -> None:
        """Stop the node and remove its folder."""
        self._script("node.sh", "down")

    def restart(self, *programs: str) -> None:
        """Kill programs of the node itself; each is restarted."""
        self._script("node.sh", "restart", *programs)

    @contextmanager
    def without(self, *programs: str) -> Iterator[None]:
        """Kill programs, and keep them down during the block."""
        self._script("node.sh", "hold", *programs)
        try:
            yield
        finally:
            self._script("node.sh", "release", *programs)

    def run(self, *command: str, given: str | None = None, limit_s: float = 60) -> str:
        """Run a command on the node; return its output.

        Raises:
            AssertionError: it failed.
        """
        done = self.attempt(*command, given=given, limit_s=limit_s)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def attempt(
        self, *command: str, given: str | None = None, limit_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node that may fail."""
        return subprocess.run(
            [*self.prefix(), *command],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def prefix(self) -> Sequence[str]:
        """Return the prefix with which a command runs on the node."""
        if not self._inside:
            self._inside = self._script("node.sh", "enter").strip()
            assert self._inside, f"no node is running in {self.folder}"
        path = [_programs("kubernetes"), _programs("containerd"), os.environ["PATH"]]
        # Not its pid namespace, because nsenter would fork, and a signal would miss the command.
        return (
            *("nsenter", f"--target={self._inside}", "--mount", "--net", "--", "env"),
            f"PATH={':'.join(path)}",
            f"KUBECONFIG={self.folder}/pki/admin.kubeconfig",
        )

    def kubectl(self, *arguments: str, given: str | None = None, limit_s: float = 60) -> str:
        """Run kubectl as an administrator.

        Raises:
            AssertionError: it failed.
        """
        return self.run("kubectl", *arguments, given=given, limit_s=limit_s)

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """Create a namespace; at the end, wait until it is gone and its devices are free again."""
        name = f"e2e-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", name)
        # Pods that are created before their ServiceAccount are refused.
        self.kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        yield name
        self.clear(name)
        self.kubectl("delete", "namespace", name, "--wait=false")

    def clear(self, namespace: str) -> None:
        """Delete the pods of a namespace; return when their devices are free."""
        which = ("-n", namespace, "delete", "deployments,pods", "--all")
        self.kubectl(*which, "--timeout=180s", limit_s=190)
        until(
            lambda: not self.get("vgpuclaims", namespace=namespace)["items"],
            f"the claims of deleted pods in {namespace} to go",
        )

    def get(self, kind: str, name: str = "", namespace: str = "default") -> Json:
        """Return an object, or the list of them if no name is given."""
        chosen = [name] if name else []
        found = json.loads(self.kubectl("-n", namespace, "get", kind, *chosen, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def apply(self, *objects: Json) -> None:
        """Create objects, or change them."""
        self.kubectl("apply", "-f", "-", given=_listed(objects))

    def refusal(self, *objects: Json) -> str:
        """Return the messages of a refused create; fail if it is accepted."""
        done = self.attempt("kubectl", "create", "-f", "-", given=_listed(objects))
        assert done.returncode != 0, f"it was created: {done.stdout}"
        return done.stderr

    def shell(self, namespace: str, pod: str, *command: str) -> str:
        """Run a command in a pod, as `kubectl exec` does.

        Raises:
            AssertionError: it failed.
        """
        return self.kubectl("-n", namespace, "exec", pod, "--", *command)

    def ready(self, namespace: str, *pods: str, limit_s: float = 120) -> None:
        """Wait until pods are ready."""
        names = [f"pod/{pod}" for pod in pods]
        self.kubectl(
            *("-n", namespace, "wait", "--for=condition=Ready", *names, f"--timeout={limit_s}s"),
            limit_s=limit_s + 10,
        )

    def filled(self, namespace: str, pod: str) -> int:
        """Return the number of bytes that a pod gets when it allocates all it can."""
        return int(json.loads(self.shell(namespace, pod, "vgpu-probe", "fill"))["filled"])

    def running(self, deployment: Json) -> list[str]:
        """Return the pods of a deployment that are ready and in which a program can be started."""
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        found = []
        for pod in self.get("pods", namespace=namespace)["items"]:
            place = ("-n", namespace, "exec", pod["metadata"]["name"], "--", "true")
            if (
                pod["metadata"].get("labels", {}).get("app") == name
                and "deletionTimestamp" not in pod["metadata"]
                and _is_ready(pod)
                and self.attempt("kubectl", *place).returncode == 0
            ):
                found.append(pod["metadata"]["name"])
        return found

    def nothing_is_left(self) -> None:
        """Wait until pods that are gone have left no slot, no grant and no use of a device."""
        until(lambda: not self._leftovers(), f"the rest to go: {self._leftovers()}", limit_s=90)

    def nothing_of_ours_is_left(self, *, with_capacity: bool = True) -> None:
        """Check that no part of the project is left on the cluster or on the node.

        Args:
            with_capacity: Nor the capacity, which a kubelet writes for five minutes more.
        """
        for kind in ("crd", "namespace", "clusterrole", "clusterrolebinding", "flowschema",
                     "validatingadmissionpolicy", "validatingadmissionpolicybinding",
                     "mutatingwebhookconfiguration", "validatingwebhookconfiguration"):  # fmt: skip
            names = [found["metadata"]["name"] for found in self.get(kind)["items"]]
            assert [name for name in names if "vgpu" in name] == [], kind
        (found,) = self.get("node")["items"]
        annotations = found["metadata"].get("annotations", {})
        assert [key for key in annotations if key.startswith(("hami.io/", "vgpu.dev/"))] == []
        for amounts in ("capacity", "allocatable") if with_capacity else ():
            assert "nvidia.com/gpu" not in found["status"][amounts]
        shown = "ls -d /var/lib/vgpu /var/lib/kubelet/device-plugins/vgpu.sock 2>/dev/null; true"
        assert self.run("sh", "-c", shown) == ""
        assert self.run("sh", "-c", "ls /run/cdi 2>/dev/null | grep vgpu.dev; true") == ""
        assert self.run("sh", "-c", "grep ' /var/lib/vgpu' /proc/mounts; true") == ""

    def _leftovers(self) -> list[str]:
        # A node that never allocated a slot has neither folder.
        listed = self.run("sh", "-c", "ls /var/lib/vgpu/slots /run/cdi 2>/dev/null; true").split()
        kept = [word for word in listed if not word.endswith(":")]
        devices = self.get("gpudevices")["items"]
        return kept + [d["metadata"]["name"] for d in devices if d["status"].get("claims")]

    def events(self, namespace: str, pod: str) -> list[str]:
        """Return the messages of a pod's events."""
        found = self.get("events", namespace=namespace)["items"]
        return [e["message"] for e in found if e["involvedObject"].get("name") == pod]

    def told(self, namespace: str, pod: str, words: str) -> str:
        """Wait for an event of a pod whose message contains this text; return the message."""
        return until(
            lambda: next((m for m in self.events(namespace, pod) if words in m), ""),
            f"an event of {pod} that says {words!r}; there are {self.events(namespace, pod)}",
        )

    def _script(self, name: str, *arguments: str, limit_s: float = 60) -> str:
        done = subprocess.run(
            ["bash", str(CLUSTER / name), *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=limit_s,
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)} failed; see above"
        return done.stdout


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def until(look: Callable[[], T], what: str, *, limit_s: float = 60, every_s: float = 0.2) -> T:
    """Repeat until there is a result; return it.

    Raises:
        AssertionError: there was nothing in time.
    """
    deadline = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        time.sleep(every_s)


def a_pod(name: str, namespace: str, *, limits: Json | None = None, **spec: Any) -> Json:
    """Return a pod that runs until it is stopped."""
    container = {
        "name": "main",
        "image": WORKLOAD,
        "command": ["sh", "-c", "trap exit TERM; sleep infinity & wait"],
        **({"resources": {"limits": limits}} if limits else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {}},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "Default",
            **spec,
        },
    }


def a_deployment(
    name: str, namespace: str, *, replicas: int = 1, limits: Json | None = None
) -> Json:
    """Return pods like `a_pod`, which are created again when they fail."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": a_pod(name, namespace, limits=limits)["spec"],
            },
        },
    }


def a_slice(memory_mib: int, *, cores: int = 0) -> Json:
    """Return limits with HAMi's resource names: a slice of one device."""
    limits: Json = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    return limits | ({"nvidia.com/gpucores": str(cores)} if cores else {})


def _listed(objects: Sequence[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def _kubectl() -> Path:
    return Path(_programs("kubernetes")) / "kubectl"


def _programs(what: str) -> str:
    command = ["bash", str(CLUSTER / "build.sh"), "--where", what]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
