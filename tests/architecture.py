"""The house rules as functions: each takes a root folder and returns its violations, one line each."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("kernels", "db", "alembic", "selector", "service")
MODULE_OF = {
    "kernels": "kernel_selector.kernels",
    "db": "kernel_selector.db",
    "alembic": "kernel_selector.migrations",
    "service": "kernel_selector.service",
    "selector": "selector",
}
MAY_IMPORT = {  # of ours, besides itself
    "kernels": (),
    "db": ("kernel_selector.kernels.contract",),
    "alembic": ("kernel_selector.db",),
    "selector": ("kernel_selector.kernels", "kernel_selector.db"),
    "service": (
        "selector",
        "kernel_selector.db",
        "kernel_selector.kernels.contract",
        "kernel_selector.kernels.registry",
    ),
}
PACKAGES = {  # of selector/: which others each may import; api.py and the package itself all of them
    "errors": (),
    "text": ("errors",),
    "workloads": ("errors",),
    "cost_model": ("workloads", "errors"),
    "selection": ("cost_model", "workloads", "text", "errors"),
    "nn": ("selection", "errors"),
    "training": ("selection", "cost_model", "workloads", "text", "errors"),
    "planning": ("selection", "cost_model", "workloads", "text", "errors"),
    "exchange": ("selection", "workloads", "errors"),
    "models": ("nn", "planning", "selection", "cost_model", "workloads", "text", "errors"),
    "profiling": ("exchange", "training", "selection", "cost_model", "workloads", "text", "errors"),
}
KERNELS_MAY_IMPORT = {"torch", "triton", "cuda", *sys.stdlib_module_names}
HOMES = {  # libraries that belong to a layer
    "sqlalchemy": {"db", "alembic"},
    "alembic": {"db", "alembic"},
    "sklearn": {"selector"},
    "ray": {"service"},
    "submitit": {"service"},
    "fastapi": {"service"},
    "pydantic": {"service"},
    "pydantic_settings": {"service"},
    "prometheus_client": {"service"},
    "starlette": {"service"},
    "jinja2": {"service"},
    "typer": {"service"},
    "rich": {"service"},
    "uvicorn": {"service"},
}
DOCUMENTED = ("benchmarks", "db", "kernels", "selector", "service")  # whose docstrings begin with a noun
FOR_USERS = (  # docstrings that the OpenAPI document or a command's help shows
    "service/cli/application.py",
    "service/routes",
    "service/schemas",
)
NOUNLESS = {  # first words of a docstring: question words, pronouns, and prepositions in the place of a noun
    *("what", "how", "who", "whose", "whoever", "which", "where", "when", "why", "whether"),
    *("it", "its", "they", "their", "them", "this", "these", "that", "those", "you", "we", "our", "ours"),
    *("of", "by", "from", "so", "as", "everything", "something", "nothing", "afterwards", "said"),
}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_KERNEL_LINES, MAX_PARAMETERS = 500, 60, 120, 7
MAX_ENTRIES = {"selector": 14}  # of a folder; of all others
MOST_ENTRIES = 25
MAX_TRACKED_BYTES = 40 * 2**20

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One imported name, resolved to an absolute module path."""

    where: str  # file:line
    folder: str
    module: str  # the importing module
    target: str  # the imported module, or module.name
    relative: bool


def python_files(root: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    """Each Python file below the folders, with its path in words."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, path.relative_to(root).as_posix()


def module_name(root: Path, path: Path) -> str:
    """The name that a file is imported by."""
    folder, *parts = path.relative_to(root).with_suffix("").parts
    names = [MODULE_OF.get(folder, folder), *parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


@cache
def _parsed(source: str) -> ast.Module:
    """The syntax tree of a source, which several rules look at."""
    return ast.parse(source)


def imports(root: Path) -> list[Import]:
    """Every import statement of our five folders."""
    return [
        found
        for path, name in python_files(root, *FOLDERS)
        for found in _imports_of(path.read_text(), path=path, root=root, name=name)
    ]


@cache
def _imports_of(source: str, *, path: Path, root: Path, name: str) -> list[Import]:
    """The imports of a file, for which several rules ask."""
    found = []
    module, folder = module_name(root, path), name.split("/")[0]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Import):
            targets, level = [alias.name for alias in node.names], 0
        elif isinstance(node, ast.ImportFrom):
            level = node.level
            base = package[: len(package) - level + 1] if level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            found.append(Import(f"{name}:{node.lineno}", folder, module, target, level > 0))
    return found


def _within(target: str, prefix: str) -> bool:
    return target == prefix or target.startswith(prefix + ".")


def layers(root: Path) -> list[str]:
    """Imports of ours follow the arrows: service -> selector -> {kernels, db}, and service, alembic -> db."""
    return [
        f"{found.where} {found.folder} may not import {found.target}"
        for found in imports(root)
        if _within(found.target, "selector") or found.target.startswith("kernel_selector.")
        if not any(
            _within(found.target, allowed) for allowed in (MODULE_OF[found.folder], *MAY_IMPORT[found.folder])
        )
    ]


def packages(root: Path) -> list[str]:
    """Packages of selector/ import those below them alone, in functions and for type checkers too."""
    return [
        f"{found.where} {package} may not import {other}"
        for found in imports(root)
        if found.folder == "selector" and _within(found.target, "selector")
        if (package := _package(found.module)) not in ("api", "selector")
        if (other := _package(found.target)) != package and other not in PACKAGES.get(package, ())
    ]


def _package(module: str) -> str:
    """The package of selector/ that a module belongs to."""
    return [*module.split("."), "selector"][1]


def self_contained_kernels(root: Path) -> list[str]:
    """kernels/ imports itself relatively, and else torch, triton, cuda and the standard library."""
    return [
        f"{found.where} kernels may not import {found.target}"
        for found in imports(root)
        if found.folder == "kernels" and not found.relative
        if found.target.split(".")[0] not in KERNELS_MAY_IMPORT
    ]


def libraries(root: Path) -> list[str]:
    """A layer's library is used in that layer alone."""
    return [
        f"{found.where} {found.target} belongs to {', '.join(sorted(HOMES[library]))}"
        for found in imports(root)
        if not found.relative and (library := found.target.split(".")[0]) in HOMES
        if found.folder not in HOMES[library]
    ]


def bare_names(root: Path) -> list[str]:
    """`kernels` is Hugging Face's name; ours is kernel_selector.kernels. The same for db and service."""
    violations = []
    for path, name in python_files(root, *FOLDERS, "benchmarks", "scripts", "tests"):
        for found in _imports_of(path.read_text(), path=path, root=root, name=name):
            if not found.relative and found.target.split(".")[0] in {"kernels", "db", "service"}:
                violations.append(f"{found.where} imports {found.target} by its bare name")
    return violations


def operators_apart(root: Path) -> list[str]:
    """No file outside an operator's folder imports it: other operators do not, nor what several share."""
    names = {path.parent.name for path in (root / "kernels/operators").glob("*/reference.py")}
    home = f"{MODULE_OF['kernels']}.operators"
    own = len(home.split("."))
    return [
        f"{found.where} imports operator {other}"
        for found in imports(root)
        if found.folder == "kernels" and _within(found.target, home)
        if (other := [*found.target.split("."), ""][own]) in names - {[*found.module.split("."), ""][own]}
    ]


def cycles(root: Path) -> list[str]:
    """No circle of imports, those in functions and for type checkers included."""
    modules = {module_name(root, path) for path, _ in python_files(root, *FOLDERS)}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in imports(root):
        parent = found.target.rpartition(".")[0]
        target = found.target if found.target in modules else parent
        if target in modules and target != found.module:
            graph[found.module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["circle " + " -> ".join(error.args[1])]
    return []


def shadowing(root: Path) -> list[str]:
    """alembic/__init__.py would hide Alembic, and tests/kernels/__init__.py our kernels."""
    paths = [root / "alembic/__init__.py", *(root / "tests").rglob("__init__.py")]
    return [f"{path.relative_to(root)} must not exist" for path in paths if path.exists()]


def file_sizes(root: Path) -> list[str]:
    """No file is longer than one can read in a sitting."""
    return [
        f"{name} has {lines} lines, at most {MAX_FILE_LINES}"
        for path, name in python_files(root, *FOLDERS, "benchmarks", "scripts", "tests")
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]


def folder_sizes(root: Path) -> list[str]:
    """A folder has no more entries than one can take in at a glance."""
    violations = []
    for top in ("kernels", "db", "selector", "service", "benchmarks"):
        for folder in (root / top, *(root / top).rglob("*")):
            name = str(folder.relative_to(root))
            if not folder.is_dir() or "__pycache__" in name or name.startswith("benchmarks/results"):
                continue
            count = sum(entry.name != "__pycache__" for entry in folder.iterdir())
            most = MAX_ENTRIES.get(name, MOST_ENTRIES)
            if count > most:
                violations.append(f"{name} has {count} entries, at most {most}")
    return violations


def tracked_size(sizes: Mapping[str, int]) -> list[str]:
    """All tracked files, of which these are the bytes, travel to the machines that measure."""
    total = sum(sizes.values())
    if total < MAX_TRACKED_BYTES:
        return []
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:5]
    return [
        f"tracked files take {total / 2**20:.1f} MiB, less than {MAX_TRACKED_BYTES >> 20} are asked. The "
        f"largest: {', '.join(f'{name} ({sizes[name] / 2**20:.1f})' for name in largest)}. Let sweeps that "
        "the shipped database holds leave benchmarks/results/ (scripts/release/ship.py says which)"
    ]


def function_sizes(root: Path) -> list[str]:
    """Functions stay short and take few parameters; GPU kernels may be longer and take what they need."""
    violations = []
    for path, name in python_files(root, *FOLDERS, "benchmarks", "scripts", "tests"):
        for node in ast.walk(_parsed(path.read_text())):
            if isinstance(node, Function):
                where = f"{name}:{node.lineno} {node.name}"
                violations += [f"{where} {problem}" for problem in _function_problems(node)]
    return violations


def docstrings(root: Path) -> list[str]:
    """Public docstrings begin with a noun or a verb: no question word, pronoun or preposition.

    A function that returns a bool may begin with "Whether".
    """
    violations = []
    for path, name in python_files(root, *FOLDERS, "benchmarks"):
        places = {name, *(folder.as_posix() for folder in Path(name).parents)}
        if places & {*DOCUMENTED} and not places & {*FOR_USERS}:
            found = _nounless(path.read_text())
            violations += [f"{name}:{line} begins with {word!r}" for line, word in found]
    return violations


def _nounless(source: str) -> Iterator[tuple[int, str]]:
    tree = _parsed(source)
    public = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
    ]
    for node in (tree, *public):
        word = (ast.get_docstring(node) or "").partition(" ")[0].strip(".,:;")
        yes_or_no = isinstance(node, Function) and node.returns and ast.unparse(node.returns) == "bool"
        if word.lower() in NOUNLESS and not (yes_or_no and word == "Whether"):
            yield getattr(node, "lineno", 1), word


def _function_problems(node: Function) -> Iterator[str]:
    kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    # the signature of a typer command declares the options and their help: its body counts, not its length
    command = any(re.search(r"typer\.|\w+Option\b", ast.unparse(argument)) for argument in arguments)
    first = node.body[0].lineno if command else node.lineno
    lines = node.end_lineno - first + 1  # type: ignore[operator]
    if ast.get_docstring(node):
        lines -= node.body[0].end_lineno - node.body[0].lineno + 1  # type: ignore[operator]
    limit = MAX_KERNEL_LINES if kernel else MAX_FUNCTION_LINES
    if lines > limit:
        yield f"has {lines} lines, at most {limit}"
    parameters = [argument for argument in arguments if argument.arg not in {"self", "cls", "ctx"}]
    if len(parameters) > MAX_PARAMETERS and not kernel and not command:
        yield f"has {len(parameters)} parameters, at most {MAX_PARAMETERS}"


def public_names(root: Path) -> list[str]:
    """`__all__` of a package is sorted: constants, then classes, then functions."""
    violations = []
    for path, name in python_files(root, *FOLDERS):
        for node in _parsed(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                if names != sorted(set(names), key=_rank):
                    violations.append(f"{name}:{node.lineno} __all__ is not sorted, or names something twice")
    return violations


def _rank(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


POISON = """
import importlib, subprocess, sys
import torch
def refuse(*args, **kwargs):
    raise RuntimeError("asks for a device, or starts a program, at import")
for name in ("_lazy_init", "is_available", "device_count", "current_device", "get_device_properties",
             "get_device_capability", "get_device_name", "mem_get_info", "init"):
    setattr(torch.cuda, name, refuse)
subprocess.Popen.__init__ = refuse
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except Exception as error:
        print(f"{module}: {type(error).__name__}: {error}")
"""


def quiet_imports(root: Path) -> list[str]:
    """Importing any module of ours asks no device and starts no program."""
    modules = [
        module_name(root, path)
        for path, _ in python_files(root, "kernels", "db", "selector", "service")
        if path.name != "__main__.py"
    ]
    command = [sys.executable, "-c", POISON, *modules]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    return run.stdout.splitlines() + ([run.stderr[-2000:]] if run.returncode else [])


RULES: dict[str, Callable[[Path], list[str]]] = {
    rule.__name__: rule
    for rule in (
        layers,
        packages,
        self_contained_kernels,
        libraries,
        bare_names,
        operators_apart,
        cycles,
        shadowing,
        file_sizes,
        folder_sizes,
        function_sizes,
        public_names,
        quiet_imports,
        docstrings,
    )
}
