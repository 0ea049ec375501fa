"""The persistent kernel without a GPU: what it refuses, how it is laid out, and that all of it compiles."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from itertools import product

import pytest
import torch

from kernel_selector.kernels import devices, registry
from kernel_selector.kernels.recurrent.layer import GRU, LSTM, RNN_RELU, RNN_TANH, Weights
from kernel_selector.kernels.recurrent.persistent.layer import projected, recurrent_bias
from kernel_selector.kernels.recurrent.persistent.loop import SOURCE, defines
from kernel_selector.kernels.recurrent.persistent.plan import (
    SHARED_LIMIT,
    Plan,
    Shape,
    plan,
    plans,
    refused_plan,
)
from kernel_selector.kernels.runtime import nvrtc

H200 = devices.known_device("h200")
MULTIPROCESSORS = 132


def refusal(operator: str = "lstm", device: object = H200, **given: object) -> str | None:
    problem = registry.operator(operator).problem(
        **{"hidden": 512, "batch": 16, "dtype": "bfloat16", **given}
    )
    return registry.implementation(operator, "persistent").unsupported(problem, device)


@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_takes_the_sizes_that_fit(operator: str, mode: str) -> None:
    for hidden, batch in product((2, 100, 128, 512, 650, 1024, 1536, 2048), (1, 16, 250)):
        assert refusal(operator, hidden=hidden, batch=batch, mode=mode) is None, (hidden, batch)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "float32"}, "16 bits"),
        ({"hidden": 33}, "odd"),
        ({"hidden": 8192}, "do not fit"),
        ({"projection": 64}, "projections"),
        ({"peepholes": True}, "peepholes"),
    ],
)
def test_says_what_it_does_not_do(given: dict[str, object], reason: str) -> None:
    assert reason in str(refusal(**given))


def test_refuses_other_gpus_and_unknown_ones() -> None:
    assert "9.0" in str(refusal(device=devices.known_device("a100 40gb")))
    assert "not known" in str(refusal(device=replace(H200, multiprocessors=None)))


def test_a_device_with_fewer_multiprocessors_takes_less() -> None:
    small = replace(H200, multiprocessors=16)
    assert refusal(hidden=256, device=small) is None
    assert "16 multiprocessors" in str(refusal(hidden=1024, device=small))


SHAPES = [
    Shape(cell, hidden, batch, directions, backward)
    for cell, hidden, batch, directions, backward in product(
        (LSTM, GRU, RNN_TANH), (2, 100, 512, 1000, 2048), (1, 33, 256), (1, 2), (False, True)
    )
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_layouts_cover_the_problem_and_fit_the_chip(shape: Shape) -> None:
    for layout in plans(shape, MULTIPROCESSORS):
        assert layout.blocks <= MULTIPROCESSORS
        assert layout.shared_bytes <= SHARED_LIMIT
        assert layout.groups // shape.directions * layout.tiles * layout.columns >= shape.batch
        assert layout.clusters * layout.ranks * layout.units >= shape.hidden
        assert (layout.register_chunks + layout.shared_chunks) * 3 * layout.ranks >= shape.chunks


def test_the_plan_is_the_layout_of_least_estimated_time() -> None:
    shape = Shape(LSTM, 1024, 64, 1, False)
    chosen = plan(shape, MULTIPROCESSORS)
    assert isinstance(chosen, Plan)
    assert chosen.step_us(shape) == min(one.step_us(shape) for one in plans(shape, MULTIPROCESSORS))


def test_a_shape_is_refused_where_no_layout_is_found_and_in_the_same_words() -> None:
    refused = 0
    for shape, multiprocessors in product(SHAPES, (1, 16, MULTIPROCESSORS)):
        found = plan(shape, multiprocessors)
        reason = found if isinstance(found, str) else None
        assert refused_plan(shape, multiprocessors) == reason
        refused += reason is not None
    assert 0 < refused < 3 * len(SHAPES)


# every branch of the source: cells, passes, dtypes, both protocols, clusters and sums through L2
COMPILED = [
    (Shape(LSTM, 128, 16, 1, False), torch.bfloat16),
    (Shape(LSTM, 1024, 16, 1, True), torch.float16),
    (Shape(LSTM, 1024, 256, 1, False), torch.bfloat16),
    (Shape(LSTM, 2048, 64, 1, True), torch.bfloat16),
    (Shape(GRU, 300, 33, 2, False), torch.float16),
    (Shape(GRU, 1024, 64, 1, True), torch.bfloat16),
    (Shape(RNN_TANH, 1760, 16, 1, False), torch.float16),
    (Shape(RNN_RELU, 512, 128, 1, True), torch.bfloat16),
]


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize(("shape", "dtype"), COMPILED, ids=str)
def test_compiles(shape: Shape, dtype: torch.dtype) -> None:
    layout = plan(shape, MULTIPROCESSORS)
    assert isinstance(layout, Plan)
    code = nvrtc.compiled(SOURCE, "90a", defines(shape, dtype, layout))
    assert code.startswith(b"\x7fELF")
    assert b"recurrent" in code


def test_compiled_code_is_kept_for_the_next_process(folder) -> None:
    shape, dtype = COMPILED[0]
    arguments = (SOURCE, "90a", defines(shape, dtype, plan(shape, MULTIPROCESSORS)))
    first = nvrtc.compiled(*arguments)
    (file,) = folder.iterdir()
    nvrtc.compiled.cache_clear()
    other = first + b"read again"
    file.write_bytes(other + hashlib.sha256(other).digest())
    assert nvrtc.compiled(*arguments) == other


@pytest.mark.usefixtures("folder")
def test_a_layout_that_host_and_kernel_count_differently_does_not_compile() -> None:
    shape, dtype = COMPILED[0]
    wrong = dict(defines(shape, dtype, plan(shape, MULTIPROCESSORS)), SHARED_BYTES=16)
    with pytest.raises(RuntimeError, match=r"kernel\.cu does not compile"):
        nvrtc.compiled(SOURCE, "90a", tuple(wrong.items()))


def test_a_copied_cell_is_the_same_cell() -> None:
    """Modules are copied with their cell: a copied GRU's backward wrote gradients to address 0."""
    cell = copy.deepcopy(GRU)
    assert cell is not GRU
    weights = Weights(torch.zeros(6, 3), torch.zeros(6, 2), torch.ones(6), torch.arange(6.0))
    assert recurrent_bias(cell, weights).tolist() == [4, 5]
    x = torch.zeros(1, 1, 3)
    assert torch.equal(projected(cell, x, weights), projected(GRU, x, weights))
