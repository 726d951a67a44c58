"""No verb of `kubectl vgpu`, and no other program, prints a traceback on a real API server.

Each runs without permissions, on a cluster without vgpu, and as an administrator in a terminal.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cli_verbs import (
    FIND_OUT,
    PROGRAMS,
    Arguments,
    asking_a_cluster,
    asking_besides,
    invocations,
    with_a_file,
)
from vgpu_client.api import Api
from vgpu_local.accounts import SERVICE_ACCOUNTS, kubeconfig_with, token
from vgpu_local.command import in_files, in_terminal
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.fork_server import ForkServer

Asked = Callable[[Path, Arguments], subprocess.CompletedProcess[str]]
"""Runs `kubectl vgpu` with a kubeconfig and arguments."""
NOBODY = ("default", "nobody")

pytestmark = pytest.mark.timeout(300)

VERBS: Sequence[Arguments] = (
    *invocations(),
    ("get", "slices", "-A", "-o", "json"),
    ("get", "devices", "-w"),
    ("explain", "claim/none"),
    ("resize", "claim/none", "--cores", "5"),
    ("cordon", "device/none"),
    ("uncordon", "node/none"),
    ("web", "--no-browser", "--service-account", "default"),
)


async def _token(kubeconfig: Path) -> str:
    async with Api.connect(str(kubeconfig)) as api:
        metadata = {"namespace": NOBODY[0], "name": NOBODY[1]}
        await api.create(SERVICE_ACCOUNTS, {"metadata": metadata})
        return await token(api, NOBODY)


@pytest.fixture(scope="module")
def without_rights(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kubeconfig of an account without any role, where everything is installed."""
    bearer = asyncio.run(_token(plane.kubeconfig))
    path = tmp_path_factory.mktemp("nobody") / "kubeconfig"
    return kubeconfig_with(plane.kubeconfig, path, bearer)


@pytest.fixture(scope="module")
def bare() -> Iterator[Path]:
    """An administrator's kubeconfig of a cluster without the project."""
    with ControlPlane(Options()) as running:
        yield running.kubeconfig


@pytest.fixture
def asked(fork_server: ForkServer, tmp_path: Path) -> Asked:
    def run(kubeconfig: Path, arguments: Arguments) -> subprocess.CompletedProcess[str]:
        return in_files(kubeconfig, *with_a_file(arguments, tmp_path), spawn=fork_server.spawn)

    return run


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_without_rights_it_says_in_one_line_what_is_forbidden(
    without_rights: Path, asked: Asked, arguments: Arguments
) -> None:
    done = asked(without_rights, arguments)
    assert done.returncode in (1, 2), done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "forbidden" in done.stderr


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_where_the_project_is_not_it_says_so_without_a_traceback(
    bare: Path, asked: Asked, arguments: Arguments
) -> None:
    done = asked(bare, arguments)
    assert "Traceback" not in done.stdout + done.stderr
    if arguments[0] in FIND_OUT:
        assert done.returncode in (0, 1), done
        assert done.stdout != ""
    else:
        assert done.returncode in (1, 2), done
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("kubectl vgpu: ")
        assert "404" not in done.stderr


@pytest.mark.parametrize(("script", "arguments"), asking_besides())
def test_so_does_each_program_besides(
    without_rights: Path, bare: Path, script: str, arguments: Arguments
) -> None:
    program = PROGRAMS[script]
    forbidden = in_files(without_rights, *arguments, module=program.module)
    missing = in_files(bare, *arguments, module=program.module)
    for done in (forbidden, missing):
        assert done.returncode in (1, 2), done
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith(f"{program.called}: ")
    assert "forbidden" in forbidden.stderr


@pytest.mark.parametrize("verb", asking_a_cluster())
def test_an_administrator_is_answered_alike_in_a_terminal_and_piped(
    plane: ControlPlane, bare: Path, asked: Asked, tmp_path: Path, verb: str
) -> None:
    kubeconfig = bare if verb == "uninstall" else plane.kubeconfig
    arguments = next(each for each in invocations() if each[0] == verb)
    piped = asked(kubeconfig, arguments)
    code, shown = in_terminal(kubeconfig, *with_a_file(arguments, tmp_path))
    assert code == piped.returncode in (0, 1, 2), shown
    assert shown.strip() != ""
    assert "Traceback" not in shown + piped.stdout + piped.stderr
