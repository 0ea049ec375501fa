"""A torch model as a planner sees it: its layers, its parameters, and what else it keeps for backward.

The example inputs are run forward once. Sizes of a layer grow with the samples in the dimensions that count
rows, and so does what is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

from ..errors import InvalidRequest
from ..layers import Layer, arguments_of, find, undisturbed
from .figures import ROWS
from .parts import Model, Part, Workload

SMALL = 2**10  # of bytes: ids, statistics and scalars are not looked for


def traced(model: nn.Module, example_inputs: Any, *, name: str = "", logits: bool = False) -> Model:
    """The model as it trains on inputs like the examples, whose first dimension counts samples.

    With `logits` those of a loss head stay an output, and its linear layer alone is planned. The model may be
    on any device, torch's meta device included. Raises InvalidRequest for a model without parameters, without
    layers that there are implementations of, or inputs without samples.
    """
    samples = _samples(example_inputs)
    layers = [layer for layer in find(model, example_inputs) if layer.problem["mode"] == "training"]
    if not layers:
        raise InvalidRequest(
            f"{type(model).__name__} has no layers in training that there are implementations of: call "
            "model.train() first, and see `selector operators`."
        )
    if logits:
        layers = [replace(layer, problem=without_loss(layer.problem)) for layer in layers]
    kept = _kept(model, example_inputs, layers)
    parameters = list(model.parameters())
    counts = Counter(layer.problem for layer in layers for _ in range(layer.calls))
    dtype = str(max(parameters, key=Tensor.numel).dtype).removeprefix("torch.")
    return Model(
        name=name or type(model).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        dtype=dtype,
        blocks=0,
        workload=_Scaled(tuple(counts.items()), kept, samples),
    )


def without_loss(problem: Problem) -> Problem:
    """The linear layer of a loss head; any other problem as it is."""
    if problem.operator != "linear_cross_entropy":
        return problem
    shared = {name: problem[name] for name in ("rows", "bias", "dtype", "mode")}
    sizes = {"in_features": problem["hidden"], "out_features": problem["vocabulary"]}
    return registry.operator("linear").problem({**shared, **sizes})


@dataclass(frozen=True)
class _Kept:
    """Bytes that one forward pass keeps: outside of all layers, and the outputs of each problem's layers."""

    elsewhere: int
    outputs: Mapping[Problem, int]


@dataclass(frozen=True)
class _Scaled:
    """The step at any batch size, from the one of the example."""

    counts: tuple[tuple[Problem, int], ...]
    kept: _Kept
    samples: int

    def __call__(self, batch: int) -> Workload:
        """The workload of so many samples."""
        factor = batch / self.samples
        return Workload(
            parts=tuple(self._part(problem, count, factor) for problem, count in self.counts),
            kept_bytes=round(self.kept.elsewhere * factor),
        )

    def _part(self, problem: Problem, count: int, factor: float) -> Part:
        values = dict(problem.values)
        for name in ROWS:
            if name in values:
                values[name] = max(1, round(int(values[name]) * factor))
        sized = registry.operator(problem.operator).problem(values)
        return Part(
            name=_short(problem),
            problem=sized,
            count=count,
            output_bytes=round(self.kept.outputs.get(problem, 0) * factor),
            head=problem.operator == "linear_cross_entropy",
        )


def _short(problem: Problem) -> str:
    sizes = (f"{name}={value}" for name, value in problem.values if type(value) is int and name not in ROWS)
    return " ".join((problem.operator, *sizes))


def _samples(example_inputs: Any) -> int:
    args, kwargs = arguments_of(example_inputs)
    sizes = [one.size(0) for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.dim()]
    if not sizes or not sizes[0]:
        raise InvalidRequest(
            "example_inputs without samples: expected tensors whose first dimension counts them."
        )
    return int(sizes[0])


def _kept(model: nn.Module, example_inputs: Any, layers: list[Layer]) -> _Kept:
    """Run forward, and sum the storages that autograd keeps, by whether a layer with implementations runs.

    What such a layer gives to others is counted with the layer, and not again.
    """
    ledger = _Ledger(model)
    problems = {path: layer.problem for layer in layers for path in layer.covers}
    args, kwargs = arguments_of(example_inputs)
    hooks = [
        hook
        for path, module in model.named_modules()
        if path in problems
        for hook in (
            module.register_forward_pre_hook(ledger.enter(problems[path])),
            module.register_forward_hook(ledger.leave),
        )
    ]
    try:
        with undisturbed(model), torch.enable_grad(), saved_tensors_hooks(ledger.pack, lambda tensor: tensor):
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    calls = Counter(layer.problem for layer in layers for _ in range(layer.calls))
    return _Kept(
        ledger.elsewhere, {problem: size // calls[problem] for problem, size in ledger.outputs.items()}
    )


class _Ledger:
    """Counts each storage once while a model runs."""

    def __init__(self, model: nn.Module) -> None:
        self.elsewhere = 0
        self.outputs: Counter[Problem] = Counter()
        self._running: list[Problem] = []
        self._ours = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        # storages are kept alive, so that no other gets their address; detached, since the graph of autograd
        # keeps this object: with tensors of its own in it, neither would ever be given back
        self._seen: dict[int, Tensor] = {}

    def enter(self, problem: Problem) -> Callable[..., None]:
        """A hook before a layer of this problem."""
        return lambda *_: self._running.append(problem)

    def leave(self, _module: nn.Module, _args: object, output: object) -> None:
        """The hook behind it."""
        problem = self._running.pop()
        if self._running:  # within a larger layer
            return
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor):
                self.outputs[problem] += tensor.numel() * tensor.element_size()
                self._seen[tensor.untyped_storage()._cdata] = tensor.detach()

    def pack(self, tensor: Tensor) -> Tensor:
        """Called with each tensor that autograd keeps."""
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._ours and key not in self._seen and storage.nbytes() >= SMALL:
            self._seen[key] = tensor
            if not self._running:
                self.elsewhere += storage.nbytes()
        return tensor
