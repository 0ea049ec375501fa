"""Layers of a model, with the shapes, dtypes and modes of an example run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError

from ..nn.hyperparameters import IGNORED, attention_values, computed_dtype, loss_values
from .example import arguments_of, undisturbed
from .layer_kinds import OperatorCall, parts_of


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Operator at a place in a model, with the number of its calls in the example run.

    `path` names a module, as in `model.get_submodule(path)`: the one that holds the parameters, or, of a
    group such as a feed-forward layer, the one that all of its modules are part of; for attention by a
    function, the one whose `forward` calls it. `covers` are the paths of all modules whose work this is.
    """

    path: str
    problem: Problem
    calls: int
    covers: tuple[str, ...]


def find(model: nn.Module, example_inputs: Any) -> list[Layer]:
    """Layers that one forward pass of the example inputs runs, in the order of their first calls.

    `example_inputs` are one tensor, a tuple of positional arguments, or a mapping of keyword arguments. The
    mode of a problem is that of its module: training, or inference. Under autocast the dtypes are what it
    computes in. What is part of a larger layer, as the linear layers of a feed-forward layer are, is not
    listed by itself, and neither is what no operator's hyperparameters can say. A linear layer whose outputs
    go into `cross_entropy` is listed as one layer with it. The model is left as it was, with its buffers and
    the state of torch's random numbers. It and the inputs may be on torch's meta device, where nothing is
    computed.

    Raises InvalidRequest for inputs of another kind, and what the model itself raises.
    """
    args, kwargs = arguments_of(example_inputs)
    recorder = _Recorder(model)
    with recorder, undisturbed(model), _uncompiled(), torch.no_grad():
        model(*args, **kwargs)
    return recorder.layers()


def _uncompiled() -> AbstractContextManager[object]:
    """Context in which what is compiled in a model runs as it was written, so that hooks see its calls."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eager


class _Key(NamedTuple):
    """Identity of a layer: everything but its number of calls."""

    path: str
    problem: Problem
    covers: tuple[str, ...]  # empty for a module by itself


class _Recorder:
    """Context that records the operators of all calls."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        self._running: list[nn.Module] = []
        self._calls: Counter[_Key] = Counter()
        self._last_linear: dict[int, nn.Linear] = {}  # by features of its output
        self._in_interface = False
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for module in self._paths:
            if not isinstance(module, torch.jit.ScriptModule):
                for hook in (
                    module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
                    module.register_forward_hook(self._after, always_call=True),
                ):
                    self._stack.callback(hook.remove)
        self._stack.enter_context(_Functions(self._function))
        self._stack.enter_context(_attention_interfaces(self._interface))

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def layers(self) -> list[Layer]:
        """Recorded layers. Parts of a group are listed only with the group."""
        covered = {path for key in self._calls for path in key.covers}
        return [
            Layer(path=key.path, problem=key.problem, calls=calls, covers=key.covers or (key.path,))
            for key, calls in self._calls.items()
            if key.covers or key.path not in covered
        ]

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._running.append(module)
        for part in parts_of(module, args, kwargs):
            self._note(module, part)
        if isinstance(module, nn.Linear):
            self._last_linear[module.out_features] = module

    def _after(self, *_call: object) -> None:
        self._running.pop()

    def _note(self, module: nn.Module, part: OperatorCall) -> None:
        path = self._paths[module]
        mode = "training" if module.training else "inference"
        try:
            operator = registry.operator(part.operator)
            problem = operator.problem(part.values, dtype=part.dtype, mode=mode)
        except SelectorError:
            return  # a size of zero, or a dtype without kernels
        covers = tuple(_joined(path, name) for name in part.covers)
        self._calls[_Key(_joined(path, part.at), problem, covers)] += 1

    def _function(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if function is scaled_dot_product_attention and self._running and not self._in_interface:
            self._attention(self._running[-1], *args, **kwargs)
        elif function is cross_entropy:
            self._loss(signature(cross_entropy).bind(*args, **kwargs).arguments)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        _value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_rest: object,
    ) -> None:
        if query.dim() == 4:
            values = attention_values(query, key, attn_mask, causal=is_causal, dropout=dropout_p)
            self._note(module, OperatorCall("attention", values, computed_dtype(query)))

    @contextmanager
    def _interface(self, module: nn.Module, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Context around a call of Hugging Face's attention, whichever function computes it."""
        query, key, value, mask = args[:4]
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        causal = bool(causal) and mask is None and query.size(2) > 1
        self._attention(module, query, key, value, mask, kwargs.get("dropout", 0.0), causal)
        self._in_interface = True
        try:
            yield
        finally:
            self._in_interface = False

    def _loss(self, given: Mapping[str, Any]) -> None:
        logits, labels = given["input"], given["target"]
        linear = self._last_linear.get(logits.size(-1))
        plain = given.get("weight") is None and given.get("reduction", "mean") == "mean"
        if logits.dim() != 2 or labels.dim() != 1 or linear is None or not plain:
            return
        if given.get("ignore_index", IGNORED) != IGNORED:
            return
        smoothing = float(given.get("label_smoothing", 0.0))
        values = loss_values(linear, logits.size(0), labels, smoothing)
        dtype = computed_dtype(linear.weight)
        part = OperatorCall("linear_cross_entropy", values, dtype, "", ("",))
        self._note(linear, part)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


class _Functions(TorchFunctionMode):
    """Torch function mode that reports each call before it runs."""

    def __init__(self, show: Callable[[object, tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()
        self._show = show

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._show(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def _attention_interfaces(around: Callable[..., Any]) -> Iterator[None]:
    """Context in which Hugging Face's attention calls enter `around(module, query, key, value, mask,
    ...)`.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:  # then no model is one of theirs
        yield
        return
    interface: Any = library.AttentionInterface
    original = interface.get_interface

    def get_interface(own: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(own, name, default)

        def shown(*args: Any, **kwargs: Any) -> Any:
            with around(*args, **kwargs):
                return function(*args, **kwargs)

        return shown

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original
