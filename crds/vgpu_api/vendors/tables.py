"""Reads vendors' tables: the YAML files in `data/`, or other documents."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vgpu_api.errors import BadInput, Fault
from vgpu_api.field_errors import field_errors
from vgpu_api.vendors.model import Kind, Vendor

_DATA = Path(__file__).parent / "data"


def read_table(document: Any, *, source: str) -> Vendor:
    """Convert a parsed document to a vendor's table.

    Args:
        document: The content of the YAML file.
        source: The name of the file, which precedes the field in an error.

    Raises:
        BadInput: The first error, with the field, the value and the mistake.
    """
    try:
        return Vendor.model_validate(document)
    except ValidationError as error:
        raise field_errors(error, within=(source,))[0] from error


@lru_cache(maxsize=1)
def shipped() -> tuple[Vendor, ...]:
    """Return the vendors that are served, in the order of their file names.

    Raises:
        BadInput: A table is invalid, or two tables share a name, a word or a resource.
    """
    vendors = tuple(
        read_table(yaml.safe_load(path.read_text()), source=path.stem)
        for path in sorted(_DATA.glob("*.yaml"))
    )
    refuse_shared_words(vendors)
    return vendors


def refuse_shared_words(vendors: tuple[Vendor, ...]) -> None:
    """Refuse tables that share a name, a word or a resource, because these must be unique.

    Raises:
        BadInput: Names the second kind and what it shares with an earlier one.
    """
    taken: dict[tuple[str, str], str] = {}
    for kind in (kind for vendor in vendors for kind in vendor.kinds):
        said = [("name", kind.name), ("word", kind.word)]
        for what in (*said, *(("resource", name) for name in kind.resources)):
            if taken.setdefault(what, kind.name) != kind.name:
                raise BadInput(
                    field=f"{kind.name}.{what[0]}",
                    value=what[1],
                    fault=Fault.DUPLICATE,
                    detail=f"kind {taken[what]} uses it already",
                )


@lru_cache(maxsize=1)
def kinds() -> tuple[Kind, ...]:
    """Return every kind of device that is served."""
    return tuple(kind for vendor in shipped() for kind in vendor.kinds)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds()}


def kind_of(vendor: str) -> Kind | None:
    """Return the kind with this name, or None if it is NVIDIA's or unknown."""
    return _by_name().get(vendor)
