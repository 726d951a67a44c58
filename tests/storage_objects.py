"""Volumes, their claims and classes, and CSINodes, as the API server has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vgpu_api.core.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from vgpu_operator.node_filter.storage_objects import (
    NodeDrivers,
    StorageObject,
    Volume,
    VolumeClaim,
    VolumeClass,
)

Object = dict[str, Any]

LOCAL = "local"
"""The class of volumes that are on a node and that nothing makes."""
ZONAL = "zonal"
"""The class whose volumes a CSI driver creates where the pod is placed."""
DRIVER = "disk.example.com"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def a_storage_class(
    name: str = ZONAL,
    *,
    provisioner: str = DRIVER,
    waits: bool = True,
    topologies: Sequence[Mapping[str, Sequence[str]]] = (),
) -> Object:
    """Return a StorageClass; `topologies`: terms, each with the values of its labels."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        "allowedTopologies": [
            {"matchLabelExpressions": [{"key": k, "values": list(v)} for k, v in term.items()]}
            for term in topologies
        ],
    }


def a_local_class() -> Object:
    """Return the StorageClass of volumes that are on a node."""
    return a_storage_class(LOCAL, provisioner="kubernetes.io/no-provisioner")


def a_volume_claim(
    name: str = "data",
    *,
    class_name: str = ZONAL,
    volume: str = "",
    size: str = "1Gi",
    access: str = "ReadWriteOnce",
    bound: bool | None = None,
    owner: str = "",
    phase: str = "",
    **fields: Any,
) -> Object:
    """Return a PersistentVolumeClaim: bound if it names a volume; further fields are its spec's."""
    is_bound = bool(volume) if bound is None else bound
    metadata: Object = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
    metadata |= fields.pop("metadata", {})
    if is_bound:
        metadata["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}
        ]
    spec = {
        "accessModes": [access],
        "resources": {"requests": {"storage": size}},
        "storageClassName": class_name,
        "volumeMode": "Filesystem",
        **({"volumeName": volume} if volume else {}),
        **fields,
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase or ("Bound" if is_bound else "Pending")},
    }


def a_volume(
    name: str = "volume-1",
    *,
    class_name: str = ZONAL,
    nodes: Iterable[str] = (),
    zones: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    size: str = "1Gi",
    claim: str = "",
    claim_uid: str = "",
    driver: str = "",
    phase: str = "",
    **fields: Any,
) -> Object:
    """Return a PersistentVolume, free unless it names a claim.

    Args:
        name: Its name.
        class_name: Of its StorageClass.
        nodes: The host names that its affinity names; none: it has none.
        zones: The same of zones.
        labels: Its own.
        size: A quantity.
        claim: The claim that it is for, in namespace `default`.
        claim_uid: That claim's UID.
        driver: The CSI driver; empty: a local path.
        phase: By default by whether it is for a claim.
        fields: Further fields of its spec.
    """
    lines = [
        {"key": key, "operator": "In", "values": list(values)}
        for key, values in ((HOSTNAME, nodes), (ZONE, zones))
        if values
    ]
    source: Object = {"local": {"path": f"/mnt/{name}"}}
    if driver:
        source = {"csi": {"driver": driver, "volumeHandle": f"handle-of-{name}"}}
    spec: Object = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        "volumeMode": "Filesystem",
        **source,
        **fields,
    }
    if lines:
        required = {"nodeSelectorTerms": [{"matchExpressions": lines}]}
        spec["nodeAffinity"] = {"required": required}
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim, "uid": claim_uid}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec,
        "status": {"phase": phase or ("Bound" if claim_uid else "Available")},
    }


def a_csi_node(name: str, count: int | None, driver: str = DRIVER) -> Object:
    """Return a CSINode with one driver, which attaches at most this many volumes."""
    of_driver: Object = {"name": driver, "nodeID": name, "topologyKeys": []}
    if count is not None:
        of_driver["allocatable"] = {"count": count}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [of_driver]},
    }


def using(*claims: str) -> Object:
    """Return the fields of a pod's spec that use volumes."""
    return {
        "volumes": [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, claim in enumerate(claims)
        ]
    }


def read(obj: Object) -> StorageObject:
    """Return an object as the ledger reads it."""
    match obj["kind"]:
        case "PersistentVolumeClaim":
            return VolumeClaim.of(PersistentVolumeClaim.model_validate(obj))
        case "PersistentVolume":
            return Volume.of(PersistentVolume.model_validate(obj))
        case "StorageClass":
            return VolumeClass.of(StorageClass.model_validate(obj))
    return NodeDrivers.of(CSINode.model_validate(obj))
