"""kube-scheduler's extender messages.

They are Go structs without JSON names: requests carry the field names as they are (`Pod`,
`NodeNames`), answers are read whatever their case. Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def _fields(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadInput(field="body", value=body, expected="a JSON object")
    return {key.lower(): value for key, value in body.items()}
