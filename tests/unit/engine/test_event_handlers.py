"""The table of event handlers."""

from __future__ import annotations

from typing import get_args, get_type_hints

from vgpu_operator.engine.apply import HANDLERS
from vgpu_operator.engine.events import Event


def test_every_event_has_a_handler_that_takes_this_event() -> None:
    taken = {event: get_type_hints(handler)["event"] for event, handler in HANDLERS.items()}
    assert taken == {event: event for event in get_args(Event)}


def test_a_handler_is_found_by_the_name_of_its_event() -> None:
    names = {event.__name__: handler.__name__ for event, handler in HANDLERS.items()}
    assert {name: handler.replace("_", "") for name, handler in names.items()} == {
        name: name.lower() for name in names
    }
