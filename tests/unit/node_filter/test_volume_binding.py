"""Nodes that a pod's volumes allow, by the rules of kube-scheduler's volume plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from builders import a_node, a_pod
from storage_objects import (
    DRIVER,
    HOSTNAME,
    LOCAL,
    ZONAL,
    ZONE,
    Object,
    a_csi_node,
    a_local_class,
    a_storage_class,
    a_volume,
    a_volume_claim,
    read,
    using,
)
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_operator.node_filter.node_rules import NodeFilters
from vgpu_operator.node_filter.storage_objects import (
    NodeDrivers,
    Volume,
    VolumeClaim,
    VolumeClass,
    volume_claims_of,
)
from vgpu_operator.node_filter.volume_binding import Volumes
from vgpu_operator.placement.columns import Columns, NodeState

ZONES = {"n0": "a", "n1": "a", "n2": "b"}
NOT_READY, IN_USE = Reason.VOLUME_CLAIM_NOT_READY, Reason.VOLUME_CLAIM_IN_USE


def volumes(
    *objects: Object,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    filters: NodeFilters | None = None,
) -> Volumes:
    """Return three nodes in two zones, two classes, and the given objects."""
    columns, filters = Columns(), filters or NodeFilters()
    for number, (name, zone) in enumerate(ZONES.items()):
        columns.put_node(name, NodeState())
        own = {HOSTNAME: name, ZONE: zone} if labels is None else labels.get(name, {})
        filters.put(number, a_node(name, labels=own))
    made = Volumes(columns, filters)
    for obj in (a_storage_class(), a_local_class(), *objects):
        made.observe(read(obj))
    return made


def pod(name: str = "pod-1", *claims: str) -> Pod:
    return a_pod(name, **using(*claims))


def nodes(made: Volumes, *claims: str, without: str = "") -> list[str]:
    """Return the nodes where a pod with these claims may go, without regard to limits."""
    bits = made.of(volume_claims_of(pod("pod-1", *claims)), without=without).reached
    return [name for number, name in enumerate(ZONES) if bits >> number & 1]


def attachable(made: Volumes, *claims: str) -> list[str]:
    bits = made.of(volume_claims_of(pod("pod-1", *claims))).attachable
    return [name for number, name in enumerate(ZONES) if bits >> number & 1]


def refusal(made: Volumes, *claims: str, name: str = "pod-1") -> tuple[Reason, str]:
    found = made.refusal(pod(name, *claims))
    assert found is not None
    return found


# Claims that are bound.


def test_a_pod_without_volumes_goes_anywhere() -> None:
    assert nodes(volumes()) == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("where", "found"),
    [({"nodes": ["n1"]}, ["n1"]), ({"zones": ["b"]}, ["n2"]), ({}, ["n0", "n1", "n2"])],
)
def test_a_bound_claim_is_reached_where_its_volume_is(where: Any, found: list[str]) -> None:
    made = volumes(a_volume_claim(volume="v"), a_volume("v", claim="data", **where))
    assert made.refusal(pod("pod-1", "data")) is None
    assert nodes(made, "data") == found


def test_every_volume_of_a_pod_must_be_reached() -> None:
    made = volumes(
        a_volume_claim("one", volume="v1"),
        a_volume("v1", zones=["a"]),
        a_volume_claim("two", volume="v2"),
        a_volume("v2", nodes=["n1", "n2"]),
    )
    assert nodes(made, "one", "two") == ["n1"]


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ({ZONE: "b"}, ["n2"]),
        ({ZONE: "a__b"}, ["n0", "n1", "n2"]),
        ({"failure-domain.beta.kubernetes.io/zone": "a"}, ["n0", "n1"]),
        ({"topology.kubernetes.io/region": "r"}, []),
        ({"example.com/zone": "b"}, ["n0", "n1", "n2"]),
    ],
)
def test_labels_of_zones_on_a_volume_count_as_its_affinity(
    label: dict[str, str], found: list[str]
) -> None:
    made = volumes(a_volume_claim(volume="v"), a_volume("v", labels=label))
    assert nodes(made, "data") == found


def test_a_node_without_any_zone_is_in_the_zone_of_every_volume() -> None:
    """Such clusters have only one zone."""
    labels = {"n0": {ZONE: "a"}, "n1": {"topology.kubernetes.io/region": "r"}, "n2": {}}
    made = volumes(a_volume_claim(volume="v"), a_volume("v", labels={ZONE: "b"}), labels=labels)
    assert nodes(made, "data") == ["n2"]


def test_a_node_with_the_former_label_is_judged_by_that() -> None:
    former = "failure-domain.beta.kubernetes.io/zone"
    labels = {"n0": {former: "a", ZONE: "b"}, "n1": {ZONE: "b"}, "n2": {former: "b"}}
    made = volumes(a_volume_claim(volume="v"), a_volume("v", labels={former: "b"}), labels=labels)
    assert nodes(made, "data") == ["n1", "n2"]


# Claims that wait for their first consumer.


def test_a_volume_can_be_made_on_every_node() -> None:
    assert nodes(volumes(a_volume_claim()), "data") == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("topologies", "found"),
    [
        ([{ZONE: ["a"]}], ["n0", "n1"]),
        ([{ZONE: ["a"], HOSTNAME: ["n1"]}], ["n1"]),
        ([{ZONE: ["b"]}, {HOSTNAME: ["n0"]}], ["n0", "n2"]),
        ([{}], []),
    ],
)
def test_a_class_says_where_its_volumes_are_made(
    topologies: list[dict[str, list[str]]], found: list[str]
) -> None:
    made = volumes(a_storage_class(topologies=topologies), a_volume_claim())
    assert nodes(made, "data") == found


def test_a_volume_that_is_being_made_for_a_node_is_waited_for_there() -> None:
    claim = a_volume_claim(
        metadata={"annotations": {"volume.kubernetes.io/selected-node": "n1"}}, bound=False
    )
    free = a_volume("free", nodes=["n2"])  # it has been decided, so no other volume is taken
    assert nodes(volumes(claim, free), "data") == ["n1"]


def test_a_local_volume_is_taken_where_one_serves() -> None:
    made = volumes(
        a_volume_claim(class_name=LOCAL, size="2Gi"),
        a_volume("small", class_name=LOCAL, nodes=["n0"], size="1Gi"),
        a_volume("right", class_name=LOCAL, nodes=["n1"], size="2Gi"),
        a_volume("other", class_name="other", nodes=["n2"], size="2Gi"),
    )
    assert nodes(made, "data") == ["n1"]


@pytest.mark.parametrize(
    "volume",
    [
        a_volume("v", class_name=LOCAL, phase="Released"),
        a_volume("v", class_name=LOCAL, claim="another"),
        a_volume("v", class_name=LOCAL, claim="data", claim_uid="of-a-former-one"),
        a_volume("v", class_name=LOCAL, volumeMode="Block"),
        a_volume("v", class_name=LOCAL, accessModes=["ReadOnlyMany"]),
        a_volume("v", class_name=LOCAL, volumeAttributesClassName="fast"),
        a_volume("v", class_name=LOCAL, labels={"tier": "slow"}),
        a_volume("v", class_name=LOCAL, size="1023Mi"),
    ],
    ids=["phase", "claim", "uid", "mode", "access", "attributes", "labels", "size"],
)
def test_a_volume_that_does_not_match_serves_no_claim(volume: Object) -> None:
    claim = a_volume_claim(class_name=LOCAL, selector={"matchLabels": {"tier": "fast"}})
    volume["metadata"]["labels"].setdefault("tier", "fast")
    assert nodes(volumes(claim, volume), "data") == []
    right = a_volume("w", class_name=LOCAL, labels={"tier": "fast"})
    assert nodes(volumes(claim, volume, right), "data") == ["n0", "n1", "n2"]


def test_a_volume_that_is_being_deleted_serves_no_claim() -> None:
    going = a_volume("v", class_name=LOCAL)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert nodes(volumes(a_volume_claim(class_name=LOCAL), going), "data") == []


def test_a_volume_that_names_the_claim_is_its_volume_whatever_else_is_free() -> None:
    made = volumes(
        a_volume_claim(class_name=LOCAL, selector={"matchLabels": {"tier": "fast"}}),
        a_volume("own", class_name=LOCAL, nodes=["n2"], size="9Gi", claim="data"),
        a_volume("free", class_name=LOCAL, nodes=["n0"], labels={"tier": "fast"}),
    )
    assert nodes(made, "data") == ["n2"]
    made.remove(Volume, "", "own")
    assert nodes(made, "data") == ["n0"]


def test_two_claims_of_a_pod_need_two_volumes() -> None:
    made = volumes(
        a_volume_claim("one", class_name=LOCAL),
        a_volume_claim("two", class_name=LOCAL, size="2Gi"),
        a_volume("v0", class_name=LOCAL, nodes=["n0"], size="3Gi"),
        a_volume("v1", class_name=LOCAL, nodes=["n1"], size="1Gi"),
        a_volume("v2", class_name=LOCAL, nodes=["n1"], size="2Gi"),
        a_volume("v3", class_name=LOCAL, nodes=["n2"], size="1Gi"),
        a_volume("v4", class_name=LOCAL, nodes=["n2"], size="1Gi"),
    )
    assert nodes(made, "two", "one") == ["n1"]


def test_a_volume_that_a_pod_on_its_way_will_get_is_taken() -> None:
    made = volumes(
        a_volume_claim("one", class_name=LOCAL),
        a_volume_claim("two", class_name=LOCAL),
        a_volume("v", class_name=LOCAL, nodes=["n0"]),
    )
    made.put(pod("other", "one"), "n0")
    assert nodes(made, "two") == []
    assert nodes(made, "one", without="uid-of-other") == ["n0"]
    made.remove_pod("uid-of-other")
    assert nodes(made, "two") == ["n0"]


def test_a_volume_that_can_be_made_or_taken_is_either() -> None:
    made = volumes(
        a_storage_class(topologies=[{ZONE: ["b"]}]),
        a_volume_claim(),
        a_volume("there", nodes=["n0"]),
    )
    assert nodes(made, "data") == ["n0", "n2"]


# Claims that no node serves.


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([], "PersistentVolumeClaim data does not exist yet"),
        (
            [a_volume_claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
            "PersistentVolumeClaim data is being deleted",
        ),
        ([a_volume_claim(volume="v", phase="Lost")], "data has lost its volume v"),
        ([a_volume_claim(volume="v")], "data is bound to volume v, which does not exist"),
        ([a_volume_claim(volume="v", bound=False)], "data is not bound to a volume yet"),
        ([a_volume_claim(class_name="")], "data is not bound to a volume yet"),
        ([a_volume_claim(class_name="none")], "data has the StorageClass none, which does not"),
        ([a_storage_class(waits=False), a_volume_claim()], "data is not bound to a volume yet"),
    ],
)
def test_a_claim_that_no_node_serves_is_named(objects: list[Object], text: str) -> None:
    made = volumes(*objects)
    reason, found = refusal(made, "data")
    assert reason is NOT_READY
    assert text in found
    assert nodes(made, "data") == []


@pytest.mark.parametrize(
    ("objects", "unreadable", "text"),
    [
        ([], (VolumeClaim, "default", "data"), "PersistentVolumeClaim data cannot be read: WHY"),
        (
            [a_volume_claim(volume="v")],
            (Volume, "", "v"),
            "data is bound to volume v, which cannot be read: WHY",
        ),
        (
            [a_volume_claim(class_name="odd")],
            (VolumeClass, "", "odd"),
            "data has the StorageClass odd, which cannot be read: WHY",
        ),
    ],
)
def test_what_cannot_be_read_is_named_until_it_can_or_is_gone(
    objects: list[Object], unreadable: tuple[Any, str, str], text: str
) -> None:
    kind, namespace, name = unreadable
    readable = {
        VolumeClaim: a_volume_claim(),
        Volume: a_volume("v"),
        VolumeClass: a_storage_class("odd"),
    }
    made = volumes(*objects)
    before = refusal(made, "data")
    version = made.version
    made.unreadable(kind, namespace, name, "WHY")
    assert made.version > version
    reason, found = refusal(made, "data")
    assert (reason, text in found) == (NOT_READY, True)
    assert nodes(made, "data") == []
    made.remove(kind, namespace, name)
    assert refusal(made, "data") == before
    made.unreadable(kind, namespace, name, "WHY")
    made.observe(read(readable[kind]))
    assert made.refusal(pod("pod-1", "data")) is None


def test_limits_that_cannot_be_read_count_as_none() -> None:
    made = volumes(a_csi_node("n0", 0), a_volume_claim(volume="v"), a_volume("v", driver=DRIVER))
    assert attachable(made, "data") == ["n1", "n2"]
    made.unreadable(NodeDrivers, "", "n0", "WHY")
    assert attachable(made, "data") == ["n0", "n1", "n2"]


def test_the_class_of_an_annotation_goes_before_the_field() -> None:
    former = {"volume.beta.kubernetes.io/storage-class": ZONAL}
    claim = a_volume_claim(class_name="none", metadata={"annotations": former}, bound=False)
    assert nodes(volumes(claim), "data") == ["n0", "n1", "n2"]


def test_a_claim_for_one_pod_at_a_time_waits_until_the_other_has_gone() -> None:
    made = volumes(a_volume_claim(volume="v", access="ReadWriteOncePod"), a_volume("v"))
    made.put(pod("other", "data"), "n2")
    before = made.version
    assert refusal(made, "data")[0] is IN_USE
    assert nodes(made, "data") == []
    assert nodes(made, "data", without="uid-of-other") == ["n0", "n1", "n2"]
    made.remove_pod("uid-of-other")
    assert made.version > before
    assert made.refusal(pod("pod-1", "data")) is None


def test_a_shared_claim_is_bound_for_one_pod_before_the_next_is_decided() -> None:
    """Its volume is created where the first pod goes, and the next pod must be able to follow."""
    made = volumes(a_volume_claim(access="ReadWriteMany"))
    made.put(pod("first", "data"), "n2")
    assert refusal(made, "data") == (IN_USE, "PersistentVolumeClaim data is being bound for"
                                             " another pod")  # fmt: skip
    made.observe(read(a_volume("v", zones=["b"], claim="data", claim_uid="uid-of-data")))
    made.observe(read(a_volume_claim(access="ReadWriteMany", volume="v")))
    assert made.refusal(pod("pod-1", "data")) is None
    assert nodes(made, "data") == ["n2"]


def test_a_generic_ephemeral_volume_is_served_by_the_pods_own_claim_only() -> None:
    asked = a_pod("pod-1", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    made = volumes()
    found = made.refusal(asked)
    assert found == (NOT_READY, "PersistentVolumeClaim pod-1-scratch is not made yet")
    made.observe(read(a_volume_claim("pod-1-scratch", owner="uid-of-a-former-pod-1")))
    found = made.refusal(asked)
    assert found is not None
    assert "is not this pod's own" in found[1]
    made.observe(read(a_volume_claim("pod-1-scratch", owner="uid-of-pod-1")))
    assert made.refusal(asked) is None


# Limits.


def test_a_node_attaches_no_more_volumes_than_its_driver_can() -> None:
    made = volumes(
        a_csi_node("n0", 1),
        a_csi_node("n1", 2),
        a_csi_node("n2", None),
        *(a_volume_claim(name, volume=name) for name in ("one", "two", "three")),
        *(a_volume(name, driver=DRIVER) for name in ("one", "two")),
        a_volume("three", driver="another.example.com"),
    )
    for node in ZONES:
        made.put(pod(f"on-{node}", "one"), node)
    assert attachable(made, "two") == ["n1", "n2"]
    assert attachable(made, "one") == ["n0", "n1", "n2"], "it is attached already"
    assert attachable(made, "three") == ["n0", "n1", "n2"]


def test_volumes_that_are_yet_to_be_made_count() -> None:
    made = volumes(a_csi_node("n0", 1), a_volume_claim("one"), a_volume_claim("two"))
    assert attachable(made, "one", "two") == ["n1", "n2"]


def test_disks_of_the_clouds_former_plugins_count_for_their_csi_drivers() -> None:
    made = volumes(
        a_csi_node("n0", 0, driver="ebs.csi.aws.com"),
        a_volume_claim(volume="v"),
        a_volume("v", awsElasticBlockStore={"volumeID": "vol-1"}),
    )
    assert attachable(made, "data") == ["n1", "n2"]


# What comes and goes.


def test_what_goes_is_forgotten() -> None:
    made = volumes(a_volume_claim(volume="v"), a_volume("v", nodes=["n1"]), a_csi_node("n0", 0))
    assert nodes(made, "data") == ["n1"]
    made.remove(Volume, "", "v")
    assert refusal(made, "data")[0] is NOT_READY
    made.remove(VolumeClaim, "default", "data")
    assert "does not exist" in refusal(made, "data")[1]
    made.observe(read(a_volume_claim()))
    made.remove(VolumeClass, "", ZONAL)
    assert "StorageClass" in refusal(made, "data")[1]


def test_an_answer_follows_a_nodes_new_label() -> None:
    filters = NodeFilters()
    made = volumes(a_volume_claim(volume="v"), a_volume("v", zones=["c"]), filters=filters)
    assert nodes(made, "data") == []
    filters.put(2, a_node("n2", labels={ZONE: "c"}))
    assert nodes(made, "data") == ["n2"]


def test_a_version_that_says_the_same_changes_nothing() -> None:
    made = volumes(a_volume_claim(), a_volume("v"))
    before = made.version
    made.observe(read(a_volume_claim()))
    made.observe(read(a_volume("v")))
    made.put(a_pod("plain"), "n0")
    assert made.version == before


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (a_volume_claim(size="much"), BadInput),
        (a_volume("v", capacity={"storage": "much"}), BadInput),
        (
            a_volume(
                "v",
                nodeAffinity={
                    "required": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "?"}]}]
                    }
                },
            ),
            BadInput,
        ),
        (a_volume("v", nodeAffinity={"required": 3}), ValidationError),
    ],
)
def test_what_cannot_be_read_is_refused(bad: Object, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(bad)
