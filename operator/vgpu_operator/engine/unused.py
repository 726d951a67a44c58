"""Users' claims that go some time after their pod ended: `ttlSecondsAfterUnused`.

Nothing is remembered but which claims to look at: since when a claim is unused stands in its own
condition, so the time goes on whoever leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from vgpu_api.conditions import ALLOCATED, RELEASED, find, is_true
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import Key

logger = logging.getLogger(__name__)


def unused_since(claim: VGPUClaim) -> float | None:
    """Unix time since when the claim holds nothing; None while it does, or if it never did.

    The condition `Allocated` keeps its transition time while it stays False, whatever is said of
    pods that asked in vain meanwhile.
    """
    status = claim.status
    was_used = status.state == "Released" or is_true(status.conditions, RELEASED)
    allocated = find(status.conditions, ALLOCATED)
    if status.allocation is not None or not was_used or allocated is None:
        return None
    try:
        return datetime.fromisoformat(allocated.last_transition_time).timestamp()
    except ValueError:
        return None


class UnusedClaims:
    """Deletes claims whose time is up.

    Args:
        api: Where they are deleted.
        books: What was seen.
        unix: Unix time.
    """

    def __init__(self, api: Api, books: Books, *, unix: Callable[[], float]) -> None:
        self._api = api
        self._books = books
        self._unix = unix
        self._watched: dict[Key, None] = {}

    def look_at(self, claim: VGPUClaim) -> None:
        """A claim has changed: watch its time, or no longer."""
        ends = claim.spec.ttl_seconds_after_unused is not None and not _is_made_for_a_pod(claim)
        if ends and unused_since(claim) is not None:
            self._watched[key_of(claim)] = None
        else:
            self._watched.pop(key_of(claim), None)

    def due(self) -> list[VGPUClaim]:
        """The claims to be deleted now."""
        watched = [(key, self._books.claim(key)) for key in self._watched]
        return [claim for key, claim in watched if claim is not None and self._is_due(key, claim)]

    async def delete(self, claim: VGPUClaim) -> None:
        """Delete the claim if it is as it was judged; otherwise it will be looked at again."""
        metadata = claim.metadata
        logger.info("claim %s/%s: unused for long enough", metadata.namespace, metadata.name)
        try:
            await self._api.delete(
                VGPU_CLAIMS,
                metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
            )
        except ClientError as error:
            logger.info("claim %s/%s not deleted: %s", metadata.namespace, metadata.name, error)
        else:
            self._watched.pop(key_of(claim), None)

    def _is_due(self, key: Key, claim: VGPUClaim) -> bool:
        since, ttl_s = unused_since(claim), claim.spec.ttl_seconds_after_unused
        if since is None or ttl_s is None or claim.metadata.deletion_timestamp is not None:
            return False
        wanted = any(not c.pod.is_terminal for c in self._books.consumers_of(key))
        return not wanted and not self._books.is_template(key) and self._unix() - since >= ttl_s


def _is_made_for_a_pod(claim: VGPUClaim) -> bool:
    return any(owner.kind == "Pod" for owner in claim.metadata.owner_references)
