"""Read kubeconfigs as kubectl does: merge files, choose a context, resolve paths.

The rules are those of client-go's `clientcmd`: the first file that names a cluster, user or context
defines it; relative paths start at the folder of their file; embedded data wins over a file.
"""

from __future__ import annotations

import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vgpu_client.errors import LoginError

_IMPERSONATION = frozenset({"as", "as-uid", "as-groups", "as-user-extra"})
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
# The entries are plain dataclasses: loading pydantic would take half of the time of a command such
# as `kubectl vgpu version`.
_OTHER_TYPES: Mapping[str, tuple[type, str]] = {
    "insecure-skip-tls-verify": (bool, "a boolean"),
    "extensions": (list, "a list"),
    "exec": (dict, "an object"),
    "auth-provider": (dict, "an object"),
}
"""The types of the fields that are not strings, and the words for them in messages."""
_KEYS: Mapping[str, str] = {"token_file": "tokenFile"}
"""The keys that do not follow from the names of their fields."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """An API server, and how to trust it."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class UserEntry:
    """Credentials of a user."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Context:
    cluster: str = ""
    user: str = ""
    namespace: str = ""


_Entry = TypeVar("_Entry", ServerEntry, UserEntry, _Context)


@dataclass(frozen=True, slots=True)
class Context:
    """One context of the kubeconfig, with its cluster and user.

    Attributes:
        name: The context's name.
        cluster: The API server.
        user: The credentials for it; empty if the context names no user.
        namespace: The default namespace.
    """

    name: str
    cluster: ServerEntry
    user: UserEntry
    namespace: str


@dataclass(slots=True)
class _Merged:
    """The entries of all files, by kind and name."""

    current: str = ""
    entries: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"cluster": {}, "user": {}, "context": {}}
    )

    def entry(self, kind: str, name: str) -> Any:
        if name not in self.entries[kind]:
            raise LoginError(f"no {kind} {name!r}")
        return self.entries[kind][name]

    def read(self, model: type[_Entry], kind: str, name: str) -> _Entry:
        """Return an entry without the fields that we do not know.

        Raises:
            LoginError: There is no such entry, or a field has a wrong type.
        """
        given, values = self.entry(kind, name), dict[str, Any]()
        for each in fields(model):
            key = _KEYS.get(each.name) or each.name.replace("_", "-")
            if key not in given:
                continue
            wanted, words = _OTHER_TYPES.get(key, (str, "a string"))
            if not isinstance(given[key], wanted):
                # The value may be a secret, so it is not shown.
                raise LoginError(f"{kind}s[{name}].{kind}.{key}: must be {words}")
            values[each.name] = given[key]
        return model(**values)


def any_exists(files: str) -> bool:
    """Return True if one of the files of a `KUBECONFIG` list exists."""
    return any(path.is_file() for path in _paths(files))


def read_context(files: str, name: str | None = None) -> Context:
    """Return a context of the files in a `KUBECONFIG` list.

    Args:
        files: Paths, separated as in `PATH`; those that do not exist are left out.
        name: The context; None for the current one.

    Raises:
        LoginError: A file cannot be read, or has no such context, or an entry is wrong.
    """
    try:
        return _context(_merge(files), name)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LoginError(f"kubeconfig {files}: {error}") from error
    except LoginError as error:
        raise LoginError(f"kubeconfig {files}: {error}") from error


def default_namespace(files: str, name: str | None = None) -> str:
    """Return the namespace that a context chooses, empty if none; the rest may be incomplete.

    Raises:
        LoginError: As in `read_context`.
    """
    try:
        return _chosen(_merge(files), name)[1].namespace
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LoginError) as error:
        raise LoginError(f"kubeconfig {files}: {error}") from error


def pem(data: str, path: str, *, where: str) -> bytes:
    """Return embedded data, or else the content of a file; empty if neither is given.

    Args:
        data: The content in base64.
        path: The file's absolute path.
        where: The field to name in an error.

    Raises:
        LoginError: The data is not base64, or the file cannot be read.
    """
    try:
        if data:
            return b64decode(data, validate=True)
        return Path(path).read_bytes() if path else b""
    except (NotBase64, OSError) as error:
        raise LoginError(f"{where}: {error}") from error


def _paths(files: str) -> Iterator[Path]:
    return (Path(each).expanduser() for each in files.split(os.pathsep) if each)


def _merge(files: str) -> _Merged:
    merged = _Merged()
    for path in _paths(files):
        if not path.is_file():
            continue
        content = yaml.safe_load(path.read_text()) or {}
        if not isinstance(content, dict):
            raise LoginError(f"{path} is not a mapping")
        merged.current = merged.current or str(content.get("current-context") or "")
        for kind, entries in merged.entries.items():
            for name, entry in _named(content, kind):
                entries.setdefault(name, _absolute(entry, path.absolute().parent))
    return merged


def _named(content: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = content.get(f"{kind}s") or []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or not isinstance(entry.get(kind) or {}, dict):
            raise LoginError(f"{kind}s: must be a list of objects with `name` and `{kind}`")
        given = (entry.get(kind) or {}).items()
        yield str(entry.get("name")), {name: value for name, value in given if value is not None}


def _absolute(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the entry with absolute paths: they are relative to the file that has them."""
    paths: dict[str, Any] = {
        name: str(folder / str(entry[name])) for name in _PATHS if entry.get(name)
    }
    plugin = entry.get("exec")
    # A command without a slash is looked up in PATH.
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        paths["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**entry, **paths}


def _chosen(merged: _Merged, name: str | None) -> tuple[str, _Context]:
    wanted = merged.current if name is None else name
    if not wanted:
        raise LoginError("current-context is not set")
    return wanted, merged.read(_Context, "context", wanted)


def _context(merged: _Merged, name: str | None) -> Context:
    name, chosen = _chosen(merged, name)
    given = merged.entry("user", chosen.user) if chosen.user else {}
    for unsupported in _IMPERSONATION & given.keys():
        raise LoginError(f"users[{chosen.user}].user.{unsupported}: impersonation is not supported")
    cluster = merged.read(ServerEntry, "cluster", chosen.cluster)
    if not cluster.server:
        raise LoginError(f"clusters[{chosen.cluster}].cluster.server: Required value")
    if not all(isinstance(each, dict) for each in cluster.extensions):
        raise LoginError(f"clusters[{chosen.cluster}].cluster.extensions: must be objects")
    user = merged.read(UserEntry, "user", chosen.user) if chosen.user else UserEntry()
    return Context(name, cluster, user, chosen.namespace)
