"""For any content of the files, `simulate` answers or prints one line that locates the error."""

from __future__ import annotations

import copy
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.field_errors import path as named
from vgpu_operator.cli.__main__ import main

CLAIM: dict[str, Any] = {
    "apiVersion": "vgpu.dev/v1alpha1",
    "kind": "VGPUClaim",
    "metadata": {"name": "c", "namespace": "default", "labels": {"x": "y"}},
    "spec": {
        "requests": [
            {
                "name": "main",
                "memory": "4Gi",
                "count": 1,
                "cores": 10,
                "selector": {"models": ["t4"]},
            }
        ],
        "placement": {
            "node": "Spread",
            "device": ["Binpack"],
            "weights": {"slots": 1, "cores": 1, "memory": 1},
        },
        "bindingMode": "WaitForFirstConsumer",
    },
    "status": {
        "allocation": {
            "nodeName": "a",
            "devices": [{"request": "main", "uuid": "GPU-0", "memory": "4Gi", "cores": 10}],
        },
        "reservedFor": {"podName": "low", "podUID": "u"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
STATE: dict[str, Any] = {
    "config": {"scheduling": {"nodePolicy": "Binpack"}, "nvidia": {"deviceSplitCount": 10}},
    "quotas": [{"namespace": "default", "hard": {"limits.nvidia.com/gpumem": "100Gi", "pods": 5}}],
    "nodes": [
        {
            "name": "a",
            "labels": {"zone": "one"},
            "annotations": {"hami.io/gpu-scheduler-policy": "binpack"},
            "devices": [
                {
                    "uuid": "GPU-0",
                    "index": 0,
                    "vendor": "nvidia",
                    "model": "T4",
                    "memoryMiB": 16384,
                    "memoryUsedMiB": 0,
                    "cores": 100,
                    "coresUsed": 0,
                    "slots": 10,
                    "slotsUsed": 0,
                    "numa": 0,
                    "healthy": True,
                    "cordoned": False,
                    "mode": "Shared",
                },
                {
                    "uuid": "GPU-1",
                    "memoryMiB": 40960,
                    "mig": {
                        "enabled": True,
                        "profiles": [
                            {
                                "name": "1g.5gb",
                                "memoryMiB": 4864,
                                "cores": 14,
                                "slices": 1,
                                "placements": [{"start": 0, "size": 1}],
                            }
                        ],
                        "instances": [{"profile": "1g.5gb", "start": 0}],
                    },
                },
            ],
            "pairScores": [{"a": "GPU-0", "b": "GPU-1", "score": 50}],
        }
    ],
    "claims": [CLAIM],
    "pods": [
        {
            "metadata": {
                "name": "low",
                "namespace": "default",
                "uid": "u",
                "labels": {"app": "x"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": "a",
                "priority": 5,
                "schedulingGroup": {"podGroupName": "g"},
                "containers": [
                    {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1"}}}
                ],
            },
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        }
    ],
    "disruptionBudgets": [
        {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {"disruptionsAllowed": 1},
        }
    ],
    "podGroups": [
        {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    ],
    "priorityClasses": [{"metadata": {"name": "c"}, "value": 7, "globalDefault": True}],
}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "default",
        "labels": {"a": "b"},
        "annotations": {"hami.io/gpu-scheduler-policy": "binpack", "nvidia.com/numa-bind": "true"},
    },
    "spec": {
        "nodeSelector": {"zone": "one"},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
        "initContainers": [
            {"name": "i", "restartPolicy": "Always",
             "resources": {"requests": {"aliyun.com/gpu-mem": 2}}}
        ],
        "containers": [
            {
                "name": "main",
                "env": [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}],
                "volumeMounts": [{"name": "v", "mountPath": "/x"}],
                "securityContext": {"privileged": False},
                "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "4Gi"}},
            }
        ],
    },
    "status": {"phase": "Pending"},
}  # fmt: skip
WAITS: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "w"},
    "spec": {
        "priorityClassName": "c",
        "schedulingGroup": {"podGroupName": "h"},
        "containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
    },
}
"""A pod that does not fit beside the running pods."""
NAMES_A_CLAIM = {
    "kind": "Pod",
    "metadata": {"name": "n", "annotations": {"vgpu.dev/claim": "c", "vgpu.dev/slots-added": "m"}},
    "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
}
WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**63, 10**30, -(10**30), float("nan"), float("inf"), -0.0),
    *("", "x", "x" * 3000, "\0", "\ud800", "\n", "é", "\u2028", "\x1b[31m", "1e400", "-5", "16Gi"),
    *("1e9999999", "0x10", "1_000", "٣", "4k", "NaN", "99999999999999999999", "c", "a,b", "/"),
    *([], {}, [[]], [None], [True], ["a", 1], {"": None}, {"a": {"b": [1]}}, {"x\n": 1}),
)
Where = tuple[int | str, ...]


def places(document: Any, where: Where = ()) -> list[Where]:
    """Return the path of every value inside a document."""
    held: Any = {}
    if isinstance(document, dict):
        held = document
    elif isinstance(document, list):
        held = dict(enumerate(document))
    found = [where] if where else []
    for key, value in held.items():
        found += places(value, (*where, key))
    return found


def holder(document: Any, where: Where) -> Any:
    for step in where[:-1]:
        document = document[step]
    return document


@st.composite
def spoilt(draw: st.DrawFn, document: Any) -> Any:
    """Return the document with up to three errors in it."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        found = places(document)
        if not found:
            break
        where = draw(st.sampled_from(found))
        inside, key = holder(document, where), where[-1]
        kind = draw(st.sampled_from(("other", "other", "other", "gone", "twice", "renamed")))
        if kind == "gone":
            del inside[key]
        elif kind == "twice" and isinstance(inside, list):
            inside.append(copy.deepcopy(inside[key]))
        elif kind == "renamed" and isinstance(inside, dict):
            inside[draw(st.sampled_from(("", "a\nb", "\x1b", "x" * 500, "\ud800")))] = inside.pop(
                key
            )
        else:
            inside[key] = copy.deepcopy(draw(st.sampled_from(WRONG)))
    return document


def run(*arguments: str) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        status = main(["simulate", *arguments])
    return status, out.getvalue(), error.getvalue()


def no_number(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


def check(*arguments: str, pod_file: Path) -> None:
    """Check that the output is JSON, or that status 2 comes with one line that names a file."""
    status, out, error = run("-o", "json", *arguments)
    if status == 0:
        assert error == ""
        for text in [out] if pod_file.suffix == ".yaml" else out.splitlines():
            json.loads(text, parse_constant=no_number)
        return
    assert status == 2
    assert error.startswith(f"kubectl vgpu: {pod_file.parent}/"), error
    assert error.endswith("\n")
    assert error[:-1].isprintable()
    assert len(error) < 2000
    in_words = run(*arguments)
    assert (in_words[0], in_words[2]) == (2, error)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("input")
    return folder / "state.json", folder / "pod.yaml", folder / "lines.jsonl"


admit = st.sampled_from([(), ("--admit",)])


@given(state=spoilt(STATE), asker=st.sampled_from([POD, CLAIM, NAMES_A_CLAIM, WAITS]))
def test_any_state_is_answered_for_or_named_with_what_is_wrong(
    files: tuple[Path, Path, Path], state, asker
):
    state_file, pod_file, _ = files
    state_file.write_text(json.dumps(state))
    pod_file.write_text(json.dumps(asker))
    check("--state", str(state_file), "-f", str(pod_file), pod_file=pod_file)


@given(
    asker=st.sampled_from([POD, CLAIM, NAMES_A_CLAIM, WAITS]).flatmap(spoilt),
    admit=admit,
)
def test_any_pod_and_claim_is_answered_or_named_with_what_is_wrong(
    files: tuple[Path, Path, Path], asker, admit
):
    state_file, pod_file, _ = files
    state_file.write_text(json.dumps(STATE))
    pod_file.write_text(json.dumps(asker))
    check("--state", str(state_file), "-f", str(pod_file), *admit, pod_file=pod_file)


@given(
    case=st.sampled_from(
        [{"pod": POD}, {"claim": CLAIM}, {"pod": NAMES_A_CLAIM}, {"pod": WAITS}]
    ).flatmap(lambda asker: spoilt({"id": 1, "state": STATE, **asker})),
    line=st.sampled_from([POD, CLAIM, NAMES_A_CLAIM, WAITS]).flatmap(spoilt),
    admit=admit,
)
def test_any_line_of_many_is_answered_or_named_with_what_is_wrong(
    files: tuple[Path, Path, Path], case, line, admit
):
    state_file, _, lines = files
    lines.write_text("\n".join(map(json.dumps, (case, case))))
    check("--cases", str(lines), *admit, pod_file=lines)
    state_file.write_text(json.dumps(STATE))
    lines.write_text("\n".join(map(json.dumps, (POD, line))))
    check("--state", str(state_file), "--many", str(lines), *admit, pod_file=lines)


@pytest.mark.parametrize("where", places(STATE), ids=named)
def test_what_stands_in_the_wrong_place_is_named_by_its_path(files: tuple[Path, Path, Path], where):
    state_file, pod_file, _ = files
    state = copy.deepcopy(STATE)
    inside, key = holder(state, where), where[-1]
    inside[key] = ["odd"] if isinstance(inside[key], dict) else {"odd": 1}
    state_file.write_text(json.dumps(state))
    pod_file.write_text(json.dumps(POD))
    status, out, error = run("--state", str(state_file), "-f", str(pod_file))
    assert (status, out) == (2, "")
    assert error.startswith(f"kubectl vgpu: {state_file}: {named(where)}")
