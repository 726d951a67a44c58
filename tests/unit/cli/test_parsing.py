"""Command lines as users of kubectl type them."""

from __future__ import annotations

import pytest

from vgpu_operator.cli.__main__ import main, parser
from vgpu_operator.cli.access import kubectl_flags
from vgpu_operator.cli.parsing import GLOBAL_FLAGS, REFUSED, behind_the_command

OPTIONS_OF_KUBECTL = """
--as --as-group --as-uid --as-user-extra --cache-dir --certificate-authority --client-certificate
--client-key --cluster --context --disable-compression --insecure-skip-tls-verify --kubeconfig
--kuberc --log-flush-frequency --match-server-version --namespace --password --profile
--profile-output --request-timeout --server --tls-server-name --token --user --username --v
--vmodule --warnings-as-errors -n -s -v
"""
"""The flags that `kubectl options` of 1.36 lists."""


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parser().parsed(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("gte", "slices"), "get"),
        (("explein", "pod/a"), "explain"),
        (("simulte",), "simulate"),
        (("get", "devzices"), "devices"),
        (("get", "claaims"), "claims"),
        (("top", "ddevices"), "devices"),
    ],
)
def test_a_misspelt_word_gets_the_right_one(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], meant: str
) -> None:
    assert f"did you mean {meant}" in error(capsys, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "slices", "--contxt", "x"), "unknown flag: --contxt; did you mean --context?"),
        (("web", "--prot=3"), "unknown flag: --prot; did you mean --port?"),
        (("cordon", "a", "--quux"), "unknown flag: --quux\n"),
        (("cordon", "a", "b"), "unrecognized arguments: b\n"),
    ],
)
def test_an_unknown_flag_is_named_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert f"error: {said}" in error(capsys, *words)


def test_a_word_that_is_like_none_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert "use one of slices, devices, nodes, pods" in error(capsys, "get", "quux")


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Show slices" in capsys.readouterr().out


def test_a_kind_alone_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: kind\n" in error(capsys, "get")


@pytest.mark.parametrize(
    ("word", "kind"),
    [("gpu", "devices"), ("gpus", "devices"), ("GPUs", "devices"), ("pod", "pods"), ("po", "pods")],
)
def test_a_kind_has_the_name_that_people_say(word: str, kind: str) -> None:
    assert parser().parsed(["get", word]).kind == kind


@pytest.mark.parametrize(
    "words",
    [
        ("--context", "a", "-n", "b", "--as=c", "get", "slices"),
        ("get", "--context", "a", "slices", "-nb", "--as", "c"),
        ("-nb", "--context=a", "get", "slices", "--as", "c"),
        ("get", "slices", "--as", "c", "-n", "b", "--context", "a"),
    ],
)
def test_a_global_flag_may_be_anywhere(words: tuple[str, ...]) -> None:
    found = parser().parsed(words)
    assert (found.command, found.kind) == ("get", "slices")
    assert (found.context, found.namespace, found.user) == ("a", "b", "c")


def test_a_flag_without_a_value_takes_no_word() -> None:
    assert parser().parsed(["-A", "get", "slices"]).all_namespaces


def test_words_behind_the_command_keep_their_order() -> None:
    assert behind_the_command(["-n", "a", "get", "x", "-n", "b"]) == [
        "get", "-n", "a", "x", "-n", "b"
    ]  # fmt: skip


def test_each_global_flag_of_kubectl_is_honoured_or_refused_with_a_reason() -> None:
    assert set(OPTIONS_OF_KUBECTL.split()) == set(GLOBAL_FLAGS) - {"-A", "--all-namespaces"}


@pytest.mark.parametrize("flag", REFUSED)
@pytest.mark.parametrize("first", [True, False])
def test_a_flag_that_is_not_supported_is_refused_with_a_reason(
    capsys: pytest.CaptureFixture[str], flag: str, first: bool
) -> None:
    words = [f"{flag}=x"] if flag.startswith("--") else [flag, "x"]
    said = error(capsys, *(words if first else ()), "doctor", *(() if first else words))
    assert f"{flag} of kubectl is not supported: {REFUSED[flag]}" in said


def test_a_namespace_where_there_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "drain is not about one namespace" in error(capsys, "-n", "a", "drain", "b")
    assert main(["get", "gpus", "-n", "a"]) == 2
    assert "devices have no namespace" in capsys.readouterr().err


def test_a_cluster_where_none_is_asked_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "check asks no cluster" in error(capsys, "--context", "a", "check", "-f", "b")


@pytest.mark.parametrize("verb", [("release", "--node", "n"), ("migrate", "hami")])
def test_another_user_is_refused_where_the_operator_is_acted_as(
    capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    assert main([*verb, "--as", "joe"]) == 2
    assert f"{verb[0]} acts as the operator itself" in capsys.readouterr().err


def test_kubectl_gets_the_same_flags() -> None:
    flags = [
        "--kubeconfig=k", "--context=c", "--as=u", "--as-group=g", "--as-group=h", "--as-uid=i",
        "--request-timeout=90s",
    ]  # fmt: skip
    given = [each.replace("90s", "1m30s") for each in flags]
    assert kubectl_flags(parser().parsed(["top", *given])) == flags


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("1m30s", 90.0), ("2h", 7200.0), ("500ms", 0.5), ("3", 3.0)],
)
def test_a_duration_is_read_as_kubectl_reads_it(text: str, seconds: float) -> None:
    assert parser().parsed(["doctor", f"--request-timeout={text}"]).request_timeout == seconds


def test_a_duration_of_zero_is_no_limit() -> None:
    found = parser().parsed(["doctor", "--request-timeout=0"])
    assert found.request_timeout == float("inf")
    assert kubectl_flags(found) == []


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1s2m"])
def test_what_is_no_duration_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert "must be a duration" in error(capsys, "doctor", f"--request-timeout={text}")
