"""The generator of the reference finds every name that the code prints or reads, and no other."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import pytest

from manual import words


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty tree in place of the repository."""
    monkeypatch.setattr(words, "ROOT", tmp_path)
    return tmp_path


def written(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


AGENT = "nodeagent/vgpu_nodeagent/a.py"
ENGINE = "operator/vgpu_operator/engine/a.py"


@pytest.mark.parametrize(
    "line",
    [
        'outcome.blocked.append(("ShinyReason", "text"))',
        'reports.not_resized(claim, "ShinyReason", "text")',
        'REASON = "ShinyReason"',
        'reason, text = "ShinyReason", "text"',
        '_condition(type_, "True", "ShinyReason", "text")',
    ],
)
def test_a_reason_of_a_condition_is_found_with_its_place(tree: Path, line: str) -> None:
    written(tree, AGENT, f"\n{line}\n")
    assert words.condition_reasons() == {"ShinyReason": f"{AGENT}:2"}


def test_a_reason_of_one_word_is_found_where_a_condition_is_made(tree: Path) -> None:
    written(tree, AGENT, '_condition(type_, "True", "Shiny", "text")\nother("Dull")\n')
    assert set(words.condition_reasons()) == {"Shiny"}


def test_a_reason_of_one_word_is_found_in_a_value_with_a_field_of_that_name(tree: Path) -> None:
    lines = (
        "class Illness:",
        "    since: float",
        "    reason: str",
        'Illness(1.0, "Shiny", "Dull")',
        'Illness(since=1.0, reason="Bright")',
    )
    written(tree, AGENT, "\n".join(lines))
    assert set(words.condition_reasons()) == {"Shiny", "Bright"}


@pytest.mark.parametrize(
    "line",
    [
        'found = pod.kind == "DaemonSet"',
        'kind = {"kind": "NodeList"}',
        'given = {"PodName": 1}',
        'name: str = Field(alias="PodUID")',
        'Counter("HostMemory", "text")',
        '__all__ = ["NamedClaim"]',
        'text = "A Sentence with CamelCase in it"',
        'Finding("PageMissing", name, "text")',
        'options.get("BinaryName", "")',
    ],
)
def test_a_word_that_is_no_reason_is_left_alone(tree: Path, line: str) -> None:
    written(tree, AGENT, f"{line}\n")
    assert words.condition_reasons() == {}


@pytest.mark.parametrize(
    "line",
    [
        'RecordEvent(regarding, "Warning", "ShinyEvent", "Observing", note)',
        'recorder.record(pod, type="Warning", reason="ShinyEvent", action="x", note="x")',
        'SHINY = "ShinyEvent"\nnode_event(node, SHINY, "text")',
        'reports.warning(pod, "ShinyEvent", "text")',
    ],
)
def test_a_reason_of_an_event_is_found_also_behind_a_constant(tree: Path, line: str) -> None:
    written(tree, ENGINE, f"{line}\n")
    assert "ShinyEvent" in words.event_reasons()
    assert "ShinyEvent" not in words.condition_reasons()


def test_of_an_event_the_reason_alone_counts_also_where_it_is_one_word(tree: Path) -> None:
    lines = (
        "from vgpu_api.conditions import VIOLATED",
        'RecordEvent(pod, "Warning", "Shiny", "Evicting", note)',
        'RecordEvent(pod, "Warning", VIOLATED, "Watching", note)',
        'logger.warning("%s", "Dull")',
    )
    written(tree, ENGINE, "\n".join(lines))
    assert {"Shiny", "Violated"} <= set(words.event_reasons())
    assert not {"Warning", "Evicting", "Watching", "Dull"} & set(words.event_reasons())


def test_a_finding_of_the_audit_is_found(tree: Path) -> None:
    written(tree, AGENT, 'yield_ = Finding("NewDisagreement", name, "text")\n')
    assert words.findings() == {"NewDisagreement": f"{AGENT}:1"}


def test_names_of_kubernetes_are_found_in_code_and_manifests(tree: Path) -> None:
    written(tree, AGENT, 'A = "maker.example/annotation"\nB = "app.kubernetes.io/name"\n')
    written(tree, "manifests/base/a.yaml", "key: vgpu.dev/label  # vgpu.dev/comment\n")
    found = words.kubernetes_names()
    assert found["maker.example/annotation"] == f"{AGENT}:1"
    assert found["vgpu.dev/label"] == "manifests/base/a.yaml:1"
    assert not {"app.kubernetes.io/name", "vgpu.dev/comment"} & set(found)


def test_ports_and_mounts_are_read_from_the_manifests(tree: Path) -> None:
    written(
        tree,
        "manifests/base/a.yaml",
        """\
        kind: Deployment
        metadata: {name: shiny}
        spec:
          template:
            spec:
              containers: [{name: a, ports: [{containerPort: 1234}]}]
              volumes: [{name: b, hostPath: {path: /somewhere}}, {name: c, emptyDir: {}}]
        """,
    )
    assert words.ports() == {"shiny:1234": "manifests/base/a.yaml"}
    assert words.files()["/somewhere"] == "manifests/base/a.yaml"


def test_the_programs_are_asked_for_their_own_parsers() -> None:
    services = {program.called: program.parser for program in words.services()}
    assert set(services) == {"vgpu-operator", "vgpu-webhook", "vgpu-web", "vgpu-nodeagent"}
    assert "--on-violation" in services["vgpu-nodeagent"].format_help()
    assert {program.called for program in words.commands()} >= {
        "kubectl vgpu audit",
        "kubectl vgpu simulate",
        "vgpu-nodeagent audit",
    }


def test_verbs_are_those_of_the_parsers_below_a_parser() -> None:
    parser = argparse.ArgumentParser()
    below = parser.add_subparsers()
    below.add_parser("fly")
    assert set(words.verbs(parser)) == {"fly"}


def test_libraries_add_metrics_that_the_page_names_by_their_prefix() -> None:
    page = (Path(words.__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    prefixes = words.exposed_by_libraries()
    assert prefixes
    assert [prefix for prefix in prefixes if f"`{prefix}_*`" not in page] == []
