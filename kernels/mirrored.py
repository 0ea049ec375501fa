"""Functions of ours as they are, but with stand-ins for what they call that takes plain numbers alone.

The sources that implementations are made of are hashed into their measurements, so nothing may change there;
and what a module names is shared by all threads. So the functions are copied, with the names that they use.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from functools import cached_property
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from .stand_ins import STAND_INS

PACKAGE = __name__.rpartition(".")[0]
PLAIN = f"{PACKAGE}.contract"  # values alone, which need no copies


class Mirror:
    """Copies of objects, each once: what is copied names copies."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # with the original, so that no other has its id
        stand_ins = {name: STAND_INS.get(value, value) for name, value in _hashable(vars(builtins)).items()}
        self._builtins = {**vars(builtins), **stand_ins}

    def of(self, original: Any) -> Any:
        """The copy; the original itself where there is nothing to copy."""
        if isinstance(original, type | BuiltinFunctionType) and original in STAND_INS:
            return STAND_INS[original]
        known = self._copies.get(id(original))
        return self._copied(original) if known is None else known[1]

    def _keep(self, original: Any, copy: Any) -> Any:
        self._copies[id(original)] = original, copy
        return copy

    def _copied(self, original: Any) -> Any:
        if isinstance(original, ModuleType):
            is_ours = _is_ours(original.__name__) or original.__name__ == "math"
            return self._keep(original, _Names(self, original)) if is_ours else original
        if isinstance(original, MethodType):
            return MethodType(self.of(original.__func__), self.of(original.__self__))
        if not _is_ours(getattr(original, "__module__", None)):
            return original
        if isinstance(original, FunctionType):
            return self._function(original)
        if isinstance(original, type):
            return self._class(original) if _is_plain(original) else original
        if callable(getattr(original, "cache_clear", None)):  # a cache would keep traced numbers
            return self._keep(original, self.of(original.__wrapped__))
        has_values = _is_plain(type(original)) and hasattr(original, "__dict__")
        return self._instance(original) if has_values else original

    def _function(self, original: FunctionType) -> FunctionType:
        names: dict[str, Any] = {"__builtins__": self._builtins, "__name__": original.__module__}
        cells = tuple(CellType() for _ in original.__closure__ or ())
        copy = FunctionType(original.__code__, names, original.__name__, original.__defaults__, cells)
        copy.__kwdefaults__ = original.__kwdefaults__
        self._keep(original, copy)
        for name in _names_in(original.__code__):
            if name in original.__globals__:
                names[name] = self.of(original.__globals__[name])
        for mine, theirs in zip(cells, original.__closure__ or (), strict=True):
            mine.cell_contents = self.of(theirs.cell_contents)
        return copy

    def _class(self, original: type) -> type:
        left_out = ("__dict__", "__weakref__")
        plain = {name: value for name, value in vars(original).items() if name not in left_out}
        copy = type(original.__name__, tuple(self.of(base) for base in original.__bases__), plain)
        self._keep(original, copy)  # before its functions, which may name it
        for name, value in plain.items():
            mine = self._attribute(value)
            if mine is not value:
                setattr(copy, name, mine)
                if isinstance(mine, cached_property):
                    mine.__set_name__(copy, name)
        return copy

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, property):
            return property(self.of(value.fget))
        if isinstance(value, cached_property):
            return cached_property(self.of(value.func))
        if isinstance(value, staticmethod | classmethod):
            return type(value)(self.of(value.__func__))
        return self.of(value) if isinstance(value, FunctionType) else value

    def _instance(self, original: Any) -> Any:
        copy = object.__new__(self.of(type(original)))
        self._keep(original, copy)
        vars(copy).update({name: self.of(value) for name, value in vars(original).items()})
        return copy


class _Names:
    """A module whose names are copies, made when they are looked at."""

    def __init__(self, mirror: Mirror, module: ModuleType) -> None:
        self._mirror, self._module = mirror, module

    def __getattr__(self, name: str) -> Any:
        return self._mirror.of(getattr(self._module, name))


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.startswith(f"{PACKAGE}.") and not module.startswith(PLAIN)


def _is_plain(kind: type) -> bool:
    """Whether it is made of functions and values of ours alone, such as dataclasses and named tuples."""
    return type(kind) is type and all(
        base in (object, tuple) or _is_ours(base.__module__) for base in kind.__mro__
    )


def _names_in(code: Any) -> set[str]:
    inner = [_names_in(one) for one in code.co_consts if hasattr(one, "co_names")]
    return set(code.co_names).union(*inner)


def _hashable(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if type(value).__hash__ is not None}
