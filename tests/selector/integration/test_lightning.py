"""Lightning's Trainer with models whose layers were replaced, wherever that is done."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from selector.models.rewriting import compilation
from tests.selector.integration.models import trained_under

pytestmark = trained_under("lightning")


OVERRIDES = {"lstm": "hoisted", "layer_norm": "stand_in", "linear": "column_major", "gelu": "stand_in"}
X = torch.randn(8, 5, 6, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """x [B, T, 6] to y [B, T, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.norm = nn.LSTM(6, 8, batch_first=True), nn.LayerNorm(8)
        self.gelu, self.head = nn.GELU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.gelu(self.norm(self.lstm(x)[0])))
        return y


def replaced(model: nn.Module) -> None:
    assert len(selector.optimize(model, X[:2], overrides=OVERRIDES).replaced) == 4


@cache
def module_class() -> Any:
    """Class of the model with its layers replaced at some time."""
    from lightning import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self, when: str = "never") -> None:
            super().__init__()
            self.model, self.when, self.losses = Model(), when, []
            if when in ("made", "compiled"):
                replaced(self.model)
            if when == "compiled":
                torch._dynamo.reset()
                compilation.compile_in_place(self.model, backend="aot_eager", fullgraph=True)

        def configure_model(self) -> None:
            if self.when == "configured":
                replaced(self)

        def on_fit_start(self) -> None:
            if self.when == "fitted":
                replaced(self)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.model(x)
            return y

        def training_step(self, x: Tensor, _number: int) -> Tensor:
            loss = self(x).float().square().mean()
            self.losses.append(loss.item())
            return loss

        def validation_step(self, x: Tensor, _number: int) -> None:
            self.log("loss", self(x).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module


def fitted(when: str, folder: Path, **how: Any) -> Any:
    """A module after two epochs, whose checkpoint computes the same."""
    from lightning import Trainer

    module = module_class()(when)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **how,
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(X, batch_size=2)
    trainer.fit(module, batches, batches)
    trainer.save_checkpoint(folder / "checkpoint")
    loaded = module_class().load_from_checkpoint(folder / "checkpoint")
    torch.testing.assert_close(loaded(X), module(X))
    return module


@pytest.mark.parametrize("how", [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}], ids=str)
def test_losses_are_those_of_the_model_as_it_was(how: dict[str, Any], tmp_path: Path) -> None:
    # torch's own LSTM under autocast asks oneDNN for one in bfloat16, which fails on a CPU without AVX-512
    with torch.backends.mkldnn.flags(enabled="precision" not in how):
        expected = fitted("never", tmp_path, **how).losses
        assert len(expected) == 8
        for when in ("made", "compiled", "configured", "fitted"):
            found = fitted(when, tmp_path, **how)
            assert found.losses == pytest.approx(expected, rel=1e-2 if "precision" in how else 1e-4), when
            assert selector.restore(found) >= 4
