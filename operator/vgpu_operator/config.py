"""How a process of ours runs: arguments, or the environment in their stead.

What the cluster's administrator decides (resource names, policies) is in the cluster
configuration, a document of its own (`vgpu_api.config`) that the agent reads too.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from vgpu_api.config import ConfigFile, Notice, load_cluster_config
from vgpu_api.names import AGENT_GONE_S
from vgpu_client.logs import LogFormat
from vgpu_client.metrics_server import ACCESS_HELP, MetricsAccess


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens; an empty host is every address, of IPv6 and IPv4."""

    host: str
    port: int

    @property
    def url_host(self) -> str:
        """The host as a URL has it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`; argparse turns the error into a message that names the argument."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not host:port, such as 0.0.0.0:9443, or :9443"
            )
        return cls(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's certificate and key, and the CA whose clients it admits (None: any client)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Issuing:
    """How certificates are made, where the operator makes them itself.

    Attributes:
        webhook_service: The Service through which the API server finds the webhooks.
        extender_service: The one through which kube-scheduler finds the extender.
        pair_life: How long a certificate lasts; it is renewed after two thirds of it.
        authority_life: How long an authority lasts.
    """

    webhook_service: str
    extender_service: str
    pair_life: timedelta
    authority_life: timedelta


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Everything that `app.run` needs to know.

    Attributes:
        cluster: the cluster's configuration, and where it is mounted.
        identity: our name in the Lease; no other process ever has it, a restarted one neither.
        service: the Service through which kube-scheduler finds the extender; None: by other means.
        advertise: the address under which this replica is reached, for that Service.
        issuing: None where certificates come from files, or the extender goes without.
        evicts: Whether pods are evicted whose claims violate limits.
        agent_gone_s: How long an agent is absent before claims of ended pods are released without
            it.
        linger_s: How long a leader that ends goes on refusing calls after it gave the Lease up:
            by then its successor has taken the Service over.
        standbys_first_s: With a new configuration, how much later than standbys a leader ends.
    """

    cluster: ConfigFile
    kubeconfig: str | None
    context: str | None
    namespace: str
    identity: str
    lease_name: str
    lease_duration_s: int
    extender: Address
    extender_tls: Tls | None
    service: str | None
    advertise: str | None
    issuing: Issuing | None
    evicts: bool
    agent_gone_s: float
    linger_s: float
    standbys_first_s: float
    metrics: Address | None
    metrics_access: MetricsAccess
    liveness: Address | None
    log_level: str
    log_format: LogFormat


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Everything that the process of the admission webhooks needs to know.

    Attributes:
        cluster: The cluster's configuration, and where it is mounted.
        identity: Kopf's name for this process; nothing depends on it.
        namespace: Where the Secret with the serving pair is.
        listen: Where the webhooks are served.
        tls: The serving pair in files; None: it is read from the Secret that the operator fills.
        drain_s: How long the webhooks go on serving after the process was asked to end.
    """

    cluster: ConfigFile
    kubeconfig: str | None
    context: str | None
    identity: str
    namespace: str
    listen: Address
    tls: Tls | None
    drain_s: float
    metrics: Address | None
    metrics_access: MetricsAccess
    liveness: Address | None
    log_level: str
    log_format: LogFormat


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Everything that the process of the web page needs to know.

    Attributes:
        cluster: The cluster's configuration, and where it is mounted.
        identity: The name in the certificate that the process makes itself.
        listen: Where the page is served.
        tls: The serving pair in files; None: the process signs one itself.
    """

    cluster: ConfigFile
    kubeconfig: str | None
    context: str | None
    identity: str
    listen: Address
    tls: Tls | None
    log_level: str
    log_format: LogFormat


def _duration(text: str) -> timedelta:
    """`90d`, `12h`, `600s`; argparse turns the error into a message that names the argument."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([dhs])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 90d, 12h or 600s")
    number, unit = int(found[1]), found[2]
    return (
        number * {"d": timedelta(days=1), "h": timedelta(hours=1), "s": timedelta(seconds=1)}[unit]
    )


def _warn(notice: Notice) -> None:
    """Logging is not set up yet; both end up in the log of the pod."""
    print(f"configuration: {notice}", file=sys.stderr)


def _cluster(path: Path | None) -> ConfigFile:
    return ConfigFile(path, load_cluster_config(path, _warn), _warn)


def _seconds(text: str) -> float:
    """`5s`, as a number of seconds; `0s` is one too."""
    return 0.0 if text == "0s" else _duration(text).total_seconds()


class _Options:
    """Arguments `--some-name`, each of which may be given as `VGPU_SOME_NAME` instead."""

    def __init__(self, program: str, description: str, environ: Mapping[str, str]) -> None:
        self.parser = argparse.ArgumentParser(prog=program, description=description)
        self._environ = environ

    def option(self, name: str, *, default: str | None = None, **rest: object) -> None:
        """Declare one; `rest` is argparse's."""
        variable = "VGPU_" + name.removeprefix("--").replace("-", "_").upper()
        self.parser.add_argument(name, default=self._environ.get(variable, default), **rest)  # type: ignore[arg-type]

    def basic(self) -> None:
        """Declare what all processes have."""
        option = self.option
        option("--kubeconfig", help="default: in-cluster, or the usual kubeconfig")
        option("--context", help="context of the kubeconfig")
        option(
            "--config",
            type=Path,
            help="the cluster configuration: YAML, or a folder",
        )
        option(
            "--log-level",
            default="INFO",
            choices=("DEBUG", "INFO", "WARNING", "ERROR"),
            help="the least severe messages that are logged; logging.level of the configuration "
            "overrides it",
        )
        option(
            "--log-format",
            type=LogFormat,
            default="text",
            choices=list(LogFormat),
            help="lines of text, or one JSON object a line",
        )

    def common(self) -> None:
        """Declare what operator and webhooks have."""
        self.basic()
        option = self.option
        option("--namespace", default="vgpu-system", help="where the Lease and the Secrets are")
        option("--identity", default=socket.gethostname(), help="name in the Lease, made unique")
        option("--metrics", type=Address.parse, help="[host]:port of the Prometheus metrics")
        option(
            "--metrics-access",
            type=MetricsAccess,
            choices=list(MetricsAccess),
            default="reviewed",
            help=ACCESS_HELP,
        )
        option("--liveness", type=Address.parse, help="host:port of the liveness probe")

    def pair(self, name: str, certificate: Path | None, key: Path | None) -> Tls | None:
        """A certificate and its key, given together or not at all."""
        if (certificate is None) != (key is None):
            self.parser.error(f"--{name}-cert and --{name}-key go together")
        return None if certificate is None or key is None else Tls(certificate, key)


def parse_webhook(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> WebhookConfig:
    """The configuration of the webhooks' process that arguments and environment give.

    Raises:
        SystemExit: An argument is wrong; argparse has printed which.
        BadInput: The cluster configuration is wrong.
    """
    options = _Options("vgpu-webhook", "Admits pods and claims.", environ)
    options.common()
    option, parser = options.option, options.parser
    option("--webhook", type=Address.parse, default=":9444", help="[host]:port")
    option(
        "--certificates",
        default="files",
        choices=("files", "secrets"),
        help="secrets: the pair that the operator issues, from its Secret",
    )
    option("--webhook-cert", type=Path, help="PEM file of the certificate")
    option("--webhook-key", type=Path, help="PEM file of its private key")
    option("--drain", type=_seconds, default="5s", help="serve for so long after SIGTERM")
    given = parser.parse_args(arguments)
    tls = options.pair("webhook", given.webhook_cert, given.webhook_key)
    if given.certificates == "files" and tls is None:
        parser.error(
            "--webhook-cert and --webhook-key: required, webhooks speak HTTPS only; or "
            "--certificates=secrets"
        )
    if given.certificates == "secrets" and tls is not None:
        parser.error("--webhook-cert: not allowed with --certificates=secrets")
    return WebhookConfig(
        cluster=_cluster(given.config),
        kubeconfig=given.kubeconfig,
        context=given.context,
        identity=given.identity,
        namespace=given.namespace,
        listen=given.webhook,
        tls=tls,
        drain_s=given.drain,
        metrics=given.metrics,
        metrics_access=given.metrics_access,
        liveness=given.liveness,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def parse_web(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> WebConfig:
    """The configuration of the web page's process that arguments and environment give.

    Raises:
        SystemExit: An argument is wrong; argparse has printed which.
        BadInput: The cluster configuration is wrong.
    """
    options = _Options("vgpu-web", "Shows devices, claims and who waits.", environ)
    options.basic()
    option = options.option
    option("--identity", default=socket.gethostname(), help="name in a certificate of its own")
    option("--web", type=Address.parse, default=":9446", help="[host]:port")
    option("--web-cert", type=Path, help="PEM file of the certificate; default: self-signed")
    option("--web-key", type=Path, help="PEM file of its private key")
    given = options.parser.parse_args(arguments)
    return WebConfig(
        cluster=_cluster(given.config),
        kubeconfig=given.kubeconfig,
        context=given.context,
        identity=given.identity,
        listen=given.web,
        tls=options.pair("web", given.web_cert, given.web_key),
        log_level=given.log_level,
        log_format=given.log_format,
    )


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> OperatorConfig:
    """The operator's configuration that arguments and environment give.

    Raises:
        SystemExit: An argument is wrong; argparse has printed which.
        BadInput: The cluster configuration is wrong.
    """
    options = _Options("vgpu-operator", "Shares GPUs among pods.", environ)
    options.common()
    option, parser = options.option, options.parser
    option("--lease-name", default="vgpu-operator", help="Lease by which replicas elect a leader")
    option("--lease-duration", type=int, default="5", help="seconds a silent leader keeps it")
    option("--extender", type=Address.parse, default=":9443", help="[host]:port")
    option("--extender-cert", type=Path, help="PEM file of the certificate")
    option("--extender-key", type=Path, help="PEM file of its private key")
    option("--extender-client-ca", type=Path, help="only clients of this CA may ask")
    option("--service-name", help="Service without selector that leads to the leader's extender")
    option("--advertise-address", help="IP address of this replica in that Service")
    option(
        "--agent-gone-after",
        type=_seconds,
        default=f"{AGENT_GONE_S:.0f}s",
        help="an agent silent for so long is not waited for: claims of ended pods are released",
    )
    option(
        "--on-violation",
        default="Report",
        choices=("Report", "Evict"),
        help="what is done about a claim that takes more memory or compute than it may",
    )
    option("--linger", type=_seconds, default="0s", help="a leader's extender, after its Lease")
    option(
        "--standbys-first",
        type=_seconds,
        default="0s",
        help="with a new configuration the leader begins anew so long after its standbys",
    )
    option(
        "--certificates",
        default="files",
        choices=("files", "secrets"),
        help="secrets: issued by the operator and kept in Secrets of its namespace",
    )
    option("--certificate-life", type=_duration, default="90d", help="such as 90d, 12h, 600s")
    option("--authority-life", type=_duration, default="3650d", help="of the issuing CA")
    option("--webhook-service-name", default="vgpu-webhook", help="Service of the webhooks")
    given = parser.parse_args(arguments)
    extender_tls = options.pair("extender", given.extender_cert, given.extender_key)
    if extender_tls is not None:
        extender_tls = replace(extender_tls, client_ca=given.extender_client_ca)
    if (given.service_name is None) != (given.advertise_address is None):
        parser.error("--service-name and --advertise-address go together")
    if given.advertise_address is not None:
        try:
            ipaddress.ip_address(given.advertise_address)
        except ValueError:
            parser.error(f"--advertise-address: {given.advertise_address!r} is not an IP address")
    return OperatorConfig(
        cluster=_cluster(given.config),
        kubeconfig=given.kubeconfig,
        context=given.context,
        namespace=given.namespace,
        # A container that is restarted keeps its pod's name, and its process id is 1 again.
        identity=f"{given.identity}_{secrets.token_hex(4)}",
        lease_name=given.lease_name,
        lease_duration_s=given.lease_duration,
        extender=given.extender,
        extender_tls=extender_tls,
        service=given.service_name,
        advertise=given.advertise_address,
        issuing=_issuing(parser, given) if given.certificates == "secrets" else None,
        evicts=given.on_violation == "Evict",
        agent_gone_s=given.agent_gone_after,
        linger_s=given.linger,
        standbys_first_s=given.standbys_first,
        metrics=given.metrics,
        metrics_access=given.metrics_access,
        liveness=given.liveness,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def _issuing(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Issuing:
    if given.service_name is None:
        parser.error("--certificates=secrets needs --service-name: its certificate names it")
    if given.certificate_life * 6 > given.authority_life:
        parser.error("--authority-life: at least six times --certificate-life")
    return Issuing(
        webhook_service=given.webhook_service_name,
        extender_service=given.service_name,
        pair_life=given.certificate_life,
        authority_life=given.authority_life,
    )
