"""Judges whether the kubelet still offers the slots of this agent.

The kubelet does not notify a plugin that was replaced or disconnected. Two things can happen while
its socket stays (pkg/kubelet/cm/devicemanager at v1.36.3):

* Another plugin registers the same resource. From then on the kubelet calls that plugin, and its
  devices replace our slots. Our ListAndWatch stays open, so only the list of allocatable devices
  shows it.
* ListAndWatch ends, ours or that of an earlier plugin of the name. The kubelet disconnects the
  plugin that is registered, marks every device unhealthy and does not dial again.

Another registration cures both. It is repeated with back-off, because two plugins that each take
the name back at once would keep all pods of the node from being admitted.

Pure: observations and the time are arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

FIRST_BACKOFF_S = 3.0
LAST_BACKOFF_S = 300.0
QUIET_S = 600.0
"""Reset the back-off after this long without a loss."""

_SLOT = re.compile(r"slot-\d+")
_SHOWN = 40


class PluginState(StrEnum):
    """The state of this agent's registration."""

    CONNECTED = "Connected"
    DISCONNECTED = "Disconnected"
    REPLACED = "Replaced"


@dataclass(frozen=True, slots=True)
class Look:
    """The kubelet's answers at one check.

    Attributes:
        is_read: True if the kubelet reads the ListAndWatch that it opened after the last
            registration.
        offered: The healthy slots that were sent last.
        listed: The devices of our resource that the kubelet has, in use or not; None if it does
            not respond.
    """

    is_read: bool
    offered: frozenset[str]
    listed: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """The reason why the kubelet does not offer this agent's slots, for conditions."""

    reason: str
    message: str


class PluginStanding:
    """The state of the agent's registration with the kubelet, updated from successive observations.

    Args:
        resource: The resource name, for messages.
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
        """Start over: the kubelet has restarted and knew no plugin."""
        self._connected(now)

    def see(self, look: Look, *, now: float) -> bool:
        """Use a new observation; return True if the plugin should register again now.

        Args:
            look: The observation.
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
        # A stream that ended is usually opened again within seconds, so it is a problem only if
        # another registration did not help. A foreign plugin is named at once, as it will not go.
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
        # A single look may fall between a registration and its stream, or a list and its effect.
        self._doubts = self._doubts + 1 if missing or not look.is_read else 0
        needed = 2 if self.state is PluginState.CONNECTED else 1
        if self._doubts < needed:
            return PluginState.CONNECTED, None
        text = (
            f"the kubelet does not read the {self._resource} of this agent: it offers "
            f"{len(look.offered) - len(missing)} of {len(look.offered)} slots"
        )
        return PluginState.DISCONNECTED, PluginProblem("PluginDisconnected", text)
