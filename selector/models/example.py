"""Example runs of a model that leave the model, the inputs and the random number generators unchanged."""

from __future__ import annotations

import copy
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..errors import InvalidRequest

ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size))
DEEPEST = 3  # objects within objects that are looked into, as a cache's layers within a cache
OURS = (__name__.partition(".")[0], "kernel_selector")


def arguments_of(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of one call, as copies that the model may change.

    Tensors are copied wherever they are, in lists, mappings and objects of any class, such as the cache that
    a language model fills; what is one object in several places stays one. Modules are not copied.

    Raises InvalidRequest for what is no tensor, tuple or mapping, and for what cannot be copied.
    """
    given = _given(example_inputs)
    memo: dict[int, Any] = {}
    for leaf in tree_leaves(given):
        owner = leaf.__self__ if isinstance(leaf, MethodType) else leaf
        if isinstance(owner, nn.Module):
            memo[id(owner)] = owner
        elif isinstance(leaf, torch.Generator):
            memo[id(leaf)] = leaf.clone_state()
    try:
        with _TensorCopies():
            args, kwargs = copy.deepcopy(given, memo)
    except (TypeError, copy.Error) as error:
        raise InvalidRequest(
            f"example_inputs have something that cannot be copied ({error}): expected what copy.deepcopy "
            "takes, since the model is run several times, and nothing of yours is changed."
        ) from error
    return args, kwargs


class _TensorCopies(TorchFunctionMode):
    """Torch function mode in which copies of tensors are leaves; torch refuses to copy non-leaf results."""

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor: Tensor = args[0]
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _given(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, (Tensor, PackedSequence)):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    raise InvalidRequest(
        f"example_inputs of type {type(example_inputs).__name__}: expected a tensor, a tuple of positional "
        "arguments, or a mapping of keyword arguments to call the model with."
    )


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Context that restores the model and all random number generators at its end, also after an error."""
    state = State(model)
    try:
        yield
    finally:
        state.put_back()


def draws_random_numbers(model: nn.Module, example_inputs: Any) -> bool:
    """Whether a call of a model in its present mode draws from torch's generators, as dropout does."""
    args, kwargs = arguments_of(example_inputs)
    with undisturbed(model), torch.no_grad():
        before = [(one, one.get_state()) for one in _generators()]
        model(*args, **kwargs)
        return any(not torch.equal(one.get_state(), state) for one, state in before)


class State:
    """Snapshot of a model between two runs: buffers, attributes, modes, hooks, which gradients exist, and
    the random states of torch, Python and NumPy.

    What lists, dicts, sets and objects that are attributes hold counts too. Not looked into are attributes of
    torch's own modules and wrappers, and the values of parameters, of gradients and of what hooks keep.
    """

    def __init__(self, model: nn.Module) -> None:
        self._values = _Values(model)
        self._python, self._numpy = random.getstate(), _numpy_state()
        parts = [part for part in model.modules() if not isinstance(part, LazyModuleMixin)]
        self._modes = [(part, part.training) for part in parts]
        self._weights = [(one, one.grad, one.requires_grad) for one in model.parameters()]
        self._contents = _Contents(parts, set(map(id, model.buffers())))

    def put_back(self) -> None:
        """Restore the snapshot; it can be restored after each of several runs."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self._contents.put_back()
        for part, training in self._modes:
            if part.training is not training:
                part.training = training
        for weight, gradient, wanted in self._weights:
            if weight.requires_grad is not wanted:
                weight.requires_grad_(wanted)
            if weight.grad is not gradient:
                weight.grad = gradient
        self._values.put_back()


@contextmanager
def same_values(model: nn.Module) -> Iterator[None]:
    """Context that restores buffers and torch's random states at its end."""
    values = _Values(model)
    try:
        yield
    finally:
        values.put_back()


class _Values:
    """Values that a forward pass may change in place, and torch's random states of all devices."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = [(one, one.detach().clone()) for one in _changing(model)]
        self._generators = [(one, one.get_state()) for one in _generators()]

    def put_back(self) -> None:
        for generator, state in self._generators:
            generator.set_state(state)
        with torch.no_grad():
            for tensor, before in self._tensors:
                tensor.data.copy_(before)  # unnoticed by autograd, which may need what they are now


def _changing(model: nn.Module) -> Iterator[Tensor]:
    """Buffers, and embedding weights with a maximum norm, which a lookup renormalizes."""
    yield from model.buffers()
    for part in model.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.max_norm is not None:
            yield part.weight


def _generators() -> list[torch.Generator]:
    """Default generators of the CPU and of all GPUs that this process has initialized."""
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator, *(torch.cuda.default_generators if begun else ())]


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


class _Contents:
    """Contents of module attributes, containers and objects included, except those in `known`."""

    def __init__(self, parts: Iterable[nn.Module], known: set[int]) -> None:
        self._held: list[tuple[Any, Any, Callable[[Any, Any], None]]] = []
        self._seen = known
        for part in parts:
            home = type(part).__module__
            if not home.startswith("torch."):
                self._hold_dict(part.__dict__, 0 if home.partition(".")[0] in OURS else DEEPEST)
            else:
                for name, value in part.__dict__.items():
                    if type(value) in (dict, OrderedDict) and name.startswith("_"):
                        self._hold_dict(value, 0)  # parameters, buffers, parts and hooks

    def put_back(self) -> None:
        """Restore changed contents in place."""
        for container, before, put in self._held:
            put(container, before)

    def _hold(self, value: Any, objects: int) -> None:
        """Record a value's contents, through at most `objects` levels of objects."""
        kind = type(value)
        if kind in ATOMS or id(value) in self._seen or isinstance(value, (nn.Module, type)):
            return
        if isinstance(value, Tensor):
            if not isinstance(value, nn.Parameter) and objects and not value.is_meta:
                self._seen.add(id(value))
                version = None if value.is_inference() else value._version
                self._held.append((value, (version, value.detach().clone()), _put_values))
        elif isinstance(value, dict):
            self._hold_dict(value, objects)
        elif isinstance(value, (list, deque, set)):
            self._seen.add(id(value))
            self._held.append((value, copy.copy(value), _put_items))
            self._hold_each(value, objects)
        elif isinstance(value, tuple):
            self._hold_each(value, objects)
        elif objects and _plain_object(value):
            self._hold_dict(value.__dict__, objects - 1)

    def _hold_dict(self, value: dict[Any, Any], objects: int) -> None:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._held.append((value, dict(value), _put_entries))
            if objects:
                self._hold_each(value.values(), objects)

    def _hold_each(self, values: Iterable[Any], objects: int) -> None:
        for one in values:
            if type(one) not in ATOMS:
                self._hold(one, objects)


def _plain_object(value: Any) -> bool:
    """Whether a value's class is a user's: none of torch's, of this package's or of Python's own."""
    home = type(value).__module__.partition(".")[0]
    return home not in ("torch", "builtins", "types", "functools", "_thread", *OURS) and isinstance(
        getattr(value, "__dict__", None), dict
    )


def _put_entries(container: dict[Any, Any], before: dict[Any, Any]) -> None:
    same = len(container) == len(before) and all(map(is_, container.values(), before.values()))
    if not (same and all(map(is_, container, before))):
        container.clear()
        container.update(before)


def _put_items(container: Any, before: Any) -> None:
    if len(container) != len(before) or not all(map(is_, container, before)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _put_values(tensor: Tensor, before: tuple[int | None, Tensor]) -> None:
    version, values = before
    if version is None or tensor._version != version:
        with torch.no_grad():
            tensor.data.copy_(values)
