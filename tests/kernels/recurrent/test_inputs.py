"""Inputs of recurrent layers: relu networks stay away from kinks, and their units still change."""

from __future__ import annotations

import pytest
import torch

from kernel_selector.kernels import registry

RNN = registry.operator("rnn")


def outputs(problem, dtype):
    """y of torch's own first layer in a dtype, from the operator's inputs."""
    inputs = RNN.make_inputs(problem, "cpu", 0)
    names = ("hidden", "input", "bidirectional")
    hidden, features, both = (problem[name] for name in names)
    module = torch.nn.RNN(features, hidden, nonlinearity="relu", bidirectional=both).to(dtype)
    own = {name: tensor for name, tensor in inputs.state_dict.items() if name in module.state_dict()}
    module.load_state_dict(own)
    x, h = (argument.to(dtype) for argument in inputs.args)
    return module(x, h[: 1 + both])[0]


@pytest.mark.parametrize(
    "given",
    [
        {"hidden": 128, "batch": 32, "seq": 40},
        {"hidden": 24, "batch": 23, "seq": 32, "bidirectional": True},
        {"hidden": 512, "input": 8, "batch": 4, "seq": 20, "layers": 2},
        {"hidden": 16, "input": 600, "batch": 8, "seq": 20},
        {"hidden": 40, "input": 1, "batch": 6, "seq": 9},
    ],
)
def test_no_rounding_error_turns_a_unit_on_or_off(given):
    problem = RNN.problem({**given, "nonlinearity": "relu", "dtype": "bfloat16"})
    exact, rounded = outputs(problem, torch.float64) > 0, outputs(problem, torch.bfloat16) > 0
    assert (exact != rounded).double().mean() < 1e-6
    assert 0.3 < exact.double().mean() < 0.7
    assert (exact[1:] != exact[:-1]).double().mean() > 0.02


def test_without_a_bias_inputs_are_as_drawn():
    problem = RNN.problem({"hidden": 8, "batch": 3, "seq": 4, "bias": False, "nonlinearity": "relu"})
    x, h = RNN.make_inputs(problem, "cpu", 0).args
    assert (x.shape, h.shape) == ((4, 3, 8), (1, 3, 8))
    assert abs(float(x.mean())) < 0.5
