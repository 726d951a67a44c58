"""Runs the commands that read a cluster, and reports errors in one line.

Each command imports what only it needs when it runs: the doctor's and the engine's modules would
more than double the time that `get` takes to start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vgpu_api.errors import VgpuError
from vgpu_api.resources import GPU_DEVICES
from vgpu_client.connection import login
from vgpu_client.errors import Forbidden
from vgpu_client.kubectl import kubectl, sentence
from vgpu_client.printing import printable
from vgpu_operator.cli import listing, rights
from vgpu_operator.cli.access import chosen_namespace, connected, kubectl_flags
from vgpu_operator.cli.printing import Printer, Table, counted

DONE, FOUND, NO_ANSWER = 0, 1, 2
_INTERRUPTED = 130
_REFRESH_S = 3.0
"""Agents do not take samples more often than this."""


def run(options: argparse.Namespace) -> int:
    """Run a command.

    Returns:
        0 on success, 1 if problems were found or work is left, 2 if there is no answer, because the
        object does not exist, or the cluster is unreachable or refuses the request.
    """
    try:
        return asyncio.run(_COMMANDS[options.command](options))
    except VgpuError as error:
        print(f"kubectl vgpu: {printable(str(error))}", file=sys.stderr)
        return NO_ANSWER
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python prints an error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _INTERRUPTED


async def _get(options: argparse.Namespace) -> int:
    namespace = _namespace_of_kind(options)
    query = listing.GetQuery(
        kind=options.kind,
        names=tuple(options.name),
        namespace=namespace,
        selector=options.selector,
        output=options.output or "",
        watch=options.watch,
        kubectl=("kubectl", *kubectl_flags(options)),
    )
    async with connected(options) as api:
        try:
            await listing.get(query, api, Printer())
        except Forbidden as error:
            instead = _instead_of(query)
            if not instead:
                raise
            raise rights.lacking(error, instead) from error
    return DONE


def _instead_of(query: listing.GetQuery) -> str:
    """Return what a user may use who may not list the objects; empty if there is nothing."""
    if query.kind == "nodes":
        return rights.INSTEAD_OF_NODES
    if query.kind == "devices":
        return rights.INSTEAD_OF_DEVICES
    return rights.INSTEAD_OF_ALL_NAMESPACES if query.namespace is None else ""


def _namespace_of_kind(options: argparse.Namespace) -> str | None:
    """Return the namespace to show; None: all, or the kind has none."""
    if not listing.KINDS[options.kind].namespaced:
        if options.namespace:
            raise listing.CannotAnswer(f"--namespace: {options.kind} have no namespace")
        return None
    return None if options.all_namespaces else chosen_namespace(options)


async def _explain(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import explain

    namespace = chosen_namespace(options)
    async with connected(options) as api:
        said = await explain.explain(api, options.subject, namespace, now=_now())
    explain.show(said, Printer(), options.output)
    return DONE


async def _top(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import top
    from vgpu_operator.cli.agents import ask

    namespace = _namespace_of_kind(options)
    query = top.TopQuery(
        options.kind,
        namespace,
        options.node,
        options.sort_by,
        is_whole=options.output == "wide",
    )
    devices: dict[str, Mapping[str, Any]] = {}
    async with connected(options) as api:
        await rights.require_agents(api)
        if query.kind == "devices":
            # Agents report usage by UUID; models and sizes are in the GPUDevices.
            listed = (await listing.listed(api, GPU_DEVICES)).items
            devices = {(each.get("status") or {}).get("uuid", ""): each for each in listed}
    run = kubectl(kubectl_flags(options))

    def once() -> tuple[Table, list[str]]:
        answers = ask(run, "usage", node=options.node)
        missing = [f"node {name}: not asked: {why}" for name, why in answers.errors.items()]
        return top.table(query, answers, devices), missing

    await top.show(query, once, Printer(), every_s=None if options.once else _REFRESH_S)
    return DONE


async def _resize(options: argparse.Namespace) -> int:
    from vgpu_client.clock import Clock
    from vgpu_operator.cli.resize import NewSize, resize

    size = NewSize(options.memory, options.memory_percent, options.cores)
    if size == NewSize():
        raise listing.CannotAnswer("resize: use --memory, --memory-percent or --cores")
    if size.memory is not None and size.memory_percent is not None:
        raise listing.CannotAnswer("resize: use --memory or --memory-percent, not both")
    namespace = chosen_namespace(options)
    async with connected(options) as api:
        result = await resize(
            api,
            options.subject,
            namespace,
            size,
            container=options.container,
            wait_s=options.timeout,
            clock=Clock(),
        )
    Printer().paragraph(result.text)
    return DONE if result.is_in_force else FOUND


async def _cordon(options: argparse.Namespace) -> int:
    from vgpu_operator.cli.drain import Drain

    printer = Printer()
    async with connected(options) as api:
        work = Drain(api, options.subject, printer.line)
        is_cordon = options.command == "cordon"
        changed = await (work.cordon() if is_cordon else work.uncordon())
    if not changed:
        printer.line("already cordoned" if is_cordon else "nothing is cordoned")
    return DONE


async def _drain(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import drain
    from vgpu_operator.cli.live import begin, end

    printer = Printer()
    async with connected(options) as api:
        work = drain.Drain(api, options.subject, printer.line)
        if options.undo:
            if not await work.uncordon():
                printer.line("nothing is cordoned")
            return DONE
        plan = await work.plan()
        status = begin(options, plan.lines(), ())
        if status is not None:
            return status
        progress = counted(printer, "claims")
        left = await work.carry_out(plan, limit_s=options.timeout, progress=progress)
    return end(left)


async def _doctor(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import doctor

    async with connected(options) as api:
        found = doctor.findings(await doctor.read(api))
    printer = Printer()
    shown = [each for each in found if options.all or each.level != "ok"]
    if options.output == "json":
        printer.out.write(json.dumps([asdict(each) for each in shown], indent=2) + "\n")
    else:
        for each in shown:
            printer.paragraph(f"{each.level}: {each.check}: {each.message}")
            if each.remedy:
                printer.paragraph(each.remedy, by=4)
        if not shown:
            printer.line(f"{len(found)} checks, and nothing found")
    return FOUND if any(each.level == "error" for each in found) else DONE


async def _audit(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import audit
    from vgpu_operator.cli.agents import ask
    from vgpu_operator.cli.audit_resource_claims import compare

    run = kubectl(kubectl_flags(options))
    # Run in a thread, so that Ctrl-C does not wait for slow agents.
    found = audit.by_node(await asyncio.to_thread(ask, run, "audit", node=options.node))
    try:
        async with connected(options) as api:
            of_resource_claims = await compare(api, node=options.node)
    except VgpuError as error:
        of_resource_claims = {"error": str(error)}
    if of_resource_claims is not None:
        found.append(of_resource_claims)
    printer = Printer()
    if options.output == "json":
        printer.out.write(json.dumps(found, indent=2) + "\n")
    else:
        for each in found:
            audit.show(each, printer)
    if audit.has_error(found):
        return NO_ANSWER
    return FOUND if audit.has_findings(found) else DONE


async def _support_bundle(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import support

    now, printer = _now(), Printer()
    path = options.file or Path(f"vgpu-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    async with connected(options) as api:
        files = await support.collect(
            api,
            support.kubectl_logs(("kubectl", *kubectl_flags(options))),
            say=printer.line,
        )
    try:
        support.write(path, files, now=now)
    except OSError as error:
        raise listing.CannotAnswer(f"{path}: {error.strerror or error}") from error
    printer.line(f"wrote {path}: {len(files)} files")
    return DONE


async def _version(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import version

    versions = {"client": version.client_version()}
    if not options.client:
        async with connected(options) as api:
            versions["operator"] = await version.operator_version(api)
    printer = Printer()
    if options.output == "json":
        printer.out.write(json.dumps(versions, indent=2) + "\n")
        return DONE
    for name, value in versions.items():
        printer.line(f"{name.capitalize()} version: {value}")
    return DONE


async def _web(options: argparse.Namespace) -> int:
    from vgpu_operator.cli import web_page

    token = await _token(options)
    async with connected(options) as api:
        await web_page.check_installed(api)
    await web_page.show(
        token,
        kubectl_flags(options),
        Printer(),
        port=options.port,
        opens_browser=not options.no_browser,
    )
    return DONE


async def _token(options: argparse.Namespace) -> str:
    """Return the token to log in with: of the service account, or of the kubeconfig."""
    if options.service_account:
        words = ["create", "token", options.service_account, "-n", chosen_namespace(options)]
        run = kubectl(kubectl_flags(options))
        try:
            return (await asyncio.to_thread(run, words)).strip()
        except (subprocess.SubprocessError, OSError) as error:
            raise listing.CannotAnswer(sentence(error)) from error
    if options.namespace:
        raise listing.CannotAnswer("--namespace: use it with --service-account")
    if options.user:
        raise listing.CannotAnswer("--as: the page takes tokens; use --service-account")
    connection = await login(options.kubeconfig, options.context)
    kind, _, token = (
        (await connection.credentials.headers()).get("Authorization", "").partition(" ")
    )
    if kind != "Bearer":
        raise listing.CannotAnswer(
            "the kubeconfig has no token, and the page takes no certificates; use "
            "--service-account NAME -n NAMESPACE"
        )
    return token


async def _import(options: argparse.Namespace) -> int:
    from vgpu_operator.cli.hami_installation import configuration_of, read_installation
    from vgpu_operator.cli.importing import as_document

    async with connected(options) as api:
        installed = await read_installation(api)
    if not installed.is_there and not installed.config_maps:
        raise listing.CannotAnswer(
            "HAMi is not installed: no object of its chart was found; use -f to read files"
        )
    found = configuration_of(installed)
    if found.errors:
        raise listing.CannotAnswer("; ".join(found.errors))
    Printer().out.write(as_document(found.config, found.left))
    return DONE


def _now() -> datetime:
    return datetime.now(UTC)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "get": _get,
    "explain": _explain,
    "top": _top,
    "resize": _resize,
    "cordon": _cordon,
    "uncordon": _cordon,
    "drain": _drain,
    "doctor": _doctor,
    "audit": _audit,
    "support-bundle": _support_bundle,
    "version": _version,
    "web": _web,
    "import": _import,
}
