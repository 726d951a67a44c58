"""Generates lists of names in `manifests/`: webhooks' expressions, the scheduler's resources.

Their source is `manifests/base/config.yaml` and the vendors' tables. Only the lists are generated;
the expressions and comments around them are written by hand and stay unchanged.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.errors import BadInput
from vgpu_api.vendors import NOT_SERVED, kinds

CONFIGURATION = "base/config.yaml"
"""The source. Paths are relative to `manifests/`."""
EXPRESSIONS = "base/webhook/expressions.yaml"
SCHEDULERS = (
    "base/scheduler/scheduler.yaml",
    "components/beside-hami/scheduler.yaml",
    "examples/main-scheduler/kube-scheduler.yaml",
)

_EXPRESSION = re.compile(r"^  (?P<name>\w+): >-\n(?P<text>(?:    .*\n)+)", re.MULTILINE)
_LIST = re.compile(r"\bin\s+\['[^\]]*'\]")
_MANAGED = re.compile(r"^  managedResources:\n(?:  - .*\n)+", re.MULTILINE)
_WIDTH = 100


def manifest_files(written: Mapping[str, str], config: ClusterConfig) -> dict[str, str]:
    """Return the files that contain lists of names, updated for this configuration.

    Args:
        written: The current files, by path.
        config: The configuration in `CONFIGURATION`.

    Raises:
        BadInput: A file's lists are not the ones that are generated.
    """
    managed = {path: _with_managed(path, written[path], config) for path in SCHEDULERS}
    return {EXPRESSIONS: _with_expressions(written[EXPRESSIONS], config), **managed}


def _with_managed(path: str, text: str, config: ClusterConfig) -> str:
    before, *after = _MANAGED.split(text)
    if len(after) != 1:
        raise BadInput(field=path, value=len(after), detail="must have one list managedResources")
    entries = "".join(
        f"  - {{name: {name}, ignoredByScheduler: {str(is_ignored).lower()}}}\n"
        for name, is_ignored in config.managed_resources().items()
    )
    return f"{before}  managedResources:\n{entries}{after[0]}"


def _with_expressions(text: str, config: ClusterConfig) -> str:
    lists = _lists(config)

    def filled(expression: re.Match[str]) -> str:
        name = expression["name"]
        wanted = lists.get(name, ())
        found = len(_LIST.findall(expression["text"]))
        if found != len(wanted):
            raise BadInput(
                field=f"{EXPRESSIONS}: {name}",
                value=found,
                detail=f"must have {len(wanted)} lists of names",
            )
        following = iter(wanted)
        body = _LIST.sub(lambda _: f"in\n{_list(next(following))}", expression["text"])
        return f"  {name}: >-\n{body}"

    return _EXPRESSION.sub(filled, text)


def _lists(config: ClusterConfig) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the names for each list of each expression, in the order of its text."""
    served = [kind for kind in kinds() if kind.name not in config.vendors.leave_alone]
    of_vendors = {name for kind in kinds() for name in kind.resources}
    own = _unique(name for name in config.managed_resources() if name not in of_vendors)
    counts = _unique(name for kind in served for name in kind.requested_by)
    amounts = _unique(
        name
        for kind in served
        for name in (*kind.resources, *kind.unsupported.resources)
        if name not in kind.requested_by
    )
    asking = (*own, *counts)
    annotations = (*names.POD_ANNOTATIONS, *names.POD_RECORDS)
    return {
        "asks": (asking,),
        "misspelt": (own, tuple(NOT_SERVED), amounts, counts, annotations),
        "jobs": (asking,),
        "unseen": (asking,),
    }


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


def _list(found: tuple[str, ...]) -> str:
    """Return a CEL list, wrapped to fit the expression's lines."""
    quoted = ", ".join(f"'{name}'" for name in found)
    return textwrap.fill(
        f"[{quoted}]",
        _WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
