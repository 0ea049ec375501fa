"""Counts of implementations that make a step fastest within a memory limit: an integer program.

For each part p and option o: n_po layers (whole, at least 0), u_po whether there are any. With b blocks
recomputed, t the step's time, and r the bytes of one block that is being recomputed:

    minimise t
    t >= sum n_po device_ms,  t >= sum n_po host_ms            # the slower of device and host
    sum_o n_po = count_p,  sum_(o recomputed) n_po = per_block_p b,  n_po <= count_p u_po
    kept = sum_(o kept) n_po held + b block_bytes + r
    resident + kept + loss <= limit                            # where backward begins, at a loss of its own
    resident + kept + transient_po u_po <= limit               # right after, at its largest layer
    resident + gradients + transient_po u_po <= limit          # where backward ends
    resident + kept + transient_po u_po + max(loss, gradients) <= limit   # where graphs' memory is apart
    r >= sum_p r_p,  r_p >= per_block_p held_po u_po           # for the recomputed

Equal layers share one whole number, which is what makes this quick: a variable for each layer would have
factorially many equal solutions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..workloads.model import Part
from .options import Option

TIME_LIMIT_S = 5.0
GAP = 1e-3  # of the time that is left on the table: less than any measurement is sure of
TIE_MS_PER_GIB = 1e-4  # of two equally fast solutions the smaller
GIB = 2**30

Row = dict[int, float]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes that a step has beside its parts: `resident` are there all the time; `kept` from forward to
    backward; `block` is the input of one of so many `blocks` that can be recomputed; `first_gradients` and
    `gradients` are there where backward begins, and where it ends; `loss` is what a loss that is no part
    takes before there are any. `apart`: what layers take is the graphs' that replay them, and nothing else
    can have it. `other_ms` is the device's."""

    limit: int
    resident: int
    kept: int
    block: int
    blocks: int
    first_gradients: int
    gradients: int
    loss: int = 0
    other_ms: float = 0.0
    apart: bool = False

    def beside(self, part: Part) -> int:
        """Bytes beside a layer's transient ones where backward begins."""
        if part.head:
            return 0
        return max(self.loss, self.gradients) if self.apart else self.first_gradients


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Counts by part and option, and the step's time and bytes without the optimizer's."""

    counts: Mapping[tuple[int, int], int]
    recomputed_blocks: int
    device_ms: float
    host_ms: float
    held_bytes: int
    peak_bytes: int
    peaks_at_end: bool  # of backward, with all gradients; else where it begins, with all that is held

    @property
    def step_ms(self) -> float:
        """The slower of device and host."""
        return max(self.device_ms, self.host_ms)


@dataclass(frozen=True)
class Slower:
    """Result of a search that finds no solution fast enough: none takes less than `step_ms`."""

    step_ms: float


def solve(
    parts: Sequence[Part],
    options: Sequence[Sequence[Option]],
    budget: Budget,
    *,
    host: bool = True,
    recompute: bool = True,
    smallest: bool = False,
    within_ms: float = math.inf,
) -> Solution | Slower | None:
    """The fastest solution within the limit, or None where there is none. `smallest`: the one of the lowest
    peak, whatever the limit. Without `host` launching costs nothing, as in a CUDA graph; without
    `recompute` no block is run twice. One that must take longer than `within_ms` is not looked for: counts
    that need not be whole say so twenty times as quickly.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

    program = _Program(parts, options, budget, host=host, smallest=smallest)
    fastest = program.fastest()
    fits = fastest.peak_bytes <= budget.limit
    if all(len(some) == 1 for some in options):
        return fastest if smallest or fits else None
    if fits and not smallest and fastest.host_ms <= fastest.device_ms:
        return fastest  # nothing that could be better is in the way
    upper = program.upper(recompute=recompute)
    matrix = np.zeros((len(program.rows), program.size))
    for index, (row, _, _) in enumerate(program.rows):
        matrix[index, list(row)] = list(row.values())
    low, high = ([row[side] for row in program.rows] for side in (1, 2))
    given = {
        "c": np.array(program.objective),
        "bounds": Bounds(np.zeros(program.size), np.array(upper)),
        "constraints": LinearConstraint(matrix, low, high),
        "options": {"mip_rel_gap": GAP, "time_limit": TIME_LIMIT_S},
    }
    if within_ms < math.inf:
        bound = milp(**given)
        if bound.x is None:
            return None
        if bound.x[program.time] > within_ms:
            return Slower(float(bound.x[program.time]))
    result = milp(integrality=np.array(program.integrality), **given)
    return None if result.x is None else program.solution(result.x)


def shortest_step(parts: Sequence[Part], options: Sequence[Sequence[Option]], *, host: bool) -> list[Option]:
    """The option of each part that makes a step shortest, whatever its bytes: one for all layers of a part.

    Without `host` launching costs nothing, as in a CUDA graph.
    """
    if not parts:
        return []
    times = [
        [
            replace(
                one,
                device_ms=one.device_ms * part.count,
                host_ms=one.host_ms * part.count,
                held_bytes=0,
                transient_bytes=0,
            )
            for one in some
        ]
        for part, some in zip(parts, options, strict=True)
    ]
    free = Budget(limit=0, resident=0, kept=0, block=0, blocks=0, first_gradients=0, gradients=0)
    found = solve([replace(part, count=1) for part in parts], times, free, host=host, recompute=False)
    assert isinstance(found, Solution)  # no bytes are no more than none, and no time was asked for
    return [options[part][option] for part, option in sorted(found.counts)]


class _Program:
    """Variables and rows. Bytes are in GiB, so that all numbers are of like size."""

    def __init__(
        self,
        parts: Sequence[Part],
        options: Sequence[Sequence[Option]],
        budget: Budget,
        *,
        host: bool,
        smallest: bool,
    ) -> None:
        self.parts, self.options, self.budget = parts, options, budget
        self._host, self._smallest = host, smallest
        self.pairs = [(part, option) for part in range(len(parts)) for option in range(len(options[part]))]
        pairs = len(self.pairs)
        self.count = {pair: index for index, pair in enumerate(self.pairs)}
        self.used = {pair: pairs + index for index, pair in enumerate(self.pairs)}
        self.again = {part: 2 * pairs + part for part in range(len(parts))}  # r_p
        self.blocks = 2 * pairs + len(parts)
        self.time, self.peak = self.blocks + 1, self.blocks + 2
        self.size = self.blocks + 3
        self.rows: list[tuple[Row, float, float]] = []
        self._counts()
        self._times()
        self._bytes()

    @property
    def objective(self) -> list[float]:
        """The time and, a little, the bytes; or the peak alone."""
        found = [0.0] * self.size
        found[self.time] = 0.0 if self._smallest else 1.0
        found[self.peak] = 1.0 if self._smallest else TIE_MS_PER_GIB
        return found

    @property
    def integrality(self) -> list[int]:
        """Integrality of each variable: 1 for whole numbers."""
        whole = {*self.count.values(), *self.used.values(), self.blocks}
        return [int(index in whole) for index in range(self.size)]

    def upper(self, *, recompute: bool) -> list[float]:
        """The most of each variable."""
        found = [float("inf")] * self.size
        for pair in self.pairs:
            found[self.count[pair]] = self.parts[pair[0]].count
            found[self.used[pair]] = 1
        found[self.blocks] = self.budget.blocks if recompute else 0
        found[self.peak] = float("inf") if self._smallest else self.budget.limit / GIB
        return found

    def _option(self, pair: tuple[int, int]) -> Option:
        return self.options[pair[0]][pair[1]]

    def _counts(self) -> None:
        for index, part in enumerate(self.parts):
            mine = [pair for pair in self.pairs if pair[0] == index]
            self.rows.append(({self.count[pair]: 1.0 for pair in mine}, part.count, part.count))
            again = [pair for pair in mine if self._option(pair).recomputed]
            if again:
                row = {self.count[pair]: 1.0 for pair in again}
                self.rows.append(({**row, self.blocks: -part.per_block}, 0, 0))
            for pair in mine:
                row = {self.count[pair]: 1.0, self.used[pair]: -part.count}
                self.rows.append((row, -float("inf"), 0))

    def _times(self) -> None:
        for name in ("device_ms", "host_ms") if self._host else ("device_ms",):
            row = {self.count[pair]: getattr(self._option(pair), name) for pair in self.pairs}
            rest = self.budget.other_ms if name == "device_ms" else 0.0
            self.rows.append(({**row, self.time: -1.0}, -float("inf"), -rest))

    def _bytes(self) -> None:
        budget = self.budget
        kept: Row = {self.blocks: budget.block / GIB, **dict.fromkeys(self.again.values(), 1.0)}
        for pair in self.pairs:
            option = self._option(pair)
            if not option.recomputed:
                kept[self.count[pair]] = option.held_bytes / GIB
                continue
            held = self.parts[pair[0]].per_block * option.held_bytes / GIB
            self.rows.append(({self.used[pair]: held, self.again[pair[0]]: -1.0}, -float("inf"), 0))
        at_loss = -(budget.resident + budget.kept + budget.loss) / GIB
        self.rows.append(({**kept, self.peak: -1.0}, -float("inf"), at_loss))
        for pair in self.pairs:
            transient = {self.used[pair]: self._option(pair).transient_bytes / GIB, self.peak: -1.0}
            begin = -(budget.resident + budget.kept + budget.beside(self.parts[pair[0]])) / GIB
            self.rows.append(({**kept, **transient}, -float("inf"), begin))
            self.rows.append((transient, -float("inf"), -(budget.resident + budget.gradients) / GIB))

    def fastest(self) -> Solution:
        """Each part by what takes the device least time, whatever it holds."""
        x = [0.0] * self.size
        for index, part in enumerate(self.parts):
            kept = [pair for pair in self.pairs if pair[0] == index and not self._option(pair).recomputed]
            best = min(kept, key=lambda pair: self._option(pair).figures)
            x[self.count[best]] = float(part.count)
        return self.solution(x)

    def solution(self, x: Sequence[float]) -> Solution:
        """The solution that the solver's numbers mean: rounded, because it is exact to a tolerance alone."""
        counts = {pair: round(x[self.count[pair]]) for pair in self.pairs if x[self.count[pair]] > 0.5}
        chosen = {pair: self._option(pair) for pair in counts}
        blocks = round(x[self.blocks])
        again = {
            part: max(
                (
                    self.parts[part].per_block * option.held_bytes
                    for pair, option in chosen.items()
                    if pair[0] == part and option.recomputed
                ),
                default=0,
            )
            for part in self.again
        }
        held = sum(
            counts[pair] * option.held_bytes for pair, option in chosen.items() if not option.recomputed
        )
        held += blocks * self.budget.block + sum(again.values()) + self.budget.kept
        begin, end = self._peaks(chosen, held)
        return Solution(
            counts=counts,
            recomputed_blocks=blocks,
            device_ms=self.budget.other_ms
            + sum(counts[pair] * option.device_ms for pair, option in chosen.items()),
            host_ms=sum(counts[pair] * option.host_ms for pair, option in chosen.items()) * self._host,
            held_bytes=held,
            peak_bytes=max(begin, end),
            peaks_at_end=end > begin,
        )

    def _peaks(self, chosen: Mapping[tuple[int, int], Option], held: int) -> tuple[int, int]:
        budget = self.budget
        begin = max(
            option.transient_bytes + budget.beside(self.parts[pair[0]]) for pair, option in chosen.items()
        )
        end = max(option.transient_bytes for option in chosen.values())
        return budget.resident + held + max(begin, budget.loss), budget.resident + budget.gradients + end
