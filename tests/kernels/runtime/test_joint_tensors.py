"""Parts of one tensor and their gradients: as torch gives them, but not copied where they lie together."""

from __future__ import annotations

import pytest
import torch

from kernel_selector.kernels.runtime.joint_tensors import alike, apart, parts, whole


class Beside(torch.autograd.Function):
    """Doubles three tensors; gradients are written beside each other where those are."""

    @staticmethod
    def forward(ctx, *given):
        ctx.given = given
        return tuple(2 * one for one in given)

    @staticmethod
    def backward(ctx, *upstream):
        found = alike(ctx.given)
        for one, other in zip(found, upstream, strict=True):
            one.copy_(2 * other)
        return tuple(found)


def heads(y):
    return [one.view(2, 5, 4, 3).transpose(1, 2) for one in parts(y, 3)]


def test_gradients_are_those_of_chunk_and_in_one_piece():
    y = torch.randn(2, 5, 36, dtype=torch.float64, requires_grad=True)
    leaf = y * 1
    factors = torch.randn(3, 2, 4, 5, 3, dtype=torch.float64)
    found = sum((one * factor).sum() for one, factor in zip(Beside.apply(*heads(leaf)), factors, strict=True))
    seen = []
    leaf.register_hook(lambda gradient: seen.append(gradient))
    (gradient,) = torch.autograd.grad(found, y)
    expected = torch.cat([2 * one.transpose(1, 2).reshape(2, 5, 12) for one in factors], -1)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
    assert seen[0].is_contiguous()


def test_whole_copies_only_what_lies_elsewhere():
    y = torch.arange(24.0).view(2, 2, 6)
    beside = [apart(one) for one in y.split([1, 2, 3], -1)]
    assert whole(beside).data_ptr() == y.data_ptr()
    assert torch.equal(whole(beside), y)
    for elsewhere in (
        [one.clone() for one in beside],
        [beside[1], beside[0], beside[2]],
        [beside[0], beside[1], beside[2].clone()],
        list(y.transpose(0, 2).split([1, 1], 1)),
    ):
        found = whole(elsewhere)
        assert torch.equal(found, torch.cat(elsewhere, -1))
        assert found.data_ptr() != elsewhere[0].data_ptr()


@pytest.mark.parametrize(
    "given",
    [
        [torch.zeros(2, 3), torch.zeros(2, 3)],
        [torch.zeros(2, 3)] * 2,
        list(torch.zeros(2, 9).split([3, 3, 3], -1))[:2],
        list(torch.zeros(2, 9).split([4, 5], -1)),
        list(torch.zeros(2, 8).chunk(2, -1))[::-1],
    ],
)
def test_memory_is_apart_where_the_tensors_do_not_fill_one_piece(given):
    found = alike(given)
    assert [one.shape for one in found] == [one.shape for one in given]
    assert len({one.untyped_storage()._cdata for one in found}) == len(given)


def test_memory_is_one_piece_where_the_tensors_are():
    given = [one.view(2, 5, 4, 3).transpose(1, 2) for one in torch.zeros(2, 5, 36).chunk(3, -1)]
    found = alike(given)
    for number, one in enumerate(found):
        one.fill_(number)
    together = whole([one.transpose(1, 2).flatten(2) for one in found])
    assert together.data_ptr() == found[0].data_ptr()
    assert torch.equal(together, torch.tensor([0.0, 1.0, 2.0]).repeat_interleave(12).expand(2, 5, 36))


def test_no_second_derivative_is_taken_silently():
    y = torch.randn(2, 6, requires_grad=True)
    out = sum(one.square().sum() for one in parts(y, 3))
    (gradient,) = torch.autograd.grad(out, y, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_without_gradients_parts_are_views():
    y = torch.randn(2, 6)
    assert all(one._is_view() for one in parts(y, 2))
