"""Problems to measure: random samples over useful ranges, or a grid.

Sizes are log-uniform, because times follow ratios of sizes. Half of them are rounded to a power of two,
as most layers that people build; the others stay odd, because kernels change their speed off the grid.
Draws are independent, so that every prefix of a set covers the ranges too, however short the budget.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from math import exp, log, log2

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import InvalidHyperparameter, Operator, Problem, Space
from kernel_selector.kernels.contract.hyperparameter import Value

ATTEMPTS = 100  # draws for each problem wanted, before the space counts as exhausted


def random_problems(
    operator: str,
    kind: str,
    *,
    count: int,
    seed: int,
    fixed: Mapping[str, str] | None = None,
    exclude: frozenset[str] = frozenset(),
) -> list[Problem]:
    """Up to `count` distinct random problems of an operator, equal for equal seeds.

    Parameters
    ----------
    operator : str
    kind : {"cpu", "cuda"}
        Device kind whose ranges are sampled.
    count : int
    seed : int
    fixed : mapping of str to str, optional
        Given hyperparameters as text, with commas between alternatives.
    exclude : collection of str, optional
        Keys of problems that must not be drawn.

    Raises
    ------
    InvalidHyperparameter
        When nothing can be drawn.
    """
    known = registry.operator(operator)
    space = known.spaces[kind]
    draw = random.Random(f"{operator} {kind} {seed}")
    alternatives = {name: text.split(",") for name, text in (fixed or {}).items()}
    found: dict[str, Problem] = {}
    for _ in range(ATTEMPTS + count):
        if len(found) == count:
            break
        chosen = {name: draw.choice(texts) for name, texts in alternatives.items()}
        problem = _draw(known, space, draw, chosen)
        if problem is not None and problem.key not in exclude:
            found.setdefault(problem.key, problem)
    if not found:
        raise InvalidHyperparameter(
            f"No random {operator} problem for {kind} within {space.max_flops:.0e} operations"
            f"{' and ' + str(dict(fixed)) if fixed else ''}: spell the problems out, without a count."
        )
    return list(found.values())


def grid(operator: str, given: Mapping[str, str]) -> list[Problem]:
    """Problems for all combinations of comma-separated values: `{"hidden": "64,128", "batch": "8"}` gives
    two.
    """
    known = registry.operator(operator)
    names, texts = list(given), [text.split(",") for text in given.values()]
    problems = [known.problem_from_text(dict(zip(names, row, strict=True))) for row in product(*texts)]
    return list({problem.key: problem for problem in problems}.values())


def typed(operator: str, given: Mapping[str, str]) -> dict[str, Value]:
    """Validated hyperparameters from text, under their short names and without defaults."""
    problem = registry.operator(operator).problem_from_text(given)
    return {name: value for name, value in problem.values if name not in problem.assumed}


def _draw(known: Operator, space: Space, draw: random.Random, chosen: Mapping[str, str]) -> Problem | None:
    """Random problem within the size cap, or None."""
    # a drawn value gives way to a given one, also to one under an alias
    names = {name: spec.name for spec in known.hyperparameters for name in (spec.name, *spec.aliases)}
    given = {names.get(name, name) for name in chosen}
    free = {spec.name for spec in known.hyperparameters} - given
    values = {name: draw.choice(texts) for name, texts in space.values.items() if name in free}
    for _ in range(ATTEMPTS):
        sizes = {name: _size(draw, *span) for name, span in space.sizes.items() if name in free}
        extra = {name: _size(draw, *span) for name, span in space.sometimes.items() if name in free}
        if draw.random() < 0.25:
            sizes |= extra
        texts = {name: str(size) for name, size in sizes.items()}
        problem = known.problem_from_text({**chosen, **values, **texts})
        work = known.work(problem)
        if work.flops <= space.max_flops and work.moved_bytes <= space.max_bytes:
            return problem
    return None


def _size(draw: random.Random, low: int, high: int) -> int:
    exact = exp(draw.uniform(log(low), log(high)))
    rounded = 2 ** round(log2(exact)) if draw.random() < 0.5 else round(exact)
    return min(max(rounded, low), high)
