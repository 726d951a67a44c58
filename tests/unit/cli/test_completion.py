"""Shell completion of an unfinished line that needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_client.transport import Transport
from vgpu_operator.cli.__main__ import parser
from vgpu_operator.cli.completion import for_kubectl

NO_FILES, NO_FILES_NO_SPACE = ":4", ":6"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))


def candidates(*words: str) -> tuple[list[str], str]:
    """Return the candidates without their descriptions, and the directive."""
    *found, directive, end = for_kubectl(parser(), words).split("\n")
    assert end == ""
    return [line.partition("\t")[0] for line in found], directive


def test_verbs_have_their_help_beside_them():
    lines = for_kubectl(parser(), ["d"]).split("\n")
    assert lines[1] == "doctor\tCheck the installation and suggest fixes"
    assert lines[-2] == NO_FILES


def test_without_a_word_all_verbs_are_candidates():
    found, _ = candidates("")
    assert {"get", "explain", "top", "drain", "doctor", "simulate", "uninstall"} <= set(found)


def test_kinds_and_formats_are_candidates():
    assert candidates("get", "d") == (["devices"], NO_FILES)
    assert candidates("get", "devices", "-o", "") == (["wide", "json", "yaml", "name"], NO_FILES)
    assert candidates("top", "--sort-by", "m") == (["memory"], NO_FILES)


def test_options_are_candidates():
    assert candidates("drain", "--dr") == (["--dry-run"], NO_FILES)


def test_a_subject_may_begin_with_its_kind():
    assert candidates("explain", "p") == (["pod/"], NO_FILES_NO_SPACE)
    assert candidates("drain", "d") == (["device/"], NO_FILES_NO_SPACE)


def test_without_a_cluster_there_are_no_names():
    assert candidates("explain", "pod/") == ([], NO_FILES)
    assert candidates("get", "nodes", "") == ([], NO_FILES)


def test_files_are_candidates_where_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pod.yaml").touch()
    (tmp_path / "pods").mkdir()
    monkeypatch.chdir(tmp_path)
    assert candidates("simulate", "-f", "pod") == (["pod.yaml", "pods/"], NO_FILES_NO_SPACE)


def test_a_kind_that_does_not_exist_has_no_names():
    assert candidates("get", "gremlins", "") == ([], NO_FILES)


def test_a_word_with_a_quote_in_it_does_no_harm():
    assert candidates("explain", "o'brien") == ([], NO_FILES)


@pytest.mark.parametrize(
    "words", [("explain", "fi"), ("get", "slices", "a"), ("--context", "x", "drain", "device/")]
)
def test_an_unfinished_line_reaches_the_cluster_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
):
    config = tmp_path / "config"
    config.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],'
        '"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x",'
        '"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}'
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    asked: list[str] = []

    async def read(self: object, path: str, params: object, *, timeout_s: float) -> object:
        asked.append(path)
        return {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "first"}}]}

    monkeypatch.setattr(Transport, "read", read)
    assert candidates(*words)[0] != [] or words[-1] == "a"
    assert asked
