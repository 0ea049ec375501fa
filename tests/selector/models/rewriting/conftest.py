"""A model of blocks and what it is called with; files with others have fixtures of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_selector.kernels.runtime import torch_compile
from selector import Selector
from selector.models.rewriting import options, trials
from selector.models.rewriting.paired_timing import Outcome, outcome
from tests.selector.models.rewriting.compiled import compile_by
from tests.selector.models.rewriting.replayed import Model


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step times of a report in a fifth of a second: nothing is decided by them, and each call takes some."""
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `arrangements`, replacements and replay alone are tried."""
    monkeypatch.setattr(options, "TRIED", ("ours", "replayed"))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().train()


@pytest.fixture
def given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 2, generator=generator), torch.rand(5, 4, generator=generator)


@pytest.fixture
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is tried takes half of the time: what is replaced then does not depend on a clock."""

    def time_pairs(before: Callable[[int], Any], after: Callable[[int], Any], *_: Any, **__: Any) -> Outcome:
        before(1), after(1)
        return outcome([(2.0, 1.0)] * 7)

    monkeypatch.setattr(trials, "time_pairs", time_pairs)


@pytest.fixture
def relu_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of other machines say that the stand-in for ReLU is faster."""
    choose = Selector.choose

    def promising(self: Selector, operator: str, **more: Any) -> Any:
        found = choose(self, operator, **{**more, "override": "stand_in" if operator == "relu" else None})
        return replace(found, source="model") if found.source == "override" else found

    monkeypatch.setattr(Selector, "choose", promising)


@pytest.fixture
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` traces, and runs what it traced as it is; CUDA graphs are as if there were a GPU."""
    compile_by(monkeypatch, "eager")
    monkeypatch.setattr(trials.Trials, "peak_bytes", lambda *_: 2**20)
    monkeypatch.setattr(torch_compile, "unavailable", lambda _: None)
    monkeypatch.setattr("selector.models.rewriting.optimize.ON_GPUS_ALONE", ())
    yield
    torch._dynamo.reset()
