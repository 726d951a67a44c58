"""Admission adds its fields to a pod that requests devices, and nothing to any other pod."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from vgpu_api.config import ClusterConfig, NvidiaConfig, SchedulingConfig
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.admission.rules import (
    Denied,
    claim_named_by,
    mutate_ephemeral_containers,
    mutate_pod,
    waits_for_claim,
)
from vgpu_operator.admission.rules.pod_mutation import switched_off
from vgpu_operator.dialects import NamedClaim

HIDDEN = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def a_pod(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"containers": list(containers)}}


def a_container(limits: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    given = {f"nvidia.com/{name}": amount for name, amount in (limits or {}).items()}
    return {"name": "main", "resources": {"limits": given}, **fields}


def claim_with(*requests: dict[str, Any], **spec: Any) -> VGPUClaim:
    return VGPUClaim.read({"spec": {"requests": list(requests), **spec}})


def mutated(
    pod: dict[str, Any],
    claim: VGPUClaim | None = None,
    config: ClusterConfig | None = None,
) -> Any:
    operations = mutate_pod(pod, config or ClusterConfig(), claim)
    return jsonpatch.apply_patch(pod, operations)


def first(pod: Any) -> Any:
    return pod["spec"]["containers"][0]


def test_a_pod_that_asks_for_no_gpu_is_not_touched() -> None:
    pod = a_pod({"name": "web", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    assert mutate_pod(pod, ClusterConfig(), None) == []


def test_the_count_is_added_where_only_memory_is_given_in_limits_and_requests() -> None:
    resources = first(mutated(a_pod(a_container({"gpumem": 4096}))))["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": 4096}
    assert resources["requests"]["nvidia.com/gpu"] == "1"


def test_the_added_count_is_the_configured_one() -> None:
    config = ClusterConfig(nvidia=NvidiaConfig(default_gpu_num=2))
    pod = mutated(a_pod(a_container({"gpucores": 10})), config=config)
    assert first(pod)["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("written", ["16Gi", "16384Mi"])
def test_a_size_becomes_the_plain_number_that_quotas_count(written: str) -> None:
    resources = first(mutated(a_pod(a_container({"gpu": 1, "gpumem": written}))))["resources"]
    assert resources["limits"]["nvidia.com/gpumem"] == "16384"
    assert resources["requests"]["nvidia.com/gpumem"] == "16384"


def test_a_plain_number_stays_as_the_api_server_wrote_it() -> None:
    pod = mutated(a_pod(a_container({"gpu": "1", "gpumem": "4k"})))
    assert first(pod)["resources"] == {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}}


def test_a_size_is_counted_in_units_of_the_memory_factor_where_it_is_a_whole_number() -> None:
    config = ClusterConfig(nvidia=NvidiaConfig(memory_factor=1024))
    whole = mutated(a_pod(a_container({"gpu": 1, "gpumem": "16Gi"})), config=config)
    assert first(whole)["resources"]["limits"]["nvidia.com/gpumem"] == "16"
    odd = mutated(a_pod(a_container({"gpu": 1, "gpumem": "1000Mi"})), config=config)
    assert first(odd)["resources"]["limits"]["nvidia.com/gpumem"] == "1000Mi"


def test_limits_win_over_requests_and_requests_stand_in_for_limits() -> None:
    container = a_container({"gpu": 1, "gpumem": 4096})
    container["resources"]["requests"] = {"nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 20}
    resources = first(mutated(a_pod(container)))["resources"]
    assert resources["requests"]["nvidia.com/gpumem"] == "4096"
    assert resources["limits"]["nvidia.com/gpucores"] == "20"


@pytest.mark.parametrize("chosen", [None, "", "default-scheduler"])
def test_our_scheduler_is_set_where_the_pod_chose_none(chosen: str | None) -> None:
    pod = a_pod(a_container({"gpu": 1}))
    if chosen is not None:
        pod["spec"]["schedulerName"] = chosen
    assert mutated(pod)["spec"]["schedulerName"] == "vgpu-scheduler"


@pytest.mark.parametrize("chosen", ["hami-scheduler", "vgpu-scheduler", "mine"])
def test_a_scheduler_that_the_pod_chose_stays(chosen: str) -> None:
    pod = a_pod(a_container({"gpu": 1}))
    pod["spec"]["schedulerName"] = chosen
    assert mutated(pod)["spec"]["schedulerName"] == chosen


def test_a_pod_for_volcanos_scheduler_is_taken_over() -> None:
    pod = a_pod(a_container({"gpu": 1}))
    pod["spec"]["schedulerName"] = "volcano"
    assert mutated(pod)["spec"]["schedulerName"] == "vgpu-scheduler"
    pod["spec"]["containers"][0]["resources"]["limits"] = {"cpu": 1}
    assert mutated(pod)["spec"]["schedulerName"] == "volcano"


def test_a_pod_of_a_volcano_group_stays_with_volcano() -> None:
    pod = a_pod(a_container({"gpu": 1}))
    pod["spec"]["schedulerName"] = "volcano"
    pod["metadata"].setdefault("annotations", {})["scheduling.k8s.io/group-name"] = "gang"
    assert mutated(pod)["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    "scheduling", [{"schedulerAliases": []}, {"schedulerName": ""}, {"schedulerAliases": ["mine"]}]
)
def test_which_schedulers_are_taken_over_is_the_configurations_to_say(
    scheduling: dict[str, Any],
) -> None:
    config = ClusterConfig(scheduling=SchedulingConfig.model_validate(scheduling))
    pod = a_pod(a_container({"gpu": 1}))
    pod["spec"]["schedulerName"] = "volcano"
    assert mutated(pod, config=config)["spec"]["schedulerName"] == "volcano"


def test_the_scheduler_is_left_alone_where_the_configuration_names_none() -> None:
    config = ClusterConfig(scheduling=SchedulingConfig(scheduler_name=""))
    assert "schedulerName" not in mutated(a_pod(a_container({"gpu": 1})), config=config)["spec"]


def test_every_gpu_container_sees_no_device_until_the_node_shows_it() -> None:
    assert first(mutated(a_pod(a_container({"gpu": 1}))))["env"] == HIDDEN


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"image": "nvidia/cuda:13.0.0-base-ubuntu24.04"},
        {"envFrom": [{"configMapRef": {"name": "of-the-tenant"}}]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {}}}]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]},
    ],
    ids=["nothing", "image", "envFrom", "valueFrom", "literal"],
)
def test_a_container_beside_a_gpu_container_sees_none_wherever_its_variable_comes_from(
    written: dict[str, Any],
) -> None:
    """A variable of the pod wins over `envFrom`, and both win over the image's."""
    pod = a_pod({"name": "beside", **written}, a_container({"gpu": 1}))
    pod["spec"]["initContainers"] = [{"name": "before", **written}]
    spec = mutated(pod)["spec"]
    for container in (spec["containers"][0], spec["initContainers"][0]):
        named = [v for v in container["env"] if v["name"] == "NVIDIA_VISIBLE_DEVICES"]
        assert named == HIDDEN
        assert container.get("envFrom") == written.get("envFrom")


@pytest.mark.parametrize(
    "written",
    [
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        [{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES"}],
    ],
)
def test_the_variable_is_replaced_wherever_it_stands(written: list[dict[str, Any]]) -> None:
    env = first(mutated(a_pod(a_container({"gpu": 1}, env=written))))["env"]
    assert [v for v in env if v["name"] == "NVIDIA_VISIBLE_DEVICES"] == HIDDEN
    assert len(env) == len(written)


@pytest.mark.parametrize("amount", [0, 1])
def test_an_opted_out_pod_gets_its_devices_hidden_and_nothing_else(amount: int) -> None:
    pod = a_pod(a_container({"gpu": amount}), labels={"hami.io/webhook": "ignore"})
    operations = mutate_pod(pod, ClusterConfig(), None)
    assert [(op["path"], op["value"]) for op in operations] == [("/spec/containers/0/env", HIDDEN)]


def test_each_container_of_a_claim_gets_one_slot_whatever_its_count_and_is_recorded() -> None:
    containers = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    pod = a_pod(*containers, annotations={"vgpu.dev/claim": "two"})
    result = mutated(pod, claim_with({"name": "c", "count": 4}, {"name": "a"}))
    slots = [c.get("resources") for c in result["spec"]["containers"]]
    slot = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    assert slots == [slot, None, slot]
    assert result["metadata"]["annotations"]["vgpu.dev/slots-added"] == "a,c"
    assert result["spec"]["schedulerName"] == "vgpu-scheduler"
    assert [c.get("env") for c in result["spec"]["containers"]] == [HIDDEN] * 3


def test_an_init_container_of_a_claim_gets_its_slot_too() -> None:
    pod = a_pod({"name": "a"}, annotations={"vgpu.dev/claim": "c"})
    pod["spec"]["initContainers"] = [{"name": "fetch"}]
    result = mutated(pod, claim_with({"name": "fetch", "phase": "Init"}))
    assert result["metadata"]["annotations"]["vgpu.dev/slots-added"] == "fetch"
    assert result["spec"]["initContainers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_second_call_after_a_sidecar_was_injected_in_front_only_hides_devices_from_it() -> None:
    claim = claim_with({"memory": "1Gi"})
    once = mutated(a_pod({"name": "app"}, annotations={"vgpu.dev/claim": "c"}), claim)
    once["spec"]["containers"].insert(0, {"name": "mesh"})
    (operation,) = mutate_pod(once, ClusterConfig(), claim)
    assert operation == {"op": "add", "path": "/spec/containers/0/env", "value": HIDDEN}


@pytest.mark.parametrize("key", ["vgpu.dev/claim", "vgpu.dev/claim-template"])
def test_a_pod_that_comes_before_its_claim_waits_with_a_slot_in_each_container(key: str) -> None:
    """Slots cannot be added later, and it is not known yet which container the claim is for."""
    pod = a_pod({"name": "app"}, {"name": "web", "resources": {}}, annotations={key: "small"})
    pod["spec"]["initContainers"] = [{"name": "fetch"}]
    admitted = mutated(pod)
    assert admitted["metadata"]["annotations"]["vgpu.dev/slots-added"] == "fetch,app,web"
    for container in (*admitted["spec"]["initContainers"], *admitted["spec"]["containers"]):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert container["env"] == HIDDEN
    assert admitted["spec"]["schedulerName"] == "vgpu-scheduler"
    assert mutate_pod(admitted, ClusterConfig(), None) == []
    assert waits_for_claim(admitted) == [
        f"metadata.annotations[{key}]: small does not exist yet: the pod waits for it; until then "
        "each of its containers has a slot"
    ]


def test_a_sidecar_that_is_added_in_front_does_not_get_the_slot_of_an_awaited_claim() -> None:
    admitted = mutated(a_pod({"name": "app"}, annotations={"vgpu.dev/claim": "small"}))
    assert waits_for_claim(admitted)[0].endswith("does not exist yet: the pod waits for it")
    admitted["spec"]["containers"].insert(0, {"name": "proxy"})
    again = mutated(admitted)
    assert "resources" not in again["spec"]["containers"][0]
    assert again["metadata"]["annotations"]["vgpu.dev/slots-added"] == "app"


CONTROLLER = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": True}]


def test_a_controllers_pod_waits_for_its_claim_where_only_one_container_can_be_meant() -> None:
    annotations = {"vgpu.dev/claim-template": "small"}
    alone = a_pod({"name": "app"}, annotations=annotations, ownerReferences=CONTROLLER)
    assert mutated(alone)["metadata"]["annotations"]["vgpu.dev/slots-added"] == "app"
    several = a_pod(
        {"name": "app"}, {"name": "web"}, annotations=annotations, ownerReferences=CONTROLLER
    )
    with pytest.raises(Denied) as denial:
        mutated(several)  # its controller tries again
    assert denial.value.code == 422
    assert denial.value.message == (
        'metadata.annotations[vgpu.dev/claim-template]: Not found: "small": create the '
        "claim first: without it admission cannot tell for which of the pod's containers it is"
    )


def test_before_its_claim_a_pod_with_a_record_of_no_container_of_its_own_is_refused() -> None:
    annotations = {"vgpu.dev/claim": "small", "vgpu.dev/slots-added": "other"}
    with pytest.raises(Denied, match="create the claim first"):
        mutated(a_pod({"name": "app"}, annotations=annotations))


def test_the_claim_that_a_pod_names_is_returned() -> None:
    pod = a_pod({"name": "app"}, annotations={"vgpu.dev/claim": "small"})
    assert claim_named_by(pod) == NamedClaim(name="small", is_template=False)


def test_an_immediate_claim_is_no_template() -> None:
    pod = a_pod({"name": "app"}, annotations={"vgpu.dev/claim-template": "t"})
    with pytest.raises(Denied, match="bindingMode is Immediate"):
        mutated(pod, claim_with({}, bindingMode="Immediate"))


def test_an_immediate_claim_can_be_used_by_its_name() -> None:
    pod = a_pod({"name": "app"}, annotations={"vgpu.dev/claim": "t"})
    assert mutated(pod, claim_with({}, bindingMode="Immediate"))


def test_a_claim_for_other_containers_than_the_pods_is_refused() -> None:
    pod = a_pod({"name": "app"}, annotations={"vgpu.dev/claim": "c"})
    with pytest.raises(Denied, match="must have container trainer"):
        mutated(pod, claim_with({"name": "trainer"}))


def test_a_record_of_containers_that_the_claim_does_not_serve_is_refused() -> None:
    annotations = {"vgpu.dev/claim": "c", "vgpu.dev/slots-added": "app,side"}
    pod = a_pod({"name": "app"}, {"name": "side"}, annotations=annotations)
    with pytest.raises(Denied, match="admission writes it"):
        mutated(pod, claim_with({"name": "app"}))


def test_an_unreadable_pod_is_refused_with_the_field() -> None:
    with pytest.raises(Denied, match=r"spec.containers\[0\].resources.limits"):
        mutate_pod(a_pod({"name": "a", "resources": {"limits": 5}}), ClusterConfig(), None)


def test_null_is_absent() -> None:
    pod = {
        "metadata": {"annotations": None},
        "spec": {
            "initContainers": None,
            "containers": [{**a_container({"gpumem": 1024}), "env": None}],
        },
    }
    pod["spec"]["containers"][0]["resources"]["requests"] = None  # type: ignore[index]
    assert first(mutated(pod))["resources"]["requests"] == {"nvidia.com/gpu": "1"}


def configured(**nvidia: Any) -> ClusterConfig:
    return ClusterConfig(nvidia=NvidiaConfig.model_validate(nvidia))


def test_the_configured_runtime_class_is_set_where_the_pod_chose_none() -> None:
    config = configured(runtimeClassName="nvidia")
    pod = a_pod(a_container({"gpu": 1}))
    assert mutated(pod, config=config)["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in mutated(pod)["spec"]
    pod["spec"]["runtimeClassName"] = "own"
    assert mutated(pod, config=config)["spec"]["runtimeClassName"] == "own"


def test_a_pod_that_asks_for_no_gpu_gets_no_runtime_class() -> None:
    config = configured(runtimeClassName="nvidia")
    assert mutate_pod(a_pod(a_container()), config, None) == []


def debugged(*ephemeral: dict[str, Any]) -> dict[str, Any]:
    pod = a_pod(a_container({"gpu": 1}))
    pod["spec"]["ephemeralContainers"] = list(ephemeral)
    return pod


def test_an_ephemeral_container_that_is_added_sees_no_device_and_the_others_stay() -> None:
    """The API server refuses every change of ephemeral containers that the pod already has."""
    old = {"name": "old", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    from_elsewhere = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}
    pod = debugged(old, {"name": "new"}, {"name": "third", "env": [from_elsewhere]})
    operations = mutate_ephemeral_containers(pod, debugged(old))
    former, *added = jsonpatch.apply_patch(pod, operations)["spec"]["ephemeralContainers"]
    assert former == old
    assert [container["env"] for container in added] == [HIDDEN, HIDDEN]


def test_an_ephemeral_container_that_chooses_its_devices_is_refused() -> None:
    pod = debugged({"name": "new", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    field = r"spec\.ephemeralContainers\[0\]\.env\[NVIDIA_VISIBLE_DEVICES\]: Forbidden: "
    with pytest.raises(Denied, match=field):
        mutate_ephemeral_containers(pod, debugged())


MARK = "vgpu.dev/admitted"


def test_a_pod_that_asks_is_marked_as_read() -> None:
    pod = a_pod(a_container({"gpu": 1}), labels={"app": "a", MARK: "forged"})
    assert mutated(pod)["metadata"]["labels"] == {"app": "a", MARK: "true"}


@pytest.mark.parametrize("label", [{}, {"hami.io/webhook": "ignore"}])
def test_a_pod_that_gets_no_device_may_not_mark_itself(label: dict[str, str]) -> None:
    asks = {"gpu": 1} if label else None
    with pytest.raises(Denied, match=r"labels\[vgpu.dev/admitted\]: Forbidden"):
        mutate_pod(a_pod(a_container(asks), labels={**label, MARK: "true"}), ClusterConfig(), None)


def test_a_pod_that_lost_its_mark_on_the_way_gets_it_again() -> None:
    pod = mutated(a_pod(a_container({"gpu": 1})))
    del pod["metadata"]["labels"][MARK]
    assert mutated(pod)["metadata"]["labels"] == {MARK: "true"}


HAMIS = {"nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 30}


@pytest.mark.parametrize(
    ("count", "amounts"),
    [
        ("nvidia.com/gpu", HAMIS),
        ("nvidia.com/gpu", {"nvidia.com/gpumem-percentage": 50, "nvidia.com/priority": 0}),
        ("volcano.sh/vgpu-number", {"volcano.sh/vgpu-memory": 1000, "volcano.sh/vgpu-cores": 5}),
        ("huawei.com/Ascend910B3", {"huawei.com/Ascend910B3-memory": 16384}),
        ("cambricon.com/vmlu", {"cambricon.com/mlu.smlu.vmemory": 4}),
    ],
)
@pytest.mark.parametrize("mode", ["Extender", "Gate"])
def test_a_container_with_a_count_of_0_runs_without_a_device_as_under_hami(
    count: str, amounts: dict[str, Any], mode: str
) -> None:
    """kube-scheduler ignores a request of 0, but finds no node that offers the other amounts."""
    config = ClusterConfig(scheduling=SchedulingConfig(mode=mode))
    limits = {count: 0, **amounts, "cpu": "1"}
    container = {"name": "main", "resources": {"limits": limits, "requests": dict(limits)}}
    pod = a_pod(container)
    after = mutated(pod, config=config)
    resources = first(after)["resources"]
    assert resources == {"limits": {count: 0, "cpu": "1"}, "requests": {count: 0, "cpu": "1"}}
    assert first(after)["env"] == HIDDEN
    assert set(after["spec"]) == {"containers"}
    assert "labels" not in after["metadata"]
    assert mutate_pod(after, config, None) == []
    (warning,) = switched_off(pod, config)
    assert warning.startswith(f"spec.containers[0].resources.limits[{count}]: container 'main'")
    assert all(name in warning for name in amounts)
    assert switched_off(after, config) == []


def test_a_container_beside_one_that_asks_may_switch_its_devices_off() -> None:
    off = {"name": "off", "resources": {"limits": {"nvidia.com/gpu": 0, **HAMIS}}}
    after = mutated(a_pod(a_container({"gpu": 1, "gpumem": 100}), off))
    asking, other = after["spec"]["containers"]
    assert asking["resources"]["limits"]["nvidia.com/gpumem"] == 100
    assert other["resources"]["limits"] == {"nvidia.com/gpu": 0}


def test_a_count_of_0_in_one_vendors_words_leaves_what_is_asked_in_anothers() -> None:
    limits = {"nvidia.com/gpu": 0, "volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 100}
    pod = a_pod({"name": "main", "resources": {"limits": limits}})
    assert switched_off(pod, ClusterConfig()) == []


def test_a_container_of_a_named_claim_cannot_switch_its_slot_off() -> None:
    pod = a_pod(a_container({"gpu": 0}), annotations={"vgpu.dev/claim": "mine"})
    with pytest.raises(Denied, match=r"limits\[nvidia.com/gpu\]: Invalid value: 0: .*slot"):
        mutate_pod(pod, ClusterConfig(), claim_with({"memory": "1Gi"}))


@pytest.mark.parametrize(
    "limits",
    [
        {"aliyun.com/gpu-mem": 0, "aliyun.com/gpu-core.percentage": 30},
        {"aliyun.com/gpu-count": 0, "aliyun.com/gpu-mem": 4},
    ],
)
def test_acks_words_with_a_0_beside_amounts_are_refused_by_field(limits: dict[str, int]) -> None:
    """They have no count that could switch devices off."""
    pod = a_pod({"name": "main", "resources": {"limits": limits}})
    with pytest.raises(Denied, match=r"spec.containers\[0\].resources.limits\[aliyun.com/gpu-"):
        mutate_pod(pod, ClusterConfig(), None)
