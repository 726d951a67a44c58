"""The engine reads only the fields of a pod that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_operator.engine.gpu_pod import gpu_pod_of
from vgpu_operator.engine.pod_reading import PodReader
from vgpu_operator.node_filter import HostDemand

CONFIG = ClusterConfig()

amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "example.com/nic", "nvidia.com/gpu", "nvidia.com/gpumem"]),
    st.sampled_from(["1", "250m", "2"]),
    max_size=3,
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "c"])},
        optional={
            "resources": st.fixed_dictionaries(
                {}, optional={"limits": amounts, "requests": amounts}
            ),
            "restartPolicy": st.just("Always"),
            "ports": st.just([{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]),
            "env": st.just([{"name": "A", "value": "b"}]),
        },
    ),
    max_size=3,
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p"), "namespace": st.just("ns"), "uid": st.just("u")},
            optional={
                "annotations": st.sampled_from(
                    [{}, {"a": "b"}, {"vgpu.dev/claim": "c"}, {"vgpu.dev/claim-template": "t"}]
                ),
                "labels": st.just({"app": "x"}),
                "ownerReferences": st.just([{"kind": "Job"}, {"kind": "DaemonSet"}]),
                "deletionTimestamp": st.just("2026-01-01T00:00:00Z"),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": containers},
            optional={
                "initContainers": containers,
                "nodeName": st.just("n1"),
                "overhead": amounts,
                "resources": st.fixed_dictionaries({"requests": amounts}),
                "volumes": st.just([{"name": "v", "persistentVolumeClaim": {"claimName": "d"}}]),
                "affinity": st.just(
                    {
                        "podAntiAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "labelSelector": {"matchLabels": {"app": "x"}},
                                    "topologyKey": "kubernetes.io/hostname",
                                }
                            ]
                        }
                    }
                ),
            },
        ),
        "status": st.fixed_dictionaries({"phase": st.sampled_from(["Pending", "Succeeded"])}),
    }
)


@given(raw=pods, has_room=st.booleans())
def test_the_engine_sees_of_a_pod_what_it_would_see_of_all_its_fields(
    raw: dict[str, Any], has_room: bool
) -> None:
    whole = Pod.model_validate(raw)
    asks = gpu_pod_of(whole, CONFIG)
    found = PodReader(CONFIG, has_room=has_room).read(raw)
    assert (gpu_pod_of(found, CONFIG) is None) == (asks is None)
    if asks is not None:
        assert found == whole
        return
    assert (found.is_terminal, found.spec.node_name) == (whole.is_terminal, whole.spec.node_name)
    assert found.metadata.deletion_timestamp == whole.metadata.deletion_timestamp
    daemons = [
        any(o.kind == "DaemonSet" for o in p.metadata.owner_references) for p in (found, whole)
    ]
    assert daemons[0] == daemons[1]
    if whole.is_bound:
        mine, of_all = HostDemand.of(found), HostDemand.of(whole)
        assert dict(mine.amounts).get("cpu") == dict(of_all.amounts).get("cpu")
        if has_room:
            assert mine == of_all


def test_a_pod_keeps_what_it_asked_for_when_its_words_go() -> None:
    reader = PodReader(CONFIG, has_room=False)
    raw = a_raw_pod(annotations={"vgpu.dev/claim": "c"})
    first = reader.read(raw)
    raw["metadata"]["annotations"] = {}
    assert reader.read(raw).spec == first.spec


@pytest.mark.parametrize(
    ("change", "is_decoded"),
    [
        pytest.param({}, False, id="nothing but metadata"),
        pytest.param({"generation": 3}, True, id="another generation"),
        pytest.param({"nodeName": "n1"}, True, id="a node"),
        pytest.param({"schedulingGates": [{"name": "g"}]}, True, id="a gate"),
    ],
)
def test_an_unchanged_generation_is_not_decoded_again(
    change: dict[str, Any], is_decoded: bool
) -> None:
    reader = PodReader(CONFIG, has_room=False)
    raw = a_raw_pod(annotations={"vgpu.dev/claim": "c"}, generation=2)
    first = reader.read(raw)
    raw["metadata"].update(annotations={"vgpu.dev/claim": "d"}, resourceVersion="9")
    raw["metadata"]["generation"] = change.pop("generation", 2)
    raw["spec"].update(change)
    again = reader.read(raw)
    assert again == Pod.model_validate(raw)
    assert (again.spec is not first.spec) == is_decoded


def a_raw_pod(*, annotations: dict[str, str] | None = None, generation: int = 0) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    return {
        "metadata": {**metadata, "annotations": annotations or {}, "generation": generation},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Pending"},
    }


def with_variables(raw: dict[str, Any]) -> None:
    raw["spec"]["containers"][0]["env"] = [
        {"name": f"V{number}", "value": "x" * 16} for number in range(25_000)
    ]


def with_containers(raw: dict[str, Any]) -> None:
    raw["spec"]["containers"] = [
        {"name": f"c{number}", "image": "i", "resources": {"limits": {"memory": "1Mi"}}}
        for number in range(14_000)
    ]


def with_tolerations(raw: dict[str, Any]) -> None:
    raw["spec"]["tolerations"] = [
        {"key": f"key-{number}", "operator": "Exists", "effect": "NoSchedule"}
        for number in range(15_000)
    ]


def with_owners(raw: dict[str, Any]) -> None:
    raw["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": f"owner-{number}", "uid": f"{number:036}"}
        for number in range(9_000)
    ]


@pytest.mark.parametrize("node", ["", "n1"])
@pytest.mark.parametrize("large", [with_variables, with_containers, with_tolerations, with_owners])
def test_a_large_pod_that_asks_for_no_device_costs_less_than_its_json(
    large: Callable[[dict[str, Any]], None], node: str
) -> None:
    """Reading all fields would cost 5 to 20 times as much as parsing the JSON."""
    raw = a_raw_pod()
    large(raw)
    raw["spec"]["nodeName"] = node
    text = orjson.dumps(raw)
    assert len(text) > 0.9e6
    reader = PodReader(CONFIG, has_room=False)
    parsing = min(took(lambda: orjson.loads(text)) for _ in range(5))
    reading = min(took(lambda: reader.read(raw)) for _ in range(5))
    assert reading < 2 * parsing + 0.001


def took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
