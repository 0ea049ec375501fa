"""Models of Hugging Face as a planner sees them: what a step holds, and what it takes at its peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import selector
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Memory, Problem
from kernel_selector.kernels.measure.memory import measure_memory
from kernel_selector.kernels.measure.workload import Workload
from selector.models import layers
from selector.models.as_model import traced
from selector.models.rewriting.options import rewritable
from selector.models.saved_tensors import HEAD
from selector.planning import planner
from selector.planning.training_setup import Training
from selector.workloads.model import Part
from tests.selector import replay

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

MIB = 2**20
BATCH, SEQ, HIDDEN, WORDS = 4, 32, 64, 10_000
QUIET = Training(optimizer="none", recompute=False, cuda_graphs=True, margin=0.0)


def gpt2(dtype: torch.dtype = torch.float32, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=HIDDEN, n_layer=2, n_head=2, n_positions=SEQ, use_cache=False, **more
    )
    found: nn.Module = transformers.GPT2LMHeadModel(config).to(dtype).train()
    return found


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=SEQ,
    )
    found: nn.Module = transformers.BertForMaskedLM(config).train()
    return found


def words() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, WORDS, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids.clone()}


def step_bytes(model: nn.Module, given: dict[str, torch.Tensor]) -> int:
    """The peak of a whole step, its outputs kept until the end, and the parameters."""

    def run(_index: int, mark: Any) -> None:
        outputs = model(**given)
        mark()
        outputs.loss.backward()

    found = measure_memory(run, "cpu").peak_bytes
    return found + sum(one.numel() * one.element_size() for one in model.parameters())


@pytest.mark.usefixtures("here", "sqlite_database")
@pytest.mark.parametrize("make", [gpt2, bert, lambda: gpt2(torch.bfloat16)], ids=["gpt2", "bert", "16 bits"])
def test_the_peak_of_a_step_is_foretold(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of it is the loss: logits, their logarithms, and two gradients, in float32 for all GPT-2s."""
    rates = {"float32": 4e11, "bfloat16": 4e11}
    probed = replace(replay.HERE, matmul_flops_per_s=rates)
    monkeypatch.setattr("selector.selection.devices._probed", lambda _: probed)
    model = make()
    found = selector.plan(rewritable(model, words()), "cpu", "4GiB", BATCH, training=QUIET)
    assert found.peak_bytes == pytest.approx(step_bytes(model, words()), rel=0.05)


def head_memory(problem: Problem, name: str) -> Memory:
    """What the gate's clock would count for a loss head."""
    inputs = registry.operator(HEAD).make_inputs(problem, "cpu", 0)
    module, workload = registry.implementation(HEAD, name).build(problem), Workload(problem, inputs)
    module.load_state_dict(dict(inputs.state_dict))
    run = workload.whole(module)
    run(0, lambda: None)  # what is made once
    return measure_memory(run, "cpu", forgotten=workload.forgotten(module))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["torch_linear_cross_entropy", "gathered_aligned"])
@pytest.mark.parametrize("make", [gpt2, pytest.param(bert, marks=pytest.mark.full)])
def test_the_peak_of_a_step_without_logits_is_foretold(
    make: Any, name: str, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = replace(replay.HERE, matmul_flops_per_s={"float32": 4e11})
    monkeypatch.setattr("selector.selection.devices._probed", lambda _: probed)
    model, given = make(), words()
    given["labels"][:, ::3] = -100
    (problem,) = [one.problem for one in layers.find(model, given) if one.problem.operator == HEAD]
    measured = replay.record(problem, name, time_ms=0.001, memory_bytes=0)
    with sqlite_database.write() as connection:
        records.add(connection, records=[replace(measured, memory=head_memory(problem, name))])
    others = tuple(f"{HEAD}.{one}" for one in registry.implementations(HEAD) if one != name)
    training = replace(QUIET, exclude=others)
    without = rewritable(model, given, ("loss",))
    found = selector.plan(without, "cpu", "4GiB", BATCH, training=training, database=sqlite_database)
    report = selector.optimize(model, given, plan=found, outputs=("loss",), database=sqlite_database)
    assert [one.implementation for one in report.replaced if one.problem.operator == HEAD] == [name]
    assert found.peak_bytes == pytest.approx(step_bytes(model, given), rel=0.05)


def parts(model: nn.Module, fixed: tuple[str, ...] = ()) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in traced(model, words(), logits=True, fixed=fixed).workload(BATCH).parts:
        found.setdefault(part.problem.operator, []).append(part)
    return found


def test_what_the_next_operation_looks_at_alone_is_not_kept() -> None:
    found = parts(bert())
    (feed_forward,) = found["feed_forward"]
    assert not feed_forward.output_kept  # dropout keeps its mask, and a sum nothing
    assert feed_forward.output_bytes == BATCH * SEQ * HIDDEN * 4
    (sums,) = found["dropout_add_norm"]
    assert (sums.output_kept, sums.input_kept) == (True, True)
    shapes = {(one.problem["out_features"], one.output_kept): one.count for one in found["linear"]}
    # query, key, value and the head's first; the products behind attention; logits, which are an output
    assert shapes == {(HIDDEN, True): 2 * 3 + 1, (HIDDEN, False): 2, (WORDS, True): 1}
    assert [(one.output_kept, one.input_kept) for one in found["layer_norm"]] == [
        (False, False),  # of the embeddings' sum, which nobody else keeps, before dropout
        (True, True),
    ]


def test_what_layers_alone_keep_of_others_sums_counts_with_them() -> None:
    (norms,) = parts(gpt2())["layer_norm"]
    assert (norms.count, norms.output_kept, norms.input_kept) == (5, True, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_beside_attention_keeps_a_byte_an_element(dtype: torch.dtype) -> None:
    """Within the module that calls attention there is one whose mask is none of attention's."""
    model, without = gpt2(dtype), gpt2(dtype, resid_pdrop=0.0, embd_pdrop=0.0)
    kept, others = (traced(one, words()).workload(BATCH).kept_bytes for one in (model, without))
    assert kept - others == (2 * 2 + 1) * BATCH * SEQ * HIDDEN  # two of each block, and the embeddings'


def test_what_cannot_be_replaced_is_planned_as_it_is() -> None:
    model = gpt2()
    workload = rewritable(model, words()).workload(BATCH)
    stays = {part.problem["out_features"] for part in workload.parts if not part.replaceable}
    assert stays == {HIDDEN, 3 * HIDDEN}  # Conv1D; the head is a linear layer
    both = parts(model, fixed=("transformer.ln_f",))["layer_norm"]
    assert sorted((part.count, part.replaceable) for part in both) == [(1, False), (4, True)]


def test_a_loss_that_is_part_of_a_layer_counts_there_alone() -> None:
    (head,) = [one for one in traced(gpt2(), words()).workload(BATCH).parts if one.head]
    assert head.output_bytes == 0
    assert traced(gpt2(), words()).workload(BATCH).loss_bytes == 0
    logits = 4 * BATCH * SEQ * WORDS
    assert traced(gpt2(), words(), logits=True).workload(BATCH).loss_bytes == pytest.approx(
        3 * logits, rel=0.01
    )


def test_libraries_take_memory_of_a_gpu() -> None:
    gpu = replace(replay.HERE, kind="cuda", compute_capability=(9, 0))
    assert planner.library_bytes(gpu) == 64 * MIB
    assert planner.library_bytes(replace(gpu, compute_capability=(8, 0))) == 16 * MIB + 2**18
    assert planner.library_bytes(replay.HERE) == 0
