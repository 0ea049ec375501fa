"""Triton's interpreter on a CPU, rounding as GPUs do, and the gate over implementations that need a GPU.

Run as a program, because the interpreter is chosen when kernels are imported: standard input is a JSON list
of problems, each with its `operator`, and with its `implementations` where they are not the arguments;
standard output a line of JSON for each of them and implementation. With `--together` persistent kernels are
cut as for a GPU, into programs that wait for each other: here they run one after another, and wait in vain.
With `--calls` other calls than the gate's are compared with those of torch's module.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from dataclasses import replace
from functools import partial
from typing import ClassVar

os.environ["TRITON_INTERPRET"] = "1"
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate, extreme_inputs
from kernel_selector.kernels.operators.attention._module import Attention
from kernel_selector.kernels.operators.attention._sdpa import logits
from kernel_selector.kernels.recurrent.triton import sequence as triton_sequence
from kernel_selector.kernels.recurrent.triton.tiles import Limits


class Scope(interpreter._LangPatchScope):
    """What the interpreter put in the place of Triton's language, until its kernel ends."""

    modules: ClassVar[set[int]] = set()  # those whose language has been replaced for the kernel that runs

    def restore(self) -> None:
        super().restore()
        self.modules.clear()


def patch_lang(fn, patch=interpreter._patch_lang):
    """Replace the language of a function's module once a kernel.

    The interpreter does so at each call of a device function, and looks at all members of the language each
    time.
    """
    if id(fn.__globals__) not in Scope.modules:
        Scope.modules.add(id(fn.__globals__))
        return patch(fn)
    return None  # of a device function nobody looks at it


interpreter._LangPatchScope = Scope
interpreter._patch_lang = patch_lang

NUMPY_DTYPES, BLOCK_TYPES = {}, {}  # which the interpreter makes anew at each operation


def numpy_dtype(kind, find=interpreter._get_np_dtype):
    """NumPy's dtype of a scalar, a block or a pointer of Triton."""
    name = kind.scalar.name
    if name not in NUMPY_DTYPES:
        NUMPY_DTYPES[name] = find(kind)
    return NUMPY_DTYPES[name]


def block_type(self, element_ty, shape, make=tl.block_type.__init__):
    """The type of a block, as the first one of its kind was made."""
    key = element_ty.name, *(shape.values if isinstance(shape, tl.tuple) else shape)
    if key not in BLOCK_TYPES:
        make(self, element_ty, shape)
        self.of_tensors = tl.tensor(None, self).__dict__
        BLOCK_TYPES[key] = dict(self.__dict__)
    self.__dict__ |= BLOCK_TYPES[key]


def tensor(self, handle, type, make=tl.tensor.__init__):
    """A scalar, or a block as the first one of its type was made."""
    if made := getattr(type, "of_tensors", None):
        self.__dict__ |= made
        self.handle, self.type = handle, type
    else:
        make(self, handle, type)


interpreter._get_np_dtype = numpy_dtype
tl.block_type.__init__ = block_type
tl.tensor.__init__ = tensor
# whole numbers are added twice to find overflows, of which nothing comes without `debug`
interpreter.interpreter_builder.options = replace(
    interpreter.interpreter_builder.options, sanitize_overflow=False
)


def round_to_nearest() -> None:
    """Mend what the interpreter does to bfloat16, and to sums of products.

    It cuts conversions to bfloat16 off, also of subnormal numbers to nothing, and multiplies bit patterns. It
    leaves products to BLAS, which adds up in an order that depends on shapes and on the processor: logits
    then differ between forward and backward, as those of a GPU's matrix units do not. Here sums are rounded
    once.
    """
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast = builder.cast_impl

    def cast_impl(self, source, to):
        if source.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32:
            return handle(wide(source).data, tl.float32)
        if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
            return cast(self, source, to)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
        return handle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    def wide(tensor):
        return handle((tensor.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, added, *_):  # noqa: ARG001
        first, second = (wide(one) if one.dtype.scalar == tl.bfloat16 else one for one in (a, b))
        total = np.matmul(first.data, second.data, dtype=np.float64) + added.data
        return handle(total.astype(added.data.dtype), added.dtype.scalar)

    builder.cast_impl, builder.create_dot = cast_impl, create_dot


class FlashLike(torch.autograd.Function):
    """Attention from its logits as GPU kernels compute it: backward takes delta from the rounded output."""

    @staticmethod
    def forward(ctx, s, v, dtype):
        weights = torch.ops.aten._safe_softmax(s, -1)
        out = (weights @ v).to(dtype)
        ctx.save_for_backward(weights, v, out)
        return out

    @staticmethod
    def backward(ctx, d_out):
        weights, v, out = ctx.saved_tensors
        d_out = d_out.float()
        delta = (d_out * out.float()).sum(-1, keepdim=True)
        return weights * (d_out @ v.mT - delta), weights.mT @ d_out, None


def flash_like(problem):
    """What stands for torch's own on a GPU: a CPU's writes all steps out where a bias is trained."""

    def attend(call):
        group = call.q.size(1) // call.k.size(1)
        k, v = (one.repeat_interleave(group, 1).float() for one in (call.k, call.v))
        return FlashLike.apply(logits(call, call.q.float() @ k.mT), v, call.q.dtype)

    return Attention(problem, attend)


class GpuDefaults:
    """The registry as it is on a GPU, for the bounds of rows out of the ordinary."""

    operator, reference = registry.operator, registry.reference

    @staticmethod
    def implementation(operator, name):
        found = registry.implementation(operator, name)
        return replace(found, build=flash_like) if operator == "attention" else found


def calls(operator, problem, build) -> None:
    """Two backward passes, one used output, frozen parameters, kept inputs, NaN, and other sizes."""
    module, plain = build(), registry.implementation(operator, f"torch_{operator}").build(problem)
    module.load_state_dict(plain.state_dict())
    x = torch.randn(problem["seq"], problem["batch"], problem["input"], requires_grad=True)
    loss = module(x)[0].square().sum()
    first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(module.parameters()))
    assert all(map(torch.equal, first, second))
    results = []
    for candidate in (module, plain):
        candidate.requires_grad_(False)
        candidate.weight_hh_l0.requires_grad_(True)
        last = candidate(x)[1]
        loss = (last if isinstance(last, torch.Tensor) else last[0]).square().sum()
        results.append(torch.autograd.grad(loss, [candidate.weight_hh_l0, x]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        states = [torch.randn_like(one) for one in (last if isinstance(last, tuple) else (last,))]
        copies = [one.clone() for one in states]
        module(x, tuple(states) if isinstance(last, tuple) else states[0])[0].mul_(2)
        assert all(map(torch.equal, states, copies))
        longer = torch.randn(problem["seq"] + 3, problem["batch"] + 16, problem["input"])
        torch.testing.assert_close(module(longer)[0], plain(longer)[0], rtol=1e-4, atol=1e-5)
        longer[1, 2] = float("nan")
        assert module(longer)[0][:, 2].isnan().any()
        assert not module(longer)[0][:, 3].isnan().any()


def main() -> None:
    round_to_nearest()
    warnings.filterwarnings("ignore", "overflow", RuntimeWarning)  # numpy's, of an infinite exponential
    warnings.filterwarnings(
        "ignore", "invalid value", RuntimeWarning
    )  # and of what is selected away behind it
    torch.set_num_threads(1)
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    further = "--calls" in sys.argv
    if "--together" in sys.argv:
        triton_sequence.PATIENCE = 5
        triton_sequence._limits = lambda _device: Limits(programs=132, shared_bytes=2**17)
    extreme_inputs.registry = GpuDefaults
    for given in json.load(sys.stdin):
        operator, some = given.pop("operator"), given.pop("implementations", names)
        problem = registry.operator(operator).problem(given)
        gate = Gate(problem, "cpu")
        for name in some:
            file = importlib.import_module(f"kernel_selector.kernels.operators.{operator}.{name}")
            if further:
                calls(operator, problem, partial(file.build, problem))
            result = gate.check(file.build(problem))
            print(json.dumps([problem.key, name, result.passed, result.detail]), flush=True)


if __name__ == "__main__":
    main()
