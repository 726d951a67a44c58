"""A contract of import-linter: a package imports what its list allows, and nothing else.

A list of forbidden imports would let through everything that it does not name, such as `random`,
`os` or `socket`. So a package that must be pure lists the imports that it needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowList(Contract):
    """The modules that each room may import; none of them reads a clock.

    Options:
        modules: The room: modules, or packages with all that is in them.
        allowed: Packages with all that is in them, or modules.
        except_modules: Modules of the room that are exempt, such as an entry point.
    """

    type_name = "allow_list"

    modules = fields.ListField(subfield=fields.StringField())
    allowed = fields.SetField(subfield=fields.StringField())
    except_modules = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """See `Contract`."""
        allowed = {*self.allowed, "__future__"}  # type: ignore[misc]
        illegal: list[str] = []
        for module in sorted(self._room(graph)):
            imported = graph.find_modules_directly_imported_by(module)
            illegal += [
                f"{module} -> {name}"
                for name in sorted(imported)
                if not any(name == of or name.startswith(f"{of}.") for of in allowed)
            ]
            illegal += [f"{module} -> {call}()" for call in _clocks(module)]
        return ContractCheck(kept=not illegal, metadata={"illegal": illegal})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """See `Contract`."""
        for line in check.metadata["illegal"]:
            output.print_error(f"{line}: not on the list of what this room may use")

    def _room(self, graph: ImportGraph) -> set[str]:
        named: list[str] = self.modules  # type: ignore[assignment]
        unknown = [module for module in named if module not in graph.modules]
        if unknown:
            raise ValueError(f"{self.name}: there is no module {', '.join(unknown)}")
        room = {inner for module in named for inner in (module, *graph.find_descendants(module))}
        exempt: Any = self.except_modules
        return room - exempt


def _clocks(module: str) -> Iterator[str]:
    """Yield the calls of a module that read the time of day, which no import reveals."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if isinstance(node.func.value, ast.Name) and (
            (node.func.value.id, node.func.attr)
            in {
                ("datetime", "now"),
                ("datetime", "utcnow"),
                ("datetime", "today"),
                ("date", "today"),
            }
        ):
            yield f"{node.func.value.id}.{node.func.attr}"
