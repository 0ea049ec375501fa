"""`torch_compile` with a stand-in for torch.compile, which takes its time."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate


@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
def test_a_compiled_step_is_one_graph_for_all_steps(operator, monkeypatch):
    seen = []

    def compile_eagerly(function, **_options):
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    problem = registry.operator(operator).problem(
        hidden=7, input=4, batch=3, seq=5, bidirectional=True, dtype="bfloat16"
    )
    module = registry.implementation(operator, "torch_compile").build(problem)
    result = Gate(problem, "cpu").check(module)
    assert result.passed, result.detail
    assert len(seen) == 1
    assert "C++ compiler" in registry.implementation(operator, "torch_compile").unsupported(problem, CPU)
    assert registry.implementation(operator, "torch_compile").unsupported(problem, H200) is None
