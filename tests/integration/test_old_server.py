"""Each verb of `kubectl vgpu`, and each program besides it, on servers that are too old, or absent.

Each must answer with one line and no traceback. The verbs come from the parser, and the programs
from the package (`cli_verbs.py`). The servers are simulated: only their answers matter, and no
server that old can be built from today's modules.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from cli_verbs import (
    COMPLETION,
    FIND_OUT,
    PROGRAMS,
    SERVICES,
    Arguments,
    asking_a_cluster,
    asking_besides,
    invocations,
    on_paper,
    scripts,
    with_a_file,
    with_each_flag,
)
from vgpu_local.command import in_files, in_terminal, without_codes
from vgpu_local.fork_server import ForkServer
from vgpu_operator.cli.__main__ import main
from vgpu_operator.cli.completion import main as complete

pytestmark = pytest.mark.timeout(120)

KINDS_OF_OURS = ("/apis/vgpu.dev/v1alpha1/",)
OF_1_20 = (
    "/api/v1/",
    "/apis/apps/v1/",
    "/apis/rbac.authorization.k8s.io/v1/",
    "/apis/coordination.k8s.io/v1/",
    "/apis/apiextensions.k8s.io/v1/",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
)
"""Without policies, flow control, EndpointSlices of v1 and access reviews."""
A_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "there", "namespace": "default", "uid": "1"},
    "spec": {"containers": [{"name": "main", "image": "none"}]},
}
"""The only object of every server."""
_DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": "pods", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
        ],
    },
}
"""The least that kubectl must find to request pods."""


@contextmanager
def a_server(
    folder: Path,
    *served: str,
    version: str = "v1.20.15",
    items: Mapping[str, Sequence[object]] = MappingProxyType({}),
) -> Iterator[Path]:
    """Serve the paths that begin so, answer 404 to the rest, and return the server's kubeconfig.

    Args:
        folder: The folder for the kubeconfig.
        served: The beginnings of the paths.
        version: The server's version, or an empty string if it reports none.
        items: The items of its lists, by path.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            if path == "/version" and version:
                self._answer(200, {"major": "1", "minor": "20", "gitVersion": version})
            elif "/api/v1/" in served and path in _DISCOVERY:
                self._answer(200, _DISCOVERY[path])
            elif not path.startswith(served):
                # Kubernetes answers like this for a group or version that it does not have.
                self._send(404, "text/plain; charset=utf-8", b"404 page not found\n")
            elif path.endswith(f"/{A_POD['metadata']['name']}"):
                self._answer(200, A_POD)
            elif self.command == "GET" and _is_a_list(path):
                listed = {"metadata": {"resourceVersion": "1"}, "items": items.get(path, [])}
                self._answer(200, listed)
            else:
                said = {"reason": "NotFound", "message": f"{path} not found", "code": 404}
                self._answer(404, {"kind": "Status", "apiVersion": "v1", **said})

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def _answer(self, status: int, document: object) -> None:
            self._send(status, "application/json", json.dumps(document).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield _kubeconfig(folder, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _is_a_list(path: str) -> bool:
    """Return True if the path ends with the plural of a kind, not with the name of an object."""
    last = path.rpartition("/")[2]
    return last.endswith("s") and not last.startswith("vgpu-")


def _kubeconfig(folder: Path, address: str) -> Path:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "old", "cluster": {"server": address}}],
        "users": [{"name": "old", "user": {"token": "none"}}],
        "contexts": [{"name": "old", "context": {"cluster": "old", "user": "old"}}],
        "current-context": "old",
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server of version 1.20 that lacks our kinds and could not have them."""
    with a_server(tmp_path_factory.mktemp("old"), *OF_1_20) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="module")
def old_with_our_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server of version 1.20 that has only our CRDs."""
    folder = tmp_path_factory.mktemp("kinds")
    with a_server(folder, *OF_1_20, *KINDS_OF_OURS) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="module")
def no_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server that knows none of the paths, as at a wrong address."""
    with a_server(tmp_path_factory.mktemp("none"), "/nothing", version="") as kubeconfig:
        yield kubeconfig


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Return a kubeconfig for an absent server: nothing listens on the discard port."""
    return _kubeconfig(tmp_path, "http://127.0.0.1:9")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give kubectl its own cache, because it caches what a server supports by address and port."""
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))


def one_line(code: int, said: str, program: str = "kubectl vgpu") -> None:
    assert code in (1, 2), said
    (line,) = said.splitlines()
    assert line.startswith(f"{program}: ")


def test_what_asks_no_cluster_is_known() -> None:
    """A verb that takes no kubeconfig is not tested here; this list names those verbs."""
    assert on_paper() == {"check"}
    assert {arguments[0] for arguments in invocations()} == set(asking_a_cluster())


@pytest.mark.parametrize("arguments", [*invocations(), *with_each_flag()], ids=" ".join)
def test_a_server_of_1_20_is_told_in_one_line(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Arguments
) -> None:
    code = main([*with_a_file(arguments, tmp_path), "--kubeconfig", str(old)])
    said = capsys.readouterr()
    # Admission is judged without anything of ours.
    if arguments[0] in FIND_OUT or "--admit" in arguments:
        assert code in (0, 1)
        assert said.out != ""
        assert all(line.startswith("kubectl vgpu: ") for line in said.err.splitlines())
    else:
        one_line(code, said.err)
        assert said.out == ""
        assert "404" not in said.err


@pytest.mark.parametrize("arguments", invocations(), ids=" ".join)
def test_with_our_kinds_alone_it_answers_or_says_so_in_one_line(
    old_with_our_kinds: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: Arguments,
) -> None:
    code = main([*with_a_file(arguments, tmp_path), "--kubeconfig", str(old_with_our_kinds)])
    said = capsys.readouterr()
    assert code in (0, 1, 2)
    assert said.out + said.err != ""
    assert all(line.startswith("kubectl vgpu: ") for line in said.err.splitlines())
    if code == 2:
        one_line(code, said.err)


@pytest.mark.parametrize("arguments", invocations(), ids=" ".join)
def test_a_server_that_is_no_kubernetes_is_told_in_one_line(
    no_kubernetes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Arguments
) -> None:
    code = main([*with_a_file(arguments, tmp_path), "--kubeconfig", str(no_kubernetes)])
    said = capsys.readouterr()
    one_line(code, said.err)
    assert said.out == ""


@pytest.mark.parametrize("verb", asking_a_cluster())
def test_piped_and_in_a_terminal_it_is_the_same(
    old: Path, fork_server: ForkServer, tmp_path: Path, verb: str
) -> None:
    arguments = next(each for each in invocations() if each[0] == verb)
    words = with_a_file(arguments, tmp_path)
    piped = in_files(old, *words, spawn=fork_server.spawn)
    code, shown = in_terminal(old, *with_a_file(arguments, tmp_path))
    assert code == piped.returncode
    assert "Traceback" not in shown + piped.stdout + piped.stderr
    if verb not in FIND_OUT:
        assert without_codes(shown) == piped.stderr
        one_line(code, piped.stderr)


def test_a_pod_is_not_explained_where_nothing_knows_claims(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["explain", "there", "--kubeconfig", str(old)])
    said = capsys.readouterr().err
    one_line(code, said)
    assert "does not serve vgpuclaims.vgpu.dev" in said


def test_what_serves_no_nodes_is_called_no_kubernetes(
    no_kubernetes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["get", "nodes", "--kubeconfig", str(no_kubernetes)])
    said = capsys.readouterr().err
    one_line(code, said)
    assert "it is not a Kubernetes API server" in said


def test_doctor_says_that_the_server_is_too_old(
    old_with_our_kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-o", "json", "--kubeconfig", str(old_with_our_kinds)]) == 1
    found = json.loads(capsys.readouterr().out)
    (server,) = [each for each in found if each["check"] == "api server"]
    assert server["level"] == "error"
    assert server["message"].startswith("v1.20.15: ")
    assert server["remedy"] == "upgrade the control plane"


# The programs besides the CLI.


def test_every_program_of_the_package_is_tested_in_one_of_these_ways() -> None:
    assert scripts() == {"kubectl-vgpu", COMPLETION, *PROGRAMS, *SERVICES}


@pytest.mark.parametrize("server", ["old", "old_with_our_kinds", "no_kubernetes", "away"])
@pytest.mark.parametrize(("script", "arguments"), asking_besides())
def test_a_program_says_in_one_line_what_is_not_there(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    server: str,
    script: str,
    arguments: Arguments,
) -> None:
    program = PROGRAMS[script]
    kubeconfig: Path = request.getfixturevalue(server)
    code = program.main((*arguments, "--kubeconfig", str(kubeconfig)))
    said = capsys.readouterr()
    if (server, script) == ("old_with_our_kinds", "kubectl-inspect-cgpu"):
        assert (code, said.err) == (0, "")
        assert said.out.endswith("\n0/0 (0%)\n")
    else:
        one_line(code, said.err, program.called)
        assert said.out == ""
        assert "404" not in said.err


def test_a_device_of_another_version_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = {"metadata": {"name": "newer"}, "spec": {"nodeName": 7}}
    there = {"/apis/vgpu.dev/v1alpha1/gpudevices": [device]}
    program = PROGRAMS["kubectl-inspect-cgpu"]
    with a_server(tmp_path, *OF_1_20, *KINDS_OF_OURS, items=there) as kubeconfig:
        code = program.main(("--kubeconfig", str(kubeconfig)))
    said = capsys.readouterr().err
    one_line(code, said, program.called)
    assert "GPUDevice newer cannot be read: spec.nodeName: Invalid value: 7" in said


def test_without_a_cluster_a_shell_gets_no_names_and_no_error(
    away: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [COMPLETION, "get", "nodes", "--kubeconfig", str(away), ""]
    monkeypatch.setattr("sys.argv", words)
    assert complete() == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (":4\n", "")


@pytest.mark.parametrize("script", SERVICES)
def test_a_service_without_a_kubeconfig_ends_with_one_line(
    fork_server: ForkServer, tmp_path: Path, script: str
) -> None:
    service, none = SERVICES[script], tmp_path / "none"
    (arguments,) = service.forms
    done = in_files(none, *arguments, spawn=fork_server.spawn, module=service.module)
    assert done.stdout == ""
    one_line(done.returncode, done.stderr, service.called)
    assert f"kubeconfig {none} does not exist" in done.stderr
