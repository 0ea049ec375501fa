"""One encoder layer of BERT (post-norm), of parts that can be exchanged, and the ways to make it.

Dimensions: B batch, S seq, H hidden, N heads, D = H / N.

    q, k, v = x W^T + b, each split into heads                      # [B, N, S, D]
    y = norm(x + dropout(attention(q, k, v) W_o^T + b_o))           # [B, S, H]
    out = norm(y + dropout(gelu(y W_1^T + b_1) W_2^T + b_2))        # [B, S, H]

`attention` drops weights with the same share. Source: Devlin et al. 2018, with the sizes of BERT-large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.peers import MAX_AUTOTUNE
from benchmarks.kernels._sublayer_rows import COMPILED, of_users
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device

ATTENTION, ADD_NORM, FEED_FORWARD = "attention", "dropout_add_norm", "feed_forward"
MOST_COMPILED = 32  # layers of one size


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer: BERT-large's unless said; `dropout` acts at three places."""

    batch: int
    seq: int = 512
    hidden: int = 1024
    heads: int = 16
    inner: int = 4096
    dropout: float = 0.1
    dtype: str = "bfloat16"

    @property
    def tokens(self) -> int:
        """Rows of every matrix product."""
        return self.batch * self.seq

    def problems(self) -> dict[str, Mapping[str, object]]:
        """The problem of each part, as hyperparameters of its operator."""
        same = {"dtype": self.dtype, "mode": "training"}
        rows = {"rows": self.tokens, "hidden": self.hidden}
        head_dim = self.hidden // self.heads
        heads = {"batch": self.batch, "heads": self.heads, "seq": self.seq, "head_dim": head_dim}
        return {
            ATTENTION: {**heads, "dropout": self.dropout, **same},
            ADD_NORM: {**rows, "dropout": self.dropout, "norm": "layer", **same},
            FEED_FORWARD: {**rows, "inner": self.inner, "activation": "gelu", **same},
        }


class Attention(nn.Module):
    """torch's fused attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, N, S, D] each, to the context [B, N, S, D]."""
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


class AddNorm(nn.Module):
    """Layer norm of the residual and what is left of x [rows, H] after dropout."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[rows, H] each, to [rows, H]."""
        z = residual + functional.dropout(x, self.dropout)
        return functional.layer_norm(z, (z.shape[-1],), self.weight, self.bias)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, H] to [rows, H]."""
        y: Tensor = self.linear2(functional.gelu(self.linear1(x)))
        return y


Make = Callable[[], nn.Module]


class Layer(nn.Module):
    """The layer of a module for attention, one for each residual, and one for the feed-forward block."""

    def __init__(self, sizes: Sizes, attention: Make, add_norm: Make, feed_forward: Make) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (nn.Linear(sizes.hidden, sizes.hidden) for _ in range(4))
        self.attention, self.feed_forward = attention(), feed_forward()
        self.first, self.second = add_norm(), add_norm()

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] to [B, S, H]."""
        batch, seq, hidden = x.shape
        q, k, v = (
            projection(x).view(batch, seq, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        context = self.attention(q, k, v).transpose(1, 2).reshape(batch * seq, hidden)
        y = self.first(self.out(context), x.reshape(batch * seq, hidden))
        out: Tensor = self.second(self.feed_forward(y), y)
        return out.view(batch, seq, hidden)

    def roles(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by what they do: norms of all kinds have a `weight` and a `bias`."""
        for name, parameter in self.named_parameters():
            part, _, rest = name.partition(".")
            yield f"{part}.{rest.rpartition('.')[2] if part in ('first', 'second') else rest}", parameter


@dataclass(frozen=True)
class Variant:
    """A way to make the layer: `parts` names an implementation each, `budget` is torch.compile's.

    `budget` is the share of the saved bytes that its partitioner may keep (None: not compiled), `mode` the
    one that it compiles in where it may keep all (None: the default). `reason` says why the variant cannot
    be had.
    """

    name: str
    parts: Mapping[str, str] = field(default_factory=dict)
    budget: float | None = None
    reason: str = ""
    mode: str | None = None

    def build(self, sizes: Sizes) -> Layer:
        """The layer on the CPU in float32, parts of the registry in their own dtype."""
        torchs: dict[str, Make] = {
            ATTENTION: lambda: Attention(sizes.dropout),
            ADD_NORM: lambda: AddNorm(sizes.hidden, sizes.dropout),
            FEED_FORWARD: lambda: FeedForward(sizes.hidden, sizes.inner),
        }
        return Layer(sizes, *(self._maker(operator, sizes, torchs[operator]) for operator in torchs))

    def _maker(self, operator: str, sizes: Sizes, torchs: Make) -> Make:
        if operator not in self.parts:
            return torchs
        problem = registry.operator(operator).problem(sizes.problems()[operator])
        return lambda: registry.implementation(operator, self.parts[operator]).build(problem)


def torchs_own(budgets: tuple[float, ...]) -> list[Variant]:
    """Without us: as it is written, compiled, tuned as well, and compiled with less memory."""
    return [
        Variant("torch"),
        Variant("compile", budget=1.0),
        Variant(f"compile, {MAX_AUTOTUNE}", budget=1.0, mode=MAX_AUTOTUNE),
        *(Variant(f"compile, budget {budget:g}", budget=budget) for budget in budgets),
    ]


def of_ours(sizes: Sizes, device: Device) -> Iterator[Variant]:
    """Every pair of a residual and a feed-forward block of which one is ours, around torch's attention.

    Then each attention of ours, in a layer that has nothing of torch's. What refuses is given once, with
    its reason; so is an operator that there is not, and then there are no pairs.
    """
    ours: dict[str, list[str]] = {}
    for operator, given in sizes.problems().items():
        if operator not in registry.operators():
            yield Variant(operator, reason="there is no such operator")
            continue
        problem = registry.operator(operator).problem(given)
        accepted, refused = registry.candidates(problem, device)
        ours[operator] = [one.name for one in accepted if not (of_users(one.name) or one.name in COMPILED)]
        for name, reason in refused.items():
            if not of_users(name) and name not in COMPILED:
                yield Variant(f"{operator}.{name}", {operator: name}, reason=reason)
    if len(ours) < len(sizes.problems()):
        return
    pair = (ADD_NORM, FEED_FORWARD)
    defaults = tuple(registry.operator(operator).default for operator in pair)
    every = ((default, *ours[operator]) for operator, default in zip(pair, defaults, strict=True))
    for names in product(*every):
        if names != defaults:
            yield _variant(dict(zip(pair, names, strict=True)))
    # the exact block that keeps least without another matrix product, where it is there
    blocks = sorted(ours[FEED_FORWARD], key=lambda name: name != "recompute_activation")
    for attention, add_norm, block in product(ours[ATTENTION], ours[ADD_NORM][:1], blocks[:1]):
        yield _variant({ATTENTION: attention, ADD_NORM: add_norm, FEED_FORWARD: block})


def _variant(parts: Mapping[str, str]) -> Variant:
    return Variant(" + ".join(f"{operator}.{name}" for operator, name in parts.items()), parts)


def quiet(layer: nn.Module) -> None:
    """Set the share that is dropped to 0 everywhere."""
    for part in layer.modules():
        dropping: Any = part
        if isinstance(getattr(part, "dropout", None), float):
            dropping.dropout = 0.0


def compiled(layer: Layer, budget: float, mode: str | None = None) -> Callable[[Tensor], Tensor]:
    """The layer compiled in a mode, or its partitioner keeping this share of its usual bytes at most."""
    how: dict[str, Any] = {"backend": compiler(budget)} if mode is None else {"mode": mode}
    found: Callable[[Tensor], Tensor] = torch.compile(layer, dynamic=False, **how)
    return found


def compiler(budget: float) -> Callable[[Any, Any], Any]:
    """torch.compile's own backend with a budget.

    Each is a function of its own: of one function dynamo would take the code that it made for another
    budget. More code than dynamo keeps is an error, where it would go on uncompiled.
    """
    import torch._dynamo.config as dynamo
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = MOST_COMPILED, True

    def backend(graph: Any, inputs: Any) -> Any:
        with config.patch(activation_memory_budget=budget):
            return compile_fx(graph, inputs)

    return backend
