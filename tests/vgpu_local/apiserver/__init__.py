"""A stand-in Kubernetes API server: real verbs over real HTTPS, in a thread, up in milliseconds.

Tests and the demo need an API server with the semantics that our correctness depends on
(resourceVersions, conflicts, finalizers, watches, server-side apply, admission), and with faults on
demand. It deliberately does not evaluate CEL, RBAC and admission policies.
"""

from vgpu_local.apiserver.faults import Fault, Faults
from vgpu_local.apiserver.server import ApiServer
from vgpu_local.apiserver.storage import WriteEvent

__all__ = ["ApiServer", "Fault", "Faults", "WriteEvent"]
