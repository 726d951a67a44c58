"""A stand-in Kubernetes API server: real verbs over real HTTPS, in a thread, up in milliseconds.

What it is for: tests and the demo need an API server whose semantics our correctness rests on
(resourceVersions, conflicts, finalizers, watches, server-side apply, admission) and whose faults
can be ordered. Not evaluated, on purpose: CEL, RBAC, admission policies.
"""

from vgpu_local.apiserver.faults import Fault, Faults
from vgpu_local.apiserver.server import ApiServer
from vgpu_local.apiserver.storage import WriteEvent

__all__ = ["ApiServer", "Fault", "Faults", "WriteEvent"]
