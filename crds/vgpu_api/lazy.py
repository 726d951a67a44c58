"""Packages whose names load the modules that define them only when they are used.

`kubectl vgpu get` needs the shares of claims and `doctor` the demands of pods, which are small. The
modules beside them need numpy and take longer to load than a cluster takes to answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, defined_in: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: The package's name.
        defined_in: The module in the package that defines each of its names.
    """

    def attribute(name: str) -> Any:
        if name not in defined_in:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{defined_in[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return attribute
