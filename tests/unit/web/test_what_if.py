"""The what-if page predicts the fate of pasted pods and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import GATE, ROOM, a_node
from storage_objects import a_volume, a_volume_claim, read
from vgpu_api.config import ClusterConfig
from vgpu_api.resources import (
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from vgpu_client.clock import Clock
from vgpu_operator.engine import events
from vgpu_operator.insight.documents import BadDocument
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.web import views
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused
from vgpu_operator.web.what_if import MOST_PODS, documents, namespaces, what_if
from web_world import a_holder, a_mirror

ADMIN = Sight("admin", devices=True, nodes=True, everywhere=True)
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: asks, namespace: {namespace}}}
spec:
  containers:
  - name: main
    image: x
    resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: {memory}}}}}
"""


def asked(text: str, mirror: Mirror | None = None, sight: Sight = ADMIN) -> Any:
    return what_if(mirror or a_mirror(), sight, documents(text), Priorities())


def pod(memory: int = 4096, namespace: str = "default") -> str:
    return POD.format(memory=memory, namespace=namespace)


def test_a_pod_that_fits_is_given_its_node_and_devices() -> None:
    found = asked(pod())
    (answer,) = found["pods"]
    assert answer["node"].startswith("node-")
    (device,) = answer["devices"]
    assert (device["container"], device["memoryMiB"]) == ("main", 4096)
    verdicts = [each["verdict"] for each in found["nodes"]]
    assert verdicts == ["would be chosen", "would serve"]
    assert found["nodes"][0]["name"] == answer["node"]


def test_a_pod_that_fits_nowhere_is_refused_with_the_claims_that_are_in_its_way() -> None:
    mirror = a_mirror(nodes=1, devices=1, claims=[a_holder("a", memory_mib=12_288)])
    found = asked(pod(8192), mirror)
    assert "CardInsufficientMemory" in found["pods"][0]["refused"]
    assert found["nodes"][0]["end_first"] == ["default/a"]


VOLUME = "  volumes:\n  - {name: d, persistentVolumeClaim: {claimName: data}}\n"
WITH_VOLUMES = replace(ADMIN, volumes=frozenset({"default"}))


def test_behind_the_gate_a_pods_volumes_and_its_room_are_judged() -> None:
    mirror = a_mirror(config=GATE)
    (answer,) = asked(pod() + VOLUME, mirror, WITH_VOLUMES)["pods"]
    assert answer["refused"] == "PersistentVolumeClaim data does not exist yet"
    for obj in (a_volume("v", nodes=["node-1"]), a_volume_claim(volume="v")):
        mirror.observe(events.StorageObserved(read(obj)))
    found = asked(pod() + VOLUME, mirror, WITH_VOLUMES)
    assert found["pods"][0]["refused"].startswith("2/2 NodeVolumeMismatch; ")
    assert {each["verdict"] for each in found["nodes"]} == {"1/1 NodeVolumeMismatch"}
    labels = {"kubernetes.io/hostname": "node-1"}
    node = a_node("node-1", labels=labels, allocatable=ROOM, resource_version=2)
    mirror.observe(events.NodeObserved(node))
    (answer,) = asked(pod() + VOLUME, mirror, WITH_VOLUMES)["pods"]
    assert (answer["node"], answer["notJudged"]) == ("node-1", "")
    too_much = pod().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, cpu: 99")
    (answer,) = asked(too_much, mirror)["pods"]
    assert answer["refused"].startswith("2/2 NodeInsufficientResources")


def test_who_may_not_list_volume_claims_is_answered_without_volumes_and_told_so() -> None:
    mirror = a_mirror(config=GATE)
    (answer,) = asked(pod() + VOLUME, mirror)["pods"]
    assert answer["node"].startswith("node-")
    assert answer["notJudged"] == (
        'volumes are not judged: user "admin" cannot list persistentvolumeclaims in namespace'
        ' "default"'
    )
    for config, text in ((GATE, pod()), (ClusterConfig(), pod() + VOLUME)):
        (answer,) = asked(text, a_mirror(config=config))["pods"]
        assert answer["notJudged"] == ""


def test_a_page_that_may_not_list_volumes_names_their_kinds() -> None:
    mirror = Mirror(GATE, Clock())
    for kind in (PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, PODS):
        mirror.note_listed(kind)
    assert mirror.unread.volumes == "this page has not listed csinodes, persistentvolumes"
    (answer,) = asked(pod() + VOLUME, mirror, WITH_VOLUMES)["pods"]
    assert answer["notJudged"].startswith("volumes are not judged: this page has not listed csi")
    before = mirror.version
    for kind in (CSI_NODES, PERSISTENT_VOLUMES):
        mirror.note_listed(kind)
    assert (mirror.unread.volumes, mirror.version) == ("", before + 2)


def test_pods_behind_the_gate_take_room_from_those_after_them_and_nothing_stays() -> None:
    mirror = a_mirror(nodes=1, config=GATE)
    five = pod().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, cpu: 5")
    for _ in range(2):
        found = asked("---".join([five] * 2), mirror)
        assert [each["refused"].split(";")[0] for each in found["pods"]] == [
            "",
            "1/1 NodeInsufficientResources",
        ]
    (node,) = asked(five, mirror)["nodes"]
    assert node["verdict"] == "would be chosen"


def test_pods_are_placed_one_after_the_other_and_nothing_stays() -> None:
    mirror = a_mirror(nodes=1, devices=1)
    before = views.fleet(mirror, ADMIN)
    found = asked("---".join([pod(12_000)] * 2), mirror)
    assert [bool(each["refused"]) for each in found["pods"]] == [False, True]
    assert found["of"] == "asks"
    assert views.fleet(mirror, ADMIN) == before


def test_admission_has_its_say() -> None:
    found = asked(pod().replace("gpumem: 4096", "gpumem: -1"))
    assert "gpumem" in found["pods"][0]["refused"]
    assert found["nodes"] == []


def test_a_pod_without_a_gpu_is_told_so() -> None:
    text = "kind: Pod\nmetadata: {name: plain}\nspec: {containers: [{name: a, image: x}]}"
    assert asked(text)["pods"][0]["refused"] == "the pod asks for no GPU"


def test_namespaces_are_those_of_the_pods_also_of_a_daemon_set() -> None:
    text = """
kind: DaemonSet
apiVersion: apps/v1
metadata: {name: d, namespace: mine}
spec: {template: {spec: {containers: [{name: a, image: x}]}}}
"""
    assert namespaces(documents(text + "---" + pod())) == {"mine", "default"}


def test_it_takes_the_right_to_devices_and_to_the_namespaces_claims() -> None:
    found = documents(pod(namespace="theirs"))
    with pytest.raises(VisitorRefused, match=r"cannot list gpudevices\.vgpu\.dev"):
        what_if(a_mirror(), Sight("t", namespaces=frozenset({"theirs"})), found, Priorities())
    with pytest.raises(VisitorRefused, match='in namespace "theirs"'):
        what_if(a_mirror(), Sight("t", devices=True), found, Priorities())


@pytest.mark.parametrize("text", ["", "kind: Service", "a: [", "a: !!int x"])
def test_what_is_no_pod_is_refused(text: str) -> None:
    with pytest.raises(BadDocument, match="the text: "):
        documents(text)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(BadDocument):
        documents("\n".join(lines))


def test_more_pods_than_are_simulated_at_once_are_refused() -> None:
    text = f"""
kind: Deployment
metadata: {{name: d}}
spec: {{replicas: {MOST_PODS + 1}, template: {{spec: {{containers: [{{name: a}}]}}}}}}
"""
    with pytest.raises(BadDocument, match="more than 64 pods"):
        namespaces(documents(text))
