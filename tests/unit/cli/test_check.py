"""`kubectl vgpu check` tells if a configuration can be used, before it is rolled out."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_operator.cli.__main__ import main

ROOT = Path(__file__).parents[3]
INSTALLED = ROOT / "manifests" / "base" / "config.yaml"


def test_the_configuration_that_is_installed_can_be_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "-f", str(INSTALLED)]) == 0
    assert capsys.readouterr().out == f"{INSTALLED}: the configuration is valid\n"


def test_a_wrong_value_is_named_with_file_and_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nvidia:\n  defaultMem: lots\n")
    assert main(["check", "-f", str(INSTALLED), "-f", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"kubectl vgpu: {file}: nvidia.defaultMem: ")
    assert len(shown.err.splitlines()) == 1


def test_keys_that_do_nothing_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nvidia:\n  libCudaLogLevel: 4\n")
    assert main(["check", "-f", str(file)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{file}: the configuration is valid"
    assert "libCudaLogLevel: 4 has no effect: " in second


def test_names_that_stand_in_more_places_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nvidia:\n  migStrategy: mixed\n  migProfiles: [1g.10gb]\n")
    assert main(["check", "-f", str(file)]) == 0
    _, second = capsys.readouterr().out.splitlines()
    assert second.startswith(f"{file}: nvidia.com/mig-1g.10gb: not in the manifests as shipped: ")


@pytest.mark.parametrize("text", ["", "kind: Deployment\n"])
def test_a_file_without_a_configuration_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(text)
    assert main(["check", "-f", str(file)]) == 2
    assert "empty.yaml" in capsys.readouterr().err
