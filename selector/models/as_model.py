"""Conversion of a torch model to a planning model: its layers, parameters and saved activations.

The example inputs are run forward once. Sizes of a layer grow with the samples in the dimensions that count
rows, and so does what is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

from ..errors import InvalidRequest
from ..planning.layer_costs import ROWS
from ..workloads.model import Model, Part, Workload
from .example import arguments_of
from .layers import Layer, find
from .saved_tensors import HEAD, SavedTensors


def traced(
    model: nn.Module,
    example_inputs: Any,
    *,
    name: str = "",
    logits: bool = False,
    fixed: Collection[str] = (),
) -> Model:
    """Planning model of a torch model in training, from example inputs whose first dimension is the batch.

    With `logits` those of a loss head stay an output, and its linear layer alone is planned. `fixed` are the
    paths of layers that nothing but the framework's own can be planned for. The model may be on any device,
    torch's meta device included. Raises InvalidRequest for a model without parameters, without layers that
    there are implementations of, or inputs without samples.
    """
    count = samples(example_inputs)
    parameters = list(model.parameters())
    if not parameters:
        raise InvalidRequest(f"{type(model).__name__} has no parameters: nothing is trained.")
    layers = [layer for layer in find(model, example_inputs) if layer.problem["mode"] == "training"]
    if not layers:
        raise InvalidRequest(
            f"{type(model).__name__} has no layers in training that there are implementations of: call "
            "model.train() first, and see `selector operators`."
        )
    if logits:
        layers = [replace(layer, problem=without_loss(layer.problem)) for layer in layers]
    dtype = str(max(parameters, key=Tensor.numel).dtype).removeprefix("torch.")
    return Model(
        name=name or type(model).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        dtype=dtype,
        blocks=0,
        workload=_workload(layers, SavedTensors(model, example_inputs, layers), fixed, count),
    )


def _workload(layers: Sequence[Layer], saved: SavedTensors, fixed: Collection[str], samples: int) -> _Scaled:
    """Layers grouped by kind, and the loss unless a layer computes it too."""
    counts: Counter[_Kind] = Counter()
    outputs: Counter[_Kind] = Counter()
    for number, layer in enumerate(layers):
        use = saved.use(number)
        kind = _Kind(layer.problem, use.output_kept, use.input_kept, layer.path not in fixed)
        counts[kind] += layer.calls
        outputs[kind] += layer.calls * use.output_bytes
    with_loss = any(layer.problem.operator == HEAD for layer in layers)
    return _Scaled(
        counts=tuple(counts.items()),
        outputs={kind: size // counts[kind] for kind, size in outputs.items()},
        elsewhere_bytes=saved.elsewhere_bytes,
        loss_bytes=0 if with_loss else saved.loss_bytes,
        samples=samples,
    )


def without_loss(problem: Problem) -> Problem:
    """Linear layer of a loss head; any other problem unchanged."""
    if problem.operator != HEAD:
        return problem
    shared = {name: problem[name] for name in ("rows", "bias", "dtype", "mode")}
    sizes = {"in_features": problem["hidden"], "out_features": problem["vocabulary"]}
    return registry.operator("linear").problem({**shared, **sizes})


@dataclass(frozen=True)
class _Kind:
    """Key of layers that form one part of a plan."""

    problem: Problem
    output_kept: bool
    input_kept: bool
    replaceable: bool


@dataclass(frozen=True)
class _Scaled:
    """Training step scaled from the example's batch size to any: output bytes of each kind of layer, bytes
    saved outside the layers, and bytes of the loss.
    """

    counts: tuple[tuple[_Kind, int], ...]
    outputs: Mapping[_Kind, int]
    elsewhere_bytes: int
    loss_bytes: int
    samples: int

    def __call__(self, batch: int) -> Workload:
        """Workload at a batch size."""
        factor = batch / self.samples
        return Workload(
            parts=tuple(self._part(kind, count, factor) for kind, count in self.counts),
            kept_bytes=round(self.elsewhere_bytes * factor),
            loss_bytes=round(self.loss_bytes * factor),
        )

    def _part(self, kind: _Kind, count: int, factor: float) -> Part:
        values = dict(kind.problem.values)
        for name in ROWS:
            if name in values:
                values[name] = max(1, round(int(values[name]) * factor))
        return Part(
            name=_short(kind.problem),
            problem=registry.operator(kind.problem.operator).problem(values),
            count=count,
            output_bytes=round(self.outputs[kind] * factor),
            output_kept=kind.output_kept,
            input_kept=kind.input_kept,
            replaceable=kind.replaceable,
            head=kind.problem.operator == HEAD,
        )


def _short(problem: Problem) -> str:
    sizes = (f"{name}={value}" for name, value in problem.values if type(value) is int and name not in ROWS)
    return " ".join((problem.operator, *sizes))


def samples(example_inputs: Any) -> int:
    """The number of samples: the first dimension of the inputs. Raises InvalidRequest where there is none."""
    args, kwargs = arguments_of(example_inputs)
    sizes = [one.size(0) for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.dim()]
    if not sizes or not sizes[0]:
        raise InvalidRequest(
            "example_inputs without samples: expected tensors whose first dimension counts them."
        )
    return int(sizes[0])
