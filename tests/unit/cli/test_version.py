"""`kubectl vgpu version` shows the package's version and the label of the operator's Deployment."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vgpu_client.reads import Listing
from vgpu_operator.cli.__main__ import main
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.version import operator_version

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LABEL = "app.kubernetes.io/version"


class Server:
    """An API server with Deployments of the operator that have these labels."""

    def __init__(self, *labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.selector = ""

    async def list(self, _: Any, *, label_selector: str, **__: Any) -> Listing:
        self.selector = label_selector
        return Listing([{"metadata": {"labels": {**each}}} for each in self.labels], "1")


async def shown(server: Server) -> str:
    return await operator_version(server)  # type: ignore[arg-type]


def test_the_programs_version_is_that_of_the_package_and_needs_no_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert main(["version", "--client"]) == 0
    assert capsys.readouterr().out == f"Client version: {VERSION}\n"
    assert main(["version", "--client", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"client": VERSION}


async def test_the_operators_version_is_a_label_of_its_deployment() -> None:
    server = Server({LABEL: "0.9.1"})
    assert await shown(server) == "0.9.1"
    assert "app.kubernetes.io/component=operator" in server.selector.split(",")


async def test_an_operator_from_before_the_label_has_an_unknown_version() -> None:
    assert await shown(Server({})) == f"unknown (no label {LABEL})"


async def test_two_operators_are_both_named() -> None:
    assert await shown(Server({LABEL: "0.9.1"}, {LABEL: "0.9.0"})) == "0.9.0, 0.9.1"


async def test_without_an_operator_it_says_so_and_how_to_ask_for_the_program_alone() -> None:
    with pytest.raises(CannotAnswer, match=r"not installed.*--client"):
        await shown(Server())
