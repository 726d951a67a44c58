"""Pods that request devices of vendors other than NVIDIA."""

from __future__ import annotations

import pytest

from builders import a_container, a_pod
from vgpu_api.config import ClusterConfig, read_cluster_config
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec, VGPURequest
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import binding_annotations, read

CONFIG = ClusterConfig()
DCU = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 60}


def request_of(limits: dict[str, str | int], **annotations: str) -> VGPURequest:
    said = {key.replace("__", "/").replace("_", "-"): text for key, text in annotations.items()}
    said = {f"hygon.com/{key}": text for key, text in said.items()}
    demand = read(a_pod(containers=[a_container(limits=limits)], annotations=said), CONFIG)
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


def test_count_memory_and_compute_are_of_each_device() -> None:
    asked = request_of({**DCU, "hygon.com/dcunum": 2})
    assert (asked.vendor, asked.count, asked.memory, asked.cores) == ("hygon", 2, "2000Mi", 60)


def test_a_size_may_have_its_unit() -> None:
    assert request_of({**DCU, "hygon.com/dcumem": "8Gi"}).memory == "8Gi"
    assert request_of({**DCU, "hygon.com/dcumem": "2k"}).memory == "2000Mi"


def test_without_amounts_the_table_says_what_is_meant() -> None:
    asked = request_of({"hygon.com/dcunum": 2})
    assert (asked.memory, asked.memory_percent, asked.cores) == (None, 100, 100)


def test_annotations_choose_among_devices() -> None:
    asked = request_of(DCU, use_dcutype="Z100", nouse_gpuuuid="DCU-A, DCU-B")
    assert asked.selector is not None
    assert asked.selector.models == ["Z100"]
    assert asked.selector.exclude_uuids == ["DCU-A", "DCU-B"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            {"hygon.com/dcunum": 65},
            "spec.containers[0].resources.limits[hygon.com/dcunum]: Invalid value: 65: must "
            "be a number of "
            "devices, 1 to 64",
        ),
        (
            {**DCU, "hygon.com/dcumem": "1500m"},
            'spec.containers[0].resources.limits[hygon.com/dcumem]: Invalid value: "1500m": '
            "must be a size per "
            "device: a whole number of MiB, or with its unit such as 8Gi",
        ),
        (
            {**DCU, "hygon.com/dcucores": -1},
            "spec.containers[0].resources.limits[hygon.com/dcucores]: Invalid value: -1: "
            "must be a whole "
            "percentage, 0 to 100",
        ),
        (
            {**DCU, "nvidia.com/gpu": 1},
            "spec.containers[0].resources.limits[hygon.com/dcunum]: Forbidden: the container asks "
            "for nvidia.com/gpu, and has devices of one kind; ask for the others in another "
            "container of the pod",
        ),
    ],
)
def test_a_refusal_names_field_value_and_what_would_be_right(
    limits: dict[str, str | int], text: str
) -> None:
    with pytest.raises(BadInput) as caught:
        request_of(limits)
    assert str(caught.value) == text


def test_a_count_of_none_asks_for_nothing() -> None:
    assert read(a_pod(containers=[a_container(limits={"hygon.com/dcunum": 0})]), CONFIG) is None
    assert read(a_pod(containers=[a_container(limits={"hygon.com/dcumem": 9})]), CONFIG) is None


def test_a_pod_has_devices_of_several_vendors_in_containers_of_their_own() -> None:
    containers = [
        a_container("cuda", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
        a_container("dtk", limits=DCU),
    ]
    pod = a_pod(containers=containers)
    demand = read(pod, CONFIG)
    assert demand is not None
    assert demand.spec is not None
    assert [each.vendor for each in demand.spec.requests] == ["nvidia", "hygon"]
    devices = [
        {"request": "cuda", "uuid": "GPU-1", "memory": "1000Mi"},
        {"request": "dtk", "uuid": "DCU-1", "memory": "2000Mi", "cores": 60},
    ]
    allocation = Allocation.model_validate({"nodeName": "node-1", "devices": devices})
    written = binding_annotations(pod, demand.spec, allocation, node=None, unix_time=1_700_000_000)
    assert written == {
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;;",
        "hami.io/dcu-devices-allocated": ";DCU-1,DCU,2000,60:;",
        "hami.io/dcu-devices-to-allocate": ";DCU-1,DCU,2000,60:;",
        "hami.io/vgpu-node": "node-1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000000",
    }


def test_admission_gives_such_a_container_our_scheduler_and_no_slot() -> None:
    """The vendor's own plugin counts its devices; NVIDIA's are hidden from the container."""
    pod = a_pod(containers=[a_container(limits=DCU)], scheduler="")
    written = {op["path"]: op["value"] for op in mutate_pod(pod.to_wire(), CONFIG, None)}
    assert written == {
        "/spec/schedulerName": "vgpu-scheduler",
        "/spec/containers/0/env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
    }


def test_admission_writes_what_a_plugin_expects_beside_the_words() -> None:
    """A request for several Iluvatar devices means whole ones, and the container gets its name."""
    limits = {"iluvatar.ai/BI-V150-vgpu": 2, "iluvatar.ai/BI-V150.vCore": 50}
    pod = a_pod(containers=[a_container(limits=limits)])
    written = {op["path"]: op["value"] for op in mutate_pod(pod.to_wire(), CONFIG, None)}
    assert written == {
        "/spec/containers/0/resources/limits/iluvatar.ai~1BI-V150.vCore": "200",
        "/spec/containers/0/resources/requests/iluvatar.ai~1BI-V150.vCore": "200",
        "/spec/containers/0/env": [
            {"name": "SOL_CONTINER_NAME", "value": "main"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        ],
    }
    demand = read(pod, CONFIG)
    assert demand is not None
    assert demand.spec is not None
    assert (demand.spec.requests[0].count, demand.spec.requests[0].cores) == (2, 100)


NPU = "huawei.com/Ascend910B3"


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0, "16Gi"), (2000, "16Gi"), (16_384, "16Gi"), (16_385, "32Gi"), (40_000, "64Gi")],
)
def test_memory_of_an_npu_is_rounded_up_to_a_named_size(asked: int, given: str) -> None:
    assert request_of({NPU: 1, f"{NPU}-memory": asked}).memory == given


def test_an_npu_without_memory_is_a_whole_one() -> None:
    assert request_of({NPU: 2}).memory == "64Gi"


def test_admission_writes_the_rounded_memory() -> None:
    pod = a_pod(containers=[a_container(limits={NPU: 1, f"{NPU}-memory": 2000})])
    written = {op["path"]: op["value"] for op in mutate_pod(pod.to_wire(), CONFIG, None)}
    path = "/spec/containers/0/resources/limits/huawei.com~1Ascend910B3-memory"
    assert written[path] == "16384"


@pytest.mark.parametrize(
    ("limits", "annotations", "text"),
    [
        (
            {NPU: 1, f"{NPU}-memory": 70_000},
            {},
            f"spec.containers[0].resources.limits[{NPU}-memory]: Invalid value: 70000: must "
            "be at most 65536 MiB, "
            "which a device has",
        ),
        (
            {NPU: 2, f"{NPU}-memory": 2000},
            {},
            f"spec.containers[0].resources.limits[{NPU}-memory]: Invalid value: 2000: must be "
            "left out "
            "with several devices, which are never divided, or ask for one",
        ),
        (
            {NPU: 1, f"{NPU}-core": 30},
            {},
            f"spec.containers[0].resources.limits[{NPU}-core]: Forbidden: not supported, "
            "leave it out",
        ),
        (
            {NPU: 1},
            {"huawei.com/vnpu-mode": "hami-core"},
            'metadata.annotations[huawei.com/vnpu-mode]: Unsupported value: "hami-core": leave it '
            "out",
        ),
        (
            {"huawei.com/Ascend910C": 3},
            {},
            "spec.containers[0].resources.limits[huawei.com/Ascend910C]: Invalid value: 3: "
            "must be an even number "
            "of devices, or 1: they come two to a module",
        ),
    ],
)
def test_what_an_npu_cannot_give_is_refused_by_name(
    limits: dict[str, str | int], annotations: dict[str, str], text: str
) -> None:
    pod = a_pod(containers=[a_container(limits=limits)], annotations=annotations)
    with pytest.raises(BadInput) as caught:
        read(pod, CONFIG)
    assert str(caught.value) == text


def test_one_of_a_module_is_rounded_up_to_both_with_its_part_of_memory() -> None:
    """Admission's own result is read again with the same meaning."""
    limits = {"huawei.com/Ascend910C": 1, "huawei.com/Ascend910C-memory": 16_384}
    asked = request_of(limits)
    assert (asked.count, asked.memory) == (2, "16Gi")
    assert request_of({**limits, "huawei.com/Ascend910C": 2}) == asked


MTT = "mthreads.com/vgpu"
UNITS, PARTS = "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"


def test_a_part_of_a_moore_threads_device_is_counted_in_its_own_units() -> None:
    asked = request_of({MTT: 1, UNITS: 32, PARTS: 8})
    assert (asked.memory, asked.cores) == ("16Gi", 8)


@pytest.mark.parametrize("limits", [{MTT: 1}, {MTT: 2, UNITS: 4, PARTS: 1}])
def test_without_memory_or_of_several_they_are_whole_ones(limits: dict[str, str | int]) -> None:
    asked = request_of(limits)
    assert (asked.memory, asked.cores) == ("48Gi", 16)


def test_admission_writes_whole_devices_for_the_kubelet_to_count() -> None:
    pod = a_pod(containers=[a_container(limits={MTT: 2})])
    patch = {op["path"]: op["value"] for op in mutate_pod(pod.to_wire(), CONFIG, None)}
    limits = "/spec/containers/0/resources/limits/mthreads.com~1"
    assert (patch[f"{limits}sgpu-memory"], patch[f"{limits}sgpu-core"]) == ("192", "32")
    said = patch.get("/metadata/annotations") or {
        "mthreads.com/request-gpu-num": patch["/metadata/annotations/mthreads.com~1request-gpu-num"]
    }
    assert said == {"mthreads.com/request-gpu-num": "2"}


def test_a_size_that_the_plugin_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(BadInput) as caught:
        request_of({MTT: 1, UNITS: 5})
    assert str(caught.value) == (
        f"spec.containers[0].resources.limits[{UNITS}]: Unsupported value: 5: supported "
        "values: 2, 4, 8, 16, 32, 64, 96 "
        "(units of 512 MiB)"
    )


def test_a_count_of_devices_that_are_not_divided_takes_no_memory() -> None:
    asked = request_of({"birentech.com/gpu": 2})
    assert (asked.vendor, asked.count, asked.cores) == ("biren", 2, 0)
    demand = Demand.of(VGPUClaimSpec(requests=[asked]), CONFIG)
    assert (demand.requests[0].memory_mib, demand.requests[0].memory_percent) == (0, None)


def test_a_device_that_serves_one_request_at_a_time_is_given_with_all_its_compute() -> None:
    asked = request_of({"enflame.com/gcu": 1})
    assert (asked.vendor, asked.cores) == ("enflame-gcu", 100)


VXPU, VXPU_MEMORY = "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"


@pytest.mark.parametrize(
    ("memory", "given", "cores"),
    [(0, "24Gi", 25), (20_000, "24Gi", 25), (24_577, "48Gi", 50), ("96Gi", "96Gi", 100)],
)
def test_a_part_of_an_xpu_has_its_share_of_compute(
    memory: str | int, given: str, cores: int
) -> None:
    asked = request_of({VXPU: 2, VXPU_MEMORY: memory})
    assert (asked.count, asked.memory, asked.cores) == (2, given, cores)


def test_the_memory_of_a_whole_xpu_is_not_written() -> None:
    asked = request_of({VXPU: 1})
    assert (asked.memory, asked.cores) == ("96Gi", 100)
    pod = a_pod(containers=[a_container(limits={VXPU: 1})])
    assert not any("vxpu" in op["path"] for op in mutate_pod(pod.to_wire(), CONFIG, None))


def ids_of(**annotations: str) -> tuple[list[str], list[str]]:
    names = {"hami_use": "hami.io/use-xpu-uuid", "baidu_use": "baidu.com/use-gpuuuid"}
    names |= {"hami_no": "hami.io/no-use-xpu-uuid", "baidu_no": "baidu.com/nouse-gpuuuid"}
    pod = a_pod(
        containers=[a_container(limits={VXPU: 1})],
        annotations={names[key]: text for key, text in annotations.items()},
    )
    demand = read(pod, CONFIG)
    assert demand is not None
    assert demand.spec is not None
    selector = demand.spec.requests[0].selector
    assert selector is not None
    return list(selector.uuids), list(selector.exclude_uuids)


def test_both_names_of_an_annotation_hold() -> None:
    assert ids_of(hami_use="A,B", baidu_use="B,C") == (["B"], [])
    assert ids_of(baidu_use="B,C", hami_no="D", baidu_no="D,E") == (["B", "C"], ["D", "E"])


def test_two_lists_without_a_common_device_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        ids_of(hami_use="A", baidu_use="B")
    assert str(caught.value) == (
        'metadata.annotations[baidu.com/use-gpuuuid]: Invalid value: "B": none of them is in '
        "hami.io/use-xpu-uuid: write one of the two"
    )


AMD = {"amd.com/gpu": 1, "amd.com/gpumem": 16_384, "amd.com/gpucores": 25}
SERVED = ClusterConfig.model_validate({"vendors": {"leaveAlone": []}})


def test_pods_for_a_kind_that_is_left_alone_ask_for_nothing() -> None:
    """`amd.com/gpu` is also the resource of AMD's own device plugin, which registers no devices."""
    pod = a_pod(containers=[a_container(limits=AMD)], scheduler="", admitted=False)
    assert read(pod, CONFIG) is None
    assert mutate_pod(pod.to_wire(), CONFIG, None) == []
    assert "amd.com/gpu" not in CONFIG.managed_resources()
    demand = read(pod, SERVED)
    assert demand is not None
    assert demand.spec is not None
    assert (demand.spec.requests[0].memory, demand.spec.requests[0].cores) == ("16Gi", 25)
    assert SERVED.managed_resources()["amd.com/gpu"] is True


@pytest.mark.parametrize("percent", [0, 101])
def test_a_percentage_of_compute_units_is_1_to_100(percent: int) -> None:
    pod = a_pod(containers=[a_container(limits={**AMD, "amd.com/gpucores": percent})])
    with pytest.raises(BadInput) as caught:
        read(pod, SERVED)
    assert str(caught.value) == (
        f"spec.containers[0].resources.limits[amd.com/gpucores]: Invalid value: {percent}: "
        "must be a whole percentage, 1 to 100"
    )


def test_only_a_kind_of_device_that_there_is_can_be_left_alone() -> None:
    with pytest.raises(BadInput, match=r"vendors\.leaveAlone: .* teco is no kind of device"):
        read_cluster_config({"vendors": {"leaveAlone": ["teco"]}})


CORES, NEURONS = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ({CORES: 1}, (1, 50)),
        ({CORES: 2}, (1, 100)),
        ({CORES: 8}, (4, 100)),
        ({NEURONS: 1}, (1, 100)),
        ({NEURONS: 4}, (4, 100)),
    ],
)
def test_cores_are_shares_of_a_device_or_whole_devices(
    limits: dict[str, str | int], asked: tuple[int, int]
) -> None:
    request = request_of(limits)
    assert (request.vendor, request.count, request.cores) == ("aws-neuron", *asked)
    assert (request.memory, request.memory_percent) == (None, None)


def test_cores_that_do_not_fill_devices_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        request_of({CORES: 3})
    assert str(caught.value) == (
        f"spec.containers[0].resources.limits[{CORES}]: Invalid value: 3: "
        "must be at most 2, or a multiple of it"
    )


def test_a_pod_asks_for_cores_or_for_whole_devices() -> None:
    containers = [a_container("a", limits={CORES: 1}), a_container("b", limits={NEURONS: 1})]
    with pytest.raises(BadInput) as caught:
        read(a_pod(containers=containers), CONFIG)
    assert str(caught.value) == (
        f"spec.containers[0].resources.limits[{CORES}]: Forbidden: "
        f"spec.containers[1].resources.limits[{NEURONS}] asks for whole devices: a pod asks for "
        "devices or for cores, since the vendor's device plugin reads one list of numbers"
    )
