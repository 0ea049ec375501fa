"""Recurrent modules, torch's and ours, replayed as CUDA graphs that are captured once an input shape.

A capture owns the memory that its graphs read and write. A call copies its inputs there, replays and
copies the outputs out, so that earlier results stay as they are. In training a call keeps its capture
until its backward pass has run, or until autograd forgets the call; another one in between gets another
capture, as does another stream. Parameters are read where they are: a replay sees their present values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from .. import operator
from ..layer import LayerFunction
from ..module import LayeredGRU, LayeredLSTM, LayeredRNN
from ..torch_layers import TorchGRU, TorchLayers, TorchLSTM, TorchRNN
from ..torch_module import arguments
from .capture import Capture, Lease, Replay

MOST_SHAPES = 16  # captures of the shapes used longest ago make room
NODES_A_CALL = 8  # copies in and out, and two replays


def graph_refusal(problem: Problem, device: Device) -> str | None:
    """Reason why a problem's calls cannot be captured, or None."""
    if device.kind != "cuda":
        return "only GPUs have CUDA graphs, and this device is none"
    if problem["packed"]:
        return "a graph is captured for given lengths, and packed sequences differ in theirs"
    if problem["dropout"] and problem["layers"] > 1 and problem["mode"] == "training":
        return (
            "a graph would replay cuDNN's dropout with the same state, or draw more than a seed accounts for"
        )
    return None


def graphed_work(problem: Problem) -> Work:
    """The least work, with the launches of a replay."""
    return replayed(operator.work(problem))


def replayed(work: Work) -> Work:
    """The counts of launches by the host, with the launches of a replay in their place."""
    return replace(work, launches=NODES_A_CALL)


def graphed_module(problem: Problem) -> nn.RNNBase:
    """torch's module for a problem, which replays CUDA graphs."""
    kind = {"lstm": GraphedLSTM, "gru": GraphedGRU, "rnn": GraphedRNN}[problem.operator]
    module: nn.RNNBase = kind(**arguments(problem))
    return module.train(problem["mode"] == "training")


def graphed_layers(problem: Problem, layer: LayerFunction) -> nn.RNNBase:
    """The module of `module.recurrent_module`, replaying CUDA graphs; without peepholes."""
    kind = {"lstm": GraphedLayeredLSTM, "gru": GraphedLayeredGRU, "rnn": GraphedLayeredRNN}[problem.operator]
    module: nn.RNNBase = kind(layer, False, False, **arguments(problem))
    return module.train(problem["mode"] == "training")


class Graphed(nn.RNNBase):
    """Base of the modules that replay CUDA graphs.

    Packed sequences, dropout in training, torch.func, torch.compile and a caller's own capture take the
    module as it is without graphs: a graph cannot hold them, or holds them already. So does what cuDNN does
    not differentiate, torch's module in evaluation.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._captures: OrderedDict[Any, list[Capture]] = OrderedDict()  # the free ones of each shape
        self._by_cudnn = isinstance(self, TorchLayers)

    @property
    def static_bytes(self) -> int:
        """GPU memory that a call's graphs keep for themselves; the most of those that are not in flight."""
        kept = (capture.static_bytes for free in self._captures.values() for capture in free)
        return max(kept, default=0)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_captures": OrderedDict()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graphed:
        self._captures.clear()  # parameters move
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Outputs as of the module without graphs; `input` [T, B, I], and optionally the initial states."""
        if torch.compiler.is_compiling():  # which may put operators into a graph of its own, but no graph
            outputs: tuple[Any, Any] = super().forward(input, hx)
            return outputs
        return self._replayed(input, hx)

    def _replayed(self, x: Any, hx: Any) -> tuple[Any, Any]:
        lstm = self.mode == "LSTM"
        states: tuple[Any, ...] | None = () if hx is None else (hx,)
        if lstm and hx is not None:
            states = tuple(hx) if isinstance(hx, (tuple, list)) and len(hx) == 2 else None
        inputs = (x, *(states or ()))
        free = None
        if states is not None and all(isinstance(one, Tensor) for one in inputs) and not self._goes_plain():
            parameters: Any = tuple(self.parameters() if self._modules else self._parameters.values())
            needs = _needs((*inputs, *parameters)) if torch.is_grad_enabled() else ()
            free = self._free(inputs, parameters, needs)
        if free is None:
            plain: tuple[Any, Any] = super().forward(x, hx)
            return plain
        capture = free.pop() if free else self._capture(inputs, parameters, needs)
        if not needs:
            free.append(capture)
            outputs = capture.forward(inputs)
        else:
            lease = Lease(capture, free, parameters)
            leaves = [one for one, needed in zip((*inputs, *parameters), needs, strict=True) if needed]
            outputs = Replay.apply(lease, inputs, *leaves)  # type: ignore[no-untyped-call]
        return outputs[0], outputs[1:] if lstm else outputs[1]

    def _goes_plain(self) -> bool:
        """Whether a call cannot be replayed, whatever its inputs."""
        random = self.training and self.dropout and self.num_layers > 1
        forward_only = self._by_cudnn and not self.training and torch.is_grad_enabled()
        return bool(random) or forward_only or torch._C._are_functorch_transforms_active() or _is_capturing()

    def _free(
        self, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...], needs: tuple[bool, ...]
    ) -> list[Capture] | None:
        """The free captures for such a call, or None where torch has to say what is wrong with it."""
        key: list[Any] = [self.training, needs, _autocast(inputs[0]), _stream(inputs[0])]
        for one in inputs:
            key += (one.shape, one.dtype, one.device)
        key += [one.data_ptr() for one in parameters]
        found = tuple(key)
        free = self._captures.get(found)
        if free is None:
            if len({one.device for one in (*inputs, *parameters)}) > 1 or inputs[0].numel() == 0:
                return None
            if not _has_graphs(inputs[0]):
                raise RuntimeError(
                    f"{type(self).__name__}: CUDA graphs need a GPU, and the module is on a CPU."
                )
            free = self._captures[found] = []
            if len(self._captures) > MOST_SHAPES:
                self._captures.popitem(last=False)
        self._captures.move_to_end(found)
        return free

    def _capture(
        self, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...], needs: tuple[bool, ...]
    ) -> Capture:
        wanted = [one for one, needed in zip(parameters, needs[len(inputs) :], strict=False) if needed]
        # a graph of autograd that is alive may have put the parameters' own leaves on another stream, for
        # which a backward pass would wait: that spoils a capture
        leaves = {id(one): one.detach().requires_grad_() for one in wanted}

        def run(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
            hx = states if self.mode == "LSTM" else states[0]
            with self._stood_in_for(leaves):
                y, last = super(Graphed, self).forward(x, hx)
            return (y, *last) if self.mode == "LSTM" else (y, last)

        with torch.inference_mode(False), torch.cuda.device_of(inputs[0]), _without_cache(inputs[0]):  # type: ignore[no-untyped-call]
            own = inputs if len(inputs) > 1 else (inputs[0], *self._no_states(inputs[0]))
            return Capture(run, own, needs[: len(inputs)] or (False,) * len(inputs), tuple(leaves.values()))

    @contextmanager
    def _stood_in_for(self, others: dict[int, Tensor]) -> Iterator[None]:
        """With other tensors in the place of parameters, by their identity."""
        if self._by_cudnn:  # torch's modules keep a list, and would flatten other parameters
            kept: Any = self._flat_weights, self._flat_weight_refs
            own = [getattr(self, name) for name in self._flat_weights_names]
            self._flat_weights = [others.get(id(one), one) for one in own]
            # else torch, where FSDP for example has put other parameters in, lays these out anew in memory of
            # its own, from which replays would go on reading
            self._flat_weight_refs = [None] * len(own)
            try:
                yield
            finally:
                self._flat_weights, self._flat_weight_refs = kept
        else:
            parameters: Any = self._parameters
            before = dict(parameters)
            parameters.update({name: others.get(id(one), one) for name, one in before.items()})
            try:
                yield
            finally:
                parameters.update(before)

    def _no_states(self, x: Tensor) -> tuple[Tensor, ...]:
        """The initial states that a call without any has."""
        rows: tuple[int, ...] = (self.num_layers * (2 if self.bidirectional else 1),)
        if x.dim() == 3:
            rows += (x.size(0 if self.batch_first else 1),)
        h = x.new_zeros(*rows, self.proj_size or self.hidden_size)
        return (h, x.new_zeros(*rows, self.hidden_size)) if self.mode == "LSTM" else (h,)


class GraphedLSTM(Graphed, TorchLSTM):
    """An nn.LSTM that replays CUDA graphs."""


class GraphedGRU(Graphed, TorchGRU):
    """An nn.GRU that replays CUDA graphs."""


class GraphedRNN(Graphed, TorchRNN):
    """An nn.RNN that replays CUDA graphs."""


class GraphedLayeredLSTM(Graphed, LayeredLSTM):
    """An nn.LSTM whose layers a function of ours computes, replayed as CUDA graphs."""


class GraphedLayeredGRU(Graphed, LayeredGRU):
    """An nn.GRU whose layers a function of ours computes, replayed as CUDA graphs."""


class GraphedLayeredRNN(Graphed, LayeredRNN):
    """An nn.RNN whose layers a function of ours computes, replayed as CUDA graphs."""


def _needs(leaves: tuple[Tensor, ...]) -> tuple[bool, ...]:
    """Which need gradients; empty where none does."""
    needs = tuple(one.requires_grad for one in leaves)
    return needs if any(needs) else ()


def _autocast(x: Tensor) -> torch.dtype | None:
    """What autocast computes in on the device of x, or None where it is off."""
    if not torch._C._is_any_autocast_enabled():
        return None
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _without_cache(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast as it is, but without the casts that it remembers: a graph has to cast at each replay."""
    narrow = _autocast(x)
    return nullcontext() if narrow is None else torch.autocast(x.device.type, narrow, cache_enabled=False)


def _has_graphs(x: Tensor) -> bool:
    return x.is_cuda


def _stream(x: Tensor) -> int:
    """The stream that a call runs on: its copies and replays are in order with those of no other."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0


def _is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()
