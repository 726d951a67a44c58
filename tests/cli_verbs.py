"""All verbs of `kubectl vgpu`, and all other programs that query a cluster.

The verbs are read from the parser, so a test of every verb covers a new verb as well. The list of
programs is compared with the scripts of the package.
"""

from __future__ import annotations

import argparse
import importlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from vgpu_local.steps import a_container, a_pod
from vgpu_operator.cli.__main__ import parser

FIND_OUT = ("doctor", "support-bundle", "uninstall")
"""These are made for clusters on which something is missing, and show what."""
FILE = "FILE"
"""Stands for a file: a pod for a verb that reads one, some other file for a verb that writes one.
"""
_BY_FILE = ("import",)
"""These read a cluster only without a file."""
_ALWAYS = ("--yes", "--no-wait-for-capacity")
"""Flags without which a verb asks for confirmation or waits."""
_ASKING_NOBODY = ("--client",)
"""Flags with which a verb that queries a cluster queries none."""
_NOBODY = "none"
"""A name that nothing has."""

Arguments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program besides `kubectl vgpu` that reads a cluster.

    Attributes:
        called: The beginning of its lines.
        module: The module that runs it.
        forms: The arguments, in every form that makes a different query.
    """

    called: str
    module: str
    forms: tuple[Arguments, ...] = ((),)

    def main(self, arguments: Arguments) -> int:
        """Run the program in this process."""
        code: int = importlib.import_module(self.module).main(arguments)
        return code


PROGRAMS: Mapping[str, Program] = {
    "kubectl-inspect-cgpu": Program("kubectl inspect cgpu", "vgpu_operator.cli.inspect_cgpu"),
}
SERVICES: Mapping[str, Program] = {
    "vgpu-operator": Program("vgpu-operator", "vgpu_operator"),
    "vgpu-webhook": Program(
        "vgpu-webhook", "vgpu_operator.admission", (("--webhook-cert=c", "--webhook-key=k"),)
    ),
    "vgpu-web": Program("vgpu-web", "vgpu_operator.web"),
    "vgpu-nodeagent": Program(
        "vgpu-nodeagent", "vgpu_nodeagent", (("--node-name=n", f"--library={__file__}"),)
    ),
}
"""The programs that run on, and ask again where a server is away."""
COMPLETION = "kubectl_complete-vgpu"
"""Answers a shell, which has no use for errors."""


def scripts() -> frozenset[str]:
    """Return the programs of the package."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    return frozenset(project["project"]["scripts"])


def asking_besides() -> list[tuple[str, Arguments]]:
    """Return each of `PROGRAMS`, in each form."""
    return [(script, form) for script, program in PROGRAMS.items() for form in program.forms]


def asking_a_cluster() -> Mapping[str, argparse.ArgumentParser]:
    """Return the verbs that accept `--kubeconfig`, with their parsers."""
    return {name: verb for name, verb in _verbs().items() if _knows(verb, "--kubeconfig")}


def on_paper() -> frozenset[str]:
    """Return the verbs that query no cluster."""
    return frozenset(_verbs()) - frozenset(asking_a_cluster())


def invocations() -> list[Arguments]:
    """Return each verb with its required arguments, each choice, and a name if it takes one."""
    return [
        (name, *words) for name, verb in asking_a_cluster().items() for words in _required(verb)
    ]


def with_each_flag() -> list[Arguments]:
    """Return the same arguments with each flag of the verb in turn."""
    return [
        (name, *words, action.option_strings[-1])
        for name, verb in asking_a_cluster().items()
        for words in _required(verb)
        for action in verb._actions
        if action.nargs == 0
        and action.dest != "help"
        and not {*action.option_strings} & {*words, *_ASKING_NOBODY}
    ]


def with_a_file(arguments: Arguments, folder: Path) -> Arguments:
    """Return the arguments with the path of a file that has a pod in it."""
    file = folder / "pod.yaml"
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    file.write_text(yaml.safe_dump(a_pod("what-if", a_container(limits=limits))))
    return tuple(str(file) if word == FILE else word for word in arguments)


def _verbs() -> Mapping[str, argparse.ArgumentParser]:
    (verbs,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(verbs.choices)


def _knows(verb: argparse.ArgumentParser, option: str) -> bool:
    return option in verb._option_string_actions


def _required(verb: argparse.ArgumentParser) -> Iterator[Arguments]:
    """Return the required arguments, in every form that makes a different query."""
    options = [word for word in _ALWAYS if _knows(verb, word)]
    for action in verb._actions:
        if action.option_strings and action.required:
            options += [action.option_strings[-1], _NOBODY]
        elif "--memory" in action.option_strings:
            options += ["--memory", "1Gi"]
        elif "--file" in action.option_strings and not verb.prog.endswith(_BY_FILE):
            options += ["--file", FILE]
    positional: list[Arguments] = [()]
    for action in verb._actions:
        if action.option_strings:
            continue
        words = tuple(map(str, action.choices)) if action.choices else (_NOBODY,)
        said = [(*before, word) for before in positional for word in words]
        positional = [*(positional if action.nargs in ("*", "?") else []), *said]
    yield from ((*words, *options) for words in positional)
