"""Keeps certificates up to date while leading: reads what is stored, asks `rotation`, and writes.

`controllers.certificates` calls it. Each round writes the Secrets first and the trust bundles after
them. An authority signs only once it has been seen in all bundles. So a leader may stop after any
step, and its successor can continue.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from cryptography import x509

from vgpu_api.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_client.transport import Object
from vgpu_operator.certificates import names
from vgpu_operator.certificates.issuing import Subject, read_bundle, write_bundle
from vgpu_operator.certificates.rotation import Lives, next_step
from vgpu_operator.certificates.secrets import Shelf
from vgpu_operator.errors import CertificateUnreadable
from vgpu_operator.metrics import CERTIFICATE_EXPIRY

logger = logging.getLogger(__name__)


class Keeper:
    """Issues, renews and publishes certificates while this replica leads.

    Args:
        api: The client; its writes land while this replica leads, or never.
        namespace: The namespace of the Secrets.
        subjects: By Secret name, the subject whose pair the Secret holds.
        lives: The lifetimes of pairs and authorities.
        now: Returns the current time.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        subjects: Mapping[str, Subject],
        lives: Lives,
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._subjects = subjects
        self._lives = lives
        self._now = now

    async def step(self) -> bool:
        """Take the steps that are due. Return True if there were any, since others may be due now.

        Raises:
            ClientError: A read or a write failed. Earlier writes remain valid.
        """
        now = self._now()
        shelf = Shelf(
            authority=await self._secret(names.AUTHORITY_SECRET),
            pairs={s: await self._secret(name) for name, s in self._subjects.items()},
        )
        webhooks = await self._webhooks()
        published = shelf.bundles() + [
            _bundle(hook) for _, configuration in webhooks for hook in configuration["webhooks"]
        ]
        stored = shelf.stored()
        desired = next_step(
            stored,
            self._subjects.values(),
            published=frozenset.intersection(*map(frozenset, published)),
            now=now,
            lives=self._lives,
        )
        changed = False
        for secret in shelf.changes(desired, now):
            await self._api.replace(SECRETS, secret)
            logger.info("wrote certificates: %s", secret["metadata"]["name"])
            changed = True
        bundle = desired.bundle(now)
        for resource, configuration in webhooks:
            if operations := _operations(configuration, bundle):
                await self._api.json_patch(resource, configuration["metadata"]["name"], operations)
                changed = True
        for name, pair in {**desired.pairs, "authority": desired.signing}.items():
            if pair is not None:
                ends = pair.parsed().not_valid_after_utc
                CERTIFICATE_EXPIRY.labels(name=name).set(ends.timestamp())
        return changed

    async def _secret(self, name: str) -> Object:
        return await self._api.get(SECRETS, name, namespace=self._namespace)

    async def _webhooks(self) -> list[tuple[Resource, Object]]:
        """Return the webhook configurations; there are none if admission is not installed."""
        found = []
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            try:
                configuration = await self._api.get(resource, names.WEBHOOK_CONFIGURATIONS)
            except NotFound:
                continue
            found.append((resource, configuration))
        return found


def _bundle(webhook: Object) -> tuple[x509.Certificate, ...]:
    try:
        return read_bundle(base64.b64decode(webhook["clientConfig"].get("caBundle", "")))
    except (CertificateUnreadable, binascii.Error):
        return ()  # without a valid bundle in it, the bundle is written again below


def _operations(configuration: Object, bundle: Sequence[x509.Certificate]) -> list[Object]:
    """Return the JSON patch that makes all webhooks of a configuration trust the bundle."""
    desired = base64.b64encode(write_bundle(bundle)).decode()
    operations: list[Object] = []
    for index, webhook in enumerate(configuration["webhooks"]):
        if webhook["clientConfig"].get("caBundle") == desired:
            continue
        place = f"/webhooks/{index}"
        operations += [
            # Test the name, because the list may have been reordered since it was read.
            {"op": "test", "path": f"{place}/name", "value": webhook["name"]},
            {"op": "add", "path": f"{place}/clientConfig/caBundle", "value": desired},
        ]
    return operations
