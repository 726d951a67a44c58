"""kube-scheduler's extender messages.

They are Go structs without JSON names. Requests carry the Go field names (`Pod`, `NodeNames`);
answers are read in any case. Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.errors import BadInput
from vgpu_operator.engine.preemption.open_preemptions import Victim


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """A request to filter nodes for a pod.

    `nodes` are full objects. They are sent if the scheduler keeps no cache of its own
    (`nodeCacheCapable: false`) or asks about nodes that do not exist yet.
    """

    pod: dict[str, Any]
    node_names: Sequence[str]
    nodes: Sequence[dict[str, Any]] | None

    @classmethod
    def read(cls, body: Any) -> FilterRequest:
        """Read the request.

        Raises:
            BadInput: Names the field that is missing or wrong.
        """
        fields = _fields(body)
        pod = _pod(fields)
        if fields.get("nodenames") is not None:
            names = fields["nodenames"]
            if not isinstance(names, list) or not set(map(type, names)) <= {str}:
                raise BadInput(field="NodeNames", value=names, expected="a list of names")
            return cls(pod, names, None)
        nodes = (fields.get("nodes") or {}).get("items")
        if not isinstance(nodes, list):
            raise BadInput.required("NodeNames", "or Nodes instead")
        return cls(pod, [node["metadata"]["name"] for node in nodes], nodes)


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The nodes that can take the pod, or if none can, the reason for each node.

    `curable` are the nodes where ending other pods could make room. kube-scheduler looks for
    victims only there, and not on the `incurable` ones. `nodes` returns the full objects if the
    request had them.
    """

    node_names: Sequence[str]
    incurable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    nodes: Sequence[dict[str, Any]] | None = None
    curable: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, str]:
        """Return all refused nodes with their reasons, curable or not."""
        return {**self.incurable, **self.curable}

    def to_wire(self) -> dict[str, Any]:
        """Return it in kube-scheduler's form."""
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
        uids: The pods' UIDs.
        broken_budgets: The number of PodDisruptionBudgets that this would violate.
    """

    uids: Sequence[str]
    broken_budgets: int = 0

    def with_more(self, added: Collection[Victim]) -> Victims:
        """Return these victims and the added ones."""
        pods = [pod.uid for victim in added for pod in victim.pods]
        broken = sum(victim.is_protected for victim in added)
        return Victims((*self.uids, *pods), self.broken_budgets + broken)


@dataclass(frozen=True, slots=True)
class PreemptRequest:
    """A request to keep the nodes where ending the victims would let the pod run."""

    pod: dict[str, Any]
    victims: Mapping[str, Victims]

    @classmethod
    def read(cls, body: Any) -> PreemptRequest:
        """Read the request; victims are UIDs, or full pods if the scheduler keeps no cache.

        Raises:
            BadInput: Names the field that is missing or wrong.
        """
        fields = _fields(body)
        pod = _pod(fields)
        for name, uid_of in (("NodeNameToMetaVictims", _uid), ("NodeNameToVictims", _pods_uid)):
            by_node = fields.get(name.lower())
            if by_node is not None:
                nodes = _object(by_node, name).items()
                return cls(pod, {n: _victims(v, f"{name}[{n}]", uid_of) for n, v in nodes})
        raise BadInput.required("NodeNameToMetaVictims", "or NodeNameToVictims instead")


@dataclass(frozen=True, slots=True)
class PreemptAnswer:
    """The nodes that remain, each with the victims that kube-scheduler has chosen."""

    victims: Mapping[str, Victims]

    def to_wire(self) -> dict[str, Any]:
        """Return it in kube-scheduler's form."""
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
    """A request to bind a pod to a node."""

    namespace: str
    name: str
    uid: str
    node: str

    @classmethod
    def read(cls, body: Any) -> BindRequest:
        """Read the request.

        Raises:
            BadInput: Names the field that is missing or wrong.
        """
        fields = _fields(body)

        def text(name: str) -> str:
            value = fields.get(name.lower())
            if not isinstance(value, str) or not value:
                raise BadInput.required(name)
            return value

        return cls(text("PodNamespace"), text("PodName"), text("PodUID"), text("Node"))


def _pod(fields: Mapping[str, Any]) -> dict[str, Any]:
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        raise BadInput(field="Pod", value=pod, expected="a pod")
    return pod


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
