"""The help of each verb: it says what the verb does, and the defaults of its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from vgpu_operator.cli.__main__ import parser

CRDS = Path(__file__).parents[3] / "crds"
KINDS = {"vgpu.dev_vgpuclaims.yaml": "slices", "vgpu.dev_gpudevices.yaml": "devices"}


def verbs() -> Mapping[str, argparse.ArgumentParser]:
    (below,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return below.choices


@pytest.mark.parametrize("verb", verbs())
def test_a_verb_says_what_it_does(verb: str):
    assert (verbs()[verb].description or "").endswith(".")


@pytest.mark.parametrize("verb", verbs())
def test_a_default_is_shown(verb: str):
    missing = [
        action.dest
        for action in verbs()[verb]._actions
        if action.default not in (None, False, [], argparse.SUPPRESS)
        and not (action.help or "").endswith(f"(default: {action.default})")
    ]
    assert missing == []


@pytest.mark.parametrize("verb", ["uninstall", "release"])
def test_a_verb_that_deletes_says_how_to_preview_it(verb: str):
    assert "--dry-run" in (verbs()[verb].description or "")


@pytest.mark.parametrize("file", KINDS)
def test_all_names_that_kubectl_has_for_a_kind_are_accepted(file: str):
    names = yaml.safe_load((CRDS / file).read_text())["spec"]["names"]
    for name in (names["plural"], names["singular"], *names["shortNames"]):
        assert parser().parse_args(["get", name]).kind == KINDS[file]


@pytest.mark.parametrize("name", ["nodes", "node", "no"])
def test_all_names_that_kubectl_has_for_nodes_are_accepted(name: str):
    assert parser().parse_args(["get", name]).kind == "nodes"
