"""Tokens of a definition: equal for sources that differ in form alone, on every version of Python.

Left out are docstrings, comments, annotations (but `tl.constexpr`, which Triton reads), positions, texts of
errors and refusals, and what only describes. Local names count by their order, definitions by what they
contain, other packages' by where they come from. Parameters keep their names, by which callers pass them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .definitions import File, Meaning, Place, Sources, Statement, imports, is_ignored

CUDA_SUFFIXES = (".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include "([\w./]+)"', re.MULTILINE)
C_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', re.DOTALL)
C_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\w+(?:\.\w+)*|<<<|>>>|<<=|>>=|::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|>>|##|\S'
)
C_SIGNS = re.compile(r"[;{}]\s*(//[^\n]*)?$", re.MULTILINE)
DESCRIBING = {"describe", "extra_repr", "__repr__"}
SKIPPED = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx", "lineno", "msg"}
TARGETS = (ast.Tuple, ast.List, ast.Starred)  # expressions in which names are bound
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Tokens = list["str | Place"]


def tokens(sources: Sources, place: Place) -> Tokens:
    """A definition's tokens; what it refers to is in them as places."""
    if place.file.suffix in CUDA_SUFFIXES:
        return _cuda_file(place.file)
    file = sources.file(place.file)
    if not place.name:  # a module as a value: any of its definitions may be asked for by name
        found: Tokens = ["module"]
        for name in sorted(file.bound):
            found += [name, Place(place.file, name)]
        return found
    walk = _Walk(sources, file, place.name)
    for statement in (*file.effects, *file.bound[place.name]):
        walk.top(statement)
    return walk.out


def is_device_code(sources: Sources, place: Place) -> bool:
    """Whether a definition is a CUDA source or a function that Triton compiles."""
    if place.file.suffix in CUDA_SUFFIXES:
        return True
    statements = sources.file(place.file).bound.get(place.name, ()) if place.name else ()
    return any(
        isinstance(one, FUNCTIONS) and any(_of_triton(sources, place.file, by) for by in one.decorator_list)
        for one in statements
    )


def _of_triton(sources: Sources, path: Path, decorator: ast.expr) -> bool:
    inner = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    meaning = sources.meaning(path, inner.id) if isinstance(inner, ast.Name) else None
    return isinstance(meaning, str) and meaning.partition(".")[0] == "triton"


def _cuda_file(path: Path) -> Tokens:
    text = path.read_text()
    included = (path.parent / name for name in INCLUDE.findall(text))
    return [c_text(text), *(Place(file) for file in included if file.is_file())]


def c_text(text: str) -> str:
    """A text in C or CUDA without comments, its tokens parted by one blank; directives stay lines."""
    bare = C_COMMENT.sub(lambda found: found[1] or " ", text.replace("\\\n", " "))
    lines = [" ".join(C_TOKEN.findall(line)) for line in bare.splitlines()]
    return "".join(f"\n{line}\n" if line.startswith("#") else f"{line} " for line in lines if line)


class _Scope:
    """The names of a function, comprehension or class body; None until a local's number is known."""

    def __init__(self, names: dict[str, str | None], *, is_class: bool = False) -> None:
        self.names = names
        self.meanings: dict[str, Meaning] = {}
        self.is_class = is_class


class _Walk:
    """Writes the tokens of the statements that make one definition into `out`."""

    def __init__(self, sources: Sources, file: File, name: str) -> None:
        self.out: Tokens = []
        self._sources, self._file, self._own = sources, file, name
        self._scopes: list[_Scope] = []
        self._locals = 0
        self._refuses = self._returning = False

    def top(self, node: Statement) -> None:
        """A statement of the file's top level; under which name it is known there does not count."""
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._definition(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                flat = target.elts if isinstance(target, ast.Tuple) else [target]
                for one in flat:
                    if isinstance(one, ast.Name):
                        self.out.append("=" if one.id == self._own else "_")
                    else:
                        self.visit(one)
            self.visit(node.value)
        else:
            self.visit(node)

    def visit(self, node: ast.AST) -> None:
        """Any node."""
        special = _SPECIAL.get(type(node))
        if special is not None:
            special(self, node)
        else:
            self._plain(node)

    def _plain(self, node: ast.AST) -> None:
        kind = type(node)
        self.out.append(f"({kind.__name__}")
        for name in _fields(kind):
            value = getattr(node, name, None)
            if value is None or value == []:
                continue
            self.out.append(name)
            if isinstance(value, list):
                self._all(value)
            elif isinstance(value, ast.AST):
                self.visit(value)
            else:
                self.out.append(repr(value))
        self.out.append(")")

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, ast.AST):
                self.visit(value)
            else:
                self.out.append(repr(value))
        self.out.append(";")

    # names

    def _meaning(self, name: str) -> Meaning | None:
        """A name's, from the scope that has it; its token where it is a local one."""
        innermost = True
        for scope in reversed(self._scopes):
            if innermost or not scope.is_class:
                if name in scope.meanings:
                    return scope.meanings[name]
                if name in scope.names:
                    return self._local(scope, name)
            innermost = False
        found = self._sources.meaning(self._file.path, name)
        return f"builtin:{name}" if found is None else found

    def _local(self, scope: _Scope, name: str) -> str:
        known = scope.names[name]
        if known is None:
            known = scope.names[name] = f"${self._locals}"
            self._locals += 1
        return known

    def _name(self, node: ast.Name) -> None:
        self.out.append(self._meaning(node.id) or node.id)

    def _local_text(self, name: str | None) -> None:
        """A name that its node has as text: of what is caught, or matched."""
        self.out.append("" if name is None else self._meaning(name) or name)

    def _attribute(self, node: ast.Attribute) -> None:
        names: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            names.append(base.attr)
            base = base.value
        names.reverse()
        meaning = self._meaning(base.id) if isinstance(base, ast.Name) else None
        if isinstance(base, ast.Name):
            while isinstance(meaning, Place) and not meaning.name and names:
                inner = self._sources.attribute(meaning.file, names[0])
                if inner is None:
                    break
                meaning = inner
                names.pop(0)
            self.out.append(meaning or base.id)
        else:
            self.visit(base)
        # of another package, `nn.Module` and `torch.nn.Module` are the same
        self.out.extend(f".{name}" for name in names)
        if isinstance(meaning, str) and names and meaning[:1] != "$" and ":" not in meaning:
            del self.out[-len(names) - 1 :]
            self.out.append(".".join((meaning, *names)))

    # definitions

    def _definition(self, node: Any) -> None:
        if isinstance(node, ast.ClassDef):
            self._class(node)
        else:
            self._function(node)

    def _nested(self, node: Any) -> None:
        """A definition inside of another: its name is a local, or an attribute of the class."""
        if self._scopes and self._scopes[-1].is_class and node.name in DESCRIBING:
            return
        self.out.append(self._meaning(node.name) or node.name)
        self._definition(node)

    def _class(self, node: ast.ClassDef) -> None:
        self.out.append("(class")
        self._all(node.decorator_list)
        self._all(node.bases)
        self._all(node.keywords)
        bound, meanings, _ = _bound(node.body, self._file)
        scope = _Scope({name: f".{name}" for name in bound}, is_class=True)
        self._enter(scope, meanings, node.body)
        self.out.append(")")

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.out.append(f"({type(node).__name__}")
        self._all(node.decorator_list)
        names = self._parameters(node.args)
        bound, meanings, elsewhere = _bound(node.body, self._file)
        scope = _Scope(dict.fromkeys(bound - elsewhere) | {name: f"p:{name}" for name in names})
        before = self._refuses, self._returning
        self._refuses, self._returning = _is_refusal(node), False
        self._enter(scope, meanings, node.body)
        self._refuses, self._returning = before
        self.out.append(")")

    def _enter(self, scope: _Scope, imported: dict[str, Any], body: list[ast.stmt]) -> None:
        scope.meanings = {name: self._sources.origin(one) for name, one in imported.items()}
        self._scopes.append(scope)
        for statement in body:
            self.visit(statement)
        self._scopes.pop()

    def _parameters(self, arguments: ast.arguments) -> list[str]:
        """Writes names and defaults; gives the names."""
        names = []
        for part in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(arguments, part)
            self.out.append(part)
            for one in found if isinstance(found, list) else [found] if found else []:
                names.append(one.arg)
                is_constant = one.annotation is not None and "constexpr" in ast.unparse(one.annotation)
                self.out.append(f"{one.arg} constexpr" if is_constant else one.arg)
        self._all(arguments.defaults)
        self._all("none" if one is None else one for one in arguments.kw_defaults)
        return names

    def _lambda(self, node: ast.Lambda) -> None:
        self.out.append("(lambda")
        names = self._parameters(node.args)
        self._scopes.append(_Scope({name: f"p:{name}" for name in names}))
        self.visit(node.body)
        self._scopes.pop()
        self.out.append(")")

    def _comprehension(self, node: Any) -> None:
        self.out.append(f"({type(node).__name__}")
        self.visit(node.generators[0].iter)  # belongs to the scope around
        bound = {
            name.id
            for generator in node.generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name)
        }
        self._scopes.append(_Scope(dict.fromkeys(bound)))
        for index, generator in enumerate(node.generators):
            self.visit(generator.target)
            if index:
                self.visit(generator.iter)
            self._all(generator.ifs)
            self.out.append(f"async {generator.is_async}")
        for name in ("elt", "key", "value"):
            if (part := getattr(node, name, None)) is not None:
                self.visit(part)
        self._scopes.pop()
        self.out.append(")")

    # statements that count in another way, or not at all

    def _nothing(self, _node: ast.AST) -> None:
        pass

    def _expression(self, node: ast.Expr) -> None:
        if not is_ignored(node):
            self._plain(node)

    def _if(self, node: ast.If) -> None:
        if not is_ignored(node):
            self._plain(node)

    def _annotated(self, node: ast.AnnAssign) -> None:
        in_class = bool(self._scopes) and self._scopes[-1].is_class
        if node.value is None and not in_class:
            return
        self.out.append("field" if in_class else "(Assign")  # a class's annotated names are its fields
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)
        self.out.append(")")

    def _assign(self, node: ast.Assign) -> None:
        self.out.append("(Assign")
        for target in node.targets:
            self.visit(target)
        self.visit(node.value)
        self.out.append(")")

    def _raise(self, node: ast.Raise) -> None:
        self.out.append("(raise")
        if node.exc is not None:
            self.visit(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        self.out.append(")")

    def _return(self, node: ast.Return) -> None:
        before, self._returning = self._returning, True
        self._plain(node)
        self._returning = before

    def _handler(self, node: ast.ExceptHandler) -> None:
        self.out.append("(except")
        if node.type is not None:
            self.visit(node.type)
        self._local_text(node.name)
        self._all(node.body)

    def _match_name(self, node: Any) -> None:
        self.out.append(f"({type(node).__name__}")
        if getattr(node, "pattern", None) is not None:
            self.visit(node.pattern)
        self._local_text(node.name)
        self.out.append(")")

    def _match_mapping(self, node: ast.MatchMapping) -> None:
        self.out.append("(MatchMapping")
        self._all(node.keys)
        self._all(node.patterns)
        self._local_text(node.rest)

    # values

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            self._text(value)
        else:
            self.out.append(f"{type(value).__name__} {value!r}")

    def _text(self, value: str) -> None:
        if value.endswith(CUDA_SUFFIXES) and (file := self._file.path.with_name(value)).is_file():
            self.out.append(Place(file))
        elif self._refuses and self._returning and " " in value:
            self.out.append("words")
        elif "\n" in value and C_SIGNS.search(value):
            self.out.append(f"C {c_text(value)}")
        else:
            self.out.append(f"str {value!r}")

    def _formatted(self, node: ast.JoinedStr) -> None:
        parts: list[ast.expr | str] = []
        for part in node.values:
            given = part.value if isinstance(part, ast.Constant) else part
            last = parts[-1] if parts else None
            if isinstance(given, str) and isinstance(last, str):
                parts[-1] = last + given
            elif given:
                parts.append(given if isinstance(given, str) else part)
        if self._refuses and self._returning and any(isinstance(one, str) and " " in one for one in parts):
            self.out.append("words")
            return
        self.out.append("(f")
        for one in parts:
            if isinstance(one, str):
                self._text(one)
            else:
                self.visit(one)
        self.out.append(")")


_known_fields: dict[type[ast.AST], tuple[str, ...]] = {}
_SPECIAL: dict[type, Any] = {
    ast.Name: _Walk._name,
    ast.Attribute: _Walk._attribute,
    ast.FunctionDef: _Walk._nested,
    ast.AsyncFunctionDef: _Walk._nested,
    ast.ClassDef: _Walk._nested,
    ast.Lambda: _Walk._lambda,
    **dict.fromkeys(COMPREHENSIONS, _Walk._comprehension),
    **dict.fromkeys((ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal), _Walk._nothing),
    ast.Expr: _Walk._expression,
    ast.If: _Walk._if,
    ast.AnnAssign: _Walk._annotated,
    ast.Assign: _Walk._assign,
    ast.Raise: _Walk._raise,
    ast.Return: _Walk._return,
    ast.ExceptHandler: _Walk._handler,
    **dict.fromkeys((ast.MatchAs, ast.MatchStar), _Walk._match_name),
    ast.MatchMapping: _Walk._match_mapping,
    ast.Constant: _Walk._constant,
    ast.JoinedStr: _Walk._formatted,
}


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    found = _known_fields.get(kind)
    if found is None:
        found = tuple(sorted(name for name in kind._fields if name not in SKIPPED))
        _known_fields[kind] = found
    return found


def _is_refusal(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function gives a reason in words, or None."""
    return node.returns is not None and ast.unparse(node.returns) == "str | None"


def _bound(body: Iterable[ast.AST], file: File) -> tuple[set[str], dict[str, Any], set[str]]:
    """The names that a function's or class's body binds, those of imports, and those declared elsewhere."""
    names: set[str] = set()
    imported: dict[str, Any] = {}
    elsewhere: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                names.add(node.id)
        elif isinstance(node, ast.expr) and not isinstance(node, TARGETS) and not file.binds_in_expressions:
            continue
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, COMPREHENSIONS):
            named = (one.target for one in ast.walk(node) if isinstance(one, ast.NamedExpr))
            names.update(one.id for one in named if isinstance(one, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imported.update(imports(node, file.path))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(node.names)
        elif not isinstance(node, ast.Lambda):
            text = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name", None)
            if text and isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
                names.add(text)
            waiting.extend(ast.iter_child_nodes(node))
    return names - set(imported), imported, elsewhere
