"""Reaches a cluster with kubectl's global flags: as which user, by which kubeconfig, for how long.

The same flags go to kubectl where a command runs it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vgpu_client.api import Api
from vgpu_client.connection import namespace_of
from vgpu_client.plain_http import open_plain_http
from vgpu_client.transport import REQUESTS, REQUESTS_LEVEL, Manner

_SHOWS_REQUESTS = 6
"""The level of `-v` from which kubectl shows its requests."""


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[Api]:
    """Hold a client of the chosen cluster open.

    Raises:
        LoginError: No usable credentials.
    """
    if options.verbosity >= _SHOWS_REQUESTS:
        _show_requests()
    manner = Manner(
        user=options.user or "",
        groups=tuple(options.groups),
        uid=options.uid or "",
        limit_s=options.request_timeout,
    )
    connect = Api.connect(options.kubeconfig, options.context, manner, http=open_plain_http())
    async with connect as api:
        yield api


def chosen_namespace(options: argparse.Namespace) -> str:
    """Return the namespace of `-n`, or else of the context.

    Raises:
        LoginError: The kubeconfig cannot be read, or has no such context.
    """
    return options.namespace or namespace_of(options.kubeconfig, options.context)


def kubectl_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags with which kubectl reaches the same cluster as the same user."""
    flags = [f"--kubeconfig={options.kubeconfig}"] if options.kubeconfig else []
    flags += [f"--context={options.context}"] if options.context else []
    flags += [f"--as={options.user}"] if options.user else []
    flags += [f"--as-group={group}" for group in options.groups]
    flags += [f"--as-uid={options.uid}"] if options.uid else []
    if options.request_timeout < float("inf"):
        flags.append(f"--request-timeout={options.request_timeout:g}s")
    return flags


def _show_requests() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    REQUESTS.addHandler(handler)
    REQUESTS.setLevel(REQUESTS_LEVEL)
    REQUESTS.propagate = False
