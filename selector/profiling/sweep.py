"""Problems of a sweep: published and random layers, in an order that may end anywhere.

Every prefix of the order covers what the whole covers: operators take turns, and of each the published
and the random problems, both of them shuffled. So a budget leaves out some of everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure.jobs import Job

from ..workloads.published_layers import published_problems
from ..workloads.sampling import random_problems

# these compile for each problem anew, 10 to 60 s: they run on every so many problems of an operator
COMPILED = ("torch_compile", "flex")
COMPILED_EVERY = 8
PROBLEMS = 68  # of each operator, where nobody says how many: about a thousand in all


def sweep_jobs(operators: Sequence[str], kind: str, *, count: int, seed: int = 0) -> list[Job]:
    """Jobs of `count` problems of each operator, or as many as there are, with the implementations to run.

    kind: "cpu" or "cuda", which sizes to draw; the published ones are of GPUs alone. The same seed gives
    the same jobs. Raises UnknownOperator, or InvalidHyperparameter when nothing can be drawn.
    """
    lists = [_jobs(operator, kind, count, seed) for operator in operators]
    return [job for turn in zip_longest(*lists) for job in turn if job is not None]


def _jobs(operator: str, kind: str, count: int, seed: int) -> Iterator[Job]:
    published = published_problems(operator) if kind == "cuda" else []
    random.Random(f"{operator} {seed}").shuffle(published)
    drawn = random_problems(operator, kind, count=count, seed=seed)
    turns = chain.from_iterable(zip_longest(published, drawn))
    problems = islice(dict.fromkeys(one for one in turns if one is not None), count)
    return (job(problem, index) for index, problem in enumerate(problems))


def job(problem: Problem, index: int) -> Job:
    """Job of an operator's `index`-th problem: all implementations, but slow ones only for few problems."""
    names = registry.implementations(problem.operator)
    run = (name for name in names if not (index % COMPILED_EVERY and name.startswith(COMPILED)))
    return Job(problem, tuple(run))


def named_operators(text: str) -> list[str]:
    """Operators named in `lstm,attention`, or all for `all`.

    Raises UnknownOperator.
    """
    if text == "all":
        return list(registry.operators())
    return [registry.operator(name).name for name in listed(text)]


def listed(text: str) -> list[str]:
    """Names in `lstm, attention`, without repetitions."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or [text]
