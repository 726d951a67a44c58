"""The operator's errors, in addition to those of its libraries."""

from __future__ import annotations

from vgpu_api.errors import VgpuError


class OperatorError(VgpuError):
    """The base class of the operator's errors."""


class NotLeading(OperatorError):
    """This replica does not decide; the caller must ask the leader."""


class NotServed(OperatorError):
    """The API server does not serve a kind, or no longer."""


class CertificateUnreadable(OperatorError):
    """A stored certificate or key is unusable, so a new one must be issued."""
