"""Tells why a pod or a claim gets nothing: an event on the pod, a condition on the claim.

The words are the same in both. Counts in a refusal move with every decision, so a changed text is
written again only after some seconds, and then the newest one.
"""

from __future__ import annotations

from typing import Any

from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import ClaimWriter, Key
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer, is_owned_by
from vgpu_operator.engine.recorder import Recorder
from vgpu_operator.engine.refusals import RETELL_S, Refusal
from vgpu_operator.engine.status import Wish, claim_for_pod, says
from vgpu_operator.engine.writes import refusal_write


class Teller:
    """Tells refusals.

    Args:
        books: What was seen.
        writer: Writes claims.
        recorder: Says things about objects.
        clock: Both clocks.
    """

    def __init__(
        self, *, books: Books, writer: ClaimWriter, recorder: Recorder, clock: Clock
    ) -> None:
        self._books = books
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._told: dict[Key, float] = {}
        self._untold: dict[Key, tuple[Refusal, dict[str, Any] | None]] = {}

    def tell_pod(self, consumer: Consumer, refusal: Refusal) -> None:
        """Tell a pod's refusal on the pod, and on its claim unless that serves another pod."""
        metadata = consumer.pod.metadata
        self._recorder.say(
            api_version="v1",
            kind="Pod",
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            warning=True,
            reason=refusal.reason,
            message=refusal.message,
        )
        ask = consumer.ask
        create = None
        if consumer.owned and not isinstance(ask, BadInput) and ask.spec is not None:
            create = claim_for_pod(consumer.pod, ask.spec)
        claim = self._books.claim(consumer.claim)
        another = claim is not None and consumer.owned and not is_owned_by(claim, consumer.uid)
        if not another and not self._books.is_unreadable(consumer.claim):
            self.tell_claim(consumer.claim, refusal, create=create)

    def tell_node(self, node: Node, reason: str, message: str) -> None:
        """Tell what is odd about a node, on the node."""
        metadata = node.metadata
        self._recorder.say(
            api_version="v1",
            kind="Node",
            namespace=None,
            name=metadata.name,
            uid=metadata.uid,
            warning=True,
            reason=reason,
            message=message,
        )

    def tell_claim(
        self, key: Key, refusal: Refusal, *, create: dict[str, Any] | None = None
    ) -> None:
        """Write the refusal into the claim; where there is none, `create` is made first."""
        self._untold[key] = (refusal, create)
        self._tell(key)

    def tell_what_is_due(self) -> None:
        """Write the texts that had to wait."""
        for key in list(self._untold):
            self._tell(key)

    def forget(self, key: Key) -> None:
        """The claim is gone."""
        self._told.pop(key, None)
        self._untold.pop(key, None)

    def _tell(self, key: Key) -> None:
        refusal, create = self._untold[key]
        claim = self._books.claim(key)
        wish = Wish.refused(reason=refusal.reason, message=refusal.message)
        pointless = claim is None and create is None
        if claim is not None:
            pointless = claim.status.allocation is not None or says(claim, wish)
        if pointless:
            del self._untold[key]
            return
        now = self._clock.monotonic()
        if self._writer.busy(key) or now - self._told.get(key, -RETELL_S) < RETELL_S:
            return
        del self._untold[key]
        self._told[key] = now
        self._writer.submit(refusal_write(key, wish, create=create, now=self._clock.unix()))
