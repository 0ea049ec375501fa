"""What a model on a GPU gets, from the shipped records: by the device's time where a step takes that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import selector
from benchmarks.models._hugging_face import hugging_face
from benchmarks.models._parts import Parts
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from selector.models import layers
from selector.models.layers import Layer
from selector.models.rewriting import joint_linear as joining
from selector.models.rewriting.device_times import LEFT_TO_THE_COMPILER, SLOWER_IN_MODELS, DeviceTimes

pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

HERE = Device(name="a processor", kind="cpu")


@pytest.fixture
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has measured nothing."""
    request.getfixturevalue("shipped_cache")
    monkeypatch.delenv("SELECTOR_DATABASE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def bert(batch: int) -> tuple[nn.Module, dict[str, torch.Tensor], list[Layer]]:
    """A layer of BERT-large, and its layers for so many sequences."""
    subject = hugging_face("bert-large", "sdpa")
    subject.sizes["layers"] = 1
    ids, labels = subject.inputs(batch, 0, "meta", torch.bfloat16)
    with torch.device("meta"):
        model = subject.build(batch, Parts(dtype="bfloat16", device=HERE)).to(torch.bfloat16)
    example = {"input_ids": ids, "labels": labels}
    whole: nn.Module = model.model  # type: ignore[assignment]
    return whole, example, layers.find(whole, example)


@pytest.mark.usefixtures("fresh")
def test_a_large_batch_gets_what_takes_the_device_less_time() -> None:
    model, example, found = bert(32)
    times = DeviceTimes(found, "nvidia-h200", None)
    faster = {layer.problem.operator: times.faster(layer.problem) for layer in found}
    for operator in ("dropout_add_norm", "layer_norm"):  # whose epsilon is not the one that was measured
        name, why = faster[operator] or ("", "")
        assert name in ("fused", "fused_bit_mask", "from_output", "recompute")
        assert "of the device's time" in why
    assert all(one is None or one[0] not in LEFT_TO_THE_COMPILER for one in faster.values())
    (joint,) = joining.joints(model, example, found, times.ms)
    assert [layer.path.rpartition(".")[2] for layer in joint.layers] == ["query", "key", "value"]
    assert joint.problem["out_features"] == 3072
    replayed = DeviceTimes(found, "nvidia-h200", None, replayed=True)
    launched = {layer.problem.operator: replayed.faster(layer.problem) for layer in found}
    assert (launched["attention"] or ("",))[0] == "warpgroup"  # said: choosing alone would count the host
    for layer in found:
        if layer.problem.operator != "linear_cross_entropy":
            assert replayed.ms(layer.problem) <= times.ms(layer.problem)  # type: ignore[operator]


@pytest.mark.usefixtures("fresh")
def test_where_not_all_can_be_launched_in_time_what_gains_most_is() -> None:
    wide = {"dtype": "bfloat16", "mode": "training"}
    every = {  # RoBERTa-large with 16 sequences: its linear layers' fastest would make the host the slower
        "dropout_add_norm": (48, {"rows": 8192, "hidden": 1024, "dropout": 0.1, "eps": 1e-12}),
        "feed_forward": (24, {"rows": 8192, "hidden": 1024, "inner": 4096, "activation": "gelu"}),
        "linear": (97, {"rows": 8192, "in_features": 1024}),
        "attention": (24, {"batch": 16, "heads": 16, "seq": 512, "head_dim": 64, "dropout": 0.1}),
    }
    found = [
        Layer(path=name, problem=registry.operator(name).problem(sizes, **wide), calls=calls, covers=())
        for name, (calls, sizes) in every.items()
    ]
    sizes = {"rows": 8192, "in_features": 1024, "out_features": 50265}
    problem = registry.operator("linear").problem(sizes, **wide)
    found.append(Layer(path="head", problem=problem, calls=1, covers=()))
    times = DeviceTimes(found, "nvidia-h200", None)
    faster = {layer.path: times.faster(layer.problem) for layer in found}
    assert (faster["dropout_add_norm"] or ("",))[0] in ("fused", "fused_bit_mask", "from_output")
    assert faster["linear"] is None
    (advice,) = times.advice
    host_ms, device_ms = map(float, re.findall(r"([\d.]+) ms", advice))
    assert device_ms / SLOWER_IN_MODELS < host_ms < device_ms  # close to the device's, not beyond it
    assert 'objective="device_time"' in advice
    assert DeviceTimes(found, "nvidia-h200", None, replayed=True).advice == ()
    alone = DeviceTimes([layer for layer in found if layer.path == "linear"], "nvidia-h200", None)
    assert alone.faster(found[2].problem) is None  # the host is waited for, whatever they get


@pytest.mark.usefixtures("fresh")
def test_a_head_of_odd_width_is_padded_also_where_its_size_was_not_measured() -> None:
    sizes = {"rows": 8192, "in_features": 1024, "out_features": 50259, "bias": False}
    values = {**sizes, "dtype": "bfloat16", "mode": "training"}
    problem = registry.operator("linear").problem(values)
    head = Layer(path="lm_head", problem=problem, calls=1, covers=("lm_head",))
    known = DeviceTimes([head], "nvidia-h200", None).faster(problem)
    chosen = known[0] if known else selector.choose("linear", device="nvidia-h200", **values).implementation
    assert chosen in ("padded", "torch_compile")  # which pads by itself


@pytest.mark.usefixtures("fresh")
def test_where_the_host_is_waited_for_nothing_is_said() -> None:
    found = bert(1)[2]
    times = DeviceTimes(
        [layer for layer in found if layer.problem.operator == "layer_norm"], "nvidia-h200", None
    )
    assert all(times.faster(layer.problem) is None and times.ms(layer.problem) is None for layer in found)


def test_other_devices_have_no_time_of_their_own(sqlite_database: object) -> None:
    found = bert(1)[2]
    times = DeviceTimes(found, "cpu", sqlite_database)
    assert all(times.faster(layer.problem) is None for layer in found)
