"""Plans without measurements of one's own: those that come with the package, and what is left out of them."""

from __future__ import annotations

import inspect
import os

import pytest
import torch
from torch import nn

import selector
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.service.cli import main
from selector import InvalidRequest
from selector.planning.plan import Plan
from selector.planning.training_setup import AS_FUSED_IN_GRAPHS, Training
from selector.selection import knowledge, shipped
from selector.selection.shipped import CPU
from selector.workloads.published_models import layer_problems
from tests.selector.conftest import forget_what_ships

DEVICE = "h200"
NORMS = ("RMSNorm", "T5LayerNorm")
RATED = Device(
    name="My GPU", kind="cuda", copy_bytes_per_s=1e12, launch_us=5.0, matmul_flops_per_s={"float32": 1e13}
)


@pytest.fixture
def fresh(request, monkeypatch, tmp_path):
    """A user who has measured nothing."""
    request.getfixturevalue("shipped_cache")
    monkeypatch.delenv("SELECTOR_DATABASE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def used(plan):
    return {f"{one.operator}.{one.implementation}" for one in plan.layers}


@pytest.mark.usefixtures("fresh")
def test_a_fresh_install_plans_for_a_device_that_is_elsewhere_and_says_from_what():
    plan = selector.plan("bert-large", device=DEVICE, memory_limit="16GiB", batch=16)
    assert any("come with this package" in caveat for caveat in plan.caveats)
    assert any(not one.default for one in plan.layers)
    assert {one.source for one in plan.layers} <= {"exact", "series", "scaled"}


@pytest.mark.usefixtures("fresh")
def test_a_device_is_found_by_the_name_that_choosing_finds_it_by():
    plan = selector.plan("lstm-language-model", device=CPU, memory_limit="16GiB", batch=8)
    assert plan.device == selector.choose(hidden=64, batch=8, device=CPU).device.name
    with pytest.raises(selector.UnknownDevice, match="h900"):
        selector.plan("lstm-language-model", device="h900")


@pytest.mark.usefixtures("fresh")
def test_a_device_of_which_nothing_is_known_is_no_unknown_name():
    device = Device(name="My GPU", kind="cuda", memory_bytes=2**34)
    with pytest.raises(selector.NoMeasurements, match="on My GPU: no measurements"):
        selector.plan("bert-large", device=device, memory_limit="16GiB")


@pytest.mark.usefixtures("fresh")
def test_where_nothing_can_be_unpacked_the_plan_says_so(monkeypatch):
    def unpacked():
        raise OSError("no room")

    monkeypatch.setattr(shipped, "unpacked", unpacked)
    forget_what_ships()
    plan = selector.plan("bert-large", device=RATED, memory_limit="16GiB", batch=1)
    assert f"{knowledge.UNUSABLE}no room" in plan.caveats
    with pytest.raises(selector.NoMeasurements, match="cannot be used: no room"):
        selector.plan("bert-large", device=DEVICE, memory_limit="16GiB")


def test_where_what_ships_is_turned_off_a_plan_rests_on_the_database_alone(sqlite_database):
    with pytest.raises(selector.NoMeasurements, match="Measure there"):
        selector.plan("bert-large", device=DEVICE, memory_limit="16GiB", database=sqlite_database)


@pytest.mark.usefixtures("fresh")
def test_what_ships_is_left_out_by_an_argument(sqlite_database, monkeypatch):
    asked = {"device": DEVICE, "memory_limit": "16GiB", "database": sqlite_database}
    for function in (selector.plan, selector.pareto):
        with pytest.raises(selector.NoMeasurements, match="Measure there"):
            function("bert-large", **asked, shipped=False)
    assert os.environ["SELECTOR_SHIPPED"] == "on"
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    assert selector.plan("bert-large", **asked, batch=1, shipped=True).layers
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'ships'"):
        selector.plan("bert-large", **asked, ships=False)


@pytest.mark.usefixtures("fresh")
def test_the_command_leaves_out_what_ships_without_the_environment(sqlite_database, capsys):
    words = [
        "plan",
        "bert-large",
        "--device",
        DEVICE,
        "--memory",
        "16GiB",
        "--database",
        sqlite_database.location,
    ]
    assert main([*words, "--no-shipped"]) != 0
    assert "Measure there" in capsys.readouterr().err
    assert os.environ["SELECTOR_SHIPPED"] == "on"


@pytest.mark.usefixtures("fresh")
def test_what_is_excluded_is_not_used():
    plan = selector.plan("gpt2", device=DEVICE, memory_limit="16GiB", batch=8)
    ours = sorted(used(plan) - {f"{one.operator}.{one.implementation}" for one in plan.layers if one.default})
    exclude = (ours[0], "torch_compile")
    other = selector.plan(
        "gpt2", device=DEVICE, memory_limit="16GiB", batch=8, training=Training(exclude=exclude)
    )
    assert ours[0] not in used(other)
    assert not any(name.endswith(".torch_compile") for name in used(other))


def test_an_exclusion_that_means_nothing_is_refused():
    with pytest.raises(InvalidRequest, match=r"exclude='lstm\.fuzed': no implementation\. Did you mean"):
        Training(exclude=("lstm.fuzed",))


def test_layers_of_published_models_are_measured_batch_by_batch():
    found = layer_problems(["bert-base", "nmt"], "4,8")
    assert [problem["batch"] for problem in found if problem.operator == "attention"] == [4, 8]
    assert {problem.operator for problem in found} >= {"lstm", "additive_attention", "feed_forward", "linear"}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("batches", ["0", "many", "8,", "auto"])
def test_batches_that_are_none_are_refused(batches):
    with pytest.raises(InvalidRequest, match="expected"):
        layer_problems(["bert-base"], batches)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("captured", ["cuda_graphs", "replayed"])
def test_what_keeps_more_in_graphs_is_not_planned_for_them(captured):
    limits = {"device": DEVICE, "memory_limit": "16GiB", "batch": 56}
    assert used(selector.plan("bert-large", **limits)) & AS_FUSED_IN_GRAPHS
    training = Training(**{captured: True})
    assert not used(selector.plan("bert-large", **limits, training=training)) & AS_FUSED_IN_GRAPHS


def test_those_that_keep_more_in_graphs_are_those_that_look_at_weights():
    built = {
        f"{operator}.{name}": inspect.getsource(inspect.getmodule(one.build))
        for operator in registry.operators()
        for name, one in registry.implementations(operator).items()
    }
    assert {name for name, source in built.items() if "FromOutput(" in source} == AS_FUSED_IN_GRAPHS


@pytest.mark.usefixtures("fresh")
def test_what_ships_adds_to_a_database_that_was_named(sqlite_database):
    asked = {"device": DEVICE, "memory_limit": "16GiB", "batch": 16}
    plan = selector.plan("bert-large", **asked, database=sqlite_database)
    assert plan.layers == selector.plan("bert-large", **asked).layers
    assert any("come with this package" in caveat for caveat in plan.caveats)


@pytest.mark.usefixtures("fresh")
def test_a_plan_gains_over_the_frameworks_own_what_choices_of_its_layers_gain():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    plan = selector.plan((model, torch.randn(128, 64)), device=DEVICE, memory_limit="16GiB", batch=131072)
    ours = theirs = 0.0
    for layers in plan.layers:
        choice = selector.choose(layers.operator, device=DEVICE, **layers.hyperparameters)
        ours += choice.time_ms
        theirs += next(one.time_ms for one in choice.candidates if one.default)
    assert plan.speed_up == pytest.approx(theirs / ours, rel=0.15)


@pytest.mark.parametrize(("device", "sources"), [("h100", {"model"}), ("a100", {"transfer"})])
@pytest.mark.usefixtures("fresh")
def test_a_device_of_few_measurements_or_none_is_planned_by_what_choices_rest_on(device, sources):
    plan = selector.plan("bert-base", device=device, memory_limit="16GiB", batch=8)
    assert sources <= {one.source for one in plan.layers}
    assert plan.samples_per_s > 0


@pytest.mark.usefixtures("fresh")
def test_gains_are_over_the_faster_of_eager_and_compiled():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.RMSNorm(256), nn.Linear(256, 64))
    asked = {"device": DEVICE, "memory_limit": "16GiB", "batch": 131072}
    plan = selector.plan((model, torch.randn(128, 64)), **asked)
    assert set(plan.compiled) >= {"gelu", "rms_norm"}
    assert "over the framework's own (for each layer the faster of eager and torch.compile" in plan.explain()
    names = {one.operator: one.implementation for one in plan.default.layers}
    assert {registry.operator(operator).default for operator in names} | {"torch_compile"} >= set(
        names.values()
    )
    assert "torch_compile" in names.values()
    eager = selector.plan(
        (model, torch.randn(128, 64)), **asked, training=Training(exclude=("torch_compile",))
    )
    assert all(one.default for one in eager.default.layers)
    assert eager.default.samples_per_s < plan.default.samples_per_s
    assert "over the framework's own (eager: nothing is known of torch.compile)" in eager.explain()
    assert Plan.from_dict(plan.to_dict()) == plan
    earlier = {name: value for name, value in plan.to_dict().items() if name != "compiled"}
    assert Plan.from_dict(earlier).compiled == ()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("family", ["llama", "gemma2", "t5"])
def test_rms_norms_that_a_model_writes_out_are_priced(family):
    transformers = pytest.importorskip("transformers")
    small = {
        "llama": (transformers.LlamaConfig, {"num_key_value_heads": 4}),
        "gemma2": (transformers.Gemma2Config, {"num_key_value_heads": 4, "head_dim": 16}),
        "t5": (
            transformers.T5Config,
            {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4},
        ),
    }
    kind, sizes = small[family]
    shared = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = kind(vocab_size=100, **({} if family == "t5" else shared), **sizes)
    model = transformers.AutoModel.from_config(config).train()
    ids = torch.randint(0, 100, (2, 16))
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if family == "t5" else {})}
    plan = selector.plan((model, inputs), device=DEVICE, memory_limit="16GiB", batch=4)
    norms = sum(isinstance(one, nn.Module) and one._get_name().endswith(NORMS) for one in model.modules())
    assert sum(one.count for one in plan.layers if one.operator == "rms_norm") == norms > 0
