"""All time steps of a problem, where fewer are judged in full: against torch's own in a wider format.

The equations in float64 go step by step, and in training keep each step's tensors: at thousands of steps that
takes minutes, or more memory than there is. Torch's own needs neither. It runs some sequences of the batch at
a time, so that what it keeps for backward is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import Problem
from ..runtime.out_of_memory import is_out_of_memory
from .answer import Answer
from .runs import Runs, flatten, map_tensors, only_real

KEPT_BYTES = 2**30  # that a chunk may keep for backward, about
KEPT_PER_STEP = 12  # tensors of [batch, hidden] that a layer keeps of each step
KEPT_PER_PAIR = 4  # tensors of [batch, heads, queries, keys] that attention keeps where it is written out


class LongerAnswer(Answer):
    """The answer for all steps, by torch's default implementation in float32, or float64 for wider problems.

    By the equations where the default does not take the problem. TF32 is not used: it rounds as float16 does.
    """

    def __init__(self, runs: Runs) -> None:
        self._wide = torch.float32 if runs.dtype.itemsize == 2 else torch.float64
        steps = f"all {runs.problem['seq']} steps: "
        super().__init__(runs, steps, of="the RMS of torch's own in a wider format")

    def _reference(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        problem = self.runs.problem
        default = registry.implementation(problem.operator, registry.operator(problem.operator).default)
        try:
            return self._split(*self._in_chunks(self.runs.build(default.build)))
        except Exception as error:  # the bound's note says why
            if is_out_of_memory(error):
                raise
            if self.runs.torch_device != "cpu":
                torch.cuda.synchronize()
            return self._split(*self._in_chunks(self.runs.build(registry.reference)))

    def _in_chunks(self, module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `results`, by some sequences at a time: what belongs to one is joined, all else added up."""
        self.runs.load(module, self._wide)
        problem = self.runs.problem
        size = _sequences(problem, self._wide.itemsize)
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            if size is None or size >= problem["batch"]:
                return self.results(module, self.runs.arguments(self._wide))
            found: dict[str, list[Tensor]] = defaultdict(list)
            for start in range(0, problem["batch"], size):
                for name, tensor in self._chunk(module, start, min(size, problem["batch"] - start)).items():
                    found[name].append(tensor)
        joined = {}
        for name, parts in found.items():
            axis = self._axis(name, parts[0])
            joined[name] = sum(parts[1:], parts[0]) if axis is None else torch.cat(parts, axis)
        outputs = {name: tensor for name, tensor in joined.items() if name.startswith("output")}
        return outputs, {name: tensor for name, tensor in joined.items() if name not in outputs}

    def _chunk(self, module: nn.Module, start: int, size: int) -> dict[str, Tensor]:
        """Outputs and gradients of so many sequences."""
        names = iter(flatten("argument", self.runs.inputs.args))

        def part(tensor: Tensor) -> Tensor:
            axis = self._axis(next(names), tensor)
            own = tensor if axis is None else tensor.narrow(axis, start, size)
            return own.detach().clone().requires_grad_(tensor.requires_grad)

        arguments: tuple[Any, ...] = map_tensors(part, self.runs.arguments(self._wide))
        with self.runs.dropping(module, 0.0), self.runs.grad_mode():
            outputs = only_real(flatten("output", module(*arguments)))
        if not self.runs.training:
            return outputs
        whole = {name: self._of_all(name, output) for name, output in outputs.items()}
        upstream = [
            weight.narrow(self._axis(name, weight) or 0, start, size)
            for name, weight in self.runs.weights(whole).items()
        ]
        leaves = self.runs.leaves(module, arguments)
        gradients = torch.autograd.grad(list(outputs.values()), list(leaves.values()), upstream)
        found = {name: output.detach() for name, output in outputs.items()}
        return found | dict(zip(leaves, gradients, strict=True))

    def _of_all(self, name: str, output: Tensor) -> Tensor:
        """Something of the shape that an output has for all sequences."""
        axis, shape = self._axis(name, output) or 0, list(output.shape)
        shape[axis] = self.runs.problem["batch"]
        return output.detach().narrow(axis, 0, 1).expand(shape)

    def _axis(self, name: str, tensor: Tensor) -> int | None:
        """Along which axis a tensor has its sequences; None: it belongs to all."""
        problem = self.runs.problem
        if "parameter" in name or tensor.dim() < 3:
            return None
        if "heads" in problem.as_dict:
            return 0 if tensor.dim() == 4 else None  # of attention; a bias of heads is of all sequences
        of_steps = name.removeprefix("gradient of ") in ("argument[0]", "output[0]")
        return 0 if of_steps and problem["batch_first"] else 1


def _sequences(problem: Problem, element_bytes: int) -> int | None:
    """How many sequences a chunk has; None where it is not known how to take them apart."""
    values: Any = problem.as_dict
    if "layers" in values and not problem["packed"]:
        states = problem["layers"] * (1 + problem["bidirectional"]) * problem["hidden"]
        each: int = problem["seq"] * states * KEPT_PER_STEP
    elif "heads" in values and "kv_seq" in values:
        each = problem["heads"] * problem["seq"] * problem["kv_seq"] * KEPT_PER_PAIR
    else:
        return None
    return max(1, KEPT_BYTES // (each * element_bytes))
