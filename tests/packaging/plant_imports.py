"""Plant a violation of each import contract in a copy of the code and check that it is refused.

A contract that no planted import can break protects nothing. The import bans of `ruff` are tried
too: they see modules inside a library, which import-linter does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("crds", "operator", "nodeagent")
CONTRACTS = "tests/import_contracts.py"
BANS = "ruff"


@dataclass(frozen=True, slots=True)
class Plant:
    """A line that a contract must refuse in a file.

    Attributes:
        contract: The id of the contract that must refuse it, or `BANS`.
        file: The file's path from the root.
        line: The line that is appended to the file.
        refused: The text by which the refusal names it.
    """

    contract: str
    file: str
    line: str
    refused: str


def imported(contract: str, file: str, name: str) -> Plant:
    """Return a plant that imports a module."""
    folder, _, rest = file.partition("/")
    assert folder in FOLDERS, file
    importer = rest.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return Plant(contract, file, f"import {name}  # planted", f"{importer} -> {name}")


_OPERATOR = "operator/vgpu_operator"
_AGENT = "nodeagent/vgpu_nodeagent"
PLANTS = (
    imported("components", "crds/vgpu_api/names.py", "vgpu_client.api"),
    imported("components", "crds/vgpu_client/api.py", "vgpu_operator.errors"),
    imported("components", f"{_OPERATOR}/errors.py", "vgpu_nodeagent.errors"),
    imported("components", f"{_AGENT}/errors.py", "vgpu_operator.errors"),
    imported("operator", f"{_OPERATOR}/config.py", "vgpu_operator.dialects"),
    imported("operator", f"{_OPERATOR}/dialects/hami.py", "vgpu_operator.placement.fit_node"),
    imported("operator", f"{_OPERATOR}/vendors/choices.py", "vgpu_operator.placement.columns"),
    imported("operator", f"{_OPERATOR}/ledger/shares.py", "vgpu_operator.admission.rules"),
    imported("operator", f"{_OPERATOR}/admission/quotas.py", "vgpu_operator.engine.state"),
    imported("operator", f"{_OPERATOR}/placement/fit_node.py", "vgpu_operator.ledger.device_table"),
    imported("operator", f"{_OPERATOR}/placement/plan.py", "vgpu_operator.node_filter.node_rules"),
    imported("operator", f"{_OPERATOR}/node_filter/node_rules.py", "vgpu_operator.ledger.ledger"),
    imported("operator", f"{_OPERATOR}/ledger/device_table.py", "vgpu_operator.engine.state"),
    imported("operator", f"{_OPERATOR}/certificates/keeper.py", "vgpu_operator.engine.state"),
    imported("operator", f"{_OPERATOR}/engine/state.py", "vgpu_operator.extender.wire"),
    imported("operator", f"{_OPERATOR}/admission/reviews.py", "vgpu_operator.extender.wire"),
    imported("webhooks", f"{_OPERATOR}/admission/server.py", "vgpu_operator.admission.reviews"),
    imported("webhooks", f"{_OPERATOR}/admission/rules/claims.py", "vgpu_operator.admission.app"),
    imported("operator", f"{_OPERATOR}/extender/wire.py", "vgpu_operator.app"),
    imported(
        "operator", f"{_OPERATOR}/extender/wire.py", "vgpu_operator.controllers.configuration"
    ),
    imported(
        "operator", f"{_OPERATOR}/engine/engine.py", "vgpu_operator.controllers.configuration"
    ),
    imported(
        "controllers",
        f"{_OPERATOR}/controllers/configuration.py",
        "vgpu_operator.controllers.certificates",
    ),
    imported("language", "crds/vgpu_api/v1alpha1/base.py", "time"),
    imported("decisions", f"{_OPERATOR}/dialects/hami.py", "os"),
    imported("decisions", f"{_OPERATOR}/placement/fit_node.py", "random"),
    imported("decisions", f"{_OPERATOR}/placement/plan.py", "vgpu_client.api"),
    imported("decisions", f"{_OPERATOR}/placement/usage_scores.py", "vgpu_operator.metrics"),
    imported("decisions", f"{_OPERATOR}/ledger/ledger.py", "asyncio"),
    imported("decisions", f"{_OPERATOR}/node_filter/volume_binding.py", "asyncio"),
    imported("decisions", f"{_OPERATOR}/demand.py", "uuid"),
    imported("agent", f"{_AGENT}/config.py", "vgpu_nodeagent.errors"),
    imported("agent", f"{_AGENT}/errors.py", "vgpu_nodeagent.discovery.drivers.base"),
    imported("agent", f"{_AGENT}/discovery/health.py", "vgpu_nodeagent.state.slots"),
    imported("agent", f"{_AGENT}/state/slots.py", "vgpu_nodeagent.enforcement.page"),
    imported("agent", f"{_AGENT}/enforcement/page.py", "vgpu_nodeagent.reporting.reports"),
    imported("agent", f"{_AGENT}/enforcement/allocations.py", "vgpu_nodeagent.kubelet.records"),
    imported("agent", f"{_AGENT}/reporting/publisher.py", "vgpu_nodeagent.kubelet.registration"),
    imported("agent", f"{_AGENT}/kubelet/server.py", "vgpu_nodeagent.lifecycle.prestart"),
    imported("agent", f"{_AGENT}/lifecycle/prestart.py", "vgpu_nodeagent.agent"),
    imported("grants", f"{_AGENT}/lifecycle/decisions/release.py", "asyncio"),
    imported(
        "grants", f"{_AGENT}/lifecycle/decisions/start.py", "vgpu_nodeagent.lifecycle.effector"
    ),
    imported("grants", f"{_AGENT}/enforcement/grants.py", "pathlib"),
    imported("kubelet", f"{_AGENT}/kubelet/records.py", "vgpu_nodeagent.enforcement.allocations"),
    imported("admission", f"{_OPERATOR}/admission/rules/claims.py", "subprocess"),
    imported("admission", f"{_OPERATOR}/admission/rules/pod_validation.py", "socket"),
    imported(
        "admission",
        f"{_OPERATOR}/admission/rules/claims.py",
        "vgpu_operator.placement.fit_node",
    ),
    imported("engine", f"{_OPERATOR}/engine/scheduling/queue.py", "asyncio"),
    imported("engine", f"{_OPERATOR}/engine/claims/reconcile.py", "random"),
    imported("engine", f"{_OPERATOR}/engine/state.py", "vgpu_client.api"),
    Plant(
        "engine",
        f"{_OPERATOR}/engine/claims/status.py",
        "NOW = datetime.now(UTC)  # planted",
        "vgpu_operator.engine.claims.status -> datetime.now()",
    ),
    imported("operator", f"{_OPERATOR}/web/mirror.py", "vgpu_operator.cli.listing"),
    imported("operator", f"{_OPERATOR}/admission/app.py", "vgpu_operator.cli.listing"),
    imported("operator", f"{_OPERATOR}/app.py", "vgpu_operator.cli.listing"),
    imported("operator", f"{_OPERATOR}/insight/states.py", "vgpu_operator.cli.listing"),
    imported("insight", f"{_OPERATOR}/insight/explanation.py", "vgpu_client.api"),
    imported("insight", f"{_OPERATOR}/insight/live_cluster.py", "vgpu_operator.engine.informers"),
    imported("simulator", f"{_OPERATOR}/insight/simulate.py", "socket"),
    imported("operator", f"{_OPERATOR}/engine/engine.py", "vgpu_operator.web.views"),
    imported("web", f"{_OPERATOR}/web/views.py", "aiohttp"),
    imported("web", f"{_OPERATOR}/web/what_if.py", "vgpu_client.api"),
    imported("kopf", f"{_OPERATOR}/engine/engine.py", "kopf"),
    imported("kopf", f"{_OPERATOR}/certificates/keeper.py", "kopf"),
    imported("kopf", f"{_OPERATOR}/admission/rules/configuration.py", "kopf"),
    imported("nvml", f"{_AGENT}/discovery/inventory.py", "pynvml"),
    Plant(
        BANS,
        f"{_OPERATOR}/admission/server.py",
        "from kopf._core.engines import admission  # planted",
        "`kopf._core` is banned",
    ),
)


def contracts() -> set[str]:
    """Return the ids of all contracts, or the name if a contract has none and so no plant."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        contract.get("id", contract["name"])
        for contract in project["tool"]["importlinter"]["contracts"]
    }


def copied(to: Path) -> None:
    """Copy the packages that the contracts cover, without compiled files."""
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.yaml", "*.proto")
        shutil.copytree(ROOT / folder, to / folder, ignore=ignored)
    for file in (CONTRACTS, "pyproject.toml"):
        (to / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, to / file)


def refusal(contract: str, plants: Sequence[Plant], scratch: Path) -> str:
    """Return the faults that the contract finds in the copy with its plants; empty if they pass."""
    before = {plant.file: (scratch / plant.file).read_text() for plant in plants}
    for plant in plants:
        with (scratch / plant.file).open("a") as file:
            file.write(f"\n{plant.line}\n")
    try:
        return _checked(contract, [plant.file for plant in plants], scratch)
    finally:
        for name, text in before.items():
            (scratch / name).write_text(text)


def _checked(contract: str, files: Sequence[str], scratch: Path) -> str:
    if contract == BANS:
        command = ["-m", "ruff", "check", "--no-cache", "--select=TID251", *files]
    else:
        program = "from importlinter.cli import lint_imports_command as run; run()"
        command = ["-c", program, "--no-cache", "--no-logo", "--contract", contract]
    # import-linter breaks lines to the width of the terminal.
    there = ":".join(str(scratch / folder) for folder in (*FOLDERS, "tests"))
    environment = {**os.environ, "PYTHONPATH": there, "COLUMNS": "1000"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    """Plant the imports of each contract; return 1 if one passes or a contract has none."""
    found = defaultdict(list)
    for plant in PLANTS:
        found[plant.contract].append(plant)
    missed = sorted(contracts() - set(found))
    failures = [f"no import is planted for the contract {name!r}" for name in missed]
    with tempfile.TemporaryDirectory(prefix="vgpu-contracts-") as folder:
        copied(Path(folder))
        for contract, plants in found.items():
            said = refusal(contract, plants, Path(folder))
            passed = [plant for plant in plants if plant.refused not in said]
            failures += [f"{contract}: {p.line!r} in {p.file} passes\n{said}" for p in passed]
    print("\n".join(failures) or f"{len(PLANTS)} planted imports were refused.")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
