"""Hugging Face's BERT, RoBERTa and GPT-2 with random weights, as they come and after `selector.optimize`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.peers import chunked_loss
from benchmarks.common.result import versions_of
from benchmarks.kernels._bert_layer import compiler
from benchmarks.models._catalogue import Family, Subject, subject
from benchmarks.models._parts import Parts
from benchmarks.models._transformer import Sizes, make_batch
from benchmarks.models._variants import Variant, replay_blocks
from selector.models.replay.replay import find

if TYPE_CHECKING:
    from selector.planning.plan import Plan

OUTPUTS = ("loss",)  # all that a step of training uses
MODELS = ("bert-base", "bert-large", "roberta-base", "roberta-large", "gpt2", "gpt2-medium")
PADDING = 2  # positions that RoBERTa leaves out


class Loss(nn.Module):
    """One of their models that gives the loss alone, `chunked` without all logits at once. `used` collects
    what replaced its layers.
    """

    def __init__(self, model: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.model, self.used, self.versions = model, parts.used, parts.versions
        self.chunked = False

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids and labels [B, S], to the loss."""
        if self.chunked:
            return _chunked(self.model, ids, labels)
        found: Tensor = self.model(input_ids=ids, labels=labels).loss
        return found


def _chunked(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    """The loss of ids and labels [B, S] as a user writes it who spares the logits: chunk after chunk."""
    x = model.base_model(input_ids=ids).last_hidden_state  # [B, S, H]
    if hasattr(model, "cls"):  # BERT
        x, head = model.cls.predictions.transform(x), model.cls.predictions.decoder
    elif hasattr(model.lm_head, "decoder"):  # RoBERTa
        x = model.lm_head.layer_norm(functional.gelu(model.lm_head.dense(x)))
        head = model.lm_head.decoder
    else:  # GPT-2, each of whose positions foretells the next
        x, labels, head = x[:, :-1], labels[:, 1:], model.lm_head
    return chunked_loss(x.flatten(0, 1), head.weight, head.bias, labels.flatten(), 0.0)


@dataclass(frozen=True, kw_only=True)
class Theirs(Variant):
    """One of theirs as it is, with each of its layers `compiled`, `replayed` or checkpointed; or compiled as
    a `whole`, with its head and loss, in a `mode` of torch.compile; what is compiled within a `budget` where
    there is one. With a `chunked` loss, logits are never there all at once.
    """

    compiled: bool = False
    whole: bool = False
    chunked: bool = False

    def finished(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """The same model; one compilation serves all layers."""
        assert isinstance(model, Loss)
        model.chunked = self.chunked
        if self.recomputed:
            theirs: Any = model.model
            # the latter was its name, and is deprecated
            enable = getattr(theirs, "activation_checkpointing_enable", None)
            (enable or theirs.gradient_checkpointing_enable)({"use_reentrant": False})
        backend = "inductor" if self.budget is None else compiler(self.budget)
        if self.mode is not None:
            model.model.compile(mode=self.mode, dynamic=False)
        elif self.whole:
            model.model.compile(backend=backend, dynamic=False)
        if self.compiled:
            for stack in find(model.model):
                for block in stack.blocks:
                    block.compile(backend=backend, dynamic=False)
        if self.replayed:
            _replay(model, inputs)
        return model


@dataclass(frozen=True, kw_only=True)
class Optimized(Variant):
    """Theirs after `selector.optimize`, within so many bytes in all where there is a limit, and where it is
    `replayed` after `selector.replay`. `arrangements` are those that may be tried; None: all that can win.
    """

    within_bytes: int | None = None
    arrangements: tuple[str, ...] | None = None

    def finished(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """The same model with what was chosen for inputs like these."""
        import selector

        assert isinstance(model, Loss)
        example = {"input_ids": inputs[0], "labels": inputs[1]}
        with _without_cap(inputs[0].device, self.within_bytes):
            objective = "device_time" if self.replayed else "throughput"
            replaying = self.replayed and self.within_bytes is None
            report = selector.optimize(
                model.model,
                example,
                objective=objective,
                memory_limit=self.within_bytes,
                outputs=OUTPUTS,
                arrangements=("ours", "replayed") if replaying else self.arrangements,
            )
        model.used["arrangement"] = {str(report.kept): 1}
        for one in report.replaced:
            counts = model.used.setdefault(one.problem.operator, {})
            counts[one.implementation] = counts.get(one.implementation, 0) + 1
            model.versions |= versions_of([f"{one.problem.operator}.{one.implementation}"])
        for left in report.left_alone:
            counts = model.used.setdefault(f"{left.problem.operator}, left alone", {})
            counts[left.why] = counts.get(left.why, 0) + 1
        if self.replayed:
            _replay(model, inputs)
        return model


def _replay(model: Loss, inputs: tuple[Tensor, ...]) -> None:
    """Raises RuntimeError where their layers cannot be replayed."""
    example = {"input_ids": inputs[0], "labels": inputs[1]}
    model.used.update(replay_blocks(model.model, example))


@contextmanager
def _without_cap(device: torch.device, within_bytes: int | None) -> Iterator[None]:
    """Comparing both models' gradients takes more than training does; the cap is of training."""
    if within_bytes is None or device.type != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    yield
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(within_bytes / total, 1.0), device)


def hugging_face(name: str, attention: str, *, tiny: bool = False) -> Subject:
    """A model of theirs with published sizes and one of their attentions, or a `tiny` one."""
    family, sizes = name.partition("-")[0], subject(name, tiny=tiny).sizes

    def model(sizes: Sizes, _batch: int, parts: Parts) -> nn.Module:
        return Loss(_made(family, sizes, attention), parts)

    return Subject(name, Family(model, _batch_of, {}), sizes)


def optimized(
    within_bytes: int | None = None,
    *,
    replayed: bool = False,
    arrangements: tuple[str, ...] | None = None,
) -> Optimized:
    """The variant of a model after `selector.optimize`, and with `replayed` after `selector.replay`."""
    name = "optimized, replayed" if replayed else "optimized"
    return Optimized(name=name, within_bytes=within_bytes, replayed=replayed, arrangements=arrangements)


def plan_of(
    given: Subject,
    parts: Parts,
    torch_device: str,
    limit_bytes: int,
    device: str | None = None,
    *,
    replayed: bool = False,
) -> Plan:
    """A plan within the limit, for this device or another. Raises the errors of `selector.plan`."""
    import selector
    from selector.models.rewriting.options import rewritable
    from selector.planning.training_setup import Training

    dtype = getattr(torch, parts.dtype)
    example = dict(zip(("input_ids", "labels"), given.inputs(2, 0, torch_device, dtype), strict=True))
    model: Any = given.build(2, parts).to(torch_device, dtype)
    rewritten = rewritable(model.model, example, OUTPUTS)
    training = Training(replayed=replayed)
    return selector.plan(rewritten, device or torch_device, limit_bytes, training=training)


def _made(family: str, sizes: Sizes, attention: str) -> nn.Module:
    """A model as its class makes it from a config; nothing is downloaded."""
    import transformers

    if family == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=sizes["vocabulary"],
            n_embd=sizes["hidden"],
            n_layer=sizes["layers"],
            n_head=sizes["heads"],
            n_positions=sizes["seq"],
            attn_implementation=attention,
            use_cache=False,
        )
        return transformers.GPT2LMHeadModel(config)
    kind = {"bert": "Bert", "roberta": "Roberta"}[family]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=4 * sizes["hidden"],
        max_position_embeddings=sizes["seq"] + PADDING,
        attn_implementation=attention,
    )
    found: nn.Module = getattr(transformers, f"{kind}ForMaskedLM")(config)
    return found


def _batch_of(sizes: Sizes, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids and labels; their GPT-2 shifts labels by itself."""
    ids, labels = make_batch(sizes, batch, generator)
    return (ids, ids.clone()) if sizes.get("causal") else (ids, labels)
