"""Drop-in modules under torch.compile with fullgraph: the choice is made while a call is traced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector import nn as drop_in
from selector.nn import hugging_face
from selector.nn.selected import adopt
from selector.nn.selection import Policy

pytestmark = [
    pytest.mark.usefixtures("stand_ins"),
    # of torch.compile, where it traces an autograd.Function
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def model(implementation: str | None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        drop_in.Linear(6, 8, implementation=implementation and "column_major"),
        drop_in.LayerNorm(8, implementation=implementation),
        drop_in.GELU(implementation=implementation),
        drop_in.RMSNorm(8, implementation=implementation),
        drop_in.SiLU(implementation=implementation),
        drop_in.ReLU(implementation=implementation),
    )


def compiled(module: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


def results(call: Any, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, and the gradients of x and the parameters."""
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    return [y, *torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def seen(module: nn.Module) -> list[list[tuple[str, object]]]:
    """Implementations that were chosen, with rows or elements."""
    return [
        [
            (one.implementation, one.problem.as_dict.get("rows", one.problem.as_dict.get("elements")))
            for one in each.choices
        ]
        for each in module
    ]


@pytest.mark.parametrize("implementation", [None, "stand_in"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_computes_what_a_call_outside_does(implementation: str | None, dynamic: bool) -> None:
    ours = model(implementation)
    call, plain = compiled(ours, dynamic=dynamic), copy.deepcopy(ours)
    for rows in (4, 7) if dynamic else (4,):
        x = torch.randn(rows, 6)
        same(results(call, ours, x), results(plain, plain, x))
    if implementation is not None:
        assert {name for each in seen(ours) for name, _ in each} == {"column_major", "stand_in"}


def test_a_graph_of_any_size_keeps_the_choice_of_the_call_that_was_traced() -> None:
    ours = drop_in.LayerNorm(8, implementation="stand_in")
    call = compiled(ours, dynamic=True)
    for rows in (4, 5, 300):
        call(torch.randn(rows, 8))
    assert [choice.problem["rows"] for choice in ours.choices] == [4]
    call = compiled(ours)
    for rows in (16, 600):  # torch.compile takes the first as the only one, and the second as any
        call(torch.randn(rows, 8))
    assert [choice.problem["rows"] for choice in ours.choices] == [4, 16, 600]


def test_freezing_another_mode_and_other_parameters_are_seen() -> None:
    ours = drop_in.LayerNorm(8, implementation="stand_in")
    call, x = compiled(ours), torch.randn(4, 8)
    same(results(call, ours, x), results(ours, ours, x))
    ours.weight = nn.Parameter(torch.rand(8))
    same(results(call, ours, x), results(ours, ours, x))
    with torch.no_grad():
        ours.weight.mul_(2)
        same([call(x)], [ours.eval()(x)])
    assert [choice.problem["mode"] for choice in ours.choices] == ["training", "inference"]
    ours.freeze("torch_layer_norm")
    same([call(x)], [ours(x)])
    assert ours._selections[""].recorded == {}
    ours.unfreeze()
    same([call(x)], [ours(x)])
    (built,) = ours._selections[""].recorded.values()
    assert {one.device.type for one in built.parameters()} == {"meta"}  # no graph keeps a weight


def test_frozen_parameters_and_autocast_get_choices_of_their_own() -> None:
    ours = drop_in.Linear(6, 8, implementation="column_major").eval()
    call, x = compiled(ours), torch.randn(4, 6)
    same([call(x)], [ours(x)])
    with torch.autocast("cpu", torch.bfloat16):
        same([call(x)], [ours(x)])
    ours.requires_grad_(False)
    same([call(x)], [ours(x)])
    found = [(one.problem["mode"], one.problem["dtype"]) for one in ours.choices]
    assert found == [("training", "float32"), ("training", "bfloat16"), ("inference", "float32")]
    assert len(ours._selections[""].recorded) == 3


def test_a_computed_weight() -> None:
    ours = nn.utils.parametrizations.weight_norm(drop_in.Linear(6, 8, implementation="column_major"))
    x = torch.randn(4, 6)
    same(results(compiled(ours), ours, x), results(ours, ours, x))


def test_what_refuses_a_problem_says_so() -> None:
    words = "Triton compiles for GPUs, and this device is none"
    ours = drop_in.GELU(implementation="from_output")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        compiled(ours)(torch.randn(4, 6))
    attention = drop_in.MultiheadAttention(8, 2, implementation="fused")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        compiled(attention)(*[torch.randn(4, 3, 8)] * 3, need_weights=False)


FF = {"feed_forward": "recompute_activation"}
ATTENTION = {"batch_first": True, "implementation": "tempo", "dropout": 0.25}
# what is compiled, further arguments of a call, and the shapes of tensors for a batch
MODULES: dict[str, tuple[Callable[[], Any], dict[str, Any], Callable[[int], list[tuple[int, ...]]]]] = {
    "encoder layer": (
        lambda: drop_in.TransformerEncoderLayer(8, 2, 16, dropout=0.25, implementation=FF),
        {},
        lambda batch: [(5, batch, 8)],
    ),
    "decoder layer": (
        lambda: drop_in.TransformerDecoderLayer(8, 2, 16, norm_first=True, implementation=FF),
        {},
        lambda batch: [(5, batch, 8), (3, batch, 8)],
    ),
    "multi-head attention": (
        lambda: drop_in.MultiheadAttention(8, 2, **ATTENTION),
        {},
        lambda batch: [(batch, 5, 8), (batch, 3, 8), (batch, 3, 8)],
    ),
    "attention": (
        lambda: drop_in.ScaledDotProductAttention(implementation="recompute"),
        {"dropout_p": 0.25, "is_causal": True, "scale": 0.5},
        lambda batch: [(batch, 2, 5, 4)] * 3,
    ),
    "additive attention": (
        lambda: drop_in.AdditiveAttention(8, implementation="recompute"),
        {},
        lambda batch: [(batch, 5, 8), (batch, 3, 8)],
    ),
}


def test_a_loss_is_chosen_for_the_share_of_labels_of_the_latest_call_outside() -> None:
    ours = drop_in.LinearCrossEntropy(6, 11, implementation="gathered")
    x, labels = torch.randn(8, 6), torch.tensor([3, -100] * 4)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="here every row has one"):
        compiled(ours)(x, labels)
    expected = results(partial(ours, labels=labels), ours, x)
    same(results(partial(compiled(ours), labels=labels), ours, x), expected)
    assert {choice.problem["labelled"] for choice in ours.choices} == {0.5}


# of both layers, which share what is chosen, one every time
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.full if one == "decoder layer" else ()) for one in MODULES]
)
def test_modules_of_several_inputs_are_one_graph(name: str) -> None:
    made, named, shapes = MODULES[name]
    torch.manual_seed(0)
    ours = made()
    ours(*map(torch.randn, shapes(2)), **named)  # chooses
    call = compiled(ours, dynamic=True)
    for batch in (2, 3):
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes(batch)]
        found = []
        for function in (ours, call):
            torch.manual_seed(7)
            given = function(*leaves, **named)
            outputs = [one for one in (given if isinstance(given, tuple) else (given,)) if one is not None]
            loss = torch.stack([one.square().sum() for one in outputs]).sum()
            found.append([*outputs, *torch.autograd.grad(loss, [*leaves, *ours.parameters()])])
        same(found[1], found[0])


@pytest.mark.parametrize("name", ["multi-head attention", "attention"])
def test_each_call_drops_anew_and_another_share_is_seen(name: str) -> None:
    made, named, shapes = MODULES[name]
    ours, given = made(), [torch.randn(shape) for shape in shapes(2)]
    call = compiled(ours, dynamic=True)
    assert not torch.equal(call(*given, **named)[0], call(*given, **named)[0])
    if named:
        named = {**named, "dropout_p": 0.0}
    else:
        ours.dropout = 0.0
    same([call(*given, **named)[0]], [ours(*given, **named)[0]])


def test_a_loss_is_part_of_the_graph_and_looks_at_no_label() -> None:
    ours = drop_in.LinearCrossEntropy(6, 11, label_smoothing=0.1, implementation="chunked")
    call = compiled(ours, dynamic=True)
    for rows in (4, 7):
        x, labels = torch.randn(rows, 6), torch.randint(11, (rows,))
        found, expected = (results(partial(one, labels=labels), ours, x) for one in (call, ours))
        same(found, expected)
    ours.label_smoothing = 0.2
    same([call(x, labels)], [ours(x, labels)])
    labels[0] = 11
    assert call(x, labels).isnan()
    assert {choice.problem["labelled"] for choice in ours.choices} == {1.0}


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_language_models_of_hugging_face_are_one_graph(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 1}
    if name == "gpt2":
        shape = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **shape, use_cache=False))
    else:
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **shape))
    for part in list(model.modules()):
        if type(part).__name__ in hugging_face.STANDS_FOR:
            kind = getattr(hugging_face, type(part).__name__)
            named = {"loss": "chunked", "feed_forward": "recompute_activation", "LayerNorm": "stand_in"}
            adopt(part, kind, {one: Policy(implementation=named.get(one)) for one in kind.OPERATORS})
    ids = torch.randint(50, (2, 6))
    call = compiled(model)
    found = []
    for function in (model, model, call):  # the first one chooses
        torch.manual_seed(7)
        loss = function(input_ids=ids, labels=ids).loss
        found.append([loss, *torch.autograd.grad(loss, [*model.parameters()])])
    same(found[2], found[1])


def test_a_break_is_found() -> None:
    """Of torch's own class, which stays what it was beside ours."""
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(nn.LSTM(5, 6))(torch.randn(4, 3, 5))
