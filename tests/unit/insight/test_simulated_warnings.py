"""A simulated pod gets the warnings that the webhooks would give its author."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest

from memory_api import MemoryApi
from replica import Replica
from vgpu_api.config import ClusterConfig, ConfigFile
from vgpu_client.errors import NotFound
from vgpu_operator.admission.reviews import Reviews
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.insight.live_cluster import LiveCluster
from vgpu_operator.insight.question import warnings_about

Document = dict[str, Any]


def a_raw_pod(limits: Document | None = None, annotations: Any = (), **spec: Any) -> Document:
    amounts = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000} if limits is None else limits
    container = {"name": "main", "image": "i", "resources": {"limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "annotations": dict(annotations)},
        "spec": {"containers": [container], **spec},
    }


CLAIM = {
    "apiVersion": "vgpu.dev/v1alpha1",
    "kind": "VGPUClaim",
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {"requests": [{"name": "main", "memory": "1Gi"}], "schedulingPriority": 5},
}
WARNED = {
    "a misspelt annotation": a_raw_pod(annotations={"nvidia.com/use-gputyp": "a"}),
    "a misspelt resource": a_raw_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumemm": 1}),
    "another scheduler": a_raw_pod(schedulerName="other"),
    "a count of none": a_raw_pod({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 1}),
    "a variable without effect": {
        **a_raw_pod(),
        "spec": {
            "containers": [
                {
                    **a_raw_pod()["spec"]["containers"][0],
                    "env": [{"name": "CUDA_OVERSUBSCRIBE", "value": "1"}],
                }
            ]
        },
    },
    "another vendor's amount": a_raw_pod({"huawei.com/Ascend910B3-memory": 1}),
    "a claim": CLAIM,
}


class _NoObjects:
    """An API server that has no objects."""

    async def get(self, *_: Any, **__: Any) -> Any:
        raise NotFound("none", status=404)


async def by_webhooks(document: Document, config: ClusterConfig) -> list[str]:
    """Return the warnings of all webhooks, in the order in which the API server asks them.

    Like the API server, ask no other webhook about a pod with the mark, and repeat no warning.
    """
    reviews = Reviews(_NoObjects(), ConfigFile(None, config))  # type: ignore[arg-type]
    kind = "claims" if document["kind"] == "VGPUClaim" else "pods"
    found, obj = [], copy.deepcopy(document)
    for verb in ("mutate", "validate" if kind == "claims" else "warn"):
        if verb == "warn" and "vgpu.dev/admitted" in obj["metadata"].get("labels", {}):
            continue
        request = {"uid": "r", "namespace": "default", "object": obj}
        answer = (await reviews.answers[f"{verb}-{kind}"]({"request": request}))["response"]
        assert answer["allowed"], answer
        found += answer.get("warnings", [])
        obj = _patched(obj, answer)
    return list(dict.fromkeys(found))


def _patched(obj: Document, answer: Document) -> Document:
    if "patch" not in answer:
        return obj
    return applied(obj, json.loads(base64.b64decode(answer["patch"])))


@pytest.mark.parametrize("name", WARNED)
async def test_the_warnings_are_those_of_the_webhooks(name: str) -> None:
    config, document = ClusterConfig(), WARNED[name]
    expected = await by_webhooks(document, config)
    assert expected
    cluster = LiveCluster(Replica(MemoryApi(), config=config).state)
    before = copy.deepcopy(document)
    assert warnings_about(document, cluster, admit=True) == expected
    assert document == before


async def test_a_pod_in_order_and_a_pod_that_is_refused_get_none() -> None:
    cluster = LiveCluster(Replica(MemoryApi()).state)
    assert warnings_about(a_raw_pod(), cluster, admit=True) == []
    assert await by_webhooks(a_raw_pod(), ClusterConfig()) == []
    refused = a_raw_pod({"nvidia.com/gpu": -1})
    assert warnings_about(refused, cluster, admit=True) == []


async def test_a_claim_that_does_not_exist_yet_is_warned_of() -> None:
    cluster = LiveCluster(Replica(MemoryApi()).state)
    pod = a_raw_pod({}, annotations={"vgpu.dev/claim": "c"})
    assert warnings_about(pod, cluster, admit=True) == await by_webhooks(pod, ClusterConfig())
