"""docs/compatibility.md lists every word that the code reads, and every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from manual.words import metrics
from vgpu_api import names
from vgpu_api.config import ClusterConfig, NodeConfig, NvidiaConfig
from vgpu_api.config import hami as hami_documents
from vgpu_api.names import POD_ANNOTATIONS
from vgpu_operator.admission.rules.no_effect import WITHOUT_EFFECT
from vgpu_operator.admission.rules.pod_validation import UNKEPT
from vgpu_operator.dialects import ack, hami, volcano
from vgpu_operator.dialects.hami_annotations import DEVICE_POLICIES, NODE_POLICIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
RECORDS = ROOT / "manifests" / "components" / "hami-records" / "records.yaml"
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| word", "| key", "| record", "| there"))
    if not line.startswith("| document")
]


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def series_of(answer: str) -> set[str]:
    """Return HAMi's metrics in the rows whose second cell begins with this text."""
    rows = [row for row in ROWS if row[1].startswith(answer)]
    assert rows, answer
    return {name for row in rows for name in re.findall(r"`([A-Za-z_]+)`", row[0])}


def recorded() -> set[str]:
    (document,) = yaml.safe_load_all(RECORDS.read_text())
    return {rule["record"] for group in document["spec"]["groups"] for rule in group["rules"]}


def test_every_series_under_hamis_names_stands_on_the_page_as_served_and_no_other_does() -> None:
    served = {name for name in {*metrics(), *recorded()} if not name.startswith("vgpu")}
    assert series_of("metrics of the agent") | series_of("recording rules") == served


def test_no_series_that_the_page_calls_absent_is_served_and_its_replacement_is() -> None:
    absent = series_of("no series")
    assert len(absent) > 10
    assert absent & {*metrics(), *recorded()} == set()
    answers = [row[2] for row in ROWS if row[1].startswith("no series")]
    instead = {name for answer in answers for name in re.findall(r"`(vgpu_\w+)`", answer)}
    assert instead <= metrics().keys()


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED.findall(PAGE))))
def test_every_test_that_the_page_names_exists(file: str, test: str) -> None:
    assert test in functions_of(file)


def test_every_row_ends_with_a_test_with_a_refusal_or_with_a_reason() -> None:
    deviations = PAGE.index("## Deviations")
    for row in ROWS:
        assert len(row) == 3, row
        is_deviation = PAGE.index(row[0]) > deviations
        assert NAMED.search(row[2]) or row[2].startswith("refused: ") or is_deviation, row


def words() -> set[str]:
    """Return every name of other systems that the code reads."""
    config = ClusterConfig()
    resources = {
        name for dialect in (ack, hami, volcano) for name in dialect.resource_names(config)
    }
    theirs = {
        value
        for name, value in vars(names).items()
        if name.startswith(("HAMI_", "ACK_", "VOLCANO_", "COSCHEDULING_"))
        # The page names ACK's records in one row, by their common start.
        if isinstance(value, str) and not name.startswith("ACK_RECORD_")
    }
    variables = {names.ENV_CORE_POLICY, names.ENV_DISABLE_CONTROL, names.ENV_VISIBLE_DEVICES}
    policies = {*NODE_POLICIES, *DEVICE_POLICIES}
    return {
        *resources,
        *POD_ANNOTATIONS,
        *theirs,
        *UNKEPT,
        *variables,
        *WITHOUT_EFFECT,
        *policies,
    }


def keys() -> set[str]:
    """Return every key of HAMi's configuration that the code reads."""
    fields = {
        field.serialization_alias or name for name, field in NvidiaConfig.model_fields.items()
    }
    return {*fields, *hami_documents.WITHOUT_EFFECT}


@pytest.mark.parametrize("word", sorted(words()))
def test_every_word_that_the_code_knows_stands_on_the_page(word: str) -> None:
    assert re.search(rf"`{re.escape(word)}(`|: )", PAGE)


@pytest.mark.parametrize("key", sorted(keys()))
def test_every_key_of_a_configuration_that_the_code_knows_stands_on_the_page(key: str) -> None:
    assert re.search(rf"`{key}`", PAGE, re.IGNORECASE)


@pytest.mark.parametrize("name", sorted(NodeConfig.model_fields))
def test_every_key_of_a_nodes_configuration_stands_on_the_page(name: str) -> None:
    assert re.search(rf"`{name.replace('_', '')}`", PAGE)


def test_every_folder_of_examples_stands_on_the_page() -> None:
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    # The examples of automation use our own resource names.
    assert folders - set(re.findall(r"`([a-z0-9-]+)/", PAGE)) == {"automation"}
