"""Implementations that are wrong, each in a way of its own, and the check of the gate that finds each.

    python tests/kernels/gate/gate_faults.py cuda:0

prints what caught each, and exits with 1 where one passed or a right module was rejected.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate


class Change(torch.autograd.Function):
    """A tensor as it is, whose gradient is changed by a function."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


class Planted(nn.Module):
    """The default implementation's parameters, with a forward pass of its own: `call(self, *arguments)`."""

    def __init__(self, problem, call: Callable[..., Any]):
        super().__init__()
        default = registry.implementation(problem.operator, registry.operator(problem.operator).default)
        self.right = default.build(problem)
        self.problem, self.call, self.calls, self.kept = problem, call, 0, None
        self.dropout = float(problem.as_dict.get("dropout", 0.0))

    def load_state_dict(self, state, *_, **__):
        return self.right.load_state_dict(state)

    def state_dict(self, *_, **__):
        return self.right.state_dict()

    def named_parameters(self, *_, **__):
        return self.right.named_parameters()

    def forward(self, *arguments):
        self.calls += 1
        return self.call(self, *arguments)


def out(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The first output changed."""

    def call(module, *arguments):
        found = module.right(*arguments)
        return change(found) if isinstance(found, Tensor) else (change(found[0]), *found[1:])

    return call


def back(change: Callable[[Tensor], Tensor], place: int = 0) -> Callable[..., Any]:
    """The gradient of an argument changed."""

    def call(module, *arguments):
        given = list(arguments)
        given[place] = Change.apply(given[place], change)
        return module.right(*given)

    return call


def upstream(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The gradient of the first output changed before it flows back."""
    return out(lambda y: Change.apply(y, change))


def parameter(name: str, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The gradient of a parameter changed."""

    def call(module, *arguments):
        given = dict(module.right.named_parameters())
        given[name] = Change.apply(given[name], change)
        return torch.func.functional_call(module.right, given, arguments)

    return call


def zeroed(index: Any) -> Callable[[Tensor], Tensor]:
    """A part left at zero."""

    def change(y):
        keep = torch.ones_like(y)
        keep[index] = 0
        return y * keep

    return change


def unwritten(y: Tensor) -> Tensor:
    written = torch.empty_like(y)
    written[: y.size(0) // 64 * 64] = y[: y.size(0) // 64 * 64]
    return written


def zeros_if_strided(module, x, *more):
    y = module.right(x, *more)
    return y if x.is_contiguous() else y * 0


def as_if_contiguous(module, x, *more):
    flat = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    return module.right(flat, *more)


def first_again(module, *arguments):
    y = module.right(*arguments)
    module.kept = y.detach() if module.kept is None else module.kept
    return y if module.calls % 2 else y * 0 + module.kept


def at_second(value: float) -> Callable[..., Any]:
    return lambda module, *arguments: module.right(*arguments) * (1 if module.calls == 1 else value)


class Kept(nn.Module):
    """Gradients added to those of the call before."""

    def __init__(self):
        super().__init__()
        self.before = None

    def forward(self, gradient):
        total = gradient if self.before is None else gradient + self.before.sum() * 1e-2
        self.before = gradient.detach()
        return total


def accumulating(module, *arguments):
    module.kept = module.kept or Kept()
    return upstream(module.kept)(module, *arguments)


def attention(module, q, k, v, *, s=None, weights=None, causal=None):
    """Attention written out; `s` and `weights` change the logits and the softmax."""
    logits = (q.float() @ k.float().mT) / q.size(-1) ** 0.5
    if module.problem["causal"]:
        allowed = logits.new_ones(logits.shape[-2:], dtype=torch.bool)
        logits = logits.masked_fill(~(causal or torch.tril)(allowed), -torch.inf)
    logits = logits if s is None else s(logits)
    found = (weights or (lambda one: one.softmax(-1)))(logits)
    return (found @ v.float()).to(q.dtype)


def at(**changes: Any) -> Callable[..., Any]:
    return lambda module, *arguments: attention(module, *arguments, **changes)


def norm(module, x, *, mean=True, variance=None, inverse=None):
    """Layer normalisation in float32, with a variance and an inverse deviation of its own."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True) if mean else wide
    found = variance(wide) if variance else centred.square().mean(-1, keepdim=True)
    scale = (inverse or (lambda v: (v + module.problem["eps"]).rsqrt()))(found)
    right = module.right
    return (centred * scale * right.weight.float() + right.bias.float()).to(x.dtype)


def normed(**changes: Any) -> Callable[..., Any]:
    return lambda module, x: norm(module, x, **changes)


def steps(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def call(module, x, states):
        y, last = module.right(x, states)
        return change(y), last

    return call


def loss(module, x, labels, *, ignored=True, logits=None, smoothing=None):
    """The loss written out in float32."""
    found = F.linear(x, module.right.weight).float()
    found = logits(found) if logits else found
    labels = labels if ignored else labels.clamp(min=0)
    smooth = module.problem["label_smoothing"] if smoothing is None else smoothing
    return F.cross_entropy(found, labels, label_smoothing=smooth).to(x.dtype)


def losing(**changes: Any) -> Callable[..., Any]:
    return lambda module, x, labels: loss(module, x, labels, **changes)


def dropped(drop: Callable[[Tensor, float], Tensor]) -> Callable[..., Any]:
    """dropout_add_norm's sum with a mask of its own; the norm is torch's."""

    def call(module, x, residual):
        p = module.dropout
        z = residual + (drop(x, p) if p and module.training else x)
        return F.layer_norm(z, z.shape[-1:], module.right.weight, module.right.bias, module.problem["eps"])

    return call


def mask(x: Tensor, p: float, shape: Any = None) -> Tensor:
    return (torch.rand(shape or x.shape, device=x.device) >= p).to(x.dtype) / (1 - p)


def not_advanced(x, p):
    devices = [x.device] if x.is_cuda else []
    with torch.random.fork_rng(devices):
        return x * mask(x, p)


def at_own_share(x, p):
    found = F.dropout(x, p)
    return found * 1.5 if abs(p - OWN) < 1e-6 else found


def own_share_backward(x, p):
    found = F.dropout(x, p)
    return Change.apply(found, lambda g: g.roll(1, 0)) if abs(p - OWN) < 1e-6 else found


OWN = 0.1
LINEAR = {"rows": 130, "in_features": 48, "out_features": 48}
NORM = {"rows": 130, "hidden": 96}
ATTENTION = {"batch": 2, "heads": 3, "seq": 40, "head_dim": 16}
LOSS = {"rows": 96, "hidden": 24, "vocabulary": 130, "labelled": 0.6, "label_smoothing": 0.1}
LSTM = {"hidden": 24, "batch": 5, "seq": 12}
DROP = {"rows": 128, "hidden": 64, "dropout": OWN}
PROBLEMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("linear", LINEAR),
    "linear16": ("linear", {"rows": 520, "in_features": 64, "out_features": 192, "dtype": "bfloat16"}),
    "norm": ("layer_norm", NORM),
    "norm16": ("layer_norm", {"rows": 520, "hidden": 192, "dtype": "bfloat16"}),
    "attention": ("attention", ATTENTION),
    "causal": ("attention", {**ATTENTION, "causal": True}),
    "causal16": ("attention", {**ATTENTION, "seq": 130, "head_dim": 64, "causal": True, "dtype": "bfloat16"}),
    "loss": ("linear_cross_entropy", LOSS),
    "lstm": ("lstm", LSTM),
    "lstm_reverse": ("lstm", {**LSTM, "bidirectional": True}),
    "long": ("lstm", {**LSTM, "seq": 40}),
    "drop": ("dropout_add_norm", DROP),
    "gelu": ("gelu", {"elements": 5000}),
    "gelu16": ("gelu", {"elements": 5000, "dtype": "float16"}),
    "silu": ("silu", {"elements": 5000}),
    "packed": ("lstm", {**LSTM, "packed": True}),
    "bmm": ("batched_matmul", {"batch": 4, "rows": 32, "inner": 32, "columns": 32}),
}
JUDGED_STEPS = 20  # of `long`
SIGNED, STRIDED, HARD, LONGER = "signed mean", "strided call", "rows out of the ordinary", "all 40 steps"
DROPOUT = "with dropout set to"


@dataclass(frozen=True)
class Fault:
    """A wrong forward pass for a problem, and words of the check that is there for it."""

    problem: str
    call: Callable[..., Any] = field(repr=False)
    caught_by: str = ""


def halves(g):
    return g * (1 + (torch.arange(g.size(0), device=g.device) < g.size(0) // 2)).view(-1, 1).to(g.dtype)


def bias_over_half(module, x):
    half = x.size(0) // 2
    weight, bias = module.right.weight, module.right.bias
    return torch.cat([F.linear(x[:half], weight, bias), F.linear(x[half:], weight, bias.detach())])


def accumulated_in_16_bits(module, x):
    found = torch.zeros(x.size(0), module.right.weight.size(0), dtype=x.dtype, device=x.device)
    for k in range(x.size(1)):
        found = found + x[:, k : k + 1] * module.right.weight[:, k]
    return found + module.right.bias


def padded_tail(module, x, states):
    y, last = module.right(x, states)
    data = torch.cat([y.data[:-1], y.data[-1:] * 0])
    return y._replace(data=data), last


def hard_sigmoid(x):
    return x * (x / 6 + 0.5).clamp(0, 1)


FAULTS: Mapping[str, Fault] = {
    "output times 1.002 in bfloat16": Fault("linear16", out(lambda y: y * 1.002), SIGNED),
    "gradient times 1.005 in bfloat16": Fault(
        "linear16", back(lambda g: (g.float() * 1.005).to(g.dtype)), SIGNED
    ),
    "norm times 1.002 in bfloat16": Fault("norm16", out(lambda y: y * 1.002), SIGNED),
    "weight gradient times 1.005": Fault(
        "linear16", parameter("weight", lambda g: (g.float() * 1.005).to(g.dtype)), SIGNED
    ),
    "attention times 0.998 in bfloat16": Fault("causal16", out(lambda y: y * 0.998), SIGNED),
    "truncated instead of rounded": Fault("gelu16", lambda _, x: _cut(F.gelu(x.float()), x), SIGNED),
    "zeros for a strided input": Fault("linear", zeros_if_strided, STRIDED),
    "strides ignored": Fault("norm", as_if_contiguous, STRIDED),
    "strides of keys ignored": Fault(
        "attention",
        lambda m, q, k, v: m.right(
            q, torch.as_strided(k, k.shape, torch.empty(k.shape, device="meta").stride()), v
        ),
        STRIDED,
    ),
    "zeros for a strided gradient": Fault(
        "linear", upstream(lambda g: g if g.is_contiguous() else g * 0), STRIDED
    ),
    "gradients taken to be ones": Fault("norm", upstream(torch.ones_like)),
    "gradient's magnitude ignored": Fault("norm", upstream(torch.sign)),
    "second call gives the first's": Fault("linear", first_again, STRIDED),
    "second call gives zeros": Fault("linear", at_second(0.0), STRIDED),
    "second call gives nan": Fault("linear", at_second(float("nan")), STRIDED),
    "gradients of the call before added": Fault("linear", accumulating),
    "zeros after the judged steps": Fault("long", steps(zeroed(slice(JUDGED_STEPS, None))), LONGER),
    "backward stops after the judged steps": Fault(
        "long", steps(lambda y: torch.cat([y[:JUDGED_STEPS], y[JUDGED_STEPS:].detach()])), LONGER
    ),
    "last step repeated": Fault(
        "long", steps(lambda y: torch.cat([y[: JUDGED_STEPS + 1], y[JUDGED_STEPS:-1]])), LONGER
    ),
    "softmax without its maximum": Fault(
        "attention", at(weights=lambda s: s.exp() / s.exp().sum(-1, keepdim=True)), HARD
    ),
    "loss without its maximum": Fault(
        "loss", losing(logits=lambda s: s - s.exp().sum(-1, keepdim=True).log()), HARD
    ),
    "variance by E[x^2] - E[x]^2": Fault(
        "norm",
        normed(variance=lambda x: x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()),
        HARD,
    ),
    "epsilon missing": Fault("norm", normed(inverse=lambda v: v.rsqrt())),
    "epsilon outside the root": Fault("norm", normed(inverse=lambda v: 1 / (v.sqrt() + 1e-5))),
    "epsilon missing, one row caught by a clamp": Fault(
        "norm", normed(inverse=lambda v: v.clamp(min=1e-7).rsqrt())
    ),
    "unbiased variance": Fault("norm", normed(variance=lambda x: x.var(-1, keepdim=True))),
    "mean not subtracted": Fault("norm", normed(mean=False)),
    "weight added one": Fault("norm", lambda m, x: m.right(x) + norm(m, x) * 0.01),
    "last row not written": Fault("linear", out(zeroed(-1))),
    "last column not written": Fault("linear", out(zeroed((slice(None), -1)))),
    "last partial tile not written": Fault("linear", out(unwritten)),
    "square matrix transposed": Fault("linear", lambda m, x: F.linear(x, m.right.weight.mT, m.right.bias)),
    "bias missing": Fault("linear", lambda m, x: F.linear(x, m.right.weight)),
    "bias gradient over half of the rows": Fault("linear", bias_over_half),
    "weight gradient counts half twice": Fault("linear", parameter("weight", halves)),
    "added up in bfloat16": Fault("linear16", accumulated_in_16_bits),
    "float16 in between": Fault("linear", lambda m, x: m.right(x).half().float()),
    "gradient of one unit has the wrong sign": Fault(
        "linear", parameter("bias", lambda g: g * (1 - 2 * (torch.arange(g.numel(), device=g.device) == 7)))
    ),
    "gradient missing": Fault("linear", lambda m, x: m.right(x.detach())),
    "batches swapped": Fault("bmm", out(lambda y: y.roll(1, 0))),
    "last batch is the first": Fault("bmm", out(lambda y: torch.cat([y[:-1], y[:1]]))),
    "right factor not transposed in backward": Fault("bmm", back(lambda g: g.mT)),
    "mask off by one": Fault("causal", at(causal=lambda a: a.tril(1))),
    "diagonal masked": Fault("causal", at(causal=lambda a: torch.cat([a.tril()[:1], a.tril(-1)[1:]]))),
    "last query sees the first key alone": Fault(
        "causal", at(causal=lambda a: torch.cat([a.tril()[:-1], a.tril()[:1]]))
    ),
    "scale missing": Fault("attention", at(s=lambda s: s * 4)),
    "last keys left out": Fault(
        "attention",
        at(s=lambda s: s.masked_fill(torch.arange(s.size(-1), device=s.device) >= 39, -torch.inf)),
    ),
    "heads swapped": Fault("attention", out(lambda y: y.roll(1, 1))),
    "ignored labels counted": Fault("loss", losing(ignored=False)),
    "label smoothing left out": Fault("loss", losing(smoothing=0.0)),
    "hidden state has no gradient": Fault(
        "lstm", lambda m, x, s: m.right(x, (s[0].detach() + 0 * s[0], s[1]))
    ),
    "final state of another step": Fault(
        "lstm", lambda m, x, s: (lambda y, last: (y, (y[-2:-1], last[1])))(*m.right(x, s))
    ),
    "reverse direction not reversed": Fault(
        "lstm_reverse", steps(lambda y: torch.cat([y[..., :24], y[..., 24:].flip(0)], -1))
    ),
    "states of one sequence for all": Fault(
        "lstm", lambda m, x, s: m.right(x, (s[0][:, :1].expand_as(s[0]).contiguous(), s[1]))
    ),
    "tail of a packed batch not written": Fault("packed", padded_tail),
    "tanh's gelu": Fault("gelu", lambda _, x: F.gelu(x, approximate="tanh")),
    "hard sigmoid": Fault("silu", lambda _, x: hard_sigmoid(x)),
    "sigmoid that overflows": Fault("silu", lambda _, x: x * (x.exp() / (1 + x.exp())), HARD),
    "nan for -0": Fault(
        "gelu",
        lambda _, x: (
            F.gelu(x) + 0 * (torch.copysign(torch.ones_like(x), x).log() if bool((x == 0).any()) else x)
        ),
        HARD,
    ),
    "wrong at the problem's share alone": Fault("drop", dropped(at_own_share), DROPOUT),
    "backward wrong at the problem's share": Fault("drop", dropped(own_share_backward), DROPOUT),
    "one mask for all rows": Fault("drop", dropped(lambda x, p: x * mask(x, p, x.shape[-1:])), DROPOUT),
    "whole rows dropped": Fault("drop", dropped(lambda x, p: x * mask(x, p, (x.size(0), 1))), DROPOUT),
    "random state not advanced": Fault("drop", dropped(not_advanced), DROPOUT),
    "kept elements not scaled": Fault("drop", dropped(lambda x, p: x * mask(x, p) * (1 - p)), DROPOUT),
    "nothing dropped": Fault("drop", dropped(lambda x, _p: x), DROPOUT),
}


def _cut(wide: Tensor, x: Tensor) -> Tensor:
    """Towards zero to float16: half a unit less than rounded, as a mean."""
    return (wide * (1 - 2**-11)).to(x.dtype)


def gate(name: str, device: str) -> Gate:
    """The gate of one of PROBLEMS."""
    operator, given = PROBLEMS[name]
    whole = registry.operator(operator).problem(given)
    if name != "long":
        return Gate(whole, device)
    return Gate(registry.operator(operator).problem({**given, "seq": JUDGED_STEPS}), device, whole=whole)


def planted(fault: Fault) -> Planted:
    """A module with the fault."""
    operator, given = PROBLEMS[fault.problem]
    return Planted(registry.operator(operator).problem(given), fault.call)


def main(device: str) -> int:
    """Judge all; the exit code."""
    start, gates, missed = time.monotonic(), {name: gate(name, device) for name in PROBLEMS}, []
    for name in PROBLEMS:
        result = gates[name].check(planted(Fault(name, lambda module, *given: module.right(*given))))
        if not result.passed:
            print(f"RIGHT BUT REJECTED {name}: {result.detail}")
            missed.append(name)
    for name, fault in FAULTS.items():
        result = gates[fault.problem].check(planted(fault))
        if result.passed:
            missed.append(name)
        print(f"{'MISSED' if result.passed else 'caught'} {name}: {result.detail[:150]}", flush=True)
    caught = len(FAULTS) - sum(name in FAULTS for name in missed)
    print(f"{len(FAULTS)} faults, {caught} caught, {time.monotonic() - start:.0f} s on {device}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
