"""Which certificates a replica needs, from how it was told to run."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_client.api import Api
from vgpu_operator.certificates import names
from vgpu_operator.certificates.identity import Identity, InFiles, InSecret, Source
from vgpu_operator.certificates.issuing import Subject
from vgpu_operator.certificates.keeper import Keeper
from vgpu_operator.certificates.rotation import Lives
from vgpu_operator.config import Issuing, OperatorConfig, Tls

WEBHOOK = "vgpu-webhook"
EXTENDER = "vgpu-extender"
SCHEDULER = "vgpu-scheduler"


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a replica serves with, and what it does about it while it leads.

    Attributes:
        webhook: None where there are no webhooks.
        extender: None where the extender speaks plain HTTP.
        keeper: None where certificates come from files.
    """

    webhook: Identity | None
    extender: Identity | None
    keeper: Keeper | None

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Those that there are."""
        return tuple(found for found in (self.webhook, self.extender) if found is not None)


def certificates(api: Api, config: OperatorConfig) -> Certificates:
    """Compose them; nothing is read yet.

    Args:
        api: Its writes land while this replica leads, or never.
        config: Whether certificates are issued, or where their files are.
    """
    issuing = config.issuing
    if issuing is not None:
        return Certificates(
            webhook=_identity(WEBHOOK, InSecret(api, config.namespace, names.WEBHOOK_SECRET)),
            extender=_identity(
                EXTENDER,
                InSecret(api, config.namespace, names.EXTENDER_SECRET),
                admits_clients=True,
            ),
            keeper=Keeper(
                api,
                namespace=config.namespace,
                subjects=_subjects(issuing, config.namespace),
                lives=Lives(pair=issuing.pair_life, authority=issuing.authority_life),
            ),
        )
    return Certificates(
        webhook=_from_files(WEBHOOK, config.webhook_tls),
        extender=_from_files(EXTENDER, config.extender_tls),
        keeper=None,
    )


def _subjects(issuing: Issuing, namespace: str) -> dict[str, Subject]:
    """By Secret: whose pair it holds."""
    return {
        names.WEBHOOK_SECRET: Subject(WEBHOOK, _hosts(issuing.webhook_service, namespace)),
        names.EXTENDER_SECRET: Subject(EXTENDER, _hosts(issuing.extender_service, namespace)),
        names.SCHEDULER_SECRET: Subject(SCHEDULER),
    }


def _hosts(service: str, namespace: str) -> tuple[str, ...]:
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def _from_files(name: str, tls: Tls | None) -> Identity | None:
    if tls is None:
        return None
    return _identity(name, InFiles(tls), admits_clients=tls.client_ca is not None)


def _identity(name: str, source: Source, *, admits_clients: bool = False) -> Identity:
    return Identity(name, source, admits_clients=admits_clients)
