"""Tensors that lie beside each other in memory, such as query, key and value of one product.

Autograd copies the gradients of what was split into one tensor, which for attention is as many bytes as its
inputs. Where they were written beside each other they are one already: whoever computes them makes their
memory with `alike`, and whoever needs them together asks `whole`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd import first_order


def parts(y: Tensor, count: int) -> tuple[Tensor, ...]:
    """y [..., N] as `count` parts [..., N / count], as `chunk` gives them; none is a view of another."""
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and y.requires_grad):
        return y.chunk(count, -1)
    found: tuple[Tensor, ...] = _Parts.apply(y, count)  # type: ignore[no-untyped-call]
    return found


def apart(view: Tensor) -> Tensor:
    """The same memory as a tensor of its own."""
    return view.new_empty(0).set_(view.untyped_storage(), view.storage_offset(), view.size(), view.stride())


def whole(given: Sequence[Tensor]) -> Tensor:
    """The parts [..., N_i] as one tensor [..., sum N_i], in their own memory if beside each other."""
    first, sizes = given[0], [one.size(-1) for one in given]
    steps, place = first.stride(), first.storage_offset()
    for one, size in zip(given, sizes, strict=True):
        beside = (
            one.storage_offset() == place and one.untyped_storage()._cdata == first.untyped_storage()._cdata
        )
        if not (beside and one.stride() == steps and one.shape[:-1] == first.shape[:-1]):
            return torch.cat(list(given), -1)
        place += size
    if steps[-1] != 1 or any(step < sum(sizes) for step in steps[:-1]):
        return torch.cat(list(given), -1)
    return first.as_strided((*first.shape[:-1], sum(sizes)), steps)


def alike(given: Sequence[Tensor]) -> list[Tensor]:
    """Memory for a result of each tensor in its layout; in one piece where the tensors fill one piece."""
    first = given[0]
    offsets = [one.storage_offset() - first.storage_offset() for one in given]
    same = all(
        one.shape == first.shape
        and one.stride() == first.stride()
        and one.untyped_storage()._cdata == first.untyped_storage()._cdata
        for one in given
    )
    reach = sum((size - 1) * step for size, step in zip(first.shape, first.stride(), strict=True)) + 1
    filled = len(given) * first.numel()
    if not same or min(offsets) or len(set(offsets)) < len(given) or max(offsets) + reach != filled:
        return [torch.empty_like(one) for one in given]
    piece = first.new_empty(filled)
    return [apart(piece.as_strided(first.shape, first.stride(), offset)) for offset in offsets]


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward()
        return tuple(apart(one) for one in y.chunk(count, -1))

    @staticmethod
    @first_order
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return whole(gradients), None
