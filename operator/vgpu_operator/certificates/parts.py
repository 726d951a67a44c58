"""Assembles the certificates that a process needs, given its configuration."""

from __future__ import annotations

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


def extender_identity(api: Api, config: OperatorConfig) -> Identity | None:
    """Return the extender's identity, from files or from the Secret; None for plain HTTP."""
    if config.issuing is not None:
        source = InSecret(api, config.namespace, names.EXTENDER_SECRET)
        return Identity(EXTENDER, source, verifies_clients=True)
    tls = config.extender_tls
    if tls is None:
        return None
    return Identity(EXTENDER, InFiles(tls), verifies_clients=tls.client_ca is not None)


def keeper_of(api: Api, config: OperatorConfig) -> Keeper | None:
    """Return the keeper of certificates for a leader; None if certificates come from files.

    Args:
        api: The client; its writes land while this replica leads, or never.
        config: Defines the settings of issued certificates.
    """
    issuing = config.issuing
    if issuing is None:
        return None
    return Keeper(
        api,
        namespace=config.namespace,
        subjects=_subjects(issuing, config.namespace),
        lives=Lives(pair=issuing.pair_life, authority=issuing.authority_life),
        # The API server and kube-scheduler check validity against their own clocks.
        now=lambda: datetime.fromtimestamp(api.unix(), UTC),
    )


def webhook_identity(api: Api, config: WebhookConfig) -> Identity:
    """Return the webhooks' identity, from files or from the Secret that the operator writes."""
    source: PairSource = (
        InSecret(api, config.namespace, names.WEBHOOK_SECRET)
        if config.tls is None
        else InFiles(config.tls)
    )
    return Identity(WEBHOOK, source, verifies_clients=False)


def _subjects(issuing: Issuing, namespace: str) -> dict[str, Subject]:
    """Return the subject of each Secret."""
    return {
        names.WEBHOOK_SECRET: Subject(WEBHOOK, _hosts(issuing.webhook_service, namespace)),
        names.EXTENDER_SECRET: Subject(EXTENDER, _hosts(issuing.extender_service, namespace)),
        names.SCHEDULER_SECRET: Subject(SCHEDULER),
    }


def _hosts(service: str, namespace: str) -> tuple[str, ...]:
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")
