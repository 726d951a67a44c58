"""The extender's verbs on the engine, where this replica leads."""

from __future__ import annotations

from collections.abc import Callable

from vgpu_operator.engine.engine import Engine
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.binding import Binder
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterAnswer, FilterRequest


class LeadersVerbs:
    """Filter and bind, refused with NotLeading where another replica decides."""

    def __init__(self, *, engine: Engine, binder: Binder, leads: Callable[[], bool]) -> None:
        self._engine = engine
        self._binder = binder
        self._leads = leads

    def filter(self, request: FilterRequest) -> FilterAnswer:
        """Answer at once.

        Raises:
            NotLeading: ask the leader.
            BadInput: the pod cannot be read.
        """
        self._check()
        return filter_nodes(self._engine, request)

    async def bind(self, request: BindRequest) -> str:
        """Bind; returns the error, empty when bound.

        Raises:
            NotLeading: ask the leader.
            BadInput: the pod cannot be read.
        """
        self._check()
        return await self._binder.bind(request)

    def is_ready(self) -> bool:
        """Whether this replica answers."""
        return self._leads()

    def _check(self) -> None:
        if not self._leads():
            raise NotLeading("this replica does not lead; ask the one that does")
