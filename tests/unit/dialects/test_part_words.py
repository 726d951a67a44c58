"""Pods that request parts of Enflame GCUs, by their size or by memory and compute."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import a_container, a_pod
from vgpu_api.config import ClusterConfig
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.demand import Demand, PartDemand
from vgpu_operator.dialects import read
from vgpu_operator.engine.claims.status import summary

CONFIG = ClusterConfig()
SIZE, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
Limits = Mapping[str, str | int]


def request_of(limits: Limits, annotations: Mapping[str, str] | None = None) -> VGPURequest:
    pod = a_pod(containers=[a_container(limits=limits)], annotations=annotations or {})
    demand = read(pod, CONFIG)
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


def asked(request: VGPURequest) -> tuple[int | None, int | None, str | None, int | None]:
    return request.part_size, request.part_memory, request.memory, request.cores


@pytest.mark.parametrize(
    ("limits", "means"),
    [
        ({SIZE: 3}, (3, None, None, None)),
        ({SIZE: "3", MEMORY: 8, CORES: 400}, (3, None, None, None)),
        ({MEMORY: 20_480, CORES: 40}, (None, 20_480, None, 40)),
        ({MEMORY: "20k"}, (None, 20_000, None, 0)),
        ({MEMORY: "20Gi"}, (None, None, "20Gi", 0)),
        ({MEMORY: "512Mi", CORES: 1}, (None, None, "512Mi", 1)),
        ({CORES: 100}, (None, 1, None, 100)),
        ({SIZE: 0, CORES: 100}, (None, 1, None, 100)),
    ],
)
def test_a_part_is_asked_for_by_its_size_or_by_what_it_has(
    limits: Limits, means: tuple[int | None, int | None, str | None, int | None]
) -> None:
    request = request_of(limits)
    assert (request.vendor, request.count) == ("enflame-drs", 1)
    assert asked(request) == means


def test_devices_are_chosen_by_their_annotations() -> None:
    chosen = {"enflame.com/use-gpuuuid": "a, b", "enflame.com/nouse-gpuuuid": "c"}
    selector = request_of({SIZE: 1}, chosen).selector
    assert selector is not None
    assert (selector.uuids, selector.exclude_uuids) == (["a", "b"], ["c"])


@pytest.mark.parametrize(
    ("limits", "name", "text"),
    [
        ({SIZE: -1}, SIZE, "Invalid value: -1: must be the size of a part, 1 to 1000"),
        ({SIZE: 1001}, SIZE, "Invalid value: 1001: must be the size of a part, 1 to 1000"),
        ({SIZE: "1500m"}, SIZE, 'Invalid value: "1500m": must be the size of a part, 1 to 1000'),
        (
            {MEMORY: 0, CORES: 40},
            MEMORY,
            "Invalid value: 0: must be a whole number of GiB or MiB from 1 on, or with its unit "
            "such as 8Gi",
        ),
        ({MEMORY: "1.5"}, MEMORY, 'Invalid value: "1.5": must be a whole number of GiB or MiB'),
        ({MEMORY: "much"}, MEMORY, 'Invalid value: "much": must be a whole number of GiB or MiB'),
        ({MEMORY: "0Gi", CORES: 1}, MEMORY, 'Invalid value: "0Gi": must be a size of at least'),
        ({CORES: 101}, CORES, "Invalid value: 101: must be a whole percentage, 1 to 100"),
        ({MEMORY: 8, CORES: 0}, CORES, "Invalid value: 0: must be a whole percentage, 1 to 100"),
    ],
)
def test_amounts_that_no_part_has_are_refused_by_name(limits: Limits, name: str, text: str) -> None:
    with pytest.raises(BadInput) as refused:
        request_of(limits)
    assert str(refused.value).startswith(f"spec.containers[0].resources.limits[{name}]: {text}")


def test_a_container_that_asks_for_none_asks_for_nothing() -> None:
    pod = a_pod(containers=[a_container(limits={SIZE: 0, MEMORY: "0"})])
    assert read(pod, CONFIG) is None


def test_admission_writes_no_amounts() -> None:
    """The device's part is chosen on the node."""
    for limits in ({SIZE: 3}, {MEMORY: 20_480}):
        raw = a_pod(containers=[a_container(limits=limits)]).to_wire()
        touched = {operation["path"] for operation in mutate_pod(raw, CONFIG, None)}
        assert not any("resources" in path or "annotations" in path for path in touched)


@pytest.mark.parametrize(
    ("limits", "part", "memory_mib", "cores", "said"),
    [
        ({SIZE: 3}, PartDemand(3), 1, 0, "1 × part of size 3"),
        ({MEMORY: 8, CORES: 40}, PartDemand(0, 8), 1, 40, "1 × part with 8 GiB or MiB, 40 %"),
        ({MEMORY: "8Gi"}, PartDemand(), 8192, 0, "1 × 8Gi"),
    ],
)
def test_what_a_part_takes_is_not_known_before_a_node_is(
    limits: Limits, part: PartDemand, memory_mib: int, cores: int, said: str
) -> None:
    pod = a_pod(containers=[a_container(limits=limits)])
    found = read(pod, CONFIG)
    assert found is not None
    assert found.spec is not None
    (request,) = Demand.of(found.spec, CONFIG).requests
    assert (request.part, request.memory_mib, request.cores) == (part, memory_mib, cores)
    assert summary(found.spec) == said


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vendor": "nvidia", "partSize": 1}, "not for NVIDIA's devices"),
        ({"vendor": "nvidia", "partMemory": 1}, "not for NVIDIA's devices"),
        ({"partSize": 1, "partMemory": 1}, "give no amount beside it"),
        ({"partSize": 1, "cores": 10}, "give no amount beside it"),
        ({"partSize": 1, "memory": "1Gi"}, "give memory, memoryPercent, partMemory or partSize"),
        ({"partMemory": 1, "memoryPercent": 5}, "give memory, memoryPercent, partMemory or"),
    ],
)
def test_a_claim_has_one_word_for_a_part(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        VGPURequest.model_validate({"vendor": "enflame-drs", **fields})
