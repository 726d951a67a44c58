from __future__ import annotations

from typing import Any

import pytest

from rest import PODS, Json, Refused, Rest, a_pod


def a_binding(node: str, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def bound(rest: Rest, **spec: Any) -> Json:
    """Return a pod bound to a node of its own test: a pod whose node is missing is soon deleted."""
    await rest.create(PODS, a_pod(**spec))
    await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace))
    return await rest.get(f"{PODS}/p")


async def test_a_pod_is_defaulted_as_the_real_server_does(rest: Rest):
    resources = {"limits": {"nvidia.com/gpumem": 4000, "memory": "16384Mi"}}
    pod = await rest.create(PODS, a_pod(container={"resources": resources}))
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Always", "default-scheduler")
    assert spec["terminationGracePeriodSeconds"] == 30
    amounts = {"nvidia.com/gpumem": "4k", "memory": "16Gi"}
    assert spec["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert pod["status"] == {"phase": "Pending", "qosClass": "Burstable"}


@pytest.mark.parametrize(
    ("resources", "status", "says"),
    [
        (
            {"limits": {"nvidia.com/gpu": "8GB"}},
            400,
            "quantities must match the regular expression",
        ),
        ({"limits": {"nvidia.com/gpu": []}}, 400, "quantities must match the regular expression"),
        ({"limits": {"nvidia.com/gpu": "1.5"}}, 422, "must be an integer"),
        ({"limits": {"nvidia.com/gpu": "-1"}}, 422, "must be greater than or equal to 0"),
        ({"requests": {"nvidia.com/gpu": "1"}}, 422, "Limit must be set"),
        (
            {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}},
            422,
            "must be equal to nvidia.com/gpu limit",
        ),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, 422, "must be less than or equal to"),
    ],
)
async def test_a_wrong_amount_is_refused(rest: Rest, resources: Json, status: int, says: str):
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod(container={"resources": resources}))
    assert refused.value.status == status
    assert says in refused.value.message


async def test_a_binding_gives_the_pod_its_node_and_its_annotations(rest: Rest):
    pod = await rest.create(PODS, a_pod())
    binding = a_binding(
        rest.namespace, uid=pod["metadata"]["uid"], annotations={"x.dev/a": "1"}, labels={"x": "1"}
    )
    answer = await rest.create(f"{PODS}/p/binding", binding)
    assert answer["status"] == "Success"
    pod = await rest.get(f"{PODS}/p")
    assert pod["spec"]["nodeName"] == rest.namespace
    assert pod["metadata"]["annotations"] == {"x.dev/a": "1"}
    assert (pod["metadata"]["labels"], pod["metadata"]["generation"]) == ({"x": "1"}, 1)
    assert [c["type"] for c in pod["status"]["conditions"]] == ["PodScheduled"]
    selector = f"spec.nodeName={rest.namespace}"
    assert await rest.names(PODS, fieldSelector=selector) == ["p"]


async def test_a_binding_of_nothing_is_404_and_one_to_nowhere_500(rest: Rest):
    with pytest.raises(Refused) as refused:
        await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace))
    assert refused.value.status == 404
    await rest.create(PODS, a_pod())
    with pytest.raises(Refused) as refused:
        await rest.create(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {}})
    assert refused.value.status == 500


async def test_a_binding_must_carry_the_name_of_its_pod(rest: Rest):
    await rest.create(PODS, a_pod())
    with pytest.raises(Refused) as refused:
        await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace, name="q"))
    assert refused.value.status == 400


async def test_a_gated_pod_is_not_bound(rest: Rest):
    await rest.create(PODS, a_pod(schedulingGates=[{"name": "x.dev/wait"}]))
    with pytest.raises(Refused) as refused:
        await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace))
    assert "non-empty .spec.schedulingGates" in refused.value.message
    await rest.merge(f"{PODS}/p", {"spec": {"schedulingGates": None}})
    await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace))


async def test_the_node_of_a_pod_cannot_be_written_otherwise(rest: Rest):
    await rest.create(PODS, a_pod())
    with pytest.raises(Refused) as refused:
        await rest.merge(f"{PODS}/p", {"spec": {"nodeName": "n1"}})
    assert refused.value.status == 422
    assert "pod updates may not change fields other than" in refused.value.message


def affinity(*terms: Json) -> Json:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": list(terms)}}}


ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
NAME = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
GATED = {"schedulingGates": [{"name": "x.dev/wait"}]}


@pytest.mark.parametrize(
    ("before", "after", "is_accepted"),
    [
        (None, affinity({"matchFields": [NAME]}), True),
        (affinity({"matchExpressions": [ZONE]}),
         affinity({"matchExpressions": [ZONE], "matchFields": [NAME]}), True),
        (affinity({"matchExpressions": [ZONE]}), affinity({"matchFields": [NAME]}), False),
        (affinity({"matchExpressions": [ZONE]}),
         affinity({"matchExpressions": [ZONE]}, {"matchFields": [NAME]}), False),
        (affinity({}), affinity({"matchFields": [NAME]}), False),
        (None, {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}, False),
    ],
)  # fmt: skip
async def test_the_affinity_of_a_gated_pod_to_nodes_may_be_narrowed_and_no_other_pods_may(
    rest: Rest, before: Json | None, after: Json, *, is_accepted: bool
):
    """Kubernetes does the same (KEP-3838), which tests/integration/real/test_gate_real.py shows."""
    given = {} if before is None else {"affinity": before}
    change = {"spec": {"affinity": after, "schedulingGates": None}}
    await rest.create(PODS, a_pod(**GATED, **given))
    if is_accepted:
        await rest.merge(f"{PODS}/p", change)
    else:
        with pytest.raises(Refused):
            await rest.merge(f"{PODS}/p", change)
    await rest.delete(f"{PODS}/p")
    await rest.create(PODS, a_pod(**given))
    with pytest.raises(Refused):
        await rest.merge(f"{PODS}/p", {"spec": {"affinity": after}})


async def test_an_unbound_pod_goes_at_once(rest: Rest):
    await rest.create(PODS, a_pod())
    await rest.delete(f"{PODS}/p")
    assert await rest.names(PODS) == []


async def test_a_bound_pod_waits_for_its_kubelet(rest: Rest):
    pod = await bound(rest)
    deleting = await rest.delete(f"{PODS}/p")
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 30
    assert "deletionTimestamp" in (await rest.get(f"{PODS}/p"))["metadata"]
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
    await rest.delete(f"{PODS}/p", options)
    assert await rest.names(PODS) == []


async def test_a_shorter_grace_replaces_a_longer_one_but_not_the_other_way(rest: Rest):
    await bound(rest, terminationGracePeriodSeconds=60)
    await rest.delete(f"{PODS}/p")
    shorter = await rest.delete(f"{PODS}/p", gracePeriodSeconds="5")
    longer = await rest.delete(f"{PODS}/p", gracePeriodSeconds="50")
    graces = [obj["metadata"]["deletionGracePeriodSeconds"] for obj in (shorter, longer)]
    assert graces == [5, 5]


async def test_a_finished_pod_goes_at_once(rest: Rest):
    await bound(rest)
    await rest.strategic(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    await rest.delete(f"{PODS}/p")
    assert await rest.names(PODS) == []


async def test_a_pods_finalizer_outlives_its_kubelet(rest: Rest):
    pod = a_pod()
    pod["metadata"]["finalizers"] = ["x.dev/keep"]
    await rest.create(PODS, pod)
    await rest.create(f"{PODS}/p/binding", a_binding(rest.namespace))
    await rest.delete(f"{PODS}/p")
    await rest.delete(f"{PODS}/p", gracePeriodSeconds="0")
    assert await rest.names(PODS) == ["p"]
    await rest.merge(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert await rest.names(PODS) == []


async def test_an_eviction_deletes(rest: Rest):
    await rest.create(PODS, a_pod())
    await rest.create(f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    assert await rest.names(PODS) == []


async def test_the_kubelet_annotates_through_status_but_cannot_change_the_spec(rest: Rest):
    await rest.create(PODS, a_pod())
    written = await rest.merge(
        f"{PODS}/p/status",
        {
            "metadata": {"annotations": {"a": "1"}},
            "spec": {"nodeName": "n9"},
            "status": {"phase": "Running"},
        },
    )
    assert written["metadata"]["annotations"] == {"a": "1"}
    assert written["status"]["phase"] == "Running"
    assert "nodeName" not in written["spec"]
