"""Links whose two ends report different states are named in an event."""

from __future__ import annotations

import pytest

from builders import a_device, a_node
from replica import Replica


@pytest.fixture
def said() -> list[tuple[str, str, str]]:
    """Return (kind, name, message) of a replica's events."""
    return []


@pytest.fixture
def replica(said: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch) -> Replica:
    replica = Replica()
    replica.news.node_changed(a_node("node-1"))

    def record(regarding, **event):
        said.append((regarding.kind, regarding.name, event["note"]))

    monkeypatch.setattr(replica.recorder, "record", record)
    return replica


def see(replica: Replica, uuid: str, version: int = 1, **links: int) -> None:
    replica.news.device_changed(a_device(uuid=uuid, links=links, resource_version=version))


async def test_a_link_that_one_end_denies_is_told_on_the_node_once(
    replica: Replica, said: list[tuple[str, str, str]]
):
    see(replica, "A", B=210)
    replica.submit()
    assert said == []  # the other end does not exist yet
    see(replica, "B", A=10)
    for _ in range(3):
        replica.submit()
    assert said == [("Node", "node-1", "links count as none: A says 210 to B, which says 10")]


async def test_an_end_that_says_nothing_says_no(replica: Replica, said: list[tuple[str, str, str]]):
    see(replica, "B")
    see(replica, "A", B=210)
    replica.submit()
    assert [message for _, _, message in said] == [
        "links count as none: A says 210 to B, which says 0"
    ]


async def test_links_that_agree_and_links_to_devices_elsewhere_are_no_news(
    replica: Replica, said: list[tuple[str, str, str]]
):
    see(replica, "A", B=210, C=20)
    see(replica, "B", A=210)
    replica.submit()
    assert said == []


async def test_what_is_said_follows_the_links(replica: Replica, said: list[tuple[str, str, str]]):
    see(replica, "A", B=210)
    see(replica, "B", A=10)
    replica.submit()
    see(replica, "B", version=2, A=210)
    replica.submit()
    see(replica, "A", version=2, B=30)
    replica.submit()
    assert [message for _, _, message in said] == [
        "links count as none: A says 210 to B, which says 10",
        "links count as none: A says 30 to B, which says 210",
    ]


async def test_of_many_pairs_three_are_named(replica: Replica, said: list[tuple[str, str, str]]):
    see(replica, "A", B=1, C=1, D=1, E=1)
    for uuid in "BCDE":
        see(replica, uuid)
    replica.submit()
    assert said[0][2].count("says") == 6
    assert said[0][2].endswith(" and 1 more")
