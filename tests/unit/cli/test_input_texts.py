"""Input of `simulate` that is neither JSON nor YAML, or that neither can express."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpu_operator.cli.__main__ import main

STATE: dict[str, Any] = {
    "nodes": [
        {"name": "a", "devices": [{"uuid": f"GPU-{at}", "memoryMiB": 16384} for at in (0, 1)]}
    ]
}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpumem": 4096}}}]},
}
AGAIN = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


def deep(levels: int) -> str:
    return "kind: Pod\nspec: " + "[" * levels + "]" * levels


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs simulate on files with these contents; returns status, standard output and error."""

    def said(*more: str, **contents: Any) -> Callable[..., tuple[int, str, str]]:
        arguments = ["simulate", *more]
        for option, content in contents.items():
            if not isinstance(content, bytes):
                content = (content if isinstance(content, str) else json.dumps(content)).encode()
            (tmp_path / option).write_bytes(content)
            arguments += [f"--{option}", str(tmp_path / option)]
        status = main(arguments)
        out, error = capsys.readouterr()
        return status, out, error.replace(f"{tmp_path}/", "")

    return said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"kind: Pod \xe9", "can't decode byte 0xe9"),
        ("kind: Pod".encode("utf-16"), "can't decode"),
        (b"\0", "unacceptable character"),
        (b"kind: Pod\n\ta: b", "found character"),
        (b"kind: Pod\na: *b", "undefined alias"),
        (b"kind: Pod\na: !!python/object:os.system x", "could not determine a constructor"),
        (b"kind: Pod\n? [a, b]\n: c", "unhashable key"),
        (b"kind: Pod\na: !!int ''", "does not match its tag"),
        (b"kind: Pod\na: !!bool x", "does not match its tag"),
        (b"kind: Pod\na: !!timestamp x", "does not match its tag"),
        (b"kind: Pod\na: " + b"9" * 6000, "integer string conversion"),
        (b"kind: Pod\na: 0x" + b"f" * 6000, 'a: Invalid value: "a number of many digits"'),
        (b"kind: Pod\na: {b: .nan}", "a.b: Invalid value: NaN: must be a finite number"),
        (b"kind: Pod\na: [-.inf]", "a[0]: Invalid value: -Infinity: must be a finite number"),
        (b"kind: Pod\na: 2020-01-01", 'a: Invalid value: "2020-01-01": must be text'),
        (b"kind: Pod\na: !!binary aGk=", "a: Invalid value: \"b'hi'\": must be text"),
        (b"kind: Pod\na: !!set {b}", "a: Invalid value: \"{'b'}\": must be text"),
        (b"kind: Pod\na: {1: b}", 'a: Invalid value: "1": must be a key that is text'),
        (
            b'kind: Pod\n"a": {"\\ud800": 1}',
            'a: Invalid value: "\\ud800": must be a key that is text',
        ),
        (b'{"kind": "Pod", "metadata": {"a.b/c": "\\ud800"}}', "metadata[a.b/c]: Invalid value: "),
        (b"&a {kind: Pod, a: *a}", "levels deep"),
        (f"kind: Pod\na0: &a0 [{'x, ' * 9}]\n{AGAIN}b: *a11".encode(), "more than 100000 values"),
        (deep(70).encode(), "levels deep"),
        (deep(5000).encode(), "recursion"),
        (b"kind: [Pod]", "no pods or claims"),
        (b"&a {kind: List, items: [*a]}", "levels deep"),
        (b"kind: List\nitems: [{kind: Service}]", "no pods or claims"),
        (b"kind: List\nitems: [{kind: Pod}, 3]", "items[1]: Invalid value: 3: must be an object"),
        (b"kind: Deployment", "spec: Invalid value: null: must be an object"),
        (b"kind: Deployment\nspec: {}", "spec.template: Invalid value: null: must be an object"),
        (
            b"kind: Deployment\nspec: {replicas: -1, template: {}}",
            "spec.replicas: Invalid value: -1: must be a",
        ),
        (b"kind: Deployment\nspec: {replicas: 10001, template: {}}", "0 to 10000"),
        (
            b"kind: Deployment\nspec: {template: {metadata: 1}}",
            "spec.template.metadata: Invalid value: 1: must be",
        ),
        (
            b"kind: Job\nspec: {parallelism: x, template: {}}",
            'spec.parallelism: Invalid value: "x": must be',
        ),
        (
            b"kind: CronJob\nspec: {jobTemplate: 1}",
            "spec.jobTemplate: Invalid value: 1: must be an object",
        ),
        (
            b"kind: Job\napiVersion: batch.volcano.sh/v1alpha1\nspec: {}",
            "spec.tasks: Invalid value: null: must be",
        ),
    ],
)
def test_a_manifest_that_is_no_plain_yaml_is_named_with_what_is_wrong(
    said: Callable[..., tuple[int, str, str]], content, complaint
):
    status, out, error = said(state=STATE, file=content)
    assert (status, out) == (2, "")
    assert error.startswith("kubectl vgpu: file: ")
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"nodes": NaN}', "state: nodes: Invalid value: NaN: must be a finite number"),
        (
            b'{"nodes": [{"name": 1e400}]}',
            "state: nodes[0].name: Invalid value: Infinity: must be a finite number",
        ),
        (
            b'{"nodes": [{"name": "\\udc00"}]}',
            'state: nodes[0].name: Invalid value: "\\udc00": must be text',
        ),
        (b'{"config": ' + b"[" * 70 + b"]" * 70 + b"}", "levels deep"),
        (b'{"config": ' + b"9" * 6000 + b"}", "state: Exceeds the limit"),
        (b"\xff\xfe", "can't decode"),
        (b"{'nodes': []}", "line 1 column 2"),
    ],
)
def test_a_state_that_is_no_plain_json_is_named_with_what_is_wrong(
    said: Callable[..., tuple[int, str, str]], content, complaint
):
    status, out, error = said(state=content, file=POD)
    assert (status, out) == (2, "")
    assert complaint in error
    assert error.count("\n") == 1


def test_an_anchor_and_a_document_of_another_kind_are_no_slips(
    said: Callable[..., tuple[int, str, str]],
):
    text = "kind: Service\n---\nkind: Pod\nspec: {containers: &c [{name: m}], initContainers: []}"
    assert said(state=STATE, file=text) == (0, ": refused: the pod asks for no GPU\n", "")


def test_a_field_that_there_is_not_is_named_as_such(said: Callable[..., tuple[int, str, str]]):
    _, _, error = said(state={"nodes": [{"name": "a", "divices": 3}]}, file=POD)
    assert "nodes[0].divices: Forbidden: unknown field" in error


def test_an_amount_that_is_neither_text_nor_number_is_one_thing_that_is_wrong(
    said: Callable[..., tuple[int, str, str]],
):
    limits = {"nvidia.com/gpumem": [4096]}
    spec = {"containers": [{"name": "m", "resources": {"limits": limits}}]}
    _, _, error = said(state=STATE, file={**POD, "spec": spec})
    field = "spec.containers[0].resources.limits[nvidia.com/gpumem]"
    assert (
        error
        == f"kubectl vgpu: file: {field}: Invalid value: [4096]: must be text or a whole number\n"
    )


def test_what_people_write_does_nothing_to_a_terminal_and_is_cut_where_it_is_long(
    said: Callable[..., tuple[int, str, str]],
):
    pod = {**POD, "metadata": {"name": "\x1b[2Jp"}}
    assert said(state=STATE, file=pod)[1].startswith("\\x1b[2Jp: a: GPU-1")
    pod = {**POD, "metadata": {"annotations": {"hami.io/gpu-scheduler-policy": "\x07" * 5000}}}
    _, _, error = said(state=STATE, file=pod)
    assert "\x07" not in error
    assert len(error) < 600


def test_something_else_than_a_pod_among_many_is_refused_and_the_others_are_not(
    said: Callable[..., tuple[int, str, str]],
):
    lines = [{"kind": "Service", "metadata": {"name": "d"}}, {"metadata": 3}, POD]
    status, out, _ = said(state=STATE, many="\n".join(map(json.dumps, lines)))
    first, second, third, _ = out.replace("\n  ", " ").splitlines()
    assert status == 0
    assert (
        first
        == 'd: refused: kind: Unsupported value: "Service": supported values: "Pod", "VGPUClaim"'
    )
    assert second.endswith(":2: refused: metadata: Invalid value: 3: must be an object")
    assert third == "p: a: GPU-1 (4096 MiB, 0 % for m)"


def test_options_that_contradict_each_other_are_refused_and_not_overlooked(
    said: Callable[..., tuple[int, str, str]],
):
    case = json.dumps({"id": 1, "state": STATE, "pod": POD})
    assert said(cases=case)[0] == 0
    assert said(cases=case, state=STATE)[0] == 2
    assert said(cases=case, file=POD)[0] == 2
    assert said(state=STATE, file=POD, many=json.dumps(POD))[0] == 2


def a_claim(**device: Any) -> dict[str, Any]:
    allocation = {"nodeName": "a", "devices": [{"request": "m", **device}]}
    return {
        "metadata": {"name": "c"},
        "spec": {"requests": [{"name": "m", "memory": "1Gi"}]},
        "status": {"allocation": allocation},
    }


def test_a_claim_that_does_not_say_which_device_it_holds_fills_its_node(
    said: Callable[..., tuple[int, str, str]],
):
    """The same holds in a cluster, because it is unknown which device is free."""
    one = a_claim(uuid="GPU-0", memory="16Gi")
    assert "GPU-1" in said(state={**STATE, "claims": [one]}, file=POD)[1]
    lost = a_claim(memory="1Gi")
    out = said(state={**STATE, "claims": [lost]}, file=POD)[1]
    assert out.startswith("p: refused: 2/2 CardTimeSlicingExhausted")


def test_what_comes_in_is_read_as_a_file_is(
    said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for content, status in ((json.dumps(POD).encode(), 0), (b"kind: Pod \xe9", 2)):
        (tmp_path / "stdin").write_bytes(content)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert said("-f", "-", state=STATE)[0] == status


@pytest.mark.programs
def test_a_name_in_letters_that_the_terminal_does_not_know_is_shown_all_the_same(tmp_path: Path):
    (tmp_path / "state").write_text(json.dumps(STATE))
    (tmp_path / "pod").write_text(json.dumps({**POD, "metadata": {"name": "pé"}}))
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pod")]
    done = subprocess.run(
        [sys.executable, "-m", "vgpu_operator.cli", "simulate", *files],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("p\\xe9: a: GPU-1")
