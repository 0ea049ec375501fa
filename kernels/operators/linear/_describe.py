"""Layouts and schedules of the generated kernels in words, from plain values."""

from __future__ import annotations

from math import gcd

from ...contract import Device, Problem
from ...matmul.launch import ALIGN, chosen
from ...matmul.limits import limits_of
from ...matmul.ranking import Size, estimate_us
from ...matmul.tuned import nearest
from . import ELEMENT_BYTES


def described(problem: Problem, device: Device, *, only: str = "", gradients: bool = False) -> str:
    """One line for each product: its layout, its schedule, and where that comes from."""
    rows, inner, columns = problem["rows"], problem["in_features"], problem["out_features"]
    products = [("forward x W^T", "x in rows, the weight as it lies", (rows, columns, inner), inner)]
    if gradients:
        products += [
            ("gradient of x, dz W", "both in rows", (rows, inner, columns), columns),
            ("gradient of W, dz^T x", "dz by columns, x in rows", (columns, inner, rows), columns),
        ]
    return "\n".join(_line(problem, device, only, product) for product in products)


def _line(
    problem: Problem, device: Device, only: str, product: tuple[str, str, tuple[int, int, int], int]
) -> str:
    name, layout, (m, n, k), lead = product  # the last: how far apart the first matrix's rows lie
    element = ELEMENT_BYTES[problem["dtype"]]
    # rows that start at multiples of 16 bytes; that tensors do is the allocator's custom
    bulk = all(size * element % 16 == 0 for size in (problem["in_features"], problem["out_features"]))
    size, limits = (
        Size(m, n, k, element, 1, bulk, (gcd(lead, ALIGN), gcd(problem["in_features"], ALIGN))),
        limits_of(device),
    )
    schedule = chosen(size, limits, only, device.name)
    tiles = -(-m // schedule.block_m) * -(-n // schedule.block_n) * schedule.split
    measured = None if only else nearest(size, device.name)
    why = (
        "measured to be the best of its space nearby"
        if measured == schedule
        else f"the shortest estimate, {estimate_us(schedule, size, limits):.1f} us"
    )
    busy = f"{tiles} tiles for {limits.multiprocessors} multiprocessors"
    return f"{name}: {layout}; {schedule}; {busy}; {why}."
