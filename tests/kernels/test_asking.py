"""All implementations of an operator, asked together, say what each says when asked alone."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import COUNTS, CountedBytes, Family
from kernel_selector.kernels.devices import known_device

DEVICE = known_device("h200")


@pytest.mark.parametrize("operator", registry.operators())
def test_refusals_and_counts_are_those_of_each_implementation(operator: str) -> None:
    family, known = Family(operator, DEVICE), registry.implementations(operator)
    for example in registry.operator(operator).examples:
        problem = registry.operator(operator).problem(example)
        said = {name: item.unsupported(problem, DEVICE) for name, item in known.items()}
        refused = family.refused(problem)
        assert refused == {name: reason for name, reason in said.items() if reason is not None}
        accepting = [name for name in known if name not in refused]
        counts = family.counts(problem, accepting)
        kept = CountedBytes(family, counts)
        assert tuple(kept) == family.names == tuple(known)
        assert counts[: len(COUNTS)] == _counted(registry.operator(operator).work(problem))
        for place, (name, item) in enumerate(known.items(), 1):
            mine = counts[place * len(COUNTS) : (place + 1) * len(COUNTS)]
            if name in refused:
                assert set(mine) == {None}
                assert kept[name] == 0
            else:
                assert mine == _counted(item.work(problem))
                assert kept[name] == item.work(problem).saved_bytes


def _counted(work: object) -> tuple[float, ...]:
    return tuple(getattr(work, name) for name in COUNTS)
