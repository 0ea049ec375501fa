"""Peers at their best: ways that users have without us, as implementations that comparisons alone know.

A peer is judged, timed in turns and stored as the registry's implementations are, with the same number of
samples. No choice knows it: it is in the registry only while a comparison runs, and only in its processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Implementation, Problem
from kernel_selector.kernels.measure import worker
from kernel_selector.kernels.norms.module import epsilon
from kernel_selector.kernels.runtime.torch_compile import refused_by_compiler

PREFIX = "peer_"
WORKER = __name__  # of a session that knows them
LIGER = "liger-kernel"
MAX_AUTOTUNE = "max-autotune-no-cudagraphs"  # of torch.compile's modes
MOST_COMPILED = 256  # modules of a class, whose forward is one function to the compiler
CHUNK_ROWS = 1024  # of the loss without all logits
IGNORED = -100

RECURRENT = ("lstm", "gru", "rnn")
NORMS = ("layer_norm", "rms_norm")
LOSS = "linear_cross_entropy"
COMPILED = ("dropout_add_norm", "feed_forward", "gelu", "linear", LOSS, "attention", *NORMS)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A way to make the layers of some operators; `refused(problem, device)` says why there is none."""

    name: str
    title: str
    operators: tuple[str, ...]
    build: Callable[[Problem], nn.Module]
    refused: Callable[[Problem, Device], str | None]
    version: Callable[[], str] = lambda: f"torch {torch.__version__}"

    def implementation(self, operator: str) -> Implementation:
        """The peer as an operator's implementation."""
        return Implementation(
            operator=operator,
            name=self.name,
            version=self.version(),
            summary=self.title,
            default=False,
            unsupported=self.refused,
            build=self.build,
            work=registry.operator(operator).work,
        )


def is_peer(name: str) -> bool:
    """Whether an implementation is one of these."""
    return name.startswith(PREFIX)


def main(config: Mapping[str, Any]) -> None:
    """Measure for a session, in its child process, with the peers in the registry."""
    with registered():
        worker.main(config)


@contextmanager
def registered() -> Iterator[None]:
    """The peers among the implementations of their operators, for as long as the context lasts."""
    added = [(operator, peer) for peer in PEERS for operator in peer.operators]
    for operator, peer in added:
        registry.implementations(operator)[peer.name] = peer.implementation(operator)
    try:
        yield
    finally:
        for operator, peer in added:
            del registry.implementations(operator)[peer.name]


def _torchs_own(problem: Problem) -> nn.Module:
    return registry.implementation(problem.operator, registry.operator(problem.operator).default).build(
        problem
    )


def _compiled(mode: str | None) -> Callable[[Problem], nn.Module]:
    def build(problem: Problem) -> nn.Module:
        """torch's own module with its forward compiled, so that its parameters keep their names."""
        import torch._dynamo.config as dynamo

        # else it would go on uncompiled, unsaid
        dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = MOST_COMPILED, True
        module = _torchs_own(problem)
        # not module.compile, which leaves classes of torch.nn as they are
        compiled = torch.compile(module.forward, mode=mode, dynamic=False)
        module.forward = _kept(compiled) if mode == "reduce-overhead" else compiled
        return module

    return build


def _kept(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Calls whose outputs are copied out of the graph's memory, as who keeps them has to: the next call
    overwrites them there, and a module's results are its caller's.
    """
    return lambda *given: tree_map(torch.clone, compiled(*given))


def _needs_compiler(_problem: Problem, device: Device) -> str | None:
    return refused_by_compiler(device)


class ChunkedLoss(nn.Linear):
    """nn.Linear that gives the cross-entropy of its outputs, of some rows at a time and then once more."""

    def __init__(self, problem: Problem, loss: Callable[..., Tensor]) -> None:
        dtype = getattr(torch, problem["dtype"])
        super().__init__(problem["hidden"], problem["vocabulary"], bias=problem["bias"], dtype=dtype)
        self.label_smoothing: float = problem["label_smoothing"]
        self._loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """x [N, H] and labels [N], to the loss []."""
        return self._loss(x, self.weight, self.bias, labels, self.label_smoothing)


def chunked_loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The loss with logits of CHUNK_ROWS rows at a time, as users write it: each chunk is checkpointed."""
    parts = zip(x.split(CHUNK_ROWS), labels.split(CHUNK_ROWS), strict=True)
    total = sum(
        checkpoint(_summed, rows, weight, bias, own, smoothing, use_reentrant=False) for rows, own in parts
    )
    return (total / labels.ne(IGNORED).sum()).to(x.dtype)


def _summed(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    logits = linear(x, weight, bias).float()
    return cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")


def torchs_loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """torch's function for both, of later versions."""
    function: Any = torch.nn.functional.linear_cross_entropy  # type: ignore[attr-defined]
    found: Tensor = function(
        x, weight, labels, linear_bias=bias, ignore_index=IGNORED, label_smoothing=smoothing
    )
    return found


def _without_torchs_loss(_problem: Problem, _device: Device) -> str | None:
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        return None
    return f"torch {torch.__version__} has no torch.nn.functional.linear_cross_entropy"


def _without_liger(_problem: Problem, device: Device) -> str | None:
    if util.find_spec("liger_kernel") is None:
        return f"{LIGER} is not installed"
    return None if device.kind == "cuda" else f"{LIGER} has kernels for GPUs alone"


def _liger_version() -> str:
    try:
        return f"{LIGER} {metadata.version(LIGER)}"
    except metadata.PackageNotFoundError:
        return f"{LIGER}, not installed"


class LigerNorm(nn.Module):
    """The norm of the last dimension by Liger's kernel, around the parameters of torch's module."""

    def __init__(self, module: Any, *, centred: bool) -> None:
        super().__init__()
        self.weight, self.bias = module.weight, getattr(module, "bias", None)
        self.eps = epsilon(module)
        self._centred = centred

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to the norm [..., H]."""
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        found: Tensor
        if self._centred:
            found = LigerLayerNormFunction.apply(x, self.weight, self.bias, self.eps)
        else:  # not in place: the gradient that comes in belongs to whoever computed it
            found = LigerRMSNormFunction.apply(x, self.weight, self.eps, 0.0, "llama", False)
        return found


def _liger_norm(problem: Problem) -> nn.Module:
    return LigerNorm(_torchs_own(problem), centred=problem.operator == "layer_norm")


def ligers_loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """Liger's linear layer with cross-entropy, which makes gradients forwards, chunk after chunk."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    found = LigerFusedLinearCrossEntropyFunction.apply(x, weight, labels, bias, None, IGNORED, 0.0, smoothing)
    loss: Tensor = found[0]
    return loss.to(x.dtype)


PEERS = (
    Peer(
        name="peer_compiled",
        title="torch's module under torch.compile",
        operators=RECURRENT,
        build=_compiled(None),
        refused=_needs_compiler,
    ),
    Peer(
        name="peer_max_autotune",
        title=f'torch\'s module under torch.compile(mode="{MAX_AUTOTUNE}")',
        operators=COMPILED,
        build=_compiled(MAX_AUTOTUNE),
        refused=_needs_compiler,
    ),
    Peer(
        name="peer_reduce_overhead",
        title='torch\'s module under torch.compile(mode="reduce-overhead"), outputs copied',
        operators=(*COMPILED, *RECURRENT),
        build=_compiled("reduce-overhead"),
        refused=_needs_compiler,
    ),
    Peer(
        name="peer_chunked_loss",
        title=f"the loss of {CHUNK_ROWS} rows at a time, checkpointed",
        operators=(LOSS,),
        build=lambda problem: ChunkedLoss(problem, chunked_loss),
        refused=lambda _problem, _device: None,
    ),
    Peer(
        name="peer_torchs_loss",
        title="torch.nn.functional.linear_cross_entropy",
        operators=(LOSS,),
        build=lambda problem: ChunkedLoss(problem, torchs_loss),
        refused=_without_torchs_loss,
    ),
    Peer(
        name="peer_liger",
        title="Liger's kernel",
        operators=NORMS,
        build=_liger_norm,
        refused=_without_liger,
        version=_liger_version,
    ),
    Peer(
        name="peer_liger_loss",
        title="Liger's linear layer with cross-entropy",
        operators=(LOSS,),
        build=lambda problem: ChunkedLoss(problem, ligers_loss),
        refused=_without_liger,
        version=_liger_version,
    ),
)
