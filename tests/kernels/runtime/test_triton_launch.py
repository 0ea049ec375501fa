"""What launches are told apart by, on the CPU; test_triton_launch_gpu.py starts kernels."""

import itertools

import pytest
import torch

from kernel_selector.kernels.runtime import triton_launch

MEMORY = torch.zeros(64, dtype=torch.bfloat16)
BESIDE = {  # each pair is one kernel to Triton, so that it may be compiled for one and started for the other
    "addresses": (MEMORY[8:], MEMORY[16:]),
    "numbers": (17, 33),
    "tens": (32, 48),
    "fractions": (0.5, 1.0),
}
APART = (
    MEMORY[8:], MEMORY[1:], MEMORY.float(), None, 1, 2, 16, 2**31 + 1, 2**32, 2**63, 1.0, True,
)  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_triton_compiles_once_is_known_again(name):
    first, second = BESIDE[name]
    assert triton_launch._seen((first,))[1] == triton_launch._seen((second,))[1]


def test_what_triton_compiles_apart_is_told_apart():
    keys = [triton_launch._seen((one,))[1] for one in APART]
    for (one, key), (other, another) in itertools.combinations(zip(APART, keys, strict=True), 2):
        assert key != another, (one, other)


def test_tensors_are_passed_by_address_and_unknown_things_are_never_remembered():
    passed, key = triton_launch._seen((MEMORY, 3, "text"))
    assert passed == [MEMORY.data_ptr(), 3, "text"]
    assert key[-1] is None


def test_a_kernel_on_which_ptxas_gave_up_is_refused():
    """As 32x128x128 with 4 warps was compiled for matrices of odd strides: one row of each tile was wrong."""

    class Compiled:
        n_regs, n_spills = 32, 1296

    class Kernel:
        __name__ = "matmul_kernel"

        def __getitem__(self, grid):
            return lambda *_given, **_constants: Compiled

    with pytest.raises(RuntimeError, match=r"matmul_kernel: ptxas gave up .* spilled 1296.*Choose another"):
        triton_launch.launch(Kernel(), (1,), torch.zeros(32))
    for Compiled.n_regs, Compiled.n_spills in ((255, 1296), (32, 2)):  # many kernels spill, and are right
        triton_launch.launch(Kernel(), (1,), torch.zeros(32))


def test_a_second_launch_starts_the_compiled_kernel_and_hooks_bring_triton_back(monkeypatch):
    """With a kernel that notes how it is started."""
    started = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **constants: started.append(("triton", grid, len(given), constants))

    kernel, hook = Kernel(), []
    ready = triton_launch._Ready(
        kernel, lambda *given: started.append(given), 7, "metadata", ("relu", 1024), (hook,)
    )
    monkeypatch.setattr(triton_launch, "_known", lambda *_: True)
    monkeypatch.setattr(triton_launch, "_of", lambda *_: ready)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 99, raising=False)
    x = torch.zeros(32)
    for _ in range(2):
        triton_launch.launch(kernel, (4, 2), x, 32, KIND="relu", BLOCK=1024)
    hook.append(print)
    triton_launch.launch(kernel, (4, 2), x, 32, KIND="relu", BLOCK=1024)
    triton_launch.launch(kernel, (0, 2), x, 32, KIND="relu", BLOCK=1024)  # no programs, no launch
    by_triton = ("triton", (4, 2), 2, {"KIND": "relu", "BLOCK": 1024})
    by_memory = (4, 2, 1, 99, 7, "metadata", None, None, None, x.data_ptr(), 32, "relu", 1024)
    assert started == [by_triton, by_memory, by_triton]
