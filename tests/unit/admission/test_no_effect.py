from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.vendors import NOT_SERVED
from vgpu_operator.admission.rules.no_effect import (
    CHOOSING,
    WITHOUT_EFFECT,
    unanswered,
    without_effect,
)
from vgpu_operator.admission.rules.warnings import misspelt

OLD_GROUP = "pod-group.scheduling.sigs.k8s.io"
HAMI_READS = (
    "ACTIVE_OOM_KILLER",
    "CUDA_REDIRECT",
    "CUDA_TASK_PRIORITY",
    "LIBCUDA_LOG_LEVEL",
    "RECORD_KERNEL_INTERVAL",
)
"""Variables that HAMi-core reads, except those that are refused or honoured here."""


def a_pod(*variables: str, gpu: int = 1, **metadata: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpu} if gpu else {}
    env = [{"name": name, "value": "1"} for name in variables]
    container = {"name": "main", "env": env, "resources": {"limits": limits}}
    return {"metadata": {"name": "p", **metadata}, "spec": {"containers": [container]}}


@pytest.mark.parametrize(
    "name", [*HAMI_READS, "CUDA_OVERSUBSCRIBE", "CUDA_MEM_LIMIT", "CUDA_CORE_LIMIT"]
)
def test_a_variable_that_hami_reads_and_we_do_not_is_named_in_a_warning(name: str) -> None:
    (warning,) = without_effect(a_pod(name), ClusterConfig())
    assert warning.startswith(f"spec.containers[0].env[{name}]: has no effect: ")


def test_no_warning_is_cut_by_the_api_server() -> None:
    for name in WITHOUT_EFFECT:
        (warning,) = without_effect(a_pod(name), ClusterConfig())
        assert len(warning) <= 256


def test_init_containers_are_warned_of_too() -> None:
    pod = a_pod()
    env = [{"name": "CUDA_OVERSUBSCRIBE", "value": "true"}]
    pod["spec"]["initContainers"] = [{"name": "first", "env": env}]
    (warning,) = without_effect(pod, ClusterConfig())
    assert warning.startswith("spec.initContainers[0].env[CUDA_OVERSUBSCRIBE]")


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("GPU_CORE_UTILIZATION_POLICY", "CUDA_VISIBLE_DEVICES", "VGPU_LOG_LEVEL"),
        a_pod("CUDA_TASK_PRIORITY", gpu=0),
        a_pod("CUDA_TASK_PRIORITY", labels={"hami.io/webhook": "ignore"}),
        {"spec": "nonsense"},
    ],
)
def test_what_acts_or_is_none_of_ours_gets_no_warning(pod: dict[str, Any]) -> None:
    assert without_effect(pod, ClusterConfig()) == []


ACK_LABEL = "aliyun.com/gpu-count"
NUMA_SPEC = "scheduling.alibabacloud.com/numa-topology-spec"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"annotations": {"cpuset-scheduler": "required"}},
            "metadata.annotations[cpuset-scheduler]: has no effect: the kubelet pins CPUs, with "
            "cpuManagerPolicy static and whole CPUs as requests and limits",
        ),
        (
            {"annotations": {"volcano.sh/vgpu-mode": "mig"}},
            "metadata.annotations[volcano.sh/vgpu-mode]: has no effect: no container asks for "
            "volcano.sh/vgpu-number; write nvidia.com/vgpu-mode",
        ),
        (
            {"labels": {ACK_LABEL: "2"}},
            "metadata.labels[aliyun.com/gpu-count]: has no effect: it spreads aliyun.com/gpu-mem "
            "over several GPUs, and no container asks for that",
        ),
    ],
)
def test_words_of_other_schedulers_without_effect_are_named(
    metadata: dict[str, Any], said: str
) -> None:
    assert without_effect(a_pod(**metadata), ClusterConfig()) == [said]
    assert len(said) <= 256


def in_words(limits: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    pod = a_pod(**metadata)
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    return pod


def test_the_same_words_get_no_warning_where_they_act() -> None:
    config = ClusterConfig()
    volcanos = in_words(
        {"volcano.sh/vgpu-number": 1}, annotations={"volcano.sh/vgpu-mode": "hami-core"}
    )
    assert without_effect(volcanos, config) == []
    acks = in_words({"aliyun.com/gpu-mem": 8}, labels={ACK_LABEL: "2"})
    assert without_effect(acks, config) == []
    whole = in_words({"aliyun.com/gpu-count": 2}, labels={ACK_LABEL: "2"})
    assert len(without_effect(whole, config)) == 1


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "hami.io/gpu-scheduler-policy"])
def test_annotations_that_choose_devices_say_nothing_beside_a_claim(key: str) -> None:
    annotations = {"vgpu.dev/claim": "small", key: "spread"}
    (warning,) = without_effect(a_pod(gpu=0, annotations=annotations), ClusterConfig())
    assert warning.startswith(f"metadata.annotations[{key}]: has no effect: the pod names a claim")


NVIDIAS = {"nvidia.com/gpu": 1}
HYGONS = {"hygon.com/dcunum": 1}
ACTING_ON_NODES = ("ack.node.gpu.schedule", "ack.node.gpu.placement", "hami.io/device-cordon")


def nothing_done(field: str, why: str) -> list[str]:
    said = f"{field}: has no effect: {why}"
    assert len(said) <= 256
    return [said]


@pytest.mark.parametrize(
    ("key", "limits", "count"),
    [
        ("hygon.com/use-dcutype", NVIDIAS, "hygon.com/dcunum"),
        ("cambricon.com/nouse-gpuuuid", HYGONS, "cambricon.com/vmlu"),
        ("huawei.com/vnpu-mode", NVIDIAS, "huawei.com/Ascend910A or the like"),
        ("nvidia.com/use-gputype", HYGONS, "nvidia.com/gpu"),
        ("nvidia.com/nouse-gpuuuid", HYGONS, "nvidia.com/gpu"),
        ("nvidia.com/vgpu-mode", HYGONS, "nvidia.com/gpu"),
    ],
)
def test_choosing_devices_of_a_kind_that_nothing_asks_for_has_no_effect(
    key: str, limits: dict[str, Any], count: str
) -> None:
    pod = in_words(limits, annotations={key: "mig"})
    found = without_effect(pod, ClusterConfig())
    assert found == nothing_done(f"metadata.annotations[{key}]", f"no container asks for {count}")


@pytest.mark.parametrize(
    ("key", "limits"),
    [
        ("hygon.com/use-dcutype", HYGONS),
        ("nvidia.com/use-gputype", NVIDIAS),
        ("nvidia.com/use-gputype", {"aliyun.com/gpu-mem": 4}),
        ("nvidia.com/numa-bind", HYGONS),
        ("hami.io/gpu-scheduler-policy", HYGONS),
        ("hami.io/device-scoring-weights", HYGONS),
    ],
)
def test_choosing_devices_that_are_asked_for_gets_no_warning(
    key: str, limits: dict[str, Any]
) -> None:
    values = {"hami.io/gpu-scheduler-policy": "spread", "nvidia.com/numa-bind": "true"}
    values["hami.io/device-scoring-weights"] = "slot=1,core=1,memory=1"
    pod = in_words(limits, annotations={key: values.get(key, "Z100")})
    assert without_effect(pod, ClusterConfig()) == []


@pytest.mark.parametrize(
    ("limits", "name", "count"),
    [
        (NVIDIAS | {"hygon.com/dcumem": 2000}, "hygon.com/dcumem", "hygon.com/dcunum"),
        (HYGONS | {"cambricon.com/mlu.smlu.vcore": 3}, "cambricon.com/mlu.smlu.vcore",
         "cambricon.com/vmlu"),
        (NVIDIAS | {"huawei.com/Ascend910B3-core": 3}, "huawei.com/Ascend910B3-core",
         "huawei.com/Ascend910B3"),
        (HYGONS | {"nvidia.com/priority": 1}, "nvidia.com/priority", "nvidia.com/gpu"),
    ],
)  # fmt: skip
def test_an_amount_without_its_count_has_no_effect(
    limits: dict[str, Any], name: str, count: str
) -> None:
    found = without_effect(in_words(limits), ClusterConfig())
    why = f"the container does not ask for {count}"
    assert found == nothing_done(f"spec.containers[0].resources.limits[{name}]", why)


@pytest.mark.parametrize("prefix", ["nvidia.com/gpu", "volcano.sh/vgpu-"])
def test_a_percentage_of_memory_beside_an_amount_has_no_effect(prefix: str) -> None:
    memory = f"{prefix}mem" if prefix.endswith("gpu") else f"{prefix}memory"
    pod = in_words({memory: 4000, f"{memory}-percentage": 50})
    field = f"spec.containers[0].resources.limits[{memory}-percentage]"
    found = without_effect(pod, ClusterConfig())
    assert found == nothing_done(field, f"{memory} is given too, and wins")


@pytest.mark.parametrize(("memory", "percentage"), [(0, 50), (4000, 100)])
def test_a_percentage_that_acts_beside_an_amount_gets_no_warning(
    memory: int, percentage: int
) -> None:
    """An amount of 0 counts as none, and 100 percent requests the whole device."""
    pod = in_words({"nvidia.com/gpumem": memory, "nvidia.com/gpumem-percentage": percentage})
    assert without_effect(pod, ClusterConfig()) == []


@pytest.mark.parametrize("key", [*CHOOSING, "vgpu.dev/claim", "vgpu.dev/claim-template"])
def test_an_annotation_that_stands_as_a_label_has_no_effect(key: str) -> None:
    found = without_effect(a_pod(labels={key: "x"}), ClusterConfig())
    assert found == nothing_done(f"metadata.labels[{key}]", "write it as an annotation")


@pytest.mark.parametrize("key", ["hami.io/webhook", "aliyun.com/gpu-count"])
def test_a_label_that_stands_as_an_annotation_has_no_effect(key: str) -> None:
    found = without_effect(a_pod(annotations={key: "ignore"}), ClusterConfig())
    assert found == nothing_done(f"metadata.annotations[{key}]", "write it as a label")


@pytest.mark.parametrize("where", ["labels", "annotations"])
@pytest.mark.parametrize("key", ACTING_ON_NODES)
def test_what_acts_on_nodes_has_no_effect_on_a_pod(key: str, where: str) -> None:
    found = without_effect(a_pod(**{where: {key: "cgpu"}}), ClusterConfig())
    assert found == nothing_done(f"metadata.{where}[{key}]", "it acts on a Node")


@pytest.mark.parametrize(
    ("scheduler", "count"), [("vgpu-scheduler", 1), ("hami-scheduler", 1), ("volcano", 0)]
)
def test_a_group_has_no_effect_where_volcano_does_not_schedule_it(
    scheduler: str, count: int
) -> None:
    pod = a_pod(annotations={"scheduling.k8s.io/group-name": "gang"})
    pod["spec"]["schedulerName"] = scheduler
    found = without_effect(pod, ClusterConfig())
    assert len(found) == count
    assert all("[scheduling.k8s.io/group-name]: has no effect: " in said for said in found)


def test_an_amount_without_its_count_is_named_where_nothing_else_is_asked_for() -> None:
    pod = in_words({"hygon.com/dcumem": 4000})
    assert unanswered(pod, ClusterConfig()) == [
        "spec.containers[0].resources.limits[hygon.com/dcumem]: has no effect: the container does "
        "not ask for hygon.com/dcunum"
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {"hygon.com/dcumem": 4000, "hygon.com/dcunum": 1},
        {"amd.com/gpumem": 4000},
        {"hygon.com/dcumem": 4000, "nvidia.com/gpu": 1},
        {"metax-tech.com/sgpu": 1},
    ],
)
def test_words_that_act_or_that_another_review_names_or_that_are_left_alone_get_no_warning(
    limits: dict[str, Any],
) -> None:
    assert unanswered(in_words(limits), ClusterConfig()) == []


@pytest.mark.parametrize("name", NOT_SERVED)
def test_a_device_that_is_not_served_is_named_to_a_pod_of_our_scheduler(name: str) -> None:
    pod = in_words({name: 1})
    pod["spec"]["schedulerName"] = "hami-scheduler"
    (warning,) = unanswered(pod, ClusterConfig())
    assert warning == (
        f"spec.containers[0].resources.limits[{name}]: not served by hami-scheduler: "
        f"{NOT_SERVED[name]}; leave the pod the scheduler of HAMi or of the vendor"
    )
    assert len(warning) <= 256
    pod["spec"]["containers"].append(
        {"name": "two", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    )
    assert unanswered(pod, ClusterConfig()) == []
    assert without_effect(pod, ClusterConfig()) == [warning]


def warned(pod: dict[str, Any], mode: str = "Extender") -> list[str]:
    """Return the warnings as the webhooks do: the validating webhook's, then the warning one's."""
    config = ClusterConfig(scheduling=SchedulingConfig(mode=mode))
    return [*without_effect(pod, config), *misspelt(pod, config), *unanswered(pod, config)]


def of(limits: dict[str, Any], *env: tuple[str, str], **pod: Any) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name, value in env]
    container = {"name": "main", "env": variables, "resources": {"limits": limits}}
    metadata = {"name": "p", **pod.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"containers": [container], **pod}}


GPU = {"nvidia.com/gpu": 1}
FORCE = ("GPU_CORE_UTILIZATION_POLICY", "force")
MIG = {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
OURS = {"schedulerName": "vgpu-scheduler"}


@pytest.mark.parametrize(
    ("pod", "field", "why"),
    [
        (
            of({**GPU, "nvidia.com/gpumem": 9}, FORCE),
            "env[GPU_CORE_UTILIZATION_POLICY]",
            "no limit",
        ),
        (of({**GPU, "nvidia.com/gpumem": 9}, FORCE, metadata=MIG), "env[GPU_CORE", "MIG instance"),
        (of({"hygon.com/dcunum": 1}, FORCE), "env[GPU_CORE", "NVIDIA's GPUs alone"),
        (
            of({**GPU, "nvidia.com/gpumem": 9, "nvidia.com/priority": 1}, metadata=MIG),
            "limits[nvidia.com/priority]",
            "MIG instance",
        ),
        (
            of(GPU, ("CUDA_DISABLE_CONTROL", "yes")),
            "env[CUDA_DISABLE_CONTROL]",
            "neither true nor false",
        ),
        (
            of({"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 8000}),
            "limits[cambricon.com/mlu.smlu.vmemory]",
            "2000 GiB of each device",
        ),
        (
            of(GPU, metadata={"labels": {"vgpu.dev/disable-control": "allowed"}}),
            "labels[vgpu.dev/disable-control]",
            "it acts on a Namespace",
        ),
        (
            of(GPU, metadata={"labels": {"volcano.sh/vgpu-mode": "mig"}}),
            "labels[volcano.sh/vgpu-mode]",
            "write it as an annotation",
        ),
        (
            of(
                GPU,
                metadata={
                    "annotations": {
                        "scheduling.alibabacloud.com/numa-topology-spec": '{"numaTopologyPolicy": '
                        '"BestEffort", "singleNUMANodeExclusiv": "Required"}'
                    }
                },
            ),
            "annotations[scheduling.alibabacloud.com/numa-topology-spec]",
            "key 'singleNUMANodeExclusiv' has no effect",
        ),
        (
            of(GPU, metadata={"annotations": {"huawei.com/npu-template": "1c8g"}}),
            "annotations[huawei.com/npu-template]",
            "has no effect",
        ),
        (
            of({}, metadata={"annotations": {"huawei.com/npu-template": "1c8g"}}),
            "annotations[huawei.com/npu-template]",
            "has no effect",
        ),
        (
            of(GPU, metadata={"annotations": {"volcano.sh/vgpu-modes": "mig"}}),
            "annotations[volcano.sh/vgpu-modes]",
            "did you mean volcano.sh/vgpu-mode?",
        ),
        (
            of(
                GPU,
                metadata={"annotations": {"scheduling.alibabacloud.com/numa-topology-specs": ""}},
            ),
            "annotations[scheduling.alibabacloud.com/numa-topology-specs]",
            "did you mean scheduling.alibabacloud.com/numa-topology-spec?",
        ),
    ],
)
def test_a_word_that_does_nothing_where_it_stands_is_named(
    pod: dict[str, Any], field: str, why: str
) -> None:
    found = [each for each in warned(pod) if field in each]
    assert len(found) == 1
    assert why in found[0]
    assert len(found[0]) <= 320


@pytest.mark.parametrize(
    "pod",
    [
        of({**GPU, "nvidia.com/gpucores": 30}, FORCE),
        of(GPU, FORCE),  # alone on its device, where `force` keeps it
        of({**GPU, "nvidia.com/gpumem": 9}, ("CUDA_DISABLE_CONTROL", "false")),
        of({"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 32}),
        of(GPU, metadata={"annotations": {"volcano.sh/task-spec": "a", "volcano.sh/queue": "b"}}),
        of({}, metadata={"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, **OURS),
    ],
)
def test_what_acts_where_it_stands_is_not(pod: dict[str, Any]) -> None:
    assert warned(pod) == []


@pytest.mark.parametrize(
    ("gang", "field"),
    [
        ({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}}, "metadata.labels["),
        ({"metadata": {"labels": {OLD_GROUP: "g"}}}, "metadata.labels["),
        ({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "g"}}}, "metadata.annot"),
        ({"metadata": {"labels": {f"{OLD_GROUP}/name": "g"}}}, "metadata.labels["),
        ({"workloadRef": {"name": "w", "podGroup": "g"}}, "spec.workloadRef"),
    ],
)
@pytest.mark.parametrize("scheduler", ["vgpu-scheduler", "hami-scheduler"])
def test_a_gang_that_is_started_pod_by_pod_is_warned_of(
    gang: dict[str, Any], field: str, scheduler: str
) -> None:
    """Without a warning it would start in part, and hold devices for ever."""
    (warning,) = warned(of(GPU, schedulerName=scheduler, **gang), "Extender")
    assert warning.startswith(field)
    assert "has no effect" in warning


@pytest.mark.parametrize("mode", ["Extender", "Gate"])
def test_a_pod_group_of_kubernetes_acts_in_both_modes(mode: str) -> None:
    gang = {"schedulingGroup": {"podGroupName": "g"}}
    assert list(warned(of(GPU, schedulerName="vgpu-scheduler", **gang), mode)) == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"vgpu.dev/group": "g", "vgpu.dev/group-min": "2"}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        {"labels": {f"{OLD_GROUP}/name": "g"}},
        {"labels": {f"{OLD_GROUP}/name": "g", "scheduling.x-k8s.io/pod-group": "g"}},
    ],
)
def test_in_mode_gate_every_word_for_a_group_acts(metadata: dict[str, Any]) -> None:
    assert warned(of(GPU, metadata=metadata), "Gate") == []


@pytest.mark.parametrize(
    ("pod", "warning"),
    [
        (
            {"metadata": {"labels": {OLD_GROUP: "g"}}},
            f"metadata.labels[{OLD_GROUP}]: has no effect: its PodGroups are not read; name the "
            "group in metadata.annotations[vgpu.dev/group]",
        ),
        (
            {"workloadRef": {"name": "w", "podGroup": "g"}},
            "spec.workloadRef: has no effect: Workloads are not read; name the group in "
            "metadata.annotations[vgpu.dev/group]",
        ),
        (
            {
                "schedulingGroup": {"podGroupName": "g"},
                "metadata": {"annotations": {"scheduling.k8s.io/group-name": "g"}},
            },
            "metadata.annotations[scheduling.k8s.io/group-name]: has no effect: "
            "spec.schedulingGroup names the pod's group",
        ),
        (
            {"metadata": {"labels": {"vgpu.dev/group": "g"}}},
            "metadata.labels[vgpu.dev/group]: has no effect: write it as an annotation",
        ),
    ],
)
def test_in_mode_gate_a_word_for_a_group_that_does_not_act_is_named(
    pod: dict[str, Any], warning: str
) -> None:
    assert next(iter(warned(of(GPU, **pod), "Gate"))) == warning


@pytest.mark.parametrize("scheduler", ["vgpu-scheduler", "default-scheduler"])
@pytest.mark.parametrize(
    "name",
    [
        "huawei.com/Ascend910",
        "huawei.com/npu-memory",
        "iluvatar.ai/vcuda-core",
        "iluvatar.ai/vcuda-memory",
        "cambricon.com/mlu",
        "hygon.com/dcu",
        "enflame.com/vgcu",
    ],
)
def test_a_vendors_word_that_is_not_served_is_named_whatever_the_scheduler(
    name: str, scheduler: str
) -> None:
    """Source: the guides to HAMi in examples/hami-guide."""
    (warning,) = warned(of({name: 1}, schedulerName=scheduler))
    assert warning.startswith(f"spec.containers[0].resources.limits[{name}]: not served by ")


LIMIT_RANGER = "kubernetes.io/limit-ranger"


def test_a_gpu_that_a_limit_range_gave_is_named_with_its_container() -> None:
    """Kubernetes 1.36 writes this annotation for a LimitRange with a max and no default."""
    pod = of(GPU | {"nvidia.com/gpumem": 1000})
    pod["spec"]["containers"].append({"name": "istio-proxy", "resources": {"limits": GPU}})
    pod["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": dict(GPU)}}]
    pod["metadata"]["annotations"] = {
        LIMIT_RANGER: "LimitRanger plugin set: cpu, nvidia.com/gpu request for init container "
        "init; cpu, nvidia.com/gpu limit for init container init; nvidia.com/gpu request for "
        "container istio-proxy; memory, nvidia.com/gpu limit for container istio-proxy"
    }
    found = warned(pod)
    assert [each.split(": ")[0] for each in found] == [
        "spec.initContainers[0].resources.limits[nvidia.com/gpu]",
        "spec.containers[1].resources.limits[nvidia.com/gpu]",
    ]
    assert "container 'istio-proxy' by a LimitRange of the namespace" in found[1]


@pytest.mark.parametrize(
    "written", ["", "nonsense", "LimitRanger plugin set: cpu limit for container main", "for ;;;"]
)
def test_a_limit_range_that_gave_no_gpu_is_not_named(written: str) -> None:
    assert warned(of(GPU, metadata={"annotations": {LIMIT_RANGER: written}})) == []
