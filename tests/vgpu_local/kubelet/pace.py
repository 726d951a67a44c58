"""A kubelet's waiting times, which tests make shorter than those of a real kubelet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The waiting times of a kubelet, in seconds.

    Attributes:
        first_retry: The wait after the first failure to start a container.
        retry: The wait after every further failure.
        first_restart: The wait before the second restart of an ended container; then it doubles.
        last_restart: The longest wait before a restart.
        write_retry: The wait before a failed write of a status is repeated.
        gone_grace: The grace period of containers whose pod vanished from the API.
    """

    first_retry: float = 0.5
    retry: float = 10.0
    first_restart: float = 1.0
    last_restart: float = 10.0
    write_retry: float = 0.5
    gone_grace: float = 0.0
