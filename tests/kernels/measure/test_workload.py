"""What candidates run on: copies of the inputs that keep their structure."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Inputs
from kernel_selector.kernels.measure.workload import Workload

PROBLEM = registry.operator("lstm").problem(hidden=3, batch=2, seq=4)


def test_a_packed_sequence_stays_one_and_its_data_need_a_gradient() -> None:
    packed = pack_sequence([torch.randn(2, 3), torch.randn(4, 3)], enforce_sorted=False)
    state = (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    workload = Workload(PROBLEM, Inputs((packed, state), {}))
    assert len(workload.sets) >= 2
    for x, states in workload.sets:
        assert isinstance(x, PackedSequence)
        assert x.data.requires_grad
        assert x.data is not packed.data
        assert torch.equal(x.data, packed.data)
        assert torch.equal(x.batch_sizes, packed.batch_sizes)
        assert torch.equal(x.sorted_indices, packed.sorted_indices)
        assert isinstance(states, tuple)
    marks: list[bool] = []
    workload.whole(nn.LSTM(3, 3))(0, lambda: marks.append(True))
    assert marks == [True]
