"""The arguments of the operator's processes, which can also be set as environment variables.

Settings for cluster administrators, such as resource names and policies, are in the cluster
configuration (`vgpu_api.config`), which the agent reads as well.
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
from vgpu_api.names import AGENT_GONE_S, OPERATOR_NAMESPACE
from vgpu_client.logs import LogFormat
from vgpu_client.metrics_server import ACCESS_HELP, MetricsAccess


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listening server. An empty host means all addresses, IPv6 and IPv4."""

    host: str
    port: int

    @property
    def url_host(self) -> str:
        """Return the host in URL syntax."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`; argparse adds the argument's name to an error."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise argparse.ArgumentTypeError(
                f"Invalid value: {text!r}: must be host:port, such as 0.0.0.0:9443 or :9443"
            )
        return cls(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's certificate and key, and the CA of permitted clients (None: any client)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Issuing:
    """The settings for certificates that the operator issues itself.

    Attributes:
        webhook_service: The Service through which the API server reaches the webhooks.
        extender_service: The Service through which kube-scheduler reaches the extender.
        pair_life: The lifetime of a certificate; it is renewed after two thirds of that.
        authority_life: The lifetime of the CA.
    """

    webhook_service: str
    extender_service: str
    pair_life: timedelta
    authority_life: timedelta


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The configuration of the operator's process.

    Attributes:
        cluster: The cluster's configuration, and its mounted file.
        identity: The name in the Lease; unique to this process, so it changes at a restart.
        service: The Service through which kube-scheduler reaches the extender, or None.
        advertise: The address of this replica for that Service.
        issuing: The settings of issued certificates; None: they come from files, or there are none.
        evicts: True if pods whose claims violate their limits are evicted.
        agent_gone_s: Seconds after which claims of ended pods are released without their agent.
        linger_s: Seconds for which a former leader keeps refusing calls after it released the
            Lease, until its successor has taken over the Service.
        standbys_first_s: Seconds by which the leader restarts later than standbys for a new
            configuration.
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
    """The configuration of the webhook process.

    Attributes:
        cluster: The cluster's configuration, and its mounted file.
        identity: Kopf's name for this process; nothing depends on it.
        namespace: The namespace of the Secret with the certificate.
        listen: The address to listen on.
        tls: The certificate files; None: the certificate is in the Secret that the operator writes.
        drain_s: Seconds for which reviews are served after SIGTERM.
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
    """The configuration of the web page's process.

    Attributes:
        cluster: The cluster's configuration, and its mounted file.
        identity: The name in the self-signed certificate.
        listen: The address to listen on.
        tls: The certificate files; None: the process signs a certificate itself.
        prometheus_ca: The file of the authorities that Prometheus's certificate may come from;
            None: those of the system.
        prometheus_token: The file of the bearer token for Prometheus, or None.
    """

    cluster: ConfigFile
    kubeconfig: str | None
    context: str | None
    identity: str
    listen: Address
    tls: Tls | None
    prometheus_ca: Path | None
    prometheus_token: Path | None
    log_level: str
    log_format: LogFormat


def _duration(text: str) -> timedelta:
    """Parse `90d`, `12h` or `600s`; argparse adds the argument's name to an error."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([dhs])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"Invalid value: {text!r}: must be a duration, such as 90d, 12h or 600s"
        )
    number, unit = int(found[1]), found[2]
    return (
        number * {"d": timedelta(days=1), "h": timedelta(hours=1), "s": timedelta(seconds=1)}[unit]
    )


def _warn(notice: Notice) -> None:
    """Print a notice to standard error. At startup, logging is not set up yet."""
    print(f"configuration: {notice}", file=sys.stderr)


def _cluster(path: Path | None) -> ConfigFile:
    return ConfigFile(path, load_cluster_config(path, _warn), _warn)


def _seconds(text: str) -> float:
    """Parse a duration in seconds. Unlike other durations, it may be `0s`."""
    return 0.0 if text == "0s" else _duration(text).total_seconds()


class _Options:
    """Arguments `--some-name`, which may also be set as `VGPU_SOME_NAME` in the environment."""

    def __init__(self, program: str, description: str, environ: Mapping[str, str]) -> None:
        self.parser = argparse.ArgumentParser(prog=program, description=description)
        self._environ = environ

    def option(self, name: str, *, default: str | None = None, **rest: object) -> None:
        """Add an argument; `rest` is passed on to argparse."""
        variable = "VGPU_" + name.removeprefix("--").replace("-", "_").upper()
        self.parser.add_argument(name, default=self._environ.get(variable, default), **rest)  # type: ignore[arg-type]

    def basic(self) -> None:
        """Add the arguments that all processes have."""
        option = self.option
        option("--kubeconfig", help="path of a kubeconfig; default: in-cluster, or kubectl's own")
        option("--context", help="kubeconfig context to use")
        option(
            "--config",
            type=Path,
            help="cluster configuration: a YAML file, or a directory of them",
        )
        option(
            "--log-level",
            default="INFO",
            choices=("DEBUG", "INFO", "WARNING", "ERROR"),
            help="log level; logging.level of the cluster configuration overrides it",
        )
        option(
            "--log-format",
            type=LogFormat,
            default="text",
            choices=list(LogFormat),
            help="log lines of text, or a JSON object per line",
        )

    def common(self) -> None:
        """Add the arguments that the operator and the webhooks share."""
        self.basic()
        option = self.option
        option(
            "--namespace", default=OPERATOR_NAMESPACE, help="namespace of the Lease and the Secrets"
        )
        option(
            "--identity",
            default=socket.gethostname(),
            help="name in the Lease; a random suffix is added",
        )
        option("--metrics", type=Address.parse, help="serve Prometheus metrics on [host]:port")
        option(
            "--metrics-access",
            type=MetricsAccess,
            choices=list(MetricsAccess),
            default="reviewed",
            help=ACCESS_HELP,
        )
        option("--liveness", type=Address.parse, help="serve the liveness probe on host:port")

    def pair(self, name: str, certificate: Path | None, key: Path | None) -> Tls | None:
        """Return a certificate and its key, which must be given together."""
        if (certificate is None) != (key is None):
            self.parser.error(f"--{name}-cert and --{name}-key go together")
        return None if certificate is None or key is None else Tls(certificate, key)


def parse_webhook(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> WebhookConfig:
    """Read the configuration of the webhooks' process from arguments and environment.

    Raises:
        SystemExit: An argument is invalid; argparse has printed an error.
        BadInput: The cluster configuration is invalid.
    """
    options = _Options("vgpu-webhook", "Serve the admission webhooks.", environ)
    options.common()
    option, parser = options.option, options.parser
    option("--webhook", type=Address.parse, default=":9444", help="serve on [host]:port")
    option(
        "--certificates",
        default="files",
        choices=("files", "secrets"),
        help="use certificate files, or the Secret that the operator issues",
    )
    option("--webhook-cert", type=Path, help="PEM file of the certificate")
    option("--webhook-key", type=Path, help="PEM file of its private key")
    option("--drain", type=_seconds, default="5s", help="keep serving for this long after SIGTERM")
    given = parser.parse_args(arguments)
    tls = options.pair("webhook", given.webhook_cert, given.webhook_key)
    if given.certificates == "files" and tls is None:
        parser.error(
            "--webhook-cert and --webhook-key: Required value: webhooks need HTTPS; or use "
            "--certificates=secrets"
        )
    if given.certificates == "secrets" and tls is not None:
        parser.error("--webhook-cert: Forbidden: not with --certificates=secrets")
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
    """Read the configuration of the web page's process from arguments and environment.

    Raises:
        SystemExit: An argument is invalid; argparse has printed an error.
        BadInput: The cluster configuration is invalid.
    """
    options = _Options("vgpu-web", "Serve the web page.", environ)
    options.basic()
    option = options.option
    option("--identity", default=socket.gethostname(), help="name in the self-signed certificate")
    option("--web", type=Address.parse, default=":9446", help="serve on [host]:port")
    option("--web-cert", type=Path, help="PEM file of the certificate; default: self-signed")
    option("--web-key", type=Path, help="PEM file of its private key")
    option(
        "--prometheus-ca",
        type=Path,
        help="PEM file of the authorities to trust for web.prometheus; default: the system's",
    )
    option("--prometheus-token", type=Path, help="file of a bearer token for web.prometheus")
    given = options.parser.parse_args(arguments)
    cluster = _cluster(given.config)
    if not cluster.config.web.prometheus:
        for name in ("prometheus_ca", "prometheus_token"):
            if getattr(given, name) is not None:
                shown = f"--{name.replace('_', '-')}: Forbidden"
                options.parser.error(f"{shown}: the configuration has no web.prometheus")
    return WebConfig(
        cluster=cluster,
        kubeconfig=given.kubeconfig,
        context=given.context,
        identity=given.identity,
        listen=given.web,
        tls=options.pair("web", given.web_cert, given.web_key),
        prometheus_ca=given.prometheus_ca,
        prometheus_token=given.prometheus_token,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> OperatorConfig:
    """Read the operator's configuration from arguments and environment.

    Raises:
        SystemExit: An argument is invalid; argparse has printed an error.
        BadInput: The cluster configuration is invalid.
    """
    options = _Options("vgpu-operator", "Run the operator, which shares GPUs among pods.", environ)
    options.common()
    option, parser = options.option, options.parser
    option("--lease-name", default="vgpu-operator", help="Lease that elects the leader")
    option(
        "--lease-duration",
        type=int,
        default="9",
        help="seconds after which a silent leader loses the Lease",
    )
    option(
        "--extender", type=Address.parse, default=":9443", help="serve the extender on [host]:port"
    )
    option("--extender-cert", type=Path, help="PEM file of the extender's certificate")
    option("--extender-key", type=Path, help="PEM file of its private key")
    option(
        "--extender-client-ca", type=Path, help="accept only clients with a certificate of this CA"
    )
    option("--service-name", help="Service without a selector, for the leader's extender")
    option("--advertise-address", help="IP address of this replica in that Service")
    option(
        "--agent-gone-after",
        type=_seconds,
        default=f"{AGENT_GONE_S:.0f}s",
        help="release the claims of ended pods once their agent has been silent for this long",
    )
    option(
        "--on-violation",
        default="Report",
        choices=("Report", "Evict"),
        help="report a claim that uses more memory or compute than it may, or evict its pod",
    )
    option(
        "--linger",
        type=_seconds,
        default="0s",
        help="refuse extender calls for this long after giving up the Lease",
    )
    option(
        "--standbys-first",
        type=_seconds,
        default="0s",
        help="when leading, restart for a new configuration this long after the standbys",
    )
    option(
        "--certificates",
        default="files",
        choices=("files", "secrets"),
        help="use certificate files, or issue certificates and keep them in Secrets",
    )
    option(
        "--certificate-life", type=_duration, default="90d", help="lifetime of issued certificates"
    )
    option("--authority-life", type=_duration, default="3650d", help="lifetime of the issuing CA")
    option(
        "--webhook-service-name",
        default="vgpu-webhook",
        help="Service of the webhooks, for their certificate",
    )
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
            shown = f"--advertise-address: Invalid value: {given.advertise_address!r}"
            parser.error(f"{shown}: must be an IP address")
    return OperatorConfig(
        cluster=_cluster(given.config),
        kubeconfig=given.kubeconfig,
        context=given.context,
        namespace=given.namespace,
        # The pod's name and the process id stay the same when a container restarts.
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
        parser.error("--service-name: Required value: --certificates=secrets needs it")
    if given.certificate_life * 6 > given.authority_life:
        parser.error(
            "--authority-life: Invalid value: must be at least six times --certificate-life"
        )
    return Issuing(
        webhook_service=given.webhook_service_name,
        extender_service=given.service_name,
        pair_life=given.certificate_life,
        authority_life=given.authority_life,
    )
