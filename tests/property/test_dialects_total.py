"""Reading and admitting any pod ends in an answer or in a refusal that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jsonpatch
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vgpu_api import names
from vgpu_api.config import AliyunConfig, ClusterConfig, NvidiaConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.admission.rules import (
    Denied,
    claim_named_by,
    misspelt,
    mutate_pod,
    validate_claim,
)
from vgpu_operator.admission.rules.warnings import unasked
from vgpu_operator.dialects import ack, read, volcano

T = TypeVar("T")
NVIDIA = NvidiaConfig()
RESOURCES = (
    NVIDIA.resource_count_name,
    NVIDIA.resource_memory_name,
    NVIDIA.resource_memory_percentage_name,
    NVIDIA.resource_core_name,
    NVIDIA.resource_priority_name,
)
OTHER_WORDS = (
    *ack.resource_names(ClusterConfig()),
    *volcano.resource_names(ClusterConfig()),
)
ANNOTATIONS = (
    names.ANNOTATION_CLAIM,
    names.ANNOTATION_CLAIM_TEMPLATE,
    names.ANNOTATION_GROUP,
    names.ANNOTATION_GROUP_MIN,
    names.ANNOTATION_SLOTS_ADDED,
    names.HAMI_NODE_POLICY,
    names.HAMI_DEVICE_POLICY,
    names.HAMI_DEVICE_WEIGHTS,
    names.NVIDIA_USE_TYPE,
    names.NVIDIA_NOUSE_TYPE,
    names.NVIDIA_USE_UUID,
    names.NVIDIA_NOUSE_UUID,
    names.NVIDIA_NUMA_BIND,
    names.NVIDIA_MODE,
    names.ACK_NUMA_SPEC,
)
ENV = (
    names.ENV_VISIBLE_DEVICES,
    names.ENV_CORE_POLICY,
    names.ENV_DISABLE_CONTROL,
    names.ENV_LIMIT_PAGE,
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_ORDER",
    "LD_PRELOAD",
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
amounts = st.one_of(
    st.integers(min_value=-5, max_value=130),
    st.sampled_from(
        [
            "0",
            "1",
            "2",
            "64",
            "65",
            "4k",
            "10M",
            "16Gi",
            "8192Mi",
            "0.5",
            "500m",
            "-1",
            "1e3",
            "1E999",
            "8 GiB",
            "8gb",
            "",
            "Gi",
            "9" * 60,
            "99999999999999999999Ei",
            "1500k",
            "1Ki",
        ]
    ),
    st.text(max_size=6),
)
words = st.one_of(
    st.sampled_from(
        [
            "",
            "binpack",
            "spread",
            "numa",
            "numa,binpack",
            "topology-aware",
            "best-fit",
            "packed",
            "slot=1,core=1,memory=3",
            "slot=0,core=0,memory=0",
            "true",
            "maybe",
            "mig",
            "shared",
            "A100, H100",
            ",,",
            "GPU-1",
            "small",
            "other/small",
            '{"numaTopologyPolicy": "SingleNUMANode",}',
            "{,}",
            "main",
            "main,side",
            "x" * 300,
            "void",
            "all",
            "default",
            "force",
            "always",
            "/usr/local/vgpu/libvgpu-1.so",
        ]
    ),
    st.text(max_size=10),
)
quantities = st.one_of(
    st.dictionaries(st.sampled_from([*RESOURCES, "cpu"]), amounts, max_size=4),
    st.dictionaries(st.sampled_from([*RESOURCES, *OTHER_WORDS]), amounts, max_size=3),
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "side", "init", "", "x" * 64])},
    optional={
        "resources": st.none()
        | st.fixed_dictionaries(
            {}, optional={"limits": quantities | st.none(), "requests": quantities | st.none()}
        ),
        "env": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(ENV)},
                optional={"value": words, "valueFrom": st.just({"fieldRef": {}})},
            ),
            max_size=3,
        ),
        "restartPolicy": st.sampled_from(["Always", None]),
        "securityContext": st.fixed_dictionaries({}, optional={"privileged": st.booleans()}),
        "volumeMounts": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.just("v"),
                    "mountPath": st.sampled_from(["/data", "/etc", "/etc/app", "/usr/local/vgpu"]),
                }
            ),
            max_size=2,
        ),
    },
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p")},
            optional={
                "annotations": st.none()
                | st.dictionaries(st.sampled_from(ANNOTATIONS), words, max_size=4),
                "labels": st.just({names.HAMI_WEBHOOK_LABEL: "ignore"}),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(containers, min_size=1, max_size=3)},
            optional={
                "initContainers": st.lists(containers, max_size=2),
                "schedulerName": st.sampled_from(["", "default-scheduler", "hami-scheduler", "x"]),
                "nodeName": st.sampled_from(["", "node-1"]),
                "volumes": st.lists(
                    st.sampled_from(
                        [{"hostPath": {"path": "/etc/cdi"}}, {"hostPath": None}, {"emptyDir": {}}]
                    ),
                    max_size=2,
                ),
            },
        ),
    }
)
sound_quantities = st.fixed_dictionaries(
    {},
    optional={
        NVIDIA.resource_count_name: st.sampled_from([0, 1, "2"]),
        NVIDIA.resource_memory_name: st.sampled_from([0, 4096, "4k", "16Gi", "1000Mi", "0.5Mi"]),
        NVIDIA.resource_memory_percentage_name: st.sampled_from(["0", 30, "100", 101]),
        NVIDIA.resource_core_name: st.sampled_from([0, "50", 100]),
        NVIDIA.resource_priority_name: st.sampled_from(["0", 1]),
        "cpu": st.just("500m"),
    },
)

sound_words = st.sampled_from(
    [
        {"aliyun.com/gpu-mem": 3},
        {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": 30},
        {"aliyun.com/gpu-mem": "16Gi", "aliyun.com/gpu-count": 2},
        {"aliyun.com/gpu-count": "2", "nvidia.com/gpu": 1},
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096},
        {"volcano.sh/vgpu-memory-percentage": 25, "volcano.sh/vgpu-cores": "40"},
    ]
).map(dict)


def container_named(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": st.just(name)},
        optional={
            "resources": st.fixed_dictionaries(
                {},
                optional={
                    "limits": sound_quantities | sound_words,
                    "requests": sound_quantities | sound_words,
                },
            ),
            "env": st.lists(
                st.sampled_from(
                    [
                        {"name": names.ENV_VISIBLE_DEVICES, "value": "none"},
                        {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {}}},
                        {"name": names.ENV_CORE_POLICY, "value": "force"},
                        {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
                    ]
                ),
                max_size=3,
            ),
        },
    )


sound_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "annotations": st.sampled_from(
                    [
                        {names.HAMI_DEVICE_POLICY: "numa,binpack", names.NVIDIA_NUMA_BIND: "true"},
                        {names.HAMI_DEVICE_WEIGHTS: "slot=1,core=1,memory=3"},
                        {names.NVIDIA_USE_TYPE: "A100, H100"},
                        {names.NVIDIA_MODE: "hami-core"},
                    ]
                )
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.tuples(container_named("main"), container_named("side")).map(list)},
            optional={
                "initContainers": st.tuples(container_named("init")).map(list),
                "schedulerName": st.sampled_from(["", "default-scheduler", "hami-scheduler", "x"]),
            },
        ),
    }
)
native_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "annotations": st.sampled_from(
                    [
                        {names.ANNOTATION_CLAIM: "small"},
                        {names.ANNOTATION_CLAIM_TEMPLATE: "small"},
                        {names.ANNOTATION_CLAIM: "small", names.ANNOTATION_SLOTS_ADDED: "main"},
                    ]
                )
            }
        ),
        "spec": st.sampled_from(
            [
                {"containers": [{"name": "main"}, {"name": "side"}]},
                {"containers": [{"name": "main"}], "initContainers": [{"name": "init"}]},
                {"containers": [{"name": "side"}, {"name": "main", "resources": None}]},
            ]
        ),
    }
)
all_pods = st.one_of(pods, sound_pods, native_pods)
configs = st.builds(
    ClusterConfig,
    nvidia=st.builds(
        NvidiaConfig,
        default_memory=st.sampled_from([0, 1024]),
        default_cores=st.sampled_from([0, 30]),
        default_gpu_num=st.sampled_from([1, 2]),
        memory_factor=st.sampled_from([1, 3]),
    ),
    aliyun=st.builds(AliyunConfig, gpu_count_means=st.sampled_from(["percent", "cards"])),
)
claims = st.sampled_from(
    [
        [{}],
        [{"name": "main", "memory": "1Gi"}],
        [{"name": "main"}, {"name": "side", "count": 2}],
        [{"name": "init", "phase": "Init"}],
        [{"phase": "Init"}],
        None,
    ]
)


def claim_of(requests: list[dict[str, Any]] | None) -> VGPUClaim | None:
    return None if requests is None else VGPUClaim.read({"spec": {"requests": requests}})


FIELD_ERROR = re.compile(
    r"[^ ].*?: (?:(?:Invalid|Unsupported|Duplicate) value|Not found|Too many): .+: .+"
    r"|[^ ].*?: (?:Required value|Forbidden|Too long)(?:: .+)?$",
    re.DOTALL,
)


def answer(question: Callable[[], T]) -> T | BadInput | Denied:
    """Return the value, or the refusal as a field error; other exceptions fail the test."""
    try:
        return question()
    except (BadInput, Denied) as error:
        refusal = error
    assert FIELD_ERROR.match(str(refusal)), refusal
    return refusal


@given(raw=all_pods, config=configs)
def test_any_pod_is_read_as_a_spec_or_refused_by_field_value_and_expectation(
    raw: dict[str, Any], config: ClusterConfig
) -> None:
    """Invariant: `read` returns None or a demand whose spec the API accepts, or raises BadInput."""
    try:
        pod = Pod.model_validate(json.loads(json.dumps(raw)))
    except ValueError:
        return
    demand = answer(lambda: read(pod, config))
    if isinstance(demand, BadInput):
        assert demand.field
        assert demand.detail
        return
    if demand is not None and demand.spec is not None:
        assert VGPUClaimSpec.model_validate(demand.spec.to_wire()) == demand.spec
        validate_claim({"spec": demand.spec.to_wire()})
        assert len(set(demand.containers)) == len(demand.spec.requests)


@given(raws=st.lists(sound_pods, min_size=2, max_size=4), config=configs)
def test_a_pod_is_read_after_others_as_it_is_alone(
    raws: list[dict[str, Any]], config: ClusterConfig
) -> None:
    """Invariant: the cached answer for a pod (`alike`) is never used for a different question."""
    pods = [_pod(raw) for raw in raws]
    together = [answer(lambda pod=pod: read(pod, config)) for pod in pods]
    for pod, found in zip(pods, together, strict=True):
        alone = answer(lambda pod=pod: read(pod, config.model_copy()))
        assert str(alone) == str(found)


@given(raw=all_pods, config=configs, requests=claims)
@example(
    raw={
        "metadata": {"name": "p"},
        "spec": {
            "containers": [
                {"name": "main"},
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}},
            ]
        },
    },
    config=ClusterConfig(),
    requests=[{}],
)
def test_a_mutated_pod_needs_no_second_mutation_and_reads_the_same(
    raw: dict[str, Any], config: ClusterConfig, requests: list[dict[str, Any]] | None
) -> None:
    """Invariant: a second call changes and refuses nothing, and no container shows a device."""
    operations = answer(lambda: mutate_pod(raw, config, claim_of(requests)))
    if isinstance(operations, Denied):
        assert operations.code == 422
        assert ": " in operations.message
        return
    patched = jsonpatch.apply_patch(raw, operations)
    assert mutate_pod(patched, config, claim_of(requests)) == []

    before, after = (read(_pod(document), config) for document in (raw, patched))
    if before is not None and before.spec is not None:
        assert after == before
    elif before is not None:
        assert after is not None
        assert after.native == before.native
        assert after.containers
    else:
        assert after is None
        return
    assert patched["metadata"]["labels"]["vgpu.dev/admitted"] == "true"
    for container in (*patched["spec"]["containers"], *patched["spec"].get("initContainers", ())):
        written = [e for e in container["env"] if e["name"] == "NVIDIA_VISIBLE_DEVICES"]
        assert written
        assert all(variable.get("value") == "void" for variable in written)


@given(raw=all_pods, config=configs, requests=claims)
def test_mutation_changes_nothing_but_what_it_owns(
    raw: dict[str, Any], config: ClusterConfig, requests: list[dict[str, Any]] | None
) -> None:
    """Invariant: containers keep everything except our resources and one variable."""
    snapshot = json.dumps(raw, sort_keys=True)
    try:
        operations = mutate_pod(raw, config, claim_of(requests))
    except Denied:
        return
    assert json.dumps(raw, sort_keys=True) == snapshot
    patched = jsonpatch.apply_patch(raw, operations)
    assert _without_ours(patched) == _without_ours(raw)


@given(raw=json_values)
def test_no_json_makes_admission_fail_in_any_other_way_than_a_denial(raw: Any) -> None:
    """Invariant: webhooks answer every request; an unexpected exception would be a 500."""
    config = ClusterConfig()
    for question in (
        lambda: mutate_pod(raw, config, None),
        lambda: mutate_pod({"spec": raw, "metadata": raw}, config, None),
        lambda: mutate_pod({"spec": {"containers": raw}}, config, None),
        lambda: misspelt(raw, config),
        lambda: misspelt({"spec": raw, "metadata": raw}, config),
        lambda: unasked(raw, config),
        lambda: claim_named_by(raw),
        lambda: validate_claim(raw),
        lambda: validate_claim({"spec": raw}),
        lambda: validate_claim({"spec": {"requests": raw}}),
        lambda: validate_claim({"spec": {"requests": [{}]}}, raw),
        lambda: validate_claim(
            {"spec": {"requests": [{}]}}, {"spec": raw, "status": {"allocation": {}}}
        ),
    ):
        given_answer = answer(question)
        assert not isinstance(given_answer, BadInput)
        assert not isinstance(given_answer, Denied) or given_answer.message


@pytest.mark.parametrize("kind", ["limits", "requests"])
@given(amount=amounts, config=configs)
def test_an_ask_for_memory_is_never_taken_for_less_than_nothing_or_more_than_a_device(
    kind: str, amount: Any, config: ClusterConfig
) -> None:
    """Invariant: a gpumem is read as a size, is ignored if it is 0, or is refused."""
    resources = {kind: {NVIDIA.resource_count_name: 1, NVIDIA.resource_memory_name: amount}}
    pod = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    demand = answer(lambda: read(Pod.model_validate(pod), config))
    if isinstance(demand, BadInput):
        assert demand.field == f"spec.containers[0].resources.{kind}[{NVIDIA.resource_memory_name}]"
        return
    assert demand is not None
    assert demand.spec is not None
    memory = demand.spec.requests[0].memory_mib
    assert memory is None or memory >= 1


def _pod(raw: dict[str, Any]) -> Pod:
    return Pod.model_validate(_without_nulls(raw))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _without_ours(raw: dict[str, Any]) -> Any:
    """Return the pod without the fields that admission may write."""
    document = _without_nulls(json.loads(json.dumps(raw)))
    document["spec"].pop("schedulerName", None)
    annotations = document["metadata"].get("annotations", {})
    annotations.pop(names.ANNOTATION_SLOTS_ADDED, None)
    document["metadata"]["annotations"] = annotations
    labels = document["metadata"].get("labels", {})
    labels.pop(names.LABEL_ADMITTED, None)
    document["metadata"]["labels"] = labels
    for section in ("containers", "initContainers"):
        for container in document["spec"].get(section, []):
            resources = container.setdefault("resources", {})
            for kind in ("limits", "requests"):
                amounts_of_others = {
                    name: amount
                    for name, amount in resources.get(kind, {}).items()
                    if name not in (*RESOURCES, *OTHER_WORDS)
                }
                resources[kind] = amounts_of_others
            container["env"] = [
                variable
                for variable in container.get("env", [])
                if variable["name"] != names.ENV_VISIBLE_DEVICES
            ]
    return document
