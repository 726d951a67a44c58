"""`make shape`: measure how the code is built, print the figures and fail if one exceeds its bound.

The figures stand for the effort of a reader: the number of modules that one decision passes
through, of functions passed around instead of values, of parameters of a constructor, and of
branches of a function. The bounds are those of docs/architecture.md. A package that does not meet
them yet has a bound of its own, which is only ever lowered.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from replica import Replica

ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "operator" / "vgpu_operator"
ENGINE = OPERATOR / "engine"

PARAMETERS = 6
INIT_LINES = 40
COMPLEXITY = 12

PATHS = {
    "the round that sees a pod": (24, 60),
    "a pod's Filter": (29, 75),
    "its write": (24, 60),
}
"""By step of one pod: the maximum number of modules, and of calls between modules."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Package:
    """A part of the product with bounds of its own.

    Attributes:
        name: Its name in the report.
        folder: Its path from the root.
        without: Folders inside it that are packages of their own.
        callables: The number of parameters and fields that may be functions.
        constructors: The number of constructors that may have more than `PARAMETERS` parameters.
        inits: The number of `__init__` that may be longer than `INIT_LINES`.
        complex: The number of functions that may be above `COMPLEXITY`.
    """

    name: str
    folder: str
    callables: int
    without: tuple[str, ...] = ()
    constructors: int = 0
    inits: int = 0
    complex: int = 0

    def files(self) -> list[Path]:
        """Return the files of the package."""
        others = [ROOT / folder for folder in self.without]
        found = files(ROOT / self.folder)
        return [path for path in found if not any(map(path.is_relative_to, others))]


PACKAGES = (
    Package("engine", "operator/vgpu_operator/engine", callables=12, complex=1),
    Package(
        "operator",
        "operator/vgpu_operator",
        without=("operator/vgpu_operator/engine", "operator/vgpu_operator/cli"),
        callables=42,
        inits=3,
        complex=31,
    ),
    Package("cli", "operator/vgpu_operator/cli", callables=8, complex=9),
    Package("agent", "nodeagent/vgpu_nodeagent", callables=11),
    Package("client", "crds/vgpu_client", callables=12),
    Package("api", "crds/vgpu_api", callables=6, complex=6),
)
"""The bounds by package; one that does not meet docs/architecture.md yet has today's figures."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Attributes:
        name: The thing that is counted, with its unit.
        value: The measured value.
        bound: The largest value that passes.
        found: The places, if the figure is a count of places.
    """

    name: str
    value: float
    bound: float
    found: Sequence[str] = ()

    @property
    def passes(self) -> bool:
        """Return True if the bound holds."""
        return self.value <= self.bound

    def __str__(self) -> str:
        mark = "" if self.passes else "   TOO MUCH"
        return f"{self.name:<58} {self.value:>7.4g}  of at most {self.bound:g}{mark}"


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed module; `name` is for messages."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Source:
        """Return the module in a file."""
        text = path.read_text()
        return cls(str(path.relative_to(ROOT)), text, ast.parse(text))

    @classmethod
    def of(cls, text: str) -> Source:
        """Return a module parsed from text."""
        return cls("text", text, ast.parse(text))


def files(*folders: Path) -> list[Path]:
    """Return the file of every module below the folders, but for generated ones."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [path for path in paths if "_pb2" not in path.name]


# The text of the code.


def callables(modules: Sequence[Source]) -> list[str]:
    """Return the parameters and dataclass fields that are functions, also behind a type alias."""
    aliases = {"Callable"}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assign) and _names(node.value) & {"Callable"}:
                aliases |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and node.value and _names(node.value) & aliases:
                aliases |= {node.target.id} if isinstance(node.target, ast.Name) else set()
    return [
        f"{module.name}:{line} {name}"
        for module in modules
        for name, annotation, line in _annotated(module.tree)
        if _names(annotation) & aliases
    ]


def _annotated(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            for argument in _arguments(node):
                if argument.annotation is not None:
                    yield argument.arg, argument.annotation, argument.lineno
        elif isinstance(node, ast.ClassDef) and _is_dataclass(node):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, item.annotation, item.lineno


def constructors(modules: Sequence[Source]) -> list[str]:
    """Return explicit constructors with more parameters than anyone can keep in mind."""
    return [
        f"{place} has {len(_arguments(method)) - 1}"
        for place, method in _inits(modules)
        if len(_arguments(method)) - 1 > PARAMETERS
    ]


def inits(modules: Sequence[Source]) -> list[str]:
    """Return the constructors that do not fit on a screen."""
    return [
        f"{place} has {len(_lines(method))} lines"
        for place, method in _inits(modules)
        if len(_lines(method)) > INIT_LINES
    ]


def _inits(modules: Sequence[Source]) -> Iterator[tuple[str, Function]]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, Function) and method.name == "__init__":
                        yield f"{module.name}:{method.lineno} {node.name}", method


def wiring(modules: Sequence[Source]) -> Measure:
    """Return the share of wiring: imports, bodies of `__init__`, and their `Args:`."""
    wired = sum(len(_wiring_lines(module)) for module in modules)
    lines = sum(len([x for x in m.text.splitlines() if x.strip()]) for m in modules)
    return Measure("wiring in engine/, % of its lines", 100 * wired / lines, 12)


def _wiring_lines(module: Source) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines |= _lines(node)
        elif isinstance(node, ast.ClassDef):
            inits = [m for m in node.body if isinstance(m, Function) and m.name == "__init__"]
            for method in inits:
                lines |= _lines(method)
            if inits and ast.get_docstring(node):
                lines |= set(_args_section(node.body[0], module.text.splitlines()))
    return lines


def _args_section(docstring: ast.stmt, text: Sequence[str]) -> Iterator[int]:
    inside = False
    for number in sorted(_lines(docstring)):
        line = text[number - 1].strip()
        if line == "Args:":
            inside = True
        elif inside and not line:
            return
        if inside:
            yield number


def complex_functions(modules: Sequence[Source]) -> list[str]:
    """Return the functions with more branches than anyone can keep in mind."""
    return [
        f"{module.name}:{node.lineno} {node.name} has {complexity(node)}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, Function) and complexity(node) > COMPLEXITY
    ]


def complexity(function: Function) -> int:
    """Count the ways through a function, including those inside expressions.

    `ruff` counts branches of statements only, so branches would move into expressions.
    """
    return 1 + sum(_ways(node) for node in ast.walk(function))


def _ways(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.ExceptHandler() | ast.match_case() | ast.Assert():
            return 1
        case ast.For() | ast.AsyncFor() | ast.While():
            return 1 + bool(node.orelse)
        case ast.Try():
            return int(bool(node.orelse))
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
    return 0


def _arguments(function: Function) -> list[ast.arg]:
    every = function.args
    stars = [star for star in (every.vararg, every.kwarg) if star is not None]
    return [*every.posonlyargs, *every.args, *every.kwonlyargs, *stars]


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in _names(decorator) for decorator in node.decorator_list)


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


# The calls at run time.


class Trace:
    """A record of the calls between our modules while it is the profiler.

    Attributes:
        calls: The modules (caller, callee) in the order of the calls, including calls by way of a
            library; the caller is empty if it is not one of our modules.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    @property
    def modules(self) -> set[str]:
        """Return the modules whose functions ran."""
        return {callee for _, callee in self.calls}

    @property
    def hops(self) -> list[str]:
        """Return the calls from one module into another."""
        return [f"{a} → {b}" for a, b in self.calls if a not in ("", b)]

    def parted_at(self, module: str) -> tuple[Trace, Trace]:
        """Return the trace before the first call into a module, and the trace from that call on."""
        at = next(n for n, (_, callee) in enumerate(self.calls) if callee == module)
        before, after = Trace(), Trace()
        before.calls, after.calls = self.calls[:at], self.calls[at:]
        return before, after

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = _ours(frame) if event == "call" else None
        # A reader does not see a comprehension or a class body as a call.
        if module is None or frame.f_code.co_name.startswith("<"):
            return
        caller = frame.f_back
        while caller is not None and _ours(caller) is None:
            caller = caller.f_back
        self.calls.append(((caller and _ours(caller)) or "", module))


def _ours(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith(("vgpu_operator.", "vgpu_api.", "vgpu_client.")) else None


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace the code that runs inside the block."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)


async def one_pod() -> dict[str, Trace]:
    """Trace one pod on one device: the round that sees it, its Filter, and the writes."""
    replica = Replica()
    replica.device()
    await replica.settle()
    pod = replica.pod()
    with traced() as seen:
        replica.submit()
    await replica.settle()
    with traced() as asked:
        replica.offer(pod)
    await replica.settle()
    assert replica.reservation(pod) is not None
    decided, written = asked.parted_at("vgpu_operator.engine.claims.reconcile")
    return dict(zip(PATHS, (seen, decided, written), strict=True))


def paths() -> list[Measure]:
    """Return the measures of how far a reader must go to follow one decision."""
    found = []
    for what, trace in asyncio.run(one_pod()).items():
        modules, (most_modules, most_calls) = sorted(trace.modules), PATHS[what]
        found.append(Measure(f"distinct modules in {what}", len(modules), most_modules, modules))
        found.append(
            Measure(f"calls between modules in {what}", len(trace.hops), most_calls, trace.hops)
        )
    return found


def written(package: Package) -> list[Measure]:
    """Return the measures of one package."""
    modules = [Source.read(path) for path in package.files()]
    counts = (
        ("Callable parameters and fields", package.callables, callables(modules)),
        (
            f"constructors above {PARAMETERS} parameters",
            package.constructors,
            constructors(modules),
        ),
        (f"__init__ above {INIT_LINES} lines", package.inits, inits(modules)),
        (f"functions above complexity {COMPLEXITY}", package.complex, complex_functions(modules)),
    )
    return [
        Measure(f"{package.name}: {what}", len(found), bound, found)
        for what, bound, found in counts
    ]


def shape() -> list[Measure]:
    """Return every measure of the working tree."""
    return [
        *paths(),
        wiring([Source.read(path) for path in files(ENGINE)]),
        *(measure for package in PACKAGES for measure in written(package)),
    ]


def main() -> int:
    """Print the measures and return 1 if one exceeds its bound."""
    measures = shape()
    for measure in measures:
        print(measure)
        if not measure.passes:
            print("".join(f"    {place}\n" for place in measure.found), end="")
    return 0 if all(measure.passes for measure in measures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
