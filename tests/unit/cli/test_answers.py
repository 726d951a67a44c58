"""Every field of an answer, for pods in every dialect, for several containers and for claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpu_operator.cli.__main__ import main

A_CLAIM: dict[str, Any] = {
    "kind": "VGPUClaim",
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {"requests": [{"memory": "4Gi", "cores": 20}]},
}
STATE: dict[str, Any] = {
    "nodes": [
        {
            "name": "a",
            "devices": [
                {"uuid": "GPU-0", "memoryMiB": 40_000, "numa": 0},
                {"uuid": "GPU-1", "memoryMiB": 80_000, "numa": 1, "coresUsed": 10, "slotsUsed": 1},
            ],
        },
        {"name": "b", "devices": [{"uuid": "GPU-2", "memoryMiB": 16_000, "vendor": "NVIDIA"}]},
    ],
    "claims": [A_CLAIM],
}


def a_raw_pod(*containers: dict[str, Any], init: Any = (), **annotations: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {key.replace("__", "/"): text for key, text in annotations.items()},
        },
        "spec": {"containers": list(containers), "initContainers": list(init)},
    }


def hami(name: str, count: int = 1, **amounts: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": count, **{f"nvidia.com/{key}": v for key, v in amounts.items()}}
    return {"name": name, "resources": {"limits": limits}}


def asks(name: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}}


@pytest.fixture
def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def answer(document: Any, state: Any = STATE) -> Callable[..., dict[str, Any]]:
        (tmp_path / "state").write_text(json.dumps(state))
        (tmp_path / "pod").write_text(json.dumps(document))
        files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pod")]
        assert main(["simulate", "-o", "json", *files]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        fields = ["id", "node", "requests", "devices", "refused", "nodes"]
        fields += ["preemption"] if found["refused"] else []
        assert [name for name in found if name != "warnings"] == fields
        for node in found["nodes"].values():
            assert list(node) == ["score", "reasons", "order", "deviceScores"]
            assert sorted(node["order"]) == sorted(node["deviceScores"])
        return found

    return answer


def request(container: str, **fields: Any) -> dict[str, Any]:
    amounts = {"phase": "App", "count": 1, "memoryMiB": None, "memoryPercent": None, "cores": 0}
    return {"container": container, **amounts, "vendor": "nvidia", "mode": "Any", **fields}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (hami("m", gpumem="4k"), {"memoryMiB": 4000}),
        (hami("m", gpumem="10M"), {"memoryMiB": 10_000_000}),
        (hami("m", gpumem="16Gi"), {"memoryMiB": 16384}),
        (hami("m", 2, gpumem="4096"), {"count": 2, "memoryMiB": 4096}),
        (hami("m", **{"gpumem-percentage": 25}), {"memoryPercent": 25}),
        (hami("m", **{"gpumem-percentage": 250}), {"memoryPercent": 100, "cores": 100}),
        (hami("m", gpumem=1, **{"gpumem-percentage": 25}), {"memoryMiB": 1}),
        (hami("m", gpumem=1, gpucores=250), {"memoryMiB": 1, "cores": 100}),
        (hami("m"), {"memoryPercent": 100, "cores": 100}),
        (hami("m", gpucores=30), {"memoryPercent": 100, "cores": 30}),
        (asks("m", **{"nvidia.com/gpumem": 9}), {"memoryMiB": 9}),
        (asks("m", **{"nvidia.com/gpucores": 9}), {"memoryPercent": 100, "cores": 9}),
        (asks("m", **{"aliyun.com/gpu-mem": 3}), {"memoryMiB": 3072}),
        (
            asks("m", **{"aliyun.com/gpu-mem": 3, "aliyun.com/gpu-core.percentage": 40}),
            {"memoryMiB": 3072, "cores": 40},
        ),
        (
            asks("m", **{"aliyun.com/gpu-count": 2}),
            {"count": 2, "memoryPercent": 100, "cores": 100},
        ),
        (
            asks("m", **{"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": "2k"}),
            {"count": 2, "memoryMiB": 2000},
        ),
        (
            asks("m", **{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 50}),
            {"memoryPercent": 50},
        ),
    ],
)
def test_requests_are_told_in_one_unit_whatever_the_dialect(
    answer: Callable[..., dict[str, Any]], container, expected
):
    assert answer(a_raw_pod(container))["requests"] == [request("m", **expected)]


def test_each_container_that_asks_has_its_request_and_its_devices_init_containers_first(
    answer: Callable[..., dict[str, Any]],
):
    pod = a_raw_pod(
        asks("idle"),
        hami("first", gpumem=1000, gpucores=5),
        asks("second", **{"aliyun.com/gpu-mem": 2}),
        asks("third", **{"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 500}),
        init=[
            hami("prepare", **{"gpumem-percentage": 50}),
            {**hami("beside", gpumem=700), "restartPolicy": "Always"},
        ],
    )
    found = answer(pod)
    told = [(each["container"], each["phase"], each["count"]) for each in found["requests"]]
    assert told == [
        ("prepare", "Init", 1), ("beside", "App", 1),
        ("first", "App", 1), ("second", "App", 1), ("third", "App", 2),
    ]  # fmt: skip
    devices = [(each["container"], each["memoryMiB"], each["cores"]) for each in found["devices"]]
    assert [name for name, _, _ in devices] == [
        "prepare", "beside", "first", "second", "third", "third",
    ]  # fmt: skip
    assert [memory for _, memory, _ in devices[1:]] == [700, 1000, 2048, 500, 500]
    assert [cores for _, _, cores in devices] == [0, 0, 5, 0, 0, 0]
    assert {each["uuid"] for each in found["devices"][-2:]} == {"GPU-0", "GPU-1"}


def test_a_percentage_is_told_as_asked_and_resolved_on_each_device(
    answer: Callable[..., dict[str, Any]],
):
    found = answer(a_raw_pod(hami("m", 2, **{"gpumem-percentage": 33})))
    assert found["requests"][0]["memoryPercent"] == 33
    amounts = {device["uuid"]: device["memoryMiB"] for device in found["devices"]}
    assert amounts == {"GPU-0": 13_200, "GPU-1": 26_400}


def test_devices_are_taken_from_the_end_of_the_order_that_is_shown(
    answer: Callable[..., dict[str, Any]],
):
    found = answer(a_raw_pod(hami("m", gpumem=1000)))
    assert found["nodes"]["a"]["order"][-1] == found["devices"][0]["uuid"] == "GPU-0"
    scores = found["nodes"]["a"]["deviceScores"]
    assert scores == {
        "GPU-0": 10 * (1 / 10 + 0 + 1000 / 40_000),
        "GPU-1": round(10 * (2 / 10 + 10 / 100 + 1000 / 80_000), 6),
    }
    assert found["nodes"]["a"]["score"] == round(10 * (1 / 20 + 10 / 200), 6)


def test_a_claim_that_names_no_container_is_told_by_the_container_that_gets_it(
    answer: Callable[..., dict[str, Any]],
):
    pod = a_raw_pod(
        asks("beside"),
        hami("main"),
        **{"vgpu.dev__claim": "c", "vgpu.dev__slots-added": "main"},
    )
    found = answer(pod)
    assert [each["container"] for each in found["requests"]] == ["main"]
    assert [each["container"] for each in found["devices"]] == ["main"]
    assert answer(A_CLAIM)["devices"][0]["container"] == ""


def a_state_where_it_holds(pod_name: str) -> dict[str, Any]:
    allocation = {
        "nodeName": "b",
        "devices": [{"uuid": "GPU-2", "name": "d", "memory": "4Gi", "cores": 20}],
    }
    reserved = {"podName": pod_name, "podUid": "u"}
    status = {"allocation": allocation, "reservedFor": reserved}
    return {**STATE, "claims": [{**A_CLAIM, "status": status}]}


NAMES_IT = a_raw_pod(hami("m"), **{"vgpu.dev__claim": "c", "vgpu.dev__slots-added": "m"})


def test_a_pod_whose_claim_holds_devices_already_has_those(answer: Callable[..., dict[str, Any]]):
    found = answer(NAMES_IT, a_state_where_it_holds("p"))
    assert (found["node"], found["refused"]) == ("b", None)
    assert found["devices"] == [{"container": "m", "uuid": "GPU-2", "memoryMiB": 4096, "cores": 20}]
    assert found["nodes"]["a"]["reasons"] == "1/1 ReservedElsewhere"
    assert found["nodes"]["b"]["reasons"] == ""


def test_a_claim_that_serves_another_pod_serves_no_second_and_none_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for served, placed in (("p", 2), ("other", 0)):
        (tmp_path / "state").write_text(json.dumps(a_state_where_it_holds(served)))
        (tmp_path / "many").write_text("\n".join([json.dumps(NAMES_IT)] * 2))
        files = ["--state", str(tmp_path / "state"), "--many", str(tmp_path / "many")]
        assert main(["simulate", "-o", "json", *files]) == 0
        *_, summary = map(json.loads, capsys.readouterr().out.splitlines())
        assert summary["placed"] == placed
        assert summary["utilisation"]["memory"] == round(100 * 4096 / 136_000, 2)


@pytest.mark.parametrize(
    ("label", "container", "device"),
    [
        ("binpack", asks("m", **{"aliyun.com/gpu-mem": 2}), "GPU-1"),
        ("spread", asks("m", **{"aliyun.com/gpu-mem": 2}), "GPU-0"),
        ("binpack", hami("m", gpumem=2048), "GPU-0"),
    ],
)
def test_acks_label_of_a_node_decides_for_pods_in_acks_words_alone(
    answer: Callable[..., dict[str, Any]], label, container, device
):
    labels = {"ack.node.gpu.placement": label}
    state = {**STATE, "nodes": [{**STATE["nodes"][0], "labels": labels}]}
    found = answer(a_raw_pod(container), state)
    assert found["devices"][0]["uuid"] == found["nodes"]["a"]["order"][-1] == device


@pytest.mark.parametrize("count", [1, 2])
def test_where_nodes_with_one_numa_node_go_first_the_order_is_that_of_one_numa_node(
    answer: Callable[..., dict[str, Any]], count
):
    """The devices are on NUMA nodes 0, 1 and 1; the first is the emptiest."""
    devices = [
        {"uuid": f"GPU-{at}", "memoryMiB": 40_000, "numa": min(at, 1), "coresUsed": 10 * at}
        for at in range(3)
    ]
    pod = a_raw_pod(
        hami("m", count, gpumem=1000), **{"hami.io__node-scheduler-policy": "numa-first"}
    )
    found = answer(pod, {"nodes": [{"name": "a", "devices": devices}]})
    assert found["nodes"]["a"]["order"] == ["GPU-0", "GPU-2", "GPU-1"]
    taken = [device["uuid"] for device in found["devices"]]
    assert taken == ["GPU-1", "GPU-2"][:count]
