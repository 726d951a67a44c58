"""One empty list and one empty dictionary, shared by all values that have no items.

A pod has fifteen lists and dictionaries that are mostly empty and take 56 or 64 bytes each. Without
sharing, they are a tenth of the memory that the objects of a large cluster take. Values are frozen
and no code changes their lists; these two classes enforce that.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("this empty value is shared and cannot be changed: make a new one")


class _EmptyList(list[Any]):
    __slots__ = ()
    append = extend = insert = __setitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[type[list[Any]], tuple[()]]:  # a copy is an ordinary list
        return list, ()


class _EmptyDict(dict[str, Any]):
    __slots__ = ()
    __setitem__ = __ior__ = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[()]]:
        return dict, ()


# Models call these thousands of times a second; with the cache, repeated calls stay in C.


@cache
def no_items() -> list[Any]:
    """Return the shared empty list, as a field's `default_factory`. It cannot be modified."""
    return _EmptyList()


@cache
def no_entries() -> dict[str, Any]:
    """Return the shared empty dictionary, as a field's `default_factory`. It cannot be modified."""
    return _EmptyDict()
