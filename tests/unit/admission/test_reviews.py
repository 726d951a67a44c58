"""Reviews of pods and claims: the API server's form, around the rules of admission."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from vgpu_api.config import ClusterConfig, ConfigFile
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer
from vgpu_operator.admission import reviews as reviewing

ADMITTED = {"resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}}}


def a_review(pod: Any, **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "r", "namespace": "default", "object": pod, **request},
    }


def a_pod(container: dict[str, Any] = ADMITTED, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", **metadata},
        "spec": {"containers": [{"name": "main", "image": "none", **container}]},
    }


class Reviews:
    """The webhooks' answers, and a server behind them that can be stopped."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server = server
        self._answers = reviewing.Reviews(api, ConfigFile(None, ClusterConfig())).answers

    async def of(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        answer = await self._answers[path](review)
        assert (answer["apiVersion"], answer["kind"]) == (review["apiVersion"], review["kind"])
        response: dict[str, Any] = answer["response"]
        assert response.pop("uid") == "r"
        return response


@pytest.fixture
async def reviews(tmp_path: Path) -> AsyncIterator[Reviews]:
    with ApiServer() as server:
        async with Api.connect(str(server.kubeconfig(tmp_path / "kubeconfig"))) as api:
            yield Reviews(server, api)


async def test_the_patch_makes_the_pod_one_that_needs_no_patch(reviews: Reviews) -> None:
    """The API server's second call changes nothing, and the pod is admitted."""
    pod = a_pod()
    first = await reviews.of("mutate-pods", a_review(pod))
    assert first["allowed"]
    assert first["patchType"] == "JSONPatch"
    patched = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(first["patch"])))
    (container,) = patched["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert await reviews.of("mutate-pods", a_review(patched)) == {"allowed": True}


async def test_a_refusal_names_the_field_and_has_its_code(reviews: Reviews) -> None:
    answer = await reviews.of("mutate-pods", a_review(a_pod({"resources": {"limits": {
        "nvidia.com/gpu": 1, "nvidia.com/gpucores": 150}}})))  # fmt: skip
    assert answer["allowed"] is False
    assert answer["status"]["code"] == 422
    assert "nvidia.com/gpucores" in answer["status"]["message"]


async def test_a_warning_goes_to_the_author(reviews: Reviews) -> None:
    answer = await reviews.of(
        "warn-pods", a_review(a_pod(annotations={"nvidia.com/use-gputyp": "a"}))
    )
    assert answer["allowed"] is True
    (warning,) = answer["warnings"]
    assert "nvidia.com/use-gputype" in warning


async def test_one_review_of_a_pod_that_asks_has_all_warnings(reviews: Reviews) -> None:
    """They concern its author's words, their effect, and the pod as it will be stored."""
    pod = a_pod(
        {**ADMITTED, "env": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]},
        annotations={"nvidia.com/use-gputyp": "a"},
    )
    pod["spec"]["schedulerName"] = "another"
    answer = await reviews.of("mutate-pods", a_review(pod))
    assert answer["allowed"] is True
    for said in ("CUDA_TASK_PRIORITY", "did you mean nvidia.com/use-gputype", "spec.schedulerName"):
        assert [warning for warning in answer["warnings"] if said in warning], said


async def test_a_claim_that_is_not_there_yet_is_warned_about(reviews: Reviews) -> None:
    pod = a_pod({}, annotations={"vgpu.dev/claim": "later"})
    answer = await reviews.of("mutate-pods", a_review(pod))
    assert answer["allowed"] is True
    assert any("later" in warning for warning in answer["warnings"])


async def test_while_the_api_server_is_away_a_pod_that_needs_it_is_refused_as_to_be_tried_again(
    tmp_path: Path,
) -> None:
    with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    async with Api.connect(str(kubeconfig)) as api:
        pod = a_pod({}, annotations={"vgpu.dev/claim": "one"})
        answer = await Reviews(server, api).of("mutate-pods", a_review(pod))
    assert answer["allowed"] is False
    assert answer["status"]["code"] == 503
    assert "try again" in answer["status"]["message"]


@pytest.mark.parametrize("no_pod", [None, [], "pod"])
async def test_a_review_without_a_pod_is_refused_by_field(reviews: Reviews, no_pod: Any) -> None:
    answer = await reviews.of("mutate-pods", a_review(no_pod))
    assert answer == {
        "allowed": False,
        "status": {"message": "request.object: Required value: an object", "code": 400},
    }


def a_claim(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"requests": [{"memory": "1000Mi"}], **spec},
    }


async def test_an_immediate_claim_gets_the_finalizer_once(reviews: Reviews) -> None:
    claim = a_claim(bindingMode="Immediate")
    first = await reviews.of("mutate-claims", a_review(claim))
    patched = jsonpatch.apply_patch(claim, json.loads(base64.b64decode(first["patch"])))
    assert patched["metadata"]["finalizers"] == [FINALIZER_IN_USE]
    assert await reviews.of("mutate-claims", a_review(patched)) == {"allowed": True}
    assert await reviews.of("validate-claims", a_review(patched)) == {"allowed": True}


async def test_a_claim_is_refused_by_field_and_bound_by_the_configuration(
    reviews: Reviews,
) -> None:
    answer = await reviews.of("validate-claims", a_review(a_claim(schedulingPriority=10**6)))
    assert answer["allowed"] is False
    assert answer["status"]["code"] == 422
    assert "spec.schedulingPriority" in answer["status"]["message"]


async def test_an_update_is_judged_beside_what_is_stored(reviews: Reviews) -> None:
    """A claim that was stored while its priority was allowed may keep it."""
    stored = a_claim(bindingMode="Immediate", schedulingPriority=10**6)
    changed = a_claim(bindingMode="Immediate", schedulingPriority=10**6, ttlSecondsAfterUnused=60)
    review = a_review(changed, oldObject=stored)
    assert await reviews.of("validate-claims", review) == {"allowed": True}


@pytest.mark.parametrize("no_old", [[], "claim", 3])
async def test_an_old_object_that_is_none_is_refused_by_field(
    reviews: Reviews, no_old: Any
) -> None:
    answer = await reviews.of("validate-claims", a_review(a_claim(), oldObject=no_old))
    assert answer == {
        "allowed": False,
        "status": {"message": "request.oldObject: Required value: an object", "code": 400},
    }


@pytest.mark.parametrize(("path", "allowed"), [("mutate-pods", False), ("warn-pods", True)])
async def test_a_pod_of_more_containers_than_any_real_one_is_not_read(
    reviews: Reviews, path: str, allowed: bool
) -> None:
    """Reading costs time for each container.

    A pod that only gets warnings is not refused for its length.
    """
    pod = a_pod()
    pod["spec"]["containers"] += [{"name": f"c{number}"} for number in range(250)]
    answer = await reviews.of(path, a_review(pod))
    assert answer["allowed"] is allowed
    (said,) = answer["warnings"] if allowed else [answer["status"]["message"]]
    assert "spec.containers: Too many: 251: must have at most 250 items" in said
