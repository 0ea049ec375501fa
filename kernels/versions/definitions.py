"""Names of a tree of Python files: what each top-level name is bound to, and what a name in a file refers to.

Names lead to definitions of ours, whichever file has them and by whatever way they are imported, or to dotted
names of other packages. Nothing is imported for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SHARED = {"contract", "registry", "versions"}  # what every implementation shares and none computes with
Statement = ast.stmt


class Place(NamedTuple):
    """A definition: the file, and the name at its top level; "" for the file as a whole."""

    file: Path
    name: str = ""


Meaning = Place | str  # a definition of ours, or the dotted name of another package's
Imported = tuple[Path | str, str]  # a folder or module of ours, or another package; and the name in it


class File:
    """The top level of a Python file.

    `bound` has the statements by which each name comes about: its definition, and every statement that is
    no definition and mentions it (`TABLE["x"] = 1`, a loop of `setattr`). `effects` are statements that
    mention no name of the file. `binds_in_expressions` is False where `:=` does not occur.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.root = root
        self.bound: dict[str, list[Statement]] = {}
        self.imported: dict[str, Imported] = {}
        self.effects: list[Statement] = []
        text = path.read_text()
        self.binds_in_expressions = ":=" in text
        others = []
        for node in ast.parse(text, str(path)).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imported.update(imports(node, path))
            elif names := _defined(node):
                for name in names:
                    self.bound.setdefault(name, []).append(node)
            elif not is_ignored(node):
                others.append(node)
        for node in others:
            self._attach(node)

    def _attach(self, node: Statement) -> None:
        mentioned = set()
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                self.imported.update(imports(inner, self.path))
            elif isinstance(inner, ast.Name):
                if isinstance(inner.ctx, ast.Store) or inner.id in self.bound:
                    mentioned.add(inner.id)
            elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                mentioned.add(inner.name)
        for name in sorted(mentioned):
            self.bound.setdefault(name, []).append(node)
        if not mentioned:
            self.effects.append(node)


def imports(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, Imported]]:
    """The names that an import statement of a file binds, and where they come from."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            bound = alias.asname or alias.name.partition(".")[0]
            yield bound, (alias.name if alias.asname else bound, "")
        elif node.level == 0:
            yield alias.asname or alias.name, (node.module or "", alias.name)
        else:
            folder = path.parents[node.level - 1]
            base = folder.joinpath(*node.module.split(".")) if node.module else folder
            yield alias.asname or alias.name, (base, alias.name)


def is_ignored(node: Statement) -> bool:
    """Whether a statement does nothing when a program runs: texts, `pass`, what type checkers alone read."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        test = node.test
        is_main = (
            isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
        )
        return is_main or (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")
    return isinstance(node, ast.Pass)


def _defined(node: Statement) -> list[str]:
    """The names that a definition binds; none for other statements."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets: Iterable[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = [one.id for one in flat if isinstance(one, ast.Name)]
    return names if len(names) == len(flat) else []


class Sources:
    """The files below a folder, read when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[Path, File] = {}
        self._modules: dict[Path, Path | None] = {}

    def file(self, path: Path) -> File:
        """A file's top level. Raises SyntaxError, ValueError and OSError for one that cannot be read."""
        if path not in self._files:
            self._files[path] = File(path, self.root)
        return self._files[path]

    def module(self, base: Path) -> Path | None:
        """The file of a module that is named without its suffix, None where there is none."""
        if base not in self._modules:
            candidates = (base.with_name(base.name + ".py"), base / "__init__.py")
            self._modules[base] = next((one for one in candidates if one.is_file()), None)
        return self._modules[base]

    def meaning(self, path: Path, name: str) -> Meaning | None:
        """The definition or outside name that a file's top-level name refers to; None for builtin ones."""
        file = self.file(path)
        if name in file.bound:
            return Place(path, name)
        return self.origin(file.imported[name]) if name in file.imported else None

    def origin(self, imported: Imported) -> Meaning:
        """The definition or outside name that an import gives."""
        base, name = imported
        if isinstance(base, str):
            return f"{base}.{name}" if name else base
        parts = base.relative_to(self.root).parts
        if (*parts, name)[0] in SHARED:
            return f"{(*parts, name)[0]}:{name}"
        found = self.module(base)
        if found is not None and (meaning := self.meaning(found, name)) is not None:
            return meaning
        inner = self.module(base / name)
        return Place(inner) if inner is not None else f"missing:{name}"

    def attribute(self, module: Path, name: str) -> Meaning | None:
        """The definition or outside name that `module.name` refers to, None where it cannot be told."""
        found = self.meaning(module, name)
        if found is None and module.name == "__init__.py":
            inner = self.module(module.parent / name)
            return None if inner is None else Place(inner)
        return found
