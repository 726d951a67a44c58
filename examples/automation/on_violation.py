"""Labels the pod of a claim that violates its limits, and takes the label off when that has ended.

    kopf run --all-namespaces examples/automation/on_violation.py

What a site does about it (a ticket, a message, a NetworkPolicy that selects the label) is its own;
the component `evict-violators` ends such pods. Needs the right to watch claims and to patch pods.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import kopf

LABEL = "example.dev/violates-gpu-limits"


@kopf.on.startup()
def only_watch(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Keep kopf from writing to claims: no finalizers or annotations of its own, and no events."""
    settings.posting.enabled = False
    settings.scanning.disabled = True


@kopf.on.event("vgpu.dev", "v1alpha1", "vgpuclaims")
def violated(body: kopf.Body, namespace: str, name: str, logger: Any, **_: Any) -> None:
    """React to each version of a claim; the label that is there already is not written again."""
    pod = body.get("status", {}).get("reservedFor", {}).get("podName")
    if not pod:
        return
    found = {each["type"]: each for each in body["status"].get("conditions", ())}
    condition = found.get("Violated", {"status": "False", "reason": ""})
    reason = condition["reason"] if condition["status"] == "True" else None
    patch = json.dumps({"metadata": {"labels": {LABEL: reason}}})
    done = subprocess.run(
        ["kubectl", "-n", namespace, "patch", "pod", pod, "--type=merge", "-p", patch],
        capture_output=True,
        text=True,
        check=False,
    )
    if "(no change)" not in done.stdout:
        logger.info("claim %s: %s", name, done.stdout.strip() or done.stderr.strip())
