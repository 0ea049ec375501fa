"""Compilation of a model in place by `torch.compile`, and its reversal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from kernel_selector.kernels import registry

MARK = "_compiled_by_optimize"  # attribute of the function that a model compiled here is called by
MODES: Mapping[str, str | None] = {
    "compiled": None,
    "compiled_ours": None,
    "reduce_overhead": "reduce-overhead",
    "reduce_overhead_ours": "reduce-overhead",
    "max_autotune": "max-autotune",
}
GRAPHS = ("reduce_overhead", "reduce_overhead_ours", "max_autotune")  # CUDA graphs, which hold memory
# of a first compilation, forwards and backwards: on the hosts of H100s models of 12 layers of Hugging Face's,
# which are 150 to 200 modules without parts, took 25 to 45 s, on two busy cores one of 33 modules 20 s
LEAST_SECONDS, SECONDS_A_MODULE = 5.0, 0.15
AUTOTUNING = 6.0  # as many times takes "max-autotune": 245 s where the default mode took 40
IMPLEMENTATIONS = str(Path(registry.__file__).parent)  # folder of their files
MOST_ENTRIES = 64  # of a function's compilations during a search: what loses is dropped at its end


def turn_on(model: nn.Module, mode: str | None) -> None:
    """Compile a model in place, in one of `torch.compile`'s modes, at its next call."""
    compile_in_place(model, mode=mode)


def compile_in_place(model: nn.Module, **how: Any) -> None:
    """Compile a model in place at its next call, as `Module.compile` with these arguments.

    That compiles nothing of a model whose own class is torch's, such as nn.Sequential, since calls of torch's
    modules are only compiled within other functions: it gets one around, as `torch.compile(model)` has.
    """
    from torch._dynamo import external_utils, trace_rules

    if trace_rules.check(model.forward):
        model._compiled_call_impl = torch.compile(external_utils.wrap_inline(model._call_impl), **how)
    else:
        model.compile(**how)


def kept_code(model: nn.Module) -> CompiledCode | None:
    """Compiled code of a model that `optimize` compiled; None for all others, a user's own included."""
    return getattr(model._compiled_call_impl, MARK, None)


def keep(model: nn.Module, code: CompiledCode) -> None:
    """Mark a compiled model as compiled by `optimize`."""
    setattr(model._compiled_call_impl, MARK, code)


def turn_off_within(model: nn.Module) -> int:
    """Undo compilations by `optimize` of a model and of what it wraps; returns how many there were."""
    return sum(map(turn_off, model.modules()))


def turn_off(model: nn.Module) -> int:
    """Undo a compilation by `optimize`; returns how many there were, 0 or 1. A user's own stays."""
    code = kept_code(model)
    if code is None:
        return 0
    model._compiled_call_impl = None
    code.drop()
    return 1


def expected_seconds(model: nn.Module, name: str, last: float | None) -> float:
    """Seconds that compiling is expected to take, by the `last` compilation or the number of modules."""
    modules = sum(1 for part in model.modules() if next(part.children(), None) is None)
    seconds = LEAST_SECONDS + SECONDS_A_MODULE * modules if last is None else last
    return seconds * (AUTOTUNING if name == "max_autotune" else 1)


@contextmanager
def many_entries() -> Iterator[None]:
    """Context in which a function may be compiled as often as a search needs, beyond torch's limit."""
    from torch._dynamo import config

    with config.patch(recompile_limit=max(MOST_ENTRIES, config.recompile_limit)):
        yield


class CompiledCode:
    """All that `torch.compile` compiles of models from now on, to be dropped.

    Compilations belong to functions. Of those that are dropped, other models' compilations go too: at their
    next call these are traced again, and found in the compiler's cache. Implementations that are compiled
    themselves stay: a replayed CUDA graph launches their kernels, which are unloaded when they are dropped.
    """

    def __init__(self) -> None:
        self._before = {id(code): count for code, count in _entries()}

    def drop(self) -> None:
        """Drop what was compiled since, with the memory of its CUDA graphs."""
        from torch._C._dynamo.eval_frame import reset_code

        for code, count in list(_entries()):
            if count > self._before.get(id(code), 0):
                reset_code(code)


def _entries() -> Iterator[tuple[CodeType, int]]:
    """Functions that were compiled, with the number of their compilations."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo import convert_frame

    for reference in list(convert_frame.input_codes.seen):
        code = reference()
        if code is None or code.co_filename.startswith(IMPLEMENTATIONS):
            continue
        if entries := _debug_get_cache_entry_list(code):
            yield code, len(entries)
