"""The small part of protobuf that kubectl needs: `kubectl create namespace` and others send it.

Source: apimachinery's runtime.Unknown envelope and the field numbers of the kinds below.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vgpu_local.apiserver.kinds import Obj

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Read = Callable[[Obj, str, bytes], None]
"""Puts a field's bytes into the object under its JSON name."""


class UnknownKindError(ValueError):
    """The body has a kind that is not supported here, or is no such protobuf at all."""


def decode(raw: bytes) -> Obj:
    """Return the object in a request's body.

    Raises:
        UnknownKindError: its kind is not one of those below.
    """
    if not raw.startswith(_MAGIC):
        raise UnknownKindError("no Kubernetes protobuf envelope")
    envelope: Obj = {}
    _into(envelope, raw[len(_MAGIC) :], _ENVELOPE)
    about = envelope.get("typeMeta", {})
    fields = _KINDS.get((about.get("apiVersion", ""), about.get("kind", "")))
    if fields is None:
        raise UnknownKindError(f"protobuf of {about}")
    obj: Obj = {"apiVersion": about["apiVersion"], "kind": about["kind"]}
    _into(obj, envelope["raw"], fields)
    return obj


def _into(obj: Obj, raw: bytes, fields: Mapping[int, tuple[str, Read]]) -> None:
    for number, part in _parts(raw):
        if number in fields:
            name, read = fields[number]
            read(obj, name, part)


def _parts(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message.

    Numbers are skipped, because nobody needs them.
    """
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind == _BYTES:
            length, at = _varint(raw, at)
            yield tag >> 3, raw[at : at + length]
            at += length
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise UnknownKindError(f"protobuf wire type {kind}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw):
            raise UnknownKindError("protobuf cut short")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(obj: Obj, name: str, part: bytes) -> None:
    if part:
        obj[name] = part.decode()


def _raw(obj: Obj, name: str, part: bytes) -> None:
    obj[name] = part


def _texts(obj: Obj, name: str, part: bytes) -> None:
    obj.setdefault(name, []).append(part.decode())


def _pair(obj: Obj, name: str, part: bytes) -> None:
    pair = dict(_parts(part))
    obj.setdefault(name, {})[pair.get(1, b"").decode()] = pair.get(2, b"").decode()


def _bytes_pair(obj: Obj, name: str, part: bytes) -> None:
    pair = dict(_parts(part))
    value = base64.b64encode(pair.get(2, b"")).decode()
    obj.setdefault(name, {})[pair.get(1, b"").decode()] = value


def _message(fields: Mapping[int, tuple[str, Read]]) -> Read:
    def read(obj: Obj, name: str, part: bytes) -> None:
        below: dict[str, Any] = {}
        _into(below, part, fields)
        obj[name] = below

    return read


_ENVELOPE: dict[int, tuple[str, Read]] = {
    1: ("typeMeta", _message({1: ("apiVersion", _text), 2: ("kind", _text)})),
    2: ("raw", _raw),
}
_METADATA: tuple[str, Read] = (
    "metadata",
    _message(
        {
            1: ("name", _text),
            2: ("generateName", _text),
            3: ("namespace", _text),
            5: ("uid", _text),
            6: ("resourceVersion", _text),
            11: ("labels", _pair),
            12: ("annotations", _pair),
            14: ("finalizers", _texts),
        }
    ),
)
_KINDS: dict[tuple[str, str], dict[int, tuple[str, Read]]] = {
    ("v1", "Namespace"): {1: _METADATA},
    ("v1", "ServiceAccount"): {1: _METADATA},
    ("v1", "ConfigMap"): {1: _METADATA, 2: ("data", _pair), 3: ("binaryData", _bytes_pair)},
    ("v1", "Secret"): {1: _METADATA, 2: ("data", _bytes_pair), 3: ("type", _text)},
}
