"""Check the commands that a page shows without running them.

It knows targets of make, arguments of our own programs, verbs and flags of kubectl, files and
workloads. A word in capitals stands for something that the reader fills in.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import yaml

from manual import words
from manual.words import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^ {4}((?:make|kubectl|kubectl-vgpu|bash|docker) [\w-].*)$", re.MULTILINE)
_SPAN = re.compile(r"`((?:make|kubectl[ -]vgpu|vgpu-nodeagent) [^`]+)`")
_OPTION = re.compile(r"`(--[a-z][a-z-]*)(?:=([^`]*))?`")
_PLACEHOLDER = re.compile(r"(?:[A-Z]+[./-]?)+")
_WORKLOAD = re.compile(r"(deployment|daemonset)/([\w-]+)")
_ENDS = frozenset({";", "|", "||", "&&", "&", "(", ")", ">", ">>", "<"})
_BEFORE = frozenset({"do", "then", "else", "while", "if"})
_INSTALLED = ("manifests/base", "manifests/uninstall")
"""Folders of the objects that a command may name: what is installed, and what uninstalls it."""
_MAKEFILES = {".": ROOT / "Makefile", "libvgpu": ROOT / "libvgpu" / "Makefile"}


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, or the blocks without one."""
    return [body for found, body in _FENCE.findall(text) if found == language]


def commands(text: str) -> list[list[str]]:
    """Return every simple command of a page's shell blocks, indented commands and code spans."""
    sources = [*blocks(text, "sh"), *_INDENTED.findall(_FENCE.sub("", text))]
    found = [command for source in sources for command in simple_commands(source)]
    for span in _SPAN.findall(_FENCE.sub("", text)):
        found += simple_commands(span.replace("\n", " ").replace("…", ""))
    return found


def simple_commands(source: str) -> Iterator[list[str]]:
    """Yield the simple commands of a piece of shell as words, without leading assignments."""
    for line in source.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word in _ENDS:
                while command and (command[0] in _BEFORE or re.match(r"[A-Z_]+=", command[0])):
                    del command[0]
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def faults(command: Sequence[str]) -> list[str]:
    """Return the faults of a simple command; none if the command is not known here."""
    match command:
        case ["make", *rest]:
            found = _of_make(rest)
        case ["kubectl", "vgpu", *rest]:
            found = _of_ours(["kubectl", "vgpu"], rest)
        case ["kubectl-vgpu", *rest]:
            found = _of_ours(["kubectl", "vgpu"], rest)
        case ["vgpu-nodeagent", *rest]:
            found = _of_ours(["vgpu-nodeagent"], rest)
        case ["kubectl", *rest]:
            found = _of_kubectl(rest)
        case ["bash" | "source", script, *_]:
            found = _of_file(script)
        case _:
            found = []
    return [f"`{' '.join(command)}`: {fault}" for fault in found]


def unknown_options(text: str) -> list[str]:
    """Return the options in code spans that none of our programs takes, or not with that value."""
    return [
        f"`{name}{'=' + value if value else ''}`: no program of ours takes it"
        for name, value in _OPTION.findall(text)
        if not _takes(name, value)
    ]


def _takes(name: str, value: str) -> bool:
    for program in (*words.services(), *words.commands()):
        for action in program.parser._actions:
            if name in action.option_strings:
                given = not value or _PLACEHOLDER.fullmatch(value) is not None
                if given or not action.choices or value in map(str, action.choices):
                    return True
    return False


def _of_make(arguments: Sequence[str]) -> list[str]:
    folder, rest = ".", list(arguments)
    if rest[:1] == ["-C"]:
        folder, rest = rest[1], rest[2:]
    file = _MAKEFILES.get(folder)
    if file is None:
        return [f"no Makefile of ours in {folder}"]
    targets = set(re.findall(r"^([\w-]+)(?: [\w -]+)?:(?!=)", file.read_text(), re.MULTILINE))
    for line in re.findall(r"^([\w -]+):(?!=)", file.read_text(), re.MULTILINE):
        targets |= set(line.split())
    named = [word for word in rest if "=" not in word and re.fullmatch(r"[a-z][\w-]*", word)]
    return [f"no target {word}" for word in named if word not in targets]


def _of_ours(called: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Parse the arguments with the program's own parser."""
    programs = {program.called: program for program in (*words.services(), *words.commands())}
    name, rest = " ".join(called), list(arguments)
    if rest and f"{name} {rest[0]}" in programs:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if rest[:1] == ["VERB"]:
        return []
    if name not in programs:
        return [f"no such command: {name} {' '.join(rest[:1])}"]
    options = {text for action in programs[name].parser._actions for text in action.option_strings}
    if all(word in options for word in rest if word.startswith("-")) and _is_partial(rest):
        return []
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            programs[name].parser.parse_args(rest)
    except SystemExit as ended:
        if ended.code:
            return complaint.getvalue().rpartition("error: ")[2].splitlines()[:1]
    return []


def _is_partial(arguments: Sequence[str]) -> bool:
    """Return True if only an option is named, as in a sentence, without its value."""
    return len(arguments) == 1 and arguments[0].startswith("--")


def _of_kubectl(arguments: Sequence[str]) -> list[str]:
    found: list[str] = []
    rest = list(arguments)
    for option, value in itertools.pairwise(rest):
        if option in ("-f", "-k", "--patch-file") and value != "-":
            found += _of_file(value)
        if option in ("-n", "--namespace") and not _is_placeholder(value):
            found += [] if value in _namespaces() else [f"no namespace {value} in manifests/base"]
    for word in rest:
        if (workload := _WORKLOAD.fullmatch(word)) and workload.groups() not in _workloads():
            found.append(f"no {word} in {' or '.join(_INSTALLED)}")
    verb = _verb(rest)
    known = _kubectl_flags(verb)
    if known is None:
        return [*found, f"kubectl has no command {' '.join(verb)}"]
    flags = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [*found, *(f"kubectl {' '.join(verb)} has no flag {f}" for f in flags if f not in known)]


def _verb(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the first word, or the first two for a command that has subcommands."""
    plain = [
        word
        for before, word in zip(["", *arguments], arguments, strict=False)
        if not word.startswith("-") and before not in ("-n", "--namespace")
    ]
    # `kubectl create -f FILE` has no subcommand; `kubectl create clusterrolebinding` has flags of
    # its own.
    creates = plain[:1] == ["create"] and not {"-f", "-k", "--filename"} & {*arguments}
    return tuple(plain[: 2 if creates or plain[:1] in (["rollout"], ["config"], ["auth"]) else 1])


@cache
def _kubectl_flags(verb: tuple[str, ...]) -> frozenset[str] | None:
    """Return the flags of a kubectl command from its help, or None if there is no such command."""
    shown = subprocess.run(
        ["kubectl", *verb, "--help"], capture_output=True, text=True, check=False
    )
    if shown.returncode:
        return None
    general = subprocess.run(["kubectl", "options"], capture_output=True, text=True, check=True)
    text = shown.stdout + general.stdout
    return frozenset(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)(?==|,)", text)) | {"-h", "--help"}


def _of_file(name: str) -> list[str]:
    """Return the file or folder below the root; `.` is the reader's own folder."""
    if name == "." or _is_placeholder(name) or "://" in name:
        return []
    return [] if (ROOT / name).exists() else [f"no file {name}"]


def _is_placeholder(word: str) -> bool:
    """True for words in capitals, a variable, or a file that the reader has."""
    return bool(_PLACEHOLDER.fullmatch(word)) or "$" in word or word in ("pod.yaml", "state.json")


@cache
def _objects() -> tuple[tuple[str, str, str], ...]:
    found = []
    for path in sorted(path for folder in _INSTALLED for path in (ROOT / folder).rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and "metadata" in document:
                metadata = document["metadata"]
                kind = str(document.get("kind", "")).lower()
                found.append((kind, metadata.get("name", ""), metadata.get("namespace", "")))
    return tuple(found)


def _workloads() -> set[tuple[str, ...]]:
    return {(kind, name) for kind, name, _ in _objects()}


def _namespaces() -> set[str]:
    return {name for kind, name, _ in _objects() if kind == "namespace"}


def documents() -> list[Path]:
    """Return every Markdown file of the repository."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in tracked if (ROOT / name).exists()]
