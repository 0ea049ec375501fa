"""What is done with attention whose layers may be one product, and how many of its calls then are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

modeling: Any = pytest.importorskip(
    "transformers.models.bert.modeling_bert", reason="Hugging Face's transformers is not installed"
)

Seen = list[Any]


def attention(kind: str = "eager") -> Any:
    """BERT's self-attention as it comes but in float64, always with the same weights."""
    torch.manual_seed(0)
    config = modeling.BertConfig(
        hidden_size=16, num_attention_heads=2, attention_probs_dropout_prob=0.0, attn_implementation=kind
    )
    return modeling.BertSelfAttention(config, layer_idx=0).train().double()


def given(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    found = torch.randn(*(shape or (2, 5, 16)), generator=generator, dtype=torch.float64)
    return found.requires_grad_()


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in module.parameters()]


def trained(module: Any, x: Tensor | None = None) -> Seen:
    x = given() if x is None else x
    out, weights = module(x)
    out.square().mean().backward()
    return [out, weights, x.grad, *gradients(module)]


# what is done with the module -> how many of its calls are one product


def whole(module: Any) -> tuple[Seen, int]:
    return [*trained(module), *trained(module)], 2


def weights_alone(module: Any) -> tuple[Seen, int]:
    """The value takes no part in the loss: its gradients are None."""
    module(given())[1].square().sum().backward()
    assert module.value.weight.grad is module.value.bias.grad is None
    return gradients(module), 1


def one_member_alone(module: Any) -> tuple[Seen, int]:
    """Two calls of members by the user, each with a backward of its own."""
    x = given()
    query, key = module.query(x), module.key(x)
    query.sum().backward()
    key.square().sum().backward()
    assert module.value.weight.grad is None
    return [query, key, x.grad, *gradients(module)], 0


def weight_decay(module: Any) -> tuple[Seen, int]:
    """A member without a gradient is not moved."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        module(given())[1].square().sum().backward()
        optimizer.step()
    assert torch.equal(module.value.weight, attention().value.weight)
    return list(module.parameters()), 3


def frozen(module: Any) -> tuple[Seen, int]:
    module.key.requires_grad_(False)
    return trained(module), 0


def frozen_bias(module: Any) -> tuple[Seen, int]:
    before = trained(module)
    module.value.bias.requires_grad_(False)
    return [*before, *trained(module)], 1


def all_frozen(module: Any) -> tuple[Seen, int]:
    module.requires_grad_(False)
    return [module(given().detach())[0].numpy(), *trained(module)], 0


def replaced(module: Any) -> tuple[Seen, int]:
    module.key = nn.Sequential(module.key, nn.Tanh())
    return trained(module), 0


def removed(module: Any) -> tuple[Seen, int]:
    del module.value
    return trained(module), 0


def without_bias(module: Any) -> tuple[Seen, int]:
    before = trained(module)
    module.key.bias = None
    between = trained(module)
    module.query.bias = module.value.bias = None
    return [*before, *between, *trained(module)], 2


def another_bias(module: Any) -> tuple[Seen, int]:
    for one in (module.query, module.key, module.value):
        one.bias = None
    before = trained(module)
    module.value.bias = nn.Parameter(torch.ones(16).double())
    return [*before, *trained(module)], 1


def wrong_bias(module: Any) -> tuple[Seen, int]:
    module.value.bias = nn.Parameter(torch.ones(1).double())
    return trained(module), 0


def wrong_width(_module: Any) -> tuple[Seen, int]:
    return trained(_module, given(2, 5, 12)), 0


def wrong_dtype(module: Any) -> tuple[Seen, int]:
    return trained(module, given().detach().float().requires_grad_()), 0


def no_rows(module: Any) -> tuple[Seen, int]:
    out, weights = module(given(2, 0, 16))
    out.sum().backward()
    return [out, weights, *gradients(module)], 0


def hooks(register: str) -> Callable[[Any], tuple[Seen, int]]:
    def hooked(module: Any) -> tuple[Seen, int]:
        seen: Seen = []

        def note(_module: nn.Module, *values: Any) -> None:
            seen.extend(one for value in values for one in (value if isinstance(value, tuple) else (value,)))

        handle = getattr(module.key, register)(note)
        found = trained(module)
        handle.remove()
        return [*found, *seen, *trained(module)], 1

    return hooked


def changing_hook(module: Any) -> tuple[Seen, int]:
    module.value.register_forward_hook(lambda _module, _args, y: 2 * y)
    module.key.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    return trained(module), 0


def global_hook(module: Any) -> tuple[Seen, int]:
    seen: Seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda _module, _args, y: seen.append(y))
    try:
        found = trained(module)
    finally:
        handle.remove()
    return [*found, len(seen), seen[0]], 0


def parameter_hooks(module: Any) -> tuple[Seen, int]:
    module.key.weight.register_hook(lambda one: 3 * one)

    def doubled(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)

    module.value.weight.register_post_accumulate_grad_hook(doubled)
    return trained(module), 1


def output_hooks(module: Any) -> tuple[Seen, int]:
    x, seen = given(), list[Tensor]()
    x.register_hook(lambda one: seen.append(one.clone()))
    return [*trained(module, x), *seen], 1


def new_weights(module: Any) -> tuple[Seen, int]:
    """Between two calls with the same tensor: in place, by data, and by another parameter."""
    x = given()
    found = [module(x)[0]]
    with torch.no_grad():
        module.key.weight.mul_(2)
    found.append(module(x)[0])
    module.value.weight.data = module.value.weight.data + 1
    found.append(module(x)[0])
    module.query.weight = nn.Parameter(torch.ones(16, 16).double())
    return [*found, *trained(module, x)], 4


def weights_changed_before_backward(module: Any) -> tuple[Seen, int]:
    """Raises where torch needs the weight that was, and not where x takes no gradient."""
    x = given().detach()
    out = module(x)[0]
    with torch.no_grad():
        module.value.weight.mul_(2)
    out.sum().backward()
    found = gradients(module)
    out = module(given())[0]
    with torch.no_grad():
        module.value.weight.mul_(2)
    try:
        out.sum().backward()
    except RuntimeError as error:
        return [*found, "modified by an inplace operation" in str(error)], 2
    return [*found, False], 2


def changed_input(module: Any) -> tuple[Seen, int]:
    x = given().detach()
    found = [module(x)[0]]
    x.mul_(2)
    return [*found, module(x)[0]], 2


def in_place_on_the_output(module: Any) -> tuple[Seen, int]:
    out, _ = module(given())
    out.mul_(2).sum().backward()
    return gradients(module), 1


def autocast(dtype: torch.dtype) -> Callable[[Any], tuple[Seen, int]]:
    def cast(module: Any) -> tuple[Seen, int]:
        module.float()
        with torch.autocast("cpu", dtype=dtype):
            out, weights = module(given().float())
            alone = module.key(given().float())
        (out.float().sum() + alone.float().sum()).backward()
        after = module(given().float())[0]
        return [out, weights, alone, after, *gradients(module)], 2

    return cast


def autocast_of_doubles(module: Any) -> tuple[Seen, int]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = module(given())
    out.sum().backward()
    return [out, *gradients(module)], 0


def another_dtype(module: Any) -> tuple[Seen, int]:
    module.float()
    found = trained(module, given().detach().float().requires_grad_())
    module.double()
    module.key.float()
    with pytest.raises(RuntimeError, match="dtype"):
        trained(module)
    return found, 1


def without_gradients(module: Any) -> tuple[Seen, int]:
    with torch.no_grad():
        found = [module(given())[0], module.key(given())]
    with torch.inference_mode():
        found.append(module(given())[0].clone())
    return [*found, *trained(module)], 1


def recomputed(reentrant: bool) -> Callable[[Any], tuple[Seen, int]]:
    def both(module: Any) -> tuple[Seen, int]:
        x = given()
        out, _ = checkpoint(module, x, use_reentrant=reentrant)
        out.square().sum().backward()
        return [out, x.grad, *gradients(module)], 1 if reentrant else 2

    return both


def saved_elsewhere(module: Any) -> tuple[Seen, int]:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one):
        return trained(module), 1


def threads(module: Any) -> tuple[Seen, int]:
    def one(number: int) -> Tensor:
        out: Tensor = module(given() + number)[0]
        return torch.autograd.grad(out.square().sum(), module.key.weight)[0]

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(24))), 24


def copied(module: Any) -> tuple[Seen, int]:
    found: Seen = []
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(other) is type(module)
        assert other.key.weight is not module.key.weight
        found += trained(other)
        assert gradients(module) == [None] * 6
    return found, 2


def parametrized(module: Any) -> tuple[Seen, int]:
    parametrizations.weight_norm(module.key)
    prune.l1_unstructured(module.value, "weight", 0.5)
    return [*trained(module), *trained(module)], 0


def functional(module: Any) -> tuple[Seen, int]:
    values = {name: 2 * one.detach() for name, one in module.named_parameters()}
    called = torch.func.functional_call(module, values, (given(),))
    x = given().detach()

    def loss(some: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(module, some, (x,))[0].square().sum()
        return found

    every = torch.func.grad(loss)(values, x)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(values, torch.stack([x, 2 * x]))
    return [called[0], *every.values(), *each.values(), torch.func.vmap(module)(x[None])[0]], 0


def forward_mode(module: Any) -> tuple[Seen, int]:
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(given().detach(), torch.ones(2, 5, 16).double())
        return list(torch.autograd.forward_ad.unpack_dual(module(x)[0])), 0


def some_gradients(module: Any) -> tuple[Seen, int]:
    x = given()
    found: Seen = []
    for wanted in ([module.key.weight], [x], [module.value.bias, module.query.weight], [x, module.key.bias]):
        found += torch.autograd.grad(module(x)[0].square().sum(), wanted)
    found += torch.autograd.grad(
        module(x)[1].square().sum(), [module.value.weight, x, module.key.weight], allow_unused=True
    )
    return found, 5


def twice_backward(module: Any) -> tuple[Seen, int]:
    x = given()
    out, _ = module(x)
    loss = out.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    found = gradients(module)
    try:
        loss.backward()
    except RuntimeError as error:
        return [*found, "second time" in str(error)], 1
    return [*found, False], 1


def second_derivatives(module: Any) -> tuple[Seen, int]:
    x = given()
    wanted = [x, *module.parameters()]
    first = torch.autograd.grad(module(x)[0].square().sum(), wanted, create_graph=True)
    sum(one.square().sum() for one in first).backward()
    return [*first, x.grad, *gradients(module)], 1


def compiled(module: Any) -> tuple[Seen, int]:
    return trained(torch.compile(module, backend="eager", fullgraph=True)), 0


def exported(module: Any) -> tuple[Seen, int]:
    x = given().detach()
    return [torch.export.export(module, (x,)).module()(x)[0], torch.jit.trace(module, (x,))(x)[0]], 0


def subclassed_input(module: Any) -> tuple[Seen, int]:
    class Mine(Tensor):
        pass

    found = trained(module, given().detach().as_subclass(Mine).requires_grad_())
    return [one.as_subclass(Tensor) for one in found], 0


def tied(module: Any) -> tuple[Seen, int]:
    module.key.weight = module.query.weight
    return trained(module), 1


def flat_storage(module: Any) -> tuple[Seen, int]:
    """Storage, strides and identity of parameters stay, and gradients have memory of their own."""
    before = [
        (one, one.data_ptr(), one.stride(), one.untyped_storage().nbytes()) for one in module.parameters()
    ]
    found = trained(module)
    assert before == [
        (one, one.data_ptr(), one.stride(), one.untyped_storage().nbytes()) for one in module.parameters()
    ]
    for one in module.parameters():
        assert one.grad.untyped_storage().nbytes() == one.untyped_storage().nbytes()
    return found, 1


CASES: dict[str, Callable[[Any], tuple[Seen, int]]] = {
    **{
        one.__name__: one
        for one in (
            whole,
            weights_alone,
            one_member_alone,
            weight_decay,
            frozen,
            frozen_bias,
            all_frozen,
            replaced,
            removed,
            without_bias,
            another_bias,
            wrong_bias,
            wrong_width,
            wrong_dtype,
            no_rows,
            changing_hook,
            global_hook,
            parameter_hooks,
            output_hooks,
            new_weights,
            weights_changed_before_backward,
            changed_input,
            in_place_on_the_output,
            autocast_of_doubles,
            another_dtype,
            without_gradients,
            saved_elsewhere,
            threads,
            copied,
            parametrized,
            functional,
            forward_mode,
            some_gradients,
            twice_backward,
            second_derivatives,
            compiled,
            exported,
            subclassed_input,
            tied,
            flat_storage,
        )
    },
    "bfloat16": autocast(torch.bfloat16),
    "float16": autocast(torch.float16),
    "reentrant": recomputed(True),
    "not reentrant": recomputed(False),
    **{
        name: hooks(f"register_{name}")
        for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    },
}
RAISING = (removed, wrong_width, wrong_dtype, no_rows)
