"""Every word that the system can print or read, taken from the code by import or from its syntax.

A word is returned with the place where the code has it, so that a missing row of the manual can be
traced. Nothing is listed here a second time: a new reason, metric or annotation appears by itself.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import Mock, patch

import prometheus_client
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

import vgpu_operator.config
import vgpu_operator.metrics
from vgpu_api import conditions, names
from vgpu_api.config import ClusterConfig
from vgpu_api.reasons import Reason
from vgpu_client.clock import Clock
from vgpu_nodeagent import __main__ as agent_main
from vgpu_nodeagent import audit_command
from vgpu_nodeagent.enforcement.watchdog import Violation
from vgpu_nodeagent.errors import Why
from vgpu_nodeagent.reporting import exposition
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.violations import WatchMetrics
from vgpu_operator.cli import __main__ as cli_main
from vgpu_operator.engine.effector import Effector
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import Ledger

ROOT = Path(__file__).parents[2]
PRODUCT = ("crds", "operator", "nodeagent")
REPORTING = (
    "crds/vgpu_api/*.py",
    "operator/vgpu_operator/controllers",
    "operator/vgpu_operator/engine",
    "nodeagent/vgpu_nodeagent",
)
"""The places where reasons of conditions and events are written as plain strings."""

Words: TypeAlias = dict[str, str]
"""A word, and the place of it in the code."""

_OF_CRD_RULES = "FieldValue"
_CAMEL = re.compile(r"[A-Z][A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*")
_CAPITAL = re.compile(r"[A-Z][a-z][A-Za-z0-9]*")
_METRIC_MAKERS = re.compile(r"_?(Counter|Gauge|Histogram|Summary|Info|Of[A-Z]\w+|\w*MetricFamily)")
_CONDITION_MAKERS = frozenset({"_condition", "Condition"})
_EVENT_MAKERS: dict[str, int | None] = {
    "ConfigurationEvent": 0,
    "RecordEvent": 2,
    "EvictPod": 2,
    "node_event": 1,
    "warning": 1,
    "device_warning": 1,
    "record": None,
}
"""The calls that make events, and the position of the reason where it is not named."""
_STATUSES = frozenset({"True", "False", "Unknown"})
_FINDINGS = frozenset({"Finding", "ClaimFinding"})
_QUALIFIED = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,}/[A-Za-z0-9][\w.-]*\w")
_OURS = re.compile(r"(?<![\w./-])(?:vgpu\.dev|hami\.io)/[A-Za-z0-9][\w.-]*\w")
_KUBERNETES = re.compile(r"(?:.*\.)?(?:k8s|kubernetes)\.io/.*")
_NOT_NAMES = frozenset({names.API_VERSION})


# Reasons of conditions and events.


def reasons() -> Words:
    """Return the operator's reasons why a claim or pod gets no device."""
    return _members(Reason)


def refusals() -> Words:
    """Return the agent's reasons for not starting a container."""
    return _members(Why)


def findings() -> Words:
    """Return the names of the findings of `kubectl vgpu audit`."""
    found: Words = {}
    for file, call in _calls("nodeagent/vgpu_nodeagent", "operator/vgpu_operator/cli"):
        if _name(call.func) in _FINDINGS and (word := _text(call.args[0] if call.args else None)):
            found.setdefault(word, _at(file, call))
    return found


def condition_types() -> Words:
    """Return the types of conditions of claims and devices."""
    return _constants(conditions, lambda value: _CAPITAL.fullmatch(value) is not None)


def event_reasons() -> Words:
    """Return the reasons of events, besides those of `reasons` and `refusals`."""
    found = _members(Violation)
    others = {**reasons(), **refusals()}
    for file, call in _calls(*REPORTING):
        if _name(call.func) not in _EVENT_MAKERS or _is_logging(call.func):
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
        place = _EVENT_MAKERS[_name(call.func)]
        if place is not None:
            given += call.args[place : place + 1]
        for argument in given:
            word = _resolved(argument, file)
            if word is not None and _CAPITAL.fullmatch(word) and word not in others:
                found.setdefault(word, _at(file, call))
    return found


def condition_reasons() -> Words:
    """Reasons of conditions, besides those of `reasons`, `refusals` and `event_reasons`.

    Taken from the syntax: CamelCase strings in the rooms that report, but for what is compared
    with, names of condition types, aliases of fields, exported names, keys, metrics, findings and
    what the API server calls a refusal by a rule of a CRD.
    """
    others = {**reasons(), **refusals(), **event_reasons(), **findings()}
    fields = _reason_fields()
    found: Words = {}
    for file in set(_files(*REPORTING)) - {Path(str(conditions.__file__))}:
        tree = _tree(file)
        left_out = set(_left_out(tree))
        for node in ast.walk(tree):
            word = _text(node)
            if word is None or node in left_out:
                continue
            if _CAMEL.fullmatch(word) and not word.startswith(_OF_CRD_RULES):
                found.setdefault(word, _at(file, node))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for argument in _reasons_given(call, fields):
                word = _text(argument)
                if not word or word in _STATUSES or word.startswith(_OF_CRD_RULES):
                    continue
                if _CAPITAL.fullmatch(word):
                    found.setdefault(word, _at(file, call))
    return {word: at for word, at in found.items() if word not in others}


def _reasons_given(call: ast.Call, fields: Mapping[str, int]) -> list[ast.expr]:
    """Return the one-word reasons in a call: arguments of a condition, or a field `reason`."""
    name = _name(call.func)
    if name in _CONDITION_MAKERS:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    place = fields.get(name)
    if place is None:
        return []
    named = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    return [*call.args[place : place + 1], *named]


def _reason_fields() -> dict[str, int]:
    """Return the classes of values that have a field `reason`, with the names of those fields."""
    found: dict[str, int] = {}
    for file in _files(*REPORTING):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ClassDef):
                fields = [
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
                if "reason" in fields:
                    found[node.name] = fields.index("reason")
    return found


def _left_out(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield strings that are not reasons, recognized by where they are in the code."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                yield from node.comparators
                yield node.left
            case ast.keyword(arg="alias"):
                yield node.value
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=exported)):
                yield from exported
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    yield from () if key is None else (key,)
                    yield from (value,) if _text(key) in ("kind", "effect") else ()
            case ast.Call(func=made) if _METRIC_MAKERS.fullmatch(_name(made)):
                yield from node.args
            case ast.Call(func=ast.Name(id="Resource")):
                yield from node.args
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                yield key
            case ast.MatchValue():
                yield node.value


# Metrics.


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as Prometheus scrapes it.

    Attributes:
        kind: counter, gauge, histogram, summary or info.
        labels: The labels in the order of the code.
        help: The help text.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


def metrics() -> dict[str, Series]:
    """Return every metric of operator, webhooks and agent, by its name on the wire."""
    found: dict[str, Series] = {}
    operator = [m for m in vars(vgpu_operator.metrics).values() if isinstance(m, MetricWrapperBase)]
    agent = Metrics()
    WatchMetrics(agent.registry)
    for metric in (*operator, *_registered(agent.registry)):
        (family,) = metric.describe()
        found[_wire(family.name, family.type)] = Series(
            family.type, tuple(metric._labelnames), family.documentation
        )
    usage = exposition.UsageCollector("", SimpleNamespace(devices={}), hami=True)
    config = ClusterConfig()
    state = State(config, Ledger(config=config), lambda: "")
    engine = Engine(state, Mock(spec=Effector), Clock(), lambda: True)
    for shown in (*usage.collect(), *ClaimsCollector(engine).collect()):
        labels = tuple(getattr(shown, "_labelnames", ()))
        found[_wire(shown.name, shown.type)] = Series(shown.type, labels, shown.documentation)
    return found


def metric_names_in_source() -> Words:
    """Return the first argument of every call that creates a metric; `metrics` must know each."""
    found: Words = {}
    for file, call in _calls(*PRODUCT):
        if not _METRIC_MAKERS.fullmatch(_name(call.func)):
            continue
        word = _text(call.args[0] if call.args else None)
        if word is not None:
            found.setdefault(word.removesuffix("_total"), _at(file, call))
    return found


def _registered(registry: CollectorRegistry) -> list[MetricWrapperBase]:
    known = registry._collector_to_names
    return [metric for metric in known if isinstance(metric, MetricWrapperBase)]


def _wire(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


# Names of Kubernetes: annotations, labels, finalizers.


def kubernetes_names() -> Words:
    """Return the annotations, labels, taints and finalizers that the project reads or writes."""
    found = _constants(names, lambda value: bool(_QUALIFIED.fullmatch(value)), prefix="")
    found |= _constants(names, lambda value: value.startswith("ack."), prefix="ACK_")
    found |= _constants(names, lambda value: True, prefix="ACK_RECORD_")
    for file in _files(*PRODUCT):
        for node in ast.walk(_tree(file)):
            word = _text(node)
            if word and _QUALIFIED.fullmatch(word) and not _KUBERNETES.fullmatch(word):
                found.setdefault(word, _at(file, node))
    for path in sorted((ROOT / "manifests").rglob("*.yaml")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for word in _OURS.findall(line.partition("#")[0]):
                found.setdefault(word, f"{path.relative_to(ROOT)}:{number}")
    resources = ClusterConfig().managed_resources()
    return {
        word: at
        for word, at in found.items()
        if word not in _NOT_NAMES and not any(name.startswith(word) for name in resources)
    }


# Ports and files.


def ports() -> Words:
    """Return `workload:port` of every container of the installation."""
    found: Words = {}
    for workload, container, at in _containers():
        for port in container.get("ports", ()):
            found.setdefault(f"{workload}:{port['containerPort']}", at)
    return found


def files() -> Words:
    """Return the host folders that the agent mounts, and paths inside a container."""
    found = {
        value: f"vgpu_api.names.{name}"
        for name, value in vars(names).items()
        if name.startswith("CONTAINER_")
    }
    for document, at in _manifests():
        spec = document.get("spec", {}).get("template", {}).get("spec", {})
        for volume in spec.get("volumes", ()):
            if "hostPath" in volume:
                found.setdefault(volume["hostPath"]["path"], at)
    return found


def _containers() -> Iterator[tuple[str, dict[str, Any], str]]:
    for document, at in _manifests():
        spec = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in spec.get("containers", ()):
            yield document["metadata"]["name"], container, at


def _manifests() -> Iterator[tuple[dict[str, Any], str]]:
    for path in sorted((ROOT / "manifests" / "base").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and "spec" in document:
                yield document, str(path.relative_to(ROOT))


# Command lines.


@dataclass(frozen=True, slots=True)
class Program:
    """A program, with the way to call it and its parser."""

    called: str
    parser: argparse.ArgumentParser
    environment: bool = False
    """Each argument may also be given as the variable `VGPU_NAME`."""


def services() -> list[Program]:
    """Return the processes of the installation."""
    return [
        Program("vgpu-operator", _parser_of(lambda: vgpu_operator.config.parse([], {})), True),
        Program(
            "vgpu-webhook", _parser_of(lambda: vgpu_operator.config.parse_webhook([], {})), True
        ),
        Program("vgpu-web", _parser_of(lambda: vgpu_operator.config.parse_web([], {})), True),
        Program("vgpu-nodeagent", _parser_of(lambda: agent_main.parse([]))),
    ]


def commands() -> list[Program]:
    """Return the programs that people run: the verbs of `kubectl vgpu`, and those of agents."""
    top = cli_main.parser()
    found = [Program(f"kubectl vgpu {verb}", parser) for verb, parser in sorted(verbs(top).items())]
    found.append(
        Program("vgpu-nodeagent audit", _parser_of(lambda: audit_command.of_this_node([])))
    )
    found.append(
        Program("vgpu-nodeagent usage", _parser_of(lambda: audit_command.usage_of_this_node([])))
    )
    return sorted(found, key=lambda program: program.called)


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by their verbs."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


class _Captured(Exception):
    """Carries a parser out of the function that creates it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def _parser_of(start: Callable[[], object]) -> argparse.ArgumentParser:
    """Return the parser that a program creates, caught when it begins to parse."""

    def capture(self: argparse.ArgumentParser, *args: object, **kwargs: object) -> None:
        raise _Captured(self)

    with (
        patch.object(argparse.ArgumentParser, "parse_args", capture),
        patch.dict(os.environ, clear=True),
    ):
        try:
            start()
        except _Captured as captured:
            return captured.parser
    raise AssertionError("the program parses no arguments")


# The syntax of the product code.


def _members(enum: type[StrEnum]) -> Words:
    return {
        str(member.value): f"{enum.__module__}.{enum.__name__}.{member.name}" for member in enum
    }


def _constants(module: ModuleType, fits: Callable[[str], bool], *, prefix: str = "") -> Words:
    return {
        value: f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if name.isupper() and name.startswith(prefix) and isinstance(value, str) and fits(value)
    }


def _files(*places: str) -> list[Path]:
    found: list[Path] = []
    for place in places:
        paths = (ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else ROOT.glob(place)
        found += [path for path in paths if path.parent.name != "api"]
    return sorted(found)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _calls(*places: str) -> Iterator[tuple[Path, ast.Call]]:
    for file in _files(*places):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Call):
                yield file, node


def _name(function: ast.AST) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _text(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _resolved(node: ast.AST, file: Path) -> str | None:
    """Return a string, or the value of a constant of the same or an imported module."""
    if not isinstance(node, ast.Name):
        return _text(node)
    for statement in _tree(file).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == node.id:
                return _text(value)
            case ast.ImportFrom(module=str(module), names=imported):
                for alias in imported:
                    if (alias.asname or alias.name) == node.id:
                        found = getattr(importlib.import_module(module), alias.name, None)
                        return found if isinstance(found, str) else None
    return None


def _is_logging(function: ast.AST) -> bool:
    return isinstance(function, ast.Attribute) and _name(function.value) in ("logger", "logging")


def _at(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def exposed_by_libraries() -> Sequence[str]:
    """Return the prefixes of metrics that prometheus-client adds to the operator's by itself."""
    known = prometheus_client.REGISTRY._collector_to_names.values()
    found = {name.partition("_")[0] for group in known for name in group}
    return sorted(found - {"vgpu"})
