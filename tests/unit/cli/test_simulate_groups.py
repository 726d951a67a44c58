"""`simulate` places a group as a whole or not at all, and finds claims of the same file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_operator.cli.__main__ import main

Document = dict[str, Any]
Run = Callable[..., list[Document]]


def a_member(name: str, mib: int = 8192, group: str = "gang", **spec: Any) -> Document:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    of_group = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **of_group, **spec},
    }


def a_group(least: int | None, name: str = "gang") -> Document:
    policy: Document = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": policy},
    }


def a_state(devices: int = 1, **fields: Any) -> Document:
    found = [{"uuid": f"GPU-{number}", "memoryMiB": 16384} for number in range(devices)]
    return {"nodes": [{"name": "n1", "devices": found}], **fields}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that simulates documents one after another, and returns the answers."""

    def run(state: Document, *documents: Document) -> list[Document]:
        (tmp_path / "state").write_text(json.dumps(state))
        (tmp_path / "pods").write_text(yaml.safe_dump_all(documents))
        files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pods")]
        assert main(["simulate", "-o", "json", *files]) == 0
        out = capsys.readouterr().out
        if out.startswith("{\n"):
            return [json.loads(out)]
        return [json.loads(line) for line in out.splitlines()][:-1]

    return run


def test_a_group_that_fits_is_placed_and_its_answer_says_so(run: Run) -> None:
    found = run(a_state(), a_group(2), a_member("g-0"), a_member("g-1"))
    assert [each["node"] for each in found] == ["n1", "n1"]
    assert found[0]["group"] == {
        "name": "gang",
        "least": 2,
        "pods": 2,
        "fit": 2,
        "starts": True,
        "isMixed": False,
        "doNotFit": [],
        "message": "2 of 2 pods of group gang found a place; 2 must start together",
    }


def test_a_group_that_does_not_fit_is_refused_as_a_whole_with_the_member_that_does_not(
    run: Run,
) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    first, second, third, lone = run(a_state(), a_group(3), *members, a_member("lone", group=""))
    text = "2 of 3 pods of group gang found a place, and g-2 did not; 3 must start together"
    assert (first["node"], first["devices"], first["refused"]) == (None, [], text)
    assert second["refused"] == text
    assert third["refused"] == f"1/1 CardInsufficientMemory; {text}"
    assert third["group"]["doNotFit"] == ["g-2"]
    assert "group" not in lone
    assert lone["node"] == "n1"


def test_what_a_refused_group_tried_is_given_back_in_full(run: Run) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    *_, lone = run(a_state(), a_group(3), *members, a_member("lone", 16384, group=""))
    assert lone["node"] == "n1"


def test_a_quota_that_a_refused_group_used_up_is_given_back(run: Run) -> None:
    quotas = [{"namespace": "default", "hard": {"limits.nvidia.com/gpumem": 16384}}]
    members = [a_member(f"g-{number}") for number in range(3)]
    lone = a_member("lone", 16384, group="")
    *group, last = run(a_state(2, quotas=quotas), a_group(3), *members, lone)
    assert [each["group"]["fit"] for each in group] == [2, 2, 2]
    assert last["node"] == "n1"


def test_members_beyond_the_minimum_may_wait(run: Run) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    found = run(a_state(), a_group(2), *members)
    assert [each["node"] for each in found] == ["n1", "n1", None]
    assert found[2]["refused"] == "1/1 CardInsufficientMemory"
    assert found[0]["group"]["starts"]


def test_a_group_without_a_minimum_is_placed_pod_by_pod(run: Run) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    found = run(a_state(), a_group(None), *members)
    assert [each["node"] for each in found] == ["n1", "n1", None]


def test_too_few_pods_for_the_minimum_do_not_start(run: Run) -> None:
    found = run(a_state(), a_group(3), a_member("g-0"), a_member("g-1"))
    assert {each["refused"] for each in found} == {
        "2 of 2 pods of group gang found a place; 3 must start together"
    }


def test_without_its_pod_group_all_pods_of_a_group_must_fit(run: Run) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    found = run(a_state(), *members)
    assert [each["node"] for each in found] == [None] * 3
    assert "its PodGroup does not exist here" in found[0]["refused"]


def test_a_pod_without_a_gpu_counts_for_its_group(run: Run) -> None:
    leader = a_member("leader")
    leader["spec"]["containers"][0]["resources"] = {}
    found = run(a_state(), a_group(3), leader, a_member("g-0"), a_member("g-1"))
    assert [each["node"] for each in found[1:]] == ["n1", "n1"]
    assert found[0]["refused"] == "the pod asks for no GPU"


def test_members_that_run_count_and_the_group_may_be_in_the_state(run: Run) -> None:
    running = a_member("g-0", nodeName="n1")
    running["metadata"]["uid"] = "uid-0"
    running["status"] = {"phase": "Running"}
    state = a_state(pods=[running], podGroups=[a_group(3)])
    found = run(state, a_member("g-1"), a_member("g-2"))
    assert [each["node"] for each in found] == ["n1", "n1"]
    assert run({**state, "pods": []}, a_member("g-1"), a_member("g-2"))[0]["node"] is None


def test_pods_of_one_group_need_one_scheduler_and_one_priority(run: Run) -> None:
    found = run(a_state(), a_group(2), a_member("g-0"), a_member("g-1", priority=5))
    assert found[0]["refused"] == (
        "the pods of a group need one scheduler and one priority, and these have "
        "the default and 0, the default and 5"
    )


def test_a_deployment_of_a_group_is_a_group(run: Run) -> None:
    template = {"spec": a_member("x")["spec"]}
    workload = {
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"replicas": 3, "template": template},
    }
    found = run(a_state(), a_group(3), workload)
    assert [each["group"]["fit"] for each in found] == [2, 2, 2]


GATE = {"scheduling": {"mode": "Gate"}}


def in_words(name: str, **metadata: Document) -> Document:
    pod = a_member(name, group="")
    pod["metadata"] |= metadata
    return pod


def ours(name: str, least: int = 3) -> Document:
    words = {"vgpu.dev/group": "gang", "vgpu.dev/group-min": str(least)}
    return in_words(name, annotations=words)


def test_behind_the_gate_a_group_of_kubernetes_is_placed_as_a_whole(run: Run) -> None:
    members = [a_member(f"g-{number}") for number in range(3)]
    found = run(a_state(config=GATE), a_group(3), *members)
    assert [each["group"]["fit"] for each in found] == [2, 2, 2]
    assert run(a_state(2, config=GATE), a_group(3), *members)[0]["group"]["starts"]


def test_behind_the_gate_a_group_of_our_annotations_is_placed_as_a_whole(run: Run) -> None:
    *members, lone = run(
        a_state(config=GATE), *(ours(f"g-{n}") for n in range(3)), a_member("lone", group="")
    )
    text = "2 of 3 pods of group gang found a place, and g-2 did not; 3 must start together"
    assert members[0]["refused"].endswith(text)
    assert lone["node"] == "n1"
    assert run(a_state(2, config=GATE), *(ours(f"g-{n}") for n in range(3)))[0]["group"]["starts"]


def test_pods_that_disagree_about_their_minimum_are_refused(run: Run) -> None:
    found = run(a_state(2, config=GATE), ours("g-0", 2), ours("g-1", 3))
    assert found[0]["refused"].endswith(
        "the pods of a group need one vgpu.dev/group-min, and these have 2, 3"
    )


@pytest.mark.parametrize(
    ("version", "metadata"),
    [
        (
            "scheduling.volcano.sh/v1beta1",
            {"annotations": {"scheduling.k8s.io/group-name": "gang"}},
        ),
        ("scheduling.x-k8s.io/v1alpha1", {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}}),
    ],
)
def test_behind_the_gate_the_words_of_others_act_with_their_pod_group(
    run: Run, version: str, metadata: Document
) -> None:
    members = [in_words(f"g-{number}", **metadata) for number in range(3)]
    group = a_group(None) | {"apiVersion": version, "spec": {"minMember": 3}}
    found = run(a_state(config=GATE), group, *members)
    assert [each["node"] for each in found] == [None, None, None]
    found = run(a_state(config=GATE), *members)
    assert [each["node"] for each in found] == ["n1", "n1", None]


def a_full_state(**rules: Any) -> Document:
    """Return two devices, each filled by a pod of priority 1."""
    pods, claims = [], []
    for number in range(2):
        pod = a_member(f"low-{number}", 16384, group="", nodeName="n1", priority=1)
        pod["metadata"]["uid"] = f"uid-{number}"
        pods.append(pod | {"status": {"phase": "Running"}})
        uuid = f"GPU-{number}"
        device = {"request": "main", "uuid": uuid, "name": uuid, "memory": "16384Mi"}
        claims.append(
            {
                "metadata": {"name": f"low-{number}", "namespace": "default"},
                "spec": {"requests": [{"name": "main", "memory": "16384Mi"}]},
                "status": {
                    "allocation": {"nodeName": "n1", "devices": [device]},
                    "reservedFor": {"podName": f"low-{number}", "podUID": f"uid-{number}"},
                },
            }
        )
    config = {"scheduling": {"preemption": {"enabled": True, **rules}}}
    return a_state(2, config=config, pods=pods, claims=claims)


def named(found: Document) -> list[str]:
    return [each["pod"] for each in found["preemption"]["victims"]]


def test_a_gang_preempts_as_a_whole(run: Run) -> None:
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    found = run(a_full_state(), a_group(2), *members)
    assert [named(each) for each in found] == [["default/low-0", "default/low-1"]] * 2
    assert found[0]["preemption"]["message"] == (
        "Would preempt default/low-0 (priority 1), default/low-1 (priority 1) on n1 for group gang"
    )
    third = a_member("g-2", 16384, priority=9)
    found = run(a_full_state(), a_group(3), *members, third)
    assert named(found[0]) == []
    assert found[0]["preemption"]["whyNot"].startswith("its group would not fit")


def test_behind_the_gate_others_make_way_for_a_group_as_a_whole(run: Run) -> None:
    state = a_full_state()
    state["config"]["scheduling"]["mode"] = "Gate"
    members = [ours(f"g-{number}", 2) for number in range(2)]
    for member in members:
        member["spec"]["priority"] = 9
    found = run(state, *members)
    # Two of 8 GiB fit on one device, so evicting one pod suffices.
    assert [len(named(each)) for each in found] == [1, 1]
    assert found[0]["preemption"]["message"].endswith(" on n1 for group gang")


def test_too_few_pods_of_a_gang_preempt_nobody(run: Run) -> None:
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    found = run(a_full_state(), a_group(3), *members)
    assert found[0]["preemption"]["whyNot"] == "too few pods of its group are there to start"
    leader = a_member("leader", priority=9)
    leader["spec"]["containers"][0]["resources"] = {}
    found = run(a_full_state(), a_group(3), leader, *members)
    assert named(found[1]) == ["default/low-0", "default/low-1"]


def test_a_member_beyond_the_minimum_preempts_alone(run: Run) -> None:
    state = a_full_state()
    state["nodes"][0]["devices"].append({"uuid": "GPU-2", "memoryMiB": 16384})
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    first, second = run(state, a_group(1), *members)[:2]
    assert first["node"] == "n1"
    assert len(named(second)) == 1
    small = [a_member(f"g-{number}", 8192, priority=9) for number in range(2)]
    found = run(state, a_group(2), *small, a_member("g-2", 16384, priority=9))
    assert [each["node"] for each in found[:2]] == ["n1", "n1"]
    assert len(named(found[2])) == 1
    assert "for group" not in found[2]["preemption"]["message"]


def test_after_a_gang_that_would_preempt_its_victims_are_ending(run: Run) -> None:
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    *_, late = run(a_full_state(), a_group(2), *members, a_member("late", group="", priority=10))
    assert (late["node"], named(late)) == (None, [])


def test_of_a_gang_without_its_pod_group_nobody_knows_who_makes_way(run: Run) -> None:
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    found = run(a_full_state(), *members)
    assert found[0]["preemption"]["notJudged"] == "PodGroup gang does not exist here"


def test_a_groups_refusal_and_its_victims_are_read_at_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [a_member(f"g-{number}", 16384, priority=9) for number in range(2)]
    (tmp_path / "state").write_text(json.dumps(a_full_state()))
    (tmp_path / "pods").write_text(yaml.safe_dump_all([a_group(2), *members]))
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pods")]
    assert main(["simulate", *files]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("Would preempt default/low-0") == 1


# Claims of the same file.


def a_claim(name: str = "c", mib: int = 8192, **spec: Any) -> Document:
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"requests": [{"name": "main", "memory": f"{mib}Mi"}], **spec},
    }


def a_user(name: str, key: str = "claim", claim: str = "c") -> Document:
    pod = a_member(name, group="")
    pod["metadata"]["annotations"] = {f"vgpu.dev/{key}": claim, "vgpu.dev/slots-added": "main"}
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    return pod


@pytest.mark.parametrize("key", ["claim", "claim-template"])
def test_a_pod_gets_what_a_claim_of_its_file_asks_for(run: Run, key: str) -> None:
    for documents in ((a_claim(), a_user("p", key)), (a_user("p", key), a_claim())):
        (found,) = run(a_state(), *documents)
        assert (found["id"], found["node"]) == ("p", "n1")
        assert found["devices"][0]["memoryMiB"] == 8192


def test_a_claim_serves_one_pod_and_a_template_as_many_as_fit(run: Run) -> None:
    users = [a_user("p"), a_user("q")]
    first, second = run(a_state(), a_claim(), *users)
    assert first["node"] == "n1"
    assert second["refused"].endswith("it serves pod p")
    users = [a_user(name, "claim-template") for name in ("p", "q", "r")]
    assert [each["node"] for each in run(a_state(), a_claim(), *users)] == ["n1", "n1", None]


def test_an_immediate_claim_is_placed_first_and_its_pod_goes_there(run: Run) -> None:
    claim = a_claim(bindingMode="Immediate")
    placed, pod = run(a_state(), a_user("p"), claim)
    assert (placed["id"], placed["node"], pod["id"], pod["node"]) == ("c", "n1", "p", "n1")
    assert pod["devices"][0]["uuid"] == placed["devices"][0]["uuid"]
    _, _, lone = run(a_state(), a_user("p"), claim, a_member("lone", 8192, group=""))
    assert lone["node"] == "n1"


def test_a_claim_that_no_pod_names_is_answered_by_itself(run: Run) -> None:
    found = run(a_state(), a_claim("other"), a_claim(), a_user("p"))
    assert [each["id"] for each in found] == ["other", "p"]


def test_a_claim_of_the_file_that_is_invalid_is_the_reason_of_its_pod(run: Run) -> None:
    claim = a_claim()
    claim["spec"]["requests"] = []
    found = run(a_state(), claim, a_user("p"), a_member("q", group=""))
    assert "spec.requests" in found[0]["refused"]
    assert found[1]["node"] == "n1"
