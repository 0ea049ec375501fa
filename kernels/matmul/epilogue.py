"""Functions that are fused into a product after its schedule is chosen: none needs a schedule of its own.

A step is text in the generated kernel. An epilogue's steps act one after another on `acc`, a tile of the
product in float32, before it is stored. They may use `row` [.., 1] and `column` [1, ..], the tile's
indices, of which the latter is `start + across`; `inside`, which of them the product has; and `place`, the
offset of each element in a tensor of the product's shape. A prologue's steps act on `a`, a tile of the left
matrix, before it is multiplied.
"""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One function: the kernel's parameters that it reads, and its lines."""

    name: str
    parameters: tuple[str, ...]
    lines: tuple[str, ...]


BIAS = Step(
    "bias",
    ("bias_ptr",),
    ("acc += tl.load(bias_ptr + column, column < N, 0.0).to(tl.float32)",),
)
KEEP = Step(  # what backward needs: the product with its bias
    "keep",
    ("kept_ptr",),
    ("tl.store(kept_ptr + place, acc.to(kept_ptr.dtype.element_ty), inside)",),
)
DROPOUT = Step(
    "dropout",
    ("seed_ptr", "p", "dropout_scale"),
    ("acc = tl.where(kept(tl.load(seed_ptr), row, start, across, p), acc * dropout_scale, 0.0)",),
)
RESIDUAL = Step(
    "residual",
    ("residual_ptr",),
    ("acc += tl.load(residual_ptr + place, inside, 0.0).to(tl.float32)",),
)
SCALE = Step("scale", ("factor",), ("acc = acc * factor",))
ACTIVATIONS = {
    name: Step(name, (), (f"acc = {name}(acc)",)) for name in ("relu", "gelu", "gelu_tanh", "silu")
}
# of a prologue: functions with f(0) = 0, because a's tiles are filled up with zeros
ON_LEFT = {
    **{name: Step(name, (), (f"a = {name}(a.to(tl.float32)).to(a.dtype)",)) for name in ACTIVATIONS},
    "scale": Step("scale", ("left_factor",), ("a = (a.to(tl.float32) * left_factor).to(a.dtype)",)),
}


def parameters(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """The parameters of all steps, in order. Raises ValueError where two steps share one."""
    names = [name for step in steps for name in step.parameters]
    if len(set(names)) < len(names):
        raise ValueError(f"the steps {[step.name for step in steps]} share parameters among {names}")
    return tuple(names)
