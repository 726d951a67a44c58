"""The CRDs and the resource names in manifests/ are generated and fresh after one command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.__main__ import main

MANIFESTS = Path(__file__).parents[3] / "manifests"
CRDS = MANIFESTS.parent / "crds"
EXPRESSIONS = "base/webhook/expressions.yaml"
SCHEDULERS = ("base/scheduler/scheduler.yaml", "examples/main-scheduler/kube-scheduler.yaml")
GENERATED = (EXPRESSIONS, *SCHEDULERS)


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A copy of the manifests that may be changed."""
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    return tmp_path / "manifests"


def generate(manifests: Path, *arguments: str) -> int:
    """Return the exit code of `make crds` with these arguments, on a copy of the manifests."""
    return main(["--manifests", str(manifests), *arguments])


def edit(file: Path, change: Callable[[str], str]) -> None:
    before = file.read_text()
    file.write_text(change(before))
    assert file.read_text() != before


def configure(manifests: Path, **sections: Any) -> None:
    file = manifests / "base" / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **sections}))


def expressions(manifests: Path) -> dict[str, str]:
    return dict(yaml.safe_load((manifests / EXPRESSIONS).read_text())["data"])


def managed(manifests: Path, file: str) -> dict[str, bool]:
    (extender,) = yaml.safe_load((manifests / file).read_text())["extenders"]
    return {entry["name"]: entry["ignoredByScheduler"] for entry in extender["managedResources"]}


def test_the_generated_files_of_the_tree_are_fresh() -> None:
    assert generate(MANIFESTS, "--check") == 0


def test_a_stale_crd_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in CRDS.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "vgpu.dev_vgpuclaims.yaml").write_text("old\n")
    assert generate(MANIFESTS, "--check", "--folder", str(tmp_path)) == 1
    assert "vgpu.dev_vgpuclaims.yaml" in capsys.readouterr().err


def test_a_name_of_the_configuration_reaches_every_place_that_lists_names(
    manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(manifests, nvidia={"resourceCountName": "example.com/gpu"})
    assert generate(manifests, "--check") == 1
    stale = capsys.readouterr().err
    assert all(file in stale for file in GENERATED)
    assert generate(manifests) == 0
    assert generate(manifests, "--check") == 0
    for file in SCHEDULERS:
        found = managed(manifests, file)
        assert found["example.com/gpu"] is False
        assert "nvidia.com/gpu" not in found
    for text in expressions(manifests).values():
        assert "'example.com/gpu'" in text
        assert "'nvidia.com/gpu'" not in text


def test_devices_that_are_left_alone_are_in_no_list_and_others_are_in_all(
    manifests: Path,
) -> None:
    configure(manifests, vendors={"leaveAlone": ["biren"]})
    assert generate(manifests) == 0
    for file in SCHEDULERS:
        assert "birentech.com/gpu" not in managed(manifests, file)
        assert managed(manifests, file)["amd.com/gpumem"] is True
    for text in expressions(manifests).values():
        assert "'birentech.com/gpu'" not in text
        assert "'amd.com/gpu'" in text
    found = expressions(manifests)
    assert "'amd.com/gpumem'" in found["misspelt"]  # without the count it has no effect
    assert "'amd.com/gpumem'" not in found["asks"]


def comments(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("#")]


@pytest.mark.parametrize("file", GENERATED)
def test_what_is_written_by_hand_around_the_names_stays(manifests: Path, file: str) -> None:
    before = (manifests / file).read_text()
    configure(manifests, vendors={"leaveAlone": ["biren"]})
    assert generate(manifests) == 0
    after = (manifests / file).read_text()
    assert after != before
    assert comments(after) == comments(before)
    assert without_names(after) == without_names(before)


def without_names(text: str) -> Sequence[str]:
    text = re.sub(r"\['[^]?]*'\]", "[…]", text)
    text = re.sub(r"- \{name: [^,]*, ignoredByScheduler: \w+\}\n", "", text)
    return text.split()


def test_an_expression_with_a_list_that_nobody_fills_is_an_error(
    manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        manifests / EXPRESSIONS, lambda text: text.replace("name in", "name in ['a'] && name in", 1)
    )
    assert generate(manifests, "--check") == 1
    assert "asks" in capsys.readouterr().err
