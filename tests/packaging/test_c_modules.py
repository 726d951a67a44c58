"""The modules of libvgpu have an order in which they can be read: none needs one that needs it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter

import pytest

from vgpu_local.programs import ROOT

_INCLUDE = re.compile(r'^#include "([a-z_]+)\.h"', re.MULTILINE)


def uses(sources: Mapping[str, str]) -> Mapping[str, Set[str]]:
    """By module, which others its source and its header include.

    Args:
        sources: Text by file name. A header without a source is of no module.
    """
    modules = {name.removesuffix(".c") for name in sources if name.endswith(".c")}
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in sources.items():
        module = name.rpartition(".")[0]
        found[module] |= set(_INCLUDE.findall(text)) & modules - {module}
    return found


def test_no_module_needs_one_that_needs_it():
    folder = ROOT / "libvgpu" / "src"
    sources = {path.name: path.read_text() for path in folder.glob("*.[ch]")}
    order = list(TopologicalSorter(uses(sources)).static_order())
    assert order.index("source") < order.index("process") < order.index("authority")


def test_a_circle_by_way_of_a_header_is_found():
    sources = {
        "low.c": '#include "low.h"\n#include "high.h"\n',
        "low.h": "#include <stdint.h>\n",
        "high.c": "",
        "high.h": '#include "low.h"\n',
    }
    with pytest.raises(CycleError):
        TopologicalSorter(uses(sources)).prepare()
