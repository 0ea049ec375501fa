import pytest
import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Inputs
from kernel_selector.kernels.measure.memory import measure_memory
from kernel_selector.kernels.measure.workload import Workload, tensors

ROWS, FEATURES = 64, 256
BYTES = ROWS * FEATURES * 4


class Saving(nn.Module):
    """Keeps exp(x), `kept` times over, for backward; makes and drops a temporary of 3 times the input."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x):
        torch.ones(3 * ROWS, FEATURES)
        for _ in range(self.kept):
            x = x.exp()
        return x


def workload(mode: str) -> Workload:
    problem = registry.operator("lstm").problem(hidden=8, batch=2, mode=mode)
    return Workload(problem, Inputs((torch.zeros(ROWS, FEATURES),), {}))


def memory(module: nn.Module, mode: str):
    load = workload(mode)
    with load.grad_mode():
        return measure_memory(load.whole(module), "cpu", forgotten=load.forgotten(module))


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_what_backward_needs_is_held(kept):
    # exp keeps its result: the last one is the output, which is held as well
    measured = memory(Saving(kept), "training")
    assert measured.held_bytes == kept * BYTES


@pytest.mark.parametrize(
    ("module", "kept"),
    [
        (nn.Tanh(), 0),  # keeps its output
        (nn.GELU(), BYTES),
        (nn.Linear(FEATURES, 1), BYTES),
        (nn.Identity(), BYTES),  # the output is the argument
        (Saving(2), 0),
    ],
)
def test_arguments_that_backward_needs_are_told_apart(module, kept):
    assert memory(module, "training").kept_argument_bytes == kept


def test_a_temporary_is_workspace_and_makes_the_peak():
    measured = memory(Saving(1), "training")
    assert measured.workspace_bytes == 3 * BYTES - BYTES  # it is gone before the output is made
    assert measured.peak_bytes == 3 * BYTES


def test_gradients_of_the_arguments_count_for_the_peak():
    # backward holds two of three gradients of the chain beside the three kept tensors
    measured = memory(Saving(3), "training")
    assert measured.peak_bytes >= 3 * BYTES + BYTES


def test_in_inference_only_the_output_stays():
    measured = memory(Saving(5), "inference")
    assert measured.held_bytes == BYTES
    assert measured.peak_bytes == 3 * BYTES


def test_parameters_and_inputs_do_not_count():
    module = nn.Linear(FEATURES, 1)
    measured = memory(module, "inference")
    assert measured.held_bytes == ROWS * 4


def test_a_weight_gradient_counts():
    measured = memory(nn.Linear(FEATURES, FEATURES, bias=False), "training")
    assert measured.held_bytes == BYTES
    assert measured.peak_bytes >= BYTES + FEATURES * FEATURES * 4


def test_input_sets_are_copies_that_need_gradients_in_training():
    load = workload("training")
    assert len(load.sets) >= 2
    assert all(tensor.requires_grad for args in load.sets for tensor in tensors(args))
    assert not any(tensor.requires_grad for args in workload("inference").sets for tensor in tensors(args))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_counts_the_same():
    problem = registry.operator("lstm").problem(hidden=8, batch=2, mode="training")
    load = Workload(problem, Inputs((torch.zeros(ROWS, FEATURES, device="cuda"),), {}))
    assert measure_memory(load.whole(Saving(5)), "cuda:0").held_bytes == 5 * BYTES
