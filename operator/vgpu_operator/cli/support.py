"""`kubectl vgpu support-bundle`: collect objects, logs and findings in an archive.

The archive contains no Secrets; the doctor reads vgpu's own, but reports only when their
certificates expire. User pods are reduced to names, images, resources, status, and the names (never
the values) of environment variables. The archive lists everything that could not be collected, so
that a missing file is not mistaken for a missing object.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_NAMESPACE, PART_OF_LABEL
from vgpu_api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    EVENTS,
    GPU_DEVICES,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_operator.cli import doctor
from vgpu_operator.cli.uninstall import DAEMON_SETS, DEPLOYMENTS

_LOG_LINES = 5000
_LOGS_S = 60.0
_KINDS: tuple[tuple[Resource, str | None, str | None], ...] = (
    (VGPU_CLAIMS, None, None),
    (GPU_DEVICES, None, None),
    (NODES, None, None),
    (EVENTS, None, None),
    (RESOURCE_QUOTAS, None, None),
    (LEASES, OPERATOR_NAMESPACE, None),
    (ENDPOINT_SLICES, OPERATOR_NAMESPACE, None),
    (CONFIG_MAPS, None, PART_OF_LABEL),
    (DEPLOYMENTS, None, PART_OF_LABEL),
    (DAEMON_SETS, None, PART_OF_LABEL),
    (CUSTOM_RESOURCE_DEFINITIONS, None, PART_OF_LABEL),
    (MUTATING_WEBHOOKS, None, None),
    (VALIDATING_WEBHOOKS, None, None),
)
_WORKLOADS = (
    ("deployment/vgpu-operator", OPERATOR_NAMESPACE),
    ("deployment/vgpu-webhook", OPERATOR_NAMESPACE),
    ("deployment/vgpu-scheduler", OPERATOR_NAMESPACE),
    ("daemonset/vgpu-nodeagent", AGENT_NAMESPACE),
)
_CLAIMS = f"{VGPU_CLAIMS.plural}.json"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Logs = Callable[[str, str], str]
"""Returns the logs of a workload's pods, given its name and its namespace.

Raises `OSError` or `SubprocessError`."""


async def collect(api: Api, logs: Logs, *, say: Callable[[str], None]) -> dict[str, str]:
    """Return the files of the archive, by name.

    Args:
        api: Reads the objects.
        logs: Reads the logs.
        say: Prints a line.

    Raises:
        ClientError: The API server is unreachable.
    """
    found = doctor.findings(await doctor.read(api))
    files = {
        "doctor.json": _json([asdict(each) for each in found]),
        "version.json": _json(await api.version()),
    }
    left_out: list[str] = []
    uids: set[str] = set()
    async for name, items in _listed_kinds(api, left_out):
        files[name] = _json([_bare(item) for item in items])
        say(f"{name}: {len(items)} objects")
        if name == _CLAIMS:
            uids = {_pod_uid(claim) for claim in items}
    try:
        pods = (await api.list(PODS)).items
    except ApiError as error:
        left_out.append(f"pods.json: {error}")
    else:
        files["pods.json"] = _json([redacted(pod) for pod in pods if _concerns(pod, uids)])
    for workload, namespace in _WORKLOADS:
        name = f"logs/{workload.partition('/')[2]}.log"
        try:
            files[name] = logs(workload, namespace)
        except (OSError, subprocess.SubprocessError) as error:
            left_out.append(f"{name}: {error}")
    files["left-out.txt"] = "".join(f"{line}\n" for line in left_out)
    return files


async def _listed_kinds(
    api: Api, left_out: list[str]
) -> AsyncIterator[tuple[str, Sequence[Object]]]:
    """Yield the file name and objects of each kind, and record kinds that cannot be listed."""
    for resource, namespace, selector in _KINDS:
        name = f"{resource.plural}{f'-{namespace}' if namespace else ''}.json"
        try:
            items = (await api.list(resource, namespace=namespace, label_selector=selector)).items
        except ApiError as error:
            left_out.append(f"{name}: {error}")
        else:
            yield name, items


def _pod_uid(claim: Object) -> str:
    return str(((claim.get("status") or {}).get("reservedFor") or {}).get("podUID", ""))


def kubectl_logs(kubectl: Sequence[str]) -> Logs:
    """Return a function that reads logs with the given kubectl command."""

    def logs(workload: str, namespace: str) -> str:
        flags = ["--all-containers", "--prefix", "--timestamps", f"--tail={_LOG_LINES}"]
        done = subprocess.run(
            [*kubectl, "logs", "-n", namespace, workload, "--all-pods", *flags],
            capture_output=True,
            text=True,
            timeout=_LOGS_S,
            check=False,
        )
        if done.returncode:
            raise subprocess.SubprocessError(" ".join(done.stderr.split()) or "kubectl logs failed")
        return done.stdout

    return logs


def write(path: Path, files: Mapping[str, str], *, now: datetime) -> None:
    """Write the archive, a gzipped tar file.

    Raises:
        OSError: The file cannot be written.
    """
    folder = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    path.chmod(0o600)  # other users of the machine should not see logs and pod names


def redacted(pod: Object) -> Object:
    """Return a pod without commands, mounts and variable values, which may be confidential."""
    spec = pod.get("spec") or {}
    containers = {
        key: [
            {
                "name": each.get("name"),
                "image": each.get("image"),
                "resources": each.get("resources") or {},
                "env": [{"name": variable.get("name")} for variable in each.get("env") or ()],
            }
            for each in spec.get(key) or ()
        ]
        for key in ("containers", "initContainers")
    }
    kept = ("nodeName", "schedulerName", "priority", "priorityClassName", "nodeSelector",
            "affinity", "tolerations", "schedulingGates", "runtimeClassName")  # fmt: skip
    bare = _bare(pod)
    bare["spec"] = {**{key: spec[key] for key in kept if key in spec}, **containers}
    return bare


def _bare(obj: Object) -> Object:
    metadata = {key: part for key, part in obj["metadata"].items() if key != "managedFields"}
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED in annotations:
        metadata["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    return {**obj, "metadata": metadata}


def _concerns(pod: Object, uids: set[str]) -> bool:
    """Return True for vgpu's own pods, pods with a claim, and pods that wait for devices."""
    metadata = pod["metadata"]
    return (
        metadata["namespace"] in (OPERATOR_NAMESPACE, AGENT_NAMESPACE)
        or metadata["uid"] in uids
        or any(
            amounts
            for container in (pod.get("spec") or {}).get("containers") or ()
            if (amounts := _devices_requested(container))
        )
    )


def _devices_requested(container: Mapping[str, Any]) -> list[str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return [name for name in limits if "/" in name]


def _json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
