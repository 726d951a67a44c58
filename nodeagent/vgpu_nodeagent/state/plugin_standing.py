"""Where this agent stands with the kubelet: are its slots what the kubelet offers?

The kubelet does not notify a plugin that has lost its place. Two things can happen while its socket
stays (pkg/kubelet/cm/devicemanager at v1.36.3):

* Another plugin registers the same resource. From then on the kubelet calls that one, and its
  devices replace our slots. Our ListAndWatch goes on, so an open stream proves nothing; only the
  list of allocatable devices shows it.
* ListAndWatch ends, ours or that of an earlier plugin of the name. The kubelet disconnects the
  plugin that is registered, marks every device unhealthy and does not dial again.

Both are cured by another registration. It is repeated with back-off, because two plugins that each
take the name back at once would keep the node's pods from ever being admitted.

Pure bookkeeping: what was seen and the clock are handed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

FIRST_BACKOFF_S = 3.0
LAST_BACKOFF_S = 300.0
QUIET_S = 600.0
"""After this long without a loss the back-off starts from the beginning."""

_SLOT = re.compile(r"slot-\d+")
_SHOWN = 40


class PluginState(StrEnum):
    """What the kubelet makes of this agent's registration."""

    CONNECTED = "Connected"
    DISCONNECTED = "Disconnected"
    REPLACED = "Replaced"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the kubelet showed.

    Attributes:
        is_read: The kubelet reads the ListAndWatch that it opened after the last registration.
        offered: The healthy slots that were sent last.
        listed: The devices of our resource that the kubelet may hand out or has handed out; None
            where it does not answer.
    """

    is_read: bool
    offered: frozenset[str]
    listed: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """Why the kubelet does not offer this agent's slots, for conditions."""

    reason: str
    message: str


class PluginStanding:
    """The agent's standing with the kubelet.

    Args:
        resource: The resource's name, for the messages.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._backoff_s = FIRST_BACKOFF_S
        self._again_at: float | None = None
        self._connected_since = 0.0
        self._doubts = 0
        self._in_vain = 0
        self.state = PluginState.CONNECTED
        self.problem: PluginProblem | None = None

    def registered_with_a_new_kubelet(self, *, now: float) -> None:
        """Start afresh: the kubelet has restarted and knew no plugin."""
        self._connected(now)

    def see(self, look: Look, *, now: float) -> bool:
        """Take in a look; return whether to register again now.

        Args:
            look: What was seen.
            now: Seconds, monotonic.
        """
        state, problem = self._judge(look)
        if state is PluginState.CONNECTED:
            if self._again_at is not None:
                self._connected(now)
            elif now - self._connected_since >= QUIET_S:
                self._backoff_s = FIRST_BACKOFF_S
            return False
        self.state = state
        # A stream that ended is opened again within seconds; only where that does not help is it
        # worth a word. A foreign plugin is named at once, because it will not go by itself.
        if state is PluginState.REPLACED or self._in_vain:
            self.problem = problem
        if self._again_at is None:
            self._again_at = now + self._backoff_s
        if now < self._again_at:
            return False
        self._in_vain += 1
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)
        self._again_at = now + self._backoff_s
        return True

    def _connected(self, now: float) -> None:
        self.state, self.problem = PluginState.CONNECTED, None
        self._again_at = None
        self._connected_since = now
        self._doubts = self._in_vain = 0

    def _judge(self, look: Look) -> tuple[PluginState, PluginProblem | None]:
        listed = look.offered if look.listed is None else look.listed
        others = sorted(device for device in listed if not _SLOT.fullmatch(device))
        if others:
            text = (
                f"another device plugin has registered {self._resource} with the kubelet, which "
                f"offers its devices ({len(others)}, such as {others[0][:_SHOWN]}) instead of the "
                f"{len(look.offered)} slots of this agent"
            )
            return PluginState.REPLACED, PluginProblem("PluginReplaced", text)
        missing = look.offered - listed
        # One look may fall between a registration and its stream, or between a list and its effect.
        self._doubts = self._doubts + 1 if missing or not look.is_read else 0
        needed = 2 if self.state is PluginState.CONNECTED else 1
        if self._doubts < needed:
            return PluginState.CONNECTED, None
        text = (
            f"the kubelet does not read the {self._resource} of this agent: it offers "
            f"{len(look.offered) - len(missing)} of {len(look.offered)} slots"
        )
        return PluginState.DISCONNECTED, PluginProblem("PluginDisconnected", text)
