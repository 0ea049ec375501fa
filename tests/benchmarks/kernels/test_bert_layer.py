"""One layer of BERT made of exchangeable parts: what it keeps, how it is judged and timed, and its table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.common.kept import kept
from benchmarks.kernels import _bert_layer, _bert_run, bert_layer
from benchmarks.kernels._bert_layer import AddNorm, Attention, FeedForward, Layer, Sizes, Variant
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from scripts.tables import bert_layer as tables

SMALL = bert_layer.SMALL


def test_a_layer_keeps_what_arithmetic_says() -> None:
    sizes = Sizes(batch=1, seq=64, hidden=64, heads=4, inner=256, dropout=0.0)
    layer = Variant("torch").build(sizes).to(torch.bfloat16)
    x = torch.randn(1, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    found = kept(layer, [x, *layer.parameters()], torch.ones_like(x))
    # q, k, v, context; sum and norm of the first residual; before and after the GELU; the second sum
    terms = 3 * 128 + 128 + 2 * 128 + 2 * 512 + 128
    per_head, statistics = 4 * 4, 2 * 2 * 4
    assert terms <= found.in_graph / 64 <= terms + per_head + statistics
    assert found.allocated is None


class KeepsTwice(torch.autograd.Function):
    """Keeps its input as an attribute, and a copy of it as autograd wants it kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x * 2)
        ctx.more = [x * 3]
        return x * 4

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 4


def test_what_a_function_keeps_as_an_attribute_counts() -> None:
    x = torch.ones(10, requires_grad=True)
    assert kept(KeepsTwice.apply, [x], torch.ones(10)).in_graph == 2 * 40


class Scaled(FeedForward):
    """A fault: one per cent too much."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.01 * super().forward(x)


class Broken(FeedForward):
    """A fault: it raises."""

    def forward(self, _x: torch.Tensor) -> torch.Tensor:
        raise ValueError("of no use")


class Made(Variant):
    """A variant with the feed-forward block that its name says."""

    def build(self, sizes: Sizes) -> Layer:
        block = {"right": FeedForward, "scaled": Scaled, "broken": Broken}[self.name]
        return Layer(
            sizes,
            lambda: Attention(sizes.dropout),
            lambda: AddNorm(sizes.hidden, sizes.dropout),
            lambda: block(sizes.hidden, sizes.inner),
        )


def test_layers_are_judged_weighed_and_timed_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        Made("right"),
        Made("scaled"),
        Made("broken"),
        Variant("absent", reason="there is no such operator"),
    ]
    monkeypatch.setattr(bert_layer, "of_ours", lambda _sizes, _device: iter(made))
    monkeypatch.setattr(_bert_run, "POLICY", replace(_bert_run.POLICY, max_samples=2, min_samples=2))
    assert bert_layer.main(["--smoke", "--results", str(tmp_path)]) == 1
    (file,) = tmp_path.glob("bert_layer_*.json")
    (layer,) = json.loads(file.read_text())["layers"]
    lines = {line["name"]: line for line in layer["variants"]}
    assert lines["right"]["error_ratio"] == lines["torch"]["error_ratio"] <= 1
    assert lines["right"]["bytes_ratio"] == 1
    assert lines["right"]["ms"] > 0
    assert lines["scaled"]["status"] == "incorrect"
    assert lines["broken"]["reason"] == "ValueError: of no use"
    assert lines["absent"]["status"] == lines["compile"]["status"] == "refused"
    text = tables.overview(tmp_path)
    assert all(f"`{name}`" in text for name in lines)


def test_no_layer_is_prepared_after_the_budget(tmp_path: Path) -> None:
    assert bert_layer.main(["--smoke", "--results", str(tmp_path), "--budget", "0.001s"]) == 3
    (file,) = tmp_path.glob("bert_layer_*.json")
    statuses = {line["status"] for line in json.loads(file.read_text())["layers"][0]["variants"]}
    assert statuses <= {"refused", "not measured"}


def test_layers_of_ours_are_pairs_of_what_accepts_them() -> None:
    h200 = Device(name="NVIDIA H200", kind="cuda", compute_capability=(9, 0))
    found = [*_bert_layer.of_ours(Sizes(batch=16), h200)]
    absent = [name for name in Sizes(batch=1).problems() if name not in registry.operators()]
    assert [one.name for one in found if one.reason == "there is no such operator"] == absent
    if not absent:
        pairs = [one for one in found if not one.reason]
        assert len(pairs) == len({one.name for one in pairs}) >= 4
        assert all(one.parts.keys() >= {"dropout_add_norm", "feed_forward"} for one in pairs)


def test_parameters_go_by_what_they_do() -> None:
    layer = Variant("torch").build(SMALL)
    roles = dict(layer.roles())
    assert roles.keys() >= {"first.weight", "second.bias", "feed_forward.linear1.weight", "query.bias"}
    nested = nn.Sequential(nn.LayerNorm(SMALL.hidden))  # a residual part may keep its norm in a module
    layer.first = nested
    assert dict(layer.roles())["first.weight"] is nested[0].weight


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_allocator_agrees_with_the_graph() -> None:
    sizes = Sizes(batch=2, seq=128, hidden=256, heads=4, inner=1024)
    run = _bert_run.Run(sizes, "cuda:0", l2_bytes=2**25, seed=0)
    torchs, less = _bert_run.ratios(
        run.measure([Variant("torch"), Variant("compile", budget=0.999)], end=float("inf"))
    )
    for line in (torchs, less):
        assert line["status"] == "ok", line
        assert line["graph_ms"] > 0, line
        assert line["device_ms"] > 0, line
        assert line["allocated_per_token"] == pytest.approx(line["bytes_per_token"], rel=0.05)
    assert less["bytes_per_token"] < 0.8 * torchs["bytes_per_token"]
