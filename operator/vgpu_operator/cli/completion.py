"""Shell completion: verbs and options from the parser, names from the cluster.

kubectl (1.26 and later) completes a plugin by running `kubectl_complete-vgpu` with the words typed
so far, including an unfinished last word. kubectl expects one candidate per line, and cobra's
directive on the last line. argcomplete's own shell function completes the program `kubectl-vgpu`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.finders import CompletionFinder

from vgpu_api.errors import VgpuError
from vgpu_api.resources import GPU_DEVICES, NAMESPACES, NODES, PODS, VGPU_CLAIMS, Resource
from vgpu_operator.cli.arguments import FORMATS
from vgpu_operator.cli.parsing import behind_the_command

_ANSWER_S = 3.0
"""The time limit for reading names from the cluster; after that a shell would seem to hang."""
_NO_SPACE, _NO_FILES = 2, 4
"""From cobra's ShellCompDirective: add no space after the candidate; offer no file names."""
_NAMESPACED = (PODS, VGPU_CLAIMS)
SUBJECTS: Mapping[str, Mapping[str, Resource]] = {
    "explain": {"pod/": PODS, "claim/": VGPU_CLAIMS},
    "resize": {"pod/": PODS, "claim/": VGPU_CLAIMS},
    "cordon": {"node/": NODES, "device/": GPU_DEVICES},
    "uncordon": {"node/": NODES, "device/": GPU_DEVICES},
    "drain": {"node/": NODES, "device/": GPU_DEVICES},
}
"""The prefixes of object names that these commands accept."""
NAMES: Mapping[str, Resource] = {"namespace": NAMESPACES, "node": NODES}
"""Options whose value is the name of an object."""


class _Finder(CompletionFinder):
    """A CompletionFinder without argcomplete's debug stream, which may reuse file descriptor 9."""

    def _init_debug_stream(self) -> None:
        return


def complete(parser: argparse.ArgumentParser, output: TextIO | None = None) -> None:
    """Print completions for the command line in argcomplete's environment variables.

    Args:
        parser: The parser of the command line.
        output: The stream to print to. None: print for argcomplete's shell function, then exit.
    """
    _Finder()(
        parser,
        always_complete_options=False,
        append_space=False,
        default_completer=_Candidates(),
        output_stream=output,
        exit_method=os._exit if output is None else lambda _: None,
    )


def for_kubectl(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Return the candidates for the last word, and the directive, in kubectl's format."""
    *whole, last = words or [""]
    whole = behind_the_command(whole)
    line = " ".join(["kubectl-vgpu", *map(shlex.quote, whole), last])
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_DFS": "\t",
        # the only shell for which argcomplete does not quote candidates
        "_ARGCOMPLETE_SHELL": "fish",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    output = io.StringIO()
    os.environ |= variables
    try:
        complete(parser, output)
    finally:
        for name in variables:
            del os.environ[name]
    found = [line.removesuffix("\t") for line in output.getvalue().split("\n") if line]
    goes_on = any(line.endswith("/") for line in found)
    return "\n".join([*found, f":{_NO_FILES | (_NO_SPACE if goes_on else 0)}", ""])


def main() -> int:
    """Run `kubectl_complete-vgpu WORD…`."""
    from vgpu_operator.cli.__main__ import parser

    sys.stdout.write(for_kubectl(parser(), sys.argv[1:]))
    return 0


class _Candidates(BaseCompleter):
    """A completer for arguments that have no fixed choices."""

    def __call__(
        self,
        *,
        prefix: str,
        action: argparse.Action,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
    ) -> Iterable[str]:
        """Return matching file names, output formats or object names."""
        command = parsed_args.command
        if action.type is Path:
            found: Iterable[str] = FilesCompleter()(prefix)
            return found
        if action.dest == "output":
            return FORMATS
        if action.dest in NAMES:
            return _existing({"": NAMES[action.dest]}, parsed_args)
        if command == "get" and action.dest == "name":
            from vgpu_operator.cli.listing import KINDS

            kind = KINDS.get(parsed_args.kind)
            return _existing({"": kind} if kind else {}, parsed_args)
        if action.dest == "subject":
            kinds = SUBJECTS[command]
            spelt = {before: kind for before, kind in kinds.items() if prefix.startswith(before)}
            if spelt:
                return _existing(spelt, parsed_args)
            return [*kinds, *_existing({"": next(iter(kinds.values()))}, parsed_args)]
        return []


def _existing(kinds: Mapping[str, Resource], options: argparse.Namespace) -> Iterable[str]:
    """Return object names, prefixed with their kinds; empty if the cluster is unreachable."""
    try:
        return asyncio.run(_names(kinds, options))
    except (VgpuError, TimeoutError, OSError):
        return []


async def _names(kinds: Mapping[str, Resource], options: argparse.Namespace) -> list[str]:
    # Imported only here: completing verbs and options takes half as long without the client.
    from vgpu_operator.cli.access import chosen_namespace, connected

    found: list[str] = []
    # Of an unfinished line argparse has not set the defaults that stand at its end, or has not
    # converted them.
    unset = {"kubeconfig": None, "context": None, "namespace": None, "user": None, "uid": None}
    given = {**unset, "groups": [], **vars(options)}
    given |= {"verbosity": 0, "request_timeout": float("inf")}
    options = argparse.Namespace(**given)
    async with asyncio.timeout(_ANSWER_S), connected(options) as api:
        for before, kind in kinds.items():
            namespace = None
            if kind in _NAMESPACED and not getattr(options, "all_namespaces", False):
                namespace = chosen_namespace(options)
            names = await api.list(
                kind, namespace=namespace, not_older_than="0", each=lambda item: item["metadata"]
            )
            found += [before + metadata["name"] for metadata in names.items]
    return found
