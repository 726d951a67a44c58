"""The slot state on disk; every transition is durable before it takes effect.

The kubelet never repeats Allocate for a restarted agent. A forgotten slot allocation would be a
container that can never start, and a forgotten claim allocation capacity allocated twice. A file
that is truncated, altered or of another format is never read in part: it is set aside for people
to look at, and the state is rebuilt from other records (`lifecycle/rebuild.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from vgpu_nodeagent.errors import CheckpointDamaged
from vgpu_nodeagent.state import claim_instances
from vgpu_nodeagent.state.claim_instances import InstancePlace
from vgpu_nodeagent.state.slots import SlotState

FORMAT = 2
_STATE = TypeAdapter(SlotState)
_ON_DISK = {
    "slot_allocations": "leases",
    "claim_allocations": "holdings",
    "claim_instances": "cuts",
}
"""Keys on disk that differ from ours, so that an older agent can read the file as well."""


class Checkpoint:
    """The current slot state and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = SlotState()

    def load(self) -> bool:
        """Load the state; return False if there is no file yet.

        Raises:
            CheckpointDamaged: The file cannot be trusted; the message says why.
            OSError: It cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return False
        self.state = decode(self._path, content)
        return True

    def commit(self, state: SlotState) -> None:
        """Write `state` to disk and make it the current one.

        Raises:
            OSError: The write failed; the old state remains, here and on disk.
        """
        if state is self.state:
            return
        write_durably(self._path, encode(state))
        self.state = state

    def own_places(self) -> frozenset[InstancePlace]:
        """Return the places of the MIG instances that the agent made for claims, or is about to.

        See `discovery.inventory.OwnInstances`.
        """
        return claim_instances.places(self.state.claim_instances)

    def set_aside(self, stamp: str) -> Path:
        """Move a damaged file out of the way and return its new path."""
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}")
        os.rename(self._path, aside)
        return aside


def encode(state: SlotState) -> bytes:
    """Return the file's content: format, checksum, state.

    With orjson, because the file is written twice for each container that starts, and pydantic and
    json take 20 ms for 150 containers.
    """
    fields = orjson.loads(orjson.dumps(state))
    body = {_ON_DISK[name]: value for name, value in fields.items()}
    document = {"format": FORMAT, "checksum": _checksum(body), "state": body}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


def decode(path: Path, content: bytes) -> SlotState:
    """Return the state in a file's content.

    Raises:
        CheckpointDamaged: It is truncated, altered, or of a format that this agent does not read.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise CheckpointDamaged(path, f"is truncated or not JSON ({error})") from error
    if not isinstance(document, dict) or "format" not in document:
        raise CheckpointDamaged(path, "is not a checkpoint: it has no format")
    if document["format"] != FORMAT:
        raise CheckpointDamaged(
            path, f"has format {document['format']!r}; this agent knows {FORMAT}"
        )
    body = document.get("state")
    if document.get("checksum") not in (_checksum(body), _former_checksum(body)):
        raise CheckpointDamaged(path, "has a checksum that does not match its content")
    by_key = {key: name for name, key in _ON_DISK.items()}
    try:
        if not isinstance(body, dict):
            return _STATE.validate_python(body)
        return _STATE.validate_python({by_key.get(key, key): body[key] for key in body})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(_ON_DISK.get(str(part), str(part)) for part in first["loc"])
        raise CheckpointDamaged(path, f"field {field}: {first['msg']}") from error


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves either the whole old file or the whole new one.

    Raises:
        OSError: The write failed; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    # The rename itself is durable only once the directory is written.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(body: Mapping[str, Any] | None) -> str:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _former_checksum(body: Mapping[str, Any] | None) -> str:
    """Return the checksum of older agents, which differs where a text is not ASCII."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
