"""`simulate` names the pods that would be evicted in a simulated cluster, as the engine would."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_operator.cli.__main__ import main

MIB = 16384
Document = dict[str, Any]
Run = Callable[..., list[Document]]


def a_raw_pod(name: str, mib: int = 8192, **spec: Any) -> Document:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def a_running_pod(name: str, priority: int, **fields: Any) -> Document:
    pod = a_raw_pod(name, nodeName="n1", priority=priority)
    pod["metadata"] |= {"uid": f"uid-{name}", **fields}
    return pod | {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}


def a_claim(name: str, uuid: str = "GPU-0", mib: int = 8192) -> Document:
    device = {"request": "main", "name": uuid, "uuid": uuid, "memory": f"{mib}Mi", "cores": 0}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"requests": [{"name": "main", "memory": f"{mib}Mi"}]},
        "status": {
            "allocation": {"nodeName": "n1", "devices": [device]},
            "reservedFor": {"podName": name, "podUID": f"uid-{name}"},
        },
    }


def a_state(*, enabled: bool = True, **rules: Any) -> Document:
    """Return a state whose only device is filled by a pod of priority 100 and one of 200."""
    return {
        "config": {"scheduling": {"preemption": {"enabled": enabled, **rules}}},
        "nodes": [{"name": "n1", "devices": [{"uuid": "GPU-0", "memoryMiB": MIB}]}],
        "claims": [a_claim("low"), a_claim("high")],
        "pods": [a_running_pod("low", 100), a_running_pod("high", 200)],
    }


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that simulates documents and returns its output as JSON."""

    def run(state: Document, *documents: Document) -> list[Document]:
        (tmp_path / "state").write_text(json.dumps(state))
        (tmp_path / "pods").write_text(yaml.safe_dump_all(documents))
        files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pods")]
        assert main(["simulate", "-o", "json", *files]) == 0
        out = capsys.readouterr().out
        return (
            [json.loads(out)]
            if out.startswith("{\n")
            else list(map(json.loads, out.split("\n")[:-1]))
        )

    return run


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Return a function that simulates documents and returns the lines."""

    def said(state: Document, *documents: Document) -> list[str]:
        (tmp_path / "state").write_text(json.dumps(state))
        (tmp_path / "pods").write_text(yaml.safe_dump_all(documents))
        files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pods")]
        assert main(["simulate", *files]) == 0
        return capsys.readouterr().out.splitlines()

    return said


def test_the_least_important_pod_that_makes_room_is_named(run: Run) -> None:
    (found,) = run(a_state(), a_raw_pod("late", priority=1000))
    assert found["node"] is None
    assert found["preemption"] == {
        "enabled": True,
        "message": "Would preempt default/low (priority 100) on n1",
        "nodes": ["n1"],
        "victims": [
            {"pod": "default/low", "claim": "default/low", "priority": 100, "protected": False}
        ],
        "victimsHidden": 0,
        "whyNot": "",
        "notJudged": "",
    }


def test_it_is_said_that_preemption_is_not_enabled(run: Run) -> None:
    (found,) = run(a_state(enabled=False), a_raw_pod("late", priority=1000))
    assert found["preemption"]["enabled"] is False
    assert found["preemption"]["message"] == (
        "Would preempt default/low (priority 100) on n1 if preemption were enabled"
    )


@pytest.mark.parametrize(
    ("spec", "why_not"),
    [
        ({"priority": 100}, "no pod with devices has a priority lower than 100"),
        ({"priority": 1000, "preemptionPolicy": "Never"}, "its preemptionPolicy is Never"),
    ],
)
def test_nobody_makes_way_for_an_equal_or_for_a_pod_that_never_preempts(
    run: Run, spec: Document, why_not: str
) -> None:
    (found,) = run(a_state(), a_raw_pod("late", **spec))
    assert (found["preemption"]["whyNot"], found["preemption"]["victims"]) == (why_not, [])


def test_a_budget_of_the_state_protects_its_pods(run: Run) -> None:
    state = a_state()
    state["pods"][0]["metadata"]["labels"] = {"app": "x"}
    state["disruptionBudgets"] = [
        {
            "metadata": {"name": "keep", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {"disruptionsAllowed": 0},
        }
    ]
    (found,) = run(state, a_raw_pod("late", priority=1000))
    assert [each["pod"] for each in found["preemption"]["victims"]] == ["default/high"]


def test_a_pod_that_is_ending_suffices(run: Run) -> None:
    state = a_state()
    state["pods"][1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    (found,) = run(state, a_raw_pod("late", priority=1000))
    assert found["preemption"]["whyNot"] == "what ends anyway on n1 suffices"


def test_a_pod_of_a_daemon_set_never_makes_way(run: Run) -> None:
    owner = {"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    state = a_state()
    state["pods"][0]["metadata"]["ownerReferences"] = [owner]
    (found,) = run(state, a_raw_pod("late", priority=1000))
    assert [each["pod"] for each in found["preemption"]["victims"]] == ["default/high"]


def test_a_state_without_pods_says_that_nobody_knows(
    run: Run, said: Callable[..., list[str]]
) -> None:
    state = a_state()
    del state["pods"]
    (found,) = run(state, a_raw_pod("late", priority=1000))
    assert found["preemption"]["notJudged"] == "the state has no pods"
    assert (found["preemption"]["victims"], found["preemption"]["whyNot"]) == ([], "")
    pods = [a_raw_pod(name, priority=1000) for name in ("one", "two")]
    lines = said(state, *pods)
    assert lines[2] == "Not known which pods would be evicted: the state has no pods"


def test_amounts_that_no_claim_holds_are_freed_by_nobody(run: Run) -> None:
    state = a_state()
    state["claims"].pop()
    state["pods"].pop()
    state["nodes"][0]["devices"][0] |= {"memoryUsedMiB": 8192, "slotsUsed": 1}
    (found,) = run(state, a_raw_pod("late", MIB, priority=1000))
    assert found["preemption"]["whyNot"].startswith("it would fit on no node")
    (found,) = run(state, a_raw_pod("late", 8192, priority=1000))
    assert [each["pod"] for each in found["preemption"]["victims"]] == ["default/low"]


def test_a_quota_with_a_scope_counts_the_claims_of_the_pods_that_it_selects(run: Run) -> None:
    state = a_state()
    state["nodes"][0]["devices"].append({"uuid": "GPU-1", "memoryMiB": MIB})
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}
    hard = {"limits.nvidia.com/gpumem": 12_000}
    selector = {"matchExpressions": [scope]}
    state["quotas"] = [{"namespace": "default", "hard": hard, "scopeSelector": selector}]
    pod = a_raw_pod("late", priorityClassName="batch")
    assert run(state, pod)[0]["node"] == "n1"
    state["pods"][0]["spec"]["priorityClassName"] = "batch"
    (found,) = run(state, pod)
    assert "ResourceQuotaNotFit" in found["refused"]
    classless = run(state, a_raw_pod("late"))
    assert classless[0]["node"] == "n1"


CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "serving"},
    "value": 1000,
}


def test_the_priority_class_is_looked_up_in_the_file_and_in_the_state(run: Run) -> None:
    pod = a_raw_pod("late", priorityClassName="serving")
    in_file = run(a_state(), CLASS, pod)
    in_state = run({**a_state(), "priorityClasses": [CLASS]}, pod)
    assert in_file == in_state
    assert in_file[0]["preemption"]["nodes"] == ["n1"]
    never = {**CLASS, "preemptionPolicy": "Never"}
    (found,) = run(a_state(), never, pod)
    assert found["preemption"]["whyNot"] == "its preemptionPolicy is Never"


def test_a_priority_class_that_nobody_knows_is_named(run: Run) -> None:
    (found,) = run(a_state(), a_raw_pod("late", priorityClassName="serving"))
    assert found["preemption"]["notJudged"] == "PriorityClass serving does not exist here"


def test_the_default_class_and_those_of_the_system_count(run: Run) -> None:
    default = {**CLASS, "globalDefault": True}
    (found,) = run(a_state(), default, a_raw_pod("late"))
    assert found["preemption"]["nodes"] == ["n1"]
    (found,) = run(a_state(), a_raw_pod("late", priorityClassName="system-cluster-critical"))
    assert found["preemption"]["nodes"] == ["n1"]
    (found,) = run(a_state(), a_raw_pod("late"))
    assert found["preemption"]["whyNot"] == "no pod with devices has a priority lower than 0"


def test_two_pods_do_not_preempt_the_same_victim(run: Run) -> None:
    pods = [a_raw_pod(name, priority=1000) for name in ("one", "two")]
    *found, summary = run(a_state(), *pods)
    named = [[each["pod"] for each in answer["preemption"]["victims"]] for answer in found]
    # The device of the first victim is kept for the first pod as a whole, as by the operator.
    assert named == [["default/low"], []]
    assert (summary["placed"], summary["refused"]) == (0, 2)


def test_a_pod_of_the_same_file_is_never_a_victim(run: Run) -> None:
    state = a_state()
    state["claims"].pop()
    state["pods"].pop()
    first, second, _ = run(state, a_raw_pod("first"), a_raw_pod("second", MIB, priority=1000))
    assert first["node"] == "n1"
    assert second["preemption"]["whyNot"].startswith("it would fit on no node")
    _, third, _ = run(state, a_raw_pod("first"), a_raw_pod("third", 8192, priority=1000))
    assert [each["pod"] for each in third["preemption"]["victims"]] == ["default/low"]


def test_what_a_refused_group_tried_is_in_nobodys_way(run: Run) -> None:
    state = a_state()
    state["claims"].pop()
    state["pods"].pop()
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    members = [a_raw_pod(name, schedulingGroup={"podGroupName": "gang"}) for name in ("g-0", "g-1")]
    first, second, late, _ = run(state, group, *members, a_raw_pod("late", MIB, priority=1000))
    assert (first["node"], second["node"]) == (None, None)
    assert [each["pod"] for each in late["preemption"]["victims"]] == ["default/low"]


def test_the_text_says_once_that_nobody_has_been_evicted_and_fits_80_columns(
    said: Callable[..., list[str]],
) -> None:
    pods = [a_raw_pod(name, priority=1000) for name in ("one", "two")]
    lines = said(a_state(), *pods)
    assert lines[1] == "  Would preempt default/low (priority 100) on n1"
    assert " ".join(lines).count("Nobody is evicted here") == 1
    assert max(map(len, lines)) <= 80


def test_room_for_a_pod_is_not_made_by_a_simulated_eviction(run: Run) -> None:
    first, small, _ = run(a_state(), a_raw_pod("late", priority=1000), a_raw_pod("small", 1000))
    assert first["preemption"]["nodes"] == ["n1"]
    assert small["node"] is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            lambda s: s["pods"][0]["metadata"].pop("uid"),
            "pods[0].metadata.uid: Required value",
        ),
        (
            lambda s: s["pods"][1]["metadata"].update(uid="uid-low"),
            "pods[1].metadata.uid: Duplicate value: 'uid-low': first at pods[0]",
        ),
        (
            lambda s: s["pods"][0]["metadata"].update(deletionTimestamp="now"),
            "pods[0].metadata.deletionTimestamp: Invalid value: \"now\"",
        ),
        (lambda s: s["pods"][0]["spec"].update(priority="high"), "pods[0].spec.priority"),
        (
            lambda s: s["claims"][0]["status"].pop("reservedFor"),
            "claims[0].status.reservedFor.podUID: Required value",
        ),
        (
            lambda s: s.update(disruptionBudgets=[{"spec": {"selector": {"matchLabels": 1}}}]),
            "disruptionBudgets[0].spec.selector.matchLabels",
        ),
        (lambda s: s.update(priorityClasses=[{}]), "priorityClasses[0].value: Required value"),
        (lambda s: s.update(podGroups=[{"spec": 1}]), "podGroups[0].spec"),
    ],
)  # fmt: skip
def test_what_is_wrong_about_pods_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, place: str
) -> None:
    state = copy.deepcopy(a_state())
    change(state)
    (tmp_path / "state").write_text(json.dumps(state))
    (tmp_path / "pod").write_text(json.dumps(a_raw_pod("late", priority=1000)))
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pod")]
    assert main(["simulate", *files]) == 2
    error = capsys.readouterr().err
    assert place in error
    assert error.count("\n") == 1
