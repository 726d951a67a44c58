"""Events vanish some time after they were last written; nothing else does."""

from __future__ import annotations

from vgpu_local.apiserver.expiry import Expiry
from vgpu_local.apiserver.kinds import BUILTIN
from vgpu_local.apiserver.storage import Change, Store

KINDS = {kind.qualified: kind for kind in BUILTIN}


class World:
    """A store whose events stay for a minute."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = Store(history_kept=2)
        self.expiry = Expiry(self.store, ttl_s=60.0, clock=lambda: self.now)
        self.store.observers.append(self.expiry.observe)

    def put(self, kind: str, name: str) -> None:
        obj = {"metadata": {"namespace": "default", "name": name}}
        self.store.put(KINDS[kind], obj, {})

    def names(self, kind: str) -> list[str]:
        listed = self.store.table(KINDS[kind]).listed(None)
        return [stored.obj["metadata"]["name"] for stored in listed]


def test_an_event_goes_when_its_time_is_over_and_watches_see_it_go():
    world, seen = World(), []
    world.put("events", "started")
    world.put("pods", "one")
    world.store.table(KINDS["events"]).listeners.add(lambda change: seen.append(change))
    world.now += 59.0
    world.expiry.expire()
    assert world.names("events") == ["started"]
    assert not seen
    world.now += 1.0
    world.expiry.expire()
    assert world.names("events") == []
    assert world.names("pods") == ["one"]
    (change,) = seen
    assert isinstance(change, Change)
    assert change.type == "DELETED"


def test_an_event_that_is_written_again_stays_as_long_again():
    world = World()
    world.put("events", "again")
    world.put("events", "once")
    world.now += 40.0
    world.put("events", "again")
    world.now += 40.0
    world.expiry.expire()
    assert world.names("events") == ["again"]


def test_an_event_that_was_deleted_is_not_looked_for():
    world = World()
    world.put("events", "gone")
    stored = world.store.table(KINDS["events"]).get("default", "gone")
    assert stored is not None
    world.store.remove(KINDS["events"], stored)
    world.now += 60.0
    world.expiry.expire()
    assert world.names("events") == []


def test_a_store_that_keeps_few_writes_keeps_the_last():
    world = World()
    for name in ("one", "two", "three"):
        world.put("pods", name)
    names = [write.object["metadata"]["name"] for write in world.store.history]
    assert names == ["two", "three"]
