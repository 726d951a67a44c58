"""Apply the real server's defaults, canonical quantities and rules for built-in kinds.

This covers only what changes the objects that operator, agent, kubelet and scheduler read, or
refuses what they must never send; the rest of the validation is left to the real control plane.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.quantities import MalformedQuantityError, canonical, value_of

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_POD_MUTABLE = frozenset({"activeDeadlineSeconds", "tolerations", "schedulingGates"})
_POD_DEFAULTS: Obj = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "securityContext": {},
    "enableServiceLinks": True,
    "serviceAccountName": "default",
}
_CONTAINER_DEFAULTS: Obj = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def normalise(resource: Resource, obj: Obj) -> None:
    """Fill in a built-in object's defaults in place and convert its quantities to canonical form.

    Raises:
        StatusError: 400 for a malformed quantity or a part of the wrong type.
    """
    step = _NORMALISE.get(resource.qualified)
    if step is None:
        return
    try:
        step(obj)
    except MalformedQuantityError as error:
        raise _cannot_handle(resource, str(error)) from error
    except (AttributeError, TypeError, KeyError) as error:
        raise _cannot_handle(resource, f"json: cannot unmarshal: {error!r}") from error


def causes(resource: Resource, obj: Obj, before: Obj | None) -> list[Cause]:
    """Return the rules of the kind that `obj` violates; it replaces `before` if there is one."""
    if resource.qualified != "pods":
        return []
    found = _pod_containers(obj["spec"])
    if before is not None and not found:
        found = _pod_changes(before["spec"], obj["spec"])
    return found


def _cannot_handle(resource: Resource, why: str) -> errors.StatusError:
    return errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a'
        f" {resource.kind}: {why}"
    )


def _pod(pod: Obj) -> None:
    spec = pod.setdefault("spec", {})
    for key, value in _POD_DEFAULTS.items():
        if spec.get(key) in (None, ""):
            spec[key] = copy.copy(value)
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            _container(container)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", _qos(spec))


def _container(container: Obj) -> None:
    for key, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(key, value)
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    latest = not tag or tag == "latest"
    container.setdefault(
        "imagePullPolicy", "Always" if latest and "@" not in image else "IfNotPresent"
    )
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    resources = container.setdefault("resources", {})
    limits = _canonical_amounts(resources, "limits")
    requests = _canonical_amounts(resources, "requests")
    missing = {name: amount for name, amount in limits.items() if name not in requests}
    if missing:
        resources["requests"] = {**requests, **missing}


def _canonical_amounts(holder: Obj, key: str) -> dict[str, str]:
    amounts = holder.get(key)
    if not amounts:
        return {}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, str | int | float):
            raise MalformedQuantityError
        amounts[name] = canonical(str(amount))
    kept: dict[str, str] = amounts
    return kept


def _qos(spec: Obj) -> str:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    parts = [container["resources"] for container in containers]
    native = [
        (part.get("requests", {}).get(name), part.get("limits", {}).get(name))
        for part in parts
        for name in ("cpu", "memory")
    ]
    if not any(request or limit for request, limit in native):
        return "BestEffort"
    guaranteed = all(limit and request == limit for request, limit in native)
    return "Guaranteed" if guaranteed else "Burstable"


def _node(node: Obj) -> None:
    node.setdefault("spec", {})
    status = node.setdefault("status", {})
    capacity = _canonical_amounts(status, "capacity")
    _canonical_amounts(status, "allocatable")
    if capacity and "allocatable" not in status:
        status["allocatable"] = dict(capacity)


def _quota(quota: Obj) -> None:
    _canonical_amounts(quota.setdefault("spec", {}), "hard")
    for key in ("hard", "used"):
        _canonical_amounts(quota.setdefault("status", {}), key)


def _namespace(namespace: Obj) -> None:
    metadata = namespace["metadata"]
    if "name" in metadata:
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
    spec = namespace.setdefault("spec", {})
    if "deletionTimestamp" not in metadata:
        spec.setdefault("finalizers", ["kubernetes"])
    namespace.setdefault("status", {}).setdefault("phase", "Active")


def _service(service: Obj) -> None:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    service.setdefault("status", {"loadBalancer": {}})


def _webhooks(configuration: Obj) -> None:
    for webhook in configuration.get("webhooks") or ():
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})
        webhook.setdefault("timeoutSeconds", 10)
        for rule in webhook.get("rules") or ():
            rule.setdefault("scope", "*")
        service = webhook.get("clientConfig", {}).get("service")
        if service:
            service.setdefault("port", 443)


def _event(event: Obj) -> None:
    event.setdefault("type", "Normal")
    if "source" in event and event["source"].get("component"):
        event.setdefault("reportingComponent", event["source"]["component"])
    event.setdefault("reportingComponent", "")
    event.setdefault("reportingInstance", "")


_NORMALISE: dict[str, Callable[[Obj], None]] = {
    "pods": _pod,
    "nodes": _node,
    "resourcequotas": _quota,
    "namespaces": _namespace,
    "services": _service,
    "events": _event,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
}


def _pod_containers(spec: Obj) -> list[Cause]:
    found: list[Cause] = []
    if not spec.get("containers"):
        found.append(Cause("spec.containers", "FieldValueRequired", "Required value"))
    seen: set[str] = set()
    for key in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(key) or ()):
            path = f"spec.{key}[{at}]"
            found += [
                Cause(f"{path}.{needed}", "FieldValueRequired", "Required value")
                for needed in ("name", "image")
                if not container.get(needed)
            ]
            name = container.get("name", "")
            if name in seen:
                text = f'Duplicate value: "{name}"'
                found.append(Cause(f"{path}.name", "FieldValueDuplicate", text))
            seen.add(name)
            found += _resources(container["resources"], f"{path}.resources")
    return found


def _resources(resources: Obj, path: str) -> list[Cause]:
    """Check that extended resources are whole numbers, with limits equal to requests."""
    found: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            value = value_of(amount)
            where = f"{path}.{part}[{name}]"
            if value < 0:
                text = f'Invalid value: "{amount}": must be greater than or equal to 0'
                found.append(Cause(where, "FieldValueInvalid", text))
            elif _extended(name) and value.denominator != 1:
                text = f'Invalid value: "{amount}": must be an integer'
                found.append(Cause(where, "FieldValueInvalid", text))
    for name, amount in requests.items():
        where = f"{path}.requests"
        limit = limits.get(name)
        if _extended(name) and limit is None:
            text = "Required value: Limit must be set for non overcommitable resources"
            found.append(Cause(f"{path}.limits", "FieldValueRequired", text))
        elif limit is not None and _disagree(name, value_of(amount), value_of(limit)):
            relation = "equal to" if _extended(name) else "less than or equal to"
            text = f'Invalid value: "{amount}": must be {relation} {name} limit of {limit}'
            found.append(Cause(where, "FieldValueInvalid", text))
    return found


def _extended(name: str) -> bool:
    return name not in _NATIVE and "/" in name and not name.startswith("kubernetes.io/")


def _disagree(name: str, request: Fraction, limit: Fraction) -> bool:
    return request != limit if _extended(name) else request > limit


def _pod_changes(before: Obj, after: Obj) -> list[Cause]:
    """Return the forbidden changes: only images, tolerations, deadline and gates may change.

    A gated pod's required node affinity may also be narrowed (KEP-3838).
    """
    if before == after or _fixed(before) == _fixed(after):
        return []
    is_narrowed = before.get("schedulingGates") and _is_narrowed(_terms(before), _terms(after))
    if is_narrowed and _fixed(_without_terms(before)) == _fixed(_without_terms(after)):
        return []
    text = (
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
        "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only"
        " additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be"
        " set to 1 if it was previously negative)"
    )
    return [Cause("spec", "FieldValueForbidden", text)]


def _terms(spec: Obj) -> list[Obj]:
    """Return the terms of the required node affinity."""
    of_node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = of_node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: list[Obj] = required.get("nodeSelectorTerms") or []
    return terms


def _is_narrowed(before: list[Obj], after: list[Obj]) -> bool:
    """True if requirements are only added to non-empty terms, or terms to an empty list."""
    if not before:
        return True
    return len(before) == len(after) and all(
        old == new
        or (
            any(old.get(key) for key in ("matchExpressions", "matchFields"))
            and all(
                each in (new.get(key) or ())
                for key in ("matchExpressions", "matchFields")
                for each in old.get(key) or ()
            )
        )
        for old, new in zip(before, after, strict=True)
    )


def _without_terms(spec: Obj) -> Obj:
    affinity = dict(spec.get("affinity") or {})
    of_node = dict(affinity.pop("nodeAffinity", None) or {})
    of_node.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
    return {**spec, "affinity": {**affinity, **({"nodeAffinity": of_node} if of_node else {})}}


def _fixed(spec: Obj) -> Obj:
    fixed: dict[str, Any] = {key: part for key, part in spec.items() if key not in _POD_MUTABLE}
    for key in ("containers", "initContainers"):
        fixed[key] = [
            {name: part for name, part in container.items() if name != "image"}
            for container in spec.get(key) or ()
        ]
    return fixed
