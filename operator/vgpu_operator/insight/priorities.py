"""Looks up the priority of pods that do not exist yet.

The API server writes the priority into a pod when it creates it. Until then the pod only names its
PriorityClass, which is looked up in the manifest first and then in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_api.core import Pod, PriorityClass
from vgpu_api.v1alpha1 import Metadata

_OF_THE_SYSTEM = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""The classes that every API server has. Source: Kubernetes, SystemPriorityClasses."""


class PriorityUnknown(Exception):
    """The priority of a pod cannot be looked up; the message says why."""


class Priorities:
    """The PriorityClasses that pods may name.

    Args:
        classes: The known classes; the first of a name counts.
        unread: Why the cluster's classes could not be read; empty if they were.
    """

    def __init__(self, classes: Iterable[PriorityClass] = (), unread: str = "") -> None:
        self._unread = unread
        self._by_name = {
            name: PriorityClass(metadata=Metadata(name=name), value=value)
            for name, value in _OF_THE_SYSTEM.items()
        }
        for each in classes:
            self._by_name.setdefault(each.metadata.name, each)

    def beside(self, classes: Iterable[PriorityClass]) -> Priorities:
        """Return these priorities and others that take precedence, such as a manifest's."""
        return Priorities([*classes, *self._by_name.values()], self._unread)

    def resolved(self, pod: Pod) -> Pod:
        """Return the pod with the priority that the API server would write into it.

        Raises:
            PriorityUnknown: The pod's class is not known.
        """
        spec = pod.spec
        if spec.priority is not None:
            return pod
        found = self._class_of(spec.priority_class_name)
        if found is None:
            return pod
        policy = spec.preemption_policy or found.preemption_policy
        resolved = spec.model_copy(update={"priority": found.value, "preemption_policy": policy})
        return pod.model_copy(update={"spec": resolved})

    def _class_of(self, name: str) -> PriorityClass | None:
        """Return the named class, or the default if the name is empty; None if there is no default.

        Raises:
            PriorityUnknown: The class does not exist, or the classes could not be read.
        """
        if name in self._by_name:
            return self._by_name[name]
        if self._unread:
            raise PriorityUnknown(f"PriorityClasses are not known: {self._unread}")
        if name:
            raise PriorityUnknown(f"PriorityClass {name} does not exist here")
        defaults = [each for each in self._by_name.values() if each.global_default]
        # Source: Kubernetes' admission plugin Priority takes the lowest of several defaults.
        return min(defaults, key=lambda each: each.value, default=None)
