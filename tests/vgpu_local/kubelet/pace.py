"""How long a kubelet waits for what, so that tests need not wait as long as a real one does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a kubelet waits, in seconds.

    Attributes:
        first_retry: after the first failure to start a container.
        retry: after every further one.
        first_restart: before the second restart of a container that ended; then doubled.
        last_restart: at most.
        write_retry: before a status is written again that the API server did not take.
        gone_grace: how long containers of a pod that vanished from the API have to end.
    """

    first_retry: float = 0.5
    retry: float = 10.0
    first_restart: float = 1.0
    last_restart: float = 10.0
    write_retry: float = 0.5
    gone_grace: float = 0.0
