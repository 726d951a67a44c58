"""Which version of which claim is known, and what is to be held for it.

A claim is replaced by newer versions of itself only (by resourceVersion), an object of the same
name is another claim, and one that is gone stays gone whatever still comes of it: the answer to a
write may arrive after the claim's removal was seen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from vgpu_operator.ledger.board import ClaimKey
from vgpu_operator.ledger.holdings import NOTHING, Holding

_GRAVES_KEPT = 10_000


@dataclass(slots=True)
class Record:
    """One claim: what was observed of it, what is assumed, and what it therefore holds.

    Attributes:
        uid: Of the object that was observed; empty: none was, or it is gone.
        version: Its newest resourceVersion.
        observed: What it holds by what was observed.
        assumed: What it holds by each assumption, by the assumption's number.
        held: What is held for it.
    """

    uid: str = ""
    version: int = -1
    observed: Holding = NOTHING
    assumed: dict[int, Holding] = field(default_factory=dict)
    held: Holding = NOTHING


class Records:
    """All claims, by place."""

    def __init__(self) -> None:
        self._records: dict[ClaimKey, Record] = {}
        self._keys: dict[str, ClaimKey] = {}  # claim UID → place
        self._graves: OrderedDict[str, None] = OrderedDict()  # UIDs of removed claims

    def get(self, key: ClaimKey) -> Record | None:
        """The claim's record, if there is one."""
        return self._records.get(key)

    def at(self, key: ClaimKey) -> Record:
        """The claim's record, made where there is none."""
        return self._records.setdefault(key, Record())

    def drop(self, key: ClaimKey) -> None:
        """Forget a claim that is gone and for which nothing is assumed."""
        del self._records[key]

    def knows(self, uid: str) -> bool:
        """Whether this object was observed and is not gone."""
        return uid in self._keys

    def newer(self, key: ClaimKey, uid: str, version: int) -> Record | None:
        """The claim's record, made for this version; None if the version is no news."""
        if uid in self._graves:
            return None
        record = self.at(key)
        if version <= record.version:
            return None
        if record.uid and record.uid != uid:  # another object under the same name
            self.bury(record.uid)
        record.uid, record.version = uid, version
        self._keys[uid] = key
        return record

    def bury(self, uid: str) -> ClaimKey | None:
        """The object is gone; returns where it was, if it was known."""
        self._graves[uid] = None
        if len(self._graves) > _GRAVES_KEPT:
            self._graves.popitem(last=False)
        key = self._keys.pop(uid, None)
        if key is not None:
            record = self._records[key]
            record.uid, record.observed = "", NOTHING
        return key
