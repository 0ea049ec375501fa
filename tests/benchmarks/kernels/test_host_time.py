"""Layers whose results are wrong are not timed by the benchmark of the host's time."""

import pytest
import torch
from torch import nn

from benchmarks.kernels.host_time import Judged


@pytest.mark.parametrize(
    ("of_output", "of_gradient", "fault"),
    [(1.0, 1.0, None), (1.02, 1.0, "output[0] is off by"), (1.0, 1.05, "gradient of argument[0] is off by")],
)
def test_a_wrong_output_or_gradient_is_found(of_output, of_gradient, fault):
    torch.manual_seed(1)
    inputs = [torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True)]
    torchs, planted = (nn.LayerNorm(256, dtype=torch.bfloat16) for _ in range(2))
    layer = planted.forward

    def wrong(x):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * of_gradient)
        return layer(x) * of_output

    planted.forward = wrong
    found = Judged(torchs, inputs).fault(planted)
    assert found == "" if fault is None else found.startswith(fault)
