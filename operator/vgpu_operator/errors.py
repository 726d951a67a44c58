"""What can go wrong in the operator, beyond what its libraries raise."""

from __future__ import annotations

from vgpu_api.errors import VgpuError


class OperatorError(VgpuError):
    """Anything that the operator raises on purpose."""


class NotLeading(OperatorError):
    """This replica does not decide; the caller must ask the one that does."""


class LeadershipLost(OperatorError):
    """The Lease is gone: the process must end, because another may decide now."""


class CertificateUnreadable(OperatorError):
    """A stored certificate or key is not what it should be; its keeper makes a new one."""
