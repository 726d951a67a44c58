"""Runs the commands that change a cluster: print a plan, ask for confirmation, carry it out."""

from __future__ import annotations

import argparse
import asyncio
import select
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from vgpu_client.errors import ClientError
from vgpu_client.printing import printable
from vgpu_operator.cli.access import connected
from vgpu_operator.cli.installed import installed_config
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.migrate import Migration, former_of, is_taken_over
from vgpu_operator.cli.migration_survey import Survey, lines_of, step_of, survey
from vgpu_operator.cli.printing import Printer
from vgpu_operator.cli.release_node import ReleaseNode
from vgpu_operator.cli.uninstall import Uninstall

_DONE, _LEFT, _NOT_BEGUN = 0, 1, 2
_ACTING_AS_THE_OPERATOR = ("release", "migrate")


def run(options: argparse.Namespace) -> int:
    """Run a command.

    Returns:
        0 if everything is done, 1 if something is left, 2 if nothing was started.
    """
    try:
        if options.user and options.command in _ACTING_AS_THE_OPERATOR:
            raise CannotAnswer(f"--as: {options.command} acts as the operator itself")
        return asyncio.run(_COMMANDS[options.command](options))
    except CannotAnswer as error:
        print(f"kubectl vgpu: {printable(str(error))}", file=sys.stderr)
        return _NOT_BEGUN
    except ClientError as error:
        print(f"kubectl vgpu: {printable(str(error))}", file=sys.stderr)
        return _LEFT
    except KeyboardInterrupt:
        print("kubectl vgpu: interrupted; run the command again to continue", file=sys.stderr)
        return _LEFT


async def _uninstall(options: argparse.Namespace) -> int:
    async with connected(options) as api:
        resource = (await installed_config(api)).nvidia.resource_count_name
        work = Uninstall(
            api,
            print,
            resource=resource,
            delete_pods=options.delete_pods,
            wait_for_capacity=not options.no_wait_for_capacity,
        )
        plan = await work.plan()
        status = begin(options, plan.lines(resource), work.obstacles(plan))
        return end(await work.carry_out(plan)) if status is None else status


async def _release(options: argparse.Namespace) -> int:
    async with connected(options) as api:
        work = ReleaseNode(api, print, node=options.node, delete_pods=options.delete_pods)
        plan = await work.plan()
        lines = plan.lines(options.node) or [f"nothing is allocated on node {options.node}"]
        obstacles = [] if options.dry_run else await work.obstacles(plan)
        status = begin(options, lines, obstacles)
        return end(await work.carry_out(plan)) if status is None else status


async def _migrate(options: argparse.Namespace) -> int:
    async with connected(options) as api:
        node = options.node or ""
        found = await survey(api, node=node)
        for line in lines_of(found):
            print(line)
        names, plan = _moves(found, node, undo=options.undo)
        obstacles = () if options.undo else found.obstacles
        if options.dry_run and obstacles:
            _print_obstacles(obstacles)
            return _LEFT
        if not plan and not obstacles:
            print("nothing to do")
            return _DONE
        status = begin(options, plan, obstacles)
        if status is not None:
            return status
        work = Migration(api, Printer(), found.installed, found.configs)
        move = work.give_back if options.undo else work.take_over
        for name in names:
            if left := await move(name):
                return end(left)
        return end(())


def _moves(found: Survey, node: str, *, undo: bool) -> tuple[Sequence[str], Sequence[str]]:
    """Return the nodes to take over or to give back, and the plan."""
    if undo:
        names = [each.metadata.name for each in found.nodes if former_of(each) is not None]
        if node and not names:
            raise CannotAnswer(f"node {node}: it was not taken over from HAMi")
        return names, [f"give node {name} back to HAMi" for name in names]
    names = [each.metadata.name for each in found.nodes if not is_taken_over(each)]
    return names, [step_of(found.judged[name]) for name in names]


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "uninstall": _uninstall,
    "release": _release,
    "migrate": _migrate,
}


def begin(options: argparse.Namespace, plan: Sequence[str], obstacles: Sequence[str]) -> int | None:
    """Print the plan and ask for confirmation. Return None to proceed, else the exit status."""
    for number, line in enumerate(plan, start=1):
        print(f"{number:3}. {line}")
    if options.dry_run:
        _print_obstacles(obstacles)
        return _DONE
    if obstacles:
        print("\n".join(f"kubectl vgpu: {line}" for line in obstacles), file=sys.stderr)
        if any("uses a GPU" in line for line in obstacles):
            print("kubectl vgpu: delete these pods first, or use --delete-pods", file=sys.stderr)
        return _NOT_BEGUN
    if options.yes:
        return None
    if not sys.stdin.isatty():
        print("kubectl vgpu: use --yes to confirm without a terminal", file=sys.stderr)
        return _NOT_BEGUN
    return None if _agreed() else _NOT_BEGUN


def _print_obstacles(obstacles: Sequence[str]) -> None:
    for line in obstacles:
        print(f"Cannot start: {line}")


def _agreed() -> bool:
    # asyncio handles Ctrl-C by cancelling the task, which a blocking prompt never notices, and
    # `input` misses a Ctrl-C between printing the prompt and reading the answer.
    interrupted, interrupt = socket.socketpair()
    with interrupted, interrupt:
        interrupt.setblocking(False)
        wakes = signal.set_wakeup_fd(interrupt.fileno())
        of_asyncio = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            print("Carry this out? [y/N] ", end="", flush=True)
            ready, _, _ = select.select([sys.stdin, interrupted], [], [])
        finally:
            signal.signal(signal.SIGINT, of_asyncio)
            signal.set_wakeup_fd(wakes)
    answer = "" if interrupted in ready else sys.stdin.readline()
    if not answer:
        print()
    return answer.strip().lower() in ("y", "yes")


def end(left: Sequence[str]) -> int:
    """Print the objects that are left, and return the exit status."""
    for line in left:
        print(f"kubectl vgpu: {line}", file=sys.stderr)
    print("done" if not left else f"not done: {len(left)} left; the command may be run again")
    return _LEFT if left else _DONE
