"""Tensors that autograd saves in a forward pass, attributed to the layers that produce, consume and save
them.

Tensors are told apart by their storage: views of one count once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from .example import arguments_of, undisturbed
from .layers import Layer

HEAD = "linear_cross_entropy"
SMALL = 2**10  # of bytes: ids, statistics and scalars are not looked for
OUTSIDE = -1  # of all layers
LOSS = -2  # the cross-entropy at the end
DROPOUT = -3  # by itself; kept is whether an element stays, in a byte on a GPU, in the input's dtype on a CPU
LOSS_TENSORS = 3  # the logarithms that are kept, and the gradients of the loss for these and for the logits


@dataclass(frozen=True)
class Use:
    """Bytes of one layer's output, and whether other modules save that output and the layer's inputs."""

    output_bytes: int
    output_kept: bool
    input_kept: bool


class SavedTensors:
    """Record of the tensors that autograd saves in one forward pass of a model."""

    def __init__(self, model: nn.Module, example_inputs: Any, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._number = {path: number for number, layer in enumerate(layers) for path in layer.covers}
        self._running: list[int] = []
        self._first: dict[int, str] = {}
        self._taken: dict[int, set[int]] = defaultdict(set)
        self._given: dict[int, dict[int, int]] = {}  # by the layer's last module: storage to bytes
        self._made: set[int] = set()
        self._keepers: dict[int, set[int]] = defaultdict(set)
        self._bytes: dict[int, int] = {}
        # storages are kept alive, so that no other gets their address; detached, since the graph of autograd
        # keeps this object: with tensors of its own in it, neither would ever be given back
        self._alive: list[Tensor] = []
        self._ours = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._returned = self._run(model, example_inputs)

    @property
    def elsewhere_bytes(self) -> int:
        """Bytes saved outside all layers, by several of them, or held by the caller as outputs."""
        arguments = set().union(*self._taken.values())
        kept = {
            key
            for key, keepers in self._keepers.items()
            if OUTSIDE in keepers or (key in arguments and len(keepers) > 1)
        }
        return sum(self._bytes[key] for key in (kept | self._returned) - self._made)

    @property
    def loss_bytes(self) -> int:
        """Bytes in the backward pass of the cross-entropy alone; 0 for a model without one."""
        kept = {key for key, keepers in self._keepers.items() if LOSS in keepers} - self._made
        return LOSS_TENSORS * sum(self._bytes[key] for key in kept)

    def use(self, number: int) -> Use:
        """Use of one layer. For attention neither is known, because its module may do more; for a fused
        loss the output is the loss.
        """
        layer = self._layers[number]
        given = {} if layer.problem.operator == HEAD else self._given.get(number, {})
        hidden = layer.problem.operator == "attention" or not given
        alone = {
            key for key in self._taken[number] - self._made - self._returned if self._keepers[key] == {number}
        }
        return Use(
            output_bytes=sum(given.values()) // layer.calls,
            output_kept=hidden or any(self._keepers[key] or key in self._returned for key in given),
            input_kept=hidden or not alone,
        )

    def _run(self, model: nn.Module, example_inputs: Any) -> set[int]:
        """Storages of the model's outputs."""
        args, kwargs = arguments_of(example_inputs)
        hooks = [hook for path, module in model.named_modules() for hook in self._watched(path, module)]
        try:
            with (
                undisturbed(model),
                torch.enable_grad(),
                _Functions(self._running, self._keep),
                saved_tensors_hooks(self._keep, lambda tensor: tensor),
            ):
                return set(self._noted(model(*args, **kwargs)))
        finally:
            for hook in hooks:
                hook.remove()

    def _watched(self, path: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Hooks on a layer's module, and on modules in or beside it that save tensors of their own."""
        if path in self._number:
            yield module.register_forward_pre_hook(self._enter(path), with_kwargs=True)
            yield module.register_forward_hook(self._leave(path))
        elif isinstance(module, nn.Dropout) or self._beside_attention(path, module):
            runs = DROPOUT if isinstance(module, nn.Dropout) else OUTSIDE
            yield module.register_forward_pre_hook(lambda *_: self._running.append(runs))
            yield module.register_forward_hook(self._end)

    def _beside_attention(self, path: str, module: nn.Module) -> bool:
        """Whether the caller of an attention function also calls this module outside the attention."""
        return not any(module.children()) and any(
            layer.problem.operator == "attention" and path.startswith(f"{layer.path}.")
            for layer in self._layers
        )

    def _end(self, *_call: object) -> None:
        self._running.pop()

    def _enter(self, path: str) -> Callable[..., None]:
        """Forward pre-hook that records a layer's inputs."""
        number = self._number[path]

        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._running and self._first.setdefault(number, path) == path:
                self._taken[number].update(self._noted((args, kwargs)))
            self._running.append(number)

        return enter

    def _leave(self, path: str) -> Callable[..., None]:
        """Forward hook that records a layer's output."""
        number = self._number[path]
        seen: dict[int, int] = {}

        def leave(_module: nn.Module, _args: object, output: object) -> None:
            self._running.pop()
            found = list(self._noted(output))
            self._made.update(found)
            seen.update({key: self._bytes[key] for key in found})
            self._given[number] = seen

        return leave

    def _noted(self, tensors: object) -> Iterator[int]:
        """Storages of tensors in nested arguments, without small ones and parameters."""
        yield from self._keys(one for one in tree_leaves(tensors) if isinstance(one, Tensor))

    def _keys(self, tensors: Iterable[Tensor]) -> Iterator[int]:
        for tensor in tensors:
            tensor = tensor.detach()
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._ours or storage.nbytes() < SMALL:
                continue
            if key not in self._bytes:
                self._bytes[key] = storage.nbytes()
                self._alive.append(tensor)
            yield key

    def _keep(self, tensor: Tensor) -> Tensor:
        """Saved-tensor hook, called with each tensor that autograd saves."""
        runs = self._running[-1] if self._running else OUTSIDE
        for key in self._keys([tensor]):
            self._keepers[key].add(OUTSIDE if runs == DROPOUT else runs)
            if runs == DROPOUT:
                self._bytes[key] = tensor.numel()
        return tensor.detach()


class _Functions(TorchFunctionMode):
    """Torch function mode that records saved tensors of functions without module hooks."""

    def __init__(self, running: list[int], keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._running, self._keep = running, keep

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            # a GPU's kernels keep these; a CPU's keep products of them where something is dropped
            with self._within(OUTSIDE):
                for tensor in tree_leaves((args, kwargs)):
                    if isinstance(tensor, Tensor):
                        self._keep(tensor)
        with self._within(LOSS) if func is cross_entropy else nullcontext():
            return func(*args, **(kwargs or {}))

    @contextmanager
    def _within(self, what: int) -> Iterator[None]:
        self._running.append(what)
        try:
            yield
        finally:
            self._running.pop()
