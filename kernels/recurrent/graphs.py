"""torch's recurrent modules replayed as CUDA graphs: captured once an input shape, without their launches.

A capture owns the memory that its graphs read and write. A call copies its inputs there, replays and
copies the outputs out, so that earlier results stay as they are. In training a call keeps its capture
until its backward pass has run, or until autograd forgets the call; another one in between gets another
capture. Parameters are read where they are: a replay sees their present values.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from ..contract import Device, Problem, Work
from . import operator
from .graph_captures import Capture, Lease, Replay
from .torch_module import arguments

MOST_SHAPES = 16  # captures of the shapes used longest ago make room
NODES_A_CALL = 8  # copies in and out, and two replays


def graph_refusal(problem: Problem, device: Device) -> str | None:
    """Why a problem's calls cannot be captured, or None."""
    if device.kind != "cuda":
        return "only GPUs have CUDA graphs, and this device is none"
    if problem["packed"]:
        return "a graph is captured for given lengths, and packed sequences differ in theirs"
    if problem["dropout"] and problem["layers"] > 1 and problem["mode"] == "training":
        return "a graph would replay cuDNN's dropout with the same state each time"
    return None


def graphed_work(problem: Problem) -> Work:
    """The least work, with the launches of a replay."""
    return replace(operator.work(problem), launches=NODES_A_CALL)


def graphed_module(problem: Problem) -> nn.RNNBase:
    """torch's module for a problem, which replays CUDA graphs."""
    kind = {"lstm": GraphedLSTM, "gru": GraphedGRU, "rnn": GraphedRNN}[problem.operator]
    module: nn.RNNBase = kind(**arguments(problem))
    return module.train(problem["mode"] == "training")


class Graphed(nn.RNNBase):
    """What the three modules share.

    Packed sequences, dropout in training, evaluation with gradients, torch.func and a caller's own
    capture take torch's module as it is: a graph cannot hold them, or holds them already.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._captures: OrderedDict[Any, list[Capture]] = OrderedDict()  # the free ones of each shape

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_captures": OrderedDict()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graphed:
        self._captures.clear()  # parameters move
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """As torch's module; `input` [T, B, I], and optionally the initial states."""
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            outputs: tuple[Any, Any] = _outside_of_graphs(self, input, hx)
            return outputs
        return self._forward(input, hx)

    def _forward(self, x: Any, hx: Any) -> tuple[Any, Any]:
        states = () if hx is None else hx if isinstance(hx, (tuple, list)) else (hx,)
        inputs = (x, *states)
        if not all(isinstance(one, Tensor) for one in inputs) or not self._can_be_captured(inputs):
            plain: tuple[Any, Any] = super().forward(x, hx)
            return plain

        def run(*copies: Tensor) -> tuple[Tensor, ...]:
            x, *own = copies
            hx = (tuple(own) if self.mode == "LSTM" else own[0]) if own else None
            y, last = super(Graphed, self).forward(x, hx)
            return (y, *last) if self.mode == "LSTM" else (y, last)

        y, *last = self._replayed(run, inputs)
        return y, tuple(last) if self.mode == "LSTM" else last[0]

    def _can_be_captured(self, inputs: tuple[Tensor, ...]) -> bool:
        where = {one.device for one in (*inputs, *self.parameters())}
        if len(where) > 1 or inputs[0].numel() == 0:
            return False  # torch says what is wrong
        if not _has_graphs(inputs[0]):
            raise RuntimeError(f"{type(self).__name__}: CUDA graphs need a GPU, and the module is on a CPU.")
        random = self.training and self.dropout and self.num_layers > 1
        forward_only = torch.is_grad_enabled() and not self.training  # all that cuDNN has then
        held_already = _is_capturing() or torch._C._are_functorch_transforms_active()
        return not (random or forward_only or held_already)

    def _replayed(
        self, run: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        parameters = tuple(self.parameters())
        differentiable = torch.is_grad_enabled() and any(one.requires_grad for one in (*inputs, *parameters))
        key = (
            self.training,
            differentiable,
            _autocast(inputs[0]),
            *map(_form, inputs),
            *map(_place, parameters),
        )
        free = self._captures.setdefault(key, [])
        self._captures.move_to_end(key)
        if len(self._captures) > MOST_SHAPES:
            self._captures.popitem(last=False)
        if free:
            capture = free.pop()
        else:
            with torch.inference_mode(False), _without_cache(inputs[0]):
                capture = Capture(run, inputs, parameters if differentiable else None)
        if not differentiable:
            free.append(capture)
            return capture.forward(inputs)
        lease = Lease(capture, free, parameters)
        outputs: tuple[Tensor, ...] = Replay.apply(lease, len(inputs), *inputs, *parameters)  # type: ignore[no-untyped-call]
        return outputs


class GraphedLSTM(Graphed, nn.LSTM):
    """An nn.LSTM that replays CUDA graphs."""


class GraphedGRU(Graphed, nn.GRU):
    """An nn.GRU that replays CUDA graphs."""


class GraphedRNN(Graphed, nn.RNN):
    """An nn.RNN that replays CUDA graphs."""


@_disable_dynamo
def _outside_of_graphs(module: Graphed, x: Any, hx: Any) -> tuple[Any, Any]:
    return module._forward(x, hx)


def _form(given: Tensor) -> tuple[Any, ...]:
    return given.shape, given.dtype, given.requires_grad


def _place(parameter: Tensor) -> tuple[int, bool]:
    return parameter.data_ptr(), parameter.requires_grad


def _autocast(x: Tensor) -> torch.dtype | None:
    """What autocast computes in on the device of x, or None where it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _without_cache(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast as it is, but without the casts that it remembers: a graph has to cast at each replay."""
    narrow = _autocast(x)
    return nullcontext() if narrow is None else torch.autocast(x.device.type, narrow, cache_enabled=False)


def _has_graphs(x: Tensor) -> bool:
    return x.is_cuda


def _is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()
