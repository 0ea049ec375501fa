"""Stacks of blocks whose training passes are replayed as CUDA graphs, one of forward and one of backward
for each block.

The blocks of a stack share the graphs' memory as they share the allocator's without graphs: what one keeps
for backward is free for others once that has run. So a pass goes forwards through the blocks in their order,
then backwards, before the next begins. A call that does not fit, because of other shapes, another mode,
hooks, or a pass that is still to be differentiated, runs as it does without graphs; `print(model)` says how
many were replayed.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as globals_of_modules

from kernel_selector.kernels.runtime.autograd import first_order

from .replay_block import Block, leaves
from .replay_state import HOOKS, StaticMemory

REPLAYS = "_replays"  # the attribute of a block that has its stack


class ReplayPass:
    """One training pass through a stack. Its outputs hold a reference until they are differentiated or
    dropped.
    """

    __slots__ = ("__weakref__", "left")

    def __init__(self) -> None:
        self.left = 0  # blocks whose backward is still to run

    def leave(self, block: Block) -> None:
        """Start of a block's backward.

        Raises RuntimeError where the backward of the block, or of one before it, has run already.
        """
        if block.place >= self.left:
            raise RuntimeError(
                "Backward through a block of CUDA graphs a second time, or after that of a block before it: "
                "what was kept for it is gone. Call selector.restore(model), and do without selector.replay."
            )
        self.left = block.place


class Replays:
    """CUDA graphs of a stack of blocks, and the progress of the current pass."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}  # by the module's id; the block holds the module
        self._autocast: tuple[bool, torch.dtype] | None = None
        self._turn: weakref.ref[ReplayPass] | None = None
        self._current: ReplayPass | None = None  # from its first block to its last
        self._held = StaticMemory([])
        self._copied: dict[int, tuple[Tensor, int]] = {}  # arguments of this pass, with their versions
        self.calls, self.replayed = 0, 0  # of blocks in training

    def start(self, blocks: Sequence[Block]) -> None:
        """Replay of the given blocks from the next pass on. They were captured under the current autocast
        state.
        """
        for one in blocks:
            one.remember()
        self._blocks = {id(one.module): one for one in blocks}
        self._autocast = _autocast(blocks[0])
        gc.collect()
        self._held = StaticMemory([tensor for one in blocks for tensor in one.watched])

    def stop(self) -> None:
        """Release of all graphs."""
        self._blocks, self._current, self._held, self._copied = {}, None, StaticMemory([]), {}

    def __reduce__(self) -> tuple[Any, ...]:  # graphs belong to this process's memory
        return Replays, ()

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Replayed outputs of a block; NotImplemented where the call needs the block's own forward."""
        block = self._blocks.get(id(module))
        if block is None or not torch.is_grad_enabled():
            return NotImplemented
        self.calls += 1
        if block.place == 0:
            self._begin()
        turn, self._current = self._current, None
        if turn is None or turn.left != block.place:
            return NotImplemented
        given = [one for one in leaves(args, kwargs) if isinstance(one, Tensor)]
        if not (block.fits(args, kwargs) and self._alone(block) and block.state.holds()):
            return NotImplemented
        if not self._fill(block, given):
            return NotImplemented
        turn.left += 1
        self.replayed += 1
        wanted = [tensor for tensor, one in zip(given, block.tensors, strict=True) if one.wants]
        outputs = _Replay.apply(block, turn, *wanted, *block.parameters)  # type: ignore[no-untyped-call]
        self._current = None if block.last else turn
        return self._shaped(block, outputs)

    def _begin(self) -> None:
        """Start of a pass, unless an earlier pass still needs the graphs' memory."""
        self._current, self._copied = None, {}
        before = None if self._turn is None else self._turn()
        if (before is None or not before.left) and not self._held.elsewhere():
            self._current = ReplayPass()
            self._turn = weakref.ref(self._current)

    def _alone(self, block: Block) -> bool:
        """Whether no mode or context is active that a replay would bypass."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return False
        if any(getattr(globals_of_modules, f"_global{name}") for name in HOOKS):
            return False
        if torch._C._len_torch_dispatch_stack():
            return False
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # checkpoints, offloading
            return False
        captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        return not captured and _autocast(block) == self._autocast

    def _fill(self, block: Block, given: Sequence[Tensor]) -> bool:
        """Whether the call's arguments could be copied into the graphs' static inputs; shared arguments
        are copied once a pass.

        Whether it could be done: what was one tensor in the example must be one here, and stay as it is.
        """
        copied, new = dict(self._copied), []
        for tensor, argument in zip(given, block.tensors, strict=True):
            if argument.source is not None:
                continue
            key = argument.static.data_ptr()
            if key not in copied:
                copied[key] = tensor, tensor._version
                new.append((argument.static, tensor))
            known, version = copied[key]
            if known is not tensor or version != tensor._version:
                return False
        for static, tensor in new:
            static.copy_(tensor.detach())
        self._copied = copied
        return True

    def _shaped(self, block: Block, outputs: tuple[Tensor, ...]) -> Any:
        """Outputs in the structure of the module's forward. Outputs of the last block are copies."""
        if block.last:
            self._copied = {}
            outputs = tuple(one.clone() for one in outputs)
        if block.alone:
            return outputs[0]
        rest = iter(outputs)
        return tuple(None if one is None else next(rest) for one in block.outputs)


class Replayed(nn.Module):
    """Mixin of a block's class that replays its forward where it is captured."""

    THEIRS: ClassVar[type[nn.Module]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the block's own forward, replayed where possible."""
        if not isinstance(self, Replayed):  # put back since a wrapper kept this function
            return type(self).forward(self, *args, **kwargs)
        found = self.__dict__[REPLAYS].call(self, args, kwargs)
        return super().forward(*args, **kwargs) if found is NotImplemented else found

    def extra_repr(self) -> str:
        """Representation of the block, with the number of its stack's replayed training calls."""
        stack: Replays = self.__dict__[REPLAYS]
        counts = f"replayed={stack.replayed} of {stack.calls} calls in training"
        return ", ".join(word for word in (super().extra_repr(), counts) if word)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Pickle and copy of the block with its former class, without graphs."""
        state = {name: value for name, value in self.__dict__.items() if name != REPLAYS}
        return _plain, (self.THEIRS,), state


def _plain(theirs: type[nn.Module]) -> nn.Module:
    return theirs.__new__(theirs)


def replay(module: nn.Module, replays: Replays) -> None:
    """Change of a module's class, in place, that makes it a block of a replayed stack."""
    theirs = type(module)
    made: Any = type(theirs.__name__, (Replayed, theirs), {"THEIRS": theirs, "__module__": theirs.__module__})
    module.__class__ = made
    module.__dict__[REPLAYS] = replays


def unreplay(module: nn.Module, *, for_good: bool = True) -> bool:
    """Whether `replay` of a module was undone; `for_good` also releases the graphs."""
    if not isinstance(module, Replayed):
        return False
    replays = module.__dict__.pop(REPLAYS)
    if for_good:
        replays.stop()
    theirs: Any = module.THEIRS
    module.__class__ = theirs
    return True


def count_from_now(model: nn.Module) -> None:
    """Start of the counts of a model's replayed calls, at 0: those before were of trials."""
    for module in model.modules():
        if isinstance(module, Replayed):
            stack: Replays = module.__dict__[REPLAYS]
            stack.calls, stack.replayed = 0, 0


def _autocast(block: Block) -> tuple[bool, torch.dtype]:
    kind = next((one.device.type for one in block.module.parameters()), "cuda")
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class _Replay(torch.autograd.Function):
    """Autograd function from the inputs and parameters of a block to its outputs."""

    @staticmethod
    def forward(ctx: Any, block: Block, turn: ReplayPass, *_inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.block, ctx.turn, ctx.anchors = block, turn, block.parameters
        block.forward.replay()
        found = [(output.detach(), given) for output, given in block.returned]
        ctx.mark_non_differentiable(*(output for output, given in found if given is None))
        ctx.versions = block.versions
        return tuple(output for output, _ in found)

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        block: Block = ctx.block
        assert block.backward is not None
        if block.versions != ctx.versions:
            raise RuntimeError(
                "What a block of CUDA graphs gave, or a weight of it, was changed in place, and its backward "
                "needs it as it was: change a copy, or call selector.restore(model)."
            )
        ctx.turn.leave(block)
        for (_, into), given in zip(block.returned, upstream, strict=True):
            if into is None:
                continue
            if given is None:
                into.zero_()
            elif given.data_ptr() != into.data_ptr():
                into.copy_(given)
        block.backward.replay()
        return None, None, *_gradients(block)


def _gradients(block: Block) -> list[Tensor | None]:
    """Gradients of a block's inputs and parameters; copies, except those that the preceding block
    consumes.
    """
    wanting = [one for one in block.tensors if one.wants]
    found: list[Any] = list(block.gradients)
    chained = [one.source is not None for one in wanting] + [False] * (len(found) - len(wanting))
    places = [place for place, one in enumerate(found) if one is not None and not chained[place]]
    copies = [torch.empty_like(found[place]) for place in places]
    if copies:
        torch._foreach_copy_(copies, [found[place] for place in places])
    for place, copy in zip(places, copies, strict=True):
        found[place] = copy
    return [None if one is None else one.detach() for one in found]
