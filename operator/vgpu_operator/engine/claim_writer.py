"""Writes decisions into claims, so that each has a definite end whatever the network does.

A write is a function from the claim as it stands to the status it should have, with a guard that
says whether it is still right. Conflicts re-read and judge again; an unknown outcome is resolved
by reading. Writes to one claim go one after the other, in the order they were decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError

from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimStatus
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists, ApiError, ClientError, NotFound
from vgpu_client.status_writer import (
    Conflicted,
    Operation,
    Rejected,
    StatusWrite,
    StatusWriter,
    Unresolved,
    Unsent,
    Written,
)

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
"""A claim's namespace and name."""

Verdict: TypeAlias = Literal["write", "done", "moot"]

_CONFLICTS = 8
_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 2.0
_LAST_IN_VAIN_S = 5.0
_LOOK_S = 0.25
_IN_VAIN_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class ClaimWrite:
    """One decision to be written.

    Attributes:
        key: Which claim.
        status: The status it should have, made from the claim as it stands.
        judge: Looks at every version before it is written over: `write` it, or it is `done`
            already (by a write of ours whose answer was lost), or the write has become `moot`.
        create: The object to make when there is no such claim; None: then the write is moot.
        finalizer: Put ours on before the status, take it off after, or leave it.
    """

    key: Key
    status: Callable[[VGPUClaim], VGPUClaimStatus]
    judge: Callable[[VGPUClaim], Verdict]
    create: dict[str, Any] | None = None
    finalizer: Literal["hold", "drop", "leave"] = "leave"


@dataclass(frozen=True, slots=True)
class Done:
    """Written; the claim as it stands now."""

    claim: VGPUClaim


@dataclass(frozen=True, slots=True)
class Moot:
    """Not written, and no longer wanted: the claim is gone or became something else."""

    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Not written, for good."""

    why: str


Result: TypeAlias = Done | Moot | Failed


class ClaimWriter:
    """Carries out `ClaimWrite`s.

    Args:
        api: Reads and creates claims.
        writer: Writes their status.
        known: The newest version of a claim that we have, to spare a read.
        learned: Told every version that a write or a read brought.
        ended: Told of a claim when its last write has ended, however: what had to wait for that
            is to be looked at now.
        may_write: Whether this replica may still decide; a write waits for nothing else.
        sleep: Waits between attempts, and after those in vain.
    """

    def __init__(
        self,
        api: Api,
        writer: StatusWriter,
        *,
        known: Callable[[Key], VGPUClaim | None],
        learned: Callable[[VGPUClaim], None],
        ended: Callable[[Key], None] = lambda key: None,
        may_write: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._writer = writer
        self._known = known
        self._learned = learned
        self._ended = ended
        self._may_write = may_write
        self._sleep = sleep
        self._last: dict[Key, asyncio.Task[Result]] = {}
        self._in_vain: OrderedDict[tuple[Key, str], int] = OrderedDict()  # how often in a row

    def submit(self, write: ClaimWrite) -> asyncio.Task[Result]:
        """Take a write on; the task never raises but when it is cancelled."""
        task = asyncio.ensure_future(self._after(self._last.get(write.key), write))
        self._last[write.key] = task
        task.add_done_callback(lambda done: self._tidy(write.key, done))
        return task

    def busy(self, key: Key) -> bool:
        """Whether a write to this claim has no end yet."""
        return key in self._last

    async def drain(self) -> None:
        """Wait until every write that was taken on has ended."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _tidy(self, key: Key, done: asyncio.Task[Result]) -> None:
        if self._last.get(key) is done:
            del self._last[key]
            self._ended(key)

    async def _after(self, previous: asyncio.Task[Result] | None, write: ClaimWrite) -> Result:
        if previous is not None:
            await asyncio.wait({previous})
        result = await self._carry_out(write)
        left_s = self._wait_after(result, (write.key, write.finalizer))
        while left_s > 0 and self._may_write():
            await self._sleep(min(left_s, _LOOK_S))
            left_s -= _LOOK_S
        return result

    def _wait_after(self, result: Result, kind: tuple[Key, str]) -> float:
        """For how long whoever wanted the write is not told yet that it was in vain.

        Told, it decides again: where the API server says no to every attempt, or deletes what we
        make (we may not know that the pod is gone), it would do so as fast as it can.
        """
        times = self._in_vain.pop(kind, 0)
        if isinstance(result, Done):
            return 0.0
        self._in_vain[kind] = times + 1
        if len(self._in_vain) > _IN_VAIN_REMEMBERED:
            self._in_vain.popitem(last=False)
        return min(_FIRST_WAIT_S * (2.0 ** min(times, 16) - 1), _LAST_IN_VAIN_S)

    async def _carry_out(self, write: ClaimWrite) -> Result:
        wait_s, conflicts = _FIRST_WAIT_S, 0
        claim = self._known(write.key)
        while self._may_write():
            try:
                if claim is None:
                    claim = await self._find_or_create(write)
                if claim is None:
                    return Moot("the claim is gone")
                verdict = write.judge(claim)
                if verdict == "done":
                    return Done(claim)
                if verdict == "moot":
                    return Moot("the claim has changed")
                outcome = await self._writer.submit(_status_write(write, claim))
            except ApiError as refusal:
                if refusal.status < 500:
                    return Failed(str(refusal))
                outcome = Unresolved(refusal)
            except ClientError as trouble:
                outcome = Unresolved(trouble)
            match outcome:
                case Written(obj):
                    written = VGPUClaim.read(obj)
                    self._learned(written)
                    return Done(written)
                case Rejected(error):
                    if error.status == 404:
                        return Moot("the claim is gone")
                    return Failed(str(error))
                case Conflicted(conflict):
                    conflicts += 1
                    if conflicts > _CONFLICTS:
                        return Failed(
                            f"the claim changes faster than it can be written: {conflict}"
                        )
                case Unsent() | Unresolved():
                    logger.warning("claim %s/%s: %s; reading it again", *write.key, outcome)
                    await self._sleep(wait_s)
                    wait_s = min(wait_s * 2, _LAST_WAIT_S)
            # What happened to an unresolved write, only the object tells.
            claim = None
        return Failed("this replica no longer leads")

    async def _find_or_create(self, write: ClaimWrite) -> VGPUClaim | None:
        """The claim as it stands, made if it has to be; None where there is none to be made.

        Raises:
            ClientError: it could not be read or made.
        """
        namespace, name = write.key
        try:
            raw = await self._api.get(VGPU_CLAIMS, name, namespace=namespace)
        except NotFound:
            if write.create is None:
                return None
            try:
                raw = await self._api.create(VGPU_CLAIMS, write.create)
            except AlreadyExists:
                raw = await self._api.get(VGPU_CLAIMS, name, namespace=namespace)
        try:
            claim = VGPUClaim.read(raw)
        except ValidationError as error:
            logger.error("claim %s/%s cannot be read: %s", namespace, name, error)
            return None
        self._learned(claim)
        return claim


def _status_write(write: ClaimWrite, claim: VGPUClaim) -> StatusWrite:
    finalizers = claim.metadata.finalizers
    before: list[Operation] = []
    after: list[Operation] = []
    if write.finalizer == "hold" and FINALIZER_IN_USE not in finalizers:
        # An empty list is left out of the object, so there is nothing to append to.
        path = "/metadata/finalizers/-" if finalizers else "/metadata/finalizers"
        value: Any = FINALIZER_IN_USE if finalizers else [FINALIZER_IN_USE]
        before = [{"op": "add", "path": path, "value": value}]
    if write.finalizer == "drop" and FINALIZER_IN_USE in finalizers:
        at = finalizers.index(FINALIZER_IN_USE)
        after = [{"op": "remove", "path": f"/metadata/finalizers/{at}"}]
    return StatusWrite(
        namespace=write.key[0],
        name=write.key[1],
        resource_version=claim.metadata.resource_version,
        status=[{"op": "add", "path": "/status", "value": write.status(claim).to_wire()}],
        before=before,
        after=after,
    )
