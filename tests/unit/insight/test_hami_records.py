"""HAMi's records are read as HAMi reads them, and a record that contradicts its pod is refused.

The records have the form that HAMi v2.10 writes; they were written for these tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from builders import a_container, a_pod
from vgpu_api.core.pod import Container, ContainerStatus, Pod
from vgpu_api.errors import BadInput
from vgpu_operator.insight.hami_records import (
    RecordedGpu,
    RegisteredGpu,
    is_recorded,
    read_record,
    read_register,
)

COUNT = "nvidia.com/gpu"
A, B = (
    "GPU-03f69c50-207a-2038-9b45-23cac89cb67d",
    "GPU-1afede84-4e70-2174-49af-f07ebb94d1ae",
)
REGISTER = "hami.io/node-nvidia-register"


def registered(**changed: Any) -> Mapping[str, Any]:
    return {
        "id": A,
        "index": 1,
        "count": 10,
        "devmem": 46068,
        "devcore": 100,
        "type": "NVIDIA-NVIDIA A40",
        "mode": "hami-core",
        "health": True,
        **changed,
    }


def a_hami_pod(
    record: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    ended: tuple[str, ...] = (),
    phase: str = "Running",
    **annotations: str,
) -> Pod:
    pod = a_pod(
        node="n1",
        phase=phase,
        admitted=False,
        containers=containers or [asking()],
        init_containers=init,
        annotations={
            "hami.io/vgpu-devices-allocated": record,
            "hami.io/vgpu-node": "n1",
            "hami.io/bind-phase": "success",
            **{f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()},
        },
    )
    statuses = [ContainerStatus(name=name, state={"terminated": {"exitCode": 0}}) for name in ended]
    status = pod.status.model_copy(update={"init_container_statuses": statuses})
    return pod.model_copy(update={"status": status})


def asking(name: str = "main", count: int = 1, **fields: Any) -> Container:
    return a_container(name, limits={COUNT: count} if count else {}, **fields)


def used(pod: Pod) -> dict[str, list[RecordedGpu]]:
    found = read_record(pod, count_resource=COUNT)
    return {name: list(devices) for name, devices in found.containers.items()}


def refusal(pod: Pod) -> str:
    with pytest.raises(BadInput) as refused:
        read_record(pod, count_resource=COUNT)
    return str(refused.value)


# The register of a node.


def test_a_register_in_json_is_read():
    text = json.dumps([registered(), registered(id=B, index=0, mode="mig")])
    assert read_register({REGISTER: text}) == [
        RegisteredGpu(A, 1, 10, 46068, 100, "hami-core"),
        RegisteredGpu(B, 0, 10, 46068, 100, "mig"),
    ]


def test_a_register_of_a_former_version_is_read():
    text = (
        f"{A},10,46068,100,NVIDIA-NVIDIA A40,0,true:"
        f"{B},5,15360,100,NVIDIA-Tesla T4,0,true,1,hami-core:"
    )
    assert read_register({REGISTER: text}) == [
        RegisteredGpu(A, 0, 10, 46068, 100, ""),
        RegisteredGpu(B, 1, 5, 15360, 100, "hami-core"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Required value: HAMi's device plugin has not registered"),
        ("[]", "must be a list with at least one GPU"),
        ("nonsense", "must be a list of GPUs"),
        (f"{A},10,46068:", "must be a list of GPUs"),
        ('[{"id": "x"}]', "must be a list of GPUs"),
        ("[" * 3000, "must be a list of GPUs"),
        (json.dumps([registered(devmem=0)]), "must be a list of GPUs"),
        (json.dumps([registered(), registered()]), "names a GPU twice"),
    ],
)
def test_a_register_that_cannot_be_read_is_refused(text: str, said: str):
    with pytest.raises(BadInput) as refused:
        read_register({REGISTER: text})
    assert str(refused.value).startswith(f"metadata.annotations[{REGISTER}]: ")
    assert said in str(refused.value)


# The record of a pod.


def test_each_container_has_its_part():
    record = f"{A},NVIDIA,4096,30:;;{A},NVIDIA,1024,0:{B},NVIDIA,1024,0:;"
    pod = a_hami_pod(record, asking("one"), asking("none", 0), asking("two", 2))
    assert used(pod) == {
        "one": [RecordedGpu(A, 4096, 30)],
        "two": [RecordedGpu(A, 1024, 0), RecordedGpu(B, 1024, 0)],
    }


def test_init_containers_come_first_and_those_that_have_ended_use_nothing():
    record = f"{A},NVIDIA,8000,0:;{A},NVIDIA,4096,30:;"
    pod = a_hami_pod(record, init=(asking("first"),), ended=("first",))
    assert used(pod) == {"main": [RecordedGpu(A, 4096, 30)]}
    assert not read_record(pod, count_resource=COUNT).is_starting


def test_a_version_that_does_not_record_init_containers_is_read():
    pod = a_hami_pod(f"{A},NVIDIA,4096,30:;", init=(asking("first", 0),), ended=("first",))
    assert used(pod) == {"main": [RecordedGpu(A, 4096, 30)]}


def test_a_sidecar_goes_on_using_its_part():
    record = f"{A},NVIDIA,2048,0:;{A},NVIDIA,4096,30:;"
    sidecar = asking("beside", restart_policy="Always")
    pod = a_hami_pod(record, init=(sidecar,))
    assert list(used(pod)) == ["beside", "main"]
    assert not read_record(pod, count_resource=COUNT).is_starting


@pytest.mark.parametrize(
    "pod",
    [
        a_hami_pod(f"{A},NVIDIA,4096,30:;", bind_phase="allocating"),
        a_hami_pod(f"{A},NVIDIA,4096,30:;", phase="Pending"),
        a_hami_pod(f"{A},NVIDIA,8000,0:;{A},NVIDIA,4096,30:;", init=(asking("first"),)),
    ],
)
def test_a_pod_whose_containers_still_get_their_devices_is_starting(pod: Pod):
    assert read_record(pod, count_resource=COUNT).is_starting


def test_a_pod_of_ours_has_the_same_annotation_and_is_not_hamis():
    ours = a_pod(annotations={"hami.io/vgpu-devices-allocated": f"{A},NVIDIA,1,0:;"})
    assert not is_recorded(ours)
    assert is_recorded(a_hami_pod(f"{A},NVIDIA,1,0:;"))
    assert not is_recorded(a_pod(admitted=False))


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (a_hami_pod(f"{A},NVIDIA,4096,30:;;;"), "has 3 parts, and the pod has 1 containers"),
        (a_hami_pod(f"{A},NVIDIA,4096:;"), "must be UUID,vendor,MiB,cores: for each GPU"),
        (a_hami_pod(f"{A},NVIDIA,much,30:;"), "must be UUID,vendor,MiB,cores: for each GPU"),
        (a_hami_pod(f"{A},NVIDIA,0,30:;"), f"{A},NVIDIA,0,30: no GPU has such amounts"),
        (a_hami_pod(f"{A},NVIDIA,1,130:;"), "no GPU has such amounts"),
        (a_hami_pod(",NVIDIA,1,30:;"), "no GPU has such amounts"),
        (a_hami_pod(";", asking(count=0)), "names no GPU"),
        (a_hami_pod(f"{A},NVIDIA,1,0:;", asking(count=2)), "main asks for 2 GPUs and has 1"),
        (a_hami_pod(f"{A},NVIDIA,1,0:{A},NVIDIA,1,0:;", asking(count=2)), "has a GPU twice"),
        (
            a_hami_pod(f"{A},NVIDIA,1,0:{B},NVIDIA,2,0:;", asking(count=2)),
            "container main has different amounts of its GPUs",
        ),
        (
            a_hami_pod(f"{A},NVIDIA,1,0:;", vgpu_node="n2"),
            'metadata.annotations[hami.io/vgpu-node]: Invalid value: "n2": the pod runs on node n1',
        ),
        (
            a_hami_pod(f"{A},NVIDIA,1,0:;", vgpu_mig_allocations="[{}]"),
            "HAMi made a MIG instance for the pod",
        ),
    ],
)
def test_a_record_that_contradicts_itself_or_the_pod_is_refused(pod: Pod, said: str):
    assert said in refusal(pod)
