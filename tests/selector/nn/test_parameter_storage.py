"""Storage of parameters belongs to the caller: drop-in modules, and what `optimize` and `restore` leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import selector
from selector import nn as drop_in
from tests.kernels.helpers import parameter_storage as storage

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
# module of ours and of torch's, arguments, the input's shape, implementations that run on a processor
CASES: tuple[tuple[str, tuple[Any, ...], tuple[int, ...], tuple[Any, ...]], ...] = (
    ("Linear", (9, 7), (3, 9), ("padded", "column_major", "torch_linear", None)),
    ("LSTM", (5, 6, 2), (4, 3, 5), ("hoisted", "recompute", "cell_loop", "unfused", None)),
    ("GRU", (5, 6), (4, 3, 5), ("hoisted", "recompute", "cell_loop", None)),
    ("RNN", (5, 6), (4, 3, 5), ("hoisted", "unfused", None)),
    ("LayerNorm", (6,), (4, 6), (None,)),
    ("RMSNorm", (6,), (4, 6), (None,)),
    (
        "TransformerEncoderLayer",
        (8, 2, 16, 0.0),
        (3, 2, 8),
        (None, {"feed_forward": "recompute_first_linear"}),
    ),
)
EACH = [(name, given, shape, one) for name, given, shape, names in CASES for one in names]


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GLOO_SOCKET_IFNAME", "lo")
        with storage.process_group("gloo"):
            yield


def module_of(name: str, given: tuple[Any, ...], implementation: Any = None) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = getattr(drop_in, name)(*given, implementation=implementation)
    return made


@pytest.mark.parametrize(("name", "given", "shape", "implementation"), EACH)
def test_storage_is_kept(name: str, given: Any, shape: Any, implementation: Any) -> None:
    args = (torch.randn(shape),)
    storage.assert_kept(module_of(name, given, implementation), args, dtypes=False)
    flat = storage.flattened(module_of(name, given, implementation))
    next(flat.parameters()).requires_grad_(False)
    storage.assert_kept(flat, args, dtypes=False)


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("name", "given", "shape", "implementation"), EACH)
@pytest.mark.usefixtures("one_process")
def test_steps_under_a_wrapper_are_torchs(
    name: str, given: Any, shape: Any, implementation: Any, how: str
) -> None:
    args = (torch.randn(shape),)
    torch.manual_seed(0)
    theirs = storage.losses(getattr(nn, name)(*given), args, "bare")
    ours = storage.losses(module_of(name, given, implementation), args, how)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_tied_weights_stay_tied() -> None:
    first, second = (drop_in.Linear(6, 6, implementation="column_major") for _ in range(2))
    second.weight = first.weight
    storage.assert_kept(nn.Sequential(first, second), (torch.randn(3, 6),), dtypes=False)
    assert second.weight is first.weight


def test_restore_gives_back_module_and_parameters_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))
    odd = model.get_submodule("4")
    odd.weight = nn.Parameter(torch.randn(6, 6).t())  # the user's own strides
    tied: Any = model.get_submodule("2")
    tied.weight = model.get_submodule("0").weight
    x, before, parts = torch.randn(3, 6), storage.of(model), [(id(one), type(one)) for one in model.modules()]
    report = selector.optimize(model, x, overrides={"linear": "column_major"})
    assert len(report.replaced) == 3
    assert storage.of(model) == before
    storage.step(model, (x,), torch.optim.AdamW(model.parameters(), fused=True))
    assert storage.of(model) == before
    assert selector.restore(model) == 3
    assert storage.of(model) == before
    assert [(id(one), type(one)) for one in model.modules()] == parts
