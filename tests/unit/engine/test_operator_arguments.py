"""Arguments come from the command line or the environment, and wrong ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_api.errors import BadInput
from vgpu_operator.config import Address, Tls, parse, parse_web, parse_webhook


def test_the_environment_stands_in_for_an_argument() -> None:
    config = parse([], {"VGPU_LEASE_DURATION": "30", "VGPU_NAMESPACE": "gpus"})
    assert (config.lease_duration_s, config.namespace) == (30, "gpus")


def test_an_argument_wins_over_the_environment() -> None:
    assert parse(["--namespace", "here"], {"VGPU_NAMESPACE": "there"}).namespace == "here"


def test_addresses_and_certificates_are_read() -> None:
    config = parse(["--extender", "127.0.0.1:1", "--extender-cert", "c", "--extender-key", "k"], {})
    assert config.extender == Address("127.0.0.1", 1)
    assert config.extender_tls == Tls(Path("c"), Path("k"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--extender", "9443"], "must be host:port"),
        (["--extender", "host:99999"], "must be host:port"),
        (["--extender-cert", "c"], "go together"),
        (["--linger", "soon"], "must be a duration"),
        (["--lease-duration", "soon"], "--lease-duration"),
        (["--certificates", "secrets"], "--service-name: Required value"),
        (["--certificate-life", "90"], "must be a duration"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_would_be_right(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, {})
    assert said in capsys.readouterr().err


def test_the_webhooks_take_a_pair_from_files_or_from_the_secret_of_the_operators() -> None:
    files = parse_webhook(["--webhook-cert", "c", "--webhook-key", "k", "--drain", "2s"], {})
    assert (files.tls, files.drain_s) == (Tls(Path("c"), Path("k")), 2.0)
    secret = parse_webhook([], {"VGPU_CERTIFICATES": "secrets", "VGPU_WEBHOOK": "0.0.0.0:1"})
    assert (secret.tls, secret.listen) == (None, Address("0.0.0.0", 1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Required value: webhooks need HTTPS"),
        (["--webhook-cert", "c"], "go together"),
        (
            ["--certificates", "secrets", "--webhook-cert", "c", "--webhook-key", "k"],
            "Forbidden: not with --certificates=secrets",
        ),
        (["--certificates", "secrets", "--drain", "soon"], "must be a duration"),
        (["--certificates", "secrets", "--extender", "0.0.0.0:1"], "unrecognized arguments"),
    ],
)
def test_a_wrong_argument_of_the_webhooks_is_refused_with_what_would_be_right(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_webhook(arguments, {})
    assert said in capsys.readouterr().err


def test_the_page_takes_credentials_for_a_prometheus_that_is_configured_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("web: {prometheus: 'https://p.example'}\n")
    files = ["--prometheus-ca", "ca", "--prometheus-token", "t"]
    given = parse_web(["--config", str(path), *files], {})
    assert (given.prometheus_ca, given.prometheus_token) == (Path("ca"), Path("t"))
    for pair in (files[:2], files[2:]):
        with pytest.raises(SystemExit):
            parse_web(pair, {})
        said = f"{pair[0]}: Forbidden: the configuration has no web.prometheus"
        assert said in capsys.readouterr().err


def test_a_wrong_cluster_configuration_names_the_path_of_the_error(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("nvidia: {deviceSplitCount: none}\n")
    with pytest.raises(BadInput, match=r"nvidia\.deviceSplitCount"):
        parse(["--config", str(path)], {})
