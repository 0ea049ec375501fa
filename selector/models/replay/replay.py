"""Selection of a model's blocks for CUDA graph replay in training: `selector.replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ...errors import InvalidRequest
from ...nn.replay_state import hooked
from ...nn.replays import Replays, replay, unreplay
from ..example import arguments_of, undisturbed
from ..rewriting.swap import class_before
from .capture import Call, CannotReplay, Recorder, captured, record_on_gpu, without_activations

LEAST_BLOCKS = 2


@dataclass(frozen=True)
class Stack:
    """Blocks of one class that a model runs in sequence."""

    path: str
    blocks: tuple[nn.Module, ...]


@dataclass(frozen=True, kw_only=True)
class ReplayedStack:
    """Result for one stack: replayed blocks, or the reason for none."""

    path: str
    blocks: int
    refused: str | None = None

    def __str__(self) -> str:
        blocks = f"{self.blocks} blocks of {self.path or 'the model'}"
        return (
            f"{blocks}: not replayed, {self.refused}" if self.refused else f"{blocks}: replayed in training"
        )


def turn_on(model: nn.Module, example_inputs: Any) -> list[ReplayedStack]:
    """Replay a model's stacks as the example calls them; one result a stack."""
    check(model)
    turn_off(model)
    stacks = list(find(model))
    calls = recorded(model, example_inputs, [block for stack in stacks for block in stack.blocks])
    own = [without_activations([one for one in calls if one.module in stack.blocks]) for stack in stacks]
    calls.clear()
    return [_turned_on(stack, its) for stack, its in zip(stacks, own, strict=True)]


def check(model: nn.Module) -> None:
    """Raise InvalidRequest for a model without blocks that could be replayed."""
    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model of type {type(model).__name__}: expected a torch.nn.Module.")
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
        raise InvalidRequest("model is compiled: compile with mode='reduce-overhead' for CUDA graphs there.")
    device = next((one.device.type for one in model.parameters()), "cpu")
    if device != "cuda":
        raise InvalidRequest(
            f"model is on {device}: expected one on an NVIDIA GPU, to replay as CUDA graphs."
        )
    if not model.training:
        raise InvalidRequest(
            "model is in evaluation mode, and training is replayed: call model.train() first."
        )


def turn_off(model: nn.Module, *, for_good: bool = True) -> int:
    """Undo `turn_on`; returns the number of replayed blocks. `for_good=False` keeps the graphs for an
    arrangement that has them.
    """
    return sum(unreplay(module, for_good=for_good) for module in list(model.modules()))


def find(model: nn.Module) -> Iterator[Stack]:
    """Outermost module lists with weights whose modules are, or were before `optimize`, of one class."""
    inside: set[int] = set()
    for path, module in model.named_modules():
        blocks = tuple(module.children())
        if id(module) in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        alike = len(set(map(class_before, blocks))) == 1 and len(set(map(id, blocks))) == len(module)
        if len(blocks) >= LEAST_BLOCKS and alike and next(module.parameters(), None) is not None:
            inside |= {id(part) for part in module.modules()}
            yield Stack(path, blocks)


def replayed(stack: Stack, calls: Sequence[Call], record: Recorder) -> int:
    """Number of blocks captured from their calls and replayed from now on. Leading blocks without
    trainable inputs run as before. Raises CannotReplay.
    """
    if [id(one.module) for one in calls] != [id(block) for block in stack.blocks]:
        raise CannotReplay("they are not called once each, in their order")
    for block in stack.blocks:
        if any(hooked(part) for part in block.modules() if part is not block):
            raise CannotReplay("a module in them has hooks, which a graph would not call")
        if getattr(block, "gradient_checkpointing", False):
            raise CannotReplay("they are run a second time for their gradients (gradient checkpointing)")
    trained = list(dropwhile(lambda call: not call.trains, calls))
    if not trained or not all(call.trains for call in trained):
        raise CannotReplay("one of them has nothing to train")
    if any(call.changed for call in calls):
        raise CannotReplay("what one of them gives is changed in place")
    blocks = captured(trained, record)
    replays = Replays()
    replays.start(blocks)
    for one in blocks:
        replay(one.module, replays)
    return len(blocks)


def _turned_on(stack: Stack, calls: Sequence[Call]) -> ReplayedStack:
    count, refused = len(stack.blocks), None
    device = next(one.device for one in stack.blocks[0].parameters())
    try:
        with _capture_stream(device) as record:
            count = replayed(stack, calls, record)
    except Exception as error:  # whatever a block raises while it is captured, it runs as before
        refused = _words(error)
    return ReplayedStack(path=stack.path, blocks=count, refused=refused)


def _words(error: BaseException) -> str:
    """First line of the first error; a broken capture raises more."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    first_line = str(error).strip().partition("\n")[0]
    return first_line if isinstance(error, CannotReplay) else f"{type(error).__name__}: {first_line}"


@contextmanager
def _capture_stream(device: torch.device) -> Iterator[Recorder]:
    """Context with a side stream for capture, after the allocator's free memory was released.

    A capture that fails leaves the generator in it: it gets a state of its own again.
    """
    drawn = torch.cuda.get_rng_state(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream), _without_autocast_cache(), torch.enable_grad():
            yield record_on_gpu(device)
    except Exception:
        generator = torch.cuda.default_generators[torch.device(device).index or 0]
        generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        torch.cuda.set_rng_state(drawn, device)
        raise
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Context without autocast's weight cache: a cast inside a graph is not valid outside it.

    Without autocast nothing is changed: torch.compile would compile all that it has compiled again.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(before and not torch.is_autocast_enabled("cuda"))
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def recorded(model: nn.Module, example_inputs: Any, blocks: Sequence[nn.Module]) -> list[Call]:
    """Detached calls of the blocks in the example run, in order."""
    calls: list[Call] = []
    given: list[list[tuple[Tensor, int]]] = []  # with versions

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        calls.append(Call(module, args, dict(kwargs), result))
        given.append([(one, one._version) for one in tree_flatten(result)[0] if isinstance(one, Tensor)])

    hooks = [block.register_forward_hook(note, prepend=True, with_kwargs=True) for block in blocks]
    args, kwargs = arguments_of(example_inputs)
    try:
        with undisturbed(model), torch.enable_grad():
            outputs = model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    apart = _without_history()
    found = [
        Call(
            one.module,
            apart(one.args),
            {name: apart(it) for name, it in one.kwargs.items()},
            apart(one.result),
            any(tensor._version != version for tensor, version in versions),
        )
        for one, versions in zip(calls, given, strict=True)
    ]
    calls.clear()
    given.clear()
    del outputs
    return found


def _without_history() -> Callable[[Any], Any]:
    """Function that detaches tensors, also in tuples; equal tensors stay equal objects."""
    alone: dict[int, Tensor] = {}

    def apart(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(apart, value))
        if isinstance(value, Tensor):
            if id(value) not in alone:
                alone[id(value)] = value.detach().requires_grad_(value.requires_grad)
            return alone[id(value)]
        return value

    return apart
