"""A release is reproducible, has the digest of every file, and names images by digest."""

from __future__ import annotations

import copy
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from release.__main__ import main
from release.chart import COMPONENTS, NOWHERE, chart, kustomized, project_version, value_of

pytestmark = [pytest.mark.tools, pytest.mark.timeout(600)]  # compresses 60 MB of archives twice

DIGEST = "registry.example/vgpu@sha256:" + "a" * 64
ARGUMENTS = ("--image", f"operator={DIGEST}")
VERSION = project_version()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "out"
    assert main([str(folder), *ARGUMENTS]) == 0
    return folder


def test_every_file_has_its_digest(release: Path):
    sums = dict(
        reversed(line.split("  ", 1)) for line in (release / "SHA256SUMS").read_text().splitlines()
    )
    files = {p for p in release.rglob("*") if p.is_file() and p.name != "SHA256SUMS"}
    assert {release / name for name in sums} == files
    for name, digest in sums.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    names = {path.name for path in files}
    assert names >= {"crds.yaml", "default.yaml", "sbom.cdx.json", f"vgpu-{VERSION}.tgz"}
    assert any(name.startswith(f"vgpu-{VERSION}-") and name.endswith(".whl") for name in names)
    assert names >= {"gate.yaml", "claims.yaml", "before-1.36.yaml"}
    assert names >= {"krew.yaml", f"kubectl-vgpu-{VERSION}-darwin-arm64.tar.gz"}


def test_images_are_those_that_were_given_and_the_others_have_the_version(release: Path):
    for path in sorted((release / "manifests").glob("*.yaml")):
        text = path.read_text()
        assert "operator:dev" not in text
        assert "nodeagent:dev" not in text
    default = (release / "manifests" / "default.yaml").read_text()
    assert f"image: {DIGEST}" in default
    assert f"image: {NOWHERE}/nodeagent:{VERSION}" in default
    with tarfile.open(release / f"vgpu-{VERSION}.tgz") as archive:
        values = archive.extractfile("vgpu/values.yaml")
        assert values is not None
        images = yaml.safe_load(values.read())["images"]
    assert (images["operator"], images["nodeagent"]) == (DIGEST, f"{NOWHERE}/nodeagent:{VERSION}")


def test_the_manifests_of_a_mode_say_so_and_those_before_1_36_let_agents_read_pods(release: Path):
    texts = {p.stem: p.read_text() for p in (release / "manifests").glob("*.yaml")}
    assert "mode: Gate" in texts["gate"]
    assert "mode: Claims" in texts["claims"]
    reads = "name: vgpu-nodeagent-reads-all-pods"
    assert {name for name, text in texts.items() if reads in text} == {"before-1.36"}


def test_the_same_tree_makes_the_same_bytes(release: Path, tmp_path: Path):
    assert main([str(tmp_path / "again"), *ARGUMENTS]) == 0
    again = (tmp_path / "again" / "SHA256SUMS").read_text()
    assert again == (release / "SHA256SUMS").read_text()


def test_the_bill_of_materials_names_what_runs_and_no_test_tool(release: Path):
    bill = json.loads((release / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = {each["name"] for each in bill["components"]}
    assert names >= {"kopf", "aiohttp", "pydantic", "orjson"}
    assert not names & {"pytest", "mypy", "hypothesis"}
    assert all(each["hashes"] for each in bill["components"])
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--version", "1.0.1"), f"pyproject.toml has {VERSION!r}"),
        (("--image", "other=x"), "operator=REFERENCE"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([str(tmp_path / "out"), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_chart_has_every_object_and_a_value_for_every_component():
    files = chart("1.2.3")
    values = yaml.safe_load(files["values.yaml"])
    assert set(values["components"]) == {value_of(name) for name in COMPONENTS}
    lines = {line.strip() for text in files.values() for line in text.splitlines()}
    objects = [(kind, name) for _, kind, _, name in kustomized(COMPONENTS)]
    assert {kind for kind, _ in objects if f"kind: {kind}" not in lines} == set()
    missing = {name for _, name in objects if f"name: {name}" not in lines}
    assert {name for name in missing if not name.startswith("vgpu-config-")} == set()


def test_each_folder_of_the_kubelet_is_a_value_and_the_agent_has_it_where_it_always_is():
    """A kubelet with --root-dir moves two of its folders but not the one for plugins."""
    files = chart("1.2.3")
    values = yaml.safe_load(files["values.yaml"])["kubelet"]
    text = files["templates/daemonset-vgpu-node-vgpu-nodeagent.yaml"]
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()]
    for name, path in values.items():
        assert lines.count(f"path: {{{{ .Values.kubelet.{name} | quote }}}}") > 0
        assert lines.count(f"mountPath: {path}") > 0
        assert lines.count(f"path: {path}") == 0


def folders(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every object among the values that has the chart's own keys."""
    if not above or above[-1] not in ("requests", "limits", "nodeSelector"):
        yield above
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from folders(value, (*above, key))


def test_the_schema_takes_the_defaults_and_no_key_beside_them_at_any_depth():
    files = chart("1.2.3")
    schema = json.loads(files["values.schema.json"])
    values = yaml.safe_load(files["values.yaml"])
    check = jsonschema.Draft7Validator(schema)
    check.check_schema(schema)
    check.validate(values)
    check.validate({**values, "global": {"of": "a parent"}})
    paths = list(folders(values))
    assert len(paths) > 4
    for path in paths:
        wrong = copy.deepcopy(values)
        place = wrong
        for key in path:
            place = place[key]
        place["unknown"] = "x"
        assert not check.is_valid(wrong), path
