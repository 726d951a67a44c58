"""Workloads become the pods that their controllers would make, and each pod is placed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.errors import BadInput
from vgpu_operator.cli.__main__ import main
from vgpu_operator.insight.workloads import MOST_PODS, pods_of

NODES = ("a", "b")
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpumem": 8192}}}]},
}


def workload(kind: str, *, api: str = "apps/v1", **spec: Any) -> dict[str, Any]:
    metadata = {"name": "w", "namespace": "team"}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def volcano(*tasks: dict[str, Any]) -> dict[str, Any]:
    return workload("Job", api="batch.volcano.sh/v1alpha1", tasks=list(tasks))


def names(document: dict[str, Any]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(document, NODES)]


@pytest.mark.parametrize(
    ("document", "made"),
    [
        (workload("Deployment", replicas=2, template=TEMPLATE), ["w-0", "w-1"]),
        (workload("Deployment", template=TEMPLATE), ["w-0"]),
        (workload("Deployment", replicas=0, template=TEMPLATE), []),
        (workload("ReplicaSet", replicas=1, template=TEMPLATE), ["w-0"]),
        (workload("StatefulSet", replicas=2, template=TEMPLATE), ["w-0", "w-1"]),
        (workload("DaemonSet", template=TEMPLATE), ["w-a", "w-b"]),
        (workload("Job", api="batch/v1", parallelism=3, template=TEMPLATE), ["w-0", "w-1", "w-2"]),
        (
            workload("Job", api="batch/v1", parallelism=3, completions=2, template=TEMPLATE),
            ["w-0", "w-1"],
        ),
        (
            workload(
                "CronJob",
                api="batch/v1",
                schedule="0 0 * * *",
                jobTemplate={"spec": {"parallelism": 2, "template": TEMPLATE}},
            ),
            ["w-0", "w-1"],
        ),
        (
            volcano(
                {"name": "ps", "template": TEMPLATE},
                {"name": "worker", "replicas": 2, "template": TEMPLATE},
            ),
            ["w-ps-0", "w-worker-0", "w-worker-1"],
        ),
        ({"kind": "Service", "spec": {}}, []),
    ],
)
def test_each_kind_makes_as_many_pods_as_run_side_by_side(
    document: dict[str, Any], made: list[str]
) -> None:
    assert names(document) == made


def test_a_pod_of_a_workload_is_its_template_in_the_workloads_namespace() -> None:
    (pod,) = pods_of(workload("Deployment", template=TEMPLATE), NODES)
    assert pod["kind"] == "Pod"
    assert pod["metadata"] == {"labels": {"app": "x"}, "name": "w-0", "namespace": "team"}
    assert pod["spec"] == TEMPLATE["spec"]


def test_a_daemon_sets_pod_may_run_on_its_node_alone_and_keeps_its_own_terms() -> None:
    own = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": [own]}}}
    spec = {**TEMPLATE["spec"], "affinity": affinity}
    pod, _ = pods_of(workload("DaemonSet", template={**TEMPLATE, "spec": spec}), NODES)
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    here = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    assert term == {**own, "matchFields": [here]}
    assert affinity["nodeAffinity"][required]["nodeSelectorTerms"] == [own]


def test_a_list_is_what_is_in_it_lists_included() -> None:
    inner = {"kind": "PodList", "items": [{"kind": "Pod", "metadata": {"name": "p"}}]}
    claim = {"kind": "VGPUClaim", "metadata": {"name": "c"}}
    both = {"kind": "List", "items": [inner, claim, {"kind": "Service"}]}
    assert names(both) == ["p", "c"]


WORDS = (
    *("kind", "spec", "items", "template", "metadata", "replicas", "parallelism", "tasks"),
    *("jobTemplate", "affinity", "name", "nodeAffinity"),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS) | st.text(max_size=5),
            inner | st.sampled_from(["Deployment", "DaemonSet", "Job", "CronJob", "List"]),
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(
    kind=st.sampled_from(["Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob", "List"]),
    body=st.dictionaries(st.sampled_from(["spec", "metadata", "items"]), plain),
    volcanos=st.booleans(),
)
def test_any_document_yields_pods_or_a_refusal_that_names_a_field(
    kind: str, body: dict[str, Any], volcanos: bool
) -> None:
    """Total: never another error, whatever the document contains."""
    api = "batch.volcano.sh/v1alpha1" if volcanos else "v1"
    document = {"apiVersion": api, "kind": kind, **body}
    try:
        pods = list(itertools.islice(pods_of(document, NODES), 20))
    except BadInput as error:
        pods, refusal = [], error
    else:
        refusal = None
    assert all(isinstance(pod, dict) for pod in pods)
    assert refusal is None or refusal.field


STATE = {
    "nodes": [
        {"name": name, "devices": [{"uuid": f"GPU-{name}", "memoryMiB": 16384}]} for name in NODES
    ]
}


@pytest.fixture
def simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs simulate -f on documents of one file; returns its lines."""

    def simulated(*documents: Any, more: tuple[str, ...] = ()) -> Callable[..., list[str]]:
        (tmp_path / "state").write_text(json.dumps(STATE))
        (tmp_path / "f.yaml").write_text(yaml.safe_dump_all(documents))
        files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "f.yaml")]
        assert main(["simulate", *files, *more]) == 0
        return capsys.readouterr().out.splitlines()

    return simulated


def test_the_pods_of_a_file_are_placed_one_after_the_other_and_hold_what_they_got(
    simulated: Callable[..., list[str]],
) -> None:
    lines = simulated(
        workload("Deployment", replicas=3, template=TEMPLATE),
        {"kind": "Service", "metadata": {"name": "s"}},
        workload("DaemonSet", template=TEMPLATE),
    )
    assert [line.partition(" (")[0] for line in lines[:3]] == [
        "w-0: a: GPU-a",
        "w-1: a: GPU-a",
        "w-2: b: GPU-b",
    ]
    assert lines[3].startswith("w-a: refused: ")
    assert lines[4].startswith("w-b: b: GPU-b")
    assert lines[-1].startswith("4 placed, 1 refused")


def test_the_one_pod_of_a_workload_is_answered_with_the_reasons_of_all_nodes(
    simulated: Callable[..., list[str]],
) -> None:
    (answer,) = [
        json.loads("".join(simulated(workload("Job", template=TEMPLATE), more=("-o", "json"))))
    ]
    assert (answer["id"], answer["node"], {*answer["nodes"]}) == ("w-0", "a", {"a", "b"})


def test_more_pods_than_can_be_meant_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text(json.dumps(STATE))
    documents = [workload("Deployment", replicas=MOST_PODS, template=TEMPLATE)] * 2
    (tmp_path / "f.yaml").write_text(json.dumps({"kind": "List", "items": documents}))
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "f.yaml")]
    assert main(["simulate", *files]) == 2
    assert "more than 10000 pods" in capsys.readouterr().err
