"""Shared parts of the references: layers and directions around one step's equations, in any precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..contract import Problem
from .layer import States
from .operator import directions, parameter_shapes


class Parameters(NamedTuple):
    """Parameters of one direction of one layer; biases that a problem does not have are zero."""

    w_ih: Tensor  # [G*H, I]
    w_hh: Tensor  # [G*H, P]
    b_ih: Tensor  # [G*H] or []
    b_hh: Tensor  # [G*H] or []
    w_hr: Tensor | None  # [P, H]
    w_peephole: Tensor | None  # [3, H]


class Stacked(nn.Module):
    """Multi-layer, bidirectional, with the parameter names of torch's module; nothing is dropped out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.layers, self.directions = problem["layers"], directions(problem)
        self.batch_first = problem["batch_first"]
        for name, shape in parameter_shapes(problem).items():
            value = torch.empty(shape).uniform_(-(problem["hidden"] ** -0.5), problem["hidden"] ** -0.5)
            self.register_parameter(name, nn.Parameter(value))

    def step(self, x_t: Tensor, states: States, w: Parameters) -> States:
        """The equations: x_t [B, I] and the states of one direction, h first, to the states after it."""
        raise NotImplementedError

    def forward(self, x: Any, states: Any) -> tuple[Any, Any]:
        """x and the initial states, to y and the last states, as torch's module."""
        initial = states if isinstance(states, tuple) else (states,)
        if isinstance(x, PackedSequence):
            padded, lengths = pad_packed_sequence(x)  # [T, B, I], [B]
            y, last = self._run(padded, initial, lengths.to(padded.device))
            y = pack_padded_sequence(y, lengths, enforce_sorted=False)
        elif self.batch_first:
            y, last = self._run(x.transpose(0, 1), initial, None)
            y = y.transpose(0, 1)
        else:
            y, last = self._run(x, initial, None)
        return y, last if isinstance(states, tuple) else last[0]

    def _run(self, x: Tensor, initial: States, lengths: Tensor | None) -> tuple[Any, States]:
        ends = []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                row = layer * self.directions + direction
                times = range(len(x)) if direction == 0 else range(len(x))[::-1]
                states, h_all = tuple(state[row] for state in initial), {}
                parameters = self._parameters_of(layer, direction)
                for t in times:
                    after = self.step(x[t], states, parameters)
                    if lengths is not None:  # a sequence that has ended, or not begun from its end
                        there = (t < lengths).unsqueeze(1)  # [B, 1]
                        after = tuple(
                            torch.where(there, new, old) for new, old in zip(after, states, strict=True)
                        )
                    states = after
                    h_all[t] = states[0]
                outputs.append(torch.stack([h_all[t] for t in range(len(x))]))  # [T, B, P]
                ends.append(states)
            x = torch.cat(outputs, -1)  # [T, B, D*P]
        return x, tuple(map(torch.stack, zip(*ends, strict=True)))

    def _parameters_of(self, layer: int, direction: int) -> Parameters:
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        own = dict(self.named_parameters())
        w_ih, w_hh = own[f"weight_ih{suffix}"], own[f"weight_hh{suffix}"]
        zero = w_ih.new_zeros(())
        biases = (own.get(f"bias_{kind}{suffix}", zero) for kind in ("ih", "hh"))
        others = (own.get(f"weight_{kind}{suffix}") for kind in ("hr", "peephole"))
        return Parameters(w_ih, w_hh, *biases, *others)
