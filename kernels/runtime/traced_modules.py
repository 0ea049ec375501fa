"""Modules that torch.compile may look into although their class is derived from torch's LSTM, GRU or RNN.

Dynamo refuses all of these, unless `torch._dynamo.config.allow_rnn` has it unroll torch's own over time.
Ours are operators in a graph, and nothing is unrolled: for them alone, while Dynamo takes them up, the
setting is on. Where a version of torch has no such refusal, or another way to it, nothing is changed.
"""

from __future__ import annotations

import sys
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

BUILDER = "torch._dynamo.variables.builder"
SETTING = "allow_rnn"


class Traced:
    """Mixin of modules that torch.compile may look into."""


def _look_into(builder: Any) -> None:
    """Change Dynamo's way to take up a module."""
    kind = getattr(builder, "VariableBuilder", None)
    theirs = getattr(kind, "wrap_module", None)
    if theirs is None or not hasattr(builder.config, SETTING):
        return

    @wraps(theirs)
    def wrap_module(self: Any, value: Any) -> Any:
        if not isinstance(value, Traced):
            return theirs(self, value)
        with builder.config.patch(SETTING, True):
            return theirs(self, value)

    kind.wrap_module = wrap_module  # type: ignore[union-attr]


class _AfterImport(MetaPathFinder):
    """Changes Dynamo when it is imported, which is left to torch.compile: it takes a second."""

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
        """The file's own spec, whose loader goes on to the change."""
        if fullname != BUILDER:
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(fullname)
        load = spec.loader.exec_module

        def changed(module: Any) -> None:
            load(module)
            _look_into(module)

        spec.loader.exec_module = changed
        return spec


if BUILDER in sys.modules:
    _look_into(sys.modules[BUILDER])
else:
    sys.meta_path.insert(0, _AfterImport())
