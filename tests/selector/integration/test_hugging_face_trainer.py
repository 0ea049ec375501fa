"""Hugging Face's Trainer with a model whose layers were replaced, and the example of it in the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import selector
from tests.selector.integration.models import batch, make, optimized, rows, trained_under

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/optimize.md"

pytestmark = trained_under("accelerate")


COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
HOW: dict[str, dict[str, Any]] = {
    "compiled": COMPILED,
    "bfloat16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True, **COMPILED},
    "accumulation": {"gradient_accumulation_steps": 2},
    "smoothed labels": {"label_smoothing_factor": 0.1},
}


def losses(model: Any, folder: Path, **how: Any) -> list[float]:
    """Training losses of two steps, and the loss of an evaluation."""
    from transformers import Trainer, TrainingArguments

    torch._dynamo.reset()
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], max_steps=2, per_device_train_batch_size=2, logging_steps=1,
        learning_rate=0.01, lr_scheduler_type="constant", save_strategy="no", disable_tqdm=True, **how,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows(), eval_dataset=rows(4))
    trainer.train()
    trained = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    trainer.save_model(str(folder / "saved"))
    return [*trained, trainer.evaluate()["eval_loss"]]


@pytest.mark.parametrize(
    ("family", "loss_alone", "how"),
    [
        ("gpt2", True, "compiled"),
        ("gpt2", True, "bfloat16"),
        ("gpt2", True, "accumulation"),
        ("gpt2", True, "smoothed labels"),
        ("bert", True, "checkpointing"),
        ("llama", False, "compiled"),
    ],
)
def test_losses_are_those_of_the_model_as_it_was(
    family: str, loss_alone: bool, how: str, tmp_path: Path
) -> None:
    expected = losses(make(family), tmp_path / "theirs", **HOW[how])
    model = optimized(make(family), loss_alone=loss_alone)
    found = losses(model, tmp_path / "ours", **HOW[how])
    assert found == pytest.approx(expected, rel=5e-3 if how == "bfloat16" else 1e-4)
    assert len(expected) == 3
    loss = model.eval()(**batch()).loss
    assert selector.restore(model) > 0  # while what the Trainer wrapped it in keeps its forward
    restored = model(**batch())
    torch.testing.assert_close(restored.loss, loss, rtol=1e-2, atol=0)
    assert restored.logits is not None
    loaded = type(model).from_pretrained(tmp_path / "ours/saved")
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_the_example_of_the_documents_runs(tmp_path: Path) -> None:
    fences = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    (source,) = (one for one in fences if "Trainer(" in one)
    assert len(source.splitlines()) <= 10
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "A step (forward and backward)" in done.stdout
    assert "train_loss" in done.stdout
