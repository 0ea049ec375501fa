"""Whole models of exchangeable parts: they train alike, have their published sizes, and each program runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import selector
from benchmarks.models import __main__ as program
from benchmarks.models import hugging_face as hugging_face_program
from benchmarks.models import optimize as optimize_program
from benchmarks.models import plans
from benchmarks.models._catalogue import names, subject
from benchmarks.models._hugging_face import hugging_face, plan_of
from benchmarks.models._parts import Parts
from benchmarks.models._steps import Trainer, largest
from benchmarks.models._variants import BUDGETS, EVERY_BLOCK, Variant, chosen, graphed, peers, planned
from kernel_selector.db import Database
from kernel_selector.kernels.contract import Device, UnsupportedProblem
from selector.models.replay import replay as replaying
from selector.models.replay.replay import ReplayedStack
from selector.models.rewriting import arrangement_search, trials
from selector.planning.training_setup import Training
from selector.workloads.model import Model
from selector.workloads.published_models import families, published
from tests.selector.models.rewriting import replayed

HERE = Device(name="a processor", kind="cpu")
OURS = {
    "bert-large": ("feed-forward=recompute_activation", "loss=chunked"),
    "nmt": ("attention=recompute", "loss=chunked_vocabulary"),
    "lstm-language-model": ("recurrent=hoisted", "loss=chunked"),
    "deepspeech2": ("recurrent layers=hoisted",),
    "transformer-nmt": ("feed-forward=recompute_activation", "loss=chunked"),
}


def trainer(name: str) -> Trainer:
    return Trainer(subject(name, tiny=True), HERE, "cpu", dtype="float32", seed=0)


@pytest.mark.parametrize("name", OURS)
def test_models_of_our_parts_train_as_torchs(name: str) -> None:
    training = trainer(name)
    torchs = training.losses(Variant(name="sdpa"), 2, 3, dropout=False)
    ours = training.losses(chosen(OURS[name]), 2, 3, dropout=False)
    assert torchs["status"] == ours["status"] == "ok", ours
    assert ours["losses"] == pytest.approx(torchs["losses"], rel=1e-3)
    assert len(set(ours["losses"])) == 3  # something is learned


def test_attention_written_out_and_recomputed_blocks_give_the_same_losses() -> None:
    training = trainer("gpt2")
    expected = training.losses(Variant(name="sdpa"), 2, 2, dropout=False)
    for variant in (
        Variant(name="eager", written_out=True),
        Variant(name="checkpointing", recomputed=EVERY_BLOCK),
        Variant(name="half", recomputed=1),
    ):
        assert training.losses(variant, 2, 2, dropout=False)["losses"] == pytest.approx(
            expected["losses"], rel=1e-3
        )


def test_blocks_are_replayed_as_a_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(model: torch.nn.Module, example: object) -> list[ReplayedStack]:
        stacks = [ReplayedStack(path=one.path, blocks=len(one.blocks)) for one in replaying.find(model)]
        replayed.turn_on(model, example)
        return stacks

    variant = Variant(name="plan", choices={"loss": {"chunked": 1}}, replayed=True)
    training = trainer("bert-large")
    expected = training.losses(replace(variant, replayed=False), 2, 3, dropout=False)
    assert "NVIDIA GPU" in training.losses(variant, 2, 3, dropout=False)["reason"]
    monkeypatch.setattr(selector, "replay", replay)
    found = training.losses(variant, 2, 3, dropout=False)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-3)
    failed = trainer("lstm-language-model").losses(replace(variant, choices={}), 2, 3, dropout=False)
    assert "has no blocks to replay" in failed["reason"]
    refused = ReplayedStack(path="blocks", blocks=2, refused="they wait")
    monkeypatch.setattr(selector, "replay", lambda *_: [refused])
    assert "not replayed, they wait" in training.losses(variant, 2, 3, dropout=False)["reason"]


def test_models_are_those_that_are_planned() -> None:
    sizes = {"bert-large": {"layers": 2}, "gpt2": {"layers": 2}, "nmt": {"seq": 10}}
    for name, changed in sizes.items():
        known = subject(name)
        small = replace(known, sizes={**known.sizes, **changed})
        parts = Parts(dtype="float32", device=HERE)
        with torch.device("meta"):
            model = small.build(1, parts)
        model_of_plan = published(name, **changed)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == pytest.approx(model_of_plan.parameters, rel=1e-3)
        expected = {part.name: part.count for part in model_of_plan.workload(1).parts}
        assert {part: sum(counts.values()) for part, counts in parts.used.items()} == expected


def test_every_published_model_can_be_measured() -> None:
    assert set(families()) < set(names())


def test_choices_are_given_out_in_order_and_refused_with_the_reason() -> None:
    parts = Parts(dtype="float32", device=HERE, choices={"act": {"torch_gelu": 1, "fused": 1}})
    parts.make("act", "gelu", elements=8)
    with pytest.raises(UnsupportedProblem, match="fused cannot compute act"):
        parts.make("act", "gelu", elements=8)
    assert type(parts.make("act", "gelu", elements=8)).__name__
    assert parts.used == {"act": {"torch_gelu": 2, "fused": 1}}


def test_a_failing_variant_is_a_line_with_its_reason() -> None:
    line = trainer("nmt").run(Variant(name="checkpointing", recomputed=EVERY_BLOCK), 2)
    assert (line["status"], line["reason"]) == (
        "failed",
        "ValueError: Translation has no blocks to recompute",
    )


def test_the_largest_batch_is_foretold_from_two_peaks() -> None:
    probes = [{"status": "ok", "batch": batch, "peak_bytes": 100 + 10 * batch} for batch in (4, 8)]
    assert largest(probes, 260) == 16
    assert largest(probes, 135) == 3
    assert largest(probes, 50) is None
    assert largest([probes[0], {"status": "out_of_memory", "batch": 8}], 260) is None


def test_plans_are_read_and_other_files_refused(tmp_path: Path) -> None:
    layer = {"part": "feed-forward", "implementation": "fused", "count": 2, "recomputed": False}
    again = {**layer, "implementation": "from_output", "count": 1, "recomputed": True}
    plan = {
        "layers": [layer, again],
        "recomputed_blocks": 1,
        "batch": 16,
        "limit_bytes": 2**30,
        "peak_bytes": 2**29,
        "samples_per_s": 10.0,
        "device": "NVIDIA H200",
        "snapshot": "one",
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    found = planned(file)
    assert list(found.choices["feed-forward"].items()) == [("from_output", 1), ("fused", 2)]
    assert (found.batch, found.recomputed, found.limit_bytes) == (16, 1, 2**30)
    assert not found.replayed
    file.write_text(json.dumps({**plan, "recomputed_blocks": 0, "replayed": True}))
    assert planned(file).replayed
    assert graphed([planned(file)]) == []  # it has graphs already
    for text in ("", "[]", "{}", json.dumps({**plan, "layers": 3})):
        file.write_text(text)
        with pytest.raises(ValueError, match="is no plan"):
            planned(file)
    with pytest.raises(ValueError, match="expected part=implementation"):
        chosen(["feed-forward"])


def test_peers_are_what_torch_has() -> None:
    assert [one.name for one in peers()] == [
        "eager",
        "sdpa",
        "compile",
        "compile, budget 0.999",
        "compile, budget 0.5",
        "compile, max-autotune-no-cudagraphs",
        "compile, reduce-overhead",
        "checkpointing",
    ]


def test_the_program_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["lstm-language-model", "--smoke", "--losses", "2", "--results", str(tmp_path)]
    assert program.main([*arguments, "--use", "recurrent=hoisted", "--only", "sdpa", "chosen"]) == 0
    (file,) = tmp_path.glob("model_lstm-language-model_*.json")
    result = json.loads(file.read_text())
    assert [line["variant"] for line in result["rows"]] == ["chosen", "sdpa"]
    assert [(line["variant"], line["dropout"]) for line in result["losses"]] == [
        ("chosen", False),
        ("sdpa", False),
        ("chosen", True),
        ("sdpa", True),
    ]
    assert result["rows"][0]["parts"]["recurrent"] == {"hoisted": 1}
    assert "samples/s" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="unknown variants"):
        program.main([*arguments, "--only", "eagerly"])


def test_without_a_wish_each_variant_is_run_under_caps() -> None:
    assert program._options(["nmt"]).caps == [16, 24, 40]
    for wish in (["--batch", "8"], ["--plan", "plan.json"], ["--losses", "2"]):
        assert program._options(["nmt", *wish]).caps == []
    assert program._options(["nmt", "--batch", "8", "--caps", "4"]).caps == [4]


def test_frontiers_are_written_with_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = published("lstm-language-model", hidden=64, vocabulary=100, dtype="float32")
    monkeypatch.setattr("selector.api.published", lambda _name: small)
    arguments = ["--device", "cpu", "--limits", "1MiB", "32MiB", "--results", str(tmp_path)]
    empty = tmp_path / "empty.sqlite"
    Database.open(str(empty), create=True).close()
    file = plans.main([*arguments, "--models", "lstm-language-model", "--database", str(empty)])
    (found,) = json.loads(file.read_text())["models"].values()
    assert [point["limit_bytes"] for point in found["points"]] == [32 * 2**20]
    assert len(found["cpu_seconds_per_plan"]) == 1
    assert (tmp_path / "plans_lstm-language-model.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["bert-base", pytest.param("roberta-base", marks=pytest.mark.full), "gpt2"])
def test_hugging_faces_models_train_alike_before_and_after_optimize(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    arguments = [name, "--smoke", "--batch", "2", "--losses", "3", "--results", str(tmp_path)]
    assert hugging_face_program.main(arguments) == 0
    (file,) = tmp_path.glob(f"hugging_face_{name}_*.json")
    result = json.loads(file.read_text())
    variants = ["optimized", "sdpa", "sdpa, loss without logits", "eager"]
    assert [line["variant"] for line in result["rows"]] == variants
    with_logits, without = (line["loss"] for line in result["rows"][1:3])
    assert without == pytest.approx(with_logits, rel=1e-3)
    ours, theirs, again = result["losses"]
    assert [one["variant"] for one in result["losses"]] == ["optimized", "sdpa", "sdpa, again"]
    assert again["losses"] == theirs["losses"]
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)
    assert len(set(ours["losses"])) == 3  # something is learned
    before = file.read_bytes()
    more = ["--commit", result["commit"]]
    assert hugging_face_program.main([*arguments, *more]) == 0
    assert file.read_bytes() == before  # lines of the same commit are not run again


def test_layers_or_a_whole_model_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    budgets: list[object] = []
    monkeypatch.setattr(
        torch, "compile", lambda call, backend="inductor", **_: budgets.append(backend) or call
    )
    monkeypatch.setattr("benchmarks.models._hugging_face.compiler", lambda budget: budget)
    parts = Parts(dtype="float32", device=HERE)
    for variant in (hugging_face_program.COMPILED, hugging_face_program.WHOLE, *hugging_face_program.WITHIN):
        model = hugging_face("bert-base", "sdpa", tiny=True).build(1, parts)
        variant.finished(model, ())
        compiled = {path for path, part in model.named_modules() if part._compiled_call_impl is not None}
        layers = {f"model.bert.encoder.layer.{place}" for place in range(2)}
        assert compiled == ({"model"} if variant.whole else layers)
    each_layer = [one for budget in BUDGETS for one in (budget, budget)]
    assert budgets == ["inductor"] * 3 + each_layer + list(BUDGETS)


@pytest.mark.parametrize(
    ("status", "reason", "batches"),
    [
        ("out_of_memory", "OutOfMemoryError: CUDA out of memory", [48, 42, 37, 33]),
        ("failed", "RuntimeError: 2 blocks of h: not replayed, OutOfMemoryError: no", [48, 42, 37, 33]),
        ("failed", "NothingFits: no plan", [48, 42, 37, 33]),
        ("failed", "RuntimeError: something else", [48]),
    ],
)
def test_fewer_samples_are_tried_where_a_plan_took_too_much(
    status: str, reason: str, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def run(_variant: Variant, batch: int, _cap_bytes: int) -> dict[str, Any]:
        tried.append(batch)
        return {"status": status, "reason": reason, "batch": batch}

    plan = SimpleNamespace(batch=48, peak_bytes=2**29, samples_per_s=10.0)
    monkeypatch.setattr(hugging_face_program, "plan_of", lambda *_, **__: plan)
    trainer: Any = SimpleNamespace(run=run, subject=None)
    found = hugging_face_program._under(trainer, Parts(dtype="float32", device=HERE), "cpu", 2**30, True)
    assert (found["reason"], tried) == (reason, batches)
    figures = {"peak_bytes": 2**29, "samples_per_s": 10.0}  # of the plan, where it is what was run
    assert found.get("planned") == (figures if found["batch"] == 48 else None)


def test_layers_are_checkpointed() -> None:
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    parts = Parts(dtype="float32", device=HERE)
    given = hugging_face("gpt2", "sdpa", tiny=True)
    model = given.build(1, parts).train()
    hugging_face_program.CHECKPOINTED.finished(model, ())
    layers = [
        one for one in model.modules() if isinstance(one, transformers.models.gpt2.modeling_gpt2.GPT2Block)
    ]
    assert [one.gradient_checkpointing for one in layers] == [True] * given.sizes["layers"]
    model(*given.inputs(1, 0, "cpu", torch.float32)).backward()


def test_the_batch_of_hugging_faces_model_is_a_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

    def planned_for(model: Model, device: str, limit: int, *, training: Training) -> SimpleNamespace:
        workload = model.workload(4)
        operators = {part.problem.operator for part in workload.parts}
        assert operators >= {"linear", "attention", "feed_forward", "linear_cross_entropy"}
        assert workload.loss_bytes == 0  # logits are not used
        return SimpleNamespace(batch=limit + training.replayed if device == "nvidia-h200" else 0)

    monkeypatch.setattr(selector, "plan", planned_for)
    tiny, parts = hugging_face("bert-base", "sdpa", tiny=True), Parts(dtype="bfloat16", device=HERE)
    assert plan_of(tiny, parts, "cpu", 7, "nvidia-h200").batch == 7
    assert plan_of(tiny, parts, "cpu", 7, "nvidia-h200", replayed=True).batch == 8


def test_models_before_and_after_optimize_as_a_user_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    monkeypatch.setattr(arrangement_search, "MOST_SECONDS", 0.2)
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.2)
    arguments = ["--smoke", "--only", "vit", "gpt2", "--results", str(tmp_path)]
    assert optimize_program.main(arguments) in (0, 1)  # so short a look may err
    printed = capsys.readouterr().out
    (file,) = tmp_path.glob("optimize_*.json")
    rows = {one["model"]: one for one in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["vit", "gpt2"]
    for one in rows.values():
        assert one["outcome"]["pairs"] >= 3
        assert one["loss_difference"] < 1e-3
        assert one["first_line"] in printed
    for name, (kind, *_) in (optimize_program.SMALL | optimize_program.LARGE).items():
        assert name.partition("-")[0] in kind.lower()
