"""Writes the Triton kernel of a schedule: the grid and the loops follow from its task mappings.

The text is meant to be read: `print(matmul_source(schedule, Form()))`.
"""

from __future__ import annotations

from functools import cache
from textwrap import wrap
from typing import NamedTuple

from ..mapping import TaskMapping, loops, spatial
from .epilogue import DROPOUT, Step, parameters
from .schedule import SLAB, Schedule

COMBINED = spatial("tiles_m", "tiles_n")  # programs of `combine_kernel` to tiles
COMBINE_ROWS, COMBINE_COLUMNS = 8, 128
LEAST_SLAB_COLUMNS = 16
STRIDES = ("a_row", "a_depth", "b_depth", "b_column")


class Form(NamedTuple):
    """Properties besides its schedule that a kernel is written for.

    `steps` and `prologue` are fused; with `batched`, matrices of a batch lie `a_batch` and `b_batch`
    elements apart; `a_flipped` and `b_flipped` say that a matrix is contiguous along the rows of a, or the
    depth of b, which descriptors want to know.
    """

    steps: tuple[Step, ...] = ()
    prologue: tuple[Step, ...] = ()
    batched: bool = False
    a_flipped: bool = False
    b_flipped: bool = False


@cache
def matmul_source(schedule: Schedule, form: Form) -> str:
    """The text of `matmul_kernel`: c [.., M, N] = steps(a [.., M, K] b [.., K, N])."""
    form = form._replace(steps=() if schedule.split > 1 else form.steps)
    names = _parameters(schedule, form)
    lines = ["@triton.jit", *_signature("matmul_kernel", names)]
    lines += _indented(1, [f'"""{_summary(schedule, form)}"""', "program = tl.program_id(0)"])
    lines += _indented(1, _sizes(schedule))
    if form.batched:
        lines += _indented(1, ["batch = tl.program_id(1).to(tl.int64)", "a_ptr += batch * a_batch",
                               "b_ptr += batch * b_batch"])  # fmt: skip
    if schedule.persistent:
        lines += _indented(1, _rounds(schedule.rounds))
        lines += _indented(2, _tile(schedule, form))
    else:
        lines += _indented(1, _tile(schedule, form))
    return "\n".join(lines) + "\n"


@cache
def combine_source(steps: tuple[Step, ...], batched: bool) -> str:
    """The text of `combine_kernel`, which adds up the parts of a split depth, in order, and fuses the steps.

    Programs have tiles of COMBINE_ROWS rows and COMBINE_COLUMNS columns, shared out by COMBINED.
    """
    m, n = COMBINE_ROWS, COMBINE_COLUMNS
    names = ["parts_ptr", "c_ptr", "M", "N", *parameters(steps), "SPLIT: tl.constexpr", "WIDE: tl.constexpr"]
    lines = ["@triton.jit", *_signature("combine_kernel", names)]
    body = [
        f'"""c [M, N] = {_chain(steps, "the sum of parts [SPLIT, M, N]")}."""',
        "program = tl.program_id(0)",
        f"tiles_n = tl.cdiv(N, {n})",
        *_assigned(COMBINED, "program", ("tile_m", "tile_n")),
        f"row = (tile_m * {m} + tl.arange(0, {m}))[:, None]",
        f"start, across = tile_n * {n}, tl.arange(0, {n})[None, :]",
        "column = start + across",
        "inside = (row < M) & (column < N)",
        *_place(batched),
        *(["parts_ptr += batch * SPLIT * M * N"] if batched else []),
        "first = row.to(tl.int64) * N + column",
        f"acc = tl.zeros(({m}, {n}), tl.float32)",
        "for part in range(SPLIT):",
        "    acc += tl.load(parts_ptr + part * (tl.cast(M, tl.int64) * N) + first, inside, 0.0)",
        *_steps(steps),
        "tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), inside)",
    ]
    return "\n".join([*lines, *_indented(1, body)]) + "\n"


def _parameters(schedule: Schedule, form: Form) -> list[str]:
    names = ["a_desc", "b_desc"] if schedule.bulk else ["a_ptr", "b_ptr"]
    names += ["c_ptr", "M", "N", "K"]
    names += [] if schedule.bulk else list(STRIDES)
    names += ["a_batch", "b_batch"] if form.batched else []
    names += parameters((*form.prologue, *form.steps))
    names += ["GROUP", "WHOLE: tl.constexpr", "WIDE: tl.constexpr", "PRECISION: tl.constexpr"]
    names += [f"{name.upper()}_ALIGN: tl.constexpr" for name in hinted(schedule)]
    return names + (["PROGRAMS"] if schedule.persistent else [])


def _signature(function: str, names: list[str]) -> list[str]:
    rows = wrap(", ".join(names) + ",", 100, break_long_words=False)
    return [f"def {function}(", *_indented(1, rows), "):"]


def hinted(schedule: Schedule) -> tuple[str, ...]:
    """The sizes and strides whose common divisor with 16 the kernel is told."""
    return ("N",) if schedule.bulk else ("N", "K", *STRIDES)


def _summary(schedule: Schedule, form: Form) -> str:
    left = _chain(form.prologue, "a [M, K]")
    return f"c [M, N] = {_chain(form.steps, f'{left} b [K, N]')}; {schedule}."


def _chain(steps: tuple[Step, ...], inner: str) -> str:
    for step in steps:
        inner = f"{step.name}({inner})"
    return inner


def _sizes(schedule: Schedule) -> list[str]:
    hints = []
    for name in hinted(schedule):
        align = f"{name.upper()}_ALIGN"
        hints += [f"if {align} > 1:", f"    {name} = ({name} // {align}) * {align}"]
    return [
        "# sizes stay what they are: their divisors are what the compiler needs to know for wide accesses",
        *hints,
        f"tiles_m = tl.cdiv(M, {schedule.block_m})",
        f"tiles_n = tl.cdiv(N, {schedule.block_n})",
        *(["groups = tl.cdiv(tiles_m, GROUP)"] if schedule.persistent or schedule.split > 1 else []),
    ]


def _rounds(rounds: TaskMapping) -> list[str]:
    """The loop of a program that stays; flattened with the loop over the depth, so that copies of the next
    tile start while this one is finished."""
    ((variable, _),) = loops(rounds, "program", variable="round").loops
    (tile,) = loops(rounds, "program", variable="round").coordinates
    return [
        f"# tiles to programs that stay: {rounds}",
        "tiles = groups * GROUP * tiles_n",
        "rounds = tl.cdiv(tiles - program, PROGRAMS)",
        f"for {variable} in tl.range(0, rounds, flatten=True):",
        f"    tile = {tile}",
    ]


def _tile(schedule: Schedule, form: Form) -> list[str]:
    """From the number of a tile to its place in memory."""
    axes = ("part", "tile_m", "tile_n") if schedule.split > 1 else ("tile_m", "tile_n")
    lines = _assigned(schedule.programs, "tile" if schedule.persistent else "program", axes)
    if not schedule.persistent:  # a group may have more rows than are left
        lines += ["if tile_m >= tiles_m:", "    return"]
    lines += [
        f"row = tile_m * {schedule.block_m} + tl.arange(0, {schedule.block_m})",
        f"column = tile_n * {schedule.block_n} + tl.arange(0, {schedule.block_n})",
        *_depth(schedule),
        *(_bulk_product(schedule, form) if schedule.bulk else _product(schedule, form)),
        *_epilogue(schedule, form),
    ]
    return lines


def _epilogue(schedule: Schedule, form: Form) -> list[str]:
    """The steps and the store, slab by slab of the tile's columns: registers hold one at a time."""
    # dropout's random numbers take registers of their own: with Triton 3.6 they spill from whole slabs
    slab = SLAB // 2 if DROPOUT in form.steps else SLAB
    count = schedule.block_m * schedule.block_n // (slab * schedule.threads)
    count = max(1, min(count, schedule.block_n // LEAST_SLAB_COLUMNS))
    lines = []
    names = ["acc"]
    while len(names) < count:
        width = schedule.block_n // (2 * len(names))
        for name in names:
            halves = f"tl.permute(tl.reshape({name}, ({schedule.block_m}, 2, {width})), (0, 2, 1))"
            lines.append(f"{name}0, {name}1 = tl.split({halves})")
        names = [name + half for name in names for half in "01"]
    lines += ["row = row[:, None]", "first_column = tile_n * " + str(schedule.block_n)]
    width = schedule.block_n // count
    for place, name in enumerate(names):
        lines += [f"acc = {name}"] if count > 1 else []
        lines += [
            f"start, across = first_column + {place * width}, tl.arange(0, {width})[None, :]",
            "column = start + across",
            "inside = (row < M) & (column < N)",
            *_offset(schedule, form),
            *_steps(form.steps),
            "tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), inside)",
        ]
    return lines


def _offset(schedule: Schedule, form: Form) -> list[str]:
    """Where an element of the tile is stored: in c, or in the parts of a split depth."""
    if schedule.split == 1:
        return _place(form.batched, has_batch=True)
    whole = f"(batch * {schedule.split} + part)" if form.batched else "part.to(tl.int64)"
    return [f"place = {whole} * M * N + row.to(tl.int64) * N + column"]


def _place(batched: bool, *, has_batch: bool = False) -> list[str]:
    """The offset of an element in a tensor of the product's shape; 64 bits wide only where it must be."""
    if not batched:
        return ["place = (row.to(tl.int64) if WIDE else row) * N + column"]
    batch = [] if has_batch else ["batch = tl.program_id(1).to(tl.int64)"]
    first = "(batch if WIDE else batch.to(tl.int32))"
    return [*batch, f"place = {first} * M * N + (row.to(tl.int64) if WIDE else row) * N + column"]


def _assigned(mapping: TaskMapping, worker: str, names: tuple[str, ...]) -> list[str]:
    found = loops(mapping, worker)
    return [
        f"# {mapping}",
        *(f"{name} = {axis}" for name, axis in zip(names, found.coordinates, strict=True)),
    ]


def _depth(schedule: Schedule) -> list[str]:
    """Which blocks of the depth this program loops over."""
    blocks = f"tl.cdiv(K, {schedule.block_k})"
    if schedule.split == 1:
        return [f"blocks = {blocks}", "first = 0"]
    found = loops(schedule.depth, "part")
    return [
        f"# blocks of the depth: {schedule.depth}, those beyond the last are left out",
        f"blocks = tl.cdiv({blocks}, {schedule.split})",
        f"first = {found.coordinates[0].partition(' + ')[0]}",
        f"blocks = tl.maximum(tl.minimum(blocks, {blocks} - first), 0)",
    ]


def _product(schedule: Schedule, form: Form) -> list[str]:
    """The loop over the depth, tiles coming through pointers; edges are masked and filled with zeros."""
    m, n, k = schedule.block_m, schedule.block_n, schedule.block_k
    return [
        f"depth = tl.arange(0, {k})",
        f"skipped = tl.cast(first, tl.int64) * {k}",
        "a_tile = a_ptr + row.to(tl.int64)[:, None] * a_row + (skipped + depth)[None, :] * a_depth",
        "b_tile = b_ptr + (skipped + depth)[:, None] * b_depth + column.to(tl.int64)[None, :] * b_column",
        "a_ok, b_ok = (row < M)[:, None], (column < N)[None, :]",
        f"acc = tl.zeros(({m}, {n}), tl.float32)",
        f"for {_variable(schedule)} in range(0, blocks):",
        f"    left = K - (first + {_variable(schedule)}) * {k}",
        "    a = tl.load(a_tile, a_ok if WHOLE else a_ok & (depth < left)[None, :], 0.0)",
        "    b = tl.load(b_tile, b_ok if WHOLE else b_ok & (depth < left)[:, None], 0.0)",
        *_indented(1, _on_left(form)),
        "    acc = tl.dot(a, b, acc, input_precision=PRECISION)",
        f"    a_tile += tl.full((), {k}, tl.int64) * a_depth",
        f"    b_tile += tl.full((), {k}, tl.int64) * b_depth",
    ]


def _bulk_product(schedule: Schedule, form: Form) -> list[str]:
    """The loop over the depth, tiles coming by descriptor, which fills edges with zeros by itself."""
    m, n, k = schedule.block_m, schedule.block_n, schedule.block_k
    variable = _variable(schedule)
    block = variable if schedule.split == 1 else f"(first + {variable})"
    a = f"[{block} * {k}, tile_m * {m}]).T" if form.a_flipped else f"[tile_m * {m}, {block} * {k}])"
    b = f"[tile_n * {n}, {block} * {k}]).T" if form.b_flipped else f"[{block} * {k}, tile_n * {n}])"
    return [
        f"acc = tl.zeros(({m}, {n}), tl.float32)",
        f"for {variable} in range(0, blocks):",
        f"    a = a_desc.load({a}",
        f"    b = b_desc.load({b}",
        *_indented(1, _on_left(form)),
        "    acc = tl.dot(a, b, acc, input_precision=PRECISION)",
    ]


def _variable(schedule: Schedule) -> str:
    """The name of the loop variable over the depth, from its mapping."""
    return loops(schedule.depth, "part").loops[0][0]


def _on_left(form: Form) -> list[str]:
    return [line for step in form.prologue for line in step.lines]


def _steps(steps: tuple[Step, ...]) -> list[str]:
    return [line for step in steps for line in step.lines]


def _indented(depth: int, lines: list[str]) -> list[str]:
    return ["    " * depth + line for line in lines]
