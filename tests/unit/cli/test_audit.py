"""`kubectl vgpu audit` asks the agents and shows what they answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vgpu_api.resources import RESOURCE_CLAIMS, Resource
from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli import audit_resource_claims, cluster_commands
from vgpu_operator.cli.__main__ import main, parser

Kubectl = Callable[[Sequence[str]], str]
FOUND = {"reason": "SpecMissing", "subject": "slot-1-a", "message": "no CDI spec"}
CLEAN = {"node": "n1", "leases": 2, "claims": 1, "findings": []}


def a_kubectl(**answers: Any) -> Callable[[Sequence[str]], str]:
    """Return nodes by name with the answers of their agents: a document or an error."""

    def run(arguments: Sequence[str]) -> str:
        if arguments[0] == "get":
            chosen = [a.partition("=")[2] for a in arguments if a.startswith("spec.nodeName=")]
            return json.dumps(
                {
                    "items": [
                        {
                            "metadata": {"name": f"agent-{node}"},
                            "spec": {"nodeName": node},
                            "status": {"phase": "Running"},
                        }
                        for node in answers
                        if not chosen or node in chosen
                    ]
                }
            )
        assert arguments[0] == "exec"
        assert arguments[-3:] == ["--", "vgpu-nodeagent", "audit"]
        answer = answers[arguments[3].removeprefix("agent-")]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer)

    return run


class ApiServer:
    """Lists the ResourceClaims of a cluster, or refuses to."""

    def __init__(self) -> None:
        self.resource_claims: list[dict[str, Any]] | Exception = NotFound("none", status=404)

    async def list(self, resource: Resource, **_: Any) -> Any:
        if isinstance(self.resource_claims, Exception):
            raise self.resource_claims
        items = self.resource_claims if resource is RESOURCE_CLAIMS else []
        return SimpleNamespace(items=items)


@pytest.fixture(autouse=True)
def api_server(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """An API server that does not serve ResourceClaims, unless the test gives it some."""
    server = ApiServer()

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[ApiServer]:
        yield server

    monkeypatch.setattr(cluster_commands, "connected", connected)
    monkeypatch.setattr(audit_resource_claims, "_AGAIN_S", 0.0)
    return server


def audit(monkeypatch: pytest.MonkeyPatch, kubectl: Kubectl, *arguments: str) -> int:
    """Run the verb with a kubectl of the test's own."""
    monkeypatch.setattr(cluster_commands, "kubectl", lambda *_: kubectl)
    return main(["audit", *arguments])


def test_the_program_lists_the_audit_among_its_verbs() -> None:
    assert "audit" in parser().format_help()


def test_nodes_that_agree_are_named_and_the_status_is_0(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit(monkeypatch, a_kubectl(n1=CLEAN)) == 0
    assert capsys.readouterr().out == "n1: all records agree (1 claims, 2 leases)\n"


def test_a_disagreement_is_shown_and_the_status_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**CLEAN, "node": "n2", "findings": [FOUND]}
    assert audit(monkeypatch, a_kubectl(n2=wrong, n1=CLEAN)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "n1: all records agree (1 claims, 2 leases)",
        "n2: 1 disagreements (1 claims, 2 leases)",
        "  SpecMissing slot-1-a: no CDI spec",
    ]


def test_an_agent_that_cannot_be_asked_makes_the_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = subprocess.CalledProcessError(1, "kubectl", stderr="Forbidden: pods/exec\n")
    assert audit(monkeypatch, a_kubectl(n1=CLEAN, n2=refused), "-o", "json") == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown == [CLEAN, {"node": "n2", "error": "Forbidden: pods/exec"}]


def test_resource_claims_are_compared_beside_the_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, api_server: ApiServer
) -> None:
    api_server.resource_claims = []
    assert audit(monkeypatch, a_kubectl(n1=CLEAN)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == ["ResourceClaims: all records agree (0 of our driver)"]
    metadata = {"namespace": "a", "name": "b", "uid": "c", "finalizers": ["vgpu.dev/in-use"]}
    api_server.resource_claims = [{"metadata": metadata}]
    assert audit(monkeypatch, a_kubectl(n1=CLEAN)) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [
        "ResourceClaims: 1 disagreements (1 of our driver)",
        "  FinalizerLeft a/b: it has the finalizer vgpu.dev/in-use, and nothing is allocated",
    ]


def test_resource_claims_that_may_not_be_read_make_the_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, api_server: ApiServer
) -> None:
    api_server.resource_claims = Forbidden("not you", status=403)
    assert audit(monkeypatch, a_kubectl(n1=CLEAN)) == 2
    assert "ResourceClaims: not compared: " in capsys.readouterr().out


def test_one_node_alone_may_be_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit(monkeypatch, a_kubectl(n1=CLEAN, n2=CLEAN), "--node", "n1") == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert audit(monkeypatch, a_kubectl(n1=CLEAN), "--node", "n9") == 2
    assert "no agent runs on node n9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        (
            'E1123 18:41:43.702206   10990 memcache.go:265] "x"\nrefused -\n a port?\n',
            "refused - a port?",
        ),
        (
            'E1123 18:41:43.702206   10990 memcache.go:265] "x"\n',
            'E1123 18:41:43.702206 10990 memcache.go:265] "x"',
        ),
        ("a\x1b[2Jb\n", "a\\x1b[2Jb"),
    ],
)
def test_what_kubectl_logs_is_left_out_of_its_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stderr: str, says: str
) -> None:
    def refusing(arguments: Sequence[str]) -> str:
        raise subprocess.CalledProcessError(1, "kubectl", stderr=stderr)

    assert audit(monkeypatch, refusing) == 2
    assert capsys.readouterr().err == f"kubectl vgpu: the agents' pods cannot be listed: {says}\n"


def test_without_kubectl_the_audit_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["audit"]) == 2
    assert capsys.readouterr().err == (
        "kubectl vgpu: the agents' pods cannot be listed: kubectl is not on the PATH\n"
    )


def test_ctrl_c_ends_an_audit_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: Sequence[str]) -> str:
        raise KeyboardInterrupt

    assert audit(monkeypatch, interrupted) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("node", "status"), [("refused", 2), ("disagrees", 1)])
def test_a_refused_list_of_kubectl_is_no_answer_and_an_agents_findings_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    node: str,
    status: int,
) -> None:
    """Both come as JSON with status 1, because kubectl prints an empty list before its error."""
    pods = a_kubectl(disagrees=None)(["get"])
    wrong = json.dumps({**CLEAN, "findings": [FOUND]})
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *nodeName=refused*) echo \'{{"items": []}}\'; echo forbidden >&2; exit 1;;\n'
        f"get*) echo '{pods}';;\n"
        f"*) echo '{wrong}'; exit 1; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["audit", "--node", node]) == status
    said = capsys.readouterr()
    assert ("forbidden" in said.err, "SpecMissing" in said.out) == (status == 2, status == 1)
