"""The ways to train a model: the peers, and ours as a plan or a command line chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.peers import MAX_AUTOTUNE
from benchmarks.kernels._bert_layer import compiler
from benchmarks.models._parts import Choices, Parts
from benchmarks.models._transformer import Transformer
from kernel_selector.kernels.contract import Device

EVERY_BLOCK = -1
BUDGETS = (0.999, 0.5)
REDUCE_OVERHEAD = "reduce-overhead"
MODES = (MAX_AUTOTUNE, REDUCE_OVERHEAD)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """`budget` is torch.compile's share of saved bytes to keep (None: not compiled); `recomputed` the blocks
    that are checkpointed, EVERY_BLOCK for all; `graphed`: forward and backward as a CUDA graph each;
    `replayed`: the same of each block, by `selector.replay`; `mode`: the whole model compiled in this mode of
    torch.compile; `channels_last`: weights of convolutions, and so their maps, in that layout. A plan's
    variant has its `batch` and its `limit_bytes`, and what the plan says of its peak and throughput.
    """

    name: str
    choices: Choices = field(default_factory=dict)
    written_out: bool = False
    budget: float | None = None
    recomputed: int = 0
    graphed: bool = False
    replayed: bool = False
    mode: str | None = None
    channels_last: bool = False
    batch: int | None = None
    limit_bytes: int | None = None
    planned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graphs_apart(self) -> bool:
        """Whether CUDA graphs hold memory of their own."""
        return self.graphed or self.replayed or self.mode == REDUCE_OVERHEAD

    def parts(self, dtype: str, device: Device) -> Parts:
        """The maker of the model's parts."""
        return Parts(dtype=dtype, device=device, choices=self.choices, written_out=self.written_out)

    def finished(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """The model as it is called, always with inputs like these. Raises ValueError for blocks to recompute
        or to replay where there are none, RuntimeError for those that cannot be replayed.

        Of a stack of equal blocks each is compiled, and the head: one compilation serves all of them.
        """
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.recomputed:
            if not isinstance(model, Transformer):
                raise ValueError(f"{type(model).__name__} has no blocks to recompute")
            every = len(model.blocks)
            model.recomputed = every if self.recomputed == EVERY_BLOCK else min(self.recomputed, every)
        if self.replayed:
            replay_blocks(model, inputs)
        if self.graphed:
            found: Callable[..., Tensor] = torch.cuda.make_graphed_callables(model, inputs)
            return found
        if self.mode is not None:
            model.compile(mode=self.mode, dynamic=False)
            return model
        if self.budget is None:
            return model
        backend = compiler(self.budget)
        for part in (*model.blocks, model.head) if isinstance(model, Transformer) else (model,):
            part.compile(backend=backend, dynamic=False)
        return model


def replay_blocks(model: nn.Module, example: object) -> dict[str, dict[str, int]]:
    """Let `selector.replay` make CUDA graphs of a model's blocks: how many, by stack. Raises ValueError for a
    model without blocks, RuntimeError for those that cannot be replayed.
    """
    import selector  # what is not replayed needs torch alone

    stacks = selector.replay(model, example)
    if not stacks:
        raise ValueError(f"{type(model).__name__} has no blocks to replay")
    for stack in stacks:
        if stack.refused:
            raise RuntimeError(str(stack))
    return {str(stack): {"CUDA graphs": stack.blocks} for stack in stacks}


def peers() -> Iterator[Variant]:
    """Variants that torch has: attention written out, fused, compiled in each mode, with less memory, and
    checkpointed.
    """
    yield Variant(name="eager", written_out=True)
    yield Variant(name="sdpa")
    yield Variant(name="compile", budget=1.0)
    for budget in BUDGETS:
        yield Variant(name=f"compile, budget {budget:g}", budget=budget)
    for mode in MODES:
        yield Variant(name=f"compile, {mode}", mode=mode)
    yield Variant(name="checkpointing", recomputed=EVERY_BLOCK)


def channels_last(variants: Sequence[Variant]) -> list[Variant]:
    """The same variants with convolutions in that layout."""
    return [replace(one, name=f"{one.name}, channels_last", channels_last=True) for one in variants]


def graphed(variants: Sequence[Variant]) -> list[Variant]:
    """The same variants as CUDA graphs, without those that are compiled, that run blocks twice or that have
    graphs of them.
    """
    plain = [
        one
        for one in variants
        if one.budget is None and one.mode is None and not (one.recomputed or one.replayed)
    ]
    return [replace(one, name=f"{one.name}, graphed", graphed=True) for one in plain]


def chosen(uses: Sequence[str]) -> Variant:
    """The variant of ours by "part=implementation" words, each for all its layers. Raises ValueError."""
    choices: dict[str, dict[str, int]] = {}
    for word in uses:
        part, equals, name = word.partition("=")
        if not (part and equals and name):
            raise ValueError(f"{word!r}: expected part=implementation, such as feed-forward=fused.")
        choices[part] = {name: 10**6}
    return Variant(name="chosen", choices=choices)


def planned(file: Path) -> Variant:
    """The variant of a plan as `selector plan MODEL --json` prints it. Raises ValueError for other files."""
    try:
        plan = json.loads(file.read_text())
        choices: dict[str, dict[str, int]] = {}
        # blocks that are recomputed come first, and so do their layers
        for layer in sorted(plan["layers"], key=lambda one: not one["recomputed"]):
            counts = choices.setdefault(layer["part"], {})
            counts[layer["implementation"]] = counts.get(layer["implementation"], 0) + layer["count"]
        return Variant(
            name=f"plan {file.stem}",
            choices=choices,
            recomputed=plan["recomputed_blocks"],
            replayed=plan.get("replayed", False),  # which older plans do not say
            batch=plan["batch"],
            limit_bytes=plan["limit_bytes"],
            planned={name: plan[name] for name in ("peak_bytes", "samples_per_s", "device", "snapshot")},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is no plan ({type(error).__name__}: {error}): see selector plan --json."
        ) from None
