"""Many products' tiles at once, held against the choice that the kernels make for one."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.matmul import ranking
from kernel_selector.kernels.matmul.limits import Limits, limits_of
from selector.cost_model.features import matmul_tiles as tiles
from selector.cost_model.features.spec import FeatureSpec

H200 = Device(
    name="NVIDIA H200", kind="cuda", multiprocessors=132, compute_capability=(9, 0), memory_bytes=150 * 10**9
)
A100 = Device(name="NVIDIA A100", kind="cuda", multiprocessors=108, compute_capability=(8, 0))
LINEAR = ("rows", "in_features", "out_features")


def drawn(count: int) -> tiles.Integers:
    """Products [count, rows and columns and depth]: powers of two, multiples of 8, and odd ones."""
    random = np.random.default_rng(0)
    sizes = np.exp2(random.uniform(0, 14, (count, 3))).astype(np.int64)
    units = random.choice([1, 8, 128], (count, 3))
    products: tiles.Integers = np.maximum(sizes // units, 1) * units
    return products


@pytest.mark.parametrize("device", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_the_estimates_are_those_of_one_product_by_one_schedule(device: Device, element_bytes: int) -> None:
    limits, products = limits_of(device), drawn(40)
    schedules = tiles.schedules_of(limits, element_bytes)
    found = schedules.estimates_us(products)
    assert found.shape == (len(products), len(schedules.every))
    for (m, n, k), estimates in zip(products.tolist(), found, strict=True):
        bulk = n * element_bytes % 16 == 0 and k * element_bytes % 16 == 0
        size = ranking.Size(m, n, k, element_bytes, 1, bulk)
        for one, us in zip(schedules.every, estimates.tolist(), strict=True):
            if bulk or not one.bulk:
                assert us == pytest.approx(ranking.estimate_us(one, size, limits), rel=1e-9), (size, one)


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_the_columns_tell_which_tile_is_chosen(element_bytes: int) -> None:
    products = drawn(150)
    values = products[:, [0, 2, 1]]  # as linear layers have them
    columns = tiles.tiles(LINEAR, values, np.full(len(values), float(element_bytes)), H200)
    assert columns.shape == (len(tiles.names(LINEAR)), len(values))
    for (m, n, k), found in zip(products.tolist(), columns.T, strict=True):
        bulk = n * element_bytes % 16 == 0 and k * element_bytes % 16 == 0
        size = ranking.Size(m, n, k, element_bytes, 1, bulk)
        for only, (us, accumulators, elements) in zip(("", "persistent"), found.reshape(2, 3), strict=True):
            best = ranking.best(size, Limits(), only=only)
            tile = best.block_m * best.block_n
            assert 2**us == pytest.approx(ranking.estimate_us(best, size, Limits()), abs=0.0051)
            assert (accumulators, elements) == (log2(tile / best.threads), log2(tile))


def test_other_operators_and_processors_have_none() -> None:
    values = np.ones((3, 2), dtype=np.int64)
    assert tiles.tiles(("rows", "hidden"), values, np.full(3, 2.0), H200).shape == (0, 3)
    processor = Device(name="a processor", kind="cpu")
    assert not tiles.tiles(LINEAR, np.ones((3, 3), dtype=np.int64), np.full(3, 2.0), processor).any()
    named = {name for name in registry.operators() if tiles.names(sizes(name))}
    assert named == {"linear"}


def sizes(name: str) -> tuple[str, ...]:
    return FeatureSpec(registry.operator(name), ()).sizes
