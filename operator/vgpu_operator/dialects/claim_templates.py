"""Reads what users ask for in ResourceClaims and templates of our classes, in Claims mode.

A pod that names one is changed to ask for the same in HAMi's words, and from then on it is like any
other pod. In place of a template the operator makes a ResourceClaim, with one request for each
container; a ResourceClaim that the pod names is allocated as it is. Kubernetes' own allocation
offers more than can be honoured here. Whatever cannot is refused, with the field and what would be
right, rather than ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, NoReturn

from vgpu_api import dra, names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.core.resource_claim import ClaimedRequest, DeviceRequests, ExactRequest
from vgpu_api.errors import BadInput, Fault, QuantityError
from vgpu_operator.dialects.containers import PodContainer, each_container
from vgpu_operator.dialects.selector_expressions import Wanted, read_expression

_NUMA = frozenset({f"{domain}/numa" for domain in dra.CLASSES})
_INSTEAD = {
    "pcieroot": "; the operator does not know the PCIe root of a GPU, and GPUs of one root are on "
    "one NUMA node",
    "nvlink": f"; for linked GPUs annotate the pod with {names.HAMI_DEVICE_POLICY}: topology, "
    "which prefers the best links",
}
"""What comes nearest to attributes that others offer, by the attribute's name."""
_FULL = 100
_MEMORY, _CORES = "memory", "cores"


class ClaimText(NamedTuple):
    """The content of a ResourceClaim or a template.

    Attributes:
        name: Its kind and name, as errors begin.
        field: The path to its devices.
        devices: The devices that it asks for.
    """

    name: str
    field: str
    devices: DeviceRequests

    @property
    def at(self) -> str:
        """Return the path to its devices, with its name."""
        return f"{self.name}: {self.field}"


def of_template(name: str, devices: DeviceRequests) -> ClaimText:
    """Return what a ResourceClaimTemplate says."""
    return ClaimText(f"resourceclaimtemplates/{name}", "spec.spec.devices", devices)


def of_claim(name: str, devices: DeviceRequests) -> ClaimText:
    """Return what a ResourceClaim says."""
    return ClaimText(f"resourceclaims/{name}", "spec.devices", devices)


@dataclass(frozen=True, slots=True)
class Asked:
    """The devices that a pod requests through ResourceClaims and templates.

    Attributes:
        amounts: Resources in HAMi's words, by container.
        annotations: Annotations that choose devices.
    """

    amounts: Mapping[str, Mapping[str, str]]
    annotations: Mapping[str, str] = field(default_factory=dict)


class _Read(NamedTuple):
    """One request, its amounts in HAMi's words, and the selectors of its devices."""

    path: str
    request: ClaimedRequest
    amounts: Mapping[str, str]
    selectors: _Selectors


class _Selectors(NamedTuple):
    """The devices that a request wants, and the expressions that say so."""

    wanted: Wanted = Wanted()
    expressions: tuple[str, ...] = ()

    @property
    def expression(self) -> str:
        """Return one expression for all."""
        one = self.expressions[0] if len(self.expressions) == 1 else ""
        return one or " && ".join(f"({each})" for each in self.expressions)


def is_ours(devices: DeviceRequests) -> bool:
    """Return True if one of the requests is for a class of ours."""
    return any(not dra.CLASSES.isdisjoint(each.classes) for each in devices.requests)


def is_of_scheduler(devices: DeviceRequests) -> bool:
    """Return True if one of the requests is for the class that kube-scheduler allocates."""
    return any(dra.SCHEDULER_CLASS in each.classes for each in devices.requests)


def asked_of_scheduler(
    pod: Pod, entry: str, written: ClaimText, config: ClusterConfig
) -> Mapping[str, Mapping[str, str]]:
    """Return the amounts, in HAMi's words, that a pod asks kube-scheduler for, by container.

    kube-scheduler evaluates selectors and constraints itself, so any are served.

    Args:
        pod: The pod.
        entry: The entry of the pod's `resourceClaims`.
        written: The ResourceClaim or the template that it names.
        config: The resource names.

    Raises:
        BadInput: Something cannot be honoured. The message has the object and the field.
    """
    _refuse_config(written)
    amounts: dict[str, Mapping[str, str]] = {}
    for index, request in enumerate(written.devices.requests):
        path = f"{written.at}.requests[{index}]"
        exactly = _exactly(request, path, frozenset({dra.SCHEDULER_CLASS}))
        count = len(written.devices.requests)
        place = _user(pod, entry, request, path, count=count)
        if place.phase == "Init":
            raise BadInput.forbidden(
                f"{place.path}.resources.claims[{entry}]",
                f"kube-scheduler keeps devices for as long as the pod lives; ask for class "
                f"{dra.CLASS}, of which init containers give theirs back",
            )
        if place.name in amounts:
            raise BadInput.forbidden(
                path, f"container {place.name} has a request already, and may have only one"
            )
        amounts[place.name] = _amounts(exactly, f"{path}.exactly", config)
    return amounts


def refuse_unserved(written: ClaimText, config: ClusterConfig) -> None:
    """Refuse what no pod could get by this, whichever it is.

    Raises:
        BadInput: Something cannot be honoured. The message has the object and the field.
    """
    _constraints(written)
    _one_selector([each.selectors for each in _requests(written, config)], written.name)


def asked_by(pod: Pod, sources: Mapping[str, ClaimText], config: ClusterConfig) -> Asked:
    """Return what a pod asks for by ResourceClaims and templates of our classes.

    Args:
        pod: The pod.
        sources: What they say, by entry of the pod's `resourceClaims`.
        config: The resource names.

    Raises:
        BadInput: Something cannot be honoured. The message has the object and the field.
    """
    amounts: dict[str, Mapping[str, str]] = {}
    selectors: list[_Selectors] = []
    needs_numa = False
    for entry, written in sources.items():
        needs_numa |= _constraints(written)
        for each in _requests(written, config):
            count = len(written.devices.requests)
            place = _user(pod, entry, each.request, each.path, count=count)
            if place.name in amounts:
                raise BadInput.forbidden(
                    each.path,
                    f"container {place.name} has a request already, and may have only one",
                )
            amounts[place.name] = each.amounts
            selectors.append(each.selectors)
    annotations = _annotations(pod, selectors, ",".join(each.name for each in sources.values()))
    if needs_numa:
        annotations[names.NVIDIA_NUMA_BIND] = "true"
    return Asked(amounts, annotations)


def _requests(written: ClaimText, config: ClusterConfig) -> Iterator[_Read]:
    _refuse_config(written)
    for index, request in enumerate(written.devices.requests):
        path = f"{written.at}.requests[{index}]"
        exactly = _exactly(request, path, dra.CLASSES)
        amounts = _amounts(exactly, f"{path}.exactly", config)
        yield _Read(path, request, amounts, _selectors(exactly, f"{path}.exactly"))


def _user(pod: Pod, entry: str, request: ClaimedRequest, path: str, *, count: int) -> PodContainer:
    """Return the one container that uses a request."""
    uses = [
        (place, used.request)
        for place in each_container(pod)
        for used in place.container.resources.claims
        if used.name == entry and used.request in ("", request.name)
    ]
    whole = next((place for place, named in uses if not named), None)
    if whole is not None and count > 1:
        raise BadInput.required(
            f"{whole.path}.resources.claims[{entry}].request",
            f"there are {count} requests, and a container gets the devices of one",
        )
    if len(uses) != 1:
        raise BadInput(
            field=path,
            value=", ".join(place.name for place, _ in uses) or "none",
            detail="must be used by one container of the pod: limits are by container",
        )
    return uses[0][0]


def _exactly(request: ClaimedRequest, path: str, classes: frozenset[str]) -> ExactRequest:
    """Return a request of one of the classes that asks for a number of devices."""
    exactly = request.exactly
    if exactly is None:
        raise BadInput.forbidden(
            f"{path}.firstAvailable", "alternatives are not chosen from; write exactly"
        )
    if exactly.device_class_name not in classes:
        raise BadInput.unsupported(
            f"{path}.exactly.deviceClassName", exactly.device_class_name, sorted(classes)
        )
    if exactly.allocation_mode not in ("", "ExactCount"):
        raise BadInput.unsupported(
            f"{path}.exactly.allocationMode", exactly.allocation_mode, ["ExactCount"]
        )
    if exactly.admin_access:
        raise BadInput.forbidden(
            f"{path}.exactly.adminAccess", "devices are watched through the agents' metrics"
        )
    if exactly.tolerations:
        raise BadInput.forbidden(
            f"{path}.exactly.tolerations", "a device that is out of service takes nothing new"
        )
    return exactly


def _amounts(exactly: ExactRequest, path: str, config: ClusterConfig) -> Mapping[str, str]:
    """Return the count, memory and cores of a request, with the defaults of its class."""
    nvidia = config.nvidia
    found = {nvidia.resource_count_name: str(exactly.count or 1)}
    at = f"{path}.capacity.requests"
    requests = _capacities(exactly, at)
    memory, cores = requests.pop(_MEMORY, None), requests.pop(_CORES, None)
    for unknown in requests:
        raise BadInput.unsupported(at, unknown, [_CORES, _MEMORY])
    if memory is not None:
        # Kubernetes rounds a request up to the next step, which is a MiB.
        mib = -(-_number(memory, f"{at}[{_MEMORY}]", "a size such as 8Gi") // quantity.MIB)
        found[nvidia.resource_memory_name] = f"{mib}Mi"
    if cores is not None:
        percent = _number(cores, f"{at}[{_CORES}]", "a whole percentage, 0 to 100")
        if percent.denominator != 1 or not 0 <= percent <= _FULL:
            raise BadInput(
                field=f"{at}[{_CORES}]", value=cores, expected="a whole percentage, 0 to 100"
            )
        found[nvidia.resource_core_name] = str(percent.numerator)
    elif exactly.device_class_name == dra.HAMI_CLASS:
        found[nvidia.resource_core_name] = str(_FULL)  # HAMi's driver also gives all of the compute
    return found


def _capacities(exactly: ExactRequest, path: str) -> dict[str, str | int]:
    """Return the requested capacities by name, without the domain of one of our classes."""
    found: dict[str, str | int] = {}
    for written, amount in ({} if exactly.capacity is None else exactly.capacity.requests).items():
        domain, _, name = written.rpartition("/")
        short = name if domain in dra.CLASSES else written
        if short in found:
            raise BadInput(field=path, value=written, fault=Fault.DUPLICATE)
        found[short] = amount
    return found


def _number(given: str | int, path: str, expected: str) -> Fraction:
    try:
        number = quantity.parse(given)
    except QuantityError as error:
        raise BadInput(field=path, value=given, expected=expected) from error
    if number < 0:
        raise BadInput(field=path, value=given, expected=expected)
    return number


def _selectors(exactly: ExactRequest, path: str) -> _Selectors:
    """Return what all selectors of a request want together."""
    wanted, expressions = Wanted(), list[str]()
    for index, selector in enumerate(exactly.selectors):
        at = f"{path}.selectors[{index}].cel.expression"
        expression = (selector.get("cel") or {}).get("expression")
        if not isinstance(expression, str):
            raise BadInput.required(at)
        read = read_expression(expression, at)
        if read.is_any:
            continue
        wanted = wanted.together(read)
        wanted.selector(expression, at)
        expressions.append(expression)
    return _Selectors(wanted, tuple(expressions))


def _constraints(written: ClaimText) -> bool:
    """Return True if devices must share a NUMA node; refuse every other rule."""
    needs = False
    for index, each in enumerate(written.devices.constraints):
        path = f"{written.at}.constraints[{index}]"
        if each.distinct_attribute:
            raise BadInput.forbidden(
                f"{path}.distinctAttribute", "the devices of a request are always different"
            )
        if each.match_attribute not in _NUMA:
            _refuse_attribute(each.match_attribute, f"{path}.matchAttribute")
        if len(each.requests or written.devices.requests) > 1:
            raise BadInput(
                field=f"{path}.requests",
                value=each.requests,
                fault=Fault.UNSUPPORTED,
                detail="a rule holds for the devices of one request; ask for them in one",
            )
        needs = True
    return needs


def _refuse_attribute(attribute: str, path: str) -> NoReturn:
    """Refuse an attribute that devices cannot be made to share, with what comes nearest."""
    instead = _INSTEAD.get(attribute.rpartition("/")[2].lower(), "")
    raise BadInput(
        field=path,
        value=attribute,
        fault=Fault.UNSUPPORTED,
        detail=f"supported values: {', '.join(sorted(_NUMA))}{instead}",
    )


def _refuse_config(written: ClaimText) -> None:
    for index, _ in enumerate(written.devices.config):
        raise BadInput.forbidden(
            f"{written.at}.config[{index}]", "no parameters are read; leave it out"
        )


def _one_selector(selectors: Sequence[_Selectors], path: str) -> None:
    if len({each.wanted for each in selectors}) > 1:
        raise BadInput.forbidden(
            path, "all requests of a pod must have the same selectors; use a pod for each"
        )


def _annotations(pod: Pod, selectors: Sequence[_Selectors], path: str) -> dict[str, str]:
    """Return the annotation for the selectors, which hold for all containers of a pod."""
    _one_selector(selectors, path)
    expression = selectors[0].expression if selectors else ""
    if not expression:
        return {}
    key = names.ANNOTATION_DEVICE_SELECTOR
    if pod.metadata.annotations.get(key, expression) != expression:
        raise BadInput.forbidden(
            f"metadata.annotations[{key}]", f"the selectors of {path} choose devices already"
        )
    return {key: expression}
