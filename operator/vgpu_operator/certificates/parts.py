"""Which certificates a process needs, from how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from vgpu_client.api import Api
from vgpu_operator.certificates import names
from vgpu_operator.certificates.identity import Identity, InFiles, InSecret, PairSource
from vgpu_operator.certificates.issuing import Subject
from vgpu_operator.certificates.keeper import Keeper
from vgpu_operator.certificates.rotation import Lives
from vgpu_operator.config import Issuing, OperatorConfig, WebhookConfig

WEBHOOK = "vgpu-webhook"
EXTENDER = "vgpu-extender"
SCHEDULER = "vgpu-scheduler"


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a replica of the operator serves with, and what it issues while it leads.

    Attributes:
        extender: None where the extender speaks plain HTTP.
        keeper: None where certificates come from files.
    """

    extender: Identity | None
    keeper: Keeper | None


def certificates(api: Api, config: OperatorConfig) -> Certificates:
    """Compose the operator's; nothing is read yet.

    Args:
        api: Its writes land while this replica leads, or never.
        config: Whether certificates are issued, or where their files are.
    """
    issuing = config.issuing
    if issuing is not None:
        return Certificates(
            extender=Identity(
                EXTENDER,
                InSecret(api, config.namespace, names.EXTENDER_SECRET),
                verifies_clients=True,
            ),
            keeper=Keeper(
                api,
                namespace=config.namespace,
                subjects=_subjects(issuing, config.namespace),
                lives=Lives(pair=issuing.pair_life, authority=issuing.authority_life),
                # The API server and kube-scheduler check them, by clocks that are not ours.
                now=lambda: datetime.fromtimestamp(api.unix(), UTC),
            ),
        )
    tls = config.extender_tls
    if tls is None:
        return Certificates(extender=None, keeper=None)
    verifies_clients = tls.client_ca is not None
    return Certificates(Identity(EXTENDER, InFiles(tls), verifies_clients=verifies_clients), None)


def webhook_identity(api: Api, config: WebhookConfig) -> Identity:
    """What the webhooks are served with: the pair in files, or in the Secret of the operator's."""
    source: PairSource = (
        InSecret(api, config.namespace, names.WEBHOOK_SECRET)
        if config.tls is None
        else InFiles(config.tls)
    )
    return Identity(WEBHOOK, source, verifies_clients=False)


def _subjects(issuing: Issuing, namespace: str) -> dict[str, Subject]:
    """By Secret: whose pair it holds."""
    return {
        names.WEBHOOK_SECRET: Subject(WEBHOOK, _hosts(issuing.webhook_service, namespace)),
        names.EXTENDER_SECRET: Subject(EXTENDER, _hosts(issuing.extender_service, namespace)),
        names.SCHEDULER_SECRET: Subject(SCHEDULER),
    }


def _hosts(service: str, namespace: str) -> tuple[str, ...]:
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")
