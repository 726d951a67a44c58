"""A command loads only what it needs, because the libraries take longer to load than to answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytestmark = pytest.mark.programs

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
RUN = """
import sys
from vgpu_operator.cli.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
NEVER = {"aiohttp", "grpc", "kopf", "kubernetes_asyncio", "pynvml"}
OF_ENGINE = {
    "numpy",
    "vgpu_operator.engine",
    "vgpu_operator.placement.fleet",
    "vgpu_operator.admission",
}
OF_CLUSTER = {"asyncio", "pydantic", "vgpu_client.api", "yaml"}
MODELS = {"pydantic", "vgpu_api.v1alpha1"}
OTHERS = {"cryptography", "prometheus_client"}


class _Lists(BaseHTTPRequestHandler):
    """Answers each list with nothing."""

    def do_GET(self) -> None:
        body = b'{"metadata": {"resourceVersion": "1"}, "items": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a server that has no objects."""
    path = tmp_path / "config"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Lists) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        path.write_text(KUBECONFIG % server.server_port)
        yield path
        server.shutdown()
        thread.join()


def loaded(*arguments: str) -> set[str]:
    """Return the modules that are loaded once a command has ended."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    found = set(done.stderr.split())
    assert "vgpu_operator.cli.arguments" in found
    return found


@pytest.mark.parametrize("arguments", [("--help",), ("get", "--help"), ("nonsense",)])
def test_help_loads_no_library(arguments: tuple[str, ...]) -> None:
    unwanted = NEVER | OF_ENGINE | OF_CLUSTER | OTHERS
    assert unwanted.isdisjoint(loaded(*arguments))


@pytest.mark.parametrize("kind", ["slices", "devices", "nodes"])
def test_get_loads_a_client_but_no_engine(kubeconfig: Path, kind: str) -> None:
    found = loaded(
        "get", kind, *(("-A",) if kind == "slices" else ()), "--kubeconfig", str(kubeconfig)
    )
    unwanted = NEVER | OF_ENGINE | OTHERS | {"vgpu_api.config", "vgpu_api.core"}
    assert unwanted.isdisjoint(found)
    assert {"vgpu_client.plain_http", "vgpu_client.api"} <= found
    assert ("vgpu_operator.ledger.shares" in found) == (kind != "slices")


@pytest.mark.parametrize("verb", ["version", "version --client", "web"])
def test_what_shows_no_claims_and_devices_loads_no_models(kubeconfig: Path, verb: str) -> None:
    found = loaded(*verb.split(), "--kubeconfig", str(kubeconfig))
    assert (NEVER | OF_ENGINE | OTHERS | MODELS).isdisjoint(found)
    assert "vgpu_client.api" in found


@pytest.mark.parametrize("verb", ["cordon node/a", "doctor", "drain node/a", "resize a --cores=5"])
def test_what_places_no_pod_needs_no_numpy(kubeconfig: Path, verb: str) -> None:
    found = loaded(*verb.split(), "--kubeconfig", str(kubeconfig))
    assert (NEVER | {"numpy"}).isdisjoint(found)


def test_checking_a_configuration_loads_no_client_and_no_engine(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("scheduling: {nodePolicy: Binpack}\n")
    found = loaded("check", "-f", str(config))
    unwanted = NEVER | OTHERS | {"numpy", "vgpu_client.api", "vgpu_operator.engine"}
    assert unwanted.isdisjoint(found)
    assert "vgpu_api.config" in found


def test_simulating_on_paper_loads_no_client(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"nodes": []}')
    (tmp_path / "pod").write_text("kind: Pod\nspec: {containers: []}\n")
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pod")]
    found = loaded("simulate", *files)
    assert (NEVER | {"vgpu_client.api"}).isdisjoint(found)
    assert "vgpu_operator.insight.offline_cluster" in found
