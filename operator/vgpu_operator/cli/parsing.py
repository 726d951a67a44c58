"""Parses command lines as kubectl does: global flags anywhere, and suggestions for typos.

Every flag of kubectl is honoured or refused with a reason; none is ignored.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

BAD_USAGE = 2
_NAMESPACES = ("-n", "--namespace", "-A", "--all-namespaces")
_BY_CONTEXT = "choose a context of the kubeconfig with --context"
_OF_CREDENTIALS = (
    "--cluster", "--user", "--server", "-s", "--token", "--username", "--password",
    "--certificate-authority", "--client-certificate", "--client-key", "--tls-server-name",
    "--insecure-skip-tls-verify",
)  # fmt: skip
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(_OF_CREDENTIALS, _BY_CONTEXT),
    "--as-user-extra": "use --as, --as-group and --as-uid",
    "--cache-dir": "nothing is cached",
    "--disable-compression": "responses are not compressed",
    "--kuberc": "there are no aliases or defaults for plugins",
    "--log-flush-frequency": "logs are not buffered",
    "--match-server-version": "use kubectl vgpu version",
    "--profile": "there is no profiler",
    "--profile-output": "there is no profiler",
    "--vmodule": "use -v",
    "--warnings-as-errors": "there are no warnings of the API server here",
}
"""Flags of kubectl that no command takes, each with what to do instead or why."""
_WITHOUT_VALUE = (
    "-A", "--all-namespaces", "--insecure-skip-tls-verify", "--disable-compression",
    "--match-server-version", "--warnings-as-errors",
)  # fmt: skip
_HONOURED = (
    "--kubeconfig", "--context", "-n", "--namespace", "-A", "--all-namespaces", "--as",
    "--as-group", "--as-uid", "--request-timeout", "-v", "--v",
)  # fmt: skip
GLOBAL_FLAGS = (*_HONOURED, *REFUSED)


class Parser(argparse.ArgumentParser):
    """An argument parser with kubectl's words for errors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})
        self.spellings: Sequence[str] = ()
        """Further words to suggest for a positional argument."""

    def parsed(self, given: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line. Global flags may also come before the command."""
        words = behind_the_command(sys.argv[1:] if given is None else given)
        found, unknown = self.parse_known_args(words)
        if unknown:
            command = getattr(found, "command", None) or ""
            known = self._flags_of(command)
            why = refusal_of(unknown, command or self.prog, known)
            self._fail(why, f"{self.prog} {command}".strip())
        return found

    def _flags_of(self, command: str) -> Sequence[str]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and command in action.choices:
                return list(action.choices[command]._option_string_actions)
        return ()

    def error(self, message: str) -> NoReturn:
        """Print the error and how to get help, and exit."""
        self._fail(message, self.prog)

    def _fail(self, message: str, program: str) -> NoReturn:
        self.exit(BAD_USAGE, f"error: {message}\nSee '{program} --help' for usage.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        what = "command" if action.dest == "command" else action.dest
        text = f'unknown {what} "{value}"'
        close = similar(str(value), [*choices, *self.spellings])
        if close:
            text += f"; did you mean {' or '.join(close)}?"
        else:
            text += f"; use one of {', '.join(choices)}"
        raise argparse.ArgumentError(None, text)


def behind_the_command(words: Sequence[str]) -> list[str]:
    """Return the words with the global flags that precede the command moved behind it."""
    first = 0
    while first < len(words) and _flag(words[first]) in GLOBAL_FLAGS:
        flag = _flag(words[first])
        has_value_behind = flag not in _WITHOUT_VALUE and words[first] == flag
        first += 2 if has_value_behind else 1
    return [*words[first : first + 1], *words[:first], *words[first + 1 :]]


def refusal_of(unknown: Sequence[str], command: str, known: Sequence[str]) -> str:
    """Return the reason why a command does not take these arguments.

    Args:
        unknown: The arguments.
        command: Its name.
        known: The flags that it takes.
    """
    flag = next((_flag(word) for word in unknown if word.startswith("-")), "")
    if flag in _NAMESPACES:
        return f"{flag}: {command} is not about one namespace"
    if flag in _HONOURED:
        return f"{flag}: {command} asks no cluster"
    if flag in REFUSED:
        return f"{flag} of kubectl is not supported: {REFUSED[flag]}"
    if flag:
        close = similar(flag, known)
        return f"unknown flag: {flag}" + (f"; did you mean {' or '.join(close)}?" if close else "")
    return f"unrecognized arguments: {' '.join(unknown)}"


def similar(word: str, known: Iterable[str]) -> list[str]:
    """Return at most two known words that a word may be a misspelling of."""
    return difflib.get_close_matches(word.lower(), dict.fromkeys(known), n=2, cutoff=0.65)


def _flag(word: str) -> str:
    """Return the flag of a word: `--context=a` → `--context`, `-nteam` → `-n`."""
    if word.startswith("--"):
        return word.partition("=")[0]
    return word[:2]
