"""The server of the admission webhooks: kopf's, with a certificate that may change under it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import kopf

from vgpu_operator.certificates.identity import Identity
from vgpu_operator.config import Address


class Webhooks:
    """Serves from when there is a certificate to serve with.

    Args:
        address: Where to listen.
        identity: What to show of ourselves.
    """

    def __init__(self, address: Address, identity: Identity) -> None:
        self._address = address
        self._identity = identity

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serve reviews with `fn`; kopf's protocol of webhook servers."""
        await self._identity.ready.wait()
        with tempfile.TemporaryDirectory(prefix="vgpu-webhook-") as folder:
            # Kopf loads these files once, into our context, and would listen anew if they changed:
            # they do not, it is the context that gets the later ones.
            certificate, key = self._identity.write(Path(folder))
            server = kopf.WebhookServer(
                addr=self._address.host,
                port=self._address.port,
                context=self._identity.context,
                certfile=certificate,
                pkeyfile=key,
            )
            async for config in server(fn):
                yield config
