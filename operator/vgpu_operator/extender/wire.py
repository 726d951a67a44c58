"""kube-scheduler's extender messages.

They are Go structs without JSON names: requests carry the field names as they are (`Pod`,
`NodeNames`), answers are read whatever their case. Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.errors import BadInput


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """Which of these nodes can take the pod?

    `nodes` are full objects, sent when the scheduler keeps no cache of its own
    (`nodeCacheCapable: false`) or asks about nodes that do not exist yet.
    """

    pod: dict[str, Any]
    node_names: Sequence[str]
    nodes: Sequence[dict[str, Any]] | None

    @classmethod
    def read(cls, body: Any) -> FilterRequest:
        """The request.

        Raises:
            BadInput: names the field that is missing or wrong.
        """
        fields = _fields(body)
        pod = fields.get("pod")
        if not isinstance(pod, dict):
            raise BadInput(field="Pod", value=pod, expected="a pod")
        if fields.get("nodenames") is not None:
            names = fields["nodenames"]
            if not isinstance(names, list) or not set(map(type, names)) <= {str}:
                raise BadInput(field="NodeNames", value=names, expected="a list of names")
            return cls(pod, names, None)
        nodes = (fields.get("nodes") or {}).get("items")
        if not isinstance(nodes, list):
            raise BadInput.required("NodeNames", "or Nodes in its stead")
        return cls(pod, [node["metadata"]["name"] for node in nodes], nodes)


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The nodes that can; where none can, for each the reason.

    `curable` are those where the end of other pods could make room: kube-scheduler looks for a pod
    to preempt on these only, and not on the `incurable` ones. `nodes` echoes full objects when the
    request carried them.
    """

    node_names: Sequence[str]
    incurable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    nodes: Sequence[dict[str, Any]] | None = None
    curable: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, str]:
        """Both."""
        return {**self.incurable, **self.curable}

    def to_wire(self) -> dict[str, Any]:
        """As kube-scheduler reads it."""
        answer: dict[str, Any] = {
            "NodeNames": list(self.node_names),
            "FailedNodes": self.curable,
            "FailedAndUnresolvableNodes": self.incurable,
            "Error": self.error,
        }
        if self.nodes is not None:
            kept = set(self.node_names)
            items = [node for node in self.nodes if node["metadata"]["name"] in kept]
            answer["Nodes"] = {"apiVersion": "v1", "kind": "NodeList", "items": items}
        return answer


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods that kube-scheduler would end on one node.

    Attributes:
        uids: Of the pods.
        broken_budgets: How many PodDisruptionBudgets that would break.
    """

    uids: Sequence[str]
    broken_budgets: int = 0


@dataclass(frozen=True, slots=True)
class PreemptRequest:
    """On which of these nodes would the end of the victims let the pod run?"""

    pod: dict[str, Any]
    victims: Mapping[str, Victims]

    @classmethod
    def read(cls, body: Any) -> PreemptRequest:
        """The request; victims are UIDs, or full pods where the scheduler keeps no cache.

        Raises:
            BadInput: names the field that is missing or wrong.
        """
        fields = _fields(body)
        pod = fields.get("pod")
        if not isinstance(pod, dict):
            raise BadInput(field="Pod", value=pod, expected="a pod")
        for name, uid_of in (("NodeNameToMetaVictims", _uid), ("NodeNameToVictims", _pods_uid)):
            by_node = fields.get(name.lower())
            if by_node is not None:
                nodes = _object(by_node, name).items()
                return cls(pod, {n: _victims(v, f"{name}[{n}]", uid_of) for n, v in nodes})
        raise BadInput.required("NodeNameToMetaVictims", "or NodeNameToVictims in its stead")


@dataclass(frozen=True, slots=True)
class PreemptAnswer:
    """The nodes that stay, each with the victims that kube-scheduler has chosen."""

    victims: Mapping[str, Victims]

    def to_wire(self) -> dict[str, Any]:
        """As kube-scheduler reads it."""
        return {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in victims.uids],
                    "NumPDBViolations": victims.broken_budgets,
                }
                for node, victims in self.victims.items()
            }
        }


@dataclass(frozen=True, slots=True)
class BindRequest:
    """Bind this pod to this node."""

    namespace: str
    name: str
    uid: str
    node: str

    @classmethod
    def read(cls, body: Any) -> BindRequest:
        """The request.

        Raises:
            BadInput: names the field that is missing or wrong.
        """
        fields = _fields(body)

        def text(name: str) -> str:
            value = fields.get(name.lower())
            if not isinstance(value, str) or not value:
                raise BadInput.required(name)
            return value

        return cls(text("PodNamespace"), text("PodName"), text("PodUID"), text("Node"))


def _victims(raw: Any, path: str, uid_of: Callable[[Any, str], str]) -> Victims:
    fields = _fields(raw or {}, path)
    pods = fields.get("pods") or []
    if not isinstance(pods, list):
        raise BadInput(field=f"{path}.Pods", value=pods, expected="a list of pods")
    uids = [uid_of(pod, f"{path}.Pods[{number}]") for number, pod in enumerate(pods)]
    broken = fields.get("numpdbviolations") or 0
    if not isinstance(broken, int):
        raise BadInput(field=f"{path}.NumPDBViolations", value=broken, expected="a number")
    return Victims(uids, broken)


def _uid(raw: Any, path: str) -> str:
    uid = _fields(raw, path).get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadInput.required(f"{path}.UID")
    return uid


def _pods_uid(raw: Any, path: str) -> str:
    return _uid(_fields(raw, path).get("metadata"), f"{path}.metadata")


def _fields(raw: Any, path: str = "body") -> dict[str, Any]:
    return {key.lower(): value for key, value in _object(raw, path).items()}


def _object(raw: Any, path: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadInput(field=path, value=raw, expected="a JSON object")
    return raw
