"""The products of sizes of which the bytes of an operator's implementations may be sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from kernel_selector.kernels.contract import Integer, OneOf

from ..cost_model.features.spec import ELEMENT, FeatureSpec
from ..cost_model.tensor_sums import Array, Factor

MOST_SIZES = 4  # of a tensor
READ_OTHERWISE = ("dtype", "mode", "bidirectional")
Names = tuple[str, ...]


class Terms:
    """Factors and products of them, for one operator.

    A product has sizes; the bytes of an element, or a byte, or a byte where elements have 16 bits; and at
    most one condition: a flag, or a word. Tensors of stacked layers repeat with the layers, or all but the
    first, and once or twice with their directions. The bytes of sums over rows are products of their own.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._names, self._kinds, self._columns = ["one"], [Factor.ONE], [0]
        element = self._add("element", Factor.VALUE, ELEMENT)
        widths: list[Names] = [(), (element,), (self._add("narrow", Factor.NARROW, ELEMENT),)]
        conditions = list(self._conditions())
        stacks = self._stacks()
        products: list[Names] = [(), (element,)]
        for sizes in self._sizes():
            products += [(*sizes, *stack, *width) for stack, width in product(stacks, widths)]
            products += [
                (*sizes, *stack, *width, condition)
                for stack, width, condition in product(
                    dict.fromkeys((stacks[0], stacks[-1])), widths, conditions
                )
            ]
        for name in spec.column_sums:
            one = self._add(name, Factor.VALUE, name)
            products += [(one,), *((one, condition) for condition in conditions)]
        self.products = self._numbered(products)  # int16 [products, factors of a product], filled with ONE

    @property
    def kinds(self) -> Array:
        """Kind of each factor, int8 [factors]."""
        return np.array(self._kinds, dtype=np.int8)

    @property
    def columns(self) -> Array:
        """Column of each factor, int32 [factors]."""
        return np.array(self._columns, dtype=np.int32)

    def _add(self, name: str, kind: Factor, column: str) -> str:
        self._names.append(name)
        self._kinds.append(kind)
        self._columns.append(self._spec.names.index(column))
        return name

    def _conditions(self) -> Iterator[str]:
        for spec in self._spec.operator.hyperparameters:
            if isinstance(spec, Integer) or spec.name in READ_OTHERWISE:
                continue
            if isinstance(spec, OneOf):
                columns = [f"{spec.name}={choice}" for choice in spec.choices]
                yield from (self._add(column, Factor.SET, column) for column in columns)
                yield self._add(f"not {columns[0]}", Factor.CLEAR, columns[0])
            else:
                yield self._add(spec.name, Factor.SET, spec.name)

    def _stacks(self) -> list[Names]:
        """What tensors of stacked layers are repeated by, from not at all to most."""
        if not {"layers", "bidirectional"} <= set(self._spec.names):
            return [()]
        above = self._add("layers above the first", Factor.ONE_LESS, "layers")
        layers = self._add("layers", Factor.SIZE, "layers")
        directions = self._add("directions", Factor.ONE_MORE, "bidirectional")
        return [(*depth, *(directions,) * times) for depth in ((), (above,), (layers,)) for times in range(3)]

    def _sizes(self) -> Iterator[Names]:
        sizes = [self._add(name, Factor.SIZE, name) for name in self._spec.sizes if name != "layers"]
        for count in range(1, MOST_SIZES + 1):
            yield from combinations(sizes, count)
        if "layers" in self._spec.sizes:
            yield "hidden", "hidden"  # recurrent weights

    def _numbered(self, products: list[Names]) -> Array:
        numbers = {name: number for number, name in enumerate(self._names)}
        most = max(map(len, products))
        filled = [[*(numbers[name] for name in one), *[0] * (most - len(one))] for one in products]
        return np.array(filled, dtype=np.int16)
