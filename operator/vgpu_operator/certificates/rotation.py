"""Plans the rotation: no certificate is served before its authority is trusted everywhere.

A new authority is announced long before it signs: it is added to every trust bundle, and its
predecessor stays in all of them until it expires. A client that reads a bundle only at its start,
as kube-scheduler does, has the length of the announcement to be restarted.

    nothing ──► announced ──► signing ──► retired (its key is gone) ──► expired

The functions are pure. Given what is stored and published, they return what should be stored next,
one step at a time. It is safe to stop after any step, and repeating a step changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509

from vgpu_operator.certificates.issuing import (
    Pair,
    Subject,
    is_for,
    is_signed_by,
    is_worn,
    issue,
    new_authority,
)


@dataclass(frozen=True, slots=True)
class Lives:
    """The lifetimes of certificates.

    Attributes:
        pair: The lifetime of a pair; it is renewed after two thirds of that.
        authority: The lifetime of an authority. Its successor is announced after two thirds.
    """

    pair: timedelta
    authority: timedelta

    @property
    def announcement(self) -> timedelta:
        """Return a sixth of an authority's lifetime: half of what its predecessor has left."""
        return self.authority / 6


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of the Secrets.

    Attributes:
        signing: The authority that signs pairs.
        announced: The authority that will sign next.
        announced_since: The time at which it was first seen in all trust bundles.
        trusted: All authorities found in the bundles; may lack the other two.
        pairs: The pairs, by the name of their subject.
    """

    signing: Pair | None = None
    announced: Pair | None = None
    announced_since: datetime | None = None
    trusted: tuple[x509.Certificate, ...] = ()
    pairs: Mapping[str, Pair] = field(default_factory=dict)

    def bundle(self, now: datetime) -> tuple[x509.Certificate, ...]:
        """Return the trust bundle: all authorities that sign or have signed, unless expired."""
        own = [pair.parsed() for pair in (self.signing, self.announced) if pair is not None]
        known = dict.fromkeys((*self.trusted, *own))
        return tuple(found for found in known if found.not_valid_after_utc > now)


def next_step(
    stored: Stored,
    subjects: Iterable[Subject],
    *,
    published: Iterable[x509.Certificate],
    now: datetime,
    lives: Lives,
) -> Stored:
    """Return what to store next; equal to `stored` if there is nothing to do.

    The caller stores it, publishes its bundle, and asks again.

    Args:
        stored: What is stored now.
        subjects: The subjects that need a pair.
        published: The authorities that are in all published trust bundles.
        now: The current time.
        lives: The lifetimes of pairs and authorities.
    """
    stored = _forget_expired(stored, now)
    signing, announced = stored.signing, stored.announced
    if announced is None and (signing is None or is_worn(signing.parsed(), now)):
        made = new_authority(now=now, life=lives.authority)
        return replace(stored, announced=made, announced_since=None)
    if announced is not None and announced.parsed() in frozenset(published):
        since = stored.announced_since or now
        stored = replace(stored, announced_since=since)
        if signing is None or now >= since + lives.announcement:
            return _promoted(stored)
    if signing is None:
        return stored
    pairs = {
        subject.name: _renewed(stored.pairs.get(subject.name), subject, signing, now, lives)
        for subject in subjects
    }
    return replace(stored, pairs=pairs)


def _forget_expired(stored: Stored, now: datetime) -> Stored:
    def alive(pair: Pair | None) -> Pair | None:
        return pair if pair is not None and pair.parsed().not_valid_after_utc > now else None

    return replace(
        stored,
        signing=alive(stored.signing),
        announced=alive(stored.announced),
        trusted=tuple(c for c in stored.trusted if c.not_valid_after_utc > now),
    )


def _promoted(stored: Stored) -> Stored:
    assert stored.announced is not None
    retired = () if stored.signing is None else (stored.signing.parsed(),)
    return replace(
        stored,
        signing=stored.announced,
        announced=None,
        announced_since=None,
        trusted=tuple(dict.fromkeys((*stored.trusted, *retired))),
    )


def _renewed(
    pair: Pair | None, subject: Subject, signer: Pair, now: datetime, lives: Lives
) -> Pair:
    if pair is not None:
        certificate = pair.parsed()
        if (
            is_signed_by(certificate, signer.parsed())
            and is_for(certificate, subject)
            and not is_worn(certificate, now)
        ):
            return pair
    return issue(signer, subject, now=now, life=lives.pair)
