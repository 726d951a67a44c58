"""Refusals of pods that request GPUs name the field, the value and what would be right."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest

from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.admission.rules import Denied, disables_control, mutate_pod

CLAIM = VGPUClaim.read({"spec": {"requests": [{"name": "main"}]}})


def a_pod(**fields: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}
    container = {"name": "main", "resources": {"limits": limits}, **fields}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container, {"name": "side"}]}}


def a_native_pod() -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"vgpu.dev/claim": "small"}},
        "spec": {"containers": [{"name": "main"}]},
    }


def admit(pod: dict[str, Any]) -> None:
    """Call the webhook twice, as the API server does if another webhook changed the pod since."""
    operations = mutate_pod(pod, ClusterConfig(), CLAIM)
    assert mutate_pod(jsonpatch.apply_patch(pod, operations), ClusterConfig(), CLAIM) == []


def denial_of(pod: dict[str, Any]) -> str:
    with pytest.raises(Denied) as denial:
        admit(pod)
    assert denial.value.code == 422
    return denial.value.message


def with_limit(name: str, amount: Any) -> dict[str, Any]:
    pod = a_pod()
    pod["spec"]["containers"][0]["resources"]["limits"][f"nvidia.com/{name}"] = amount
    return pod


def test_a_plain_pod_and_a_native_pod_pass() -> None:
    admit(a_pod())
    admit(a_native_pod())


def test_a_pod_that_asks_for_no_gpu_may_do_what_it_likes() -> None:
    admit(
        {
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "a", "securityContext": {"privileged": True}}],
                "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
            }
        }
    )


@pytest.mark.parametrize("name", ["gpumem-percentage", "gpucores"])
@pytest.mark.parametrize("amount", ["101", -1, "many", "0.5"])
def test_a_percentage_outside_0_to_100_is_refused(name: str, amount: Any) -> None:
    message = denial_of(with_limit(name, amount))
    assert message == (
        f"spec.containers[0].resources.limits[nvidia.com/{name}]: Invalid value: "
        f"{json.dumps(amount)}: must be a whole percentage, 0 to 100"
    )


@pytest.mark.parametrize("name", ["gpumem-percentage", "gpucores"])
@pytest.mark.parametrize("amount", [0, "100"])
def test_a_percentage_of_0_to_100_passes(name: str, amount: Any) -> None:
    admit(with_limit(name, amount))


@pytest.mark.parametrize("amount", ["8 GiB", "8gb", "0.5Mi", "-1", "1500Ki"])
def test_a_memory_that_is_no_whole_number_of_mib_is_refused(amount: str) -> None:
    message = denial_of(with_limit("gpumem", amount))
    assert message.startswith("spec.containers[0].resources.limits[nvidia.com/gpumem]: ")
    assert "a whole number of MiB" in message


@pytest.mark.parametrize("amount", ["16Gi", "16384Mi", 16384, "4k"])
def test_a_memory_in_whole_mib_passes_in_every_spelling(amount: Any) -> None:
    admit(with_limit("gpumem", amount))


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("hami.io/device-scoring-weights", "slot=1"),
        ("hami.io/gpu-scheduler-policy", "tight"),
        ("hami.io/node-scheduler-policy", "tight"),
        ("nvidia.com/vgpu-mode", "half"),
    ],
)
def test_a_bad_weight_list_policy_or_mode_is_refused_with_its_annotation(
    key: str, written: str
) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {key: written}
    kind = "Invalid" if "weights" in key else "Unsupported"
    assert denial_of(pod).startswith(f'metadata.annotations[{key}]: {kind} value: "{written}": ')


def test_a_privileged_container_gets_no_device() -> None:
    message = denial_of(a_pod(securityContext={"privileged": True}))
    assert message.startswith(
        "spec.containers[0].securityContext.privileged: Forbidden: a privileged"
    )
    admit(a_pod(securityContext={"privileged": False}))


def test_no_container_of_a_pod_that_asks_is_privileged() -> None:
    """As in HAMi: any container of the pod could otherwise open the device without limits."""
    pod = a_pod()
    pod["spec"]["containers"][1]["securityContext"] = {"privileged": True}
    assert "spec.containers[1].securityContext.privileged: Forbidden" in denial_of(pod)
    pod = a_pod()
    first = {"name": "first", "securityContext": {"privileged": True}}
    pod["spec"]["initContainers"] = [first]
    assert "spec.initContainers[0].securityContext.privileged: Forbidden" in denial_of(pod)


def test_a_node_chosen_beforehand_is_refused() -> None:
    pod = a_pod()
    pod["spec"]["nodeName"] = "node-1"
    assert denial_of(pod).startswith("spec.nodeName: Forbidden: the scheduler")


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "/etc/",
        "etc",
        "//etc",
        "/etc/../etc",
        "/",
        "/etc/ld.so.preload",
        "/usr",
        "/usr/local",
        "/usr/local/vgpu",
        "/usr/local/vgpu/usage",
    ],
)
def test_a_mount_over_the_limits_is_refused(path: str) -> None:
    message = denial_of(a_pod(volumeMounts=[{"name": "ok", "mountPath": "/data"}, mount(path)]))
    assert message.startswith(
        f'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "{path}": must not cover'
    )


@pytest.mark.parametrize("path", ["/etc/app", "/usr/local/vgpu-data", "/usr/local/bin", "/data"])
def test_a_mount_beside_the_limits_passes(path: str) -> None:
    admit(a_pod(volumeMounts=[mount(path)]))


def mount(path: str) -> dict[str, Any]:
    return {"name": "v", "mountPath": path}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "80000M"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1"),
        ("CUDA_DEVICE_SM_LIMIT", "100"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/x"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
        ("NVIDIA_VISIBLE_DEVICES", "$(OTHER)"),
        ("LD_PRELOAD", "/usr/local/vgpu/libvgpu-1.so"),
        ("LD_PRELOAD", "/opt/libvgpu.so /opt/other.so"),
        ("VGPU_LIMIT_PAGE", "/tmp/page"),
        ("VGPU_USAGE_REGION", "/tmp/region"),
        ("CUDA_DISABLE_CONTROL", "true"),
    ],
)
@pytest.mark.parametrize("container", [0, 1])
def test_a_reserved_variable_is_refused_in_any_container_of_the_pod(
    name: str, value: str, container: int
) -> None:
    pod = a_pod()
    pod["spec"]["containers"][container]["env"] = [{"name": name, "value": value}]
    message = denial_of(pod)
    assert message.startswith(f"spec.containers[{container}].env[{name}]: Forbidden: l")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        ("CUDA_DISABLE_CONTROL", "false"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so"),
    ],
)
def test_a_variable_that_is_the_users_own_passes(name: str, value: str) -> None:
    admit(a_pod(env=[{"name": name, "value": value}]))


@pytest.mark.parametrize(
    "path",
    [
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "/var/lib/kubelet",
        "/etc/cdi",
        "/var/run/cdi",
        "/run/cdi/x.json",
        "/var/run",
        "/run/../run/cdi",
        "/",
    ],
)
def test_a_host_folder_with_the_nodes_limits_is_refused(path: str) -> None:
    pod = a_pod()
    pod["spec"]["volumes"] = [{"name": "a", "emptyDir": {}}, host(path)]
    assert denial_of(pod).startswith(
        f'spec.volumes[1].hostPath.path: Invalid value: "{path}": a pod'
    )


@pytest.mark.parametrize("path", ["/data", "/etc/localtime", "/var/lib/models", "/dev/shm"])
def test_another_host_folder_passes(path: str) -> None:
    pod = a_pod()
    pod["spec"]["volumes"] = [host(path)]
    admit(pod)


def host(path: str) -> dict[str, Any]:
    return {"name": "h", "hostPath": {"path": path}}


def test_amounts_in_a_container_that_a_claim_serves_are_refused() -> None:
    pod = a_native_pod()
    pod["metadata"]["annotations"]["vgpu.dev/slots-added"] = "main"
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpumem": "4096"}}
    assert "write it in the claim" in denial_of(pod)


def test_more_slots_than_one_in_a_container_that_a_claim_serves_are_refused() -> None:
    pod = a_native_pod()
    pod["metadata"]["annotations"]["vgpu.dev/slots-added"] = "main"
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "3"}}
    assert "must be 1, the slot" in denial_of(pod)


def test_an_opted_out_pod_passes_validation() -> None:
    pod = a_pod(securityContext={"privileged": True})
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    admit(pod)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"securityContext": {"privileged": True}}, "can open every GPU of its node"),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "the claim decides which"),
        ({"env": [{"name": "CUDA_DEVICE_SM_LIMIT", "value": "9"}]}, "the limits come from the"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]}, "must not cover"),
    ],
)
def test_what_another_webhook_changed_afterwards_is_refused_at_the_second_call(
    change: dict[str, Any], said: str
) -> None:
    pod = a_pod()
    changed = copy.deepcopy(jsonpatch.apply_patch(pod, mutate_pod(pod, ClusterConfig(), None)))
    container = changed["spec"]["containers"][0]
    for field, value in change.items():
        container[field] = [*container[field], *value] if field == "env" else value
    with pytest.raises(Denied, match=said):
        mutate_pod(changed, ClusterConfig(), None)


NUMA_SPEC = "scheduling.alibabacloud.com/numa-topology-spec"


@pytest.mark.parametrize(
    ("key", "written", "said"),
    [
        (
            "hami.io/vulkan",
            "true",
            'metadata.annotations[hami.io/vulkan]: Unsupported value: "true": the library limits '
            "CUDA, and Vulkan could allocate past the limit; leave it out, or ask for a whole GPU, "
            "which needs no limit",
        ),
        (
            "volcano.sh/vgpu-podgroup-policy",
            "spread",
            'metadata.annotations[volcano.sh/vgpu-podgroup-policy]: Unsupported value: "spread": '
            "pods of a group may share a GPU; leave it out, and ask for whole GPUs where they "
            "must not",
        ),
        (
            NUMA_SPEC,
            '{"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": "Required"}',
            f'metadata.annotations[{NUMA_SPEC}]: Unsupported value: "singleNUMANodeExclusive: '
            'Required": no NUMA node is kept for one pod; write Preferred, or ask for all GPUs of '
            "a NUMA node",
        ),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(key: str, written: str, said: str) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {key: written}
    assert denial_of(pod) == said
    pod["spec"]["containers"][0]["resources"]["limits"] = {"cpu": 1}
    admit(pod)


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("hami.io/vulkan", "false"),
        ("volcano.sh/vgpu-podgroup-policy", ""),
        (NUMA_SPEC, '{"numaTopologyPolicy": "SingleNUMANode"}'),
        (NUMA_SPEC, ""),
    ],
)
def test_the_same_annotations_pass_where_they_promise_nothing(key: str, written: str) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {key: written}
    admit(pod)


def test_limits_may_be_switched_off_where_the_namespace_allows_it() -> None:
    pod = a_pod(env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])
    assert disables_control(pod)
    assert not disables_control(a_pod())
    operations = mutate_pod(pod, ClusterConfig(), None, may_disable_control=True)
    admitted = jsonpatch.apply_patch(pod, operations)
    assert mutate_pod(admitted, ClusterConfig(), None, may_disable_control=True) == []
    with pytest.raises(
        Denied, match="its label vgpu\\.dev/disable-control: allowed would allow it"
    ):
        mutate_pod(admitted, ClusterConfig(), None)
