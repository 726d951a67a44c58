"""Whether the cards of an expired reservation may go: only the API server knows where its pod is.

Our view of the pod may be old: a Binding whose answer was lost, or that a former leader posted,
may stand while our watch has not told of it. So before anything is freed the pod is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from vgpu_api.core import Pod
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound
from vgpu_operator.engine.reservations import Reservation

Verdict = Literal["free", "kept", "unknown"]


class Expiry:
    """Judges reservations that have been held for too long.

    Args:
        api: Where pods are read.
        learned: Told of the pod as it was read.
    """

    def __init__(self, api: Api, *, learned: Callable[[Pod], object]) -> None:
        self._api = api
        self._learned = learned
        self._asking: set[str] = set()  # pod UIDs

    async def judge(self, reservation: Reservation) -> Verdict:
        """`free`: its pod is there and not on that node. `kept`: it is, or it is gone.

        A pod that is gone may have been bound before, and its containers may still run: what is
        to become of its cards follows from how it went, which the watch tells. `unknown`: there
        was no answer, or somebody is asking already; ask again later.
        """
        reserved = reservation.wish.reserved_for
        if reserved is None or reserved.pod_uid in self._asking:
            return "unknown"
        self._asking.add(reserved.pod_uid)
        try:
            raw = await self._api.get(PODS, reserved.pod_name, namespace=reservation.claim[0])
        except NotFound:
            return "kept"
        except ClientError:
            return "unknown"
        finally:
            self._asking.discard(reserved.pod_uid)
        if raw["metadata"].get("uid") != reserved.pod_uid:
            return "kept"
        if raw["spec"].get("nodeName"):
            self._learned(Pod.model_validate(raw))
        return "kept" if raw["spec"].get("nodeName") == reservation.node else "free"
