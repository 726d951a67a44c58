"""The request as each step of a write sees it: who writes, and how."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Call:
    """A writing request's options; `warnings` gathers what becomes Warning headers.

    Args:
        manager: The field manager, for ownership.
        user: The caller, as in the review.
        field_validation: Ignore, Warn or Strict: the treatment of unknown fields of custom kinds.
        force: True if an apply takes over fields of others.
        from_patch: True if unknown fields came with a patch, which the server words differently.
    """

    manager: str = "unknown"
    user: str = "kubernetes-admin"
    dry_run: bool = False
    field_validation: str = "Warn"
    force: bool = False
    from_patch: bool = False
    warnings: list[str] = field(default_factory=list)
