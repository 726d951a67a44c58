"""A real Kubernetes control plane for tests: etcd and API server, up in about three seconds.

The stand-in API server does what we believe Kubernetes does; this one is Kubernetes. The programs
come from `tests/cluster/build.sh`. All files of a run are in one temporary folder, which is removed
at the end. etcd listens on a Unix socket in it, so only one port is taken.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports
from vgpu_local.started import Started

MinorVersion = Literal["1.36", "1.37"]
MINOR_VERSIONS: tuple[MinorVersion, ...] = get_args(MinorVersion)

# the version as build.sh names it, and the make target
_PROGRAMS: Mapping[MinorVersion, tuple[str, str]] = {
    "1.36": ("kubernetes", "control-plane"),
    "1.37": ("kubernetes-1.37", "control-plane-next"),
}
_BUILD = Path(__file__).parents[1] / "cluster" / "build.sh"
_START_S = 60.0

_USERS = {  # user: group
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a control plane, such as the programs besides etcd and the API server.

    Attributes:
        controllers: Run kube-controller-manager, for garbage collection and namespace deletion.
        scheduler: Run kube-scheduler with its default configuration.
        profiling: Let the API server and kube-scheduler serve CPU profiles.
        apiserver_args: More flags for the API server.
        version: The minor version of Kubernetes.
        feature_gates: The feature gates to set, the same in each program of Kubernetes.
        api_groups: The API groups, each with its version, to serve besides those that are on.
    """

    controllers: bool = False
    scheduler: bool = False
    profiling: bool = False
    apiserver_args: Sequence[str] = ()
    version: MinorVersion = "1.36"
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    api_groups: Sequence[str] = ()


class ControlPlane(Started):
    """A real control plane; use it as a context manager, or call `start` and `stop`.

    Pods are admitted without a ServiceAccount, because that would be created some seconds late.

    Attributes:
        kubeconfig: The path of an administrator's kubeconfig, while it runs.
        url: The API server's URL.
        programs: The folder with `kubectl` and the other programs.
    """

    def __init__(self, options: Options = Options()) -> None:
        self._options = options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port = 0
        self._folder = Path()  # until it is started: nothing of ours, so nothing to remove
        self._undo = contextlib.ExitStack()
        self._authority = Authority(name="vgpu-control-plane")
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self._scheduler_url = ""
        what, self._target = _PROGRAMS[options.version]
        command = ["bash", str(_BUILD), "--where", what]
        where = subprocess.run(command, check=True, capture_output=True, text=True)
        self.programs = Path(where.stdout.strip())
        self.url = ""
        self.kubeconfig = Path()

    def start(self) -> None:
        """Start everything, and wait until the API server reports that it is ready.

        Raises:
            RuntimeError: The programs are not built, or one of them has ended.
        """
        if not (self.programs / "kube").exists():
            raise RuntimeError(
                f"Kubernetes {self._options.version} is not built yet: run `make {self._target}`"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="vgpu-control-plane-"))
        self._undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._port = free_ports(1)[0]
        self.url = f"https://127.0.0.1:{self._port}"
        try:
            self._write_credentials()
            self._start_storage()
            if self._options.controllers:
                self.start_controllers()
            if self._options.scheduler:
                self.start_scheduler({})
        except BaseException:
            self.stop()
            raise

    def back_up(self) -> None:
        """Copy etcd's data, which restarts etcd and the API server."""
        self._end("kube-apiserver", "etcd")
        shutil.copytree(self._folder / "etcd", self._folder / "backup")
        self._start_storage()

    def restore(self) -> None:
        """Restart etcd and the API server, but no other program, with the data of `back_up`."""
        self._end("kube-apiserver", "etcd")
        shutil.rmtree(self._folder / "etcd")
        shutil.copytree(self._folder / "backup", self._folder / "etcd")
        self._start_storage()

    def start_controllers(self, *only: str) -> None:
        """Start kube-controller-manager with all of its usual controllers, or with these.

        Its garbage collector looks for new kinds every 30 s only. Started after our kinds are
        served, it deletes claims of deleted pods at once.
        """
        self._launch(
            "kube-controller-manager",
            f"--kubeconfig={self._kubeconfig_of('system:kube-controller-manager')}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",  # the default makes a fresh cluster wait for seconds
            "--kube-api-burst=1000",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self._folder}/ca.crt",
            f"--service-account-private-key-file={self._folder}/sa.key",
            *([f"--controllers={','.join(only)}"] if only else []),
            *self._feature_gates(),
        )

    def start_scheduler(self, config: Mapping[str, Any]) -> None:
        """Start kube-scheduler.

        Args:
            config: The fields of a KubeSchedulerConfiguration. The kubeconfig is added unless
                `clientConnection` names one.
        """
        kubeconfig = self._kubeconfig_of("system:kube-scheduler")
        path = self._folder / "kube-scheduler.json"
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **config,
            "clientConnection": {
                "kubeconfig": str(kubeconfig),
                **config.get("clientConnection", {}),
            },
        }
        path.write_text(json.dumps(document))
        serving = ["--secure-port=0"]
        if self._options.profiling:
            port = free_ports(1)[0]
            self._scheduler_url = f"https://127.0.0.1:{port}"
            serving = [
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                "--authorization-always-allow-paths=/debug/pprof/*",
                f"--tls-cert-file={self._folder}/apiserver.crt",
                f"--tls-private-key-file={self._folder}/apiserver.key",
            ]
        self._launch("kube-scheduler", f"--config={path}", *serving, *self._feature_gates())

    def stop_scheduler(self) -> None:
        """Stop kube-scheduler; it may be started again with another configuration."""
        self._end("kube-scheduler")

    def get(self, path: str, *, timeout_s: float) -> bytes:
        """Return the API server's answer to an administrator's GET of a path."""
        return self._fetch(self.url + path, timeout_s)

    def cpu_profile(self, program: str, seconds: int) -> bytes:
        """Record and return a CPU profile of a program, for `go tool pprof`.

        Args:
            program: `kube-apiserver` or `kube-scheduler`, started with `Options.profiling`.
            seconds: The duration, for which the call waits.
        """
        url = {"kube-apiserver": self.url, "kube-scheduler": self._scheduler_url}[program]
        return self._fetch(f"{url}/debug/pprof/profile?seconds={seconds}", seconds + 30.0)

    def trust(self) -> ssl.SSLContext:
        """Return a client's TLS context for the API server."""
        return self._authority.client_context()

    def pids(self) -> dict[str, int]:
        """Return the process id of each program that was started, by its name."""
        return {program: process.pid for program, process in self._processes.items()}

    @property
    def etcd_socket(self) -> Path:
        """Return the Unix socket of etcd's clients."""
        return self._folder / "etcd.sock"

    def check(self) -> None:
        """Check that everything that was started is still running.

        Raises:
            RuntimeError: One of the programs has ended; the text says which and why.
        """
        for process in self._processes.values():
            if process.poll() is not None:
                raise RuntimeError(f"it ended: {self._last_words()}")

    def stop(self) -> None:
        """Stop all programs and remove their files."""
        # KILL, because the API server takes eight seconds to end politely, and its data is thrown
        # away anyway.
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        self._undo.close()

    def _end(self, *programs: str) -> None:
        for program in programs:
            process = self._processes.pop(program)
            process.kill()
            process.wait()

    def _start_storage(self) -> None:
        self._start_etcd()
        self._start_apiserver(self._port)
        self._await_ready()

    def _write_credentials(self) -> None:
        folder = self._folder
        (folder / "ca.crt").write_bytes(self._authority.certificate)
        leaf = self._authority.leaf(names=("localhost", "kubernetes.default.svc"))
        leaf.write(folder, name="apiserver")
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (folder / "sa.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        (folder / "tokens.csv").write_text(
            "".join(f'{self._tokens[user]},{user},{user},"{_USERS[user]}"\n' for user in _USERS)
        )
        for user in _USERS:
            self._kubeconfig_of(user).write_text(json.dumps(self._kubeconfig_content(user)))
        self.kubeconfig = self._kubeconfig_of("admin")

    def _kubeconfig_of(self, user: str) -> Path:
        return self._folder / f"{user.removeprefix('system:')}.kubeconfig"

    def _kubeconfig_content(self, user: str) -> dict[str, object]:
        cluster = {"server": self.url, "certificate-authority": str(self._folder / "ca.crt")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }

    def _start_etcd(self) -> None:
        # It insists on advertising something of the form host:port, which is not used here.
        nowhere = "http://localhost:1"
        self._launch(
            "etcd",
            f"--data-dir={self._folder}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
            # kubeadm sets this. Without it, a kind in which nothing happens gets no bookmarks.
            "--watch-progress-notify-interval=5s",
            f"--listen-client-urls=unix://{self._folder}/etcd.sock",
            f"--advertise-client-urls={nowhere}",
            f"--listen-peer-urls=unix://{self._folder}/etcd-peer.sock",
            f"--initial-advertise-peer-urls={nowhere}",
            f"--initial-cluster=default={nowhere}",
        )

    def _start_apiserver(self, port: int) -> None:
        folder = self._folder
        self._launch(
            "kube-apiserver",
            f"--etcd-servers=unix://{folder}/etcd.sock",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--endpoint-reconciler-type=none",  # a loopback address may not be advertised
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
            f"--profiling={'true' if self._options.profiling else 'false'}",
            "--authorization-mode=Node,RBAC",
            "--disable-admission-plugins=ServiceAccount",
            f"--token-auth-file={folder}/tokens.csv",
            f"--tls-cert-file={folder}/apiserver.crt",
            f"--tls-private-key-file={folder}/apiserver.key",
            f"--cert-dir={folder}/apiserver",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/sa.pub",
            f"--service-account-signing-key-file={folder}/sa.key",
            *(f"--runtime-config={group}=true" for group in self._options.api_groups),
            *self._feature_gates(),
            *self._options.apiserver_args,
        )

    def _feature_gates(self) -> list[str]:
        gates = self._options.feature_gates.items()
        return [f"--feature-gates={name}={str(is_on).lower()}" for name, is_on in gates]

    def _launch(self, program: str, *arguments: str) -> None:
        # setpriv: a test run that is killed must not leave servers behind.
        command = ["setpriv", "--pdeathsig=KILL", str(self.programs / program), *arguments]
        with (self._folder / f"{program}.log").open("wb") as log:
            self._processes[program] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            self.check()
            try:
                self.get("/readyz", timeout_s=5.0)
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"not ready after {_START_S:.0f} s: {self._last_words()}")

    def _fetch(self, url: str, timeout_s: float) -> bytes:
        request = urllib.request.Request(
            url, headers={"Authorization": f"Bearer {self._tokens['admin']}"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s, context=self.trust()) as answer:
            found: bytes = answer.read()
        return found

    def _last_words(self) -> str:
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-1000:]}"
            for log in self._folder.glob("*.log")
        )
