"""Blocks whose training passes are replayed as CUDA graphs, one of forward and one of backward for each.

The blocks of a stack share the graphs' memory as they share the allocator's without graphs: what one keeps
for backward is free for others once that has run. So a pass goes forwards through the blocks in their order,
then backwards, before the next begins. A call that does not fit, because of other shapes, another mode,
hooks, or a pass that is still to be differentiated, runs as it does without graphs; `print(model)` says how
many were replayed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as globals_of_modules

from kernel_selector.kernels.autograd import first_order

from .replay_block import Block, leaves

REPLAYS = "_replays"  # the attribute of a block that has its stack


class Turn:
    """A pass through the stack. What was computed in it holds it, until that is differentiated or dropped."""

    __slots__ = ("__weakref__", "left")

    def __init__(self) -> None:
        self.left = 0  # blocks whose backward is still to run

    def leave(self, block: Block) -> None:
        """A block's backward runs now. Raises RuntimeError where it, or one before it, has run already."""
        if block.place >= self.left:
            raise RuntimeError(
                "Backward through a block of CUDA graphs a second time: what was kept for it is gone. Call "
                "selector.restore(model), or selector.optimize without cuda_graphs."
            )
        self.left = block.place


class Replays:
    """The graphs of a stack of blocks, and how far the current pass has come."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}  # by the module's id; the block holds the module
        self._autocast: tuple[bool, torch.dtype] | None = None
        self._turn: weakref.ref[Turn] | None = None
        self._current: Turn | None = None  # from its first block to its last
        self._shown: list[weakref.ref[Tensor]] = []  # outputs in the graphs' memory
        self._copied: dict[int, tuple[Tensor, int]] = {}  # arguments of this pass, with their versions
        self.calls, self.replayed = 0, 0  # of blocks in training

    def start(self, blocks: Sequence[Block]) -> None:
        """Replay these from the next pass on; they were captured under the autocast that is in force."""
        for one in blocks:
            one.remember()
        self._blocks = {id(one.module): one for one in blocks}
        self._autocast = _autocast(blocks[0])

    def stop(self) -> None:
        """Let go of all graphs."""
        self._blocks, self._current, self._shown, self._copied = {}, None, [], {}

    def __reduce__(self) -> tuple[Any, ...]:  # graphs belong to this process's memory
        return Replays, ()

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a block gives, replayed; NotImplemented where it has to run by itself."""
        block = self._blocks.get(id(module))
        if block is None or not torch.is_grad_enabled():
            return NotImplemented
        self.calls += 1
        if block.place == 0:
            self._begin()
        turn, self._current = self._current, None
        if turn is None or turn.left != block.place:
            return NotImplemented
        if not (block.fits(args, kwargs) and block.unchanged() and self._alone(block)):
            return NotImplemented
        turn.left += 1
        self.replayed += 1
        given = [one for one in leaves(args, kwargs) if isinstance(one, Tensor)]
        self._fill(block, given)
        wanted = [tensor for tensor, one in zip(given, block.tensors, strict=True) if one.wants]
        outputs = _Replay.apply(block, turn, *wanted, *block.parameters)  # type: ignore[no-untyped-call]
        self._current = None if block.last else turn
        return self._shaped(block, outputs)

    def _begin(self) -> None:
        """A new pass, unless something is still needed of what an earlier one left in the graphs' memory."""
        self._current = None
        before = None if self._turn is None else self._turn()
        self._copied, self._shown = {}, [one for one in self._shown if one() is not None]
        if (before is None or not before.left) and not self._shown:
            self._current = Turn()
            self._turn = weakref.ref(self._current)

    def _alone(self, block: Block) -> bool:
        """Whether nothing is in force that only the module's own code would see."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return False
        if globals_of_modules._global_forward_hooks or globals_of_modules._global_forward_pre_hooks:
            return False
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # checkpoints, offloading
            return False
        captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        return not captured and _autocast(block) == self._autocast

    def _fill(self, block: Block, given: Sequence[Tensor]) -> None:
        """Copy arguments to where the graphs read them; once a pass what several blocks take."""
        for tensor, argument in zip(given, block.tensors, strict=True):
            if argument.chained:
                continue
            key = argument.static.data_ptr()
            known, version = self._copied.get(key, (None, -1))
            if known is not tensor or version != tensor._version:
                argument.static.copy_(tensor.detach())
                self._copied[key] = tensor, tensor._version

    def _shaped(self, block: Block, outputs: tuple[Tensor, ...]) -> Any:
        """Outputs as the module gives them. The last block's are copies, the others' are watched."""
        if block.last:
            self._copied = {}
            outputs = tuple(one.clone() for one in outputs)
        else:
            self._shown += [weakref.ref(one) for one in outputs]
        if block.alone:
            return outputs[0]
        rest = iter(outputs)
        return tuple(None if one is None else next(rest) for one in block.outputs)


class Replayed(nn.Module):
    """Mixed into a block's class: its forward is replayed where that is captured."""

    THEIRS: ClassVar[type[nn.Module]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the block's own."""
        found = self.__dict__[REPLAYS].call(self, args, kwargs)
        return super().forward(*args, **kwargs) if found is NotImplemented else found

    def extra_repr(self) -> str:
        """As the block's own, and how many of the stack's calls in training were replayed."""
        stack: Replays = self.__dict__[REPLAYS]
        counts = f"cuda_graphs={stack.replayed} of {stack.calls} calls in training"
        return ", ".join(word for word in (super().extra_repr(), counts) if word)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Copies, and what is unpickled, are of the class before, without graphs."""
        state = {name: value for name, value in self.__dict__.items() if name != REPLAYS}
        return _plain, (self.THEIRS,), state


def _plain(theirs: type[nn.Module]) -> nn.Module:
    return theirs.__new__(theirs)


def replay(module: nn.Module, replays: Replays) -> None:
    """Make a module a block of a stack, in place."""
    theirs = type(module)
    made: Any = type(theirs.__name__, (Replayed, theirs), {"THEIRS": theirs, "__module__": theirs.__module__})
    module.__class__ = made
    module.__dict__[REPLAYS] = replays


def unreplay(module: nn.Module) -> bool:
    """Undo `replay`. Whether there was anything to undo."""
    if not isinstance(module, Replayed):
        return False
    module.__dict__.pop(REPLAYS).stop()
    theirs: Any = module.THEIRS
    module.__class__ = theirs
    return True


def _autocast(block: Block) -> tuple[bool, torch.dtype]:
    kind = next((one.device.type for one in block.module.parameters()), "cuda")
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class _Replay(torch.autograd.Function):
    """A block and its turn, the arguments that want gradients, and the parameters, to the outputs."""

    @staticmethod
    def forward(ctx: Any, block: Block, turn: Turn, *_inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.block, ctx.turn, ctx.anchors = block, turn, block.parameters
        block.forward.replay()
        found = [(output.detach(), given) for output, given in block.returned]
        ctx.mark_non_differentiable(*(output for output, given in found if given is None))
        ctx.versions = [output._version for output, _ in block.returned]
        return tuple(output for output, _ in found)

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        block: Block = ctx.block
        assert block.backward is not None
        if any(one._version != before for (one, _), before in zip(block.returned, ctx.versions, strict=True)):
            raise RuntimeError(
                "What a block of CUDA graphs gave was changed in place, and its backward needs it as it was: "
                "change a copy, or call selector.optimize without cuda_graphs."
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
    """What a block before goes on with as it is, all others as copies: the graphs' memory is used again."""
    wanting = [one for one in block.tensors if one.wants]
    found: list[Any] = list(block.gradients)
    chained = [one.chained for one in wanting] + [False] * (len(found) - len(wanting))
    places = [place for place, one in enumerate(found) if one is not None and not chained[place]]
    copies = [torch.empty_like(found[place]) for place in places]
    if copies:
        torch._foreach_copy_(copies, [found[place] for place in places])
    for place, copy in zip(places, copies, strict=True):
        found[place] = copy
    return [None if one is None else one.detach() for one in found]
