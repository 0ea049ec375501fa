"""All implementations of an operator, asked together, say what each says when asked alone."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import COUNTS, CountedBytes, counted
from kernel_selector.kernels.devices import known_device

DEVICE = known_device("h200")


@pytest.mark.parametrize("operator", registry.operators())
def test_refusals_and_counts_are_those_of_each_implementation(operator: str) -> None:
    known = registry.implementations(operator)
    for example in registry.operator(operator).examples:
        problem = registry.operator(operator).problem(example)
        said = {name: item.unsupported(problem, DEVICE) for name, item in known.items()}
        accepted, refused = registry.candidates(problem, DEVICE)
        assert refused == {name: reason for name, reason in said.items() if reason is not None}
        accepting = [name for name in known if name not in refused]
        assert [item.name for item in accepted] == accepting
        counts = counted(problem, accepting)
        kept = CountedBytes(operator, counts)
        assert tuple(kept) == tuple(known)
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
